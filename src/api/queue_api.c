/*-------------------------------------------------------------------------
 *
 * queue_api.c
 *	  The SQL functions on queues themselves.
 *
 * NOTES
 *	  Changes of a queue's row are serialized by its lock (registry.c); the
 *	  row is read again once the lock is held.  Every change ends with
 *	  queue_invalidate, which tells the other sessions.
 *
 * src/api/queue_api.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "catalog/indexing.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/tuplestore.h"

#include "api/queue_api.h"
#include "catalog/relations.h"
#include "catalog/tables.h"
#include "jobs/handler.h"
#include "queue/acl.h"
#include "queue/counters.h"
#include "queue/dead_letter_queue.h"
#include "queue/dedup.h"
#include "queue/options.h"
#include "queue/registry.h"
#include "queue/role.h"
#include "queue/root_job.h"
#include "shmem/database_state.h"
#include "storage/message.h"
#include "storage/message_scan.h"
#include "storage/pending.h"
#include "storage/segment.h"
#include "util/args.h"
#include "util/compat.h"
#include "util/settings.h"

#define Natts_queue_row		4

PG_FUNCTION_INFO_V1(sql_queue_create);
PG_FUNCTION_INFO_V1(sql_queue_set_metadata);
PG_FUNCTION_INFO_V1(sql_queue_update);
PG_FUNCTION_INFO_V1(sql_queue_exists);
PG_FUNCTION_INFO_V1(sql_queue_drop);
PG_FUNCTION_INFO_V1(sql_queue_get);
PG_FUNCTION_INFO_V1(sql_queue_list);
PG_FUNCTION_INFO_V1(sql_queue_purge);
PG_FUNCTION_INFO_V1(sql_queue_pause);
PG_FUNCTION_INFO_V1(sql_queue_resume);
PG_FUNCTION_INFO_V1(sql_queue_grant);
PG_FUNCTION_INFO_V1(sql_queue_revoke);
PG_FUNCTION_INFO_V1(sql_queue_set_owner);

static HeapTuple fetch_locked(Relation rel, const char *name);
static void change(const char *name, int attribute, Datum value, bool isnull);
static Datum get_attribute(const char *name, int attribute, bool *isnull);
static Jsonb *merge(Jsonb *metadata, Jsonb *patch);
static Jsonb *write_metadata(const char *name, Jsonb *metadata,
							 const Queue *queue);
static void put_queue(ReturnSetInfo *rsinfo, TupleDesc desc, HeapTuple tuple);
static void attributes_difference(const char *name, Jsonb *metadata);
static bool create(const char *name, Jsonb *metadata);
static int64 delete_messages(int32 queue_id);
static void check_role(Oid role);
pg_noreturn static void no_list(const char *name, int attribute, Oid role);
static bool is_new_role(Datum *roles, int n, Oid role);
static void hand_over(const Queue *queue, Oid role);
static int	privilege_attribute(FunctionCallInfo fcinfo, int arg);
static void change_roles(FunctionCallInfo fcinfo, bool grant);

/* The row of a queue that the caller has locked. */
static HeapTuple
fetch_locked(Relation rel, const char *name)
{
	HeapTuple	tuple = queue_table_fetch(rel, name);

	if (!HeapTupleIsValid(tuple))
		queue_missing_error(name);
	return tuple;
}

/* Write one attribute of a queue that the caller has locked. */
static void
change(const char *name, int attribute, Datum value, bool isnull)
{
	Relation	rel = catalog_open_queues(RowExclusiveLock);
	HeapTuple	tuple = fetch_locked(rel, name);
	Datum		values[Natts_queue] = {0};
	bool		nulls[Natts_queue] = {false};
	bool		replace[Natts_queue] = {false};
	HeapTuple	changed;

	values[attribute - 1] = value;
	nulls[attribute - 1] = isnull;
	replace[attribute - 1] = true;
	changed = heap_modify_tuple(tuple, RelationGetDescr(rel), values, nulls,
								replace);
	CatalogTupleUpdate(rel, &tuple->t_self, changed);
	table_close(rel, NoLock);
	queue_invalidate();
}

