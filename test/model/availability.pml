/*
 * test/model/availability.pml
 *	  The protocol of the availability map (src/map/availability*.c,
 *	  src/storage/pending.c, src/claim/claim_scan*.c), to be checked by spin.
 *	  The bounds of each run are in test/model/run.
 *
 * NOTES
 *	  There is one queue with one priority, and a few messages.  Pushers
 *	  insert messages.  Claimers claim them, one in each call, and release,
 *	  delete or keep them.  A claimer chooses a message without a lock, gives
 *	  back the rest of its range, marks the message, and closes its
 *	  reservation; without the map it locks the message at once.  Any of these
 *	  transactions may be rolled back, or be prepared, and then committed or
 *	  rolled back by another session.  A step of the model is what happens
 *	  while the lock of the map is held, or to one row under the lock of its
 *	  page, or one look at the proc array.  Between any two steps all other
 *	  processes may take theirs.  The function in C that a step stands for is
 *	  named beside it.
 *
 *	  These properties are checked:
 *
 *	  1.  At the end, the next claim scans every free message: its number is
 *	  between next and end, or in a range that is due or has something locked, or there
 *	  is no map, and the next one knows nothing, so that all is scanned.
 *
 *	  2.  No two live claims have the same message.
 *
 *	  3.  A claim that finds nothing is right: no message was free all through
 *	  the call; and with STRICT, there was a moment in the call at which none
 *	  was free.  A message counts as free when a new snapshot shows it as
 *	  free, no transaction has locked it, and the transaction that made it
 *	  free has returned to its client, or was one of plain SQL.  STRICT holds only where each transaction reports its end and no
 *	  claim runs out.  Otherwise one message may become free, without a
 *	  callback, after it was scanned, and before another session, which scans
 *	  another message, has marked that.
 *
 *	  4.  No process waits forever (spin's check for invalid end states).
 *
 *	  5.  With ORDER, where there is only one claimer besides probes and
 *	  sweeps, it claims the first message of those that were free all through
 *	  its call.
 *
 *	  Left out are: more than one priority (each has its own next and end, and
 *	  ranges of two are never united); delayed messages (delayed.pml); expired
 *	  and exhausted messages, and other messages that a claim with a map locks
 *	  at once; claims of more than one message; what the pending change of a
 *	  message that was lost to another transaction returns to the map once
 *	  more; blocks of more than one number; the splitting of wide ranges
 *	  (take_range), of which the rest stays as it was.
 *	  Ranges with something locked are never due by the clock.  They are scanned only
 *	  before a call returns an empty result, and by sweeps.  There are two
 *	  moments in time: claims made at the first run out at the second.  Memory
 *	  is sequentially consistent, as locks make it.
 *
 *	  The size of a run: NUMBERS there are; EXISTING messages at the start;
 *	  PUSHERS, CLAIMERS, CALLS of each claimer; PROBERS, each of which probes
 *	  once; SWEEPS of the worker; EVICTIONS, when the map is given back.  What
 *	  may happen in it: ABORT, RELEASE, HAND (a row is locked with plain SQL),
 *	  UPDATE (or updated), ERROR (in a scan, or before or after the mark),
 *	  CLOCK (claims run out), IMPATIENT (a claim does not wait for other
 *	  sessions any longer, and scans without the map).  The defines that make
 *	  the model wrong are in test/model/run.
 */

#define RANGES	2				/* MESSAGE_RANGES_MAX: so few that they are
								 * often united */
#define NONE	255

/* The state of a row, as a snapshot sees it; see vis */
#define ABSENT	0
#define FREE	1
#define CLAIMED	2
#define GONE	3

/* Besides these, what a row becomes at the end of a transaction */
#define AS_IS	4				/* the row is only locked */

/*
 * The process that has locked a row: a pusher or claimer, by its number plus
 * 1; or one of these
 */
#define BY_HAND	101

/* Moments at which a range or claim is due */
#define AT_ONCE	0				/* DT_NOBEGIN */
#define LATER	1				/* the second moment */
#define NEVER	3				/* in this run; availability_recheck_at() */

#ifndef PROBERS
#define PROBERS	0
#endif
#ifndef SWEEPS
#define SWEEPS	0
#endif

/* Sessions: claimers, then probers, then the worker that sweeps */
#if SWEEPS > 0
#define SESSIONS (CLAIMERS + PROBERS + 1)
#else
#define SESSIONS (CLAIMERS + PROBERS)
#endif
#define SWEEPER	(SESSIONS - 1)

#define BIT(n)	(1 << (n))
#define ALL		(BIT(SESSIONS) - 1)

/*
 * MessageRange.  scanned: a bit for each claimer whose call began before the
 * range was last scanned, so that the claimer need not scan it again.  That
 * is all that scanned_at is used for.  swept: is_swept.
 */
typedef Range
{
	byte first;
	byte last;
	byte due;
	bool is_locked;
	byte scanned;
	bool swept
};

typedef Ranges					/* MessageRanges */
{
	byte count;
	Range item[RANGES]
};

/* --- The tables --- */

