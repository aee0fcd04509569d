/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  What differs between the supported versions of PostgreSQL, 15 to 19.
 *
 * NOTES
 *	  No other file looks at PG_VERSION_NUM.  Each wrapper has one meaning,
 *	  that of the newest version where the versions differ.
 *
 * src/util/compat.h
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
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"
#include "utils/jsonb.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif
#if PG_VERSION_NUM >= 170000
#include "storage/dsm_registry.h"
#endif
/* Where get_database_name() is declared */
#if PG_VERSION_NUM >= 190000
#include "utils/lsyscache.h"
#else
#include "commands/dbcommands.h"
#endif

/*
 * The library is compiled with hidden visibility.  Before 16 PGDLLEXPORT was
 * empty here, and PG_FUNCTION_INFO_V1 did not export the function itself.
 */
#if PG_VERSION_NUM < 160000
#undef PGDLLEXPORT
#define PGDLLEXPORT __attribute__((visibility("default")))

#undef PG_FUNCTION_INFO_V1
#define PG_FUNCTION_INFO_V1(funcname) \
extern PGDLLEXPORT Datum funcname(PG_FUNCTION_ARGS); \
extern PGDLLEXPORT const Pg_finfo_record *CppConcat(pg_finfo_,funcname)(void); \
const Pg_finfo_record * \
CppConcat(pg_finfo_,funcname) (void) \
{ \
	static const Pg_finfo_record my_finfo = { 1 }; \
	return &my_finfo; \
} \
extern int no_such_variable
#endif

/* Before 18 this was an attribute behind the declaration. */
#ifndef pg_noreturn
#define pg_noreturn pg_attribute_noreturn()
#endif

/*
 * Returns whether the client of this session is still connected.
 * libpq/libpq.h, which declares the function, includes header files of the
 * libraries that the server was built with, and these may not be installed.
 */
static inline bool
compat_client_is_connected(void)
{
	extern bool pq_check_connection(void);

	return MyProcPort == NULL || pq_check_connection();
}

/* Before 19 this was a comment. */
#ifndef pg_fallthrough
#define pg_fallthrough __attribute__((fallthrough))
#endif

/* Before 19 signal handlers had the type of the operating system. */
#ifndef PG_SIG_IGN
#define PG_SIG_IGN SIG_IGN
#endif

/* The local id of the transaction that this process runs */
static inline LocalTransactionId
my_local_xid(void)
{
#if PG_VERSION_NUM >= 170000
	return MyProc->vxid.lxid;
#else
	return MyProc->lxid;
#endif
}

/* Begin to scan the entries of an index with these keys. */
static inline IndexScanDesc
compat_index_beginscan(Relation heap, Relation index, Snapshot snapshot,
					   ScanKey keys, int nkeys)
{
#if PG_VERSION_NUM >= 190000
	IndexScanDesc scan = index_beginscan(heap, index, snapshot, NULL, nkeys,
										 0, 0);
#elif PG_VERSION_NUM >= 180000
	IndexScanDesc scan = index_beginscan(heap, index, snapshot, NULL, nkeys,
										 0);
#else
	IndexScanDesc scan = index_beginscan(heap, index, snapshot, nkeys, 0);
#endif

	index_rescan(scan, keys, nkeys, NULL, 0);
	return scan;
}

static inline TM_Result
compat_table_tuple_delete(Relation rel, ItemPointer tid, CommandId cid,
						  Snapshot snapshot, bool wait,
						  TM_FailureData *failure)
{
#if PG_VERSION_NUM >= 190000
	return table_tuple_delete(rel, tid, cid, 0, snapshot, InvalidSnapshot,
							  wait, failure);
#else
	return table_tuple_delete(rel, tid, cid, snapshot, InvalidSnapshot, wait,
							  failure, false);
#endif
}

/*
 * Update a row.  *new_entries is set to whether the indexes need new entries.
 */
static inline TM_Result
compat_table_tuple_update(Relation rel, ItemPointer tid, TupleTableSlot *slot,
						  CommandId cid, Snapshot snapshot,
						  TM_FailureData *failure, bool *new_entries)
{
	LockTupleMode lockmode;
	TM_Result	result;
#if PG_VERSION_NUM >= 160000
	TU_UpdateIndexes update_indexes = TU_None;

#if PG_VERSION_NUM >= 190000
	result = table_tuple_update(rel, tid, slot, cid, 0, snapshot,
								InvalidSnapshot, true, failure,
								&lockmode, &update_indexes);
#else
	result = table_tuple_update(rel, tid, slot, cid, snapshot,
								InvalidSnapshot, true, failure,
								&lockmode, &update_indexes);
#endif
	*new_entries = (update_indexes == TU_All);
#else
	result = table_tuple_update(rel, tid, slot, cid, snapshot,
								InvalidSnapshot, true, failure,
								&lockmode, new_entries);
#endif
	return result;
}

/*
 * Returns whether the WAL record of a HOT update is as hot_update.c writes
 * it.
 */
