/*-------------------------------------------------------------------------
 *
 * lazy_push.c
 *	  Pushes that wait for the end of the transaction.
 *
 * NOTES
 *	  queue_push_lazy only keeps the message in memory.  When the transaction
 *	  commits or is prepared, after its own work and its deferred triggers,
 *	  those of a queue are written together: as the role that pushed them, in
 *	  its project and under its client id.  A subtransaction that is rolled
 *	  back takes along what was kept in it.
 *
 *	  An argument that is wrong whatever the queue is an error at once; nothing
 *	  was written then.  All that goes wrong later (no right, a queue that is
 *	  unknown or dropped, a lock that is not to be had) is logged as a warning,
 *	  and the transaction commits without these messages.  So each write is a
 *	  subtransaction.  Only who cancels the commit itself has it fail.
 *
 *	  Queues are written in the order of their names, so that two sessions
 *	  that push to the same ones do not lock each other out.
 *
 * src/queue/lazy_push.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/datum.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "api/push_api.h"
#include "queue/lazy_push.h"
#include "queue/push.h"
#include "queue/registry.h"
#include "util/settings.h"
#include "util/xact.h"

PG_FUNCTION_INFO_V1(sql_queue_push_lazy);

typedef struct LazyPush
{
	XactRecord	xact;
	Oid			role;
	const char *project;
	const char *client_id;
	const char *queue;
	NewMessage	message;
} LazyPush;

static const char *keep_label(const char *label, const char *before);
static int	compare_pushes(const void *a, const void *b);
static bool same_write(const LazyPush *a, const LazyPush *b);
static void set_label(const char *setting, const char *label,
					  const char *current);
static bool fits(const Queue *queue, const NewMessage *message);
static void write_pushes(const LazyPush *writes, int n);
static void report(ErrorData *error, const LazyPush *writes, int n);
static ErrorData *try_write(const LazyPush *writes, int n);
static void write_all(XactEvent event);

static XactList pushes = {
	.record_size = sizeof(LazyPush),
	.before_end = write_all
};

void
lazy_push_init(void)
{
	xact_register(&pushes);
}

/* A copy of a setting, or the one of the push before. */
static const char *
keep_label(const char *label, const char *before)
{
	return before != NULL && strcmp(label, before) == 0 ? before :
		MemoryContextStrdup(TopTransactionContext, label);
}

/*
 * queue_push_lazy(q text, body jsonb, ttl int = NULL, delay int = NULL,
 *				   priority int = 0, dedup_key text = NULL) returns void
 *
 * Pushes one message when the transaction commits; arguments as those of
 * queue_push.  A rollback, also to a savepoint, drops it.  If the push fails
 * then, a warning in the log says so, and the transaction commits.
 *
 * Errors, at once: 22004 and 22023 arguments, 54000 body too large.
 * Source: MediaWiki, JobQueueGroup::lazyPush.
 */
Datum
sql_queue_push_lazy(PG_FUNCTION_ARGS)
{
	LazyPush	push;
	LazyPush   *kept;
	const LazyPush *before = pushes.n == 0 ? NULL :
		xact_record(&pushes, pushes.n - 1);
	NewMessage	message;
	const char *name;
	MemoryContext old;

	queue_prevent("queue_push_lazy()");
	name = push_args(fcinfo, &message);
	push_check_size(message.body);

	old = MemoryContextSwitchTo(TopTransactionContext);
	push.role = GetUserId();
	push.project = keep_label(setting_project,
							  before == NULL ? NULL : before->project);
	push.client_id = keep_label(setting_client_id,
								before == NULL ? NULL : before->client_id);
	push.queue = keep_label(name, before == NULL ? NULL : before->queue);
	push.message = message;
	push.message.body = (Jsonb *)
		DatumGetPointer(datumCopy(JsonbPGetDatum(message.body), false, -1));
	if (message.dedup != NULL)
	{
		push.message.dedup = palloc(sizeof(pg_uuid_t));
		*push.message.dedup = *message.dedup;
	}
	MemoryContextSwitchTo(old);

	kept = xact_add(&pushes);
	push.xact = kept->xact;
	*kept = push;
	PG_RETURN_VOID();
}

/* By queue, then in the order of the pushes, which is in the ids for now. */
static int
compare_pushes(const void *a, const void *b)
{
	const LazyPush *x = a;
	const LazyPush *y = b;
	int			order = strcmp(x->project, y->project);

	if (order == 0)
		order = strcmp(x->queue, y->queue);
	if (order == 0)
		order = x->message.id < y->message.id ? -1 : 1;
	return order;
}

