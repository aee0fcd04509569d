/*-------------------------------------------------------------------------
 *
 * root_job.c
 *	  Root jobs: a newer one supersedes the leaf jobs of older ones.
 *
 * NOTES
 *	  A root job is one that pushes many others, its leaf jobs, perhaps over
 *	  several levels.  When the same root job is started anew, the leaf jobs of
 *	  the last time that are still waiting have become useless.
 *
 *	  A root job is identified by its signature.  job_root() registers it: it
 *	  writes the current time to the row of the queue and signature in
 *	  queue_data.root_job, and returns signature and time for the bodies of the
 *	  leaf jobs.  A message with an earlier time than the one in the table is
 *	  superseded.  It is not handed out; the claim scan that finds it deletes
 *	  it (claim_scan_row.c).
 *
 *	  The time has a fixed number of digits, so that times can be compared as
 *	  text.  A body in which it looks different is not a leaf job.  Each
 *	  registration is later than the last one, by a microsecond if the clock
 *	  has not advanced or was set back.  But MediaWiki has times of its own,
 *	  of 14 digits: a caller that passes one registers that, and a leaf job may
 *	  have it in this form.  Two registrations with one time are of the same
 *	  root job, and one that is earlier than the last one comes too late.
 *
 *	  Bodies are read only in queues with a row in the table; registry.c keeps
 *	  track of that (Queue.has_roots).
 *
 *	  A registration locks the row until the transaction ends, so concurrent
 *	  registrations of one root job wait for each other.  Claims never do: they
 *	  read the table with the latest snapshot.
 *
 * src/push/root_job.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/timestamp.h"

#include "catalog/relations.h"
#include "catalog/row_check.h"
#include "catalog/tables.h"
#include "push/root_job.h"
#include "queue/registry.h"
#include "storage/row.h"
#include "util/compat.h"
#include "util/hash.h"
#include "util/json.h"

/* Fields in the bodies of leaf jobs */
#define SIGNATURE			"rootJobSignature"
#define TIMESTAMP			"rootJobTimestamp"

/* The form of a time, in which each 0 stands for a digit */
#define TIME_FORM			"0000-00-00T00:00:00.000000Z"
#define TIME_LENGTH			((int) sizeof(TIME_FORM) - 1)

/* The form of MediaWiki's times: the first digits of the other one */
#define SHORT_TIME_LENGTH	14

/*
 * A registration that is older has no leaf jobs left: MediaWiki's ROOTJOB_TTL.
 * Such rows are removed by one in so many registrations of a new root job.
 */
#define ROOT_LIFETIME		(28 * USECS_PER_DAY)
#define CLEAN_ONE_IN		100

/*
 * The root job that was looked up last: many leaf jobs of one follow each
 * other.  Valid during one scan or call, see root_job_forget().
 */
static struct
{
	bool		is_valid;
	int32		queue_id;
	pg_uuid_t	digest;
	char		time[TIME_LENGTH + 1];	/* empty if not registered */
}			last_found;

static void print_time(TimestampTz time, char *text);
static bool read_time(const JsonbValue *value, char *printed);
static TimestampTz registered_at(Relation rel, HeapTuple tuple);
static void init_root_keys(ScanKey keys, int32 queue_id,
						   const pg_uuid_t *digest);
static bool is_registered_later(int32 queue_id, const JsonbValue *signature,
								const char *time);
static TimestampTz write_root_job(int32 queue_id, const pg_uuid_t *digest,
								  const TimestampTz *at, bool *is_new);
static void delete_old_roots(void);

/* --- Times as text --- */

/* Times that are compared as text have years of four digits. */
static void
print_time(TimestampTz time, char *text)
{
	struct pg_tm tm;
	fsec_t		fsec;

	if (TIMESTAMP_NOT_FINITE(time) ||
		timestamp2tm(time, NULL, &tm, &fsec, NULL, NULL) != 0 ||
		tm.tm_year < 1 || tm.tm_year > 9999)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must be in the years 1 to 9999",
						"at"),
				 errhint("Give the time of the root job, or leave it out.")));
	snprintf(text, TIME_LENGTH + 1, "%04d-%02d-%02dT%02d:%02d:%02d.%06dZ",
			 tm.tm_year, tm.tm_mon, tm.tm_mday, tm.tm_hour, tm.tm_min,
			 tm.tm_sec, (int) fsec);
}

