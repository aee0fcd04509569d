/*
 * test/model/lanes.pml
 *	  The bound of a group where claims take lanes in turn: the lane of the
 *	  group in shared memory (src/map/lanes.c), and the claims that use it
 *	  (src/claim/lane_scan.c, group.c).  A model of the design in
 *	  doc/internals.md, "Groups", to be checked by spin.  The bounds of each run
 *	  are in test/model/run.
 *
 * NOTES
 *	  As in groups.pml there is one group with a few messages, and a bound.
 *	  Sessions claim messages from it, and renew, release or complete their
 *	  claims, each in a transaction that may be rolled back, or be prepared, and
 *	  then committed or rolled back; then the worker returns what it has changed,
 *	  after the group was unlocked.  A claim runs out when
 *	  time passes.  A session may also be terminated in the middle of a claim.
 *
 *	  The lane knows in which messages something may be free ("pieces"), and
 *	  which were delivered and may be unfinished ("listed").  The availability
 *	  map knows which will be due, in which something was locked, and of which
 *	  nothing is known.  A claim takes these steps, and between any two of them all other
 *	  processes may take theirs:
 *
 *	  1.  It may reserve what is due or was locked, take a snapshot, and give
 *	  what is free to the lane; also to "listed" what was delivered.
 *
 *	  2.  It takes the first messages of the lane, which is LANE_TAKEN then.
 *
 *	  3.  It locks the group, or gives back what it has taken.  With a bound of
 *	  1 it does that too, and begins again, if something that comes first was
 *	  added to the lane meanwhile.
 *
 *	  4.  It reads "listed".  If there is so much in it that it matters, it takes
 *	  a snapshot, counts, and replaces what it has read by what is unfinished.
 *	  With a bound of 1 it finds out which message comes before what it has
 *	  taken: one that was delivered, or one that a prepared transaction had
 *	  claimed and that is free after all.
 *
 *	  5.  If the group is full, it unlocks it, and gives back what it has taken.
 *	  Then the lane is LANE_FULL, unless it has changed since step 2 or what was
 *	  counted may be changing.
 *
 *	  6.  Else it takes a snapshot, chooses, and gives the rest back.  Then it
 *	  marks or pops what it has chosen.
 *
 *	  If it is not known what was delivered, or the transaction has claimed
 *	  before, it locks the group, reads all rows, and chooses.
 *
 *	  These properties are checked:
 *
 *	  1.  However the open transactions end, the messages under live claims
 *	  are never more than the bound.  A message that is popped counts until
 *	  the transaction ends.
 *
 *	  2.  With a bound of 1, no message is delivered while another one that was
 *	  delivered is not finished, or while an earlier one is free.
 *
 *	  3.  No message is forgotten.  At the end, each message that is free is in
 *	  the lane, when all that is due or locked was given to it; and if the
 *	  group has room, the lane has a turn (LANE_HAS_TURN).  The map knows when
 *	  each message that is claimed or delayed is due.
 *
 *	  4.  When a claim has locked the group, "listed" includes all messages
 *	  that are, or may be, under live claims, unless the map says that this is
 *	  not known.
 *
 *	  5.  No process waits forever (spin's check for invalid end states).
 *
 *	  Left out are: the rest of the availability map (availability.pml); other
 *	  lanes; room in shared memory; probes; waiting sessions; rates; clocks that
 *	  step back.  There are two moments in time.
 *
 *	  The size of a run: BOUND; NUMBERS of messages; SESSIONS; CALLS of each
 *	  session; WANTED, messages that a claim wants.  What may happen in it:
 *	  ABORT, PREPARE, POP, NEXT (a call completes a claim, and claims again),
 *	  TWICE (a transaction claims twice), DELAY (messages are released with a
 *	  delay), DELETE (messages that are not claimed are deleted), TERMINATE,
 *	  WIDE (a claim takes all pieces, or the first message), PUSH (the first
 *	  message, which has a high priority, is pushed meanwhile), CLEAR (the map
 *	  is cleared, and the worker reads the queue).  The defines that make the
 *	  model wrong are in test/model/run.
 */

#define BIT(n)	(1 << (n))
#define ALL		(BIT(NUMBERS) - 1)

/* The state of a row, as a snapshot sees it */
#define FREE	0				/* it can be claimed when it is due */
#define CLAIMED	1
#define GONE	2

