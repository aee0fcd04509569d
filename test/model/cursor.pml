/*
 * test/model/cursor.pml
 *	  The protocol of the cursor (src/cursor.c, src/touch.c, src/walk.c), to
 *	  be checked by spin.  test/model/run says with which bounds.
 *
 * NOTES
 *	  One queue with one priority; a few messages that pushers insert, and
 *	  claimers claim, one in each call, and release, delete or keep; any of
 *	  these transactions may be rolled back, or prepared and committed or
 *	  rolled back by somebody else.  Each step is what happens under one
 *	  spinlock, or to one row under the lock of its page, or one look at the
 *	  array of running transactions; between any two steps all others may take
 *	  theirs.  The function that a step stands for is named beside it.
 *
 *	  Checked is:
 *
 *	  1.  When all is over, each free message lies where the next claim looks:
 *	  from next to end, in a range that is due or doubtful, or there is no
 *	  cursor, and the next one looks at all.
 *
 *	  2.  No two live claims hold the same message.
 *
 *	  3.  A claim that finds nothing does so rightly: no message was free from
 *	  its beginning to its end; and with STRICT, there was a moment in it at
 *	  which none was.  A message counts as free when a new snapshot shows it
 *	  so, nobody has it locked, and the transaction that made it so has
 *	  returned to its client, or was a prepared one, or one of plain SQL.
 *	  STRICT only holds where each transaction tells of its end and no claim
 *	  runs out: otherwise one message may come free, unheard, after it was
 *	  looked at, and before another one, that another session looks at, is not
 *	  free any more.
 *
 *	  4.  Nobody waits for ever (spin's check for invalid end states).
 *
 *	  5.  With ORDER, where one claimer is alone but for probes and sweeps, it
 *	  takes the first message of those that were free all through its call.
 *
 *	  Left out is: more than one priority (each has its own next and end, and
 *	  ranges of two are never united); parked messages (parked.pml); expired
 *	  and exhausted messages, which are locked and deleted as claimed ones
 *	  are; blocks of more than one number; the splitting of wide ranges
 *	  (take_range), whose rest stays as it was; a look at all once a queue
 *	  seems to be empty (cursor_relook), which is the net below all this: here
 *	  nothing may fall into it.  Doubtful ranges are never due by the clock,
 *	  only looked at before an empty answer, and by sweeps.  There are two
 *	  moments in time: claims made at the first run out at the second.  Memory
 *	  is sequentially consistent, as locks make it.
 *
 *	  How large a run is: NUMBERS there are; EXISTING messages at the start,
 *	  PUSHERS, CLAIMERS, CALLS of each; PROBERS, each of which probes once;
 *	  SWEEPS of the worker; EVICTIONS of the cursor.  What may happen in it:
 *	  ABORT, RELEASE, PREPARE, HAND (a row is locked with plain SQL), ERROR (in
 *	  the midst of a look), CLOCK (claims run out), IMPATIENT (a claim does not
 *	  wait for others for ever, but does without the cursor).  What is wrong in
 *	  it: see test/model/run.
 */

#define RANGES	2				/* CURSOR_RANGES: so they are united often */
#define NONE	255

/* What a row is to a snapshot; see vis. */
#define ABSENT	0
#define FREE	1
#define CLAIMED	2
#define GONE	3

/* What is going to be at the end of a transaction, beside these: */
#define AS_IS	4				/* the row is only locked */

/* Who has a row locked: a pusher or claimer, by its number plus 1; or: */
#define PREPARED 100
#define BY_HAND	101

/* Moments; those when a range or claim is due */
#define AT_ONCE	0				/* DT_NOBEGIN */
#define LATER	1				/* the second moment */
#define NEVER	3				/* within this run; cursor_doubt() */

#ifndef PROBERS
#define PROBERS	0
#endif
#ifndef SWEEPS
#define SWEEPS	0
#endif

