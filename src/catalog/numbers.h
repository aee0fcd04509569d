/*-------------------------------------------------------------------------
 *
 * numbers.h
 *	  Numbers from the extension's sequences.
 *
 * src/catalog/numbers.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_NUMBERS_H
#define QUEUE_NUMBERS_H

extern int64 numbers_next_block(void);
extern int32 numbers_next_queue_id(void);
extern int64 numbers_next_batch_id(void);
extern bool numbers_batch_id_is_used(int64 id);

#endif							/* QUEUE_NUMBERS_H */
