/*-------------------------------------------------------------------------
 *
 * queue.h
 *	  What the files of the extension share: the shape of the tables, ids,
 *	  and the functions that one file calls of another.
 *
 * NOTES
 *	  The files are layered; a file calls only files of lower layers, but for
 *	  what a queue's metadata means and what other queues it names (registry.c,
 *	  meta.c), claim_next, which completes a claim (claim.c calls lease.c), the
 *	  arguments of pushes (lazy.c calls push.c), the ready queues that a claim
 *	  goes by (claim.c calls wait.c), and a queue that is dropped with its
 *	  handler (admin.c calls handler.c).
 *
 *		0	queue.h, compat.h, guc.c
 *		1	catalog.c (tables and their OIDs), ident.c (ids), shmem.c (shared
 *			memory), note.c (JSON objects, notes of messages), xact.c (ends of
 *			transactions)
 *		2	database.c (databases with workers), pool.c (who runs jobs),
 *			ring.c (which segments), cursor.c (where claims look), touch.c (what
 *			a transaction did to messages)
 *		3	row.c (single rows), registry.c (queues, locks, rights), role.c (the
 *			roles they refer to), meta.c (their metadata), scan.c (runs of
 *			messages, one by its id)
 *		4	count.c (counts), root.c (root jobs), result.c (messages as rows)
 *		5	key.c (deduplication)
 *		6	store.c (new messages)
 *		7	dead.c (dead letters)
 *		8	walk.c (what a claim finds)
 *		9	push.c, lazy.c, claim.c, lease.c, list.c, admin.c: the SQL
 *			functions; expire.c (lifetimes), park.c (delays), wait.c
 *			(listening and waiting), turn.c (turning the ring), hold.c (claims
 *			of who runs jobs)
 *		10	handler.c (what runs jobs), schedule.c (recurring ones)
 *		11	run.c (running them)
 *		12	job.c (a session that runs jobs); worker.c, runner.c, launcher.c:
 *			processes
 *		13	module.c (_PG_init)
 *
 * src/queue.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_H
#define QUEUE_H

#include "postgres.h"

#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "datatype/timestamp.h"
#include "funcapi.h"
#include "nodes/parsenodes.h"
#include "port/atomics.h"
#include "portability/instr_time.h"
#include "storage/condition_variable.h"
#include "storage/lockdefs.h"
#include "storage/lwlock.h"
#include "storage/spin.h"
#include "utils/array.h"
#include "utils/jsonb.h"
#include "utils/rel.h"
#include "utils/snapshot.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "compat.h"

/* Microseconds of a clock that is never set, the same in all processes */
static inline int64
queue_monotonic_time(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}

/* Limits that are not settings */
#define QUEUE_SEGMENTS			16	/* tables in the ring */
#define QUEUE_PARKED			16	/* the first of those of delayed messages */
#define QUEUE_PARKED_SEGMENTS	4
#define QUEUE_RELATIONS			20	/* all that hold messages */
#define QUEUE_PRIORITIES		10
#define QUEUE_NAME_LENGTH		64
#define QUEUE_PROJECT_LENGTH	256
#define QUEUE_LIST_MAX			10000	/* rows of one listing */
#define QUEUE_LIFETIME_MAX		1209600 /* seconds; of a claimed message */
#define QUEUE_METADATA_MAX		65536	/* bytes */

/* SQLSTATEs of our own */
#define ERRCODE_CLAIM_NOT_LIVE			MAKE_SQLSTATE('Q', 'U', '0', '0', '1')
#define ERRCODE_MESSAGE_NOT_IN_CLAIM	MAKE_SQLSTATE('Q', 'U', '0', '0', '2')
#define ERRCODE_MESSAGE_IS_CLAIMED		MAKE_SQLSTATE('Q', 'U', '0', '0', '3')

/*
 * The columns of a segment, and of those of parked messages.  The fixed-width ones
 * come first and are never null, so that this struct lies over them, and
 * marking a message is writing to a copy of its row.
 */
typedef struct MessageForm
{
	int64		id;
	TimestampTz created_at;
	TimestampTz expires_at;		/* unless a live claim holds it */
	TimestampTz claimed_at;		/* when it was claimed or renewed */
	TimestampTz claimed_until;
	int64		claim_token;	/* 0: nobody claimed it */
	int64		claim_first;	/* lowest sequence number in the claim */
	int32		claim_span;		/* the highest one is that much above */
	int32		queue_id;
	int32		claim_grace;	/* seconds */
	int32		claim_count;	/* how often it was claimed */
	int16		priority;
	int16		claim_priorities;	/* bit p: the claim has messages of p */
} MessageForm;

#define MESSAGE_FORM(tuple) ((MessageForm *) GETSTRUCT(tuple))

#define Anum_message_id					1
#define Anum_message_created_at			2
#define Anum_message_expires_at			3
#define Anum_message_claimed_at			4
#define Anum_message_claimed_until		5
#define Anum_message_claim_token		6
#define Anum_message_claim_first		7
#define Anum_message_claim_span			8
#define Anum_message_queue_id			9
#define Anum_message_claim_grace		10
#define Anum_message_claim_count		11
#define Anum_message_priority			12
#define Anum_message_claim_priorities	13
#define Anum_message_client_id			14
#define Anum_message_dedup				15
#define Anum_message_note				16
#define Anum_message_twins				17
#define Anum_message_twins_joined		18
#define Anum_message_covered			19
#define Anum_message_body				20
#define Natts_message					20
#define Anum_parked_due_at				21
#define Natts_parked					21
#define Natts_pending_key				4
#define Natts_root						3
#define Natts_job_count					10
#define Natts_handler					17
#define Natts_schedule					8

/* A queue as a call uses it: a copy, good until the call ends. */
typedef struct Queue
{
	int32		id;
	Oid			owner;
	bool		paused;
	int			default_ttl;	/* seconds; -1: the setting */
	int			default_delay;	/* seconds */
	int			max_post_size;	/* bytes; -1: none */
	int			max_claim_count;	/* -1: none */
	int			dead_ttl;		/* seconds; -1: as any push there */
	int			retry_delay;	/* seconds */
	double		retry_backoff;	/* the delay grows by this factor */
	bool		has_roots;		/* root jobs were registered */
	char		name[QUEUE_NAME_LENGTH + 1];
	bool		dead_named;		/* dead_queue is not the default one */
	char		dead_queue[QUEUE_NAME_LENGTH + 1];	/* "": none is required */
	int32		dead_id;		/* the queue that this was; 0: none */
	int32		source_id;		/* created for that one's dead letters, or 0 */
} Queue;

/* A function that is called with messages */
typedef struct HandlerFunction
{
	char	   *schema;
	char	   *name;			/* NULL: there is none */
	bool		takes_jsonb;	/* or a queue_message */
	Oid			oid;			/* once it was found */
	Oid			argument;		/* its type */
	TransactionId xmin;			/* of its row, when it was checked */
	ItemPointerData tid;
} HandlerFunction;

