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
static HeapTuple fetch_binding(Relation rel, Oid index, int32 queue_id,
							   const char *pattern);
static ArrayType *publishers_of(Relation rel, HeapTuple tuple);
static void forget_publishers(ArrayType *old, ArrayType *new);
static bool matches(text *pattern, text *expression);
static int	compare_entries(const void *a, const void *b);

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

/* Returns the row of a binding, or NULL. */
static HeapTuple
fetch_binding(Relation rel, Oid index, int32 queue_id, const char *pattern)
{
	ScanKeyData keys[2];

	ScanKeyInit(&keys[0], Anum_topic_queue_id, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(queue_id));
	ScanKeyInit(&keys[1], Anum_topic_pattern, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(pattern));
	return row_fetch(rel, index, keys, lengthof(keys));
}

/* Returns a copy of the publishers of a binding; NULL for all. */
static ArrayType *
publishers_of(Relation rel, HeapTuple tuple)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, Anum_topic_publishers,
									 RelationGetDescr(rel), &isnull);

	return isnull ? NULL : DatumGetArrayTypePCopy(value);
}

/*
 * A binding does not name these publishers any more, but may name some of them
 * still.
 */
static void
forget_publishers(ArrayType *old, ArrayType *new)
{
	Datum	   *roles;
	int			n = acl_roles(old, &roles);

	for (int i = 0; i < n; i++)
		if (!acl_has_role(new, DatumGetObjectId(roles[i])))
			role_forget(DatumGetObjectId(roles[i]));
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
	Relation	rel;
	Oid			index;
	HeapTuple	old;
	HeapTuple	new;
	ArrayType  *old_publishers = NULL;
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
	rel = catalog_open(CATALOG_TOPIC, RowExclusiveLock, &index);
	values[Anum_topic_queue_id - 1] = Int32GetDatum(queue.id);
	values[Anum_topic_project - 1] = CStringGetTextDatum(setting_project);
	values[Anum_topic_pattern - 1] = CStringGetTextDatum(pattern);
	values[Anum_topic_filter - 1] = JsonbPGetDatum(filter);
	values[Anum_topic_publishers - 1] = PointerGetDatum(publishers);
	values[Anum_topic_bound_at - 1] =
		TimestampTzGetDatum(GetCurrentTransactionStartTimestamp());
	isnull[Anum_topic_filter - 1] = filter == NULL;
	isnull[Anum_topic_publishers - 1] = publishers == NULL;
	new = heap_form_tuple(RelationGetDescr(rel), values, isnull);
	old = fetch_binding(rel, index, queue.id, pattern);
	if (HeapTupleIsValid(old))
	{
		old_publishers = publishers_of(rel, old);
		CatalogTupleUpdate(rel, &old->t_self, new);
	}
	else
		CatalogTupleInsert(rel, new);
	CacheInvalidateRelcache(rel);
	CommandCounterIncrement();
	table_close(rel, NoLock);
	for (int i = 0; i < nroles; i++)
		role_record(DatumGetObjectId(roles[i]));
	forget_publishers(old_publishers, publishers);
	return !HeapTupleIsValid(old);
}

/* Remove a binding.  Returns false if there is none. */
bool
topic_unbind(const char *pattern, const char *queue_name)
{
	Queue		queue;
	Relation	rel;
	Oid			index;
	HeapTuple	old;

	acl_check_member(CATALOG_ADMIN, "bind queues to topics");
	if (!queue_open(queue_name, QUEUE_ALTER, &queue))
		return false;
	rel = catalog_open(CATALOG_TOPIC, RowExclusiveLock, &index);
	old = fetch_binding(rel, index, queue.id, pattern);
	if (HeapTupleIsValid(old))
	{
		ArrayType  *publishers = publishers_of(rel, old);

		CatalogTupleDelete(rel, &old->t_self);
		CacheInvalidateRelcache(rel);
		CommandCounterIncrement();
		forget_publishers(publishers, NULL);
	}
	table_close(rel, NoLock);
	return HeapTupleIsValid(old);
}