typedef Row
{
	byte state;					/* committed */
	byte until;					/* if it is CLAIMED */
	byte writer;				/* the process that has locked it; 0: none */
	byte pending;				/* what the row becomes when it commits */
	byte new_until
};

Row row[NUMBERS];
byte now = 0;
byte sequence = EXISTING;

/* Snapshots: what each row was, and which rows have changed since */
typedef Snapshot
{
	byte state[NUMBERS];
	byte until[NUMBERS];
	byte stale
};

Snapshot vis[SESSIONS];

/* --- The availability map --- */

bool exists = false;
bool knows;						/* knows_numbers */
byte next;
byte end;						/* NUMBERS: of all numbers */
byte open;
byte incarnation = 0;

/* Those of the map come last; the others are what each scan has skipped. */
#define MAP	SESSIONS
Ranges ranges[SESSIONS + 1];

/* --- What exists only for the checks --- */

byte returned = BIT(EXISTING) - 1;	/* those whose transaction has */
byte calling = 0;				/* sessions that are in a call */
byte began[SESSIONS];			/* those that were when this one read the
								 * clock */
byte mine_scanned[SESSIONS];	/* "scanned" of the range that is reserved */
byte free_since[SESSIONS];		/* messages that were free all through the
								 * call */
byte was_empty = 0;				/* sessions that have seen none free */
byte claim_of[CLAIMERS];			/* the message, plus 1 */
byte claim_until[CLAIMERS];

hidden byte i_;
hidden byte j_;
hidden byte k_;
hidden byte best_;
hidden byte locked_;
hidden byte mask_;

#define is_free(n)	((row[n].state == FREE || \
					  (row[n].state == CLAIMED && row[n].until <= now)) && \
					 row[n].writer == 0)

/* After a change: which messages are free now? */
inline record_free()
{
	mask_ = 0;
	for (i_ : 0 .. NUMBERS - 1) {
		if
		:: is_free(i_) && (returned & BIT(i_)) -> mask_ = mask_ | BIT(i_)
		:: else
		fi
	}
	for (i_ : 0 .. SESSIONS - 1) {
		free_since[i_] = free_since[i_] & mask_
	}
	if
	:: mask_ == 0 -> was_empty = was_empty | calling
	:: else
	fi;
	i_ = 0; mask_ = 0
}

/* --- Sets of ranges --- */

inline clear_range(set, nr)
{
	ranges[set].item[nr].first = 0;
	ranges[set].item[nr].last = 0;
	ranges[set].item[nr].due = 0;
	ranges[set].item[nr].is_locked = 0;
	ranges[set].item[nr].scanned = 0;
	ranges[set].item[nr].swept = false
}

inline clear_ranges(set)
{
	ranges[set].count = 0;
	for (i_ : 0 .. RANGES - 1) {
		clear_range(set, i_)
	}
}

/* unite(): of two ranges with something locked, the earlier scanned_at is kept. */
inline unite(set, nr, from, to, at, locked_by, scanned_by)
{
	ranges[set].item[nr].first =
		(from < ranges[set].item[nr].first ->
		 from : ranges[set].item[nr].first);
	ranges[set].item[nr].last =
		(to > ranges[set].item[nr].last -> to : ranges[set].item[nr].last);
	ranges[set].item[nr].due =
		(at < ranges[set].item[nr].due -> at : ranges[set].item[nr].due);
	if
	:: !ranges[set].item[nr].is_locked ->
		ranges[set].item[nr].scanned = scanned_by
	:: ranges[set].item[nr].is_locked && locked_by ->
		ranges[set].item[nr].scanned =
			ranges[set].item[nr].scanned & scanned_by
	:: else
	fi;
	ranges[set].item[nr].is_locked =
		ranges[set].item[nr].is_locked || locked_by
}

/* similar() */
#define similar(s, n, d, q, t) \
	(ranges[s].item[n].is_locked == (q) && \
	 (ranges[s].item[n].due == (d) || \
	  (ranges[s].item[n].due > AT_ONCE && (d) > AT_ONCE && \
	   ranges[s].item[n].due <= t && (d) <= t)))

/* unite_cheapest(); with two ranges there is only one choice. */
inline unite_cheapest(set)
{
	if
	:: ranges[set].count == RANGES ->
		unite(set, 0, ranges[set].item[1].first, ranges[set].item[1].last,
			  ranges[set].item[1].due, ranges[set].item[1].is_locked,
			  ranges[set].item[1].scanned);
		ranges[set].count--;
		clear_range(set, 1)
	:: else
	fi
}

/* A range that is swept is united with none. */
#ifndef UNITE_SWEPT
#define is_swept(set, nr)	(ranges[set].item[nr].swept)
#else
#define is_swept(set, nr)	(false)
#endif