/* When were handlers read?  Either counter tells of what changed since. */
typedef struct HandlerVersion
{
	uint64		generation;		/* of the catalog: invalidation messages */
	uint32		changes;		/* of the database, in shared memory */
} HandlerVersion;

/* What runs the jobs of a queue */
typedef struct Handler
{
	int32		queue_id;
	char		project[QUEUE_PROJECT_LENGTH + 1];
	char		name[QUEUE_NAME_LENGTH + 1];
	bool		paused;			/* the queue is */
	Oid			role;			/* as whom they run */
	HandlerFunction run;
	HandlerFunction teardown;
	int			concurrency;
	int			timeout;		/* seconds; 0: none */
	float4		rate;			/* jobs per second; 0: any */
	TimestampTz next_at;		/* of the rate */
	pg_uuid_t	digest;			/* of both functions, when they were bound */
	bool		logs_in;		/* the role could, when it bound them */
	char	   *search_path;

	/* for whoever runs them */
	bool		is_as_bound;	/* so were both, when they were checked */
	int			batch;			/* jobs to claim at once; 0: not known yet */
	int64		not_before;		/* leave it alone until then; monotonic */
} Handler;

/* What the worker has to know of a handler */
typedef struct HandlerBrief
{
	int32		queue_id;
	Oid			role;
	int			concurrency;
	bool		knows_paused;	/* this is good: */
	bool		paused;			/* the queue is, or is gone */
} HandlerBrief;

/* One of a list of queues */
typedef struct QueueEntry
{
	int32		id;
	char	   *name;
} QueueEntry;

/* What a caller wants of a queue; each needs a right and takes a lock. */
typedef enum QueueUse
{
	QUEUE_LOOK,					/* describe it: no right, no lock */
	QUEUE_READ,					/* list, get: the right to claim, no lock */
	QUEUE_PUSH,					/* add messages */
	QUEUE_CLAIM,				/* claim and delete messages */
	QUEUE_ALTER,				/* change what it is */
	QUEUE_PURGE,				/* with nobody pushing or claiming */
	QUEUE_DROP					/* likewise, and gone then */
} QueueUse;

/* What became of opening a queue */
typedef enum QueueOpened
{
	QUEUE_OPENED,
	QUEUE_MISSING,				/* it does not exist */
	QUEUE_DENIED,				/* the role has no right to that use */
	QUEUE_BUSY					/* not without waiting for a lock */
} QueueOpened;

/* The indexes of a table that get an entry for each of its rows. */
typedef struct IndexList
{
	int			n;
	Relation   *relations;
} IndexList;

/* An opened table that holds messages. */
typedef struct MessageTable
{
	int			segment;		/* below QUEUE_RELATIONS */
	Relation	heap;
	Relation	index;			/* (queue_id, priority desc, id); of parked
								 * (queue_id, id) */
	Relation	due_index;		/* of parked: (queue_id, due_at) */
	LOCKMODE	lockmode;
	TupleTableSlot *out;		/* for rows to be written; NULL when
								 * opened for reading */
	IndexList	all;			/* unless opened for reading */
} MessageTable;

/*
 * There are two rings of segments: one of the messages that claims look for,
 * in the order in which they are handed out, and one of those that are not to
 * be handed out before a time, in the order of that.
 */
typedef enum RingKind
{
	RING_MESSAGES,
	RING_PARKED,
	RING_KINDS
} RingKind;

static inline RingKind
segment_kind(int segment)
{
	return segment < QUEUE_PARKED ? RING_MESSAGES : RING_PARKED;
}

static inline bool
segment_is_parked(int segment)
{
	return segment >= QUEUE_PARKED;
}

/* A claim id taken apart. */
typedef struct ClaimId
{
	int64		token;
	int64		first;			/* lowest sequence number of its messages */
	int32		span;			/* the highest one is that much above */
	int16		priorities;		/* which ones they have */
} ClaimId;

#define CLAIM_ID_LENGTH		52	/* hexadecimal digits */

/* A message to be pushed. */
typedef struct NewMessage
{
	Jsonb	   *body;
	int			ttl;			/* seconds */
	int			delay;			/* seconds */
	int			priority;
	int			claim_count;	/* of a dead letter */
	Jsonb	   *note;			/* or NULL */
	pg_uuid_t  *dedup;			/* or NULL */
	bool		moved;			/* not pushed by this session's client */
	int64		id;				/* out; 0: dropped as a duplicate */
} NewMessage;

/* What is counted of each queue (count.c) */
typedef enum JobCounter
{
	JOB_CLAIMED,				/* messages handed out */
	JOB_COMPLETED,				/* deleted by who had claimed them */
	JOB_RETRIED,				/* given back by message_retry */
	JOB_ABANDONED,				/* became dead letters */
	JOB_DUPLICATES,				/* pushes and messages dropped as such */
	JOB_EXPIRED,				/* removed when their lifetime was over */
	JOB_COUNTERS
} JobCounter;

/* guc.c: settings */
extern char *queue_guc_project;
extern char *queue_guc_client_id;
extern int	queue_guc_min_claim_ttl;
extern int	queue_guc_max_claim_ttl;
extern int	queue_guc_min_claim_grace;
extern int	queue_guc_max_claim_grace;
extern int	queue_guc_default_claim_limit;
extern int	queue_guc_max_claim_limit;
extern int	queue_guc_min_message_ttl;
extern int	queue_guc_max_message_ttl;
extern int	queue_guc_default_message_ttl;
extern int	queue_guc_max_message_delay;
extern int	queue_guc_max_message_size;
extern int	queue_guc_max_push_count;
extern int	queue_guc_max_cursors;
extern int	queue_guc_database_workers;
extern int	queue_guc_worker_naptime;
extern int	queue_guc_segment_size;
extern int	queue_guc_runners;
extern int	queue_guc_max_runners;
extern int	queue_guc_runner_idle_time;
extern int	queue_guc_max_handler_time;
extern bool queue_guc_auto_create;

extern void queue_define_gucs(void);
extern void queue_set_label(const char *setting, const char *label,
							bool local);

/* guc.c: arguments against their bounds */
pg_noreturn extern void queue_arg_missing(const char *arg);
extern int	queue_check_bounds(const char *arg, int64 value, int min,
							   const char *min_setting, int max,
							   const char *max_setting, const char *unit);
extern int	queue_check_ttl(int64 ttl);
extern int	queue_check_delay(int64 delay);
extern int	queue_check_priority(int64 priority);
extern int	queue_check_claim_ttl(int ttl);
extern int	queue_check_grace(int grace);
extern int	queue_check_claim_limit(int limit);
extern int	queue_check_list_limit(int limit);