/* Read one attribute of a queue that the caller has locked; a copy. */
static Datum
get_attribute(const char *name, int attribute, bool *isnull)
{
	Relation	rel = catalog_open_queues(AccessShareLock);
	HeapTuple	tuple = fetch_locked(rel, name);
	Datum		value = heap_getattr(tuple, attribute, RelationGetDescr(rel),
									 isnull);

	if (!*isnull)
		value = PointerGetDatum(PG_DETOAST_DATUM_COPY(value));
	table_close(rel, AccessShareLock);
	return value;
}

/* Write the metadata of a queue that the caller has locked. */
static Jsonb *
write_metadata(const char *name, Jsonb *metadata, const Queue *queue)
{
	int32		dead_id;

	options_check(name, metadata);
	dead_id = dead_letter_queue_require(queue, metadata);
	change(name, Anum_queue_metadata, JsonbPGetDatum(metadata), false);
	if (dead_id != queue->dead_id)
		change(name, Anum_queue_dead_queue_id, Int32GetDatum(dead_id),
			   dead_id == 0);
	return metadata;
}

/* A queue was to be created that exists: has it the metadata that was given? */
static void
attributes_difference(const char *name, Jsonb *metadata)
{
	Relation	rel = catalog_open_queues(AccessShareLock);
	HeapTuple	tuple = queue_table_fetch(rel, name);
	bool		isnull;
	bool		differs = false;

	if (HeapTupleIsValid(tuple))
	{
		Jsonb	   *old = DatumGetJsonbP(heap_getattr(tuple,
													  Anum_queue_metadata,
													  RelationGetDescr(rel),
													  &isnull));

		differs = compareJsonbContainers(&old->root, &metadata->root) != 0;
	}
	table_close(rel, AccessShareLock);
	if (differs)
		ereport(NOTICE,
				(errmsg("queue \"%s\" exists with different metadata, which was left unchanged",
						name),
				 errhint("Change metadata with queue_update or queue_set_metadata.")));
}

/* Create a queue of the current user.  False: another session has. */
static bool
create(const char *name, Jsonb *metadata)
{
	Queue		queue;

	if (!queue_insert(name, metadata, GetUserId(), 0))
		return false;

	/* It needs no lock: no other session sees it before we commit. */
	queue_open_existing(name, QUEUE_DESCRIBE, &queue);
	if (queue.dead_queue[0] != '\0')
		change(name, Anum_queue_dead_queue_id,
			   Int32GetDatum(dead_letter_queue_require(&queue, metadata)), false);
	return true;
}

/*
 * queue_create(q text, metadata jsonb = '{}') returns boolean
 *
 * Creates a queue, which belongs to the caller.  metadata: an object, at most
 * 65,536 bytes as text, with reserved keys (see options.c) and others of the
 * user's own.  The dead letter queue that it requires is created with it.
 *
 * Result: true: created; false: it existed and was left alone, with a NOTICE
 * if its metadata is different.
 * Errors: 22004 and 22023 name or metadata, 54000 metadata is too large, 42501
 * neither queue_producer nor queue_admin, no right to push to the dead letter
 * queue, or it belongs to another role.
 * Source: Zaqar, create queue.
 */
Datum
sql_queue_create(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	Jsonb	   *metadata;
	Queue		queue;

	queue_prevent("queue_create()");
	if (PG_ARGISNULL(1))
		arg_missing("metadata");
	metadata = PG_GETARG_JSONB_P(1);
	acl_check_create();
	options_check(name, metadata);
	if (!queue_open(name, QUEUE_DESCRIBE, &queue) && create(name, metadata))
	{
		options_warn(metadata);
		PG_RETURN_BOOL(true);
	}
	attributes_difference(name, metadata);
	PG_RETURN_BOOL(false);
}

