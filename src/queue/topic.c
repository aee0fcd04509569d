/*-------------------------------------------------------------------------
 *
 * topic.c
 *	  Topics: which queues are bound to which patterns.
 *
 * NOTES
 *	  A row of queue_data.topic is a binding: the queue gets a copy of each
 *	  message that is published to a topic that matches the pattern, if its
 *	  headers contain the filter, and by a role that has the privileges of one
 *	  of the publishers; NULL stands for no filter, and for all publishers.
 *	  topic_match.c finds the bindings of a topic.
 *
 *	  A binding gives roles a way into the queue that have no privilege on it,
 *	  and its queue gets what others publish.  So only queue_admin may bind.
 *
 *	  Whoever changes the bindings of a queue holds its lock in the mode of
 *	  QUEUE_ALTER or QUEUE_DROP.  So no two transactions write one row.
 *
 * src/queue/topic.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/skey.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_collation.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/inval.h"

#include "catalog/relations.h"
#include "catalog/row_check.h"
#include "queue/acl.h"
#include "queue/queue_table.h"
#include "queue/registry.h"
#include "queue/role.h"
#include "queue/shard.h"
#include "queue/topic.h"
#include "storage/row.h"
#include "util/args.h"
#include "util/limits.h"
#include "util/settings.h"

static bool words_are_valid(const char *words, bool wildcards);
static bool remove_bindings(int32 queue_id, const char *pattern);
static int	compare_entries(const ListCell *a, const ListCell *b);

/* --- Checks --- */

/* Returns whether the text is words with dots between them. */
static bool
words_are_valid(const char *words, bool wildcards)
{
	const char *word = words;

	if (strlen(words) > QUEUE_TOPIC_LENGTH)
		return false;
	for (;;)
	{
		const char *end = word;

		if (wildcards && (*word == '*' || *word == '#'))
			end++;
		else
			while (*end != '.' && queue_is_name_character(*end))
				end++;
		if (end == word || (*end != '.' && *end != '\0'))
			return false;
		if (*end == '\0')
			return true;
		word = end + 1;
	}
}

void
topic_check(const char *topic)
{
	if (!words_are_valid(topic, false))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" is not a valid topic: \"%s\"",
						"topic", arg_clip(topic)),
				 errhint("A topic is 1 to %d characters: words of letters, digits, and the signs _ - : / with dots between them.",
						 QUEUE_TOPIC_LENGTH)));
}

/* --- Rows --- */

/* Returns a copy of the filter of a binding, or NULL. */
Jsonb *
topic_filter_of(Relation rel, HeapTuple tuple)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, Anum_topic_filter,
									 RelationGetDescr(rel), &isnull);

	return isnull ? NULL : DatumGetJsonbPCopy(value);
}

/* Returns a copy of the publishers of a binding; NULL for all. */
ArrayType *
topic_publishers_of(Relation rel, HeapTuple tuple)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, Anum_topic_publishers,
									 RelationGetDescr(rel), &isnull);

	return isnull ? NULL : DatumGetArrayTypePCopy(value);
}

/*
 * Remove the binding of a queue to a pattern, or if that is NULL all of its
 * bindings.  Returns false if there is none.
 */
static bool
remove_bindings(int32 queue_id, const char *pattern)
{
	List	   *removed = NIL;
	ListCell   *cell;
	Relation	rel;
	Oid			index;
	ScanKeyData keys[2];
	RowScan		scan;
	HeapTuple	tuple;

	rel = catalog_open(CATALOG_TOPIC, RowExclusiveLock, &index);
	ScanKeyInit(&keys[0], Anum_topic_queue_id, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(queue_id));
	if (pattern != NULL)
		ScanKeyInit(&keys[1], Anum_topic_pattern, BTEqualStrategyNumber,
					F_TEXTEQ, CStringGetTextDatum(pattern));
	row_scan_begin(&scan, rel, index, keys, pattern == NULL ? 1 : 2);
	while (HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		CHECK_FOR_INTERRUPTS();
		removed = lappend(removed, topic_publishers_of(rel, tuple));
		CatalogTupleDelete(rel, &tuple->t_self);
	}
	row_scan_end(&scan);
	if (removed != NIL)
		CacheInvalidateRelcache(rel);
	CommandCounterIncrement();
	table_close(rel, NoLock);
	foreach(cell, removed)
	{
		Datum	   *roles;
		int			n = acl_roles(lfirst(cell), &roles);

		for (int i = 0; i < n; i++)
			role_forget(DatumGetObjectId(roles[i]));
	}
	return removed != NIL;
}

/*
 * Bind a queue, which is created where that is allowed, to a pattern.  filter
 * and publishers may be NULL.  Returns false if it was bound to it already;
 * then the filter and the publishers are replaced.
 */
