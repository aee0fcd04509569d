/*-------------------------------------------------------------------------
 *
 * topic_match.c
 *	  The bindings that a topic matches.
 *
 * NOTES
 *	  A session reads all bindings at its first publish, and again when one has
 *	  changed (catalog_topics_generation()), into trees with a node for each
 *	  word of a pattern; the roots are the projects.  The cost of a publish
 *	  depends on the words of its topic and on what matches, not on the number
 *	  of bindings.
 *
 *	  Several nodes match the words that were read so far, because of the words
 *	  "*" and "#".  The next word leads from each of them to its children with
 *	  this word and with "*"; and a node "#" stays.  Since "#" may stand for no
 *	  word, a node brings its child "#" along.  Each node is taken once for each
 *	  word, so no pattern costs more than its length.
 *
 * src/queue/topic_match.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"

#include "catalog/relations.h"
#include "catalog/row_check.h"
#include "queue/acl.h"
#include "queue/queue_table.h"
#include "queue/topic.h"
#include "queue/topic_match.h"
#include "storage/row.h"
#include "util/limits.h"
#include "util/settings.h"

typedef struct TopicNode
{
	struct TopicNode *parent;	/* hash key, with the next two; NULL for a
								 * project */
	int32		length;
	const char *word;			/* not terminated */
	bool		stays;			/* the word is "#" */
	uint64		step;			/* the last one that has reached it */
	TopicBinding *bindings;		/* of the pattern that ends here */
} TopicNode;

static MemoryContext topic_context = NULL;
static HTAB *nodes;

/* The catalog_topics_generation() that they are of */
static uint64 nodes_generation = 0;

/* Counts the words of all topics */
static uint64 current_step = 0;

static uint32 node_hash(const void *key, Size size);
static int	node_compare(const void *a, const void *b, Size size);
static TopicNode *find_node(TopicNode *parent, const char *word, int length,
							bool add);
static void add_binding(Relation rel, HeapTuple tuple);
static void read_bindings(void);
static List *reach_node(List *reached, TopicNode *node);
static List *follow_word(List *from, const char *word, int length);
static bool binding_applies(const TopicBinding *binding, Jsonb *headers);
static int	compare_bindings(const ListCell *a, const ListCell *b);

/* --- The trees --- */

static uint32
node_hash(const void *key, Size size)
{
	const TopicNode *node = key;

	return hash_combine(murmurhash32((uint32) (uintptr_t) node->parent),
						hash_bytes((const unsigned char *) node->word,
								   node->length));
}

/* Returns 0 if two nodes have the same key. */
static int
node_compare(const void *a, const void *b, Size size)
{
	const TopicNode *x = a;
	const TopicNode *y = b;

	return x->parent != y->parent || x->length != y->length ||
		memcmp(x->word, y->word, x->length) != 0;
}

/*
 * Returns the child of a node with this word; if there is none, a new one or
 * NULL.  The word of a new one is kept by reference.
 */
static TopicNode *
find_node(TopicNode *parent, const char *word, int length, bool add)
{
	TopicNode	key = {.parent = parent,.length = length,.word = word};
	bool		found;
	TopicNode  *node = hash_search(nodes, &key, add ? HASH_ENTER : HASH_FIND,
								   &found);

	if (add && !found)
	{
		node->stays = false;
		node->step = 0;
		node->bindings = NULL;
	}
	return node;
}

/* Add a binding; called in topic_context. */
static void
add_binding(Relation rel, HeapTuple tuple)
{
	TopicBinding *binding = palloc0(sizeof(TopicBinding));
	const char *project = TextDatumGetCString(row_getattr(rel, tuple,
														  Anum_topic_project));
	const char *word = TextDatumGetCString(row_getattr(rel, tuple,
													   Anum_topic_pattern));
	TopicNode  *node = find_node(NULL, project, strlen(project), true);

	for (;;)
	{
		int			length = strcspn(word, ".");

		node = find_node(node, word, length, true);
		node->stays = length == 1 && *word == '#';
		if (word[length] == '\0')
			break;
		word += length + 1;
	}

	binding->queue_id = queue_table_id(rel, tuple, Anum_topic_queue_id);
	binding->filter = topic_filter_of(rel, tuple);
	binding->publishers = topic_publishers_of(rel, tuple);
	binding->next = node->bindings;
	node->bindings = binding;
}