/* catalog.c: what is where */
extern void queue_catalog_init(void);
extern uint64 queue_catalog_generation(void);
extern uint64 queue_tables_generation(void);
extern uint64 queue_lookup_generation(void);
extern void queue_lookup_changed(void);
extern Oid	queue_table_oid(void);
extern Relation queue_open_queues(LOCKMODE lockmode);
extern Oid	queue_id_index_oid(void);
extern Oid	queue_name_index_oid(void);
extern Oid	queue_owner_index_oid(void);
extern Oid	queue_dead_queue_index_oid(void);
extern Oid	queue_source_index_oid(void);
extern Oid	queue_roles_oid(void);
extern void queue_open_table(MessageTable *table, int segment,
							 LOCKMODE lockmode);
extern bool queue_try_open_table(MessageTable *table, int segment,
								 LOCKMODE lockmode);
extern void queue_close_table(MessageTable *table, bool keep_lock);
extern void queue_open_indexes(Relation rel, IndexList *indexes);
extern void queue_close_indexes(IndexList *indexes);
extern bool queue_table_has_pages(int segment);
extern Relation queue_open_pending_key(LOCKMODE lockmode, Relation *index);
extern int	queue_active_segment(RingKind kind);
extern Relation queue_open_ring(LOCKMODE lockmode);
extern Relation queue_open_segments(LOCKMODE lockmode);
extern Oid	queue_segment_oid(int segment);
extern Relation queue_open_roots(LOCKMODE lockmode, Relation *index);
extern Relation queue_open_job_counts(LOCKMODE lockmode, Relation *index);
extern bool queue_lock_job_counts(void);
extern Relation queue_open_handlers(LOCKMODE lockmode, Oid *index);
extern Relation queue_open_schedules(LOCKMODE lockmode, Relation *index);
extern int32 queue_next_schedule_id(void);
extern int64 queue_next_block(void);
extern int32 queue_next_queue_id(void);
extern const unsigned char *queue_secret(void);
extern Oid	queue_producer_role(void);
extern Oid	queue_consumer_role(void);
extern Oid	queue_admin_role(void);

/* registry.c: queues and rights */
extern const char *queue_name_arg(FunctionCallInfo fcinfo, int arg,
								  const char *argname);
extern const char *queue_name_text(text *value, const char *argname);
extern const char *queue_clip(const char *text);
extern void queue_check_name(const char *name, const char *argname);
extern void queue_prevent(const char *function);
extern bool queue_open(const char *name, QueueUse use, Queue *queue);
extern void queue_open_known(const char *name, QueueUse use, Queue *queue);
extern void queue_open_for_push(const char *name, Queue *queue);
extern bool queue_name_of(int32 id, char *project, char *name,
						  bool *paused);
extern bool queue_try_lock(int32 id);
extern bool queue_created_at(int32 id, TimestampTz *created_at);
extern QueueEntry *queue_all(const char *project, int *n);
extern bool queue_peek(const char *name, Oid role, QueueUse use,
					   Queue *queue, bool *may);
extern QueueOpened queue_open_as(const char *name, Oid role, QueueUse use,
								 bool wait, Queue *queue);
extern void queue_check_may_create(void);
extern bool queue_insert(const char *name, Jsonb *metadata, Oid owner,
						 int32 source_id);
extern bool queue_by_id(int32 id, Queue *queue);
extern List *queue_referring(int attribute, int32 id);
extern bool queue_should_warn(const char *name);
extern void queue_changed(void);
extern void queue_lock_dead_letters(int32 queue_id, bool change);
extern bool queue_lock_role(Oid role, bool remove);
extern void queue_lock_schedule(int32 id);
extern void queue_lock_rate(int32 queue_id);
extern int	queue_take_place(int32 queue_id, int places);
extern void queue_give_place(Oid extension, int32 queue_id, int place);
extern HeapTuple queue_fetch(Relation rel, const char *name);
pg_noreturn extern void queue_unknown(const char *name);

/* meta.c: metadata and its reserved keys */
extern void meta_parse(Jsonb *metadata, Queue *queue, bool check);
extern void meta_check(const char *name, Jsonb *metadata);
extern void meta_warn(Jsonb *given);
extern int	meta_default_ttl(const Queue *queue);
extern int	meta_tries(MessageTable *table, HeapTuple tuple);
extern bool meta_is_exhausted(const Queue *queue, MessageTable *table,
							  HeapTuple tuple);

/* role.c: roles that own queues or are named in their privileges */
extern void role_init(void);
extern void role_record(Oid role);
extern void role_forget(Oid role);
extern List *role_all_of(Relation rel, HeapTuple tuple);
extern char *role_drop_hint(DropRoleStmt *statement);

/* Attribute numbers of queue_data.queue */
#define Anum_queue_id			1
#define Anum_queue_owner		2
#define Anum_queue_paused		3
#define Anum_queue_created_at	4
#define Anum_queue_project		5
#define Anum_queue_name			6
#define Anum_queue_metadata		7
#define Anum_queue_push_roles	8
#define Anum_queue_claim_roles	9
#define Anum_queue_admin_roles	10
#define Anum_queue_dead_queue_id	11
#define Anum_queue_source_id	12
#define Natts_queue				12

/* ident.c: message ids and claim ids */
#define ID_SEGMENT_BITS		5
#define ID_PRIORITY_BITS	4
#define ID_LOW_BITS			(ID_SEGMENT_BITS + ID_PRIORITY_BITS)
#define ID_BLOCK_BITS		5
#define ID_BLOCK			(1 << ID_BLOCK_BITS)

static inline int64
id_make(int64 number, int priority, int segment)
{
	return (number << ID_LOW_BITS) |
		((int64) priority << ID_SEGMENT_BITS) | segment;
}

static inline int64
id_number(int64 id)
{
	return id >> ID_LOW_BITS;
}

static inline int
id_priority(int64 id)
{
	return (int) (id >> ID_SEGMENT_BITS) & ((1 << ID_PRIORITY_BITS) - 1);
}

static inline int
id_segment(int64 id)
{
	return (int) id & ((1 << ID_SEGMENT_BITS) - 1);
}

extern void claim_id_print(int32 queue_id, const ClaimId *claim, char *text);
extern bool claim_id_parse(int32 queue_id, const char *text, ClaimId *claim);
extern int64 claim_token_new(void);
extern void queue_digest(const char *key, pg_uuid_t *digest);

/* row.c: single rows */
extern TupleTableSlot *row_slot(MessageTable *table);
extern HeapTuple row_tuple(TupleTableSlot *slot);
extern void row_insert(MessageTable *table, HeapTuple tuple);
extern void row_multi_insert(MessageTable *table, HeapTuple *tuples, int n);
extern TM_Result row_lock(MessageTable *table, TupleTableSlot *slot,
						  LockTupleMode mode, LockWaitPolicy wait);
extern bool row_lock_as_seen(MessageTable *table, TupleTableSlot *slot,
							 LockTupleMode mode, LockWaitPolicy wait);
