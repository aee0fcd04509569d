<?php
/**
 * Jobs in queues of the PostgreSQL extension "queue", in the wiki's own database.
 *
 * A job type is a queue, and the wiki is its project.  A push is part of the wiki's
 * transaction.  All else uses a connection that commits each statement, so that a job
 * that is popped stays claimed whatever its run does.
 */

use MediaWiki\MediaWikiServices;
use Wikimedia\Rdbms\DBConnectionError;
use Wikimedia\Rdbms\DBError;
use Wikimedia\Rdbms\DBQueryDisconnectedError;
use Wikimedia\Rdbms\IDatabase;
use Wikimedia\Rdbms\ILoadBalancer;

class JobQueuePgClaim extends JobQueue {
	/** Without a claimTTL a job is run once; this is the longest claim, in seconds. */
	private const LONGEST_CLAIM = 43200;
	private const GRACE = 60;
	private const PAGE = 1000;

	/** @var string that of the extension's functions */
	private $schema;

	/** @param array $params those of JobQueue, and 'schema' */
	public function __construct( array $params ) {
		parent::__construct( $params );
		$this->schema = $params['schema'] ?? 'public';
	}

	protected function supportedOrders() {
		return [ 'fifo', 'timestamp', 'random' ];
	}

	protected function optimalOrder() {
		return 'fifo';
	}

	protected function supportsDelayedJobs() {
		return true;
	}

	private function connect( bool $own ): IDatabase {
		$lb = MediaWikiServices::getInstance()->getDBLoadBalancerFactory()
			->getMainLB( $this->domain );
		return $lb->getConnection( DB_PRIMARY, [], $this->domain,
			$own ? ILoadBalancer::CONN_TRX_AUTOCOMMIT : 0 );
	}

	/** What the callback returns; its errors are those that callers of a JobQueue expect. */
	private function attempt( bool $own, callable $callback ) {
		try {
			return $callback( $this->connect( $own ) );
		} catch ( DBConnectionError | DBQueryDisconnectedError $e ) {
			throw new JobQueueConnectionError( $e->getMessage(), 0, $e );
		} catch ( DBError $e ) {
			throw new JobQueueError( $e->getMessage(), 0, $e );
		}
	}

	/**
	 * A call of one function on a queue of this wiki.  The project is set in the same
	 * statement, before the function is called, and set back after it: PgBouncer may give
	 * the next statement another session, and others use this session and transaction.
	 *
	 * @param IDatabase $db
	 * @param string $name of the function
	 * @param string $queue
	 * @param array $args [ value, type ], after the queue's name; with their types no other
	 * function of the schema fits better
	 * @return string SQL
	 */
	private function sql( IDatabase $db, $name, $queue, array $args = [] ) {
		$list = [ "CASE WHEN s.p IS NOT NULL THEN {$db->addQuotes( $queue )}::pg_catalog.text END" ];
		foreach ( $args as [ $value, $type ] ) {
			$list[] = "{$db->addQuotes( $value )}::pg_catalog.$type";
		}
		return "SELECT r.*, pg_catalog.set_config('queue.project', s.old, true) AS reset FROM" .
			" (SELECT pg_catalog.current_setting('queue.project', true) AS old," .
			" pg_catalog.set_config('queue.project', {$db->addQuotes( $this->domain )}, true) AS p" .
			" OFFSET 0) AS s," .
			" LATERAL {$this->inSchema( $db, $name )}(" . implode( ', ', $list ) . ') AS r';
	}

	private function inSchema( IDatabase $db, $name ) {
		return $db->addIdentifierQuotes( $this->schema ) . ".$name";
	}

	/** @return array of rows; the call is committed */
	private function call( $name, $queue, array $args = [] ) {
		return $this->attempt( true, function ( $db ) use ( $name, $queue, $args ) {
			return iterator_to_array(
				$db->query( $this->sql( $db, $name, $queue, $args ), __METHOD__ ), false );
		} );
	}

	protected function doBatchPush( array $jobs, $flags ) {
		$messages = [];
		foreach ( $jobs as $job ) {
			$message = [ 'body' => self::encode( $job->getParams() ) ];
			if ( $job->ignoreDuplicates() ) {
				$message['dedup_key'] = sha1( serialize( $job->getDeduplicationInfo() ) );
			}
			if ( $job->getReleaseTimestamp() ) {
				$message['delay'] = max( 0, (int)$job->getReleaseTimestamp() - time() );
			}
			$messages[] = $message;
		}
		$this->attempt( false, function ( $db ) use ( $messages ) {
			$push = function ( $db ) use ( $messages ) {
				foreach ( array_chunk( $messages, self::PAGE ) as $page ) {
					$json = json_encode( $page, JSON_THROW_ON_ERROR );
					$db->query( $this->sql( $db, 'queue_post', $this->type, [ [ $json, 'jsonb' ] ] ),
						__METHOD__, IDatabase::QUERY_CHANGE_ROWS );
				}
			};
			// All or nothing, and a caller that catches the error can go on.
			$db->doAtomicSection( __METHOD__, $push, IDatabase::ATOMIC_CANCELABLE );
		} );
		$this->incrStats( 'inserts', $this->type, count( $jobs ) );
	}

