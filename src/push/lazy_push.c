/*-------------------------------------------------------------------------
 *
 * lazy_push.c
 *	  Pushes that are done when the transaction commits.
 *
 * NOTES
 *	  queue_push_lazy() only keeps the message in memory.  When the transaction
 *	  commits or is prepared, after its own work and its deferred triggers, all
 *	  lazy messages of a queue are pushed together: as the role that called
 *	  queue_push_lazy(), in the project and under the client id that were set
 *	  then.  If a subtransaction is rolled back, its lazy messages are dropped
 *	  (xact.c).
 *
 *	  An argument that is invalid for every queue is an error of the call.
 *	  Whatever fails later (a missing privilege, an unknown or dropped queue, a
 *	  lock that cannot be obtained) is logged as a warning, and the transaction
 *	  commits without these messages.  Therefore each push runs in a
 *	  subtransaction.  Only a query cancel makes the commit fail.
 *
 *	  Queues are pushed to in the order of their projects and names, so that
 *	  two sessions that push to the same queues do not deadlock.
 *
 * src/push/lazy_push.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/datum.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "push/lazy_push.h"
#include "push/push.h"
#include "queue/registry.h"
#include "util/compat.h"
#include "util/settings.h"
#include "util/xact.h"

/* A message to be pushed at commit, with what the session had set */
typedef struct LazyPush
{
	XactRecord	xact;
	Oid			role;
	const char *project;
	const char *client_id;
	const char *queue_name;
	NewMessage	message;		/* its id is the position until the push */
} LazyPush;

/* Pushes that are written by one call */
typedef struct PushGroup
{
	const LazyPush *pushes;
	int			n;
} PushGroup;

static const char *copy_label(const char *label, const char *previous);
static void *copy_varlena(const void *value);
static int	compare_pushes(const void *a, const void *b);
static bool is_same_write(const LazyPush *a, const LazyPush *b);
static bool message_fits(const Queue *queue, const NewMessage *message);
static void write_group(void *arg);
static ErrorData *write_sorted_pushes(const LazyPush *pushes, int n);
static void push_before_end(XactEvent event);

/* The lazy pushes of the transaction */
XactList	lazy_pushes = {
	.record_size = sizeof(LazyPush),
	.before_end = push_before_end
};

/* --- Keeping a message --- */

/*
 * Returns a copy of the text, or the copy of the previous message if that is
 * equal.
 */
static const char *
copy_label(const char *label, const char *previous)
{
	return previous != NULL && strcmp(label, previous) == 0 ? previous :
		MemoryContextStrdup(TopTransactionContext, label);
}

/* Returns a copy of a value of variable length, or NULL for NULL. */
static void *
copy_varlena(const void *value)
{
	return value == NULL ? NULL :
		DatumGetPointer(datumCopy(PointerGetDatum(value), false, -1));
}

/* Push a message to the queue of this name when the transaction commits. */
void
lazy_push_add(const char *queue_name, const NewMessage *message)
{
	static const LazyPush none = {0};
	const LazyPush *previous = lazy_pushes.n == 0 ? &none :
	xact_record(&lazy_pushes, lazy_pushes.n - 1);
	LazyPush	push;
	LazyPush   *added;
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	push.role = GetUserId();
	push.project = copy_label(setting_project, previous->project);
	push.client_id = copy_label(setting_client_id, previous->client_id);
	push.queue_name = copy_label(queue_name, previous->queue_name);
	push.message = *message;
	push.message.body = copy_varlena(message->body);
	push.message.group_key = copy_varlena(message->group_key);
	push.message.headers = copy_varlena(message->headers);
	if (message->dedup_key != NULL)
	{
		push.message.dedup_key = palloc(sizeof(pg_uuid_t));
		*push.message.dedup_key = *message->dedup_key;
	}
	MemoryContextSwitchTo(old);

	/* The list may be moved by this, so previous is not used any more. */
	added = xact_add(&lazy_pushes);
	push.xact = added->xact;
	*added = push;
}

/* --- Pushing at the end of the transaction --- */

/* Order by project, queue, and position in the transaction. */
static int
compare_pushes(const void *a, const void *b)
{
	const LazyPush *x = a;
	const LazyPush *y = b;
	int			order = strcmp(x->project, y->project);

	if (order == 0)
		order = strcmp(x->queue_name, y->queue_name);
	if (order == 0)
		order = x->message.id < y->message.id ? -1 : 1;
	return order;
}