extern bool row_move(MessageTable *from, TupleTableSlot *slot,
					 MessageTable *to, Size *bytes);
extern TM_Result row_update(MessageTable *table, ItemPointer tid,
							HeapTuple tuple);
extern TM_Result row_delete(MessageTable *table, HeapTuple tuple);
extern void row_update_locked(MessageTable *table, ItemPointer tid,
							  HeapTuple tuple);
extern void row_delete_locked(MessageTable *table, HeapTuple tuple);
extern HeapTuple row_copy_to(MessageTable *from, MessageTable *to,
							 HeapTuple tuple, TimestampTz due_at);
extern void row_hold(MessageForm *form, TimestampTz now, int ttl, int grace);
extern void row_unmark(MessageForm *form);
extern TM_Result row_update_any(Relation rel, ItemPointer tid,
								HeapTuple tuple);
extern bool row_insert_unique(Relation rel, Relation arbiter,
							  HeapTuple tuple);
extern HeapTuple row_fetch(Relation rel, Oid index, ScanKey keys, int nkeys);
extern bool row_look(Relation rel, ItemPointer tid, bool write,
					 void (*action) (HeapTuple tuple, void *arg), void *arg);
extern void row_delete_of_queue(Relation rel, Relation index, int32 queue_id);
extern bool row_find_unique(Relation rel, Relation index, ScanKey keys,
							int nkeys, TupleTableSlot *slot);

/* Is the message under a live claim? */
static inline bool
row_is_claimed(const MessageForm *form, TimestampTz now)
{
	return form->claim_token != 0 && form->claimed_until > now;
}

/* A message under a live claim does not expire. */
static inline bool
row_is_expired(const MessageForm *form, TimestampTz now)
{
	return form->expires_at <= now && !row_is_claimed(form, now);
}

/* ring.c: which segments hold messages, and which takes new ones */
typedef struct RingState RingState;

extern void ring_open_active(MessageTable *table);
extern bool ring_try_open_active(MessageTable *table);
extern void ring_open_parked(MessageTable *table);
extern bool ring_refresh(void);
extern bool ring_in_use(int segment);
extern bool ring_may_hold(int segment, int64 first, int64 last);
extern void ring_tell(int segment, int64 number);
extern void ring_forget_told(void);
extern void ring_count(int segment, Size bytes);
extern void ring_deleted(int segment);
extern void ring_end(bool commit);
extern uint32 ring_turns(void);
extern void ring_push_snapshot(void);
extern bool ring_snapshot_is_stale(void);
extern void ring_renew_snapshot(void);
extern void ring_begin_move(void);
extern void ring_end_move(void);
extern uint32 ring_moves(void);
extern bool ring_wait_for_move(uint32 moves);
extern RingState *ring_own(void);
extern void ring_found_rows(int segment);
extern void ring_emptied(int segment);
extern bool ring_is_free(int segment);

/*
 * A range of message numbers (ids without their low bits) of one priority, in
 * which something may be free.
 */
typedef struct MessageRange
{
	int64		first;
	int64		last;
	TimestampTz due;			/* when; DT_NOBEGIN: at once */
	TimestampTz looked_at;		/* if doubtful: all of it, since then */
	int16		priority;
	bool		doubtful;		/* nobody tells when */
	uint8		swept;			/* in a cursor: the worker looks at it, and
								 * nothing has happened to it since; its
								 * number in the sweep, from 1 on */
} MessageRange;

/* More than priorities, so that two can always be made one */
#define CURSOR_RANGES	12

typedef struct MessageRanges
{
	int			n;
	MessageRange items[CURSOR_RANGES];
} MessageRanges;

/* What is known of a queue's parked messages */
typedef struct ParkedInfo
{
	TimestampTz due;			/* the next one */
	TimestampTz from;			/* none was parked until earlier, or they are
								 * gone */
	bool		doubtful;		/* nobody tells when one is let go */
} ParkedInfo;

/*
 * What all sessions know of a queue, in shared memory.  The lock guards
 * everything; the key is only changed with the lock of the array held too.
 *
 * The key and wake_at are atomic since they are also read without the lock, to
 * pass by cursors that are of no interest without touching their locks.  What
 * such a read returns may be out of date at once, and the parts of a key may
 * be those of two queues.  So a session that finds its key locks the cursor and
 * looks again; one that misses a key that is being written makes the cursor,
 * or finds it then, under the lock of the array; and when wake_at is lowered,
 * the worker is told to look at all cursors after that (database_wake).
 */
typedef struct Cursor
{
	LWLock		lock;
	bool		used;			/* of late */
	bool		waiting;		/* somebody waits for a closing */
	bool		knows_numbers;	/* block_next, block_end, end mean something */
	pg_atomic_uint32 database;	/* key; InvalidOid: never used */
	pg_atomic_uint32 extension; /* key: the OID of its table queue */
	pg_atomic_uint32 queue_id;	/* key */
	int			open;			/* reservations */
	uint64		incarnation;	/* since it began anew; never the same */
	int64		block_next;		/* numbers for pushes */
	int64		block_end;
	uint32		turns;			/* of the ring, when they were taken */
	int64		next[QUEUE_PRIORITIES]; /* claims were given all below */
	int64		end[QUEUE_PRIORITIES];	/* pushes were given none from here */
	int64		unsure_below;	/* we may not be told of all numbers below */
	ParkedInfo	parked;
	uint32		changes;		/* so far, of what the worker has to see to */
	uint32		news;			/* how often something came free */
	uint32		told;			/* "news", when listeners were last notified */
	uint64		examined;		/* the incarnation of which the worker knows
								 * whether there is something to claim */
	bool		quiet;			/* it has nothing to do about that now */
	TimestampTz expires_at;		/* the first of the messages, or later */
	TimestampTz new_expires_at; /* the same, of those that came since the
								 * worker's visit began */
	pg_atomic_uint64 wake_at;	/* when the worker has to look: the next of
								 * all that is due */
	int			waiters;		/* sessions that wait for messages */
	ConditionVariable arrival;	/* what they sleep on */
	int64		counts[JOB_COUNTERS];	/* not written to the table yet */
	TimestampTz relook_at;		/* all of the queue, once it seems empty */
	MessageRanges ranges;
} Cursor;

static inline Oid
cursor_database(const Cursor *cursor)
{
	return (Oid) pg_atomic_read_u32(unconstify(pg_atomic_uint32 *,
											   &cursor->database));
}

static inline Oid
cursor_extension(const Cursor *cursor)
{
	return (Oid) pg_atomic_read_u32(unconstify(pg_atomic_uint32 *,
											   &cursor->extension));
}

static inline int32
cursor_queue_id(const Cursor *cursor)
{
	return (int32) pg_atomic_read_u32(unconstify(pg_atomic_uint32 *,
												 &cursor->queue_id));
}