/* Sessions: first the claimers, then the probers, then the worker that sweeps */
#if SWEEPS > 0
#define SESSIONS (CLAIMERS + PROBERS + 1)
#else
#define SESSIONS (CLAIMERS + PROBERS)
#endif
#define SWEEPER	(SESSIONS - 1)

#define BIT(n)	(1 << (n))
#define ALL		(BIT(SESSIONS) - 1)

/*
 * MessageRange.  looked: a bit for each claimer whose call has begun before
 * it was looked at last, so that it need not look itself: that is all that
 * can be asked of looked_at.  swept: the mark of a sweep.
 */
typedef Range
{
	byte first;
	byte last;
	byte due;
	bool doubtful;
	byte looked;
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
	byte writer;				/* who has it locked; 0: nobody */
	byte pending;				/* what it is to be when he commits */
	byte new_until
};

Row row[NUMBERS];
byte now = 0;
byte sequence = EXISTING;

/* Snapshots: what each row was, and which have changed since */
typedef Snapshot
{
	byte state[NUMBERS];
	byte until[NUMBERS];
	byte stale
};

Snapshot vis[SESSIONS];

/* --- The cursor --- */

bool exists = false;
bool knows;						/* knows_numbers */
byte next;
byte end;						/* NUMBERS: of all numbers */
byte unsure_below;
byte open;
byte incarnation = 0;

/* Those of the cursor come last; the others are what claimers have passed. */
#define CURSOR	SESSIONS
Ranges ranges[SESSIONS + 1];

/* --- What is only there to be checked --- */

byte told = BIT(EXISTING) - 1;	/* whose transaction has returned */
byte calling = 0;				/* claimers that are in a call */
byte began[SESSIONS];			/* those that were as this one read the clock */
byte mine_looked[SESSIONS];	/* the same, of the range that is reserved */
byte free_since[SESSIONS];		/* messages that were free all through it */
byte was_empty = 0;				/* claimers that had a moment with none free */
byte held[CLAIMERS];			/* by a claim, plus 1 */
byte held_until[CLAIMERS];

hidden byte i_;
hidden byte j_;
hidden byte k_;
hidden byte best_;
hidden byte doubtful_;
hidden byte mask_;

#define is_free(n)	((row[n].state == FREE || \
					  (row[n].state == CLAIMED && row[n].until <= now)) && \
					 row[n].writer == 0)

