/*-------------------------------------------------------------------------
 *
 * dedup_table.c
 *	  The rows of queue_data.dedup_key.
 *
 * NOTES
 *	  dedup.c describes what is in them.
 *
 * src/push/dedup_table.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "catalog/relations.h"
#include "catalog/row_check.h"
#include "catalog/tables.h"
#include "push/dedup_table.h"
#include "storage/row.h"

/* Columns of the index that are a key; one more is the version of its row */
#define DEDUP_KEYS		2

static void init_dedup_keys(ScanKey keys, const DedupKey *key);
static HeapTuple form_key_row(Relation rel, const DedupKey *key);
static TimestampTz get_time(TupleDesc desc, HeapTuple tuple, int column);

/* --- Arrays of ids --- */

Datum
dedup_table_form_ids(const int64 *ids, int n)
{
	Datum	   *elements = palloc(n * sizeof(Datum));

	for (int i = 0; i < n; i++)
		elements[i] = Int64GetDatum(ids[i]);
	return PointerGetDatum(construct_array(elements, n, INT8OID,
										   sizeof(int64), FLOAT8PASSBYVAL,
										   TYPALIGN_DOUBLE));
}

/* Returns a copy of the ids in an array. */
int64 *
dedup_table_get_ids(Datum array, int *n)
{
	ArrayType  *copy = DatumGetArrayTypePCopy(array);

	*n = ArrayGetNItems(ARR_NDIM(copy), ARR_DIMS(copy));
	return (int64 *) ARR_DATA_PTR(copy);
}

/* --- Reading --- */

static void
init_dedup_keys(ScanKey keys, const DedupKey *key)
{
	ScanKeyInit(&keys[0], Anum_dedup_key_queue_id, BTEqualStrategyNumber,
				F_INT4EQ, Int32GetDatum(key->queue_id));
	ScanKeyInit(&keys[1], Anum_dedup_key_digest, BTEqualStrategyNumber,
				F_UUID_EQ, UUIDPGetDatum(&key->digest));
}

static TimestampTz
get_time(TupleDesc desc, HeapTuple tuple, int column)
{
	bool		isnull;
	Datum		time = heap_getattr(tuple, column, desc, &isnull);

	return isnull ? DT_NOBEGIN : DatumGetTimestampTz(time);
}

/* Get what the row of a key has besides queue_id and digest. */
void
dedup_table_get(Relation rel, HeapTuple tuple, DedupKey *key)
{
	TupleDesc	desc = RelationGetDescr(rel);

	key->ids = dedup_table_get_ids(row_getattr(rel, tuple,
											   Anum_dedup_key_message_ids),
								   &key->n);
	key->joined = DatumGetInt64(row_getattr(rel, tuple,
											Anum_dedup_key_joined));
	key->pushed_at = get_time(desc, tuple, Anum_dedup_key_pushed_at);
	key->kept_until = get_time(desc, tuple, Anum_dedup_key_kept_until);
	key->version = DatumGetInt64(row_getattr(rel, tuple,
											 Anum_dedup_key_version));
}

/*
 * Find the row of a key, after waiting for transactions that are inserting or
 * updating it; or if "locked" is not NULL, set that instead.
 */
HeapTuple
dedup_table_find(Relation rel, Relation index, DedupKey *key, bool *locked)
{
	ScanKeyData keys[DEDUP_KEYS];
	HeapTuple	tuple;

	init_dedup_keys(keys, key);
	tuple = row_find_unique(rel, index, keys, DEDUP_KEYS, locked,
							&key->version);
	if (HeapTupleIsValid(tuple))
		dedup_table_get(rel, tuple, key);
	return tuple;
}

/* Find the row of a key that this snapshot shows, or if NULL the latest one. */
HeapTuple
dedup_table_fetch(Relation rel, Relation index, DedupKey *key,
				  Snapshot snapshot)
{
	ScanKeyData keys[DEDUP_KEYS];
	HeapTuple	tuple;

	init_dedup_keys(keys, key);
	tuple = row_fetch_newest(rel, index, keys, DEDUP_KEYS, snapshot);
	if (HeapTupleIsValid(tuple))
		dedup_table_get(rel, tuple, key);
	return tuple;
}

/* Read the row of a key that this snapshot shows, or if NULL the latest one. */
bool
dedup_table_read(Snapshot snapshot, DedupKey *key)
{
	Relation	index;
	Relation	rel = catalog_open_with_index(CATALOG_DEDUP_KEY,
											  AccessShareLock, &index);
	bool		found = HeapTupleIsValid(dedup_table_fetch(rel, index, key,
														   snapshot));

	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
	return found;
}

/* --- Writing --- */

static HeapTuple
form_key_row(Relation rel, const DedupKey *key)
{
	Datum		values[Natts_dedup_key];
	bool		isnull[Natts_dedup_key] = {false};

	values[Anum_dedup_key_queue_id - 1] = Int32GetDatum(key->queue_id);
	values[Anum_dedup_key_digest - 1] = UUIDPGetDatum(&key->digest);
	values[Anum_dedup_key_message_ids - 1] =
		dedup_table_form_ids(key->ids, key->n);
	values[Anum_dedup_key_joined - 1] = Int64GetDatum(key->joined);
	values[Anum_dedup_key_pushed_at - 1] = TimestampTzGetDatum(key->pushed_at);
	values[Anum_dedup_key_kept_until - 1] =
		TimestampTzGetDatum(key->kept_until);
	values[Anum_dedup_key_version - 1] = Int64GetDatum(key->version);
	isnull[Anum_dedup_key_pushed_at - 1] =
		isnull[Anum_dedup_key_kept_until - 1] = key->pushed_at == DT_NOBEGIN;
	return heap_form_tuple(RelationGetDescr(rel), values, isnull);
}

/*
 * Insert the row of a key for which dedup_table_find() has found none.
 * Returns false if there may be one now; or another session may be inserting
 * one, and "wait" is not set.
 *
 * The version does not keep two sessions from inserting a row at the same
 * time, since vacuum may have removed the last one in between.  So they do it
 * one after the other.  While a session has the lock it waits for no
 * transaction.  Other keys with that hash wait as well, but not for long.
 */
bool
dedup_table_insert(Relation rel, Relation index, DedupKey *key, bool wait)
{
	BlockNumber hash = hash_bytes(key->digest.data, UUID_LEN);
	DedupKey	found = *key;
	bool		locked = false;
	bool		exists;

	if (wait)
		LockPage(index, hash, ExclusiveLock);
	else if (!ConditionalLockPage(index, hash, ExclusiveLock))
		return false;
	do
	{
		key->version = found.version;
		exists = HeapTupleIsValid(dedup_table_find(rel, index, &found,
												   &locked)) || locked;
	} while (!exists && found.version != key->version);
	if (!exists)
	{
		key->version++;
		PushActiveSnapshot(GetLatestSnapshot());
		row_insert(rel, form_key_row(rel, key));
		PopActiveSnapshot();
	}
	UnlockPage(index, hash, ExclusiveLock);
	return !exists;
}

/*
 * Update the row of a key.  Waits for a transaction that has locked it.
 * Returns false if it was updated or deleted since it was read.
 */
bool
dedup_table_update(Relation rel, HeapTuple tuple, DedupKey *key)
{
	key->version++;
	return row_update(rel, &tuple->t_self, form_key_row(rel, key));
}
