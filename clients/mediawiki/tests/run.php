<?php
/** Runs the tests with PHPUnit, in an installed wiki: php run.php -- [--filter NAME] */

$IP = getenv( 'MW_INSTALL_PATH' ) ?: '/usr/share/mediawiki';
require_once "$IP/maintenance/Maintenance.php";
require_once 'PHPUnit/Autoload.php';

class RunTests extends Maintenance {
	public function __construct() {
		parent::__construct();
		$this->addArg( 'option', 'Options of PHPUnit, after --', false );
	}

	public function execute() {
		global $argv;
		$after = array_search( '--', $argv );
		$options = [ 'phpunit', '--no-configuration',
			...( $after === false ? [] : array_slice( $argv, $after + 1 ) ),
			__DIR__ . '/JobQueuePgClaimTest.php' ];
		// The first is that of PHPUnit 9, the second that of PHPUnit 10.
		exit( class_exists( PHPUnit\TextUI\Command::class )
			? ( new PHPUnit\TextUI\Command )->run( $options, false )
			: ( new PHPUnit\TextUI\Application )->run( $options ) );
	}
}

$maintClass = RunTests::class;
require_once RUN_MAINTENANCE_IF_MAIN;