/* May these be written by one call? */
static bool
same_write(const LazyPush *a, const LazyPush *b)
{
	return a->role == b->role && strcmp(a->queue, b->queue) == 0 &&
		strcmp(a->project, b->project) == 0 &&
		strcmp(a->client_id, b->client_id) == 0;
}

/* Let a setting be what it was, until the next one says something else. */
static void
set_label(const char *setting, const char *label, const char *current)
{
	if (strcmp(label, current) != 0)
		settings_set_label(setting, label, true);
}

/* May the queue have this message, by itself? */
static bool
fits(const Queue *queue, const NewMessage *message)
{
	int64		size = VARSIZE(message->body);

	if (queue->max_post_size < 0 || size <= queue->max_post_size)
		return true;
	ereport(WARNING,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("could not push to queue \"%s\" at the end of the transaction: body of %lld bytes is too large",
					queue->name, (long long) size),
			 errdetail("One message was dropped: \"_max_messages_post_size\" in its metadata is %d bytes.",
					   queue->max_post_size),
			 errhint("Push less, or raise \"_max_messages_post_size\" with queue_update.")));
	return false;
}

/* Write messages of one queue, role, project and client id. */
static void
write_pushes(const LazyPush *writes, int n)
{
	NewMessage *messages = MemoryContextAllocHuge(CurrentMemoryContext,
												  n * sizeof(NewMessage));
	Queue		queue;
	int			kept = 0;

	set_label("queue.project", writes[0].project, setting_project);
	set_label("queue.client_id", writes[0].client_id, setting_client_id);
	queue_open_for_push(writes[0].queue, &queue);
	for (int i = 0; i < n; i++)
		if (fits(&queue, &writes[i].message))
		{
			messages[kept] = writes[i].message;
			messages[kept].id = 0;
			push_defaults(&queue, &messages[kept]);
			kept++;
		}
	if (kept > 0)
		push_messages(&queue, messages, kept);
	pfree(messages);
}

static void
report(ErrorData *error, const LazyPush *writes, int n)
{
	ereport(WARNING,
			(errcode(error->sqlerrcode),
			 errmsg("could not push to queue \"%s\" at the end of the transaction: %s",
					writes[0].queue, error->message),
			 errdetail_plural("%d message was dropped.",
							  "%d messages were dropped.", n, n),
			 error->hint != NULL ? errhint("%s", error->hint) : 0));
}

/*
 * The same in a subtransaction; a failure is logged.  Returns the error that
 * ends the transaction: that somebody cancels it.
 */
static ErrorData *
try_write(const LazyPush *writes, int n)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile cancel = NULL;
	Oid			role;
	int			security;

	GetUserIdAndSecContext(&role, &security);
	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		SetUserIdAndSecContext(writes[0].role, security);
		PushActiveSnapshot(GetTransactionSnapshot());
		write_pushes(writes, n);
		PopActiveSnapshot();
		SetUserIdAndSecContext(role, security);
		ReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		if (error->sqlerrcode == ERRCODE_QUERY_CANCELED)
			cancel = error;
		else
		{
			report(error, writes, n);
			FreeErrorData(error);
		}
	}
	PG_END_TRY();
	return cancel;
}

/* The transaction's own work is done: write what was pushed. */
static void
write_all(XactEvent event)
{
	LazyPush   *all = pushes.records;
	int			n = pushes.n;
	int			first = 0;
	bool		in_block = IsTransactionBlock();
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *cancel = NULL;
	int			nest_level;

	if (n == 0)
		return;

	/* For the order of those of one queue */
	for (int i = 0; i < n; i++)
		all[i].message.id = i;
	qsort(all, n, sizeof(LazyPush), compare_pushes);

	/*
	 * A subtransaction cannot be rolled back into a block that is ending (it
	 * can, but an assertion is against it), so there is one around them.
	 */
	if (in_block)
		BeginInternalSubTransaction(NULL);
	nest_level = NewGUCNestLevel();
	while (first < n && cancel == NULL)
	{
		int			next = first + 1;

		while (next < n && next - first < setting_max_push_count &&
			   same_write(&all[first], &all[next]))
			next++;
		cancel = try_write(all + first, next - first);
		first = next;
	}
	AtEOXact_GUC(true, nest_level);
	if (in_block)
	{
		ReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
	}
	if (cancel != NULL)
		ReThrowError(cancel);
}