	/**
	 * A message's body.  What jsonb does not give back as it is, PHP packs: jsonb has no NUL,
	 * no bytes that are no text and no order of keys, and 1.0 is 1.  MediaWiki sorts the
	 * parameters themselves where their order matters.
	 */
	private static function encode( array $params ) {
		$plain = [];
		$packed = [];
		foreach ( $params as $key => $value ) {
			if ( self::isPlain( (string)$key ) && self::isPlain( $value ) ) {
				$plain[$key] = $value;
			} else {
				$packed[$key] = $value;
			}
		}
		return [ 'params' => (object)$plain ] +
			( $packed ? [ 'packed' => base64_encode( serialize( $packed ) ) ] : [] );
	}

	private static function isPlain( $value ) {
		if ( is_object( $value ) ) {
			// As JobSpecification does, and decode() makes no objects.
			throw new JobQueueError( 'A job has an object among its parameters' );
		}
		if ( is_array( $value ) ) {
			$plain = $value === array_values( $value );
			foreach ( $value as $item ) {
				$plain = self::isPlain( $item ) && $plain;
			}
			return $plain;
		}
		return is_string( $value )
			? strpos( $value, "\0" ) === false && mb_check_encoding( $value, 'UTF-8' )
			: !is_float( $value );
	}

	/** @return RunnableJob|null null: the body is that of no job */
	private function decode( $row ) {
		$body = json_decode( $row->body, true );
		$params = $body['params'] ?? null;
		if ( isset( $body['packed'] ) ) {
			// Whoever may push to the queue makes no objects here.
			$packed = unserialize( base64_decode( $body['packed'] ), [ 'allowed_classes' => false ] );
			$params = is_array( $params ) && is_array( $packed ) ? $params + $packed : null;
		}
		if ( !is_array( $params ) ) {
			return null;
		}
		$job = $this->factoryJob( $this->type, $params );
		$job->setMetadata( 'id', $row->id );
		$job->setMetadata( 'claim', $row->claim_id ?? null );
		$job->setMetadata( 'attempts', (int)$row->claim_count );
		$job->setMetadata( 'timestamp', wfTimestamp( TS_MW, $row->created_at ?? $row->died_at ) );
		return $job;
	}

	protected function doPop() {
		$ttl = $this->claimTTL > 0 ? (int)$this->claimTTL : self::LONGEST_CLAIM;
		$tries = $this->claimTTL > 0 ? $this->maxTries : 1;
		$claim = [ [ $ttl, 'int4' ], [ self::GRACE, 'int4' ], [ 1, 'int4' ] ];
		while ( $row = $this->call( 'queue_claim', $this->type, $claim )[0] ?? null ) {
			$job = $row->claim_count > $tries ? null : $this->decode( $row );
			if ( $job ) {
				$this->incrStats( 'pops', $this->type );
				return $job;
			}
			$this->call( 'message_bury', $this->type,
				[ [ $row->id, 'int8' ], [ $row->claim_id, 'text' ],
				[ $row->claim_count > $tries ? 'abandoned' : 'not a job', 'text' ] ] );
			$this->incrStats( 'abandons', $this->type );
		}
		return false;
	}

	protected function doAck( RunnableJob $job ) {
		try {
			$this->call( 'message_delete', $this->type, [ [ $job->getMetadata( 'id' ), 'int8' ],
				[ $job->getMetadata( 'claim' ), 'text' ] ] );
			$this->incrStats( 'acks', $this->type );
		} catch ( JobQueueError $e ) {
			$state = $e->getPrevious()->errno ?? null;
			// The run took longer than its claim, so another runner has the job, or will; or
			// somebody canceled it meanwhile.
			if ( $state !== 'QU001' && $state !== 'QU004' ) {
				throw $e;
			}
			wfDebugLog( 'jobqueue', "A {$this->type} job is done, but not ours any more: $state" );
		}
	}

	/** Only when the leaves are committed: a rollback supersedes nothing. */
	protected function doDeduplicateRootJob( IJobSpecification $job ) {
		$this->attempt( false, function ( $db ) use ( $job ) {
			$db->onTransactionCommitOrIdle( function () use ( $job ) {
				parent::doDeduplicateRootJob( $job );
			}, __METHOD__ );
		} );
		return true;
	}