/* Returns whether these may be written by one call. */
static bool
is_same_write(const LazyPush *a, const LazyPush *b)
{
	return a->role == b->role && strcmp(a->queue_name, b->queue_name) == 0 &&
		strcmp(a->project, b->project) == 0 &&
		strcmp(a->client_id, b->client_id) == 0;
}

/* Returns whether the queue accepts a message of this size; if not, warns. */
static bool
message_fits(const Queue *queue, const NewMessage *message)
{
	int64		size = push_size(message);

	if (queue->max_post_size < 0 || size <= queue->max_post_size)
		return true;
	ereport(WARNING,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("could not push to queue \"%s\" at the end of the transaction: message of %lld bytes is too large",
					queue->name, (long long) size),
			 errdetail("One message was dropped: \"_max_messages_post_size\" in its metadata is %d bytes.",
					   queue->max_post_size),
			 errhint("Push less, or raise \"_max_messages_post_size\" with queue_update.")));
	return false;
}

/*
 * Called in a subtransaction: push messages of one queue, role, project and
 * client id.
 */
static void
write_group(void *arg)
{
	const PushGroup *group = arg;
	const LazyPush *pushes = group->pushes;
	NewMessage *messages = MemoryContextAllocHuge(CurrentMemoryContext,
												  group->n * sizeof(NewMessage));
	Queue		queue;
	int			nfitting = 0;
	Oid			role;
	int			security;

	GetUserIdAndSecContext(&role, &security);
	SetUserIdAndSecContext(pushes->role, security);
	PushActiveSnapshot(GetTransactionSnapshot());

	/* The settings stay until the end of write_sorted_pushes. */
	if (strcmp(pushes->project, setting_project) != 0)
		settings_set("queue.project", pushes->project, true);
	if (strcmp(pushes->client_id, setting_client_id) != 0)
		settings_set("queue.client_id", pushes->client_id, true);
	queue_open_or_create(pushes->queue_name, QUEUE_PUSH, &queue);
	for (int i = 0; i < group->n; i++)
		if (message_fits(&queue, &pushes[i].message))
		{
			NewMessage *message = &messages[nfitting++];

			*message = pushes[i].message;
			message->id = 0;
			push_set_defaults(&queue, message);
		}
	if (nfitting > 0)
		push_messages(&queue, messages, nfitting);
	pfree(messages);
	PopActiveSnapshot();
	SetUserIdAndSecContext(role, security);
}

/*
 * Push what is sorted.  An error becomes a warning, except for that of a query
 * cancel, which is returned.
 */
static ErrorData *
write_sorted_pushes(const LazyPush *pushes, int n)
{
	ErrorData  *cancel = NULL;
	int			nest_level = NewGUCNestLevel();
	PushGroup	group;

	for (int first = 0; first < n && cancel == NULL; first += group.n)
	{
		ErrorData  *error;

		group.pushes = &pushes[first];
		group.n = 1;
		while (first + group.n < n && group.n < setting_max_push_count &&
			   is_same_write(group.pushes, &group.pushes[group.n]))
			group.n++;
		error = xact_try(write_group, &group);
		if (error != NULL && error->sqlerrcode == ERRCODE_QUERY_CANCELED)
			cancel = error;
		else if (error != NULL)
		{
			ereport(WARNING,
					(errcode(error->sqlerrcode),
					 errmsg("could not push to queue \"%s\" at the end of the transaction: %s",
							group.pushes->queue_name, error->message),
					 errdetail_plural("%d message was dropped.",
									  "%d messages were dropped.",
									  group.n, group.n),
					 error->hint != NULL ? errhint("%s", error->hint) : 0));
			FreeErrorData(error);
		}
	}
	AtEOXact_GUC(true, nest_level);
	return cancel;
}

/* Callback before commit or prepare: push all lazy messages. */
static void
push_before_end(XactEvent event)
{
	LazyPush   *pushes = lazy_pushes.records;
	int			n = lazy_pushes.n;
	bool		in_block = IsTransactionBlock();
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *cancel;

	if (n == 0)
		return;
	for (int i = 0; i < n; i++)
		pushes[i].message.id = i;
	qsort(pushes, n, sizeof(LazyPush), compare_pushes);

	/*
	 * While a transaction block is ending, the server asserts that no
	 * subtransaction is rolled back to it.  An enclosing subtransaction
	 * avoids that.
	 */
	if (in_block)
		BeginInternalSubTransaction(NULL);
	cancel = write_sorted_pushes(pushes, n);
	if (in_block)
	{
		ReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
	}
	if (cancel != NULL)
		ReThrowError(cancel);
}
