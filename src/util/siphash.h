/*-------------------------------------------------------------------------
 *
 * siphash.h
 *	  SipHash-2-4, a hash with a secret key.
 *
 * src/util/siphash.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SIPHASH_H
#define QUEUE_SIPHASH_H

#define SIPHASH_KEY_BYTES	16

extern uint64 siphash(const unsigned char *key, const char *data,
					  Size length);

#endif							/* QUEUE_SIPHASH_H */
