<?php
/** What each operation of the class does; see run.php. */

use MediaWiki\MediaWikiServices;
use PHPUnit\Framework\Attributes\DataProvider;
use PHPUnit\Framework\TestCase;
use Wikimedia\Rdbms\DatabaseDomain;

class JobQueuePgClaimTest extends TestCase {
	/** @var JobQueue[] */
	private $queues = [];

	public static function variants(): array {
		return [
			'fifo, once' => [ [ 'order' => 'fifo', 'claimTTL' => 0 ] ],
			'fifo, again' => [ [ 'order' => 'fifo', 'claimTTL' => 60 ] ],
			'any, once' => [ [ 'order' => 'any', 'claimTTL' => 0 ] ],
			'any, again' => [ [ 'order' => 'any', 'claimTTL' => 60 ] ],
		];
	}

	private function queue( array $params = [] ) {
		$queue = JobQueue::factory( $params + [
			'class' => 'JobQueuePgClaim', 'type' => 'null', 'domain' => $this->domain(), 'claimTTL' => 60,
			'wanCache' => new WANObjectCache( [ 'cache' => new HashBagOStuff() ] ),
			'idGenerator' => MediaWikiServices::getInstance()->getGlobalIdGenerator() ] );
		$queue->delete();
		return $this->queues[] = $queue;
	}

	protected function tearDown(): void {
		if ( $this->db()->trxLevel() ) {
			$this->db()->rollback( __METHOD__ );
		}
		foreach ( $this->queues as $queue ) {
			$queue->delete();
		}
	}

	/** That of the wiki, or of another one in its database, with tables of this prefix */
	private function domain( $prefix = '' ) {
		$domain = WikiMap::getCurrentWikiDbDomain();
		return ( new DatabaseDomain( $domain->getDatabase(), $domain->getSchema(), $prefix ) )->getId();
	}

	private function db() {
		return MediaWikiServices::getInstance()->getDBLoadBalancer()->getConnection( DB_PRIMARY );
	}

	/** The first column of the first row, in the project of a wiki */
	private function value( $sql, $project = null ) {
		$project ??= $this->domain();
		return $this->db()->doAtomicSection( __METHOD__, static function ( $db ) use ( $sql, $project ) {
			$db->query( "SET LOCAL queue.project = '$project'", __METHOD__ );
			$row = $db->query( $sql, __METHOD__ )->fetchRow();
			$db->query( "SET LOCAL queue.project = ''", __METHOD__ );
			return $row[0];
		} );
	}

	private function job( $i = 0, array $more = [] ) {
		return Job::factory( 'null', $more + [ 'namespace' => NS_MAIN, 'title' => 'Main_Page',
			'lives' => 0, 'usleep' => 0, 'removeDuplicates' => 0, 'i' => $i ] );
	}

	private function numbers( $jobs ) {
		$numbers = [];
		foreach ( $jobs as $job ) {
			$numbers[] = $job->getParams()['i'];
		}
		return $numbers;
	}

	private function drain( $queue ) {
		for ( $jobs = []; $job = $queue->pop(); $jobs[] = $job ) {
			$queue->ack( $job );
		}
		return $jobs;
	}

	/** Free, acquired, delayed, abandoned; and whether it is empty */
	private function assertCounts( array $counts, $queue ) {
		$this->assertSame( [ ...$counts, $counts[0] === 0 ],
			[ $queue->getSize(), $queue->getAcquiredCount(), $queue->getDelayedCount(),
				$queue->getAbandonedCount(), $queue->isEmpty() ] );
	}