/*
 * Read a time as print_time() prints it, or MediaWiki, and return it in the
 * form of the former.  Returns false if it is none.
 */
static bool
read_time(const JsonbValue *value, char *printed)
{
	bool		is_short;
	int			n = 0;

	if (value->type != jbvString)
		return false;
	is_short = value->val.string.len == SHORT_TIME_LENGTH;
	if (!is_short && value->val.string.len != TIME_LENGTH)
		return false;
	strlcpy(printed, TIME_FORM, TIME_LENGTH + 1);
	for (int i = 0; i < TIME_LENGTH && n < value->val.string.len; i++)
	{
		char		c = value->val.string.val[n];
		bool		is_digit = printed[i] == '0';

		/* The short form has nothing between its digits. */
		if (is_short && !is_digit)
			continue;
		if (is_digit ? c < '0' || c > '9' : c != printed[i])
			return false;
		printed[i] = c;
		n++;
	}
	return true;
}

/* --- Leaf jobs --- */

/* Returns the time in a row of the table. */
static TimestampTz
registered_at(Relation rel, HeapTuple tuple)
{
	return DatumGetTimestampTz(row_getattr(rel, tuple,
										   Anum_root_job_registered_at));
}

static void
init_root_keys(ScanKey keys, int32 queue_id, const pg_uuid_t *digest)
{
	ScanKeyInit(&keys[0], Anum_root_job_queue_id, BTEqualStrategyNumber,
				F_INT4EQ, Int32GetDatum(queue_id));
	ScanKeyInit(&keys[1], Anum_root_job_digest, BTEqualStrategyNumber,
				F_UUID_EQ, UUIDPGetDatum(digest));
}

/* Forget the last result; called when a scan or a call begins. */
void
root_job_forget(void)
{
	last_found.is_valid = false;
}

/* Returns whether the root job was registered again after this time. */
static bool
is_registered_later(int32 queue_id, const JsonbValue *signature,
					const char *time)
{
	char	   *text = pnstrdup(signature->val.string.val,
								signature->val.string.len);
	pg_uuid_t	digest;

	digest_text(text, &digest);
	pfree(text);
	if (!last_found.is_valid || last_found.queue_id != queue_id ||
		memcmp(&last_found.digest, &digest, sizeof(pg_uuid_t)) != 0)
	{
		Oid			index;
		Relation	rel = catalog_open(CATALOG_ROOT_JOB, AccessShareLock,
									   &index);
		ScanKeyData keys[2];
		HeapTuple	tuple;

		last_found.is_valid = false;
		last_found.time[0] = '\0';
		init_root_keys(keys, queue_id, &digest);
		tuple = row_fetch(rel, index, keys, 2);
		if (HeapTupleIsValid(tuple))
			print_time(registered_at(rel, tuple), last_found.time);
		table_close(rel, AccessShareLock);
		last_found.queue_id = queue_id;
		last_found.digest = digest;
		last_found.is_valid = true;
	}
	return strcmp(last_found.time, time) > 0;
}

/*
 * Returns whether the message is the leaf job of a root job that was
 * registered again since.  Only for queues with root jobs.
 */
bool
root_job_is_superseded(const Queue *queue, TupleDesc desc, HeapTuple tuple)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, Anum_message_body, desc, &isnull);
	Jsonb	   *body = DatumGetJsonbP(value);
	JsonbValue	signature;
	JsonbValue	time;
	char		printed[TIME_LENGTH + 1];
	bool		superseded;

	superseded = JB_ROOT_IS_OBJECT(body) &&
		json_field(body, TIMESTAMP, &time) && read_time(&time, printed) &&
		json_field(body, SIGNATURE, &signature) &&
		signature.type == jbvString &&
		is_registered_later(queue->id, &signature, printed);
	if ((Pointer) body != DatumGetPointer(value))
		pfree(body);
	return superseded;
}

