/*-------------------------------------------------------------------------
 *
 * shard.h
 *	  Which queues are in this database, and which on other servers.
 *
 * src/queue/shard.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SHARD_H
#define QUEUE_SHARD_H

#define SHARDS				256

/* The shard of a queue */
extern int	shard_of(const char *project, const char *name);

/* Whether a queue is in this database */
extern bool shard_is_local(const char *project, const char *name);
extern void shard_check(const char *name);
extern bool shard_check_missing(const char *name);
extern void shard_lock(const char *name);

/* The map */
extern bool shard_map_exists(void);
extern void shard_init(int server, int servers);

/* Shards that come and go */
extern void shard_change(int shard);
extern void shard_count_copied(int32 queue_id);

#endif							/* QUEUE_SHARD_H */
