/*-------------------------------------------------------------------------
 *
 * hooks.h
 *	  The hook on utility commands.
 *
 * src/bgworker/hooks.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_HOOKS_H
#define QUEUE_HOOKS_H

extern void hooks_init(void);

#endif							/* QUEUE_HOOKS_H */