/* Besides these, what a row becomes at the end of a transaction */
#define POPPED	3				/* GONE */
#define AS_IS	4				/* the row is only locked */

#define LATER	1				/* the second moment in time */
#define AT_LAST	2				/* behind it */

/* What a transaction does to a message */
#define NOTHING		0
#define RENEW		1
#define RELEASE		2
#define COMPLETE	3

#ifdef CLEAR
#define PROCS	(SESSIONS + 1)	/* and the worker */
#else
#define PROCS	SESSIONS
#endif

typedef Row
{
	byte state;					/* committed */
	byte until;					/* CLAIMED: end of the claim; FREE: due */
	byte owner;					/* CLAIMED: the session, plus 1 */
	bool delivered;				/* claim_count > 0 */
	byte writer;				/* the session that has locked it, plus 1 */
	byte pending;				/* what the row becomes when it commits */
	byte new_until
};

typedef Snapshot
{
	byte state[NUMBERS];
	byte until[NUMBERS];
	byte delivered;				/* a bit for each row, as below */
	byte stale;					/* the rows that have changed since */
	bool is_taken
};

Row row[NUMBERS];
Snapshot vis[PROCS];
byte now = 0;
byte group_lock = 0;			/* the session that has it, plus 1 */

/* The lane; a bit for each message */
#ifdef PUSH
byte pieces = ALL - BIT(0);
#else
byte pieces = ALL;
#endif
byte listed = 0;
bool is_taken = false;			/* LANE_TAKEN */
bool is_full = false;
byte unchanged = 0;				/* the sessions that have taken it since it has
								 * changed last: lane_changes */

/* The availability map */
bool knows = true;				/* knows_delivered */
byte due[AT_LAST + 1];			/* due[0] is not used */
byte locked = 0;
byte unknown = 0;
#ifdef CLEAR
byte open = 0;					/* processes that have a reservation open */
byte incarnation = 0;
#endif

hidden byte i_;
hidden byte j_;
hidden byte total_;
hidden byte if_commit_;
hidden byte if_abort_;
hidden byte found_;

#define is_live(n)		(row[n].state == CLAIMED && row[n].until > now)
#define is_delayed(n)	(row[n].state == FREE && row[n].until > 0)
#define will_be_live(n)	(row[n].pending == POPPED || \
						 (row[n].pending == CLAIMED && \
						  row[n].new_until > now) || \
						 (row[n].pending == AS_IS && is_live(n)))
#define overdue			(now >= LATER -> due[LATER] : 0)
#define to_give			(overdue | locked | unknown)
#define first_of(set)	((set) & ~((set) - 1))

/* The state of the lane (LaneState) */
#define LANE_TAKEN		1
#define LANE_FULL		2
#define LANE_EMPTY		3		/* or LANE_NO_ENTRY, if nothing is listed */
#define LANE_HAS_TURN	4

#define state_of_untaken \
	(pieces == 0 -> LANE_EMPTY : (is_full -> LANE_FULL : LANE_HAS_TURN))
#ifdef NO_TAKEN
#define lane_state		state_of_untaken
#else
#define lane_state		(is_taken -> LANE_TAKEN : state_of_untaken)
#endif
#define has_turn		(lane_state == LANE_HAS_TURN)

#ifdef FULL_THOUGH_CHANGED
#define is_unchanged	true
#else
#define is_unchanged	(unchanged & BIT(me))
#endif

/* Property 1 */
inline check_bound()
{
	total_ = 0;
	for (i_ : 0 .. SESSIONS) {
		if_commit_ = 0;
		if_abort_ = 0;
		for (j_ : 0 .. NUMBERS - 1) {
			if
			:: row[j_].writer == i_ && is_live(j_) -> if_abort_++
			:: else
			fi;
			if
			:: i_ > 0 && row[j_].writer == i_ && will_be_live(j_) ->
				if_commit_++
			:: else
			fi
		}
		total_ = total_ +
			(if_commit_ > if_abort_ -> if_commit_ : if_abort_)
	}
	assert(total_ <= BOUND);
	total_ = 0; if_commit_ = 0; if_abort_ = 0; i_ = 0; j_ = 0
}

/* Property 2 */
inline check_order(n)
{
#if BOUND == 1
	for (i_ : 0 .. NUMBERS - 1) {
		if
		:: i_ == n || row[i_].state == GONE ||
			(row[i_].writer == me + 1 && row[i_].pending == GONE)
		:: else ->
			assert(!row[i_].delivered);
			assert(i_ > n || row[i_].writer != 0 || row[i_].until > now)
		fi
	}
	i_ = 0
#else
	skip
#endif
}