static inline TimestampTz
cursor_wake_at(const Cursor *cursor)
{
	return (TimestampTz) pg_atomic_read_u64(unconstify(pg_atomic_uint64 *,
													   &cursor->wake_at));
}

/*
 * Bits of cursors that are kept apart, so that those that have one are found
 * without looking at all; changed with the cursor's lock held.
 */
typedef enum CursorFlag
{
	CURSOR_NEWS,				/* listeners are to be notified */
	CURSOR_READY,				/* there may be something to claim */
	CURSOR_COUNTED,				/* counts are to be written */
	CURSOR_FLAGS				/* how many there are */
} CursorFlag;

/* What a database's worker does. */
typedef enum WorkerState
{
	WORKER_NONE,				/* there is no extension in the database */
	WORKER_WANTED,				/* the launcher shall start one */
	WORKER_STARTING,
	WORKER_IDLE,				/* it sleeps until something is due */
	WORKER_BUSY
} WorkerState;

typedef enum WorkerCounter
{
	COUNT_ROUNDS,
	COUNT_EXPIRED_CLAIMS,
	COUNT_DEAD_LETTERS,
	COUNT_REMOVED,
	COUNT_NOTIFICATIONS,
	COUNT_TURNS,
	COUNT_TRUNCATED,
	COUNT_MOVED,
	WORKER_COUNTERS
} WorkerCounter;

/*
 * What all sessions know of the ring of segments.  Each of these is changed by
 * itself, and read after the snapshot was taken.
 */
typedef struct RingSegment
{
	pg_atomic_uint64 low;		/* of the numbers of messages that may be */
	pg_atomic_uint64 high;		/* there; above high: there is none */
} RingSegment;

struct RingState
{
	pg_atomic_uint32 extension; /* whose: the OID of its table queue */
	pg_atomic_uint32 changed;	/* one where messages were deleted of late */
	pg_atomic_uint32 turns;		/* how often it turned */
	pg_atomic_uint32 active[RING_KINDS];	/* as the worker last saw it */
	pg_atomic_uint32 emptied;	/* how often one was */
	pg_atomic_uint32 moves;		/* begun and ended: odd while there is one */
	pg_atomic_uint64 written[RING_KINDS];	/* bytes, into the active segment */
	pg_atomic_uint64 due;		/* when the worker has to see to it */
	RingSegment segments[QUEUE_RELATIONS];
};

#define WORKER_ERROR_LENGTH		256

/*
 * A database in which the extension is, or was, in use.  The lock of the
 * array guards what is not atomic.
 */
typedef struct DatabaseState
{
	Oid			database;		/* InvalidOid: free */
	WorkerState state;
	int			pid;			/* of the worker; 0: none */
	int64		start_at;		/* no worker before then, by the monotonic
								 * clock */
	TimestampTz last_run;
	TimestampTz last_error_at;
	char		last_error[WORKER_ERROR_LENGTH];
	bool		leave;			/* the worker shall end */
	pg_atomic_uint32 handler_changes;	/* see HandlerVersion */
	pg_atomic_uint32 proc;		/* of the worker, plus 1; 0: none */
	pg_atomic_uint64 sleeps_until;	/* who has something earlier wakes it */
	pg_atomic_uint64 next_due;	/* the first wake_at of all cursors, or
								 * earlier */
	pg_atomic_uint64 lost;		/* how often a cursor was lost that a queue
								 * had, or a queue came that has none */
	pg_atomic_uint64 known;		/* "lost", when the worker last began to give
								 * each queue a cursor */
	pg_atomic_uint64 look_at;	/* when the worker has to look at all queues,
								 * for those that have no cursor */
	pg_atomic_uint64 counters[WORKER_COUNTERS];
	RingState	ring;
} DatabaseState;

#define DATABASES_MAX	256

/* What somebody who runs jobs does. */
typedef enum RunnerState
{
	RUNNER_NONE,				/* the entry is free */
	RUNNER_STARTING,
	RUNNER_IDLE,
	RUNNER_CALLED,				/* idle, and told that there is something */
	RUNNER_BUSY,
	RUNNER_GONE					/* ended, and left a claim behind */
} RunnerState;

/*
 * Somebody who runs jobs: a background process, or a session in job_run.  The
 * lock of the array guards everything but "leave", which is only looked at.
 */
typedef struct Runner
{
	RunnerState state;
	bool		is_session;
	bool		has_more;		/* there is work for one more in its queue */
	bool		leave;			/* it shall end */
	int64		asked_at;		/* to do so, of the monotonic clock */
	uint32		generation;		/* of the entry */
	Oid			database;
	Oid			role;
	int			pid;			/* 0: not there yet */
	int			proc;			/* its number */
	int64		since;			/* it has been in this state; monotonic */
	int32		queue_id;		/* what it works for; 0: none */
	ClaimId		claim;
	int64		message_id;		/* at work; 0: none */
	int			ttl;			/* seconds; of the claim */
	TimestampTz renew_at;		/* the claim is to be renewed then */
	int64		end_at;			/* it is to be ended then; monotonic */
} Runner;

#define RUNNERS_MAX			256
#define RENEWALS_PER_TTL	2	/* of the claims of jobs at work */

/* shmem.c: where the cursors live */
extern void shmem_init(void);
extern bool shmem_exists(void);
extern TimestampTz shmem_started_at(void);
extern Cursor *shmem_find_cursor(Oid extension, int32 queue_id);
extern Cursor *shmem_get_cursor(int32 queue_id);
extern void shmem_for_each_cursor(Oid extension,
								  void (*function) (Cursor *cursor,
													TimestampTz now));
extern ConditionVariable *shmem_closing(const Cursor *cursor);
extern uint64 shmem_next_incarnation(void);
extern bool shmem_is_crowded(const Cursor *cursor);
extern uint32 shmem_count_cursors(void);
extern Cursor *shmem_cursor_in_use(uint32 i);
extern DatabaseState *shmem_database(Oid database);
extern void shmem_set_flag(const Cursor *cursor, CursorFlag flag);
extern void shmem_clear_flag(const Cursor *cursor, CursorFlag flag);
extern bool shmem_has_flag(const Cursor *cursor, CursorFlag flag);
extern uint32 shmem_wrap(uint32 i);
extern Cursor *shmem_next_flagged(CursorFlag flag, uint32 *from);
extern DatabaseState *shmem_databases(void);
extern LWLock *shmem_database_lock(void);
extern pg_atomic_uint32 *shmem_launcher(void);
extern pg_atomic_uint32 *shmem_new_databases(void);

extern bool shmem_is_flagged(Oid extension, int32 queue_id, CursorFlag flag);

