/*-------------------------------------------------------------------------
 *
 * errcodes.h
 *	  SQLSTATEs of the extension.
 *
 * src/util/errcodes.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_ERRCODES_H
#define QUEUE_ERRCODES_H

/* The claim is not live: it has expired, was released, or never existed. */
#define ERRCODE_CLAIM_NOT_LIVE			MAKE_SQLSTATE('Q', 'U', '0', '0', '1')

/* The message exists, but is not in the claim. */
#define ERRCODE_MESSAGE_NOT_IN_CLAIM	MAKE_SQLSTATE('Q', 'U', '0', '0', '2')

/* A live claim holds the message, and no claim id was given. */
#define ERRCODE_MESSAGE_IS_CLAIMED		MAKE_SQLSTATE('Q', 'U', '0', '0', '3')

/*
 * The message was canceled, so nothing that was done for it may take effect.
 */
#define ERRCODE_MESSAGE_CANCELED		MAKE_SQLSTATE('Q', 'U', '0', '0', '4')

/* Raised by a handler: no retry mends the error, so the job is buried. */
#define ERRCODE_BURY_JOB				MAKE_SQLSTATE('Q', 'U', '0', '0', '5')

/* The queue's shard is on another server. */
#define ERRCODE_SHARD_NOT_LOCAL			MAKE_SQLSTATE('Q', 'U', '0', '1', '0')

#endif							/* QUEUE_ERRCODES_H */