/* Something may be free now, or no longer. */
inline note()
{
	mask_ = 0;
	for (i_ : 0 .. NUMBERS - 1) {
		if
		:: is_free(i_) && (told & BIT(i_)) -> mask_ = mask_ | BIT(i_)
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
	ranges[set].item[nr].doubtful = 0;
	ranges[set].item[nr].looked = 0;
	ranges[set].item[nr].swept = false
}

inline clear_ranges(set)
{
	ranges[set].count = 0;
	for (i_ : 0 .. RANGES - 1) {
		clear_range(set, i_)
	}
}

/* unite(): the looked_at of two doubtful ranges is the earlier. */
inline unite(set, nr, from, to, at, unsaid, seen, mark)
{
	ranges[set].item[nr].first =
		(from < ranges[set].item[nr].first ->
		 from : ranges[set].item[nr].first);
	ranges[set].item[nr].last =
		(to > ranges[set].item[nr].last -> to : ranges[set].item[nr].last);
	ranges[set].item[nr].due =
		(at < ranges[set].item[nr].due -> at : ranges[set].item[nr].due);
	if
	:: !ranges[set].item[nr].doubtful -> ranges[set].item[nr].looked = seen
	:: ranges[set].item[nr].doubtful && unsaid ->
		ranges[set].item[nr].looked = ranges[set].item[nr].looked & seen
	:: else
	fi;
#ifndef UNITE_KEEPS_MARK
	ranges[set].item[nr].swept = ranges[set].item[nr].swept && mark;
#endif
	ranges[set].item[nr].doubtful = ranges[set].item[nr].doubtful || unsaid
}

/* similar() */
#define similar(s, n, d, q, t) \
	(ranges[s].item[n].doubtful == (q) && \
	 (ranges[s].item[n].due == (d) || \
	  (ranges[s].item[n].due > AT_ONCE && (d) > AT_ONCE && \
	   ranges[s].item[n].due <= t && (d) <= t)))

/* make_room(), which has no choice with two of them */
inline make_room(set)
{
	if
	:: ranges[set].count == RANGES ->
		unite(set, 0, ranges[set].item[1].first, ranges[set].item[1].last,
			  ranges[set].item[1].due, ranges[set].item[1].doubtful,
			  ranges[set].item[1].looked, ranges[set].item[1].swept);
		ranges[set].count--;
		clear_range(set, 1)
	:: else
	fi
}

/* ranges_add().  Ranges that meet are united. */
inline add_range(set, from, to, at, unsaid, seen, time)
{
	j_ = NONE;
	i_ = ranges[set].count;
	do
	:: i_ > 0 ->
		i_--;
		if
		:: j_ == NONE &&
		   from <= ranges[set].item[i_].last + 1 &&
		   ranges[set].item[i_].first <= to + 1 &&
		   similar(set, i_, at, unsaid, time) ->
			j_ = i_
		:: else
		fi
	:: else -> break
	od;
	if
	:: j_ != NONE -> unite(set, j_, from, to, at, unsaid, seen, false)
	:: else ->
		make_room(set);
		j_ = ranges[set].count;
		ranges[set].item[j_].first = from;
		ranges[set].item[j_].last = to;
		ranges[set].item[j_].due = at;
		ranges[set].item[j_].doubtful = unsaid;
		ranges[set].item[j_].looked = (unsaid -> (seen) : 0);
		ranges[set].item[j_].swept = false;
		ranges[set].count++
	fi;
	i_ = 0; j_ = 0
}

/* --- Cursors come and go --- */

/* cursor_reset(), cursor_clear() */
inline reset_cursor()
{
	incarnation++;
	knows = false;
	next = 0;
	end = NUMBERS;
	unsure_below = NUMBERS;
	clear_ranges(CURSOR)
}

/* shmem_get_cursor(), make_cursor() */
inline get_cursor()
{
	if
	:: !exists -> exists = true; open = 0; reset_cursor()
	:: else
	fi
}

#if EVICTIONS > 0
/* find_room() for another queue: not one with open reservations */
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
			unsure_below = 0; clear_ranges(CURSOR);
			left--;
			printf("the cursor is evicted\n")
		}
	:: break
	od
}
#endif

/* --- Transactions --- */