bool
topic_bind(const char *pattern, const char *queue_name, Jsonb *filter,
		   ArrayType *publishers)
{
	Datum		values[Natts_topic];
	bool		isnull[Natts_topic] = {false};
	Queue		queue;
	bool		was_bound;
	Relation	rel;
	Datum	   *roles;
	int			nroles = acl_roles(publishers, &roles);

	acl_check_member(CATALOG_ADMIN, "bind queues to topics");
	if (!words_are_valid(pattern, true))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" is not a valid pattern of topics: \"%s\"",
						"pattern", arg_clip(pattern)),
				 errhint("A pattern is 1 to %d characters: words of letters, digits, and the signs _ - : / with dots between them; * stands for one word, and # for any number of words.",
						 QUEUE_TOPIC_LENGTH)));
	for (int i = 0; i < nroles; i++)
		role_check(DatumGetObjectId(roles[i]));

	queue_open_or_create(queue_name, QUEUE_ALTER, &queue);
	if (shard_map_exists())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a sharded database has no topics"),
				 errdetail("A publish would have to reach the queues of other servers."),
				 errhint("Push to each queue.")));
	was_bound = remove_bindings(queue.id, pattern);
	rel = catalog_open(CATALOG_TOPIC, RowExclusiveLock, NULL);
	values[Anum_topic_queue_id - 1] = Int32GetDatum(queue.id);
	values[Anum_topic_project - 1] = CStringGetTextDatum(setting_project);
	values[Anum_topic_pattern - 1] = CStringGetTextDatum(pattern);
	values[Anum_topic_filter - 1] = JsonbPGetDatum(filter);
	values[Anum_topic_publishers - 1] = PointerGetDatum(publishers);
	values[Anum_topic_bound_at - 1] =
		TimestampTzGetDatum(GetCurrentTransactionStartTimestamp());
	isnull[Anum_topic_filter - 1] = filter == NULL;
	isnull[Anum_topic_publishers - 1] = publishers == NULL;
	CatalogTupleInsert(rel,
					   heap_form_tuple(RelationGetDescr(rel), values, isnull));
	CacheInvalidateRelcache(rel);
	CommandCounterIncrement();
	table_close(rel, NoLock);
	for (int i = 0; i < nroles; i++)
		role_record(DatumGetObjectId(roles[i]));
	return !was_bound;
}

/* Remove a binding.  Returns false if there is none. */
bool
topic_unbind(const char *pattern, const char *queue_name)
{
	Queue		queue;

	acl_check_member(CATALOG_ADMIN, "bind queues to topics");
	return queue_open(queue_name, QUEUE_ALTER, &queue) &&
		remove_bindings(queue.id, pattern);
}

/* Remove the bindings of a queue that is being dropped. */
void
topic_drop_queue(int32 queue_id)
{
	/* Earlier versions of the extension do not have this table. */
	if (OidIsValid(catalog_oid(CATALOG_TOPIC)))
		(void) remove_bindings(queue_id, NULL);
}

/* --- Lists --- */

static int
compare_entries(const ListCell *a, const ListCell *b)
{
	return strcmp(((const TopicEntry *) lfirst(a))->key,
				  ((const TopicEntry *) lfirst(b))->key);
}

/*
 * Call a function for the bindings in the session's project, by pattern and
 * queue: those of queues whose owner or admin the current role is, after the
 * marker, or from the first one on if that is NULL, only those of this queue
 * unless that is NULL, at most limit.
 */
void
topic_list(const char *marker, int limit, const char *queue_name,
		   TopicCallback callback, void *arg)
{
	Relation	rel = catalog_open(CATALOG_TOPIC, AccessShareLock, NULL);
	List	   *entries = NIL;
	ListCell   *cell;
	RowScan		scan;
	HeapTuple	tuple;

	row_scan_begin(&scan, rel, InvalidOid, NULL, 0);
	while (HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		TopicEntry *entry;
		int32		queue_id = queue_table_id(rel, tuple, Anum_topic_queue_id);
		char		project[QUEUE_PROJECT_LENGTH + 1];
		char		name[QUEUE_NAME_LENGTH + 1];
		bool		paused;
		text	   *pattern;
		char	   *key;

		CHECK_FOR_INTERRUPTS();

		if (!queue_any_name_of(queue_id, project, name, &paused) ||
			strcmp(project, setting_project) != 0 ||
			(queue_name != NULL && strcmp(name, queue_name) != 0) ||
			!queue_may_inspect(queue_id, NULL))
			continue;

		/* A space is below all characters of patterns and names. */
		pattern = DatumGetTextPCopy(row_getattr(rel, tuple,
												Anum_topic_pattern));
		key = psprintf("%s %s", text_to_cstring(pattern), name);
		if (marker != NULL && strcmp(key, marker) <= 0)
			continue;
		entry = palloc(sizeof(TopicEntry));
		entry->key = key;
		entry->pattern = pattern;
		entry->queue = pstrdup(name);
		entry->filter = topic_filter_of(rel, tuple);
		entry->publishers = topic_publishers_of(rel, tuple);
		entry->bound_at =
			DatumGetTimestampTz(row_getattr(rel, tuple, Anum_topic_bound_at));
		entries = lappend(entries, entry);
	}
	row_scan_end(&scan);
	table_close(rel, AccessShareLock);
	list_sort(entries, compare_entries);
	foreach(cell, entries)
	{
		if (foreach_current_index(cell) == limit)
			break;
		callback(lfirst(cell), arg);
	}
}