	/** @dataProvider variants */
	#[DataProvider( 'variants' )]
	public function testPushPopAck( array $variant ) {
		$queue = $this->queue( $variant );
		$this->assertCounts( [ 0, 0, 0, 0 ], $queue );
		$this->assertFalse( $queue->pop() );

		$queue->push( $this->job( 1 ) );
		$queue->batchPush( [ $this->job( 2 ), $this->job( 3 ) ] );
		$this->assertCounts( [ 3, 0, 0, 0 ], $queue );
		$this->assertSame( [ 1, 2, 3 ], $this->numbers( $queue->getAllQueuedJobs() ) );

		$first = $queue->pop();
		$this->assertInstanceOf( NullJob::class, $first );
		$this->assertSame( 1, $first->getParams()['i'] );
		$this->assertSame( 1, $first->getMetadata( 'attempts' ) );
		$this->assertEqualsWithDelta( time(), (int)wfTimestamp( TS_UNIX, $first->getMetadata( 'timestamp' ) ), 600 );
		$this->assertCounts( [ 2, 1, 0, 0 ], $queue );
		$this->assertSame( [ 1 ], $this->numbers( $queue->getAllAcquiredJobs() ) );
		$this->assertSame( [ 2, 3 ], $this->numbers( $queue->getAllQueuedJobs() ) );

		$this->assertSame( [ 2, 3 ], $this->numbers( $rest = [ $queue->pop(), $queue->pop() ] ) );
		$this->assertFalse( $queue->pop() );
		$this->assertCounts( [ 0, 3, 0, 0 ], $queue );
		foreach ( [ $first, ...$rest ] as $job ) {
			$queue->ack( $job );
		}
		$this->assertCounts( [ 0, 0, 0, 0 ], $queue );
	}

	/** @dataProvider variants */
	#[DataProvider( 'variants' )]
	public function testDeleteRemovesAll( array $variant ) {
		$queue = $this->queue( $variant );
		$queue->push( [ $this->job( 1 ), $this->job( 2 ),
			$this->job( 3, [ 'jobReleaseTimestamp' => time() + 1000 ] ) ] );
		$job = $queue->pop();
		$this->value( "SELECT public.message_bury('null'::text, {$job->getMetadata( 'id' )}::bigint, " .
			"'{$job->getMetadata( 'claim' )}'::text, 'x'::text)" );
		$queue->pop();
		$this->assertCounts( [ 0, 1, 1, 1 ], $queue );
		$queue->delete();
		$this->assertCounts( [ 0, 0, 0, 0 ], $queue );
	}

	/** @dataProvider variants */
	#[DataProvider( 'variants' )]
	public function testDuplicates( array $variant ) {
		$queue = $this->queue( $variant );
		$same = $this->job( 0, [ 'removeDuplicates' => 1 ] );
		$queue->batchPush( [ $same, $same, $same ] );
		$queue->push( $same );
		$queue->push( $this->job( 1, [ 'removeDuplicates' => 1 ] ) );
		$this->assertCounts( [ 2, 0, 0, 0 ], $queue );

		$job = $queue->pop();
		$queue->push( $same );
		$queue->ack( $job );
		$this->assertSame( [ 1, 0 ], $this->numbers( $this->drain( $queue ) ), 'pushed after its twin was claimed' );
	}

	/** @dataProvider variants */
	#[DataProvider( 'variants' )]
	public function testLeavesOfAnOlderRoot( array $variant ) {
		$queue = $this->queue( $variant );
		$old = Job::newRootJobParams( 'root' );
		$new = [ 'rootJobTimestamp' => wfTimestamp( TS_MW,
			(int)wfTimestamp( TS_UNIX, $old['rootJobTimestamp'] ) + 1 ) ] + $old;
		foreach ( [ $old, $new ] as $root ) {
			for ( $i = 0; $i < 5; $i++ ) {
				$queue->push( $this->job( $i, $root ) );
			}
			$queue->deduplicateRootJob( $this->job( 0, $root ) );
		}
		$this->assertCounts( [ 10, 0, 0, 0 ], $queue );

		$jobs = $this->drain( $queue );
		$this->assertCount( 10, $jobs );
		$run = array_filter( $jobs, static fn ( $job ) => !$job instanceof DuplicateJob );
		$this->assertSame( [ 5, 6, 7, 8, 9 ], array_keys( $run ), 'those of the newer root run' );
	}

	public function testRootIsNotNewerAfterRollback() {
		$queue = $this->queue();
		$old = Job::newRootJobParams( 'root' );
		$new = [ 'rootJobTimestamp' => '99990101000000' ] + $old;
		$queue->push( $this->job( 1, $old ) );
		$queue->deduplicateRootJob( $this->job( 1, $old ) );
		$this->db()->begin( __METHOD__ );
		$queue->push( $this->job( 2, $new ) );
		$queue->deduplicateRootJob( $this->job( 2, $new ) );
		$this->db()->rollback( __METHOD__ );
		$this->assertNotInstanceOf( DuplicateJob::class, $queue->pop() );
	}