/* A snapshot of others shows the version before. */
inline make_stale(n)
{
	for (i_ : 0 .. SESSIONS - 1) {
		vis[i_].stale = vis[i_].stale | BIT(n)
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

/* cursor_return(): called by end_transaction() through give_back() */
inline return_range(nr, at, unsaid)
{
	printf("%d is returned, due %d, doubtful %d\n", nr, at, unsaid);
	if
	:: exists && (unsaid || nr < next) ->
		add_range(CURSOR, nr, nr, at, unsaid, 0, now)
	:: else
	fi
}

/* A transaction that did one thing, to message n, is over: it commits. */
inline commit_transaction(n, d, tell)
{
#ifdef RETURN_BEFORE_COMMIT
	d_step {
		if
		:: tell -> return_range(n, d, false)
		:: else
		fi
	};
#endif
	d_step { leave(n, true); told = told & ~BIT(n); note() };
	d_step {
#ifndef RETURN_BEFORE_COMMIT
		if
		:: tell -> return_range(n, d, false)	/* XACT_EVENT_COMMIT */
		:: else
		fi;
#endif
		told = told | BIT(n);
		note()
	}
}

inline roll_back(n, on_abort)
{
	d_step { leave(n, false); told = told & ~BIT(n); note() };
	d_step {
#ifndef NO_RETURN_AT_ABORT
		if
		:: on_abort -> return_range(n, AT_ONCE, false)	/* XACT_EVENT_ABORT */
		:: else
		fi;
#endif
		told = told | BIT(n);
		note()
	}
}

#ifdef PREPARE
/*
 * XACT_EVENT_PREPARE; then COMMIT or ROLLBACK PREPARED, of which nobody
 * tells.  It cannot come before the callback has run (PostPrepare_Twophase).
 */
inline prepare_transaction(n)
{
	d_step { row[n].writer = PREPARED; printf("%d is prepared\n", n) };
#ifndef NO_RETURN_AT_PREPARE
	d_step { return_range(n, NEVER, true) };
#endif
	if
	:: d_step { leave(n, true); told = told | BIT(n); note() }
	:: d_step { leave(n, false); told = told | BIT(n); note() }
	fi
}
#endif

/* --- Pushers --- */

/* queue_next_block(), with blocks of one number */
inline next_block(b)
{
	d_step { b = sequence; sequence++ }
}

/* cursor_take_numbers(), locked */
inline take_number()
{
	get_cursor();
	if
	:: block == NONE || (!knows && incarnation != taken_for) ->
		taken_for = incarnation;
		number = NONE
	:: else ->
		if
		:: !knows ->			/* know_numbers() */
			knows = true;
			unsure_below = block;
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
		/* No room for a cursor */
		:: atomic { !exists && block != NONE -> number = block }
#endif
		fi
	:: else -> break
	od;

	/* row_multi_insert() */
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
#ifdef PREPARE
	:: prepare_transaction(number)
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
/* SELECT ... FOR UPDATE of message 0, and ROLLBACK */
proctype by_hand()
{
	if
	:: d_step {
			row[0].state == FREE && row[0].writer == 0 ->
			row[0].writer = BY_HAND; row[0].pending = AS_IS; note()
		};
		d_step { leave(0, false); note() }
	:: skip
	fi
}
#endif

#ifdef CLOCK
proctype clock()
{
	d_step { now = LATER; note(); printf("time passes\n") }
}
#endif

/* --- Claimers --- */

/* pick() */
inline pick(me)
{
	best_ = NONE; doubtful_ = NONE;
	i_ = 0;
	do
	:: i_ < ranges[CURSOR].count ->
		if
		:: ranges[CURSOR].item[i_].due > pick_now ->
			if
			:: ranges[CURSOR].item[i_].doubtful &&
			   !(ranges[CURSOR].item[i_].looked & BIT(me)) &&
			   (doubtful_ == NONE || ranges[CURSOR].item[i_].first <
				ranges[CURSOR].item[doubtful_].first) -> doubtful_ = i_
			:: else
			fi
		:: else ->
			if
			:: best_ == NONE || ranges[CURSOR].item[i_].first <
			   ranges[CURSOR].item[best_].first -> best_ = i_
			:: else
			fi
		fi;
		i_++
	:: else -> break
	od;
	is_fresh = next < end &&
		(best_ == NONE || next < ranges[CURSOR].item[best_ % RANGES].first);
	if
	:: best_ == NONE && !is_fresh ->
#ifdef NO_LOOK_AT_DOUBT
		doubtful_ = NONE;
#endif
		best_ = doubtful_
	:: else
	fi;
	i_ = 0; doubtful_ = 0
}

/* remove_range() */
inline remove_range(nr)
{
	ranges[CURSOR].count--;
	k_ = ranges[CURSOR].count;
	ranges[CURSOR].item[nr].first = ranges[CURSOR].item[k_].first;
	ranges[CURSOR].item[nr].last = ranges[CURSOR].item[k_].last;
	ranges[CURSOR].item[nr].due = ranges[CURSOR].item[k_].due;
	ranges[CURSOR].item[nr].doubtful = ranges[CURSOR].item[k_].doubtful;
	ranges[CURSOR].item[nr].looked = ranges[CURSOR].item[k_].looked;
	ranges[CURSOR].item[nr].swept = ranges[CURSOR].item[k_].swept;
	clear_range(CURSOR, k_);
	k_ = 0
}

/* reserve(): the range is in mine; reserved says whether there is one. */
inline reserve(me)
{
	get_cursor();
	pick(me);
	reserved = true;
	if
	:: is_fresh ->
		mine.first = next;
		mine.last = (next == 0 || width >= end - next ->
					 end - 1 : next + width - 1);
		mine.due = AT_ONCE;
		mine.doubtful = next < unsure_below;
		mine_looked[me] = 0;
		next = mine.last + 1
	:: !is_fresh && best_ != NONE ->	/* take_range() */
		mine.first = ranges[CURSOR].item[best_].first;
		mine.last = ranges[CURSOR].item[best_].last;
		mine.due = ranges[CURSOR].item[best_].due;
		mine.doubtful = ranges[CURSOR].item[best_].doubtful;
		mine_looked[me] = ranges[CURSOR].item[best_].looked;
		remove_range(best_)
	:: else -> reserved = false
	fi;
	if
	:: reserved -> open++
	:: else
	fi;
	best_ = 0
}

/* push_snapshot() */
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

/* Nobody looks at it any more. */
inline drop_snapshot(me)
{
	for (i_ : 0 .. NUMBERS - 1) {
		vis[me].state[i_] = 0;
		vis[me].until[i_] = 0
	}
	vis[me].stale = 0;
	i_ = 0
}

#define is_stale(me, n)	(vis[me].stale & BIT(n))

/*
 * looked_at of what is passed: a time before the snapshot was taken, so
 * that who has begun later looks himself.
 */
#ifdef LOOKED_AT_LATE
#define looked_at(me)	ALL
#else
#define looked_at(me)	began[me]
#endif

/*
 * try_row(), and note_pending() for entries without a visible row.  A sweep
 * takes nothing.
 */
inline look_at_row(me, n)
{
	if
	:: vis[me].state[n] == ABSENT ->
		if
#ifndef NO_PENDING
		:: mine.doubtful &&
		   (row[n].state != ABSENT || row[n].writer != 0) ->
			add_range(me, n, n, NEVER, true, looked_at(me), my_now)
#endif
		:: else
		fi
	:: vis[me].state[n] == CLAIMED && vis[me].until[n] > my_now ->
		if
#ifndef NO_CHANGING
		:: row[n].writer != 0 || is_stale(me, n) ->	/* is_changing() */
			add_range(me, n, n, NEVER, true, looked_at(me), my_now)
#endif
		:: else -> add_range(me, n, n, vis[me].until[n], false, 0, my_now)
		fi
#if SWEEPS > 0
	:: me == SWEEPER &&
	   (vis[me].state[n] == FREE ||
		(vis[me].state[n] == CLAIMED && vis[me].until[n] <= my_now)) ->
		if
		:: row[n].writer != 0 ->	/* is_locked() */
			add_range(me, n, n, NEVER, true, looked_at(me), my_now)
		:: else ->
			add_range(me, n, n, AT_ONCE, false, 0, my_now)
		fi
#endif
	:: me < CLAIMERS &&
	   (vis[me].state[n] == FREE ||
		(vis[me].state[n] == CLAIMED && vis[me].until[n] <= my_now)) ->
		/* row_lock() */
		if
#ifndef NO_RECHECK
		:: is_stale(me, n) ->	/* TM_Updated, TM_Deleted */
			add_range(me, n, n, AT_ONCE, false, 0, my_now)
		:: !is_stale(me, n) && row[n].writer != 0 ->	/* TM_WouldBlock */
#else
		:: row[n].writer != 0 ->
#endif
			add_range(me, n, n, NEVER, true, looked_at(me), my_now)
		:: else ->				/* TM_Ok */
			row[n].writer = PUSHERS + me + 1;
			row[n].pending = AS_IS;
			taken = n;
			note()
		fi
	:: else					/* GONE */
	fi;
	printf("claimer %d has looked at %d (has %d)\n", me, n, taken)
}

/* cursor_close() */
inline give_rest(me)
{
	mine.first = (mine.first > looked_to -> mine.first : looked_to);
	if
	:: mine.first <= mine.last ->
		mine.last = (mine.last < end -> mine.last : end - 1);
		if
		:: is_fresh && next == mine.last + 1 -> next = mine.first
		:: !(is_fresh && next == mine.last + 1) && mine.first <= mine.last ->
			add_range(CURSOR, mine.first, mine.last, mine.due,
					  mine.doubtful, mine_looked[me], my_now)
		:: else
		fi
	:: else
	fi;
	k_ = 0;
	do
	:: k_ < ranges[me].count ->
		add_range(CURSOR, ranges[me].item[k_].first,
				  ranges[me].item[k_].last, ranges[me].item[k_].due,
				  ranges[me].item[k_].doubtful, ranges[me].item[k_].looked,
				  my_now);
		k_++
	:: else -> break
	od;
	k_ = 0
}

inline close(me)
{
	give_rest(me);
	open = (open > 0 -> open - 1 : 0);
	clear_ranges(me);
	drop_snapshot(me);
	printf("claimer %d closes, looked up to %d\n", me, looked_to - 1);
	reserved = false; is_fresh = false; looked_to = 0;
	mine.first = 0; mine.last = 0; mine.due = 0; mine.doubtful = 0;
	mine.swept = false;
	mine_looked[me] = 0
}

/*
 * A call begins: what others have looked at before, or will do with an older
 * reading of the clock, does not count for it.
 */
inline begin_call(me)
{
	for (i_ : 0 .. SESSIONS) {
		for (j_ : 0 .. RANGES - 1) {
			ranges[i_].item[j_].looked =
				ranges[i_].item[j_].looked & ~BIT(me)
		}
	}
	for (i_ : 0 .. SESSIONS - 1) {
		began[i_] = began[i_] & ~BIT(me);
		mine_looked[i_] = mine_looked[i_] & ~BIT(me)
	}
	calling = calling | BIT(me);
	printf("claimer %d calls\n", me);
	free_since[me] = BIT(NUMBERS) - 1;
	was_empty = was_empty & ~BIT(me);
	note()
}

inline end_call(me)
{
	calling = calling & ~BIT(me);
	was_empty = was_empty & ~BIT(me);
	free_since[me] = 0;
	began[me] = 0;
	for (i_ : 0 .. SESSIONS) {
		for (j_ : 0 .. RANGES - 1) {
			ranges[i_].item[j_].looked =
				ranges[i_].item[j_].looked & ~BIT(me)
		}
	}
	for (i_ : 0 .. SESSIONS - 1) {
		began[i_] = began[i_] & ~BIT(me);
		mine_looked[i_] = mine_looked[i_] & ~BIT(me)
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
inline take_in_order(me, n)
{
#ifdef ORDER
	assert((free_since[me] & (BIT(n) - 1)) == 0)
#else
	skip
#endif
}

/* Property 2: the mark is about to be seen by all. */
inline hold(me, n)
{
	for (i_ : 0 .. CLAIMERS - 1) {
		assert(held[i_] != n + 1 || held_until[i_] <= now)
	}
	i_ = 0;
	held[me] = n + 1;
	held_until[me] = row[n].new_until
}

inline unhold(me)
{
	held[me] = 0;
	held_until[me] = 0
}

proctype claimer(byte me)
{
	Range mine;					/* range_open */
	bool reserved = false;
	bool others;				/* have something open */
	bool is_fresh = false;
	byte my_now;				/* walk->now */
	byte pick_now;				/* current.now in cursor_reserve() */
	byte width;
	byte looked_to = 0;			/* plus 1 */
	byte taken;
	byte calls = CALLS;
	byte until;

again:
	skip;
	/* walk_queue(), walk_with_cursor() */
	d_step {
		calls--;
		taken = NONE;
		width = 1;
		begin_call(me);
		my_now = now;
		pick_now = now;
		began[me] = calling
	};
look:
	skip;
#ifdef SNAPSHOT_FIRST
	d_step { take_snapshot(me) };
#endif
	/* cursor_reserve() */
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
	/* walk_plainly(); whether it may answer that there is none is left out. */
	:: others ->
		d_step { take_snapshot(me); looked_to = 0 };
		do
		:: taken == NONE && looked_to < NUMBERS ->
			d_step {
				look_at_row(me, looked_to);
				looked_to++
			}
		:: else -> break
		od;
		skip;
		d_step {
			looked_to = 0;
			clear_ranges(me);
			drop_snapshot(me)
		};
		if
		:: taken != NONE -> goto mark
		:: else ->
			d_step { end_call(me) };
			goto next_call
		fi
#endif
	/* wait_for_closing() */
	:: others ->
		pick_now = now;
		open == 0 || next < end || ranges[CURSOR].count > 0;
		goto look
	fi;

	/* look_at_range() */
#ifndef SNAPSHOT_FIRST
	d_step { take_snapshot(me) };
#endif
	do
	:: taken == NONE && looked_to <= mine.last ->
		d_step {
			if
			:: looked_to < mine.first -> looked_to = mine.first
			:: else
			fi;
			look_at_row(me, looked_to);
			looked_to++
		}
#ifdef ERROR
	/* CHECK_FOR_INTERRUPTS(): AbortTransaction(), cursor_close_all() */
	:: d_step { looked_to <= mine.last -> end_call(me) };
		if
		:: taken != NONE ->
			d_step { leave(taken, false); told = told & ~BIT(taken); note() }
		:: else
		fi;
		d_step { looked_to = 0; clear_ranges(me); close(me) };
		if
		:: taken != NONE ->
			d_step {
				return_range(taken, AT_ONCE, false);
				told = told | BIT(taken);
				note()
			}
		:: else
		fi;
		goto next_call
#endif
	:: else -> break
	od;
	skip;						/* spin: no jump into a d_step */
	d_step {
		close(me);
		width = NUMBERS
	};
	if
	:: taken == NONE ->
		d_step { my_now = now; pick_now = now; began[me] = calling };
		goto look
	:: else
	fi;

mark:
	skip;
	/* mark_all() */
	d_step {
		take_in_order(me, taken);
		end_call(me);
		until = now + 1;
		row[taken].pending = CLAIMED;
		row[taken].new_until = until
	};
	if
	:: d_step { hold(me, taken) };
		commit_transaction(taken, until, true)
#ifdef ABORT
	:: roll_back(taken, true)
#endif
#ifdef PREPARE
	:: prepare_transaction(taken)
#endif
	fi;

#ifdef RELEASE
	/* claim_release(), claim_complete() in a transaction of its own */
	if
	:: d_step {
			held[me] == taken + 1 && row[taken].state == CLAIMED &&
			row[taken].until == held_until[me] && held_until[me] > now &&
			row[taken].writer == 0 ->
			row[taken].writer = PUSHERS + me + 1;
			row[taken].pending = FREE
		};
		if
		:: d_step { unhold(me) };
			commit_transaction(taken, AT_ONCE, true)
#ifdef ABORT
		:: roll_back(taken, true)
#endif
		:: d_step { unhold(me); row[taken].pending = GONE };
			commit_transaction(taken, NEVER, false)
#ifdef PREPARE
		:: d_step { unhold(me) };
			prepare_transaction(taken)
#endif
		fi
	:: true
	fi;
#endif

next_call:
	skip;
	d_step {
		others = false; taken = 0; until = 0; my_now = 0; pick_now = 0;
		width = 0
	};
	if
	:: calls > 0 -> goto again
	:: else
	fi
}

/* Would the next claim look there?  Property 1. */
#define in_range(n, i)	(ranges[CURSOR].count > i && \
						 ranges[CURSOR].item[i].first <= n && \
						 ranges[CURSOR].item[i].last >= n && \
						 (ranges[CURSOR].item[i].due <= now || \
						  ranges[CURSOR].item[i].doubtful))
#define is_found(n)		(!exists || (n >= next && n < end) || \
						 in_range(n, 0) || in_range(n, 1))

#if PROBERS > 0
/* walk_peek() */
proctype prober(byte me)
{
	byte view;					/* the numbers to look at */
	byte n;
	byte my_now;
	bool others;
	bool found;

	d_step { begin_call(me) };
look:
	skip;
	/* cursor_view() */
	d_step {
		get_cursor();
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
		open == 0 || next < end || ranges[CURSOR].count > 0;
		goto look
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
 * The worker: walk_sweep().  It is a second later than cursor_doubt() each
 * time, so doubtful ranges are due.
 */
proctype sweeper()
{
	Range mine;
	byte looked_to = 0;			/* plus 1 */
	byte taken = NONE;
	byte my_now;
	byte sweeps = SWEEPS;
	byte unknown = NONE;		/* the range that was never looked at */
	bool begun;

	do
	:: sweeps > 0 ->
		/* cursor_begin_sweep() */
		d_step {
			sweeps--;
			get_cursor();
			my_now = now;
			began[SWEEPER] = calling;
			begun = false;
			for (j_ : 0 .. RANGES - 1) {
				ranges[CURSOR].item[j_].swept = false
			}
			/* sweep_unknown() */
			if
			:: next == 0 ->
				k_ = end;
				next = end;
				unknown = ranges[CURSOR].count;
				add_range(CURSOR, 0, k_ - 1, AT_ONCE, unsure_below > 0, 0, now);
				unknown = (ranges[CURSOR].count > unknown -> unknown : NONE)
			:: else
			fi;
			k_ = 0;
			for (j_ : 0 .. RANGES - 1) {
				if
				:: !begun && j_ < ranges[CURSOR].count &&
				   (ranges[CURSOR].item[j_].due != AT_ONCE || j_ == unknown) &&
				   (ranges[CURSOR].item[j_].due <= now ||
					ranges[CURSOR].item[j_].doubtful) ->
					begun = true;
					ranges[CURSOR].item[j_].swept = true;
					mine.first = ranges[CURSOR].item[j_].first;
					mine.last = ranges[CURSOR].item[j_].last;
					mine.doubtful = ranges[CURSOR].item[j_].doubtful;
					looked_to = mine.first;
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
		:: looked_to <= mine.last ->
			d_step {
				look_at_row(SWEEPER, looked_to);
				looked_to++
			}
		:: looked_to > mine.first -> break	/* SWEEP_AT_ONCE */
		od;
		if
		/* cursor_end_sweep() */
		:: d_step {
				begun = false;
				if
				:: exists ->
					k_ = ranges[CURSOR].count;
					do
					:: k_ > 0 ->
						k_--;
						if
						:: ranges[CURSOR].item[k_].swept ->
							begun = true;
							ranges[CURSOR].item[k_].swept = false;
							if
							:: ranges[CURSOR].item[k_].first < looked_to &&
							   ranges[CURSOR].item[k_].last >= looked_to ->
								ranges[CURSOR].item[k_].first = looked_to
							:: ranges[CURSOR].item[k_].last < looked_to ->
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
					:: looked_to <= mine.last ->
						add_range(CURSOR, looked_to, mine.last, LATER,
								  mine.doubtful, 0, my_now)
					:: else
					fi;
#endif
					if
					:: begun ->
						k_ = 0;
						do
						:: k_ < ranges[SWEEPER].count ->
							add_range(CURSOR, ranges[SWEEPER].item[k_].first,
									  ranges[SWEEPER].item[k_].last,
									  ranges[SWEEPER].item[k_].due,
									  ranges[SWEEPER].item[k_].doubtful,
									  ranges[SWEEPER].item[k_].looked, my_now);
							k_++
						:: else -> break
						od;
						k_ = 0
					:: else
					fi
				:: else
				fi
			}
		/* It is rolled back. */
		:: d_step {
#ifdef SWEEP_RESERVES
				add_range(CURSOR, mine.first, mine.last, LATER,
						  mine.doubtful, 0, my_now)
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
			mine.first = 0; mine.last = 0; mine.doubtful = false;
			looked_to = 0; my_now = 0; begun = false; began[SWEEPER] = 0;
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