	protected function doIsEmpty() {
		return self::isTrue( $this->call( 'queue_is_empty', $this->type )[0]->r );
	}

	private static function isTrue( $value ) {
		// PostgreSQL's text, or what newer versions of MediaWiki make of it
		return $value === 't' || $value === '1';
	}

	private function stat( $column, $suffix = '' ) {
		return (int)$this->call( 'queue_stats', $this->type . $suffix )[0]->$column;
	}

	protected function doGetSize() {
		return $this->stat( 'free' );
	}

	protected function doGetAcquiredCount() {
		return $this->stat( 'claimed' );
	}

	protected function doGetDelayedCount() {
		return $this->stat( 'delayed' );
	}

	protected function doGetAbandonedCount() {
		return $this->stat( 'total', '.dead' );
	}

	protected function doDelete() {
		$this->call( 'queue_purge', $this->type );
		$this->call( 'queue_purge', $this->type . '.dead' );
	}

	/** @return Generator of the jobs in the rows of a function that takes a marker and a limit */
	private function jobs( $name, $queue, callable $args ) {
		$marker = null;
		do {
			$rows = $this->call( $name, $queue, $args( $marker ) );
			foreach ( $rows as $row ) {
				$marker = $row->id;
				// The last row has only an id where queue_browse has read enough for one call.
				$more = $row->body === null;
				$job = $more ? null : $this->decode( $row );
				if ( $job ) {
					yield $job;
				}
			}
		} while ( $rows && ( $more || count( $rows ) === self::PAGE ) );
	}

	private function jobsInState( $state ) {
		return $this->jobs( 'queue_browse', $this->type, static fn ( $marker ) => [
			[ $state, 'text' ], [ null, 'jsonb' ], [ $marker, 'int8' ], [ self::PAGE, 'int4' ] ] );
	}

	public function getAllQueuedJobs() {
		return $this->jobsInState( 'free' );
	}

	public function getAllDelayedJobs() {
		return $this->jobsInState( 'delayed' );
	}

	public function getAllAcquiredJobs() {
		return $this->jobsInState( 'claimed' );
	}

	public function getAllAbandonedJobs() {
		return $this->jobs( 'queue_dead_letters', "{$this->type}.dead", static fn ( $marker ) => [
			[ self::PAGE, 'int4' ], [ $marker, 'int8' ] ] );
	}

	public function getCoalesceLocationInternal() {
		return "PgClaim:{$this->schema}:{$this->domain}";
	}

	/** @return array of [ type, domain ] that have jobs to run, of all wikis in this database */
	private function ready() {
		return $this->attempt( true, function ( $db ) {
			$rows = $db->query( 'SELECT queue, project FROM ' .
				$this->inSchema( $db, 'queue_ready_in_projects' ) . '()', __METHOD__ );
			$ready = [];
			foreach ( $rows as $row ) {
				$ready[] = [ $row->queue, $row->project ];
			}
			return $ready;
		} );
	}

	protected function doGetSiblingQueuesWithJobs( array $types ) {
		$ready = [];
		foreach ( $this->ready() as [ $type, $domain ] ) {
			if ( $domain === $this->domain && in_array( $type, $types ) ) {
				$ready[] = $type;
			}
		}
		return $ready;
	}

	/**
	 * The aggregator of a farm of wikis in this database.
	 *
	 * @return array of [ type, id of the wiki ] that have jobs to run
	 */
	public function getServerQueuesWithJobs() {
		$ready = [];
		foreach ( $this->ready() as [ $type, $domain ] ) {
			// Other projects than wikis, and abandoned jobs, are not to be run.
			if ( preg_match( '/^[^-]+(-[^-]*){0,2}$/', $domain ) && !preg_match( '/\.dead$/', $type ) ) {
				$ready[] = [ $type, WikiMap::getWikiIdFromDbDomain( $domain ) ];
			}
		}
		return $ready;
	}

	/** Waits until a job can be popped, at most so long. @return bool */
	public function wait( int $milliseconds ) {
		return $this->attempt( true, function ( $db ) use ( $milliseconds ) {
			$set = "pg_catalog.set_config('queue.project', {$db->addQuotes( $this->domain )}, true)";
			$row = $db->query( "CALL {$this->inSchema( $db, 'queue_wait' )}(" .
				"CASE WHEN $set IS NOT NULL THEN {$db->addQuotes( $this->type )}::pg_catalog.text END," .
				" $milliseconds)", __METHOD__, IDatabase::QUERY_CHANGE_NONE )->fetchObject();
			return self::isTrue( $row->ready );
		} );
	}
}