/* message_ranges_add().  Ranges that meet are united. */
inline add_range(set, from, to, at, locked_by, scanned_by, time)
{
	j_ = NONE;
	i_ = ranges[set].count;
	do
	:: i_ > 0 ->
		i_--;
		if
		:: j_ == NONE && !is_swept(set, i_) &&
		   from <= ranges[set].item[i_].last + 1 &&
		   ranges[set].item[i_].first <= to + 1 &&
		   similar(set, i_, at, locked_by, time) ->
			j_ = i_
		:: else
		fi
	:: else -> break
	od;
	if
	:: j_ != NONE ->
		unite(set, j_, from, to, at, locked_by, scanned_by)
	/* If one is swept, only the other one and the new one are left. */
	:: j_ == NONE && ranges[set].count == RANGES && is_swept(set, 0) ->
		unite(set, 1, from, to, at, locked_by, scanned_by)
	:: j_ == NONE && ranges[set].count == RANGES && is_swept(set, 1) ->
		unite(set, 0, from, to, at, locked_by, scanned_by)
	:: else ->
		unite_cheapest(set);
		j_ = ranges[set].count;
		ranges[set].item[j_].first = from;
		ranges[set].item[j_].last = to;
		ranges[set].item[j_].due = at;
		ranges[set].item[j_].is_locked = locked_by;
		ranges[set].item[j_].scanned = (locked_by -> (scanned_by) : 0);
		ranges[set].item[j_].swept = false;
		ranges[set].count++
	fi;
	i_ = 0; j_ = 0
}

/* --- The map is made and given back --- */

/* availability_reset(), availability_clear() */
inline reset_map()
{
	incarnation++;
	knows = false;
	next = 0;
	end = NUMBERS;
	clear_ranges(MAP)
}

/* shmem_get_map(), make_map() */
inline get_map()
{
	if
	:: !exists -> exists = true; open = 0; reset_map()
	:: else
	fi
}

#if EVICTIONS > 0
/* give_back_map(): one with open reservations is not given back. */
proctype evictor()
{
	byte left = EVICTIONS;

	do
	:: d_step {
#ifdef EVICT_OPEN
			left > 0 && exists ->
#else
			left > 0 && exists && open == 0 ->
#endif
			exists = false; knows = false; next = 0; end = 0;
			clear_ranges(MAP);
			left--;
			printf("the map is given back\n")
		}
	:: break
	od
}
#endif

/* --- Transactions --- */

/* The snapshots that show the row show the version before. */
inline make_stale(n)
{
	for (i_ : 0 .. SESSIONS - 1) {
		if
		:: vis[i_].state[n] != ABSENT -> vis[i_].stale = vis[i_].stale | BIT(n)
		:: else
		fi
	}
	i_ = 0
}

/* ProcArrayEndTransaction(); the same for a prepared one. */
inline leave(n, commit)
{
	if
	:: commit && row[n].pending != AS_IS ->
		row[n].state = row[n].pending;
		row[n].until = (row[n].pending == CLAIMED -> row[n].new_until : 0);
		make_stale(n)
	:: else
	fi;
	printf("%d: left by %d, commit %d\n", n, row[n].writer, commit);
	row[n].writer = 0;
	row[n].pending = 0;
	row[n].new_until = 0
}

/* availability_return(): called by pending_end() through return_records() */
inline return_range(nr, at)
{
	printf("%d is returned, due %d\n", nr, at);
	if
	:: exists && nr < next -> add_range(MAP, nr, nr, at, false, 0, now)
	:: else
	fi
}

/* A transaction that did one thing, to message n, commits. */
inline commit_transaction(n, d, reports)
{
#ifdef RETURN_BEFORE_COMMIT
	d_step {
		if
		:: reports -> return_range(n, d)
		:: else
		fi
	};
#endif
	d_step { leave(n, true); returned = returned & ~BIT(n); record_free() };
	d_step {
#ifndef RETURN_BEFORE_COMMIT
		if
		:: reports -> return_range(n, d)	/* XACT_EVENT_COMMIT */
		:: else
		fi;
#endif
		returned = returned | BIT(n);
		record_free()
	}
}

inline roll_back(n, on_abort)
{
	d_step { leave(n, false); returned = returned & ~BIT(n); record_free() };
	d_step {
#ifndef NO_RETURN_AT_ABORT
		if
		:: on_abort -> return_range(n, AT_ONCE)	/* XACT_EVENT_ABORT */
		:: else
		fi;
#endif
		returned = returned | BIT(n);
		record_free()
	}
}

/* --- Pushers --- */

/* numbers_next_block(), with blocks of one number */
inline next_block(b)
{
	d_step { b = sequence; sequence++ }
}

/* availability_take_numbers(), with the map locked */
inline take_number()
{
	get_map();
	if
	:: block == NONE || (!knows && incarnation != taken_for) ->
		taken_for = incarnation;
		number = NONE
	:: else ->
		if
		:: !knows ->			/* know_numbers() */
			knows = true;
			next = (next < block -> next : block);
			end = block
		:: else
		fi;
		number = block;
		printf("pusher %d gets number %d\n", me, number);
#ifndef END_AFTER_COMMIT
		end = (end > number -> end : number + 1)
#endif
	fi
}