	/** @dataProvider variants */
	#[DataProvider( 'variants' )]
	public function testDelayed( array $variant ) {
		$queue = $this->queue( $variant );
		$queue->push( $this->job( 1, [ 'jobReleaseTimestamp' => time() + 1000 ] ) );
		$queue->push( $this->job( 2, [ 'jobReleaseTimestamp' => time() - 1000 ] ) );
		$this->assertTrue( $queue->delayedJobsEnabled() );
		$this->assertCounts( [ 1, 0, 1, 0 ], $queue );
		$this->assertSame( [ 1 ], $this->numbers( $queue->getAllDelayedJobs() ) );
		$this->assertSame( [ 2 ], $this->numbers( $this->drain( $queue ) ) );
	}

	public function testWaitForADelayedJob() {
		$queue = $this->queue();
		$this->assertFalse( $queue->wait( 10 ) );
		$queue->push( $this->job( 3, [ 'jobReleaseTimestamp' => time() + 2 ] ) );
		$this->assertTrue( $queue->wait( 60000 ) );
		$this->assertSame( [ 3 ], $this->numbers( $this->drain( $queue ) ) );
	}

	/** Each variant in a wiki of its own, and all at a time: a claim takes a second to end. */
	public function testRunAgainThenAbandoned() {
		$all = [];
		foreach ( self::variants() as $name => [ $variant ] ) {
			$all[$name] = $this->queue( [ 'maxTries' => 2, 'domain' => $this->domain( count( $all ) . '_' ) ] + $variant );
			$all[$name]->push( $this->job( 7 ) );
		}
		$again = array_filter( $all, static fn ( $name ) => self::variants()[$name][0]['claimTTL'] > 0, ARRAY_FILTER_USE_KEY );
		foreach ( [ 1 => $all, 2 => $again ] as $try => $queues ) {
			$jobs = array_map( static fn ( $queue ) => $queue->pop(), $queues );
			foreach ( $queues as $name => $queue ) {
				$this->assertSame( $try, $jobs[$name]->getMetadata( 'attempts' ), $name );
				$this->value( "SELECT public.claim_renew('null'::text, " .
					"'{$jobs[$name]->getMetadata( 'claim' )}'::text, 1)", $queue->getDomain() );
			}
			foreach ( $queues as $name => $queue ) {
				$this->assertTrue( $queue->wait( 60000 ), $name );
				$queue->ack( $jobs[$name] );
				$this->assertCounts( [ 1, 0, 0, 0 ], $queue );
			}
		}
		foreach ( $all as $name => $queue ) {
			$this->assertFalse( $queue->pop(), $name );
			$this->assertCounts( [ 0, 0, 0, 1 ], $queue );
			$this->assertSame( [ 7 ], $this->numbers( $queue->getAllAbandonedJobs() ) );
		}
	}

	public function testAckOfACanceledJob() {
		$queue = $this->queue();
		$queue->push( $this->job() );
		$job = $queue->pop();
		$this->value( "SELECT public.message_cancel('null'::text, {$job->getMetadata( 'id' )}::bigint)" );
		$queue->ack( $job );
		$this->assertFalse( $queue->pop() );
	}

	/** A body that is no job harms no runner. */
	public function testBodyIsNoJob() {
		$queue = $this->queue();
		foreach ( [ 'null', '7', '"x"', '[]', '{"params": 7}', '{"params": {}, "packed": "x"}' ] as $body ) {
			$this->value( "SELECT public.queue_push('null'::text, '$body'::jsonb)" );
		}
		$queue->push( $this->job( 8 ) );
		$this->assertSame( [ 8 ], $this->numbers( $queue->getAllQueuedJobs() ) );
		$this->assertSame( [ 8 ], $this->numbers( $this->drain( $queue ) ) );
		$this->assertCounts( [ 0, 0, 0, 6 ], $queue );
	}

