/*-------------------------------------------------------------------------
 *
 * publish.c
 *	  Publishing: a message to each queue that is bound to its topic.
 *
 * NOTES
 *	  A publisher reaches a queue by its binding, whatever its own privilege on
 *	  the queue, and learns nothing of the queues but how many it has reached.
 *	  Nor may the owner of one keep it from reaching the others: a queue that
 *	  cannot take its copy now, because of its own metadata or because a
 *	  transaction purges or drops it, is left out.  The server's log says so,
 *	  once in a minute for each session and queue, with the number of copies.
 *
 *	  What is published while a queue is purged or dropped is gone, as if it
 *	  had been there before; even if that transaction is rolled back.
 *
 * src/push/publish.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"

#include "push/publish.h"
#include "push/push.h"
#include "queue/acl.h"
#include "queue/registry.h"
#include "queue/topic.h"
#include "util/settings.h"

static void leave_out(TopicBinding *binding, const char *topic,
					  const char *reason);

/* Count and log a copy that a queue does not take.  No client may see it. */
static void
leave_out(TopicBinding *binding, const char *topic, const char *reason)
{
	binding->left_out++;
	if (!queue_may_warn(binding->queue_name))
		return;
	ereport(LOG_SERVER_ONLY,
			(errmsg_plural("%lld published message was left out of queue \"%s\" in project \"%s\"",
						   "%lld published messages were left out of queue \"%s\" in project \"%s\"",
						   binding->left_out, (long long) binding->left_out,
						   binding->queue_name, setting_project),
			 errdetail_internal("Topic \"%s\": %s", topic, reason)));
	binding->left_out = 0;
}

/*
 * Push a message, which has no batch, to each queue that is bound to the
 * topic.  Returns the number of queues that have it now; one that has a
 * duplicate of it counts.
 */
int
publish_message(const char *topic, const NewMessage *message)
{
	List	   *bindings;
	ListCell   *cell;
	Queue	   *queues;
	NewMessage *copies;
	int32		last_id = 0;
	int			n = 0;

	acl_check_member(CATALOG_PRODUCER, "publish");
	push_check_size(message);
	bindings = topic_match(topic, message->headers);
	queues = palloc(list_length(bindings) * sizeof(Queue));
	copies = palloc(list_length(bindings) * sizeof(NewMessage));
	foreach(cell, bindings)
	{
		TopicBinding *binding = lfirst(cell);
		Queue	   *queue = &queues[n];
		QueueResult result;

		CHECK_FOR_INTERRUPTS();

		/* Another binding of the queue matches, too. */
		if (binding->queue_id == last_id)
			continue;
		last_id = binding->queue_id;
		result = queue_open_as(binding->queue_name, BOOTSTRAP_SUPERUSERID,
							   QUEUE_PUSH, false, queue);
		if (result == QUEUE_BUSY)
			leave_out(binding, topic,
					  "A transaction purges or drops the queue.");

		/* It was dropped, and another one may have its name. */
		if (result != QUEUE_OK || queue->id != binding->queue_id)
			continue;
		if (queue->max_post_size >= 0 &&
			push_size(message) > queue->max_post_size)
		{
			leave_out(binding, topic,
					  "The message is larger than \"_max_messages_post_size\" in the metadata of the queue.");
			continue;
		}
		copies[n] = *message;
		push_set_defaults(queue, &copies[n++]);
	}
	if (n > 0)
		push_copies(queues, copies, n);
	return n;
}
