/*-------------------------------------------------------------------------
 *
 * group_list.c
 *	  The groups of a queue and the number of their messages.
 *
 * NOTES
 *	  A group exists only as long as it has messages.  So all messages of the
 *	  queue are read, and are counted in a hash table with one entry for each
 *	  group after the marker.
 *
 *	  Groups are in the order of the bytes of their keys.  Here the messages
 *	  without a key have the empty one, which no push accepts: so their group
 *	  is the first.
 *
 * src/claim/group_list.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_collation.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/varlena.h"

#include "catalog/tables.h"
#include "claim/group_list.h"
#include "queue/message_list.h"
#include "queue/registry.h"
#include "storage/lane.h"
#include "storage/message.h"
#include "storage/message_scan.h"
#include "util/clock.h"

/* A group; the key is empty for messages without one. */
typedef struct GroupEntry
{
	text	   *key;
	uint32		hash;
	char		status;			/* for simplehash.h */
	StateCounts states;
	TimestampTz oldest;			/* when the one with the lowest id was pushed */
} GroupEntry;

static int	compare_group_keys(const text *a, const text *b);
static uint32 hash_group_key(int32 queue_id, const text *key);

#define SH_PREFIX		groups
#define SH_ELEMENT_TYPE	GroupEntry
#define SH_KEY_TYPE		text *
#define SH_KEY			key
#define SH_HASH_KEY(table, key)	\
	hash_group_key(*(const int32 *) (table)->private_data, key)
#define SH_EQUAL(table, a, b)	(compare_group_keys(a, b) == 0)
#define SH_STORE_HASH
#define SH_GET_HASH(table, entry)	((entry)->hash)
#define SH_SCOPE		static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

static void count_in_group(groups_hash *groups, const ScanRow *row,
						   const text *marker, TimestampTz now);
static int	compare_groups(const void *a, const void *b);

static int
compare_group_keys(const text *a, const text *b)
{
	return varstr_cmp(VARDATA_ANY(a), VARSIZE_ANY_EXHDR(a),
					  VARDATA_ANY(b), VARSIZE_ANY_EXHDR(b), C_COLLATION_OID);
}

/*
 * The hash is a secret one, because clients choose the keys, and must not be
 * able to make the table slow.
 */
static uint32
hash_group_key(int32 queue_id, const text *key)
{
	return (uint32) lane_of_key(queue_id, VARDATA_ANY(key),
								(int) VARSIZE_ANY_EXHDR(key)).hash;
}

/* Count a message in its group, unless the marker excludes the group. */
static void
count_in_group(groups_hash *groups, const ScanRow *row, const text *marker,
			   TimestampTz now)
{
	bool		isnull;
	Datum		value = heap_getattr(row->tuple, Anum_message_group_key,
									 RelationGetDescr(row->table->heap),
									 &isnull);
	text	   *key = isnull ? cstring_to_text("") : DatumGetTextPCopy(value);
	GroupEntry *entry;
	bool		found;

	if (marker != NULL && compare_group_keys(key, marker) <= 0)
	{
		pfree(key);
		return;
	}
	entry = groups_insert(groups, key, &found);
	if (found)
		pfree(key);
	else
	{
		/* Messages come in the order of their ids: this is the oldest one. */
		memset(&entry->states, 0, sizeof(StateCounts));
		entry->oldest = row->form.created_at;
	}
	message_list_add(&entry->states, row, now);
}

static int
compare_groups(const void *a, const void *b)
{
	return compare_group_keys((*(GroupEntry *const *) a)->key,
							  (*(GroupEntry *const *) b)->key);
}

/*
 * Call the callback for at most limit groups, in the order of their keys:
 * those after the marker, or if that is NULL, from the first on.
 */
void
group_list(const Queue *queue, const text *marker, int limit,
		   GroupListCallback callback, void *arg)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "groups",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	TimestampTz now = GetCurrentTimestamp();
	int32		queue_id = queue->id;
	groups_hash *groups = groups_create(context, 64, &queue_id);
	groups_iterator iterator;
	GroupEntry *entry;
	GroupEntry **entries;
	MessageScan *scan;
	ScanRow		row;
	int			n = 0;

	scan = message_scan_begin_list(queue_id, PG_INT64_MIN, AccessShareLock);
	while (message_scan_next(scan, &row))
		if (!message_is_expired(&row.form, now))
			count_in_group(groups, &row, marker, now);
	message_scan_end(scan);

	entries = palloc(groups->members * sizeof(GroupEntry *));
	groups_start_iterate(groups, &iterator);
	while ((entry = groups_iterate(groups, &iterator)) != NULL)
		entries[n++] = entry;
	qsort(entries, n, sizeof(GroupEntry *), compare_groups);
	for (int i = 0; i < Min(limit, n); i++)
	{
		GroupCounts group = {
			.states = entries[i]->states,
			.oldest_age = clock_seconds(entries[i]->oldest, now)
		};

		if (VARSIZE_ANY_EXHDR(entries[i]->key) > 0)
			group.key = entries[i]->key;
		callback(&group, arg);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}
