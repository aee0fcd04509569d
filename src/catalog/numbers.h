/*-------------------------------------------------------------------------
 *
 * numbers.h
 *	  Numbers from the extension's sequences, and the keys of claim ids.
 *
 * src/catalog/numbers.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_NUMBERS_H
#define QUEUE_NUMBERS_H

extern int64 numbers_next_block(void);
extern int32 numbers_next_queue_id(void);
extern int32 numbers_next_schedule_id(void);
extern int64 numbers_next_batch_id(void);
extern bool numbers_batch_id_is_used(int64 id);
extern const unsigned char *numbers_secret(int i);

#endif							/* QUEUE_NUMBERS_H */
