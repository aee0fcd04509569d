/*-------------------------------------------------------------------------
 *
 * group_list.c
 *	  The groups of a queue and the number of their messages.
 *
 * NOTES
 *	  A group exists only as long as it has messages.  So all messages of the
 *	  queue are read, and are counted in a hash table with one entry for each
 *	  group after the marker.  It is found by its lane, a hash with a secret
 *	  key (lane.c): clients choose the keys of groups, and must not be able to
 *	  make the table slow.
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
#include "utils/timestamp.h"
#include "utils/varlena.h"

#include "catalog/tables.h"
#include "claim/group_list.h"
#include "queue/message_list.h"
#include "storage/message_row.h"
#include "storage/message_scan.h"
#include "util/clock.h"
#include "util/hash.h"

/* The groups that are counted, in a context of their own */
typedef struct GroupList
{
	MemoryContext context;
	HTAB	   *groups;			/* of GroupCounts */
	const text *marker;			/* only those after this; NULL for all */
} GroupList;

static int	compare_group_keys(const text *a, const text *b);
static bool count_in_group(const ScanRow *row, TimestampTz now, void *arg);
static int	compare_groups(const void *a, const void *b);

static int
compare_group_keys(const text *a, const text *b)
{
	return varstr_cmp(VARDATA_ANY(a), VARSIZE_ANY_EXHDR(a),
					  VARDATA_ANY(b), VARSIZE_ANY_EXHDR(b), C_COLLATION_OID);
}

/*
 * Callback of message_list_each(): count a message in its group, unless the
 * marker excludes the group.
 */
static bool
count_in_group(const ScanRow *row, TimestampTz now, void *arg)
{
	GroupList  *list = arg;
	TupleDesc	desc = RelationGetDescr(row->table->heap);
	LaneId		lane = message_lane(desc, row->tuple);
	bool		isnull;
	Datum		value = heap_getattr(row->tuple, Anum_message_group_key, desc,
									 &isnull);
	text	   *key = isnull ? cstring_to_text("") : DatumGetTextPP(value);
	GroupCounts *entry;
	bool		found;

	if (list->marker != NULL && compare_group_keys(key, list->marker) <= 0)
		return true;
	entry = hash_search(list->groups, &lane, HASH_ENTER, &found);
	if (!found)
	{
		/* Messages come in the order of their ids: this is the oldest one. */
		memset(&entry->states, 0, sizeof(StateCounts));
		entry->oldest = row->form.created_at;
		entry->key = MemoryContextAlloc(list->context, VARSIZE_ANY(key));
		memcpy(entry->key, key, VARSIZE_ANY(key));
	}
	message_list_add(&entry->states, row, now);
	return true;
}

static int
compare_groups(const void *a, const void *b)
{
	return compare_group_keys((*(GroupCounts *const *) a)->key,
							  (*(GroupCounts *const *) b)->key);
}

/*
 * Call the callback for at most limit groups, in the order of their keys:
 * those after the marker, or if that is NULL, from the first on.
 */
void
group_list(const Queue *queue, const text *marker, int limit,
		   GroupListCallback callback, void *arg)
{
	GroupList	list = {.marker = marker};
	MessageFilter filter = ALL_MESSAGES;
	MemoryContext old;
	TimestampTz now;
	HASH_SEQ_STATUS status;
	GroupCounts *entry;
	GroupCounts **entries;
	int			n = 0;

	list.context = AllocSetContextCreate(CurrentMemoryContext, "groups",
										 ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(list.context);
	now = GetCurrentTimestamp();
	list.groups = hash_create_blobs("groups", sizeof(LaneId),
									sizeof(GroupCounts), list.context);
	(void) message_list_each(queue, &filter, count_in_group, &list);

	entries = palloc(hash_get_num_entries(list.groups) * sizeof(GroupCounts *));
	hash_seq_init(&status, list.groups);
	while ((entry = hash_seq_search(&status)) != NULL)
		entries[n++] = entry;
	qsort(entries, n, sizeof(GroupCounts *), compare_groups);
	for (int i = 0; i < Min(limit, n); i++)
	{
		entries[i]->oldest_age = clock_seconds(entries[i]->oldest, now);
		callback(entries[i], arg);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(list.context);
}
