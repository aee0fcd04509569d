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

#define QUEUE_PRIORITIES		10	/* 0 to 9 */
#define QUEUE_NAME_LENGTH		64	/* bytes */
#define QUEUE_PROJECT_LENGTH	256 /* bytes; of a client id, too */
#define QUEUE_GROUP_KEY_LENGTH	256 /* bytes */
#define QUEUE_ORIGIN_LENGTH		256 /* bytes */
#define QUEUE_BATCH_NAME_LENGTH	256 /* bytes */
#define QUEUE_TOPIC_LENGTH		255 /* bytes; of a pattern, too */
#define QUEUE_FILTER_LENGTH		4096	/* bytes; of a binding */
#define QUEUE_LIST_MAX			10000	/* rows of a listing */
#define QUEUE_LIFETIME_MAX		1209600 /* seconds; for settings of claims */
#define QUEUE_METADATA_MAX		65536	/* bytes, as text */
#define RUNNERS_MAX				256 /* processes that run handlers */
#define PROGRESS_NOTE_LENGTH	255 /* bytes; longer ones are cut */

#endif							/* QUEUE_LIMITS_H */
