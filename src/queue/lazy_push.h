/*-------------------------------------------------------------------------
 *
 * lazy_push.h
 *	  Pushes that wait for the end of the transaction.
 *
 * src/queue/lazy_push.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_LAZY_PUSH_H
#define QUEUE_LAZY_PUSH_H

extern void lazy_push_init(void);

#endif							/* QUEUE_LAZY_PUSH_H */
