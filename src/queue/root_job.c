/*-------------------------------------------------------------------------
 *
 * root_job.c
 *	  Root jobs: a newer one makes the leaves of older ones no-ops.
 *
 * NOTES
 *	  A root job is told by its signature; queue_data.root has the time of the
 *	  last one of each.  The bodies of its leaves carry signature and time, as
 *	  job_root returned them.  A message that carries an earlier time than that
 *	  in the table is not handed out: whoever would claim it deletes it
 *	  (claim_scan.c).
 *
 *	  The time is written with a fixed number of digits, so that the order of
 *	  two is that of their text.  A body in which it looks different is no
 *	  leaf.  Each registration is later than the last one, by a microsecond if
 *	  the clock does not say so.
 *
 *	  In queues for which there is no row in the table bodies are not looked
 *	  at (registry.c knows).
 *
 * src/queue/root_job.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "catalog/relations.h"
#include "catalog/tables.h"
#include "queue/registry.h"
#include "queue/root_job.h"
#include "storage/row.h"
#include "util/args.h"
#include "util/compat.h"
#include "util/digest.h"
#include "util/json.h"

#define SIGNATURE			"rootJobSignature"
#define TIMESTAMP			"rootJobTimestamp"
#define SIGNATURE_MAX		1000	/* bytes */
#define TIME_LENGTH			27	/* 2001-02-03T04:05:06.000000Z */

/* A root that is older has no leaves any more: MediaWiki's ROOTJOB_TTL. */
#define ROOT_LIFETIME		(28 * USECS_PER_DAY)
#define CLEAN_ONE_IN		100 /* registrations of a new signature */

#define Anum_root_job_queue_id		1
#define Anum_root_job_digest		2
#define Anum_root_job_registered_at 3

PG_FUNCTION_INFO_V1(sql_job_root);

/* What was looked up last, of one walk: leaves of a root are many. */
static struct
{
	bool		valid;
	int32		queue_id;
	pg_uuid_t	digest;
	char		time[TIME_LENGTH + 1];	/* empty: no such root */
}			last;

static void print_time(TimestampTz time, char *text);
static bool is_time(const JsonbValue *value);
static void init_keys(ScanKey keys, int32 queue_id, const pg_uuid_t *digest);
static void look_up(int32 queue_id, const pg_uuid_t *digest);
static HeapTuple form_root(Relation rel, int32 queue_id,
						   const pg_uuid_t *digest, TimestampTz time);
static TimestampTz register_root(int32 queue_id, const pg_uuid_t *digest,
								 bool *is_new);
static void clean(void);

static void
print_time(TimestampTz time, char *text)
{
	struct pg_tm tm;
	fsec_t		fsec;

	if (timestamp2tm(time, NULL, &tm, &fsec, NULL, NULL) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_DATETIME_VALUE_OUT_OF_RANGE),
				 errmsg("timestamp out of range")));
	snprintf(text, TIME_LENGTH + 1, "%04d-%02d-%02dT%02d:%02d:%02d.%06dZ",
			 tm.tm_year, tm.tm_mon, tm.tm_mday, tm.tm_hour, tm.tm_min,
			 tm.tm_sec, (int) fsec);
}

/* Does the value look as print_time has it? */
static bool
is_time(const JsonbValue *value)
{
	static const char shape[] = "0000-00-00T00:00:00.000000Z";

	if (value->type != jbvString || value->val.string.len != TIME_LENGTH)
		return false;
	for (int i = 0; i < TIME_LENGTH; i++)
	{
		char		c = value->val.string.val[i];

		if (shape[i] == '0' ? c < '0' || c > '9' : c != shape[i])
			return false;
	}
	return true;
}

static void
init_keys(ScanKey keys, int32 queue_id, const pg_uuid_t *digest)
{
	ScanKeyInit(&keys[0], Anum_root_job_queue_id, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(queue_id));
	ScanKeyInit(&keys[1], Anum_root_job_digest, BTEqualStrategyNumber, F_UUID_EQ,
				UUIDPGetDatum(digest));
}

/* Find out when this root was registered last. */
static void
look_up(int32 queue_id, const pg_uuid_t *digest)
{
	Relation	index;
	Relation	rel;
	ScanKeyData keys[2];
	HeapTuple	tuple;
	bool		isnull;

	if (last.valid && last.queue_id == queue_id &&
		memcmp(&last.digest, digest, sizeof(pg_uuid_t)) == 0)
		return;
	rel = catalog_open_root_jobs(AccessShareLock, &index);
	last.valid = false;
	last.time[0] = '\0';
	init_keys(keys, queue_id, digest);
	tuple = row_fetch(rel, RelationGetRelid(index), keys, 2);
	if (HeapTupleIsValid(tuple))
		print_time(DatumGetTimestampTz(heap_getattr(tuple,
													Anum_root_job_registered_at,
													RelationGetDescr(rel),
													&isnull)),
				   last.time);
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
	last.queue_id = queue_id;
	last.digest = *digest;
	last.valid = true;
}

/* Roots may have been registered since they were looked up. */
void
root_job_forget(void)
{
	last.valid = false;
}

/*
 * Is the message the leaf of a root job that is not the last one?  For queues
 * that have root jobs.
 */