/* Property 4 */
inline check_listed()
{
	for (i_ : 0 .. NUMBERS - 1) {
		assert(!knows || (listed & BIT(i_)) || row[i_].writer == me + 1 ||
			   (!is_live(i_) && (row[i_].writer == 0 || !will_be_live(i_))))
	}
	i_ = 0
}

/* --- The lane and the map --- */

/* The lane has changed, and may have room. */
inline change()
{
	is_full = false;
	unchanged = 0
}

inline set_open(value)
{
#ifdef CLEAR
	open = (value -> open | BIT(me) : open & ~BIT(me))
#else
	skip
#endif
}

/* --- Transactions --- */

/* There is no callback. */

/* The claim has failed. */
inline reset_claim()
{
	drop_snapshot();
	range = (whole -> 0 : range);
	whole = false; has_given = false; is_open = false; is_new = false;
	took = false; wanted = 0; live = 0; listing = 0; scanned = 0; found = 0;
	free = 0; chosen = 0; seen_locked = 0; unsure = false; blocked = false;
	failed = false
}


/*
 * ProcArrayEndTransaction(), or the same for a prepared transaction.  What
 * the callback will report is in "to_...".
 */
inline leave(commits)
{
	for (i_ : 0 .. NUMBERS - 1) {
		if
		:: commits && row[i_].writer == me + 1 && row[i_].pending != AS_IS ->
			if
			:: row[i_].pending == GONE || row[i_].pending == POPPED ->
				row[i_].state = GONE;
				row[i_].owner = 0;
				row[i_].delivered = false;
				to_cut = to_cut | BIT(i_)
			:: row[i_].pending == CLAIMED ->
				row[i_].state = CLAIMED;
				row[i_].owner = me + 1;
				row[i_].delivered = true;
				to_list = to_list | BIT(i_)
			:: row[i_].pending == FREE ->
				row[i_].state = FREE;
				row[i_].owner = 0;
				less = less || row[i_].new_until > 0;
				to_free = (row[i_].new_until == 0 ->
						   to_free | BIT(i_) : to_free)
			fi;
			row[i_].until = row[i_].new_until;
			due_1 = (row[i_].until == LATER -> due_1 | BIT(i_) : due_1);
			due_2 = (row[i_].until == AT_LAST -> due_2 | BIT(i_) : due_2);
			for (j_ : 0 .. PROCS - 1) {
				vis[j_].stale = (vis[j_].is_taken ->
								 vis[j_].stale | BIT(i_) : 0)
			}
		:: !commits && (changed & BIT(i_)) ->
			to_free = (is_delayed(i_) -> to_free : to_free | BIT(i_));
			to_scan = (is_delayed(i_) -> to_scan | BIT(i_) : to_scan)
		:: else
		fi;
		if
		:: row[i_].writer == me + 1 ->
			row[i_].writer = 0;
			row[i_].pending = 0;
			row[i_].new_until = 0
		:: else
		fi
	}
	to_list = (commits -> to_list | lost : to_list);
	due_1 = (commits -> due_1 | lost : due_1);
	less = less && commits;
	changed = 0; lost = 0; i_ = 0; j_ = 0
}

/* XACT_EVENT_COMMIT, XACT_EVENT_ABORT */
inline callback()
{
	due[LATER] = due[LATER] | due_1;
	due[AT_LAST] = due[AT_LAST] | due_2;
	locked = locked | to_scan;
	pieces = pieces | to_free;
	listed = (listed | to_list) & ~to_cut;
	if
	:: (to_free | to_list | to_cut) != 0 || less -> change()
	:: else
	fi;
	due_1 = 0; due_2 = 0; to_scan = 0; to_free = 0; to_list = 0; to_cut = 0;
	less = false;

	/* availability_close_all(), if the claim has failed */
#ifdef CLEAR
	unknown = unknown | given;
#else
	locked = locked | given;
#endif
	given = 0;
	if
	:: has_lane -> put_back()
	:: else
	fi;
	set_open(false)
}