/* pool.c: who runs jobs */
extern void pool_init(void);
extern bool pool_exists(void);
extern void pool_dispatch(HandlerBrief *const *handlers, int n, bool more);
extern TimestampTz pool_next_due(void);
extern bool pool_take_due(Runner *due);
extern bool pool_is_leaving(void);
extern void pool_renewed(const Runner *renewed);
extern void pool_took_over(const Runner *gone);
extern void pool_vacate(Oid database, bool terminate);
extern bool pool_enter(uint64 ticket, Oid *database, Oid *role);
extern bool pool_enter_session(Oid role);
extern void pool_leave(void);
extern void pool_set_state(RunnerState state);
extern bool pool_must_leave(void);
extern bool pool_is_surplus(void);
extern void pool_set_claim(int32 queue_id, const ClaimId *claim, int ttl,
						   bool several);
extern void pool_set_message(int64 id, int seconds);
extern void pool_set_more(bool has_more);
extern void pool_clear_claim(void);

/* database.c: databases with workers */
extern void database_announce(void);
extern void database_wake(TimestampTz due, bool news);
extern void database_join(void);
extern DatabaseState *database_mine(void);
extern void database_wake_launcher(void);
extern void database_lose(DatabaseState *state, TimestampTz due);
extern void database_wake_worker(void);
extern void database_handlers_changed(void);
extern uint32 database_handler_changes(void);
extern void database_vacate(Oid database);
extern void database_set_latch(DatabaseState *state);
extern DatabaseState *database_find(Oid database, bool make);
extern void database_count(WorkerCounter counter, uint64 n);
extern void database_end(bool commit);

/* cursor.c: where claims look, as all sessions share it */
typedef struct CursorWish
{
	int32		queue_id;
	TimestampTz began;			/* the call; doubtful ranges that were looked
								 * at since are not again */
	TimestampTz now;
	int64		width;			/* numbers to look at */
	bool		has_more;		/* messages in hand */
	bool		parked_is_due;	/* out: there was no range, but this */
} CursorWish;

typedef struct Reservation
{
	Cursor	   *cursor;
	MessageRange range;
	bool		is_fresh;		/* no claim was given it before */
} Reservation;

typedef enum ReserveResult
{
	RESERVE_DONE,
	RESERVE_NONE,				/* there is nothing to look at */
	RESERVE_WAIT				/* others look, and may give something back */
} ReserveResult;

/* What a queue's cursor says, for a session that changes nothing */
typedef struct CursorView
{
	int			n;
	MessageRange ranges[CURSOR_RANGES + QUEUE_PRIORITIES];
	bool		others;			/* have something reserved */
	bool		parked;			/* parked messages may be due */
	TimestampTz parked_from;	/* see ParkedInfo */
} CursorView;

/* A cursor as the worker found it, when it began to see to a queue */
typedef struct CursorVisit
{
	Oid			extension;
	int32		queue_id;
	uint64		incarnation;
	uint32		changes;
	uint32		news;
	bool		examined;		/* this incarnation was */
	TimestampTz expires_at;
} CursorVisit;

extern bool cursor_is_shared(void);
extern void cursor_clear(Cursor *cursor, TimestampTz now);
extern void cursor_reset(Cursor *cursor, TimestampTz now);
extern void ranges_add(MessageRanges *ranges, const MessageRange *range,
					   TimestampTz now);
extern void cursor_begin_queue(int32 queue_id);
extern int64 cursor_take_numbers(int32 queue_id, int priorities, int wanted,
								 int *n);
extern ReserveResult cursor_reserve(CursorWish *wish, MessageRange *range);
extern void cursor_close(int64 looked_to, const MessageRanges *passed,
						 TimestampTz now);
extern bool cursor_wait(int32 queue_id, int64 *until);
extern bool cursor_view(int32 queue_id, TimestampTz now, CursorView *view);
extern bool cursor_reserve_parked(int32 queue_id, TimestampTz now,
								  bool doubtful, TimestampTz *from);
extern void cursor_close_parked(TimestampTz from, TimestampTz due,
								bool doubtful);
extern void cursor_keep_parked(TimestampTz from, TimestampTz due,
							   bool doubtful);
extern void cursor_close_kept(void);
extern int	cursor_begin_sweep(int32 queue_id, TimestampTz now,
							   const MessageRange **ranges, bool *disturbed);
extern void cursor_swept(int i, int64 looked_to);
extern void cursor_end_sweep(const MessageRanges *passed, int found,
							 int ended, TimestampTz now);
extern void cursor_publish_sweep(bool commit);
extern void cursor_close_all(void);
extern void cursor_return(Oid extension, int32 queue_id,
						  const MessageRange *range, TimestampTz expires_at,
						  TimestampTz now);
extern void cursor_return_parked(Oid extension, int32 queue_id,
								 TimestampTz from, TimestampTz due,
								 bool doubtful);
extern TimestampTz cursor_doubt(TimestampTz now);
extern bool cursor_relook(int32 queue_id, TimestampTz now);
extern void cursor_forget(int32 queue_id);
extern void cursor_relooked(int32 queue_id, TimestampTz began);
extern void cursor_end_expiry(const CursorVisit *visit,
							  TimestampTz expires_at);
extern void cursor_examine(Oid extension, int32 queue_id);
extern bool cursor_is_due(int32 queue_id, TimestampTz now);
extern bool cursor_begin_visit(int32 queue_id, CursorVisit *visit);
extern void cursor_end_visit(const CursorVisit *visit, bool found);
extern void cursor_silence(const CursorVisit *visit, bool exists);
extern bool cursor_next_news(Oid extension, uint32 *from,
							 CursorVisit *visit);
extern void cursor_end_news(const CursorVisit *visit, bool told);
extern Cursor *cursor_wait_begin(int32 queue_id);
extern void cursor_wait_end(bool pass_on);

/* xact.c: what is done when a transaction ends */

/* Every record of an XactList begins with this. */
typedef struct XactRecord
{
	int			nest_level;		/* of the subtransaction */
} XactRecord;

/*
 * Records of the current transaction.  A callback may be NULL; end and
 * roll_back run when the (sub)transaction is over, and must not fail.
 */
typedef struct XactList
{
	Size		record_size;
	void		(*before_end) (XactEvent event);	/* commit or prepare */
	void		(*end) (XactEvent event);	/* commit, prepare or abort */
	void		(*roll_back) (int first);	/* of a subtransaction, with the
											 * records from first on; NULL:
											 * they are removed */
	int			n;
	int			size;			/* there is room for so many */
	void	   *records;
} XactList;

static inline void *
xact_record(const XactList *list, int i)
{
	return (char *) list->records + i * list->record_size;
}

extern void xact_register(XactList *list);
extern void *xact_add(XactList *list);

/* touch.c: what this transaction did to messages */
extern void touch_init(void);
extern void touch_announce(void);
extern void touch_new_database(void);
extern void touch_wake_worker(void);
extern void touch_handlers(void);
extern void touch_new_queue(void);
extern void touch_queue(int32 queue_id);
extern void touch_message(const MessageForm *form, bool parked,
						  TimestampTz due, bool on_abort);