/* --- Registering --- */

/*
 * Write that a root job begins at this time, or if that is NULL, now,
 * after waiting for transactions that write the same row.  Returns its time,
 * which in the latter case is later than any before.
 */
static TimestampTz
write_root_job(int32 queue_id, const pg_uuid_t *digest,
			   const TimestampTz *at, bool *is_new)
{
	Relation	index;
	Relation	rel = catalog_open_with_index(CATALOG_ROOT_JOB,
											  RowExclusiveLock, &index);
	Datum		values[Natts_root_job];
	bool		isnull[Natts_root_job] = {false};
	ScanKeyData keys[2];
	TimestampTz time;
	bool		done;

	values[Anum_root_job_queue_id - 1] = Int32GetDatum(queue_id);
	values[Anum_root_job_digest - 1] = UUIDPGetDatum(digest);
	init_root_keys(keys, queue_id, digest);
	do
	{
		HeapTuple	old;
		HeapTuple	new;

		CHECK_FOR_INTERRUPTS();
		old = row_find_unique(rel, index, keys, 2, NULL, NULL);
		*is_new = !HeapTupleIsValid(old);
		time = at != NULL ? *at : GetCurrentTimestamp();
		if (!*is_new && at == NULL)
			time = Max(time, registered_at(rel, old) + 1);

		/* It is the root job that is registered, or an older one. */
		else if (!*is_new && time <= registered_at(rel, old))
			break;
		values[Anum_root_job_registered_at - 1] = TimestampTzGetDatum(time);
		new = heap_form_tuple(RelationGetDescr(rel), values, isnull);
		done = *is_new ? row_insert_unique(rel, index, new) :
			row_update(rel, &old->t_self, new);
	} while (!done);
	index_close(index, NoLock);
	table_close(rel, NoLock);
	CommandCounterIncrement();
	root_job_forget();
	return time;
}

/* Delete registrations beyond their lifetime, unless they are locked. */
static void
delete_old_roots(void)
{
	Relation	rel = catalog_open(CATALOG_ROOT_JOB, RowExclusiveLock, NULL);
	TimestampTz before = GetCurrentTimestamp() - ROOT_LIFETIME;
	RowScan		scan;
	HeapTuple	tuple;

	row_scan_begin(&scan, rel, InvalidOid, NULL, 0);
	while (HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		CHECK_FOR_INTERRUPTS();
		if (registered_at(rel, tuple) < before &&
			row_lock(rel, &tuple->t_self, LockTupleExclusive, LockWaitSkip))
			simple_heap_delete(rel, &tuple->t_self);
	}
	row_scan_end(&scan);
	table_close(rel, NoLock);
	CommandCounterIncrement();
}

/*
 * Register a root job of this time (NULL: of now), whose leaf jobs will be
 * pushed to the queue.  Returns an object with the fields for their bodies.
 */
Jsonb *
root_job_register(const Queue *queue, const char *signature,
				  const TimestampTz *at)
{
	static int	registered = 0;
	pg_uuid_t	digest;
	char		time[TIME_LENGTH + 1];
	JsonbInState state = {0};
	bool		is_new;

	/* Check the time before anything is written. */
	if (at != NULL)
		print_time(*at, time);
	digest_text(signature, &digest);
	print_time(write_root_job(queue->id, &digest, at, &is_new), time);

	/* Claims have to read the bodies of this queue's messages from now on. */
	if (!queue->has_roots)
		queue_invalidate();
	if (is_new && ++registered % CLEAN_ONE_IN == 0)
		delete_old_roots();

	compat_push_jsonb(&state, WJB_BEGIN_OBJECT, NULL);
	json_add_text(&state, SIGNATURE, signature);
	json_add_text(&state, TIMESTAMP, time);
	compat_push_jsonb(&state, WJB_END_OBJECT, NULL);
	return JsonbValueToJsonb(state.result);
}
