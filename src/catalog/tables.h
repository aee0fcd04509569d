/*-------------------------------------------------------------------------
 *
 * tables.h
 *	  The shape of the extension's tables.
 *
 * src/catalog/tables.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_TABLES_H
#define QUEUE_TABLES_H

#include "access/htup_details.h"
#include "datatype/timestamp.h"

#define QUEUE_SEGMENTS			16	/* tables in the ring */
#define QUEUE_DELAYED			16	/* the first of those of delayed messages */
#define QUEUE_DELAYED_SEGMENTS	4
#define QUEUE_RELATIONS			20	/* all that hold messages */

/*
 * The columns of a segment, and of those of delayed messages.  The fixed-width ones
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
#define Anum_message_attributes				16
#define Anum_message_twins				17
#define Anum_message_twins_joined		18
#define Anum_message_covered			19
#define Anum_message_body				20
#define Natts_message					20
#define Anum_delayed_due_at				21
#define Natts_delayed					21

/* Attribute numbers of queue_data.ring, which has one row */
#define Anum_ring_active				1
#define Anum_ring_switched_at			2
#define Anum_ring_delayed				3
#define Anum_ring_delayed_switched_at	4
#define Natts_ring						4

/* Attribute numbers of queue_data.segment, which has a row for each segment */
#define Anum_segment_segment			1
#define Anum_segment_truncated_at		2
#define Natts_segment					2

#define Natts_dedup_key				4
#define Natts_root_job						3
#define Natts_job_counter					10
#define Natts_handler					17
#define Natts_schedule					8

/*
 * There are two rings of segments: one of the messages that claims look for,
 * in the order in which they are handed out, and one of those that are not to
 * be handed out before a time, in the order of that.
 */
typedef enum RingKind
{
	RING_MESSAGES,
	RING_DELAYED,
	RING_KINDS
} RingKind;

static inline RingKind
segment_kind(int segment)
{
	return segment < QUEUE_DELAYED ? RING_MESSAGES : RING_DELAYED;
}

static inline bool
segment_is_delayed(int segment)
{
	return segment >= QUEUE_DELAYED;
}

/* What is counted of each queue (counters.c) */
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

#endif							/* QUEUE_TABLES_H */