static inline bool
compat_hot_update_is_known(void)
{
	return PG_VERSION_NUM < 200000;
}

/* Count a HOT update of a row. */
static inline void
compat_count_hot_update(Relation rel)
{
#if PG_VERSION_NUM >= 160000
	pgstat_count_heap_update(rel, true, false);
#else
	pgstat_count_heap_update(rel, true);
#endif
}

/* The number of this process in ProcGlobal->allProcs */
static inline int
my_proc_number(void)
{
#if PG_VERSION_NUM >= 170000
	return MyProcNumber;
#else
	return MyProc->pgprocno;
#endif
}

/* A wait event of this name, if extensions can have their own. */
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
 * Returns whether shared memory can be found by its name, without preloading.
 */
static inline bool
compat_has_named_segments(void)
{
	return PG_VERSION_NUM >= 170000;
}

#if PG_VERSION_NUM >= 190000
static inline void
compat_call_init(void *memory, void *init)
{
	(*(void (**) (void *)) init) (memory);
}
#endif

/* A segment of shared memory, which is initialized once */
static inline void *
compat_named_segment(const char *name, Size size, void (*init) (void *memory))
{
#if PG_VERSION_NUM >= 190000
	bool		found;

	return GetNamedDSMSegment(name, size, compat_call_init, &found, &init);
#elif PG_VERSION_NUM >= 170000
	bool		found;

	return GetNamedDSMSegment(name, size, init, &found);
#else
	return NULL;
#endif
}

/* A new kind of lock; before 19 each process has to register its name. */
static inline int
compat_new_tranche(const char *name)
{
#if PG_VERSION_NUM >= 190000
	return LWLockNewTrancheId(name);
#else
	return LWLockNewTrancheId();
#endif
}

static inline void
compat_register_tranche(int tranche, const char *name)
{
#if PG_VERSION_NUM < 190000
	LWLockRegisterTranche(tranche, name);
#endif
}

/* Before 19 the result was not part of the state. */
#if PG_VERSION_NUM < 190000
typedef struct
{
	JsonbParseState *parseState;
	JsonbValue *result;
} JsonbInState;
#endif

static inline void
compat_push_jsonb(JsonbInState *state, JsonbIteratorToken token,
				  JsonbValue *value)
{
#if PG_VERSION_NUM >= 190000
	pushJsonbValue(state, token, value);
#else
	state->result = pushJsonbValue(&state->parseState, token, value);
#endif
}

/* Before 16 there was one function for each kind of object. */
#if PG_VERSION_NUM < 160000
static inline AclResult
object_aclcheck(Oid class_id, Oid object, Oid role, AclMode mode)
{
	if (class_id == NamespaceRelationId)
		return pg_namespace_aclcheck(object, role, mode);
	if (class_id == DatabaseRelationId)
		return pg_database_aclcheck(object, role, mode);
	Assert(class_id == ProcedureRelationId);
	return pg_proc_aclcheck(object, role, mode);
}
#endif

/* Returns whether the member can SET ROLE to the role. */
static inline bool
compat_may_act_as(Oid member, Oid role)
{
#if PG_VERSION_NUM >= 160000
	return member_can_set_role(member, role);
#else
	return is_member_of_role(member, role);
#endif
}

/* Returns whether the current user owns the database. */
static inline bool
compat_owns_database(Oid database)
{
#if PG_VERSION_NUM >= 160000
	return object_ownercheck(DatabaseRelationId, database, GetUserId());
#else
	return pg_database_ownercheck(database, GetUserId());
#endif
}

/* All settings; sets their number. */
static inline struct config_generic **
compat_settings(int *n)
{
#if PG_VERSION_NUM >= 160000
	return get_guc_variables(n);
#else
	*n = GetNumConfigOptions();
	return get_guc_variables();
#endif
}

/*
 * Truncate a table that the caller has opened with AccessExclusiveLock.  It is
 * empty, so this is no change for logical decoding.
 */
static inline void
compat_truncate(Relation rel)
{
	List	   *oids = list_make1_oid(RelationGetRelid(rel));

	/* A parallel build of an index gives its workers the active snapshot. */
	PushActiveSnapshot(GetTransactionSnapshot());

#if PG_VERSION_NUM >= 160000
	ExecuteTruncateGuts(list_make1(rel), oids, NIL, DROP_RESTRICT, false,
						false);
#else
	ExecuteTruncateGuts(list_make1(rel), oids, NIL, DROP_RESTRICT, false);
#endif
	PopActiveSnapshot();
}

/*
 * Returns the process id of a session that is connected to the database and
 * that the function accepts, or 0 if there is none.
 */
static inline int
compat_find_session(Oid database,
					bool (*accept) (const PgBackendStatus *entry, void *arg),
					void *arg)
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
		const PgBackendStatus *entry = local == NULL ? NULL :
		&local->backendStatus;

		if (entry != NULL && entry->st_databaseid == database &&
			accept(entry, arg))
			return entry->st_procpid;
	}
	return 0;
}

#endif							/* QUEUE_COMPAT_H */