extern bool touch_next_own(int32 queue_id, TimestampTz now,
						   MessageRange *range);
extern void touch_look_again(int32 queue_id);
extern void touch_parked(const MessageForm *form, TimestampTz until,
						 TimestampTz due, bool on_abort);
extern bool touch_has_own_parked(int32 queue_id, TimestampTz now,
								 TimestampTz *from);
extern bool touch_next_queue(int32 *queue_id);

/* scan.c: runs of messages in the order of the index, one by its id */
typedef struct MessageScan MessageScan;

/* The row that a scan stands on. */
typedef struct ScanRow
{
	MessageTable *table;
	bool		in_range;		/* of the range that was added last */
	TupleTableSlot *slot;
	HeapTuple	tuple;			/* in slot */
	MessageForm *form;			/* of tuple */
} ScanRow;

extern MessageScan *scan_begin(int32 queue_id, bool by_priority,
							   LOCKMODE lockmode);
extern void scan_everywhere(MessageScan *scan);
extern void scan_add_segments(MessageScan *scan, int low_priority,
							  int high_priority, int64 low, int64 high);
extern void scan_add_numbers(MessageScan *scan, int priority, int64 first,
							 int64 last);
extern void scan_add_range(MessageScan *scan, const MessageRange *range,
						   MessageRanges *pending);
extern bool scan_range_has_rows(MessageScan *scan);
extern bool scan_has_rows(MessageScan *scan);
extern void scan_end_range(MessageScan *scan);
extern void scan_no_wait(MessageScan *scan);
extern bool scan_is_blocked(const MessageScan *scan);
pg_noreturn extern void scan_is_locked_out(void);
extern void scan_wait_for_table(MessageScan *scan);
extern void scan_end_parts(MessageScan *scan);
extern int	scan_add_due(MessageScan *scan, TimestampTz from, TimestampTz due,
						 int max, bool *more, TimestampTz *next);
extern void scan_take_due(MessageScan *scan);
extern TimestampTz scan_due_left(MessageScan *scan);
extern bool scan_next(MessageScan *scan, ScanRow *row);
extern void scan_end(MessageScan *scan);
extern MessageScan *scan_begin_claim(int32 queue_id, const ClaimId *claim,
									 LOCKMODE lockmode, bool everywhere);
extern MessageScan *scan_begin_list(int32 queue_id, int64 low,
									LOCKMODE lockmode, bool parked);
extern bool scan_find(int32 queue_id, int64 id, LOCKMODE lockmode,
					  MessageTable *table, TupleTableSlot **slot);

/* root.c: root jobs */
extern bool root_is_old(const Queue *queue, TupleDesc desc, HeapTuple tuple);
extern void root_forget(void);
extern void root_drop_all(int32 queue_id);

/* key.c: deduplication keys */

/* A message that was pushed with a key */
typedef struct KeyUse
{
	int32		queue_id;
	pg_uuid_t	digest;
	int64		id;
} KeyUse;

/* A run that stands for others with its key */
typedef struct KeyRun
{
	pg_uuid_t	digest;
	int64		joined;			/* pushes that it may not have seen */
	int			n;
	int64	   *twins;			/* ids */
} KeyRun;

extern bool key_take(const Queue *queue, const pg_uuid_t *digest, int64 id);
extern KeyUse *key_of(TupleDesc desc, HeapTuple tuple);
extern void key_drop_use(const KeyUse *use);
extern void key_drop(MessageTable *table, HeapTuple tuple);
extern void key_drop_all(int32 queue_id);
extern bool key_is_duplicate(const Queue *queue, MessageTable *table,
							 HeapTuple tuple);
extern HeapTuple key_begin(TupleDesc desc, HeapTuple tuple,
						   Snapshot snapshot);
extern KeyRun *key_run(TupleDesc desc, HeapTuple tuple);
extern void key_finish(const Queue *queue, const KeyRun *run, bool popped);

/* note.c: JSON objects, and what is rarely known of a message */
extern bool json_integer(const JsonbValue *value, int64 *integer);
extern bool json_field(Jsonb *object, const char *key, JsonbValue *value);
extern Jsonb *note_of(TupleDesc desc, HeapTuple tuple);
extern char *note_text(Jsonb *note, const char *key);
extern bool note_integer(Jsonb *note, const char *key, int64 *value);
extern Jsonb *note_set_text(Jsonb *note, const char *key, const char *value);
extern void json_add_text(JsonbParseState **state, const char *key,
						  const char *value);
extern void json_add_integer(JsonbParseState **state, const char *key,
							 int64 value);
extern HeapTuple note_replace(TupleDesc desc, HeapTuple tuple, Jsonb *note);

/* count.c: what job_stats shows */
extern void count_init(void);
extern void job_count(int32 queue_id, JobCounter counter, int64 n);
extern void job_error(int32 queue_id, const char *error);
extern bool count_is_due(void);
extern bool count_flush(uint32 *from, int max);
extern void count_flushed(int64 began);
extern void count_flush_again(void);
extern void count_drop(int32 queue_id);

/* result.c: messages as the functions return them */
#define Natts_queue_message		9

/* One that is kept for a caller inside */
typedef struct KeptMessage
{
	int64		id;
	int			claim_count;
	Datum		values[Natts_queue_message];
	bool		isnull[Natts_queue_message];
} KeptMessage;

typedef struct MessageResult
{
	ReturnSetInfo *rsinfo;		/* NULL: they are kept */
	MemoryContext context;		/* for those that are */
	KeptMessage *kept;
	int			nkept;
	const Queue *queue;
	Datum		name;			/* of the queue */
	ClaimId		claim;			/* what claim_text says */
	char		claim_text[CLAIM_ID_LENGTH + 1];
} MessageResult;

extern void result_begin(MessageResult *result, FunctionCallInfo fcinfo);
extern void result_put(MessageResult *result, const Queue *queue,
					   TupleDesc desc, HeapTuple tuple, TimestampTz now);
extern int	result_seconds(TimestampTz from, TimestampTz to);
extern Jsonb *result_body(TupleDesc desc, HeapTuple tuple);
extern int	ids_arg(ArrayType *array, Datum **ids);

/* store.c: new messages */
extern void store_messages(const Queue *queue, NewMessage *messages, int n);

/* push.c: for lazy pushes */
extern const char *push_args(FunctionCallInfo fcinfo, NewMessage *message);
extern void push_check_size(Jsonb *body);
extern void push_defaults(const Queue *queue, NewMessage *message);

/* lazy.c: pushes at commit */
extern void lazy_init(void);

/* dead.c: messages that were claimed too often */
extern int32 dead_require(const Queue *queue, Jsonb *metadata);
extern void dead_check_drop(const Queue *queue);
extern bool dead_can_bury(const Queue *queue);
extern bool dead_bury(const Queue *queue, MessageTable *table,
					  HeapTuple tuple);