proctype pusher(byte me)
{
	byte block = NONE;
	byte taken_for = 0;
	byte number = NONE;

	do
	:: number == NONE ->
		if
		:: d_step { take_number() };
			if
			:: number == NONE && sequence < NUMBERS -> next_block(block)
			:: number == NONE && sequence == NUMBERS -> goto done
			:: else
			fi
#if EVICTIONS > 0
		/* No room for a map */
		:: atomic { !exists && block != NONE -> number = block }
#endif
		fi
	:: else -> break
	od;

	/* message_multi_insert() */
	skip;
	d_step {
		row[number].writer = me + 1;
		row[number].pending = FREE;
		printf("pusher %d inserts %d\n", me, number)
	};
	if
	:: commit_transaction(number, AT_ONCE, true)
#ifdef ABORT
	:: roll_back(number, false)
#endif
	fi;
#ifdef END_AFTER_COMMIT
	d_step {
		if
		:: exists && knows -> end = (end > number -> end : number + 1)
		:: else
		fi
	};
#endif
done:
	skip
}

#ifdef HAND
/* SELECT ... FOR UPDATE of message 0, and ROLLBACK; or an UPDATE */
proctype by_hand()
{
	if
	:: d_step {
			row[0].state == FREE && row[0].writer == 0 ->
			row[0].writer = BY_HAND; row[0].pending = AS_IS; record_free()
		};
		if
		:: d_step { leave(0, false); record_free() }
#ifdef UPDATE
		:: d_step { row[0].pending = FREE; leave(0, true); record_free() }
#endif
		fi
	:: skip
	fi
}
#endif

#ifdef CLOCK
proctype clock()
{
	d_step { now = LATER; record_free(); printf("time passes\n") }
}
#endif

/* --- Claimers --- */

/* message_ranges_pick(), pick_fresh() */
inline pick(me)
{
	best_ = NONE; locked_ = NONE;
	i_ = 0;
	do
	:: i_ < ranges[MAP].count ->
		if
		:: ranges[MAP].item[i_].due > pick_now ->
			if
			:: ranges[MAP].item[i_].is_locked &&
			   !(ranges[MAP].item[i_].scanned & BIT(me)) &&
			   (locked_ == NONE || ranges[MAP].item[i_].first <
				ranges[MAP].item[locked_].first) -> locked_ = i_
			:: else
			fi
		:: else ->
			if
			:: best_ == NONE || ranges[MAP].item[i_].first <
			   ranges[MAP].item[best_].first -> best_ = i_
			:: else
			fi
		fi;
		i_++
	:: else -> break
	od;
	is_fresh = next < end &&
		(best_ == NONE || next < ranges[MAP].item[best_ % RANGES].first);
	if
	:: best_ == NONE && !is_fresh ->
#ifdef NO_SCAN_OF_LOCKED
		locked_ = NONE;
#endif
		best_ = locked_
	:: else
	fi;
	i_ = 0; locked_ = 0
}

/* message_ranges_remove() */
inline remove_range(nr)
{
	ranges[MAP].count--;
	k_ = ranges[MAP].count;
	ranges[MAP].item[nr].first = ranges[MAP].item[k_].first;
	ranges[MAP].item[nr].last = ranges[MAP].item[k_].last;
	ranges[MAP].item[nr].due = ranges[MAP].item[k_].due;
	ranges[MAP].item[nr].is_locked = ranges[MAP].item[k_].is_locked;
	ranges[MAP].item[nr].scanned = ranges[MAP].item[k_].scanned;
	ranges[MAP].item[nr].swept = ranges[MAP].item[k_].swept;
	clear_range(MAP, k_);
	k_ = 0
}

/* reserve(): the range is in "mine"; "reserved" says whether there is one. */
inline reserve(me)
{
	get_map();
	pick(me);
	reserved = true;
	if
	:: is_fresh ->
		mine.first = next;
		mine.last = (next == 0 || width >= end - next ->
					 end - 1 : next + width - 1);
		mine.due = AT_ONCE;
		mine.is_locked = false;
		mine_scanned[me] = 0;
		next = mine.last + 1
	:: !is_fresh && best_ != NONE ->	/* take_range() */
		mine.first = ranges[MAP].item[best_].first;
		mine.last = ranges[MAP].item[best_].last;
		mine.due = ranges[MAP].item[best_].due;
		mine.is_locked = ranges[MAP].item[best_].is_locked;
		mine_scanned[me] = ranges[MAP].item[best_].scanned;
		remove_range(best_)
	:: else -> reserved = false
	fi;
	if
	:: reserved -> open++
	:: else
	fi;
	best_ = 0
}

/* segment_push_snapshot() */
inline take_snapshot(me)
{
	for (i_ : 0 .. NUMBERS - 1) {
		vis[me].state[i_] = row[i_].state;
		vis[me].until[i_] = row[i_].until
	}
	vis[me].stale = 0;
	i_ = 0;
	printf("claimer %d takes a snapshot\n", me)
}

/* It is used for one message only. */
inline keep_of_snapshot(me, n)
{
	for (i_ : 0 .. NUMBERS - 1) {
		vis[me].state[i_] = (i_ == n -> vis[me].state[i_] : 0);
		vis[me].until[i_] = 0
	}
	vis[me].stale = (n == NONE -> 0 : vis[me].stale & BIT(n));
	i_ = 0
}

