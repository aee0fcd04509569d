/*-------------------------------------------------------------------------
 *
 * session_lock.h
 *	  Heavyweight locks that a process holds over its transactions.
 *
 * src/util/session_lock.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SESSION_LOCK_H
#define QUEUE_SESSION_LOCK_H

#include "storage/lock.h"

extern LockAcquireResult session_lock_try(const LOCKTAG *tag, LOCKMODE mode);
extern bool session_lock_has_user_locks(void);

#endif							/* QUEUE_SESSION_LOCK_H */
