/*-------------------------------------------------------------------------
 *
 * counters_session.c
 *	  Counts that the session itself writes to the table.
 *
 * NOTES
 *	  Where there is no shared memory, and for errors everywhere, a session
 *	  writes to queue_data.job_counter itself.  It keeps a hash table with what
 *	  was committed and is not written yet, one entry for each queue.  It
 *	  writes the entries at the end of a transaction that counted something: at
 *	  once if that set an error, otherwise at most every WRITE_INTERVAL; and
 *	  when the session exits.
 *
 *	  Entries are written before the commit, as part of the transaction, and so
 *	  include what this transaction has counted.  Most writes change the row in
 *	  place, which holds even if the transaction then aborts
 *	  (counters_table.c).  Thus there are four cases at the end, for an entry
 *	  with "committed" counts from before and "current" ones of this
 *	  transaction, of which it has "written" the sum:
 *
 *		commit: committed + current - written, in place or not;
 *		abort, written in place: committed - written, which is below 0: the
 *			next write takes off what this transaction has added;
 *		abort otherwise, or not written: committed stays as it was.
 *
 * src/stats/counters_session.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "catalog/relations.h"
#include "stats/counters_session.h"
#include "stats/counters_table.h"
#include "util/hash.h"

#define WRITE_INTERVAL		(100 * 1000)	/* microseconds */
#define WRITE_MAX			64	/* queues whose counts one commit writes */

typedef struct EntryKey
{
	Oid			extension;
	int32		queue_id;
} EntryKey;

/* What the session has to write of a queue */
typedef struct Entry
{
	EntryKey	key;
	int64		committed[JOB_COUNTERS];	/* not in the table yet; below 0
											 * if it is to be taken off again */
	char		error[COUNTER_ERROR_LENGTH + 1];
	TimestampTz error_at;
	bool		has_error;		/* not in the table yet */

	/* By the current transaction; end_counter_entry() resets them */
	int64		current[JOB_COUNTERS];	/* counted */
	int64		written[JOB_COUNTERS];	/* added to the row */
	bool		written_in_place;	/* that holds even if it aborts */
	bool		set_error;
	bool		wrote_error;
	bool		is_touched;		/* the entry is in the array touched */
} Entry;

static HTAB *entries = NULL;

/* When counts are written again, unless there is an error */
static TimestampTz next_write = 0;

/*
 * Entries that the current transaction has changed, in its memory.  The size
 * of the array is their number rounded up to a power of two.
 */
static Entry **touched = NULL;
static int	ntouched = 0;

static Entry *get_counter_entry(Oid extension, int32 queue_id);
static void touch_entry(Entry *entry);
static void write_counter_entry(Entry *entry);
static bool write_counter_entries(int max);
static void end_counter_entry(Entry *entry, bool commit);
static void write_counters_at_exit(int code, Datum arg);

/* --- Entries --- */

static Entry *
get_counter_entry(Oid extension, int32 queue_id)
{
	EntryKey	key = {extension, queue_id};
	bool		found;
	Entry	   *entry;

	if (entries == NULL)
	{
		entries = hash_create_blobs("queue counters of the session",
									sizeof(EntryKey), sizeof(Entry),
									TopMemoryContext);
		before_shmem_exit(write_counters_at_exit, (Datum) 0);
	}
	entry = hash_search(entries, &key, HASH_ENTER, &found);
	if (!found)
	{
		memset(entry, 0, sizeof(Entry));
		entry->key = key;
	}
	touch_entry(entry);
	return entry;
}

/* Have counters_session_end_xact see this entry. */
static void
touch_entry(Entry *entry)
{
	if (entry->is_touched)
		return;
	if (touched == NULL)
		touched = MemoryContextAlloc(TopTransactionContext, sizeof(Entry *));
	else if ((ntouched & (ntouched - 1)) == 0)
		touched = repalloc_huge(touched, 2 * ntouched * sizeof(Entry *));
	touched[ntouched++] = entry;
	entry->is_touched = true;
}

/* --- Before the end of a transaction --- */

/* Count what the transaction has counted. */
void
counters_session_add(Oid extension, int32 queue_id, const int64 *n)
{
	Entry	   *entry = get_counter_entry(extension, queue_id);

	for (int i = 0; i < JOB_COUNTERS; i++)
		entry->current[i] += n[i];
}

/* Set the error that the transaction has set. */
void
counters_session_set_error(Oid extension, int32 queue_id, const char *error,
						   TimestampTz error_at)
{
	Entry	   *entry = get_counter_entry(extension, queue_id);

	strlcpy(entry->error, error, sizeof(entry->error));
	entry->error_at = error_at;
	entry->has_error = entry->set_error = true;
}