/* It is not used any more. */
inline drop_snapshot(me)
{
	keep_of_snapshot(me, NONE)
}

#define is_stale(me, n)	(vis[me].stale & BIT(n))

/*
 * scanned_at of a message that is skipped: a time before the snapshot was
 * taken, so that claims that begin later scan it again.
 */
#define scanned_at(me)	began[me]

/*
 * claim_scan_row().  locks: a free message is locked, and not only chosen.  A sweep does
 * neither.
 */
inline scan_row(me, n, locks)
{
	if
	:: vis[me].state[n] == ABSENT
	:: vis[me].state[n] == CLAIMED && vis[me].until[n] > my_now ->
		add_range(me, n, n, vis[me].until[n], false, 0, my_now)
#if SWEEPS > 0
	:: me == SWEEPER &&
	   (vis[me].state[n] == FREE ||
		(vis[me].state[n] == CLAIMED && vis[me].until[n] <= my_now)) ->
		if
		:: row[n].writer != 0 ->	/* is_locked() */
			add_range(me, n, n, NEVER, true, scanned_at(me), my_now)
		:: else ->
			add_range(me, n, n, AT_ONCE, false, 0, my_now)
		fi
#endif
	:: me < CLAIMERS &&
	   (vis[me].state[n] == FREE ||
		(vis[me].state[n] == CLAIMED && vis[me].until[n] <= my_now)) ->
		/* choose(): a row that was locked or changed is locked, if possible */
		if
#ifndef NO_RECHECK
		:: is_stale(me, n) ->	/* TM_Updated, TM_Deleted */
			add_range(me, n, n, AT_ONCE, false, 0, my_now)
		:: !is_stale(me, n) && row[n].writer != 0 ->	/* TM_WouldBlock */
#else
		:: row[n].writer != 0 ->
#endif
			add_range(me, n, n, NEVER, true, scanned_at(me), my_now)
		:: else ->
			chosen = n;
			if
			:: locks ->			/* TM_Ok */
				row[n].writer = PUSHERS + me + 1;
				row[n].pending = AS_IS;
				record_free()
			:: else
			fi
		fi
	:: else					/* GONE */
	fi;
	printf("claimer %d has scanned %d (has %d)\n", me, n, chosen)
}

/* availability_give_back() */
inline give_rest(me)
{
	mine.first = (mine.first > scanned_to -> mine.first : scanned_to);
	if
	:: mine.first <= mine.last ->
		mine.last = (mine.last < end -> mine.last : end - 1);
		if
		:: is_fresh && next == mine.last + 1 -> next = mine.first
		:: !(is_fresh && next == mine.last + 1) && mine.first <= mine.last ->
			add_range(MAP, mine.first, mine.last, mine.due,
					  mine.is_locked, mine_scanned[me], my_now)
		:: else
		fi
	:: else
	fi;
	k_ = 0;
	do
	:: k_ < ranges[me].count ->
		add_range(MAP, ranges[me].item[k_].first,
				  ranges[me].item[k_].last, ranges[me].item[k_].due,
				  ranges[me].item[k_].is_locked, ranges[me].item[k_].scanned,
				  my_now);
		k_++
	:: else -> break
	od;
	k_ = 0
}

inline give_back(me)
{
	give_rest(me);
	clear_ranges(me);
	keep_of_snapshot(me, chosen);
	printf("claimer %d gives back, scanned up to %d\n", me, scanned_to - 1);
	is_fresh = false; scanned_to = 0;
	mine.first = 1; mine.last = 0; mine.due = 0; mine.is_locked = 0;
	mine.swept = false;
	mine_scanned[me] = 0
}

/* availability_close() */
inline close(me)
{
	if
	:: reserved ->
		open = (open > 0 -> open - 1 : 0);
		reserved = false;
		printf("claimer %d closes\n", me)
	:: else
	fi
}

#ifdef ERROR
/* return_records() */
inline return_chosen()
{
	d_step {
		if
		:: chosen != NONE ->
			return_range(chosen, AT_ONCE);
			returned = returned | BIT(chosen);
			record_free()
		:: else
		fi
	}
}

/* availability_close_all() */
inline close_all(me)
{
	d_step {
		scanned_to = 0;
		clear_ranges(me);
		give_back(me);
		drop_snapshot(me);
		close(me)
	}
}
#endif

/*
 * A call begins.  It has to scan again what others have scanned before, or
 * scan with an earlier reading of the clock.
 */
inline begin_call(me)
{
	for (i_ : 0 .. SESSIONS) {
		for (j_ : 0 .. RANGES - 1) {
			ranges[i_].item[j_].scanned =
				ranges[i_].item[j_].scanned & ~BIT(me)
		}
	}
	for (i_ : 0 .. SESSIONS - 1) {
		began[i_] = began[i_] & ~BIT(me);
		mine_scanned[i_] = mine_scanned[i_] & ~BIT(me)
	}
	calling = calling | BIT(me);
	printf("claimer %d calls\n", me);
	free_since[me] = BIT(NUMBERS) - 1;
	was_empty = was_empty & ~BIT(me);
	record_free()
}

