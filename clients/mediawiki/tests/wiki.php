<?php
/** For LocalSettings.php of the test: each edit pushes a job, which notes its run. */

use MediaWiki\MediaWikiServices;

class NoteJob extends Job {
	public function __construct( $title, $params ) {
		parent::__construct( 'note', $title, $params );
	}

	public function run() {
		// Not the wiki's connection: what a killed runner has noted stays.
		global $wgDBserver, $wgDBport, $wgDBname, $wgDBuser;
		$db = pg_connect( "host=$wgDBserver port=$wgDBport dbname=$wgDBname user=$wgDBuser",
			PGSQL_CONNECT_FORCE_NEW );
		$n = $this->params['n'];
		$row = pg_fetch_row( pg_query_params( $db, 'INSERT INTO public.runs (n, pid)
			VALUES ($1, $2) RETURNING id, (SELECT count(*) FROM public.runs WHERE n = $1)',
			[ $n, getmypid() ] ) );
		// The first run of 7 is killed, and the runner of 9 is told to stop.
		usleep( $row[1] === '0' ? [ 7 => 600000000, 9 => 2000000 ][$n] ?? 50000 : 50000 );
		pg_query_params( $db, 'UPDATE public.runs SET until = clock_timestamp() WHERE id = $1',
			[ $row[0] ] );
		return true;
	}
}

$wgJobClasses['note'] = NoteJob::class;
$wgHooks['PageSaveComplete'][] = static function ( $page ) {
	if ( preg_match( '/^Page (\d+)$/', $page->getTitle()->getText(), $match ) ) {
		MediaWikiServices::getInstance()->getJobQueueGroup()->push( new JobSpecification(
			'note', [ 'n' => $match[1] ], [], $page->getTitle() ) );
	}
};