/* XACT_EVENT_PREPARE: availability_prepare() */
inline prepare()
{
	for (i_ : 0 .. NUMBERS - 1) {
#ifdef NOT_LISTED_AT_PREPARE
		skip
#else
		listed = ((changed & BIT(i_)) && !is_delayed(i_) ->
				  listed | BIT(i_) : listed)
#endif
	}
	change();
	i_ = 0
}

inline unlock()
{
	group_lock = (group_lock == me + 1 -> 0 : group_lock)
}

inline take_snapshot()
{
	vis[me].delivered = 0;
	for (i_ : 0 .. NUMBERS - 1) {
		vis[me].state[i_] = row[i_].state;
		vis[me].until[i_] = row[i_].until;
		vis[me].delivered = (row[i_].delivered ->
							 vis[me].delivered | BIT(i_) : vis[me].delivered)
	}
	vis[me].is_taken = true;
	vis[me].stale = 0;
	i_ = 0
}

inline drop_snapshot()
{
	for (i_ : 0 .. NUMBERS - 1) {
		vis[me].state[i_] = 0;
		vis[me].until[i_] = 0
	}
	vis[me].delivered = 0;
	vis[me].is_taken = false;
	vis[me].stale = 0;
	i_ = 0
}

/* --- Rows --- */

#define is_ours(n)		(row[n].writer == me + 1)

/* Has another transaction locked the row, or changed it since the snapshot? */
#define is_changing(n)	(row[n].writer != 0 || (vis[me].stale & BIT(n)))

#define seems_live(n)	(vis[me].state[n] == CLAIMED && \
						 vis[me].until[n] > my_now)
#define seems_delayed(n)	(vis[me].state[n] == FREE && \
							 vis[me].until[n] > my_now)
#define seems_gone(n)	(vis[me].state[n] == GONE || is_ours(n))
#define was_delivered(n)	(vis[me].delivered & BIT(n))

/* A message is left to a later scan. */
inline skip_row(n)
{
	due_1 = (vis[me].until[n] == LATER -> due_1 | BIT(n) : due_1);
	due_2 = (vis[me].until[n] == AT_LAST -> due_2 | BIT(n) : due_2)
}

/* --- Giving --- */

inline give_rows()
{
	for (n : 0 .. NUMBERS - 1) {
		if
		:: !(given & BIT(n)) || seems_gone(n)
		:: else ->
			found = (is_changing(n) || was_delivered(n) ->
					 found | BIT(n) : found);
			if
			:: seems_live(n) || seems_delayed(n) -> skip_row(n)
			:: else ->
				free = free | BIT(n);
				seen_locked = (row[n].writer != 0 ->
							   seen_locked | BIT(n) : seen_locked)
			fi
		fi
	}
	n = 0
}

/* Reserve what is due, scan it, and give it to the lane. */
inline give()
{
	d_step {
		given = to_give;
		due[LATER] = due[LATER] & ~given;
		locked = 0;
		unknown = 0;
		my_now = now;
		set_open(true)
	};
	may_end();
	d_step { take_snapshot() };
	d_step { give_rows() };
	d_step {
		drop_snapshot();
		listed = listed | found;
		if
		:: found != 0 -> change()
		:: else
		fi;
		found = 0
	};
	may_end();
	d_step {
		pieces = pieces | free;
		if
		:: free != 0 -> change()
		:: else
		fi;
		free = 0;
		return_skipped();
		given = 0;
		set_open(false)
	}
}

/* availability_give_back(): the messages that are due or were locked */
inline return_skipped()
{
	due[LATER] = due[LATER] | due_1;
	due[AT_LAST] = due[AT_LAST] | due_2;
	locked = locked | seen_locked;
	due_1 = 0; due_2 = 0; seen_locked = 0
}

/* The same: what was taken of the lane, and not used */
inline put_back()
{
	pieces = pieces | range;
	range = 0;
	has_lane = false;
	is_taken = false
}

/* --- Claims --- */

/* Our transaction has claimed something: the lane does not know that. */
inline look_for_own()
{
	found_ = lost != 0;
	for (i_ : 0 .. NUMBERS - 1) {
		found_ = found_ || (is_ours(i_) && row[i_].pending == CLAIMED)
	}
	i_ = 0
}

/* What our transaction has claimed or popped counts. */
inline count_own()
{
	live = 0;
	for (i_ : 0 .. NUMBERS - 1) {
		live = live + (is_ours(i_) && (row[i_].pending == POPPED ||
									   row[i_].pending == CLAIMED) -> 1 : 0)
	}
	i_ = 0
}