static void
write_counter_entry(Entry *entry)
{
	CounterAddition add = {0};
	CounterWrite result = COUNTERS_WRITTEN_IF_COMMITTED;

	add.extension = entry->key.extension;
	add.queue_id = entry->key.queue_id;
	for (int i = 0; i < JOB_COUNTERS; i++)
		add.n[i] = entry->committed[i] + entry->current[i];
	if (entry->has_error)
	{
		add.error = entry->error;
		add.error_at = entry->error_at;
	}
	touch_entry(entry);

	/*
	 * Counts of an extension that was dropped are discarded, as if written.
	 */
	if (entry->key.extension == catalog_queue_oid())
		result = counters_table_add(&add);
	if (result == COUNTERS_NOT_WRITTEN)
		return;
	memcpy(entry->written, add.n, sizeof(add.n));
	entry->written_in_place = result == COUNTERS_WRITTEN;
	entry->wrote_error = entry->has_error;
}

/*
 * Write up to max entries.  Returns false if the table cannot be locked now.
 */
static bool
write_counter_entries(int max)
{
	HASH_SEQ_STATUS seq;
	Entry	   *entry;
	int			n = 0;

	if (!catalog_lock_job_counters())
		return false;
	hash_seq_init(&seq, entries);
	while ((entry = hash_seq_search(&seq)) != NULL)
	{
		if (n++ == max)
		{
			hash_seq_term(&seq);
			break;
		}
		write_counter_entry(entry);
	}
	return true;
}

/* Write entries, if there are any and it is time to, or in any case. */
void
counters_session_write(bool at_once)
{
	TimestampTz now;

	if (entries == NULL)
		return;
	now = GetCurrentTimestamp();

	/* A time that is too far away was set before the clock was set back. */
	if (!at_once && now < next_write && now >= next_write - WRITE_INTERVAL)
		return;
	if (write_counter_entries(WRITE_MAX))
		next_write = now + WRITE_INTERVAL;
}

/* --- After it --- */

static void
end_counter_entry(Entry *entry, bool commit)
{
	bool		is_done = true;

	for (int i = 0; i < JOB_COUNTERS; i++)
	{
		if (commit)
			entry->committed[i] += entry->current[i];

		/*
		 * What was written in place stays in the table even after an abort.
		 */
		if (commit || entry->written_in_place)
			entry->committed[i] -= entry->written[i];
		is_done &= entry->committed[i] == 0;
	}

	/* It was written, or it was set by the transaction that has aborted. */
	if (commit ? entry->wrote_error : entry->set_error)
		entry->has_error = false;
	memset(entry->current, 0, sizeof(entry->current));
	memset(entry->written, 0, sizeof(entry->written));
	entry->written_in_place = false;
	entry->set_error = entry->wrote_error = false;
	entry->is_touched = false;
	if (is_done && !entry->has_error)
		hash_search(entries, &entry->key, HASH_REMOVE, NULL);
}

/* The transaction has ended, so correct the entries that it has changed. */
void
counters_session_end_xact(bool commit)
{
	for (int i = 0; i < ntouched; i++)
		end_counter_entry(touched[i], commit);
	touched = NULL;
	ntouched = 0;
}

/* Callback at the exit of the session: write what is left. */
static void
write_counters_at_exit(int code, Datum arg)
{
	if (code != 0 || hash_get_num_entries(entries) == 0 ||
		RecoveryInProgress() || !OidIsValid(MyDatabaseId))
		return;
	AbortOutOfAnyTransaction();
	StartTransactionCommand();
	XactIsoLevel = XACT_READ_COMMITTED;
	XactReadOnly = false;

	/*
	 * A process that exits cannot be canceled or terminated, so we must wait
	 * neither for a lock nor for a standby.  These counts may be lost.
	 */
	synchronous_commit = SYNCHRONOUS_COMMIT_OFF;
	if (catalog_hold_extension() == EXTENSION_HELD)
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		(void) write_counter_entries(PG_INT32_MAX);
		PopActiveSnapshot();
	}
	CommitTransactionCommand();
}

/* --- Reading --- */

/* Add what the session has not written yet. */
void
counters_session_read(CounterRow *row)
{
	EntryKey	key = {row->extension, row->queue_id};
	Entry	   *entry = entries == NULL ? NULL :
	hash_search(entries, &key, HASH_FIND, NULL);

	if (entry == NULL)
		return;
	for (int i = 0; i < JOB_COUNTERS; i++)
		row->n[i] += entry->committed[i];
	if (entry->has_error && entry->error_at >= row->error_at)
	{
		row->error = entry->error;
		row->error_at = entry->error_at;
	}
}
