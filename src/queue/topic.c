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
 *
 *	  A binding gives roles a way into the queue that have no privilege on it,
 *	  and its queue gets what others publish.  So only queue_admin may bind.
 *
 *	  Whoever changes the bindings of a queue holds its lock in the mode of
 *	  QUEUE_ALTER or QUEUE_DROP.  So no two transactions write one row.
 *
 *	  A session reads all bindings at its first publish, and again when one has
 *	  changed (catalog_topics_generation()), and sorts them by project and
 *	  pattern.  Then those with the same first words follow each other, and a
 *	  binary search finds them.  So the cost of a publish depends on the words
 *	  of its topic and on what matches, and hardly on the number of bindings.
 *
 *	  After each word of the topic we have the beginnings of patterns that
 *	  match the words so far: several, because of the words "*" and "#".  The
 *	  next word makes each of them longer by this word and by "*"; and one that
 *	  ends with "#" stays.  Since "#" may stand for no word, a beginning brings
 *	  along the one that is longer by "#".  What no pattern begins with is
 *	  dropped.
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
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/inval.h"
#include "utils/memutils.h"

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

/* The key of a binding, by its place */
#define KEY_OF(i)	(((const TopicBinding *) list_nth(bindings, i))->key)

/* Whether the last word of a beginning of keys is "#" */
#define ENDS_WITH_HASH(beginning)	((beginning)[strlen(beginning) - 1] == '#')

static MemoryContext bindings_context = NULL;
static List *bindings;			/* in the order of their keys */

/* The catalog_topics_generation() that they are of */
static uint64 bindings_generation = 0;

static bool words_are_valid(const char *words, bool wildcards);
static void add_binding(Relation rel, HeapTuple tuple);
static int	compare_by_key(const ListCell *a, const ListCell *b);
static void read_bindings(void);
static int	find_beginning(const char *beginning);
static List *add_beginning(List *beginnings, char *beginning);
static List *match_words(const char *topic);
static bool binding_applies(const TopicBinding *binding, Jsonb *headers);
static void set_queue_name(TopicBinding *binding);
static int	compare_by_queue(const ListCell *a, const ListCell *b);

/* --- Rows --- */

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

/*
 * Remove the binding of a queue to a pattern, or if that is NULL all of its
 * bindings.  Returns false if there is none.
 */
bool
topic_remove(int32 queue_id, const char *pattern)
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
		removed = lappend(removed,
						  row_copy_column(RelationGetDescr(rel), tuple,
										  Anum_topic_publishers));
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
						"pattern", arg_clip(pattern, CLIP_LENGTH)),
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
	was_bound = topic_remove(queue.id, pattern);
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
		topic_remove(queue.id, pattern);
}

/* --- The session's copy --- */

/* Callback of catalog_read_table */
static void
add_binding(Relation rel, HeapTuple tuple)
{
	TupleDesc	desc = RelationGetDescr(rel);
	MemoryContext old = MemoryContextSwitchTo(bindings_context);
	TopicBinding *binding = palloc0(sizeof(TopicBinding));

	CHECK_FOR_INTERRUPTS();
	binding->project = TextDatumGetCString(row_getattr(rel, tuple,
													   Anum_topic_project));
	binding->pattern = TextDatumGetCString(row_getattr(rel, tuple,
													   Anum_topic_pattern));
	binding->key = psprintf("%s\n.%s", binding->project, binding->pattern);
	binding->queue_id = queue_table_id(rel, tuple, Anum_topic_queue_id);
	binding->queue_name = "";
	binding->filter = row_copy_column(desc, tuple, Anum_topic_filter);
	binding->publishers = row_copy_column(desc, tuple, Anum_topic_publishers);
	binding->bound_at =
		DatumGetTimestampTz(row_getattr(rel, tuple, Anum_topic_bound_at));
	bindings = lappend(bindings, binding);
	MemoryContextSwitchTo(old);
}

/* By project and pattern; and by the names of queues, where these are set. */
static int
compare_by_key(const ListCell *a, const ListCell *b)
{
	const TopicBinding *x = lfirst(a);
	const TopicBinding *y = lfirst(b);
	int			order = strcmp(x->key, y->key);

	return order != 0 ? order : strcmp(x->queue_name, y->queue_name);
}

/* Read all bindings, if they may have changed. */
static void
read_bindings(void)
{
	uint64		generation;

	/* In a transaction block a call processes no messages otherwise. */
	AcceptInvalidationMessages();
	generation = catalog_topics_generation();
	if (bindings_generation == generation)
		return;

	/* An error, or a message that arrives, makes the next call read again. */
	bindings_generation = 0;
	if (bindings_context == NULL)
		bindings_context = AllocSetContextCreate(CacheMemoryContext,
												 "bindings of topics",
												 ALLOCSET_DEFAULT_SIZES);
	MemoryContextReset(bindings_context);
	bindings = NIL;
	catalog_read_table(CATALOG_TOPIC, add_binding);
	list_sort(bindings, compare_by_key);
	bindings_generation = generation;
}

/* Set the name of the queue of a binding, unless it was dropped. */
static void
set_queue_name(TopicBinding *binding)
{
	QueueSummary queue;

	if (*binding->queue_name == '\0' &&
		queue_summary(binding->queue_id, &queue))
		binding->queue_name = MemoryContextStrdup(bindings_context,
												  queue.name);
}