inline count_listed()
{
	total_ = 0;
	for (i_ : 0 .. NUMBERS - 1) {
		total_ = total_ + (listed & BIT(i_) -> 1 : 0)
	}
	i_ = 0
}

inline count_row(n)
{
	if
	:: !(listing & BIT(n)) || seems_gone(n)
	:: else ->
		if
#ifndef NO_COUNT_OF_CHANGING
		:: seems_live(n) || is_changing(n) ->
#else
		:: seems_live(n) ->
#endif
			live++;
			found = found | BIT(n);
			unsure = unsure || is_changing(n)
		:: else ->
			found = (was_delivered(n) -> found | BIT(n) : found);
			if
			:: seems_delayed(n) ->
				blocked = blocked || (BOUND == 1 && was_delivered(n))
			:: else -> free = free | BIT(n)
			fi
		fi
	fi
}

/*
 * In a group that is first in, first out, a message that was delivered is
 * chosen first; and before the range one that is free after all, because a
 * prepared transaction was rolled back.
 */
inline choose_head()
{
	scanned = 0;
#if BOUND == 1
	scanned = first_of(free & vis[me].delivered);
#ifndef HEAD_WAS_DELIVERED
	scanned = (scanned == 0 -> first_of(free & (first_of(range) - 1)) :
			   scanned);
	found = found | scanned;
#endif
#endif
	free = 0
}

/* Choose a message of the range, or skip it. */
inline take_row(n)
{
	if
	:: !(scanned & BIT(n)) || wanted == 0 || live >= BOUND || failed
	:: else ->
		if
		:: seems_gone(n) -> range = range & ~BIT(n)
		:: !seems_gone(n) && (seems_live(n) || seems_delayed(n)) ->
			skip_row(n);
			range = range & ~BIT(n)
		:: else ->
			if
			:: is_changing(n) ->
				seen_locked = seen_locked | BIT(n);
				failed = BOUND == 1;
				range = (failed -> range : range & ~BIT(n))
			:: else ->
				chosen = chosen | BIT(n);
				took = true;
				changed = changed | BIT(n);
				range = range & ~BIT(n);
				wanted--;
				live++
			fi
		fi
	fi
}

/* Mark or pop a message that is still as the snapshot shows it. */
inline mark(n)
{
	if
	:: !(chosen & BIT(n))
	:: (chosen & BIT(n)) && is_changing(n) ->
		if
		:: whole
		:: else ->				/* claim_scan_lost() */
			pieces = pieces | BIT(n);
			change();
			lost = (pops -> lost : lost | BIT(n))
		fi
	:: else ->
		check_order(n);
		row[n].writer = me + 1;
		row[n].pending = (pops -> POPPED : CLAIMED);
		row[n].new_until = (pops -> 0 : now + 1);
		check_bound()
	fi
}

#define has_claim(n)	(row[n].state == CLAIMED && row[n].owner == me + 1)

#define may_take		(wanted > 0 && live < BOUND && !failed)
#define can_take		(pieces != 0 && !is_taken)	/* lanes_take_more() */

/* The session may be terminated here. */
inline may_end()
{
#ifdef TERMINATE
	if
	:: true
	:: me < SESSIONS -> goto roll_back
	fi
#else
	skip
#endif
}

