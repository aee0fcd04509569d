/*-------------------------------------------------------------------------
 *
 * queue_cmds.c
 *	  Commands on queues: create, change, purge and drop.
 *
 * NOTES
 *	  Each function is one command on a queue of the session's project, with
 *	  the privileges of the current user.  It opens the queue, which takes the
 *	  lock that the command needs (queue_lock.c).  This lock serializes all
 *	  changes of the queue's row, so that the row is read after the lock is
 *	  taken and updated without a check for concurrent updates.
 *
 *	  Every change ends with queue_invalidate(), upon which all sessions read
 *	  the row anew.
 *
 *	  What other layers keep about a queue goes when the queue is dropped.
 *	  Modules of this layer are called directly; the jobs layer, which is above
 *	  this one, registers a callback.
 *
 * src/commands/queue_cmds.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "catalog/relations.h"
#include "catalog/tables.h"
#include "commands/dead_letter_queue.h"
#include "commands/queue_cmds.h"
#include "push/message_end.h"
#include "queue/acl.h"
#include "queue/options.h"
#include "queue/queue_table.h"
#include "queue/registry.h"
#include "queue/role.h"
#include "queue/topic.h"
#include "shmem/database_state.h"
#include "storage/counts.h"
#include "storage/message.h"
#include "storage/message_scan.h"
#include "storage/pending.h"
#include "storage/row.h"
#include "util/clock.h"
#include "util/compat.h"
#include "util/json.h"
#include "util/settings.h"
#include "util/xact.h"

/* The worker waits so long for a lock of others at most */
#define TRY_TIMEOUT		"1ms"

#define WARN_INTERVAL	USECS_PER_MINUTE

static HeapTuple fetch_locked_row(Relation rel, const char *name);
static void update_column(const char *name, int column, Datum value,
						  bool isnull);
static void *read_column(const char *name, int column);
static int64 delete_messages(const Queue *queue, int64 *nexpired);
static void write_metadata(const Queue *queue, Jsonb *metadata,
						   bool default_dead);
static Jsonb *merge_metadata(Jsonb *metadata, Jsonb *patch);
static void try_require_dead_letters(void *arg);
pg_noreturn static void not_granted_error(const char *name,
										  QueuePrivilege privilege, Oid role);
static void check_set_owner(const Queue *queue, Oid role);
static void write_owner(const Queue *queue, Oid role);

/* --- The row of a queue --- */

/* Returns a copy of the row of a queue that the caller has locked. */
static HeapTuple
fetch_locked_row(Relation rel, const char *name)
{
	HeapTuple	tuple = queue_table_fetch(rel, name);

	if (!HeapTupleIsValid(tuple))
		queue_missing_error(name);
	return tuple;
}

/* Write one column of a queue that the caller has locked. */
static void
update_column(const char *name, int column, Datum value, bool isnull)
{
	Relation	rel = catalog_open_queues(RowExclusiveLock);
	HeapTuple	tuple = fetch_locked_row(rel, name);

	CatalogTupleUpdate(rel, &tuple->t_self,
					   heap_modify_tuple_by_cols(tuple, RelationGetDescr(rel),
												 1, &column, &value,
												 &isnull));
	table_close(rel, NoLock);
	queue_invalidate();
}

/*
 * Returns a copy of one column, of a type that is passed by reference, of a
 * queue that the caller has locked; NULL if it is null.
 */
static void *
read_column(const char *name, int column)
{
	Relation	rel = catalog_open_queues(AccessShareLock);
	HeapTuple	tuple = fetch_locked_row(rel, name);
	bool		isnull;
	Datum		value = heap_getattr(tuple, column, RelationGetDescr(rel),
									 &isnull);
	void	   *copy = isnull ? NULL : PG_DETOAST_DATUM_COPY(value);

	table_close(rel, AccessShareLock);
	return copy;
}

/* --- Create --- */

/*
 * Create a queue of the current user, and the dead letter queue that its
 * metadata requires.  Returns false if the queue exists; it is left alone
 * then.
 */
bool
queue_create(const char *name, Jsonb *metadata)
{
	Queue		queue;

	acl_check_member(CATALOG_PRODUCER, "create a queue");
	options_check(name, metadata);
	if (queue_open(name, QUEUE_DESCRIBE, &queue) ||
		!queue_insert(name, metadata, GetUserId(), 0))
	{
		QueueSummary existing;
		Jsonb	   *its_metadata;

		if (queue_describe(name, &existing, &its_metadata) &&
			compareJsonbContainers(&its_metadata->root,
								   &metadata->root) != 0)
			ereport(NOTICE,
					(errmsg("queue \"%s\" exists with different metadata, which was left unchanged",
							name),
					 errhint("Change metadata with queue_update or queue_set_metadata.")));
		return false;
	}

	/* It needs no lock: other sessions cannot find it before the commit. */
	queue_open_existing(name, QUEUE_DESCRIBE, &queue);
	if (queue.dead_queue[0] != '\0')
		update_column(name, Anum_queue_dead_queue_id,
					  Int32GetDatum(dead_letter_queue_require(&queue,
															  metadata,
															  false)),
					  false);
	options_warn(metadata);
	return true;
}

