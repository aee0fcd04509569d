/*-------------------------------------------------------------------------
 *
 * delayed.h
 *	  Moving delayed messages that are due into the ring that claims scan.
 *
 * src/storage/delayed.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_DELAYED_H
#define QUEUE_DELAYED_H

extern bool delayed_move_due(int32 queue_id, bool *more);

#endif							/* QUEUE_DELAYED_H */
