/*-------------------------------------------------------------------------
 *
 * settings.h
 *	  The settings (GUC parameters).
 *
 * src/util/settings.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SETTINGS_H
#define QUEUE_SETTINGS_H

/* The session */
extern char *setting_project;
extern char *setting_client_id;
extern bool setting_durable_claims;

/* Bounds and defaults of arguments; see args.h */
extern int	setting_min_claim_ttl;	/* seconds */
extern int	setting_max_claim_ttl;
extern int	setting_min_claim_grace;
extern int	setting_max_claim_grace;
extern int	setting_default_claim_limit;
extern int	setting_max_claim_limit;
extern int	setting_min_message_ttl;	/* seconds */
extern int	setting_max_message_ttl;
extern int	setting_default_message_ttl;
extern int	setting_max_message_delay;
extern int	setting_max_retry_delay;
extern int	setting_max_message_size;	/* bytes */
extern int	setting_max_push_count;
extern int	setting_max_handler_time;	/* seconds */
extern bool setting_auto_create;

/* The server */
extern int	setting_max_active_queues;
extern int	setting_max_active_groups;
extern int	setting_database_workers;
extern int	setting_runners;
extern int	setting_max_runners;
extern int	setting_runner_idle_time;	/* seconds */
extern int	setting_worker_naptime; /* milliseconds */
extern int	setting_segment_size;	/* kilobytes; 0 for unlimited */

extern void settings_define(bool preloaded);
extern void settings_without_transaction_timeout(void);
extern void settings_set(const char *setting, const char *value, bool local);

#endif							/* QUEUE_SETTINGS_H */