/* The patch's keys over those of the metadata; a null removes one. */
static Jsonb *
merge(Jsonb *metadata, Jsonb *patch)
{
	Jsonb	   *merged;
	JsonbIterator *it;
	JsonbValue	v;
	JsonbIteratorToken token;
	Datum		result;
	char	   *key = NULL;

	merged = DatumGetJsonbP(DirectFunctionCall2(jsonb_concat,
												JsonbPGetDatum(metadata),
												JsonbPGetDatum(patch)));
	result = JsonbPGetDatum(merged);
	it = JsonbIteratorInit(&patch->root);
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
 * queue_set_metadata(q text, metadata jsonb) returns jsonb
 *
 * Replaces the metadata of a queue.
 *
 * Result: the metadata as it now is.
 * Errors: 42704 unknown queue, 22004 and 22023 metadata, 54000 it is too
 * large, 42501 not the owner; no right to push to the dead letter queue, or it
 * belongs to another role.
 * Source: Zaqar, set queue metadata.
 */
Datum
sql_queue_set_metadata(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	Queue		queue;

	queue_prevent("queue_set_metadata()");
	if (PG_ARGISNULL(1))
		arg_missing("metadata");
	queue_open_existing(name, QUEUE_ALTER, &queue);
	write_metadata(name, PG_GETARG_JSONB_P(1), &queue);
	options_warn(PG_GETARG_JSONB_P(1));
	PG_RETURN_JSONB_P(PG_GETARG_JSONB_P(1));
}

/*
 * queue_update(q text, patch jsonb) returns jsonb
 *
 * Merges the keys of patch into the metadata of a queue; a null removes its
 * key.
 *
 * Result and errors: as queue_set_metadata.
 * Source: Zaqar, update queue.
 */
Datum
sql_queue_update(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	Jsonb	   *patch;
	Jsonb	   *metadata;
	Queue		queue;
	bool		isnull;

	queue_prevent("queue_update()");
	if (PG_ARGISNULL(1))
		arg_missing("patch");
	patch = PG_GETARG_JSONB_P(1);
	if (!JB_ROOT_IS_OBJECT(patch))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parameter \"%s\" must be a JSON object", "patch"),
				 errhint("Give an object such as {\"key\": \"value\"}.")));
	queue_open_existing(name, QUEUE_ALTER, &queue);
	metadata = DatumGetJsonbP(get_attribute(name, Anum_queue_metadata,
											&isnull));
	metadata = write_metadata(name, merge(metadata, patch), &queue);
	options_warn(patch);
	PG_RETURN_JSONB_P(metadata);
}

/*
 * queue_exists(q text) returns boolean
 *
 * Is there such a queue in the session's project?
 * Errors: 22004 and 22023 name.
 * Source: Zaqar, check queue existence.
 */
Datum
sql_queue_exists(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	Queue		queue;

	PG_RETURN_BOOL(queue_open(name, QUEUE_DESCRIBE, &queue));
}

/* One row of queue_get and queue_list */
static void
put_queue(ReturnSetInfo *rsinfo, TupleDesc desc, HeapTuple tuple)
{
	Datum		values[Natts_queue_row];
	bool		isnull[Natts_queue_row];

	values[0] = heap_getattr(tuple, Anum_queue_name, desc, &isnull[0]);
	values[1] = heap_getattr(tuple, Anum_queue_metadata, desc, &isnull[1]);
	values[2] = heap_getattr(tuple, Anum_queue_created_at, desc, &isnull[2]);
	values[3] = heap_getattr(tuple, Anum_queue_paused, desc, &isnull[3]);
	values[1] = PointerGetDatum(PG_DETOAST_DATUM(values[1]));
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
}

/*
 * queue_get(q text)
 * returns table (name text, metadata jsonb, created_at timestamptz,
 *				  paused boolean)
 *
 * One row that describes the queue; no row when it is unknown.
 * Errors: 22004 and 22023 name.
 * Source: Zaqar, get queue metadata.
 */
Datum
sql_queue_get(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	Relation	rel;
	HeapTuple	tuple;

	InitMaterializedSRF(fcinfo, 0);
	rel = catalog_open_queues(AccessShareLock);
	tuple = queue_table_fetch(rel, name);
	if (HeapTupleIsValid(tuple))
		put_queue((ReturnSetInfo *) fcinfo->resultinfo, RelationGetDescr(rel),
				  tuple);
	table_close(rel, AccessShareLock);
	return (Datum) 0;
}

/*
 * queue_list(marker text = NULL, "limit" int = 10, pattern text = NULL)
 * returns table: as queue_get
 *
 * The queues of the session's project by name, after the marker, at most
 * limit (1 to 10000), those whose name matches the regular expression.
 *
 * Errors: 22004 and 22023 limit, 2201B pattern.
 * Source: Zaqar, list queues.
 */