/*
 * Returns the place of the first binding whose key begins with this; as the
 * number of bindings, if there is none.
 */
static int
find_beginning(const char *beginning)
{
	Size		length = strlen(beginning);
	int			low = 0;
	int			n = list_length(bindings);
	int			high = n;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (strcmp(KEY_OF(middle), beginning) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low < n && strncmp(KEY_OF(low), beginning, length) == 0 ? low : n;
}

/* --- Matching --- */

/*
 * Add a beginning of keys, unless no key has it or it was added, and then the
 * one that is longer by the word "#".
 */
static List *
add_beginning(List *beginnings, char *beginning)
{
	ListCell   *cell;

	if (find_beginning(beginning) == list_length(bindings))
		return beginnings;

	/* One with another end can be reached in one way only. */
	foreach(cell, ENDS_WITH_HASH(beginning) ? beginnings : NIL)
	{
		if (strcmp(lfirst(cell), beginning) == 0)
			return beginnings;
	}
	return add_beginning(lappend(beginnings, beginning),
						 psprintf("%s.#", beginning));
}

/* Returns the keys, and beginnings of keys, that match a topic. */
static List *
match_words(const char *topic)
{
	List	   *beginnings = add_beginning(NIL, psprintf("%s\n",
														 setting_project));
	const char *word = topic;

	for (;;)
	{
		int			length = strcspn(word, ".");
		List	   *from = beginnings;
		ListCell   *cell;

		beginnings = NIL;
		foreach(cell, from)
		{
			char	   *beginning = lfirst(cell);

			CHECK_FOR_INTERRUPTS();
			beginnings = add_beginning(beginnings,
									   psprintf("%s.%.*s", beginning, length,
												word));
			beginnings = add_beginning(beginnings, psprintf("%s.*", beginning));
			if (ENDS_WITH_HASH(beginning))
				beginnings = add_beginning(beginnings, beginning);
		}
		if (word[length] == '\0')
			return beginnings;
		word += length + 1;
	}
}

/* Returns whether the current role may publish, and the headers pass. */
static bool
binding_applies(const TopicBinding *binding, Jsonb *headers)
{
	if (binding->publishers != NULL &&
		!acl_is_member_of_any(GetUserId(), binding->publishers))
		return false;
	return binding->filter == NULL ||
		(headers != NULL &&
		 DatumGetBool(DirectFunctionCall2(jsonb_contains,
										  JsonbPGetDatum(headers),
										  JsonbPGetDatum(binding->filter))));
}

static int
compare_by_queue(const ListCell *a, const ListCell *b)
{
	int32		x = ((const TopicBinding *) lfirst(a))->queue_id;
	int32		y = ((const TopicBinding *) lfirst(b))->queue_id;

	return x < y ? -1 : x > y;
}

/*
 * List the bindings in the session's project through which a message of the
 * current role with these headers, which may be NULL, reaches queues, in the
 * order of the ids of the queues.  The list is valid until the next call.
 */
List *
topic_match(const char *topic, Jsonb *headers)
{
	List	   *result = NIL;
	ListCell   *cell;

	if (!words_are_valid(topic, false))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" is not a valid topic: \"%s\"",
						"topic", arg_clip(topic, CLIP_LENGTH)),
				 errhint("A topic is 1 to %d characters: words of letters, digits, and the signs _ - : / with dots between them.",
						 QUEUE_TOPIC_LENGTH)));
	read_bindings();
	foreach(cell, match_words(topic))
	{
		const char *key = lfirst(cell);
		ListCell   *of_key;

		for_each_from(of_key, bindings, find_beginning(key))
		{
			TopicBinding *binding = lfirst(of_key);

			CHECK_FOR_INTERRUPTS();
			if (strcmp(binding->key, key) != 0)
				break;
			if (!binding_applies(binding, headers))
				continue;
			set_queue_name(binding);
			result = lappend(result, binding);
		}
	}
	list_sort(result, compare_by_queue);
	return result;
}

/* --- Lists --- */

/*
 * List the bindings in the session's project, by pattern and queue: those of
 * queues whose owner or admin the current role is, after the marker, or from
 * the first one on if that is NULL, only those of this queue unless that is
 * NULL.  The list is valid until the next call.
 */
List *
topic_list(const char *marker, const char *queue_name)
{
	List	   *result = NIL;
	ListCell   *cell;

	read_bindings();
	foreach(cell, bindings)
	{
		TopicBinding *binding = lfirst(cell);

		CHECK_FOR_INTERRUPTS();
		if (strcmp(binding->project, setting_project) != 0)
			continue;
		set_queue_name(binding);

		/* A space is below all characters of patterns and names. */
		if ((marker == NULL ||
			 strcmp(psprintf("%s %s", binding->pattern, binding->queue_name),
					marker) > 0) &&
			(queue_name == NULL ||
			 strcmp(binding->queue_name, queue_name) == 0) &&
			queue_may_inspect(binding->queue_id, GetUserId()))
			result = lappend(result, binding);
	}
	list_sort(result, compare_by_key);
	return result;
}
