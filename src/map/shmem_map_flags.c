/*-------------------------------------------------------------------------
 *
 * shmem_map_flags.c
 *	  Flags of availability maps.
 *
 * NOTES
 *	  The bits of all maps are kept together, so that a session finds the maps
 *	  that have a flag without reading the others.  They are changed with the
 *	  lock of the map held, and read without it.
 *
 * src/map/shmem_map_flags.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/pg_bitutils.h"

#include "map/shmem_map_flags.h"
#include "map/shmem_maps.h"
#include "shmem/depth_state.h"

static pg_atomic_uint32 *flag_word(EntryNumber number, MapFlag flag);
static uint32 flag_bit(EntryNumber number);

/* Returns the word that has a map's flag. */
static pg_atomic_uint32 *
flag_word(EntryNumber number, MapFlag flag)
{
	return shmem_flag_words(flag) + number / 32;
}

/* Returns the bit of a map in the words of flags. */
static uint32
flag_bit(EntryNumber number)
{
	return (uint32) 1 << (number % 32);
}

/* Set a flag of a map, which is locked. */
void
shmem_set_flag(const AvailabilityMap *map, MapFlag flag)
{
	Assert(map_is_locked(map));

	/* Mostly it is set, and we need not write to a word that others read. */
	if (!shmem_has_flag(map, flag))
		pg_atomic_fetch_or_u32(flag_word(map->number, flag),
							   flag_bit(map->number));
}

/* Clear a flag of a map, which is locked. */
void
shmem_clear_flag(const AvailabilityMap *map, MapFlag flag)
{
	Assert(map_is_locked(map));
	if (shmem_has_flag(map, flag))
		pg_atomic_fetch_and_u32(flag_word(map->number, flag),
								~flag_bit(map->number));
}

bool
shmem_has_flag(const AvailabilityMap *map, MapFlag flag)
{
	return (pg_atomic_read_u32(flag_word(map->number, flag)) &
			flag_bit(map->number)) != 0;
}

/*
 * Returns whether the queue's map has this flag; true as well if the queue
 * has no map and may have messages, because then it might have the flag.
 */
bool
shmem_is_flagged(Oid extension, int32 queue_id, MapFlag flag)
{
	AvailabilityMap *map = shmem_find_map(extension, queue_id);
	bool		result;

	/* Where the depths are known, it has no messages (counts.c). */
	if (map == NULL)
		return depth_known() == 0;
	result = shmem_has_flag(map, flag);
	LWLockRelease(&map->lock);
	return result;
}

/*
 * Find the next map, of any database, that has the flag, whose number is not in
 * the set, and is *from or higher; *from moves on.  Returns NULL if there is no
 * other.
 */
AvailabilityMap *
shmem_next_flagged(MapFlag flag, const Bitmapset *except, uint32 *from)
{
	pg_atomic_uint32 *words = shmem_flag_words(flag);
	uint32		n = shmem_count_maps();

	while (*from <= n)
	{
		/* Not those below *from */
		uint32		word = pg_atomic_read_u32(&words[*from / 32]) >>
		(*from % 32);

		if (word == 0)
		{
			*from = (*from / 32 + 1) * 32;
			continue;
		}
		*from += (uint32) pg_rightmost_one_pos32(word);
		if (!bms_is_member((int) *from, except))
			return shmem_map_in_use((*from)++ - 1);
		(*from)++;
	}
	return NULL;
}