/* --- Purge and drop --- */

/*
 * Delete all messages of a queue whose lock excludes pushes and claims.
 * Returns the number of those that had not expired.
 */
static int64
delete_messages(const Queue *queue, int64 *nexpired)
{
	int64		ndeleted = 0;
	bool		complete;

	*nexpired = 0;
	do
	{
		TimestampTz now = GetCurrentTimestamp();
		MessageScan *scan;
		ScanRow		row;

		complete = true;
		scan = message_scan_begin_list(queue->id, PG_INT64_MIN,
									   RowExclusiveLock);
		while (message_scan_next(scan, &row))
		{
			/* The worker has moved it; we find it in its new segment. */
			if (!message_delete(row.table, row.tuple))
			{
				complete = false;
				continue;
			}
			(void) message_end(queue, row.table, row.tuple, END_PURGED, NULL);
			if (message_is_expired(&row.form, now) && !row.form.is_canceled)
				(*nexpired)++;
			else
				ndeleted++;
		}
		message_scan_end(scan);
		CommandCounterIncrement();
	} while (!complete);
	row_delete_of_queue(CATALOG_DEDUP_KEY, queue->id);
	return ndeleted;
}

/*
 * Remove all messages of a queue.  Returns the number of those that had not
 * expired, or 0 if there is no such queue.
 */
int64
queue_purge(const char *name)
{
	Queue		queue;
	int64		ndeleted;
	int64		nexpired;

	if (!queue_open(name, QUEUE_PURGE, &queue))
	{
		queue_notice_missing(name);
		return 0;
	}
	ndeleted = delete_messages(&queue, &nexpired);
	counts_add(queue.id, JOB_EXPIRED, nexpired);
	return ndeleted;
}

/* Drop a queue with its messages.  Returns false if there is none. */
bool
queue_drop(const char *name)
{
	Queue		queue;
	int64		nexpired;
	Relation	rel;
	HeapTuple	tuple;
	List	   *roles;
	ListCell   *cell;

	if (!queue_open(name, QUEUE_DROP, &queue))
		return false;
	dead_letter_queue_check_drop(&queue);
	(void) delete_messages(&queue, &nexpired);
	row_delete_of_queue(CATALOG_ROOT_JOB, queue.id);
	row_delete_of_queue(CATALOG_GROUPED, queue.id);
	row_delete_of_queue(CATALOG_GROUP_RATE, queue.id);
	row_delete_of_queue(CATALOG_PUSH_ORIGIN, queue.id);
	(void) topic_remove(queue.id, NULL);
	pending_record_queue(queue.id, TARGET_DROP, LANE_WITHOUT_KEY);
	row_delete_of_queue(CATALOG_JOB_COUNTER, queue.id);
	row_delete_of_queue(CATALOG_HANDLER, queue.id);
	rel = catalog_open_queues(RowExclusiveLock);
	tuple = fetch_locked_row(rel, name);
	roles = role_all_of(rel, tuple);
	CatalogTupleDelete(rel, &tuple->t_self);
	table_close(rel, NoLock);
	queue_invalidate();

	/* Delete the records of the roles that the row refers to. */
	foreach(cell, roles)
		role_forget(lfirst_oid(cell));
	return true;
}

/* --- Properties --- */

/*
 * Write the metadata of a queue that the caller has locked.  default_dead: it
 * names the dead letter queue that the queue has by default.
 */
static void
write_metadata(const Queue *queue, Jsonb *metadata, bool default_dead)
{
	int32		dead_id;

	options_check(queue->name, metadata);
	dead_id = dead_letter_queue_require(queue, metadata, default_dead);
	update_column(queue->name, Anum_queue_metadata, JsonbPGetDatum(metadata),
				  false);
	if (dead_id != queue->dead_id)
		update_column(queue->name, Anum_queue_dead_queue_id,
					  Int32GetDatum(dead_id), dead_id == 0);

	/* Groups may have more room than before. */
	if (queue->has_groups)
		pending_record_queue(queue->id, TARGET_QUEUE, LANE_WITHOUT_KEY);
}