Datum
sql_queue_list(PG_FUNCTION_ARGS)
{
	int			limit;
	Relation	rel;
	Relation	index;
	Snapshot	snapshot;
	SysScanDesc scan;
	ScanKeyData keys[2];
	HeapTuple	tuple;

	if (PG_ARGISNULL(1))
		arg_missing("limit");
	limit = arg_check_list_limit(PG_GETARG_INT32(1));
	InitMaterializedSRF(fcinfo, 0);

	rel = catalog_open_queues(AccessShareLock);
	index = index_open(catalog_queue_name_index_oid(), AccessShareLock);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyInit(&keys[0], Anum_queue_project, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(setting_project));
	ScanKeyInit(&keys[1], Anum_queue_name, BTGreaterStrategyNumber, F_TEXT_GT,
				PG_ARGISNULL(0) ? CStringGetTextDatum("") :
				PG_GETARG_DATUM(0));
	scan = systable_beginscan_ordered(rel, index, snapshot, 2, keys);
	while (limit > 0 &&
		   (tuple = systable_getnext_ordered(scan, ForwardScanDirection)) != NULL)
	{
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		if (!PG_ARGISNULL(2) &&
			!DatumGetBool(DirectFunctionCall2Coll(textregexeq,
												  C_COLLATION_OID,
												  heap_getattr(tuple, Anum_queue_name,
															   RelationGetDescr(rel),
															   &isnull),
												  PG_GETARG_DATUM(2))))
			continue;
		put_queue((ReturnSetInfo *) fcinfo->resultinfo, RelationGetDescr(rel),
				  tuple);
		limit--;
	}
	systable_endscan_ordered(scan);
	UnregisterSnapshot(snapshot);
	index_close(index, AccessShareLock);
	table_close(rel, AccessShareLock);
	return (Datum) 0;
}

/*
 * Delete all messages of a queue from which everybody else is excluded.
 * Returns the number of those that had not expired.
 */
static int64
delete_messages(int32 queue_id)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		n = 0;
	bool		again;

	do
	{
		MessageScan *scan;
		ScanRow		row;

		again = false;
		segment_push_snapshot();
		scan = message_scan_begin_list(queue_id, PG_INT64_MIN, RowExclusiveLock,
							   true);
		while (message_scan_next(scan, &row))
		{
			/* One that the worker has moved is found in its new place. */
			if (message_delete(row.table, row.tuple) != TM_Ok)
				again = true;
			else if (!message_is_expired(row.form, now))
				n++;
		}
		message_scan_end(scan);
		PopActiveSnapshot();
		CommandCounterIncrement();
	} while (again);
	dedup_drop_all(queue_id);
	return n;
}

/*
 * queue_purge(q text) returns bigint
 *
 * Removes all messages of a queue, claimed and delayed ones too.  Waits for
 * the transactions that push to it or claim from it.
 *
 * Result: their number; 0 when the queue is unknown.
 * Errors: 22004 and 22023 name, 42501 not the owner, 55P03 lock_timeout.
 * Source: Zaqar, purge queue.
 */
Datum
sql_queue_purge(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	Queue		queue;

	queue_prevent("queue_purge()");
	if (!queue_open(name, QUEUE_PURGE, &queue))
		PG_RETURN_INT64(0);
	PG_RETURN_INT64(delete_messages(queue.id));
}

/*
 * queue_drop(q text) returns boolean
 *
 * Drops a queue and its messages.  Waits for the transactions that push to it
 * or claim from it.  Its dead letter queue stays.
 *
 * Result: true: dropped; false: there was none.
 * Errors: 22004 and 22023 name, 42501 not the owner, 2BP01 another queue sends
 * dead letters to it, 55P03 lock_timeout.
 * Source: Zaqar, delete queue.
 */
Datum
sql_queue_drop(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	Queue		queue;
	Relation	rel;
	HeapTuple	tuple;
	List	   *roles;
	ListCell   *cell;

	queue_prevent("queue_drop()");
	if (!queue_open(name, QUEUE_DROP, &queue))
		PG_RETURN_BOOL(false);
	dead_letter_queue_check_drop(&queue);
	delete_messages(queue.id);
	root_job_drop_all(queue.id);
	counters_drop(queue.id);
	handler_forget(queue.id);

	rel = catalog_open_queues(RowExclusiveLock);
	tuple = fetch_locked(rel, name);
	roles = role_all_of(rel, tuple);
	CatalogTupleDelete(rel, &tuple->t_self);
	table_close(rel, NoLock);
	queue_invalidate();
	foreach(cell, roles)
		role_forget(lfirst_oid(cell));
	PG_RETURN_BOOL(true);
}