bool
root_job_is_superseded(const Queue *queue, TupleDesc desc, HeapTuple tuple)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, Anum_message_body, desc, &isnull);
	Jsonb	   *body = DatumGetJsonbP(value);
	JsonbValue	signature;
	JsonbValue	time;
	bool		old = false;

	if (JB_ROOT_IS_OBJECT(body) &&
		json_field(body, TIMESTAMP, &time) && is_time(&time) &&
		json_field(body, SIGNATURE, &signature) &&
		signature.type == jbvString)
	{
		char	   *text = pnstrdup(signature.val.string.val,
									signature.val.string.len);
		pg_uuid_t	digest;

		digest_text(text, &digest);
		pfree(text);
		look_up(queue->id, &digest);
		old = strncmp(last.time, time.val.string.val, TIME_LENGTH) > 0;
	}
	if ((Pointer) body != DatumGetPointer(value))
		pfree(body);
	return old;
}

static HeapTuple
form_root(Relation rel, int32 queue_id, const pg_uuid_t *digest,
		  TimestampTz time)
{
	Datum		values[Natts_root_job];
	bool		isnull[Natts_root_job] = {false};

	values[Anum_root_job_queue_id - 1] = Int32GetDatum(queue_id);
	values[Anum_root_job_digest - 1] = UUIDPGetDatum(digest);
	values[Anum_root_job_registered_at - 1] = TimestampTzGetDatum(time);
	return heap_form_tuple(RelationGetDescr(rel), values, isnull);
}

/*
 * Write that a root begins now; waits for who is doing the same.  Returns its
 * time, which is later than any before.
 */
static TimestampTz
register_root(int32 queue_id, const pg_uuid_t *digest, bool *is_new)
{
	Relation	index;
	Relation	rel = catalog_open_root_jobs(RowExclusiveLock, &index);
	ScanKeyData keys[2];
	TimestampTz time;
	bool		done = false;

	init_keys(keys, queue_id, digest);
	while (!done)
	{
		HeapTuple	tuple;
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		tuple = row_find_unique(rel, index, keys, 2);
		*is_new = !HeapTupleIsValid(tuple);
		time = GetCurrentTimestamp();
		if (*is_new)
		{
			done = row_insert_unique(rel, index,
									 form_root(rel, queue_id, digest, time));
			continue;
		}
		time = Max(time, 1 +
				   DatumGetTimestampTz(heap_getattr(tuple,
													Anum_root_job_registered_at,
													RelationGetDescr(rel),
													&isnull)));
		done = row_update(rel, &tuple->t_self,
						  form_root(rel, queue_id, digest, time));
	}
	index_close(index, NoLock);
	table_close(rel, NoLock);
	CommandCounterIncrement();
	root_job_forget();
	return time;
}

/* Remove roots that are so old that they have no leaves any more. */
static void
clean(void)
{
	Relation	index;
	Relation	rel = catalog_open_root_jobs(RowExclusiveLock, &index);
	TimestampTz before = GetCurrentTimestamp() - ROOT_LIFETIME;
	RowScan		scan;
	HeapTuple	tuple;

	row_scan_begin(&scan, rel, InvalidOid, NULL, 0);
	while (HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		if (DatumGetTimestampTz(heap_getattr(tuple,
											 Anum_root_job_registered_at,
											 RelationGetDescr(rel),
											 &isnull)) < before &&
			row_lock(rel, &tuple->t_self, LockTupleExclusive, LockWaitSkip))
			simple_heap_delete(rel, &tuple->t_self);
	}
	row_scan_end(&scan);
	index_close(index, NoLock);
	table_close(rel, NoLock);
	CommandCounterIncrement();
}

/* A queue is dropped: its roots go along. */
void
root_job_drop_all(int32 queue_id)
{
	Relation	index;
	Relation	rel = catalog_open_root_jobs(RowExclusiveLock, &index);

	row_delete_of_queue(rel, index, queue_id);
	index_close(index, NoLock);
	table_close(rel, NoLock);
}

/*
 * job_root(q text, signature text) returns jsonb
 *
 * Registers a new root job in queue q, where its leaves will be pushed.
 * signature, 1 to 1000 bytes, tells which root jobs are the same.  From the
 * moment at which this transaction commits, leaves of earlier ones are
 * deleted when their turn comes, and counted as duplicates.
 *
 * Result: an object with rootJobSignature and rootJobTimestamp, to be merged
 * into the bodies of the leaves; the time is later than the last one's.
 * Errors: 22004 and 22023 arguments, 42704 unknown queue while
 * queue.auto_create is off, 42501 no right to push.
 * Source: MediaWiki, Job::newRootJobParams and
 * JobQueue::deduplicateRootJob.
 */
Datum
sql_job_root(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	Queue		queue;
	char	   *signature;
	pg_uuid_t	digest;
	char		time[TIME_LENGTH + 1];
	JsonbParseState *state = NULL;
	static int	registered = 0;
	bool		is_new;

	queue_prevent("job_root()");
	if (PG_ARGISNULL(1))
		arg_missing("signature");
	signature = text_to_cstring(PG_GETARG_TEXT_PP(1));
	if (strlen(signature) < 1 || strlen(signature) > SIGNATURE_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must be 1 to %d bytes long, not %zu",
						"signature", SIGNATURE_MAX, strlen(signature)),
				 errhint("Give a digest of what the root job does.")));
	digest_text(signature, &digest);

	queue_open_for_push(name, &queue);
	print_time(register_root(queue.id, &digest, &is_new), time);
	if (!queue.has_roots)
		queue_changed();
	if (is_new && ++registered % CLEAN_ONE_IN == 0)
		clean();

	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	json_add_text(&state, SIGNATURE, signature);
	json_add_text(&state, TIMESTAMP, time);
	PG_RETURN_JSONB_P(JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT,
													   NULL)));
}