/* Replace the metadata of a queue. */
void
queue_set_metadata(const char *name, Jsonb *metadata)
{
	Queue		queue;

	queue_open_existing(name, QUEUE_ALTER, &queue);
	write_metadata(&queue, metadata, false);
	options_warn(metadata);
}

/* Returns the metadata with the keys of the patch; a null removes its key. */
static Jsonb *
merge_metadata(Jsonb *metadata, Jsonb *patch)
{
	Datum		result = JsonbPGetDatum(json_merge(metadata, patch));
	JsonbIterator *it = JsonbIteratorInit(&patch->root);
	JsonbIteratorToken token;
	JsonbValue	v;
	char	   *key = NULL;

	while ((token = JsonbIteratorNext(&it, &v, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			key = pnstrdup(v.val.string.val, v.val.string.len);
		else if (token == WJB_VALUE && v.type == jbvNull)
			result = DirectFunctionCall2(jsonb_delete, result,
										 CStringGetTextDatum(key));
	}
	return DatumGetJsonbP(result);
}

/*
 * Merge the keys of an object into the metadata of a queue.  Returns the
 * metadata as it is now.
 */
Jsonb *
queue_update_metadata(const char *name, Jsonb *patch)
{
	Queue		queue;
	Jsonb	   *metadata;

	queue_open_existing(name, QUEUE_ALTER, &queue);
	metadata = merge_metadata(read_column(name, Anum_queue_metadata), patch);
	write_metadata(&queue, metadata, false);
	options_warn(patch);
	return metadata;
}

/*
 * Callback of claim_prepare_bury(): give a queue the dead letter queue that it
 * has by default, as its owner would, unless it has one by now.
 */
void
queue_require_dead_letters(const Queue *queue)
{
	Queue		locked;
	Oid			user;
	int			context;
	JsonbInState state = {0};

	/* An error restores the user at the rollback. */
	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(queue->owner,
						   context | SECURITY_LOCAL_USERID_CHANGE);
	queue_open_existing(queue->name, QUEUE_ALTER, &locked);

	/* Another session may have named one while we waited. */
	if (locked.dead_id == 0)
	{
		Queue		named = locked;

		options_set_default_dead_queue(&named, true);
		compat_push_jsonb(&state, WJB_BEGIN_OBJECT, NULL);
		json_add_text(&state, "_dead_letter_queue", named.dead_queue);
		compat_push_jsonb(&state, WJB_END_OBJECT, NULL);
		write_metadata(&locked,
					   merge_metadata(read_column(queue->name,
												  Anum_queue_metadata),
									  JsonbValueToJsonb(state.result)),
					   true);
	}
	SetUserIdAndSecContext(user, context);
}

/* Called in a subtransaction: do that without waiting for other sessions. */
static void
try_require_dead_letters(void *arg)
{
	int			nest_level = NewGUCNestLevel();

	settings_set("lock_timeout", TRY_TIMEOUT, false);
	queue_require_dead_letters(arg);
	AtEOXact_GUC(true, nest_level);
}

/*
 * Do the same at the end of a batch, for the worker: without waiting for other
 * sessions, and without an error.  The caller has locked the queue; *queue is
 * read again.  Returns false if it is not possible now, with a warning unless
 * only another session is in the way.
 */
bool
queue_try_require_dead_letters(Queue *queue)
{
	static int64 warned_at = 0;
	ErrorData  *error = xact_try(try_require_dead_letters, queue);

	if (error == NULL)
		return queue_find_as(queue->name, GetUserId(), QUEUE_CLAIM,
							 queue) == QUEUE_OK;
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED)
		ReThrowError(error);

	/*
	 * Whatever the queue, since a role can have many batches fail.  What
	 * failed has emptied the cache that queue_may_warn() needs.
	 */
	if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE &&
		clock_has_passed(&warned_at, WARN_INTERVAL))
		ereport(WARNING,
				(errcode(error->sqlerrcode),
				 errmsg("queue \"%s\" cannot get a dead letter queue: %s",
						queue->name, error->message),
				 errdetail("Messages that have waited for a batch in vain stay where they are."),
				 error->hint != NULL ? errhint("%s", error->hint) : 0));
	FreeErrorData(error);
	return false;
}

/* Pause or resume a queue.  Returns false if that changes nothing. */
bool
queue_set_paused(const char *name, bool paused)
{
	Queue		queue;

	queue_open_existing(name, QUEUE_ALTER, &queue);
	if (queue.paused == paused)
		return false;
	update_column(name, Anum_queue_paused, BoolGetDatum(paused), false);
	pending_record_queue(queue.id, TARGET_QUEUE, LANE_WITHOUT_KEY);
	database_record_change(CHANGE_HANDLERS);
	return true;
}

