/*-------------------------------------------------------------------------
 *
 * handler_check.h
 *	  Whether a handler may run: what its functions are, and what its role may
 *	  do.
 *
 * src/jobs/handler_check.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_HANDLER_CHECK_H
#define QUEUE_HANDLER_CHECK_H

#include "jobs/handler.h"

/* binding */
extern void handler_check_function(Oid function, bool is_teardown,
								   FunctionName *name);
extern const char *handler_login_problem(Oid role);

/* running */
extern const char *handler_check(Handler *handler);
extern void handler_report_stopped(const Handler *handler, int elevel,
								   const char *problem);
extern bool handler_is_same(const Handler *handler);
extern char *handler_function_name(const FunctionName *name);

#endif							/* QUEUE_HANDLER_CHECK_H */