/* True: that is new. */
bool
queue_set_paused(const char *name, bool paused)
{
	Queue		queue;

	queue_open_existing(name, QUEUE_ALTER, &queue);
	if (queue.paused == paused)
		return false;
	change(name, Anum_queue_paused, BoolGetDatum(paused), false);
	pending_record_queue(queue.id);
	database_record_change(CHANGE_HANDLERS);
	return true;
}

/*
 * queue_pause(q text) returns boolean
 *
 * A paused queue takes pushes and gives out no claims; those that are held
 * go on.
 *
 * Result: true: paused now; false: it was already.
 * Errors: 42704 unknown queue, 22004 and 22023 name, 42501 not the owner.
 */
Datum
sql_queue_pause(PG_FUNCTION_ARGS)
{
	queue_prevent("queue_pause()");
	PG_RETURN_BOOL(queue_set_paused(queue_name_arg(fcinfo, 0, "q"),
									true));
}

/*
 * queue_resume(q text) returns boolean
 *
 * Ends the pause.  Result: true: ended now; false: it was not paused.
 * Errors: as queue_pause.
 */
Datum
sql_queue_resume(PG_FUNCTION_ARGS)
{
	queue_prevent("queue_resume()");
	PG_RETURN_BOOL(queue_set_paused(queue_name_arg(fcinfo, 0, "q"),
									false));
}

/* Which list of roles a privilege is kept in. */
static int
privilege_attribute(FunctionCallInfo fcinfo, int arg)
{
	char	   *privilege;

	if (PG_ARGISNULL(arg))
		arg_missing("privilege");
	privilege = text_to_cstring(PG_GETARG_TEXT_PP(arg));
	if (strcmp(privilege, "push") == 0)
		return Anum_queue_push_roles;
	if (strcmp(privilege, "claim") == 0)
		return Anum_queue_claim_roles;
	if (strcmp(privilege, "admin") == 0)
		return Anum_queue_admin_roles;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("parameter \"%s\" is not a privilege on queues: \"%s\"",
					"privilege", privilege),
			 errhint("The privileges are push, claim and admin.")));
}

static void
check_role(Oid role)
{
	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("role with OID %u does not exist", role),
				 errhint("Name a role that exists.")));
}

/* A privilege is to be revoked that was granted to no role by name. */
static void
no_list(const char *name, int attribute, Oid role)
{
	bool		push = attribute == Anum_queue_push_roles;

	if (attribute == Anum_queue_admin_roles)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("privilege \"%s\" on queue \"%s\" was not granted to any role",
						"admin", name),
				 errhint("The owner, members of queue_admin and superusers have it without a grant; queue_set_owner changes the owner.")));
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("privilege \"%s\" on queue \"%s\" is not narrowed to named roles",
					push ? "push" : "claim", name),
			 errdetail("Role \"%s\" has it if it is a member of %s.",
					   GetUserNameFromId(role, true),
					   push ? "queue_producer" : "queue_consumer"),
			 errhint("Grant it with queue_grant to the roles that are to have it; all others lose it then.")));
}

static bool
is_new_role(Datum *roles, int n, Oid role)
{
	for (int i = 0; i < n; i++)
		if (DatumGetObjectId(roles[i]) == role)
			return false;
	return true;
}

/* Put a role on one of the lists, or take it off. */
static void
change_roles(FunctionCallInfo fcinfo, bool grant)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	int			attribute;
	Oid			role;
	Queue		queue;
	bool		isnull;
	Datum		array;
	Datum	   *roles = NULL;
	Datum	   *changed;
	int			n = 0;
	int			kept = 0;

	if (PG_ARGISNULL(1))
		arg_missing("role");
	role = PG_GETARG_OID(1);
	attribute = privilege_attribute(fcinfo, 2);
	if (grant)
		check_role(role);
	queue_open_existing(name, QUEUE_ALTER, &queue);

	array = get_attribute(name, attribute, &isnull);
	if (!isnull)
		deconstruct_array(DatumGetArrayTypeP(array), REGROLEOID, sizeof(Oid),
						  true, TYPALIGN_INT, &roles, NULL, &n);
	else if (!grant)
		no_list(name, attribute, role);
	if (!grant && is_new_role(roles, n, role))
	{
		ereport(NOTICE,
				(errmsg("role \"%s\" is not one of those that were granted privilege \"%s\" on queue \"%s\"",
						GetUserNameFromId(role, true),
						text_to_cstring(PG_GETARG_TEXT_PP(2)), name)));
		return;
	}

	changed = palloc((n + 1) * sizeof(Datum));
	for (int i = 0; i < n; i++)
		if (DatumGetObjectId(roles[i]) != role)
			changed[kept++] = roles[i];
	if (grant)
		changed[kept++] = ObjectIdGetDatum(role);
	change(name, attribute,
		   PointerGetDatum(construct_array(changed, kept, REGROLEOID,
										   sizeof(Oid), true, TYPALIGN_INT)),
		   false);
	if (grant)
		role_record(role);
	else
		role_forget(role);
}