proctype session(byte me)
{
	byte calls = CALLS;
	byte claims;				/* of this transaction, still to be made */
	byte does;					/* to message n */
	byte n;
	byte my_now;
	bool pops;

	/* A claim; a bit for each message */
	bool whole;					/* it reads all rows */
	bool has_given;
	bool is_open;				/* the group is locked, and was counted */
	bool is_new;				/* the lock */
	bool took;					/* something was chosen */
	byte wanted;
	byte live;
	byte given;					/* reserved */
	byte range;					/* of the lane, reserved */
	bool has_lane;				/* ... also if that is empty now */
	byte listing;				/* to be counted */
	byte scanned;				/* to be chosen from */
	byte found;					/* unfinished */
	byte free;
	byte chosen;
	byte seen_locked;
	bool unsure;
	bool blocked;
	bool failed;

	/* The transaction */
	byte changed;
	byte lost;
	byte due_1;
	byte due_2;
	byte to_scan;
	byte to_free;
	byte to_list;
	byte to_cut;
	bool less;

again:
	skip;
	d_step {
		calls--;
		claims = 1;
		does = NOTHING;
		pops = false;
		n = 0
	};
	if
	:: true						/* a claim */
#ifdef TWICE
	:: claims = 2
#endif
#ifdef POP
	:: pops = true
#endif
	:: has_claim(0) -> n = 0; goto update
	:: has_claim(1) -> n = 1; goto update
#if NUMBERS > 2
	:: has_claim(2) -> n = 2; goto update
#endif
#ifdef DELETE
	:: row[0].state == FREE -> n = 0; goto delete
	:: row[1].state == FREE -> n = 1; goto delete
#endif
	fi;

claim:
	skip;
	d_step {
		claims--;
		wanted = WANTED;
		has_given = false;
		is_open = false;
		is_new = false;
		failed = false;
		my_now = now;
		look_for_own();
		whole = !knows || found_;
		found_ = false;
		if
		:: !whole && changed != 0 -> change()	/* pending_give_turns() */
		:: else
		fi
	};
	if
	:: whole -> goto lock
	:: else
	fi;

look:
	/* What is due may be given first, once. */
	if
	:: !has_given && to_give != 0 ->
		has_given = true;
		give();
		goto look
	:: may_take && (is_open -> can_take : has_turn) -> goto take
	:: !(may_take && (is_open -> can_take : has_turn)) &&
		(!may_take || is_open || has_given || to_give == 0) ->
		goto end_claim
	fi;

take:
	if
	:: atomic {
			(is_open -> can_take : has_turn) ->
			if
			:: range = first_of(pieces)
#ifdef WIDE
			:: pieces != first_of(pieces) -> range = pieces
#endif
			fi;
			pieces = pieces & ~range;
			is_taken = true;
			has_lane = true;
			unchanged = (is_open -> unchanged : unchanged | BIT(me));
			set_open(true)
		}
	:: else -> goto look
	fi;
	may_end();

lock:
	if
	:: is_open -> goto choose
	:: else
	fi;
#ifdef SNAPSHOT_FIRST
	d_step { take_snapshot() };
#endif
	/* LockAcquire(), dontWait */
	if
#ifdef NO_LOCK
	:: true
#else
	:: d_step {
			group_lock == 0 || group_lock == me + 1 ->
			is_new = group_lock == 0;
			group_lock = me + 1
		}
	:: d_step {
			group_lock != 0 && group_lock != me + 1 ->
			if
			:: has_lane -> put_back()
			:: else
			fi;
			wanted = 0
		};
		goto end_claim
#endif
	fi;
	is_open = true;
	may_end();

#ifndef NO_SECOND_LOOK
	/* Something that comes first was added to the lane meanwhile. */
	if
	:: BOUND == 1 && !whole && (pieces & (first_of(range) - 1)) != 0 ->
		goto next_pass
	:: else
	fi;
#endif

	/* count_room() */
	d_step {
#ifndef NO_LOCK
		check_listed();
#endif
		count_own();
		count_listed();
		listing = (whole -> ALL : listed);
		if
		:: !whole && knows && (listing == 0 || (BOUND > 1 &&
			live + total_ + wanted <= BOUND)) ->
			live = live + total_;
			listing = 0
		:: else
		fi;
		total_ = 0
	};
	if
	:: !whole && !knows -> goto next_pass
	:: !(!whole && !knows) && listing == 0 -> goto choose
	:: !(!whole && !knows) && listing != 0
	fi;
#ifndef SNAPSHOT_FIRST
	d_step { take_snapshot() };
#endif
	my_now = now;
	n = 0;
	do
	:: n < NUMBERS -> d_step { count_row(n); n++ }
	:: else -> break
	od;
	n = 0;
	may_end();
	d_step {
		live = (blocked -> BOUND : live);
		blocked = false
	};
	if
	:: whole ->
		d_step {
			/* A message that was delivered comes first. */
			scanned = (BOUND == 1 && (free & vis[me].delivered) != 0 ->
					   free & vis[me].delivered : free);
			range = scanned;
			found = 0; free = 0; listing = 0; unsure = false
		};
		goto scan
	:: else
	fi;

	d_step {
		choose_head();
		/* lanes_set_delivered() */
#ifndef SET_THOUGH_DELETED
		listed = (changed == 0 -> (listed & ~listing) | found : listed);
#else
		listed = (listed & ~listing) | found;
#endif
		listing = 0
	};
	may_end();

	/* The group is full. */
	if
	:: live >= BOUND ->
		if
		:: is_new -> d_step { unlock(); is_new = false }
		:: else
		fi;
		d_step {
			if
			:: found != 0 && !unsure && is_unchanged ->
				is_full = true;
				unchanged = 0
			:: else -> change()
			fi;
			found = 0;
			unsure = false;
			is_open = false;
			scanned = 0;
			drop_snapshot()
		};
		d_step { put_back() };
		goto end_claim
	:: else
	fi;
	d_step { found = 0; unsure = false };

choose:
	skip;
	d_step {
		take_snapshot();
		my_now = now
	};
scan:
	skip;
	d_step {
		listing = range;		/* what is behind a head stays in the range */
		found = scanned;
		scanned = (scanned == 0 -> range : scanned);
		for (n : 0 .. NUMBERS - 1) {
			take_row(n)
		}
		range = (found != 0 && !whole -> listing : range);
		n = 0; scanned = 0; found = 0; listing = 0
	};
	may_end();
	d_step {
		if
		:: whole ->
			less = less || (range != 0 && live < BOUND);
			range = 0; due_1 = 0; due_2 = 0; seen_locked = 0; wanted = 0
		:: else ->
			return_skipped();
			put_back();
			less = less || chosen != 0
		fi
	};
	may_end();
	if
	:: chosen != 0 || whole
	:: else -> goto look
	fi;

	/* mark_chosen(), delete_chosen() */
	do
	:: n < NUMBERS ->
		d_step { mark(n); chosen = chosen & ~BIT(n); n++ }
	:: else -> break
	od;
	skip;
	d_step { n = 0; drop_snapshot(); set_open(false) };
	if
	:: wanted > 0 && live < BOUND && !failed && !whole -> goto look
	:: else
	fi;

end_claim:
	skip;
	d_step { drop_snapshot(); wanted = 0; set_open(false); my_now = 0 };
	if
	:: is_open && is_new && !took ->
		d_step { unlock(); is_new = false };
		d_step {
			if
			:: !whole -> change()
			:: else
			fi
		}
	:: else
	fi;
	d_step {
		is_open = false; is_new = false; has_given = false; failed = false;
		whole = false; took = false; live = 0
	};
#ifdef UNLOCK_BEFORE_COMMIT
	d_step { unlock() };
#endif
	if
	:: claims > 0 -> goto claim
	:: else -> goto finish
	fi;

	/* Nothing was chosen, and that is not final. */
next_pass:
	if
	:: is_new -> d_step { unlock(); is_new = false }
	:: else
	fi;
	d_step { change() };
	d_step {
		put_back();
		set_open(false);
		drop_snapshot();
		listing = 0;
		live = 0;
		claims++
	};
	goto claim;

#ifdef DELETE
delete:
	/* Wait for the lock of the row. */
	if
	:: d_step {
			row[n].writer == 0 && row[n].state == FREE ->
			row[n].writer = me + 1;
			row[n].pending = GONE;
			changed = changed | BIT(n)
		};
		n = 0;
		goto finish
	:: row[n].writer == 0 && row[n].state != FREE -> goto next_call
	fi;
#endif

update:
	if
	:: does = RENEW
	:: does = RELEASE
	:: does = COMPLETE
#ifdef NEXT
	:: d_step { does = COMPLETE; claims = 2 }
#endif
	fi;
	/* Wait for the lock of the row. */
	if
	:: d_step {
			row[n].writer == 0 && has_claim(n) ->
			row[n].writer = me + 1;
			row[n].pending = (does == COMPLETE -> GONE : AS_IS);
			changed = changed | BIT(n)
		}
	:: row[n].writer == 0 && !has_claim(n) -> goto next_call
	fi;
	d_step {
		if
		:: row[n].until <= now ->	/* the claim has ended */
			does = NOTHING
		:: row[n].until > now && does == RENEW ->
			row[n].pending = CLAIMED;
			row[n].new_until = AT_LAST;
			check_bound()
		:: row[n].until > now && does == RELEASE ->
			row[n].pending = FREE
		:: else
		fi
	};
	if
	:: does == NOTHING -> goto roll_back
	:: does == COMPLETE && claims == 2 -> claims = 1; n = 0; goto claim
#ifdef DELAY
	:: does == RELEASE -> row[n].new_until = now + 1
#endif
	:: does != NOTHING && !(does == COMPLETE && claims == 2)
	fi;
	n = 0;

finish:
	if
	:: d_step { leave(true) };
#ifdef UNLOCK_BEFORE_CALLBACK
		d_step { unlock() };
#endif
		d_step { callback() }
#ifdef ABORT
	:: true ->
#else
	:: false ->
#endif
roll_back:
		skip;
		d_step { leave(false); reset_claim() };
		d_step { callback() }
#ifdef PREPARE
	/* The worker returns what was changed, when the locks are gone. */
	:: changed != 0 ->
		d_step { prepare() };
		if
		:: d_step { leave(true); unlock() }
		:: d_step { leave(false); unlock() }
		fi;
		d_step { callback() }
#endif
	fi;
	d_step { unlock() };
next_call:
	skip;
	d_step { n = 0; my_now = 0; claims = 0; does = NOTHING; pops = false };
	if
	:: calls > 0 -> goto again
	:: else
	fi
}

