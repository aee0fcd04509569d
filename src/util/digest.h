/*-------------------------------------------------------------------------
 *
 * digest.h
 *	  Digests of text.
 *
 * src/util/digest.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_DIGEST_H
#define QUEUE_DIGEST_H

#include "utils/uuid.h"

extern void digest_text(const char *string, pg_uuid_t *digest);

#endif							/* QUEUE_DIGEST_H */