/* --- Privileges --- */

/* A privilege is to be revoked that was granted to no role by name. */
static void
not_granted_error(const char *name, QueuePrivilege privilege, Oid role)
{
	if (privilege == QUEUE_PRIVILEGE_ADMIN)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("privilege \"%s\" on queue \"%s\" was not granted to any role",
						queue_privileges[privilege].name, name),
				 errhint("The owner, members of queue_admin and superusers have it without a grant; queue_set_owner changes the owner.")));

	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("privilege \"%s\" on queue \"%s\" is not narrowed to named roles",
					queue_privileges[privilege].name, name),
			 errdetail("Role \"%s\" has it if it is a member of %s.",
					   GetUserNameFromId(role, true),
					   privilege == QUEUE_PRIVILEGE_PUSH ?
					   "queue_producer" : "queue_consumer"),
			 errhint("Grant it with queue_grant to the roles that are to have it; all others lose it then.")));
}

/* Grant a privilege on a queue to a role. */
void
queue_grant(const char *name, Oid role, QueuePrivilege privilege)
{
	Queue		queue;
	ArrayType  *roles;

	role_check(role);
	queue_open_existing(name, QUEUE_ALTER, &queue);
	roles = read_column(name, queue_privileges[privilege].column);
	update_column(name, queue_privileges[privilege].column,
				  PointerGetDatum(acl_change_roles(roles, role, true)), false);
	role_record(role);
}

/* Revoke a privilege that was granted to a role by name. */
void
queue_revoke(const char *name, Oid role, QueuePrivilege privilege)
{
	Queue		queue;
	ArrayType  *roles;
	ArrayType  *changed;
	Datum	   *unused;

	/* NULL: it was granted to no role by name. */
	queue_open_existing(name, QUEUE_ALTER, &queue);
	roles = read_column(name, queue_privileges[privilege].column);
	if (roles == NULL)
		not_granted_error(name, privilege, role);
	changed = acl_change_roles(roles, role, false);
	if (acl_roles(changed, &unused) == acl_roles(roles, &unused))
	{
		ereport(NOTICE,
				(errmsg("role \"%s\" is not one of those that were granted privilege \"%s\" on queue \"%s\"",
						GetUserNameFromId(role, true),
						queue_privileges[privilege].name, name),
				 errhint("The view queue_data.queue_roles shows those that were.")));
		return;
	}
	update_column(name, queue_privileges[privilege].column,
				  PointerGetDatum(changed), false);
	role_forget(role);
}

/* --- Owner --- */

/* Check that the current user may give the queue to the role. */
static void
check_set_owner(const Queue *queue, Oid role)
{
	if (!superuser() &&
		(!has_privs_of_role(GetUserId(), queue->owner) ||
		 !compat_may_act_as(GetUserId(), role)))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to change the owner of queue \"%s\"",
						queue->name),
				 errhint("The owner can do this if it can SET ROLE to the new owner; else a superuser can.")));
}

/*
 * Write the owner of a queue that the caller has locked, and of the dead
 * letter queues that were created for it.
 */
static void
write_owner(const Queue *queue, Oid role)
{
	ListCell   *cell;

	update_column(queue->name, Anum_queue_owner, ObjectIdGetDatum(role),
				  false);
	role_record(role);
	role_forget(queue->owner);
	foreach(cell, queue_referring(Anum_queue_source_id, queue->id))
	{
		Queue		dead;

		/* It may have been dropped since it was listed. */
		if (queue_by_id(lfirst_int(cell), &dead) &&
			queue_open_as(dead.name, dead.owner, QUEUE_ALTER, true,
						  &dead) == QUEUE_OK &&
			dead.id == lfirst_int(cell))
			write_owner(&dead, role);
	}
}

/* Give a queue another owner. */
void
queue_set_owner(const char *name, Oid role)
{
	Queue		queue;
	Queue		source;

	role_check(role);

	/* Opening the queue would ask for admin on it, which is not enough. */
	if (queue_find_as(name, GetUserId(), QUEUE_DESCRIBE, &queue) == QUEUE_OK)
		check_set_owner(&queue, role);
	queue_open_existing(name, QUEUE_ALTER, &queue);
	check_set_owner(&queue, role);
	if (role == queue.owner)
		return;
	if (queue.source_id != 0 && queue_by_id(queue.source_id, &source))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("queue \"%s\" has the owner of queue \"%s\", for whose dead letters it was created",
						name, source.name),
				 errhint("Hand queue \"%s\" over with queue_set_owner.",
						 source.name)));
	write_owner(&queue, role);
}