#ifdef CLEAR
/* availability_clear() */
proctype clear()
{
	d_step {
		pieces = 0;
		listed = 0;
		is_taken = false;
		change();
		due[LATER] = 0;
		due[AT_LAST] = 0;
		locked = 0;
		unknown = ALL;
		knows = false;
		incarnation++
	}
}

/* The worker learns what was delivered; lane_scan_give_due(). */
proctype worker(byte me)
{
	byte tries = 2;
	byte begun;					/* the incarnation */
	byte n;
	byte my_now;
	byte given;
	byte found;
	byte free;
	byte seen_locked;
	byte due_1;
	byte due_2;

	do
	:: d_step { tries > 0 && !knows -> tries--; begun = incarnation };
		do
		:: (overdue | unknown) != 0 -> give()
		:: else -> break
		od;

		/* give_delivered_delayed() */
		skip;
		d_step { take_snapshot(); my_now = now };
		d_step {
			for (n : 0 .. NUMBERS - 1) {
				found = (vis[me].state[n] == FREE && vis[me].until[n] > 0 &&
						 (is_changing(n) || was_delivered(n)) ->
						 found | BIT(n) : found)
			}
			n = 0;
			my_now = 0;
			drop_snapshot()
		};
		d_step { listed = listed | found; change(); found = 0 };

		/* availability_end_delivered() */
		d_step {
#ifdef LEARN_THOUGH_RESERVED
			knows = incarnation == begun && unknown == 0;
#else
			knows = incarnation == begun && unknown == 0 && open == 0;
#endif
			incarnation = (open != 0 -> incarnation + 1 : incarnation);
			begun = 0
		}
	:: tries == 0 || knows -> break
	od;
roll_back:
	skip
}
#endif