/*
 * queue_grant(q text, role regrole, privilege text) returns void
 *
 * Narrows a privilege, 'push' or 'claim', on the queue to the roles named so
 * far and this one: others no longer have it, whatever they are members of.
 * With 'admin' the role may do all with the queue, as its owner.
 *
 * Errors: 42704 unknown queue, 22004 and 22023 arguments, 42501 not the owner.
 */
Datum
sql_queue_grant(PG_FUNCTION_ARGS)
{
	queue_prevent("queue_grant()");
	change_roles(fcinfo, true);
	PG_RETURN_VOID();
}

/*
 * queue_revoke(q text, role regrole, privilege text) returns void
 *
 * Removes a role from those that were granted the privilege.  When none is
 * left, the privilege stays narrowed: then only the owner and the admins have
 * it.
 *
 * Errors: as queue_grant; 55000 the privilege was granted to no role by name,
 * so that there is nothing to revoke.
 */
Datum
sql_queue_revoke(PG_FUNCTION_ARGS)
{
	queue_prevent("queue_revoke()");
	change_roles(fcinfo, false);
	PG_RETURN_VOID();
}

/* Give a queue that the caller has locked, and those created for it. */
static void
hand_over(const Queue *queue, Oid role)
{
	ListCell   *cell;

	change(queue->name, Anum_queue_owner, ObjectIdGetDatum(role), false);
	role_record(role);
	role_forget(queue->owner);
	foreach(cell, queue_referring(Anum_queue_source_id, queue->id))
	{
		Queue		dead;

		if (queue_by_id(lfirst_int(cell), &dead) &&
			queue_open_as(dead.name, dead.owner, QUEUE_ALTER, true,
						  &dead) == QUEUE_OK &&
			dead.id == lfirst_int(cell))
			hand_over(&dead, role);
	}
}

/*
 * queue_set_owner(q text, role regrole) returns void
 *
 * Gives a queue another owner, and with it the dead letter queues that were
 * created for it.  The caller must be the owner, or a member of that role, and
 * be able to SET ROLE to the new owner; or a superuser.
 *
 * Errors: 42704 unknown queue or role, 22004 and 22023 arguments, 42501 not
 * the owner or not a member of the new one, 55000 it goes with the queue that
 * it was created for.
 */
Datum
sql_queue_set_owner(PG_FUNCTION_ARGS)
{
	const char *name = queue_name_arg(fcinfo, 0, "q");
	Oid			role;
	Queue		queue;
	Queue		source;

	queue_prevent("queue_set_owner()");
	if (PG_ARGISNULL(1))
		arg_missing("role");
	role = PG_GETARG_OID(1);
	check_role(role);
	queue_open_existing(name, QUEUE_ALTER, &queue);
	if (!superuser() &&
		(!has_privs_of_role(GetUserId(), queue.owner) ||
		 !compat_may_act_as(GetUserId(), role)))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to change the owner of queue \"%s\"",
						name),
				 errhint("The owner can do this if it can SET ROLE to the new owner; else a superuser can.")));
	if (role == queue.owner)
		PG_RETURN_VOID();
	if (queue.source_id != 0 && queue_by_id(queue.source_id, &source))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("queue \"%s\" has the owner of queue \"%s\", for whose dead letters it was created",
						name, source.name),
				 errhint("Hand queue \"%s\" over.", source.name)));
	hand_over(&queue, role);
	PG_RETURN_VOID();
}