inline end_call(me)
{
	calling = calling & ~BIT(me);
	was_empty = was_empty & ~BIT(me);
	free_since[me] = 0;
	began[me] = 0;
	for (i_ : 0 .. SESSIONS) {
		for (j_ : 0 .. RANGES - 1) {
			ranges[i_].item[j_].scanned =
				ranges[i_].item[j_].scanned & ~BIT(me)
		}
	}
	for (i_ : 0 .. SESSIONS - 1) {
		began[i_] = began[i_] & ~BIT(me);
		mine_scanned[i_] = mine_scanned[i_] & ~BIT(me)
	}
	i_ = 0; j_ = 0
}

/* Property 3 */
inline answer_nothing(me)
{
	assert(free_since[me] == 0);
#ifdef STRICT
	assert(was_empty & BIT(me))
#endif
}

/* Property 5 */
inline check_order(me, n)
{
#ifdef ORDER
	assert((free_since[me] & (BIT(n) - 1)) == 0)
#else
	skip
#endif
}

/* Property 2.  The mark of the claim becomes visible next. */
inline begin_claim(me, n)
{
	for (i_ : 0 .. CLAIMERS - 1) {
		assert(claim_of[i_] != n + 1 || claim_until[i_] <= now)
	}
	i_ = 0;
	claim_of[me] = n + 1;
	claim_until[me] = row[n].new_until
}

inline end_claim(me)
{
	claim_of[me] = 0;
	claim_until[me] = 0
}

proctype claimer(byte me)
{
	Range mine;					/* the range that is reserved */
	bool reserved = false;
	bool others;				/* have reservations open */
	bool is_fresh = false;
	byte my_now;				/* pass.now */
	byte pick_now;				/* now, in ReserveRequest */
	byte width;
	byte scanned_to = 0;			/* plus 1 */
	byte chosen;
	bool locks = false;			/* what is chosen is locked */
	bool is_marked = false;
	byte calls = CALLS;
	byte until;

again:
	skip;
	/* claim_scan_begin(), claim_scan_map() */
	d_step {
		calls--;
		chosen = NONE;
		width = 1;
		begin_call(me);
		my_now = now;
		pick_now = now;
		began[me] = calling
	};
scan:
	skip;
#ifdef SNAPSHOT_FIRST
	d_step { take_snapshot(me) };
#endif
	/* availability_reserve() */
	d_step {
		reserve(me);
		others = !reserved && open > 0;
		if
		:: reserved ->
			printf("claimer %d reserves %d to %d\n", me, mine.first,
				   mine.last)
		:: else -> printf("claimer %d gets no range\n", me)
		fi
	};
	if
	:: reserved
	:: !reserved && !others ->
answer:
		skip;
		d_step {
			printf("claimer %d answers that there is nothing\n", me);
			answer_nothing(me);
			end_call(me)
		};
		goto next_call
#ifdef NO_WAIT_FOR_OPEN
	:: others -> goto answer
#endif
#ifdef IMPATIENT
	/*
	 * scan_without_map().  Whether its result may be empty is left out.
	 */
	:: others ->
		d_step { take_snapshot(me); scanned_to = 0; locks = true };
		do
		:: chosen == NONE && scanned_to < NUMBERS ->
			d_step {
				scan_row(me, scanned_to, true);
				scanned_to++
			}
		:: else -> break
		od;
		skip;
		d_step {
			scanned_to = 0;
			clear_ranges(me);
			drop_snapshot(me)
		};
		if
		:: chosen != NONE -> goto mark
		:: else ->
			d_step { end_call(me) };
			goto next_call
		fi
#endif
	/* availability_wait_for_close() */
	:: others ->
		pick_now = now;
		open == 0 || next < end || ranges[MAP].count > 0;
		goto scan
	fi;

	/* claim_scan_range() */
#ifndef SNAPSHOT_FIRST
	d_step { take_snapshot(me) };
#endif
	do
	:: chosen == NONE && scanned_to <= mine.last ->
		d_step {
			if
			:: scanned_to < mine.first -> scanned_to = mine.first
			:: else
			fi;
			scan_row(me, scanned_to, false);
			scanned_to++
		}
#ifdef ERROR
	/* CHECK_FOR_INTERRUPTS() */
	:: scanned_to <= mine.last -> goto error
#endif
	:: chosen != NONE || scanned_to > mine.last -> break
	od;
	skip;						/* spin: no jump into a d_step */
	d_step {
		give_back(me);
		if
#ifndef CLOSE_BEFORE_MARK
		:: chosen != NONE
#endif
		:: else -> close(me)
		fi;
		width = NUMBERS
	};
	if
	:: chosen == NONE ->
		d_step { my_now = now; pick_now = now; began[me] = calling };
		goto scan
	:: chosen != NONE
#ifdef ERROR
	:: chosen != NONE -> goto error
#endif
	fi;

mark:
	/* mark_chosen() */
	skip;
	d_step {
#ifdef NO_RECHECK
		if
		:: row[chosen].writer == 0 || locks ->
#else
		if
		:: locks || (row[chosen].writer == 0 && !is_stale(me, chosen)) ->
#endif
			is_marked = true;
			check_order(me, chosen);
			end_call(me);
			until = now + 1;
			row[chosen].writer = PUSHERS + me + 1;
			row[chosen].pending = CLAIMED;
			row[chosen].new_until = until;
			record_free()
		:: else -> printf("claimer %d has lost %d\n", me, chosen)
		fi;
		drop_snapshot(me)
	};
	if
	:: !is_marked ->
#ifndef NO_RETURN_OF_LOST
		/* claim_scan_lost() */
		d_step {
			if
			:: exists && chosen < next ->
				add_range(MAP, chosen, chosen, NEVER, true, 0, now)
			:: else
			fi
		};
#endif
		d_step {
			close(me);
			/* Another pass */
			chosen = NONE;
			width = 1;
			my_now = now;
			pick_now = now;
			began[me] = calling
		};
		goto scan
	:: is_marked
#ifdef ERROR
	/* In the mark, or in that of another message */
	:: is_marked && reserved ->
error:
		/* AbortTransaction() or AbortSubTransaction() */
		skip;
		d_step {
			if
			:: is_marked ->
				leave(chosen, false);
				returned = returned & ~BIT(chosen);
				record_free()
			:: else -> end_call(me)
			fi
		};
#ifdef CLOSE_BEFORE_RETURN
		close_all(me);
		return_chosen();
#else
		return_chosen();
		close_all(me);
#endif
		goto next_call
#endif
	fi;
	d_step { close(me) };
	if
	:: d_step { begin_claim(me, chosen) };
		commit_transaction(chosen, until, true)
#ifdef ABORT
	:: roll_back(chosen, true)
#endif
	fi;

#ifdef RELEASE
	/* claim_release(), claim_complete() in a transaction of its own */
	if
	:: d_step {
			claim_of[me] == chosen + 1 && row[chosen].state == CLAIMED &&
			row[chosen].until == claim_until[me] && claim_until[me] > now &&
			row[chosen].writer == 0 ->
			row[chosen].writer = PUSHERS + me + 1;
			row[chosen].pending = FREE
		};
		if
		:: d_step { end_claim(me) };
			commit_transaction(chosen, AT_ONCE, true)
#ifdef ABORT
		:: roll_back(chosen, true)
#endif
		:: d_step { end_claim(me); row[chosen].pending = GONE };
			commit_transaction(chosen, NEVER, false)
		fi
	:: true
	fi;
#endif

next_call:
	skip;
	d_step {
		others = false; chosen = 0; until = 0; my_now = 0; pick_now = 0;
		width = 0; locks = false; is_marked = false
	};
	if
	:: calls > 0 -> goto again
	:: else
	fi
}

