/*-------------------------------------------------------------------------
 *
 * tables.h
 *	  The shape of the extension's tables.
 *
 * NOTES
 *	  The tables are created by src/sql, which has to agree.  Rows are written
 *	  without the executor, by attribute number.
 *
 * src/catalog/tables.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_TABLES_H
#define QUEUE_TABLES_H

#include "datatype/timestamp.h"

/* --- Segments: message_0 and so on, and delayed_0 and so on --- */

#define MESSAGE_SEGMENTS		16	/* message_0 ... message_15 */
#define DELAYED_SEGMENTS		4	/* delayed_0 ... delayed_3 */
#define FIRST_DELAYED_SEGMENT	MESSAGE_SEGMENTS	/* number of delayed_0 */
#define ALL_SEGMENTS			(MESSAGE_SEGMENTS + DELAYED_SEGMENTS)
#define NO_SEGMENT				(-1)

/*
 * There are two rings of segments.  One is of the messages that claims
 * scan; its index is in the order in which they are handed out.  The other one
 * is of delayed messages, with an index by the time at which they are due.
 * The tables of the history are rings, too.
 */
typedef enum RingKind
{
	RING_MESSAGES,
	RING_DELAYED,
	RING_KINDS,					/* number of rings of segments */
	RING_FINISHED = RING_KINDS, /* the first one of the history */
	RINGS = RING_FINISHED + 5	/* number of all rings */
} RingKind;

static inline RingKind
segment_kind(int segment)
{
	return segment < FIRST_DELAYED_SEGMENT ? RING_MESSAGES : RING_DELAYED;
}

static inline bool
segment_is_delayed(int segment)
{
	return segment >= FIRST_DELAYED_SEGMENT;
}

/*
 * The fixed-width columns of a message.  A row has some of them in another
 * form; see storage/message_row.c.
 */
typedef struct MessageForm
{
	int64		id;
	TimestampTz created_at;
	TimestampTz expires_at;		/* later if a live claim holds it */
	int32		queue_id;
	int16		priority;

	/* The claim */
	int64		claim_token;	/* 0 if not claimed */
	TimestampTz claimed_at;		/* when it was claimed or renewed */
	TimestampTz claimed_until;
	int64		claim_first;	/* lowest message number in the claim */
	int32		claim_span;		/* the highest one is that much above */
	int32		claim_grace;	/* seconds */
	int32		claim_count;	/* how often it was claimed */
	int16		claim_priorities;	/* bit p: the claim has messages of
									 * priority p */
	bool		is_canceled;	/* it is removed when the claim ends */
	bool		end_counted;	/* the claim has ended, and the message counts
								 * as ready (message.c) */
	bool		is_delayed;		/* the row is in a table of delayed messages,
								 * where it does not expire */
} MessageForm;

#define Anum_message_id					1
#define Anum_message_created_at			2
#define Anum_message_queue_id			3
#define Anum_message_priority			4
#define Anum_message_body				5
#define Anum_message_ttl				6
#define Natts_message_short				6	/* new, no optional column */

/* Of the claim; all of them are there, or none */
#define Anum_message_claim_token		7
#define Anum_message_claimed_until		8
#define Anum_message_claim_ttl			9
#define Anum_message_claim_grace		10
#define Anum_message_claim_offset		11
#define Anum_message_claim_span			12
#define Anum_message_claim_count		13
#define Anum_message_claim_priorities	14
#define Natts_message_claimed			14	/* no optional column */

/* Optional columns, which most messages do not have */
#define Anum_message_client_id			15
#define Anum_message_dedup				16
#define Anum_message_attributes			17
#define Anum_message_twins				18
#define Anum_message_twins_joined		19
#define Anum_message_covered			20
#define Anum_message_group_key			21
#define Anum_message_headers			22

/* Of delayed messages only: when it is due, infinity for one that waits */
#define Anum_message_due_at				23

/* Of batches */
#define Anum_message_batch				24	/* it is a member of */
#define Anum_message_after_batch		25	/* it waits for; the next two say
											 * what follows */
