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

/* SQLSTATEs of our own */
#define ERRCODE_CLAIM_NOT_LIVE			MAKE_SQLSTATE('Q', 'U', '0', '0', '1')
#define ERRCODE_MESSAGE_NOT_IN_CLAIM	MAKE_SQLSTATE('Q', 'U', '0', '0', '2')
#define ERRCODE_MESSAGE_IS_CLAIMED		MAKE_SQLSTATE('Q', 'U', '0', '0', '3')

#endif							/* QUEUE_ERRCODES_H */
