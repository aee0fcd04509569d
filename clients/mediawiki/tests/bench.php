<?php
/**
 * JobQueuePgClaim beside JobQueueDB, in turn in one run, in an installed wiki: milliseconds
 * per job as median (min to max), and how many jobs several runners run twice.
 */

$IP = getenv( 'MW_INSTALL_PATH' ) ?: '/usr/share/mediawiki';
require_once "$IP/maintenance/Maintenance.php";

use MediaWiki\MediaWikiServices;

class BenchJobQueues extends Maintenance {
	private const QUEUES = [
		'JobQueuePgClaim' => [ 'class' => 'JobQueuePgClaim' ],
		'JobQueueDB random' => [ 'class' => 'JobQueueDB', 'order' => 'random' ],
		'JobQueueDB fifo' => [ 'class' => 'JobQueueDB', 'order' => 'fifo' ],
	];

	public function __construct() {
		parent::__construct();
		$this->addOption( 'jobs', 'Number of jobs of a round', false, true );
		$this->addOption( 'rounds', 'Number of rounds', false, true );
		$this->addOption( 'runners', 'Number of runners at once', false, true );
		$this->addOption( 'runner', 'Be a runner of this queue', false, true );
	}

	private function queue( $name ) {
		return JobQueue::factory( self::QUEUES[$name] + [ 'type' => 'null', 'claimTTL' => 3600,
			'domain' => WikiMap::getCurrentWikiDbDomain()->getId(),
			'wanCache' => WANObjectCache::newEmpty(),
			'idGenerator' => MediaWikiServices::getInstance()->getGlobalIdGenerator() ] );
	}

	private function drain( $queue ) {
		while ( $job = $queue->pop() ) {
			print "{$job->getParams()['i']}\n";
			$queue->ack( $job );
		}
	}

	private function timed( $n, callable $callback ) {
		$start = microtime( true );
		$callback();
		return 1000 * ( microtime( true ) - $start ) / $n;
	}

	/** @return array [ process, pipes ] of runners that are connected, and begin at the end of their input */
	private function start( $name, $n ) {
		$runners = [];
		while ( count( $runners ) < $n ) {
			$process = proc_open( [ PHP_BINARY, __FILE__, '--runner', $name ],
				[ [ 'pipe', 'r' ], [ 'pipe', 'w' ] ], $pipes );
			$runners[] = [ $process, $pipes ];
		}
		foreach ( $runners as [ , $pipes ] ) {
			fgets( $pipes[1] );
		}
		return $runners;
	}

	/** @return array times per job of each step, and how many ran twice */
	private function round( $name, array $jobs, $runners ) {
		$queue = $this->queue( $name );
		$queue->delete();
		$n = count( $jobs );
		$result['push one'] = $this->timed( $n, static fn () => array_map( [ $queue, 'push' ], $jobs ) );
		ob_start();
		$result['pop, ack'] = $this->timed( $n, fn () => $this->drain( $queue ) );
		ob_end_clean();
		$result['push all'] = $this->timed( $n, static fn () => $queue->push( $jobs ) );
		$runners = $this->start( $name, $runners );
		$run = [];
		$result['pop, ack by several'] = $this->timed( $n, static function () use ( $runners, &$run ) {
			foreach ( $runners as [ , $pipes ] ) {
				fclose( $pipes[0] );
			}
			foreach ( $runners as [ $process, $pipes ] ) {
				array_push( $run, ...explode( "\n", trim( stream_get_contents( $pipes[1] ) ) ) );
				proc_close( $process );
			}
		} );
		$run = array_diff( $run, [ '' ] );
		$result['run twice'] = count( $run ) - count( array_unique( $run ) );
		if ( count( array_unique( $run ) ) !== $n ) {
			$this->fatalError( "$name: " . count( array_unique( $run ) ) . " of $n jobs have run" );
		}
		return $result;
	}

	private static function median( array $list ) {
		sort( $list );
		return $list[intdiv( count( $list ), 2 )];
	}

	public function execute() {
		if ( $this->hasOption( 'runner' ) ) {
			$queue = $this->queue( $this->getOption( 'runner' ) );
			$queue->isEmpty();
			print "ready\n";
			stream_get_contents( STDIN );
			$this->drain( $queue );
			return;
		}
		$jobs = [];
		for ( $i = 0; $i < $this->getOption( 'jobs', 500 ); $i++ ) {
			$jobs[] = Job::factory( 'null', [ 'namespace' => NS_MAIN, 'title' => 'Main_Page', 'i' => $i ] );
		}
		$figures = [];
		for ( $round = 0; $round < $this->getOption( 'rounds', 5 ); $round++ ) {
			foreach ( self::QUEUES as $name => $unused ) {
				foreach ( $this->round( $name, $jobs, (int)$this->getOption( 'runners', 4 ) ) as $step => $figure ) {
					$figures[$step][$name][] = $figure;
				}
			}
		}
		foreach ( $figures as $step => $byName ) {
			foreach ( $byName as $name => $list ) {
				$base = self::median( $byName['JobQueuePgClaim'] );
				printf( "%-26s %-18s %7.2f (%.2f to %.2f)%s\n", $step, $name, self::median( $list ), min( $list ),
					max( $list ), $base ? sprintf( '  x %.2f', self::median( $list ) / $base ) : '' );
			}
		}
	}
}

$maintClass = BenchJobQueues::class;
require_once RUN_MAINTENANCE_IF_MAIN;
