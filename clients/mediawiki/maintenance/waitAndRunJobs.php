<?php
/** Runs the jobs of one type, and waits for more without polling. */

$IP = getenv( 'MW_INSTALL_PATH' ) ?: '/usr/share/mediawiki';
require_once "$IP/maintenance/Maintenance.php";

use MediaWiki\MediaWikiServices;
use MediaWiki\Settings\SettingsBuilder;

class WaitAndRunJobs extends Maintenance {
	/** Seconds; a wake-up can be lost, and MediaWiki logs queries of 30 seconds. */
	private const LONGEST_WAIT = 20;

	public function __construct() {
		parent::__construct();
		$this->addDescription( 'Run jobs of one type, waiting for them with queue_wait' );
		$this->addOption( 'type', 'Type of the jobs', true, true );
		$this->addOption( 'maxtime', 'Seconds after which to end', false, true );
	}

	public function memoryLimit() {
		// As runJobs.php: the runner ends, rather than the process of a bad job.
		return $this->hasOption( 'memory-limit' ) ? parent::memoryLimit() : '150M';
	}

	public function finalSetup( ?SettingsBuilder $settingsBuilder = null ) {
		// As runJobs.php does
		define( 'MEDIAWIKI_JOB_RUNNER', true );
		parent::finalSetup( $settingsBuilder );
	}

	public function execute() {
		$type = $this->getOption( 'type' );
		$until = microtime( true ) + (float)$this->getOption( 'maxtime', INF );
		$services = MediaWikiServices::getInstance();
		$queue = $services->getJobQueueGroup()->get( $type );
		if ( !$queue instanceof JobQueuePgClaim ) {
			$this->fatalError( "Jobs of type $type are in no JobQueuePgClaim" );
		}
		$stopped = false;
		pcntl_async_signals( true );
		foreach ( [ SIGTERM, SIGINT ] as $signal ) {
			pcntl_signal( $signal, static function () use ( &$stopped ) {
				$stopped = true;
			} );
		}
		while ( !$stopped && microtime( true ) < $until ) {
			// Between two jobs, once a second, the runner looks at the time and at signals.
			$run = $services->getJobRunner()->run( [ 'type' => $type, 'maxTime' => 1 ] );
			if ( $run['reached'] === 'time-limit' ) {
				continue;
			}
			if ( $run['reached'] !== 'none-ready' ) {
				// More of memory, a wiki that can be written: a new process may have it.
				$this->fatalError( "Stopped: {$run['reached']}" );
			}
			$now = microtime( true );
			$wait = max( 0, min( self::LONGEST_WAIT, $until - $now ) );
			$pause = ( $run['backoffs'][$type] ?? 0 ) - $now;
			if ( $pause > 0 ) {
				// The wiki throttles this type, and has jobs of it.
				usleep( (int)( 1e6 * min( $pause, $wait ) ) );
			} elseif ( !$stopped ) {
				$queue->wait( (int)( 1000 * $wait ) );
			}
		}
	}
}

$maintClass = WaitAndRunJobs::class;
require_once RUN_MAINTENANCE_IF_MAIN;