	public function testParametersComeBackAsTheyAre() {
		$queue = $this->queue();
		$odd = [ 'bytes' => "a\xff", 'nul' => "a\0b", 'float' => 1.0, 'large' => 1e17, 'int' => PHP_INT_MAX,
			'map' => [ 'bb' => 1, 'a' => [ 'x' => null ] ], 'pages' => [ 12 => [ 0, 'A' ], 3 => [ 0, 'B' ] ],
			'list' => [ 'x', null, true, [ 1.5 ] ], 'empty' => [], '' => '', "k\0" => 0, 5 => 'five', 'ü' => "'\\" ];
		$queue->push( $this->job( 0, $odd ) );
		$got = array_intersect_key( $queue->pop()->getParams(), $odd );
		ksort( $odd );
		ksort( $got );
		$this->assertSame( $odd, $got );

		$queue->push( $this->job( 3, [ 'map' => [ 'b' => 1 ] ] ) );
		$this->assertSame( '3 Main_Page', $this->value( "SELECT concat(body->'params'->'i', ' ', " .
			"body->'params'->>'title') FROM public.queue_messages('null'::text)" ), 'plain ones can be read in SQL' );

		$this->expectException( JobQueueError::class );
		$queue->push( $this->job( 0, [ 'o' => [ (object)[] ] ] ) );
	}

	public function testRollbackLeavesNoJob() {
		$queue = $this->queue();
		$this->db()->begin( __METHOD__ );
		$queue->push( $this->job( 1 ) );
		$this->assertFalse( $queue->pop(), 'not before the commit' );
		$this->db()->rollback( __METHOD__ );
		$this->assertFalse( $queue->pop() );

		$this->db()->begin( __METHOD__ );
		$queue->push( $this->job( 2 ) );
		$this->db()->commit( __METHOD__ );
		$this->assertSame( [ 2 ], $this->numbers( $this->drain( $queue ) ) );
	}

	/** The statement that fails is not the first one of a large batch. */
	public function testBatchIsAllOrNothing() {
		$queue = $this->queue();
		$jobs = [];
		for ( $i = 0; $i < 1500; $i++ ) {
			$jobs[] = $this->job( $i );
		}
		$this->db()->begin( __METHOD__ );
		$queue->push( $this->job( 7 ) );
		try {
			$queue->push( [ ...$jobs, $this->job( 0, [ 'large' => str_repeat( 'x', 300000 ) ] ) ] );
			$this->fail( 'A job larger than queue.max_message_size was pushed' );
		} catch ( JobQueueError $e ) {
			$this->assertSame( '54000', $e->getPrevious()->errno );
		}
		$queue->push( $this->job( 8 ) );
		$this->db()->commit( __METHOD__ );
		$this->assertSame( [ 7, 8 ], $this->numbers( $this->drain( $queue ) ), 'the caller goes on' );

		$queue->push( $jobs );
		$this->assertSame( range( 0, 1499 ), $this->numbers( $queue->getAllQueuedJobs() ) );
		// The delayed one comes after more messages than queue_browse reads in a call.
		for ( $i = 0; $i < 6; $i++ ) {
			$queue->push( $jobs );
		}
		$queue->push( $this->job( 9, [ 'jobReleaseTimestamp' => time() + 3600 ] ) );
		$this->assertSame( [ 9 ], $this->numbers( $queue->getAllDelayedJobs() ) );
		$this->value( "SELECT public.messages_bury('null'::text, array(SELECT id FROM " .
			"public.queue_browse('null'::text, 'free'::text, \"limit\" => 1500)), 'no'::text)" );
		$this->assertSame( range( 0, 1499 ), $this->numbers( $queue->getAllAbandonedJobs() ) );
	}

	public function testErrors() {
		$queue = $this->queue( [ 'claimTTL' => 50000 ] );
		try {
			$queue->pop();
			$this->fail( 'A claimTTL of 50000 was accepted' );
		} catch ( JobQueueError $e ) {
			$this->assertNotInstanceOf( JobQueueConnectionError::class, $e );
			$this->assertStringContainsString( 'queue.max_claim_ttl', $e->getMessage() );
		}
		$this->expectException( JobQueueConnectionError::class );
		JobQueue::factory( [ 'class' => 'JobQueuePgClaim', 'type' => 'null', 'domain' => 'nowhere-mediawiki-',
			'idGenerator' => MediaWikiServices::getInstance()->getGlobalIdGenerator() ] )->pop();
	}