#ifdef PUSH
proctype push()
{
	row[0].state = FREE;
	d_step { pieces = pieces | BIT(0); change() }
}
#endif

proctype clock()
{
	now = LATER
}

init
{
	byte n;
	bool below;					/* the group is below its bound */
	bool blocked;
	byte free;

	atomic {
#ifdef PUSH
		row[0].state = GONE;
		run push();
#endif
		for (n : 1 .. SESSIONS) {
			run session(n - 1)
		}
		run clock();
#ifdef CLEAR
		run clear();
		run worker(SESSIONS);
#endif
		n = 0
	};
	_nr_pr == 1;
	/* Property 3 */
	d_step {
		total_ = 0;
		for (n : 0 .. NUMBERS - 1) {
			assert(group_lock == 0 && row[n].writer == 0);
			total_ = total_ + (is_live(n) -> 1 : 0);

			/* Property 4 */
			assert(!is_live(n) || !knows || (listed & BIT(n)));
			if
			:: row[n].state == GONE
			:: row[n].state != GONE && row[n].until > now ->
				blocked = blocked || (row[n].delivered && !is_live(n));
				assert(((due[LATER] | due[AT_LAST] | to_give) & BIT(n)) != 0)
			:: else ->
				/* Give what is due. */
				free = free | BIT(n);
				is_full = ((to_give & BIT(n)) != 0 -> false : is_full);
				assert(((pieces | to_give) & BIT(n)) != 0)
			fi
		}
		below = total_ < BOUND && (!blocked || BOUND > 1);
		assert(!is_taken);
		assert(!below || free == 0 || !knows || !is_full)
	}
}
