/*-------------------------------------------------------------------------
 *
 * place_owners.c
 *	  How many places in shared memory the queues of each owner have.
 *
 * NOTES
 *	  The queues of one owner get at most half of the places of queues, and of
 *	  those of groups and their pieces, so that it cannot take those of others.  An owner has
 *	  an entry while it has a place of a queue.  The owner is that of the time
 *	  at which the queue gets its place.
 *
 *	  The lock of the table of maps protects the index and the numbers of
 *	  queues; that of all lanes protects the numbers of groups and pieces.
 *
 * src/map/place_owners.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"

#include "map/place_owners.h"
#include "shmem/shmem.h"
#include "util/settings.h"

typedef struct PlaceOwner
{
	TableEntry	entry;
	Oid			role;
	uint32		nqueues;
	uint32		ngroups;
	uint32		npieces;
} PlaceOwner;

/* What is shared besides the entries themselves */
typedef struct SharedOwners
{
	EntryNumber used;			/* the highest number that was ever used */
	EntryNumber unused;			/* the first unused one below that, or 0 */
} SharedOwners;

static SharedOwners *shared = NULL;
static Table owners = {.entry_size = MAXALIGN(sizeof(PlaceOwner))};

static PlaceOwner *owner_at(EntryNumber number);
static uint32 hash_role(Oid role);

/*
 * Returns how much memory is needed for the owners of so many maps at most,
 * each of which may be of another one.
 */
Size
owners_memory(uint32 max_maps)
{
	owners.size = max_maps;
	return MAXALIGN(sizeof(SharedOwners)) + table_memory(&owners);
}

/* Attach to this memory, which was all zero at first. */
void
owners_attach(void *memory)
{
	shared = memory;
	table_attach(&owners, (char *) memory + MAXALIGN(sizeof(SharedOwners)));
}

static PlaceOwner *
owner_at(EntryNumber number)
{
	return table_entry(&owners, number);
}

static uint32
hash_role(Oid role)
{
	return murmurhash32((uint32) role);
}

/* Returns the entry of an owner, or 0 if it has none. */
EntryNumber
owner_find(Oid role)
{
	for (TableEntry *entry = table_first(&owners, hash_role(role));
		 entry != NULL; entry = table_next(&owners, entry))
		if (((PlaceOwner *) entry)->role == role)
			return table_number(&owners, entry);
	return 0;
}

/* Returns whether the owner, which may have no entry, may have one more. */
bool
owner_may_have_queue(EntryNumber owner)
{
	return owner == 0 || owner_at(owner)->nqueues <
		(uint32) setting_max_active_queues / 2;
}

/* A queue of this owner gets a place.  Returns the owner's entry. */
EntryNumber
owner_add_queue(Oid role)
{
	EntryNumber number = owner_find(role);
	PlaceOwner *owner;

	if (number == 0)
	{
		number = shared->unused;
		if (number != 0)
			shared->unused = owner_at(number)->entry.next;
		else
			number = ++shared->used;
		owner = owner_at(number);
		owner->role = role;
		owner->nqueues = owner->ngroups = owner->npieces = 0;
		table_add(&owners, number, hash_role(role));
	}
	owner_at(number)->nqueues++;
	return number;
}

/* A queue of the owner has lost its place, and its groups theirs. */
void
owner_remove_queue(EntryNumber number)
{
	PlaceOwner *owner = owner_at(number);

	if (--owner->nqueues > 0)
		return;
	Assert(owner->ngroups == 0 && owner->npieces == 0);
	table_remove(&owners, number);
	owner->entry.next = shared->unused;
	shared->unused = number;
}

/*
 * Returns how many groups of the owner's queues have a place, or how many
 * pieces of these, to be changed.
 */
uint32 *
owner_places(EntryNumber owner, bool of_pieces)
{
	return of_pieces ? &owner_at(owner)->npieces : &owner_at(owner)->ngroups;
}