/* Would the next claim scan this number?  Property 1. */
#define in_range(n, i)	(ranges[MAP].count > i && \
						 ranges[MAP].item[i].first <= n && \
						 ranges[MAP].item[i].last >= n && \
						 (ranges[MAP].item[i].due <= now || \
						  ranges[MAP].item[i].is_locked))
#define is_found(n)		(!exists || (n >= next && n < end) || \
						 in_range(n, 0) || in_range(n, 1))

#if PROBERS > 0
/* claim_scan_probe() */
proctype prober(byte me)
{
	byte view;					/* the numbers to scan */
	byte n;
	byte my_now;
	bool others;
	bool found;

	d_step { begin_call(me) };
scan:
	skip;
	/* availability_view() */
	d_step {
		get_map();
		my_now = now;
		view = 0;
		for (n : 0 .. NUMBERS - 1) {
			if
			:: is_found(n) -> view = view | BIT(n)
			:: else
			fi
		}
		n = 0;
		others = open > 0
	};
	d_step { take_snapshot(me) };
	do
	:: n < NUMBERS && !found ->
		d_step {
			found = (view & BIT(n)) && row[n].writer == 0 &&
				(vis[me].state[n] == FREE ||
				 (vis[me].state[n] == CLAIMED && vis[me].until[n] <= my_now));
			n++
		}
	:: else -> break
	od;
	skip;						/* spin: no jump into a d_step */
	d_step { n = 0; view = 0; drop_snapshot(me) };
	if
	:: found
	:: !found && others ->
#ifndef PROBE_WAITS_FOR_NONE
		open == 0 || next < end || ranges[MAP].count > 0;
		goto scan
#else
		goto answer
#endif
	:: !found && !others ->
#ifdef PROBE_WAITS_FOR_NONE
answer:
#endif
		skip;
		d_step {
			printf("prober %d answers that there is nothing\n", me);
			answer_nothing(me)
		}
	fi;
	skip;
	d_step { found = false; others = false; my_now = 0; end_call(me) }
}
#endif

#if SWEEPS > 0
/*
 * The worker: claim_scan_sweep().  Each sweep is after the time that
 * availability_recheck_at() has set, so ranges with something locked are due.
 */