	/** Three wikis in one database, each with its queue of the same name */
	public function testPartitionsAndAggregator() {
		$queues = array_map( fn ( $prefix ) => $this->queue( [ 'domain' => $this->domain( $prefix ) ] ), [ '', 'b_', 'c_' ] );
		$id = static fn ( $queue ) => [ 'null', WikiMap::getWikiIdFromDbDomain( $queue->getDomain() ) ];
		$ready = static fn () => array_values( array_filter( $queues[0]->getServerQueuesWithJobs(),
			static fn ( $row ) => in_array( $row, array_map( $id, $queues ) ) ) );
		$this->assertSame( [], $ready() );
		$this->assertSame( [], $queues[1]->getSiblingQueuesWithJobs( [ 'null', 'note' ] ) );

		$queues[1]->push( $this->job( 1 ) );
		$queues[2]->push( [ $this->job( 2 ), $this->job( 3 ) ] );
		$this->assertEqualsCanonicalizing( [ $id( $queues[1] ), $id( $queues[2] ) ], $ready() );
		$this->assertSame( [ 'null' ], $queues[1]->getSiblingQueuesWithJobs( [ 'null', 'note' ] ) );
		$this->assertSame( [], $queues[1]->getSiblingQueuesWithJobs( [ 'note' ] ) );
		$this->assertSame( [], $queues[0]->getSiblingQueuesWithJobs( [ 'null', 'note' ] ) );
		$this->assertSame( [ 0, 1, 2 ], array_map( static fn ( $queue ) => $queue->getSize(), $queues ) );
		$this->assertFalse( $queues[0]->pop() );
		$this->assertSame( [ 2, 3 ], $this->numbers( $this->drain( $queues[2] ) ) );
		$this->assertSame( [ $id( $queues[1] ) ], $ready() );
		$this->assertSame( [ 1 ], $this->numbers( $this->drain( $queues[1] ) ) );

		$queues[0]->push( $this->job( 4 ) );
		$this->assertSame( [ $id( $queues[0] ) ], $ready() );
		$this->drain( $queues[0] );

		// Abandoned jobs are not to be run, and other projects of the database are no wikis.
		$this->value( "SELECT public.queue_push('null.dead'::text, '1'::jsonb)" );
		$this->assertNotContains( 'null.dead', array_column( $queues[0]->getServerQueuesWithJobs(), 0 ) );
		$this->db()->query( "SELECT set_config('queue.project', 'a-b-c-d', true), " .
			"public.queue_push('null'::text, '1'::jsonb)", __METHOD__ );
		$this->assertSame( [], $ready() );
	}

	public function testNothingStaysInTheSession() {
		$queue = $this->queue();
		$this->db()->begin( __METHOD__ );
		$this->db()->query( "SET LOCAL queue.project = 'mine'", __METHOD__ );
		$queue->push( $this->job() );
		$this->assertSame( 'mine', $this->db()->selectField( [], "current_setting('queue.project')", '', __METHOD__ ) );
		$this->db()->commit( __METHOD__ );
		$this->assertTrue( $queue->wait( 60000 ) );
		$this->drain( $queue );
		$this->assertFalse( $queue->wait( 10 ) );

		// All sessions of the pool, if there is one
		global $wgDBserver, $wgDBport, $wgDBname, $wgDBuser;
		$sessions = [];
		for ( $i = 0; $i < 3; $i++ ) {
			$db = pg_connect( "host=$wgDBserver port=$wgDBport dbname=$wgDBname user=$wgDBuser", PGSQL_CONNECT_FORCE_NEW );
			pg_query( $db, 'BEGIN' );
			$this->assertSame( '', pg_fetch_result( pg_query( $db, 'SHOW queue.project' ), 0, 0 ) );
			$sessions[] = $db;
		}
	}
}
