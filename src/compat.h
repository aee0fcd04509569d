/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  What differs between the supported versions of PostgreSQL, 13 to 18.
 *
 * NOTES
 *	  No other file looks at PG_VERSION_NUM.  Each wrapper has one meaning,
 *	  that of the newest version where the versions differ.
 *
 * src/compat.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_COMPAT_H
#define QUEUE_COMPAT_H

#include "access/genam.h"
#include "access/tableam.h"
#include "catalog/catalog.h"
#include "catalog/pg_database.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "commands/tablecmds.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "pgstat.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/guc.h"
#if PG_VERSION_NUM >= 140000
#include "utils/backend_status.h"
#endif
#include "utils/rel.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

#if PG_VERSION_NUM < 140000
#define F_TIMESTAMPTZ_GE F_TIMESTAMP_GE
#define F_TIMESTAMPTZ_LE F_TIMESTAMP_LE
#define int64_to_numeric(value) \
	DatumGetNumeric(DirectFunctionCall1(int8_numeric, Int64GetDatum(value)))
#endif

/* Before 18 this was an attribute behind the declaration. */
#ifndef pg_noreturn
#define pg_noreturn pg_attribute_noreturn()
#endif

/* Before 14 keys of hash tables were strings unless something else was said. */
#ifndef HASH_STRINGS
#define HASH_STRINGS 0
#endif

/* The local number of the transaction that this backend runs. */
static inline LocalTransactionId
my_local_xid(void)
{
#if PG_VERSION_NUM >= 170000
	return MyProc->vxid.lxid;
#else
	return MyProc->lxid;
#endif
}

/*
 * Insert one entry into a btree index.  A btree does not look at the
 * IndexInfo, so the caller need not build one for each row.
 */
static inline bool
compat_index_insert(Relation index, Datum *values, bool *isnull,
					ItemPointer tid, Relation heap, IndexUniqueCheck check,
					IndexInfo *info)
{
#if PG_VERSION_NUM >= 140000
	return index_insert(index, values, isnull, tid, heap, check, false, info);
#else
	return index_insert(index, values, isnull, tid, heap, check, info);
#endif
}

static inline IndexScanDesc
compat_index_beginscan(Relation heap, Relation index, Snapshot snapshot,
					   int nkeys)
{
#if PG_VERSION_NUM >= 180000
	return index_beginscan(heap, index, snapshot, NULL, nkeys, 0);
#else
	return index_beginscan(heap, index, snapshot, nkeys, 0);
#endif
}

/* Update a row; *new_entries tells whether the indexes need new entries. */
static inline TM_Result
compat_table_tuple_update(Relation rel, ItemPointer tid, TupleTableSlot *slot,
						  CommandId cid, Snapshot snapshot,
						  TM_FailureData *failure, bool *new_entries)
{
	LockTupleMode lockmode;
	TM_Result	result;
#if PG_VERSION_NUM >= 160000
	TU_UpdateIndexes update_indexes = TU_None;

	result = table_tuple_update(rel, tid, slot, cid, snapshot,
								InvalidSnapshot, true, failure,
								&lockmode, &update_indexes);
	*new_entries = (update_indexes == TU_All);
#else
	result = table_tuple_update(rel, tid, slot, cid, snapshot,
								InvalidSnapshot, true, failure,
								&lockmode, new_entries);
#endif
	return result;
}

/*
 * Make the result of a set-returning function a tuplestore: of rows, or of
 * single values.
 */
static inline void
compat_init_srf(FunctionCallInfo fcinfo, bool rows)
{
#if PG_VERSION_NUM >= 150000
	InitMaterializedSRF(fcinfo, rows ? 0 : MAT_SRF_USE_EXPECTED_DESC);
#else
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	MemoryContext old;
	TupleDesc	tupdesc;

	if (rsinfo == NULL || !IsA(rsinfo, ReturnSetInfo) ||
		!(rsinfo->allowedModes & SFRM_Materialize))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("set-valued function called in context that cannot accept a set")));

	old = MemoryContextSwitchTo(rsinfo->econtext->ecxt_per_query_memory);
	if (!rows)
		tupdesc = rsinfo->expectedDesc;
	else if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	rsinfo->returnMode = SFRM_Materialize;
	rsinfo->setResult =
		tuplestore_begin_heap((rsinfo->allowedModes & SFRM_Materialize_Random) != 0,
							  false, work_mem);
	rsinfo->setDesc = CreateTupleDescCopy(tupdesc);
	MemoryContextSwitchTo(old);
#endif
}

/* No other setting may begin with our prefix. */
static inline void
compat_reserve_guc_prefix(const char *prefix)
{
#if PG_VERSION_NUM >= 150000
	MarkGUCPrefixReserved(prefix);
#else
	EmitWarningsOnPlaceholders(prefix);
#endif
}

/* The number of this process in ProcGlobal->allProcs. */
static inline int
my_proc_number(void)
{
#if PG_VERSION_NUM >= 170000
	return MyProcNumber;
#else
	return MyProc->pgprocno;
#endif
}