proctype sweeper()
{
	Range mine;
	byte scanned_to = 0;			/* plus 1 */
	byte chosen = NONE;
	byte my_now;
	byte sweeps = SWEEPS;
	byte unknown = NONE;		/* the range that was never scanned */
	bool begun;

	do
	:: sweeps > 0 ->
		/* availability_begin_sweep() */
		d_step {
			sweeps--;
			get_map();
			my_now = now;
			began[SWEEPER] = calling;
			begun = false;
			for (j_ : 0 .. RANGES - 1) {
				ranges[MAP].item[j_].swept = false
			}
			/* add_unknown_ranges() */
			if
			:: next == 0 ->
				k_ = end;
				next = end;
				unknown = ranges[MAP].count;
				add_range(MAP, 0, k_ - 1, AT_ONCE, false, 0, now);
				unknown = (ranges[MAP].count > unknown -> unknown : NONE)
			:: else
			fi;
			k_ = 0;
			for (j_ : 0 .. RANGES - 1) {
				if
				:: !begun && j_ < ranges[MAP].count &&
				   (ranges[MAP].item[j_].due != AT_ONCE || j_ == unknown) &&
				   (ranges[MAP].item[j_].due <= now ||
					ranges[MAP].item[j_].is_locked) ->
					begun = true;
					ranges[MAP].item[j_].swept = true;
					mine.first = ranges[MAP].item[j_].first;
					mine.last = ranges[MAP].item[j_].last;
					mine.is_locked = ranges[MAP].item[j_].is_locked;
					scanned_to = mine.first;
					k_ = j_
				:: else
				fi
			}
#ifdef SWEEP_RESERVES
			if
			:: begun -> remove_range(k_)
			:: else
			fi;
#endif
			j_ = 0; k_ = 0
		};
		if
		:: !begun -> goto next_sweep
		:: else
		fi;
		d_step { take_snapshot(SWEEPER) };
		do
		:: scanned_to <= mine.last ->
			d_step {
				scan_row(SWEEPER, scanned_to, false);
				scanned_to++
			}
		:: scanned_to > mine.first -> break	/* SWEEP_AT_ONCE */
		od;
		if
		/* availability_end_sweep() */
		:: d_step {
				begun = false;
				if
				:: exists ->
					k_ = ranges[MAP].count;
					do
					:: k_ > 0 ->
						k_--;
						if
						:: ranges[MAP].item[k_].swept ->
							begun = true;
							if
							:: ranges[MAP].item[k_].first < scanned_to &&
							   ranges[MAP].item[k_].last >= scanned_to ->
								ranges[MAP].item[k_].first = scanned_to
							:: ranges[MAP].item[k_].last < scanned_to ->
								j_ = k_;
								remove_range(j_);
								k_ = j_;
								j_ = 0
							:: else
							fi
						:: else
						fi
					:: else -> break
					od;
#ifdef SWEEP_RESERVES
					begun = true;
					if
					:: scanned_to <= mine.last ->
						add_range(MAP, scanned_to, mine.last, LATER,
								  mine.is_locked, 0, my_now)
					:: else
					fi;
#endif
					if
					:: begun ->
						k_ = 0;
						do
						:: k_ < ranges[SWEEPER].count ->
							add_range(MAP, ranges[SWEEPER].item[k_].first,
									  ranges[SWEEPER].item[k_].last,
									  ranges[SWEEPER].item[k_].due,
									  ranges[SWEEPER].item[k_].is_locked,
									  ranges[SWEEPER].item[k_].scanned,
									  my_now);
							k_++
						:: else -> break
						od;
						k_ = 0
					:: else
					fi
				:: else
				fi
			}
		/* It is rolled back before that. */
		:: d_step {
#ifdef SWEEP_RESERVES
				add_range(MAP, mine.first, mine.last, LATER,
						  mine.is_locked, 0, my_now)
#else
				begun = false
#endif
			}
		fi;
next_sweep:
		skip;
		d_step {
			clear_ranges(SWEEPER);
			drop_snapshot(SWEEPER);
			mine.first = 0; mine.last = 0; mine.is_locked = false;
			scanned_to = 0; my_now = 0; begun = false; began[SWEEPER] = 0;
			unknown = NONE
		}
	:: else -> break
	od
}
#endif

init
{
	byte n;

	atomic {
		for (n : 0 .. EXISTING - 1) {
			row[n].state = FREE
		}
		for (n : 1 .. PUSHERS) {
			run pusher(n - 1)
		}
		for (n : 1 .. CLAIMERS) {
			run claimer(n - 1)
		}
#if PROBERS > 0
		for (n : 1 .. PROBERS) {
			run prober(CLAIMERS + n - 1)
		}
#endif
#if SWEEPS > 0
		run sweeper();
#endif
#if EVICTIONS > 0
		run evictor();
#endif
#ifdef HAND
		run by_hand();
#endif
#ifdef CLOCK
		run clock();
#endif
		n = 0
	};
	_nr_pr == 1;
	d_step {
		assert(!exists || open == 0);
		for (n : 0 .. NUMBERS - 1) {
			assert(!is_free(n) || is_found(n))
		}
	}
}