#define Anum_message_after_delay		26	/* seconds */
#define Anum_message_after_success		27
#define Natts_message					27

/* Columns of their indexes message_N_idx, delayed_N_id_idx, delayed_N_due_idx,
 * message_N_batch_idx and delayed_N_batch_idx, delayed_N_after_idx
 */
#define Anum_message_idx_queue_id		1
#define Anum_message_idx_priority		2
#define Anum_message_idx_id				3
#define Anum_delayed_id_idx_queue_id	1
#define Anum_delayed_id_idx_id			2
#define Anum_delayed_due_idx_queue_id	1
#define Anum_delayed_due_idx_priority	2
#define Anum_delayed_due_idx_due_at		3
#define Anum_message_batch_idx_batch	1	/* or after_batch */
#define Anum_message_batch_idx_id		2

/* queue_data.ring: the active segments, in one row */
#define Anum_ring_active				1
#define Anum_ring_switched_at			2
#define Anum_ring_delayed				3
#define Anum_ring_delayed_switched_at	4
#define Natts_ring						4

/* queue_data.segment: when each segment was truncated */
#define Anum_segment_segment			1
#define Anum_segment_truncated_at		2
#define Natts_segment					2

/* --- Queues --- */

/* queue_data.queue */
#define Anum_queue_id					1
#define Anum_queue_owner				2
#define Anum_queue_paused				3
#define Anum_queue_created_at			4
#define Anum_queue_project				5
#define Anum_queue_name					6
#define Anum_queue_metadata				7
#define Anum_queue_push_roles			8
#define Anum_queue_claim_roles			9
#define Anum_queue_admin_roles			10
#define Anum_queue_dead_queue_id		11
#define Anum_queue_source_id			12
#define Anum_queue_lane_secret			13
#define Natts_queue						13

/* What is counted of each queue, in the order of the columns of job_counter */
typedef enum JobCounter
{
	JOB_CLAIMED,				/* messages handed out */
	JOB_COMPLETED,				/* messages deleted by their claims */
	JOB_RETRIED,				/* messages given back by message_retry */
	JOB_ABANDONED,				/* messages moved to the dead letter queue */
	JOB_DUPLICATES,				/* pushes and messages dropped as duplicates */
	JOB_EXPIRED,				/* messages removed at the end of their
								 * lifetime */
	JOB_PUSHED,					/* messages that came into the queue, dead
								 * letters and redriven ones included */
	JOB_COUNTERS				/* number of counters */
} JobCounter;

/* job_stats returns the first of them */
#define JOB_STATS_COUNTERS		(JOB_EXPIRED + 1)

/* queue_data.job_counter; the counters are between queue_id and since */
#define Anum_job_counter_queue_id		1
#define Anum_job_counter_since			(JOB_COUNTERS + 2)
#define Anum_job_counter_last_error_at	(JOB_COUNTERS + 3)
#define Anum_job_counter_last_error		(JOB_COUNTERS + 4)
#define Natts_job_counter				(JOB_COUNTERS + 4)

/* queue_data.dedup_key: deduplication keys */
#define Anum_dedup_key_queue_id			1
#define Anum_dedup_key_digest			2
#define Anum_dedup_key_message_ids		3
#define Anum_dedup_key_joined			4
#define Anum_dedup_key_pushed_at		5	/* of the last push with a period,
											 * or null; the same for: */
#define Anum_dedup_key_kept_until		6	/* the row stays so long */
#define Anum_dedup_key_version			7	/* see row_find_unique() */
#define Natts_dedup_key					7

/* queue_data.root_job */
#define Anum_root_job_queue_id			1
#define Anum_root_job_digest			2
#define Anum_root_job_registered_at		3
#define Natts_root_job					3

/* queue_data.group_rate: groups with a rate */
#define Anum_group_rate_lane			1
#define Anum_group_rate_delivered_at	2
#define Anum_group_rate_next_at			3
#define Anum_group_rate_queue_id		4
#define Natts_group_rate				4

/* queue_data.grouped: queues with groups */
#define Anum_grouped_queue_id			1
#define Natts_grouped					1