/* Commit, from inside of CALL; the next transaction has begun then. */
static inline void
compat_spi_commit(void)
{
	SPI_commit();
#if PG_VERSION_NUM < 150000
	SPI_start_transaction();
#endif
}

/* A wait event of this name, where extensions can have them. */
static inline uint32
compat_wait_event(const char *name)
{
#if PG_VERSION_NUM >= 170000
	return WaitEventExtensionNew(name);
#else
	return PG_WAIT_EXTENSION;
#endif
}

/*
 * Have a timeout after so many milliseconds; where timeouts can repeat
 * themselves, again and again.
 */
static inline void
compat_enable_timeout_every(TimeoutId id, int after_ms, int every_ms)
{
#if PG_VERSION_NUM >= 150000
	enable_timeout_every(id,
						 TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													 after_ms), every_ms);
#else
	enable_timeout_after(id, after_ms);
#endif
}

/* What a ProcessUtility hook is called with, and hands on. */
#if PG_VERSION_NUM >= 140000
#define COMPAT_UTILITY_PARAMETERS \
	PlannedStmt *pstmt, const char *query, bool read_only_tree, \
	ProcessUtilityContext context, ParamListInfo params, \
	QueryEnvironment *environment, DestReceiver *dest, QueryCompletion *qc
#define COMPAT_UTILITY_ARGUMENTS \
	pstmt, query, read_only_tree, context, params, environment, dest, qc
#else
#define COMPAT_UTILITY_PARAMETERS \
	PlannedStmt *pstmt, const char *query, ProcessUtilityContext context, \
	ParamListInfo params, QueryEnvironment *environment, \
	DestReceiver *dest, QueryCompletion *qc
#define COMPAT_UTILITY_ARGUMENTS \
	pstmt, query, context, params, environment, dest, qc
#endif

/* Before 16 there was one for each kind of object; those that we ask for. */
#if PG_VERSION_NUM < 160000
static inline AclResult
object_aclcheck(Oid class_id, Oid object, Oid role, AclMode mode)
{
	if (class_id == NamespaceRelationId)
		return pg_namespace_aclcheck(object, role, mode);
	Assert(class_id == ProcedureRelationId);
	return pg_proc_aclcheck(object, role, mode);
}
#endif

/* May the member do SET ROLE to the role? */
static inline bool
compat_may_act_as(Oid member, Oid role)
{
#if PG_VERSION_NUM >= 160000
	return member_can_set_role(member, role);
#else
	return is_member_of_role(member, role);
#endif
}

/* Does the current user own the database? */
static inline bool
compat_owns_database(Oid database)
{
#if PG_VERSION_NUM >= 160000
	return object_ownercheck(DatabaseRelationId, database, GetUserId());
#else
	return pg_database_ownercheck(database, GetUserId());
#endif
}

/* Empty a table that the caller has opened and locked against all others. */
static inline void
compat_truncate(Relation rel)
{
	List	   *oids = list_make1_oid(RelationGetRelid(rel));
	List	   *logged = RelationIsLogicallyLogged(rel) ? oids : NIL;

#if PG_VERSION_NUM >= 160000
	ExecuteTruncateGuts(list_make1(rel), oids, logged, DROP_RESTRICT, false,
						false);
#else
	ExecuteTruncateGuts(list_make1(rel), oids, logged, DROP_RESTRICT, false);
#endif
}

/* Is a session with this application_name connected to the database? */
static inline bool
compat_has_session(Oid database, const char *application)
{
	int			n;

	pgstat_clear_snapshot();
	n = pgstat_fetch_stat_numbackends();
	for (int i = 1; i <= n; i++)
	{
#if PG_VERSION_NUM >= 160000
		LocalPgBackendStatus *local = pgstat_get_local_beentry_by_index(i);
#else
		LocalPgBackendStatus *local = pgstat_fetch_stat_local_beentry(i);
#endif
		PgBackendStatus *entry = local == NULL ? NULL :
			&local->backendStatus;

		if (entry != NULL && entry->st_databaseid == database &&
			entry->st_appname != NULL &&
			strcmp(entry->st_appname, application) == 0)
			return true;
	}
	return false;
}

/*
 * Have a function request shared memory, when it is time: since 15 after all
 * libraries are loaded.
 */
#if PG_VERSION_NUM >= 150000
static shmem_request_hook_type compat_previous_request = NULL;
static void (*compat_request) (void) = NULL;

static inline void
compat_request_chained(void)
{
	if (compat_previous_request != NULL)
		compat_previous_request();
	compat_request();
}
#endif

static inline void
compat_request_shmem(void (*request) (void))
{
#if PG_VERSION_NUM >= 150000
	compat_request = request;
	compat_previous_request = shmem_request_hook;
	shmem_request_hook = compat_request_chained;
#else
	request();
#endif
}

#endif							/* QUEUE_COMPAT_H */