/* Remove the bindings of a queue that is being dropped. */
void
topic_drop_queue(int32 queue_id)
{
	List	   *publishers = NIL;
	ListCell   *cell;
	Relation	rel;
	Oid			index;
	ScanKeyData key;
	RowScan		scan;
	HeapTuple	tuple;

	/* Earlier versions of the extension do not have this table. */
	if (!OidIsValid(catalog_oid(CATALOG_TOPIC)))
		return;
	rel = catalog_open(CATALOG_TOPIC, RowExclusiveLock, &index);
	ScanKeyInit(&key, Anum_topic_queue_id, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(queue_id));
	row_scan_begin(&scan, rel, index, &key, 1);
	while (HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		CHECK_FOR_INTERRUPTS();
		publishers = lappend(publishers, publishers_of(rel, tuple));
		CatalogTupleDelete(rel, &tuple->t_self);
	}
	row_scan_end(&scan);
	if (publishers != NIL)
		CacheInvalidateRelcache(rel);
	CommandCounterIncrement();
	table_close(rel, NoLock);
	foreach(cell, publishers)
		forget_publishers(lfirst(cell), NULL);
}

/* --- Lists --- */

static int
compare_entries(const void *a, const void *b)
{
	return strcmp(((const TopicEntry *) a)->key,
				  ((const TopicEntry *) b)->key);
}

/* Returns whether a pattern of a binding matches a regular expression. */
static bool
matches(text *pattern, text *expression)
{
	return DatumGetBool(DirectFunctionCall2Coll(textregexeq, C_COLLATION_OID,
												PointerGetDatum(pattern),
												PointerGetDatum(expression)));
}

/*
 * Call a function for the bindings in the session's project, by pattern and
 * queue: those of queues whose owner or admin the current role is, after the
 * marker, or from the first one on if that is NULL, whose pattern matches the
 * regular expression, or any if that is NULL, at most limit.
 */
void
topic_list(const char *marker, int limit, text *pattern,
		   TopicCallback callback, void *arg)
{
	Relation	rel = catalog_open(CATALOG_TOPIC, AccessShareLock, NULL);
	int			size = 64;
	int			n = 0;
	TopicEntry *entries = palloc(size * sizeof(TopicEntry));
	RowScan		scan;
	HeapTuple	tuple;

	/* A wrong expression is an error, whatever bindings there are. */
	if (pattern != NULL)
		(void) matches(cstring_to_text(""), pattern);
	row_scan_begin(&scan, rel, InvalidOid, NULL, 0);
	while (HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		TopicEntry *entry;
		char		project[QUEUE_PROJECT_LENGTH + 1];
		char		name[QUEUE_NAME_LENGTH + 1];
		bool		paused;
		bool		isnull;
		Datum		filter;

		CHECK_FOR_INTERRUPTS();
		if (n == size)
		{
			size *= 2;
			entries = repalloc_huge(entries, size * sizeof(TopicEntry));
		}
		entry = &entries[n];
		entry->queue_id = queue_table_id(rel, tuple, Anum_topic_queue_id);
		entry->pattern = DatumGetTextPCopy(row_getattr(rel, tuple,
													   Anum_topic_pattern));

		/* The expression must not tell of what the caller may not see. */
		if (!queue_any_name_of(entry->queue_id, project, name, &paused) ||
			strcmp(project, setting_project) != 0 ||
			!queue_may_inspect(entry->queue_id, NULL) ||
			(pattern != NULL && !matches(entry->pattern, pattern)))
			continue;

		/* A space is below all characters of patterns and names. */
		entry->queue = pstrdup(name);
		entry->key = psprintf("%s %s", text_to_cstring(entry->pattern), name);
		filter = heap_getattr(tuple, Anum_topic_filter, RelationGetDescr(rel),
							  &isnull);
		entry->filter = isnull ? NULL : DatumGetJsonbPCopy(filter);
		entry->publishers = publishers_of(rel, tuple);
		entry->bound_at =
			DatumGetTimestampTz(row_getattr(rel, tuple, Anum_topic_bound_at));
		if (marker == NULL || strcmp(entry->key, marker) > 0)
			n++;
	}
	row_scan_end(&scan);
	table_close(rel, AccessShareLock);
	qsort(entries, n, sizeof(TopicEntry), compare_entries);
	for (int i = 0; i < Min(n, limit); i++)
		callback(&entries[i], arg);
}
