/*-------------------------------------------------------------------------
 *
 * place_owners.h
 *	  How many places in shared memory the queues of each owner have.
 *
 * src/map/place_owners.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_PLACE_OWNERS_H
#define QUEUE_PLACE_OWNERS_H

#include "shmem/shmem_table.h"

extern Size owners_memory(uint32 max_maps);
extern void owners_attach(void *memory);

/* Places of queues; the lock of the table of maps is held. */
extern EntryNumber owner_find(Oid role);
extern bool owner_may_have_queue(EntryNumber owner);
extern EntryNumber owner_add_queue(Oid role);
extern void owner_remove_queue(EntryNumber owner);

/* Places of groups and of their pieces; the lock of all lanes is held. */
extern uint32 *owner_places(EntryNumber owner, bool of_pieces);

#endif							/* QUEUE_PLACE_OWNERS_H */