/* walk.c: what a claim finds */

/* A message that this transaction has locked. */
typedef struct Taken
{
	MessageTable *table;
	HeapTuple	tuple;			/* a copy */
} Taken;

typedef struct TakenList
{
	int			n;
	int			size;
	Taken	   *items;
} TakenList;

/* Ids of messages that others had locked, in the order of the walk. */
typedef struct LockedList
{
	int			n;
	int			size;
	int64	   *items;
} LockedList;

typedef enum WalkMode
{
	WALK_TAKE,					/* lock what is free */
	WALK_PEEK,					/* find out whether something is */
	WALK_SWEEP					/* see to what is overdue */
} WalkMode;

/* Walks over a queue until something, or nothing, is found. */
typedef struct Walk
{
	const Queue *queue;
	WalkMode	mode;
	int			limit;			/* messages wanted */
	TimestampTz began;			/* the first walk */
	int			max_due;		/* parked messages to look at */
	bool		pops;			/* what is taken will be deleted */
	bool		alone;			/* what was tried before goes by itself */
	bool		may_bury;		/* the queue's dead letters go somewhere */
	bool		relooks;		/* at all of the queue */
	bool		hasty;			/* a probe does not wait for others */
	bool		plain;			/* without the cursor */
	int64		wait_until;		/* for others; 0: not yet */
	LockedList	locked_before;	/* by others, in the last walk */

	/* of this walk */
	TimestampTz walk_began;
	TimestampTz now;
	MessageScan *scan;
	int			nsnapshots;		/* that it pushed */
	int			found;			/* free messages, unless they are taken */
	int			looked;			/* messages that were looked at */
	TimestampTz due;			/* when the range was that it looks at */
	int			ended;			/* claims that have run out */
	int			ended_free;		/* those whose messages are only found */
	int64		last_token;		/* of the last one of them */
	TakenList	taken;
	TakenList	expired;
	TakenList	duplicates;
	TakenList	exhausted;
	LockedList	locked;
	int64		min_number;		/* of the taken ones */
	int64		max_number;
	int16		priorities;
	MessageRanges passed;		/* what may be claimed later */
	uint32		moves;			/* of the worker, when it began */
	bool		met_locked;		/* messages, by others */
	bool		full;			/* the claim's range cannot get wider */
	bool		gave_up;		/* waiting for others */
	bool		changed;		/* a row did, and may be free now */
	bool		more_due;		/* parked ones that we did not look at */
	bool		own_again;		/* messages of our own may be free yet */
	bool		parked_open;	/* a reservation */
	bool		parked_again;	/* look at parked ones at once */
	bool		parked_doubted; /* those that may be let go were looked at */
	bool		parked_doubtful;	/* one was locked */
	TimestampTz parked_next;	/* when the next one is due */
} Walk;

extern void walk_init(Walk *walk, const Queue *queue, int limit);
extern void walk_queue(Walk *walk);
extern void walk_end(Walk *walk);
extern bool walk_again(Walk *walk);
extern bool walk_uses_cursor(void);
extern bool walk_peek(const Queue *queue, bool hasty);
extern bool walk_sweep(const Queue *queue, bool *disturbed);

/* park.c: parked messages that are due */
extern bool park_bring_in(int32 queue_id, bool *more);

/* Of messages, that one transaction of the worker's moves */
#define MOVE_BYTES		(4 * 1024 * 1024)

/* turn.c: turning the ring */
extern bool turn_step(TimestampTz *again);

/* expire.c: messages whose lifetime is over */
extern bool expire_messages(int32 queue_id, int64 *marker,
							TimestampTz *next);

/* wait.c: for the worker */
extern void queue_channel_name(const char *project, const char *name,
							   char *channel);

#define CHANNEL_LENGTH		38

/* wait.c: for claim.c */
extern bool ready_are_known(uint64 *generation);
extern bool ready_were_known(uint64 generation);
extern int32 *flagged_as_ready(int *n);

/* claim.c: for handlers */
extern const char **queue_names_arg(ArrayType *array, int *n);
extern int	claim_jobs(const Queue *queue, int ttl, int grace, int limit,
					   MessageResult *result);

/* admin.c: for handlers */
extern bool queue_set_paused(const char *name, bool paused);

/* handler.c: what runs the jobs of queues */
extern Handler *handler_all(Oid role, int *n, HandlerVersion *version);
extern HandlerBrief *handler_briefs(int *n, HandlerVersion *version);
extern bool handler_is_current(const HandlerVersion *version);
extern char *handler_function_name(const HandlerFunction *function);
extern bool handler_is_same(const HandlerFunction *function);
extern const char *handler_check(Handler *handler);
extern void handler_stop(const Handler *handler, const char *reason);
extern int	handler_allowance(Handler *handler, TimestampTz now);
extern void handler_spend(Handler *handler, int n);
extern void handler_forget(int32 queue_id);

/* hold.c: claims of those who run jobs */
extern void hold_only(const Queue *queue, const ClaimId *claim, int64 keep,
					  int ttl, LockWaitPolicy wait);

/* run.c: running them */
typedef struct Run
{
	bool		is_session;		/* in job_run; else in a runner */
	bool		is_restricted;	/* the handler is not the session's own */
	bool		is_renewed;		/* its claims are, by the worker */
	Oid			extension;		/* its queue_table_oid() */
	Oid			user;			/* outside of handlers */
	int			nest_level;		/* of settings */
	HandlerVersion version;		/* of the handlers that were read */
	int			place;			/* among those who work for a queue, or -1 */
	int32		place_of;		/* the queue */
	int64		ok;
	int64		failed;
	int64		max_jobs;
	int64		began;			/* of the monotonic clock, as those below */
	int64		until;			/* no job begins then */
	int64		log_began;		/* the interval in which failures are counted */
	int			logged;			/* in that */
	int64		unlogged;		/* failures that were not, so far */
	MemoryContext handler_context;
	MemoryContext context;		/* for what was claimed at once */
	MemoryContext job_context;	/* for one job */
} Run;

extern void run_init(Run *run, bool is_session);
extern bool run_queue(Run *run, Handler *handler);
extern bool run_is_over(const Run *run);
extern void run_give_place(Run *run);
extern void run_end_log(Run *run);

/* launcher.c, worker.c, runner.c: processes */
extern void launcher_init(void);

/* lease.c: for claim_next and the runner */
extern int64 lease_complete(const Queue *queue, const char *claim_id);
extern bool lease_delete(const Queue *queue, int64 id, const ClaimId *claim);
extern bool lease_retry(const Queue *queue, int64 id, const ClaimId *claim,
						const char *error, int delay, bool by_handler,
						LockWaitPolicy wait, TimestampTz *due);
pg_noreturn extern void lease_not_live(void);

#endif							/* QUEUE_H */