/* Read all bindings, if they may have changed. */
static void
read_bindings(void)
{
	HASHCTL		info = {0};
	uint64		generation;
	Relation	rel;
	RowScan		scan;
	HeapTuple	tuple;
	MemoryContext old;

	/* In a transaction block a call processes no messages otherwise. */
	AcceptInvalidationMessages();
	if (nodes_generation == catalog_topics_generation())
		return;

	/* An error, or a message that arrives, makes the next call read again. */
	nodes_generation = 0;
	rel = catalog_open(CATALOG_TOPIC, AccessShareLock, NULL);
	generation = catalog_topics_generation();
	if (topic_context == NULL)
		topic_context = AllocSetContextCreate(CacheMemoryContext,
											  "bindings of topics",
											  ALLOCSET_DEFAULT_SIZES);
	MemoryContextReset(topic_context);
	old = MemoryContextSwitchTo(topic_context);
	info.keysize = offsetof(TopicNode, stays);
	info.entrysize = sizeof(TopicNode);
	info.hash = node_hash;
	info.match = node_compare;
	info.hcxt = topic_context;
	nodes = hash_create("words of topics", 64, &info,
						HASH_ELEM | HASH_FUNCTION | HASH_COMPARE | HASH_CONTEXT);
	row_scan_begin(&scan, rel, InvalidOid, NULL, 0);
	while (HeapTupleIsValid(tuple = row_scan_next(&scan)))
	{
		CHECK_FOR_INTERRUPTS();
		add_binding(rel, tuple);
	}
	row_scan_end(&scan);
	MemoryContextSwitchTo(old);
	table_close(rel, AccessShareLock);
	nodes_generation = generation;
}

/* --- Matching --- */

/* Add a node to those that the current step has reached. */
static List *
reach_node(List *reached, TopicNode *node)
{
	while (node != NULL && node->step != current_step)
	{
		node->step = current_step;
		reached = lappend(reached, node);
		node = find_node(node, "#", 1, false);
	}
	return reached;
}

/* Returns the nodes to which the next word of a topic leads. */
static List *
follow_word(List *from, const char *word, int length)
{
	List	   *reached = NIL;
	ListCell   *cell;

	current_step++;
	foreach(cell, from)
	{
		TopicNode  *node = lfirst(cell);

		reached = reach_node(reached, find_node(node, word, length, false));
		reached = reach_node(reached, find_node(node, "*", 1, false));
		if (node->stays)
			reached = reach_node(reached, node);
	}
	return reached;
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
compare_bindings(const ListCell *a, const ListCell *b)
{
	int32		x = ((const TopicBinding *) lfirst(a))->queue_id;
	int32		y = ((const TopicBinding *) lfirst(b))->queue_id;

	return x < y ? -1 : x > y;
}

/*
 * List the bindings in the session's project through which a message of the
 * current role with these headers, which may be NULL, reaches queues: one for
 * each queue, in the order of their ids.  The list is valid until the next
 * call.  A queue that was dropped has no name.
 */
List *
topic_match(const char *topic, Jsonb *headers)
{
	List	   *reached;
	List	   *bindings = NIL;
	List	   *result = NIL;
	ListCell   *cell;
	int32		last_id = 0;

	read_bindings();
	current_step++;
	reached = reach_node(NIL, find_node(NULL, setting_project,
										strlen(setting_project), false));
	for (const char *word = topic;; word++)
	{
		int			length = strcspn(word, ".");

		reached = follow_word(reached, word, length);
		word += length;
		if (*word == '\0')
			break;
	}
	foreach(cell, reached)
	{
		TopicBinding *binding = ((TopicNode *) lfirst(cell))->bindings;

		CHECK_FOR_INTERRUPTS();
		for (; binding != NULL; binding = binding->next)
			if (binding_applies(binding, headers))
				bindings = lappend(bindings, binding);
	}
	list_sort(bindings, compare_bindings);
	foreach(cell, bindings)
	{
		TopicBinding *binding = lfirst(cell);
		char		project[QUEUE_PROJECT_LENGTH + 1];
		char		name[QUEUE_NAME_LENGTH + 1];
		bool		paused;

		CHECK_FOR_INTERRUPTS();
		if (binding->queue_id == last_id)
			continue;
		last_id = binding->queue_id;
		if (binding->queue_name == NULL &&
			queue_any_name_of(last_id, project, name, &paused))
			binding->queue_name = MemoryContextStrdup(topic_context, name);
		result = lappend(result, binding);
	}
	return result;
}
