/*-------------------------------------------------------------------------
 *
 * limits.h
 *	  Limits that are not settings.
 *
 * src/util/limits.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_LIMITS_H
#define QUEUE_LIMITS_H

#define QUEUE_PRIORITIES		10
#define QUEUE_NAME_LENGTH		64
#define QUEUE_PROJECT_LENGTH	256
#define QUEUE_LIST_MAX			10000	/* rows of one listing */
#define QUEUE_LIFETIME_MAX		1209600 /* seconds; of a claimed message */
#define QUEUE_METADATA_MAX		65536	/* bytes */
#define RUNNERS_MAX			256

#endif							/* QUEUE_LIMITS_H */