/* --- Jobs --- */

/* queue_data.handler */
#define Anum_handler_queue_id			1
#define Anum_handler_role				2
#define Anum_handler_concurrency		3
#define Anum_handler_timeout			4
#define Anum_handler_rate				5
#define Anum_handler_next_at			6
#define Anum_handler_bound_at			7
#define Anum_handler_takes_jsonb		8
#define Anum_handler_logs_in			9
#define Anum_handler_loaded_by			10
#define Anum_handler_function_schema	11
#define Anum_handler_function_name		12
#define Anum_handler_search_path		13
#define Anum_handler_teardown_takes_jsonb	14
#define Anum_handler_teardown_schema	15
#define Anum_handler_teardown_name		16
#define Anum_handler_stopped			17	/* not used since 2.0 */
#define Natts_handler					17

/* --- Claims --- */

/* queue_data.secret: keys that claim ids are signed with */
#define Anum_secret_created_at			1
#define Anum_secret_key					2
#define Natts_secret					2

/* --- Batches --- */

/* queue_data.batch */
#define Anum_batch_id					1
#define Anum_batch_owner				2
#define Anum_batch_created_at			3
#define Anum_batch_closed_at			4
#define Anum_batch_finished_at			5
#define Anum_batch_members				6
#define Anum_batch_completed			7
#define Anum_batch_failed				8
#define Anum_batch_shard				9
#define Anum_batch_name					10
#define Natts_batch						10

/* queue_data.batch_part */
#define Anum_batch_part_batch			1
#define Anum_batch_part_members			2
#define Anum_batch_part_failed			3
#define Natts_batch_part				3

/* --- History --- */

/* queue_data.finished_0 and so on: messages that are finished */
#define FINISHED_SEGMENTS				18	/* of all rings */
#define Anum_finished_id				1
#define Anum_finished_pushed_at			2
#define Anum_finished_finished_at		3
#define Anum_finished_queue_id			4
#define Anum_finished_attempts			5
#define Anum_finished_outcome			6
#define Anum_finished_is_attempt		7
#define Anum_finished_batch				8
#define Anum_finished_group_key			9
#define Anum_finished_result			10
#define Anum_finished_error				11
#define Anum_finished_body				12
#define Natts_finished					12

/* queue_data.finished_ring: which of them take new rows, a row for each ring */
#define Anum_finished_ring_active		1
#define Anum_finished_ring_switched_at	2
#define Natts_finished_ring				2

/* What became of a message; the numbers are in rows */
typedef enum FinishedOutcome
{
	FINISHED_COMPLETED,			/* deleted by its claim, or popped */
	FINISHED_DEAD,				/* a dead letter */
	FINISHED_EXPIRED,
	FINISHED_CANCELED,
	FINISHED_DUPLICATE,			/* another run has made it unnecessary */
	FINISHED_DELETED,			/* without a claim */
	FINISHED_FAILED,			/* an attempt only, not the message: for
								 * job_errors */
	FINISHED_OUTCOMES			/* number of outcomes */
} FinishedOutcome;

/* --- Topics --- */

/* queue_data.topic: bindings of queues */
#define Anum_topic_queue_id				1
#define Anum_topic_project				2
#define Anum_topic_pattern				3
#define Anum_topic_filter				4
#define Anum_topic_publishers			5
#define Anum_topic_bound_at				6
#define Natts_topic						6

/* --- Several servers --- */

/* queue_data.server: the number of this one */
#define Anum_server_number				1
#define Natts_server					1

/* queue_data.shard: the map of shards */
#define Anum_shard_shard				1
#define Anum_shard_state				2
#define Anum_shard_peer					3
#define Natts_shard						3

/* queue_data.push_origin: pushes that take effect once */
#define Anum_push_origin_origin_id		1
#define Anum_push_origin_message_id		2
#define Anum_push_origin_pushed_at		3
#define Anum_push_origin_queue_id		4
#define Anum_push_origin_origin			5
#define Natts_push_origin				5

#endif							/* QUEUE_TABLES_H */
