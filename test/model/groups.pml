/*
 * test/model/groups.pml
 *	  The bound of a group: how many of its messages may be under live claims
 *	  at once (src/claim/whole_scan.c, group.c).  A model of the
 *	  design in doc/internals.md, "Groups", to be checked by spin.  The bounds
 *	  of each run are in test/model/run.
 *
 * NOTES
 *	  There is one group with a few messages, and a bound.  Sessions claim
 *	  messages from it, and renew, release or complete their claims, each in a
 *	  transaction that may be rolled back, or be prepared, and then committed
 *	  or rolled back without a callback.  A claim runs out when time passes.
 *
 *	  A claim takes these steps.  It takes the group's lane out of the ring of
 *	  lanes.  It locks the group, or skips it, if another transaction has the
 *	  lock; the lock is kept until the transaction has ended, also if that is
 *	  prepared, unless the claim gets nothing.  Then it takes a snapshot, and
 *	  looks at one row after the other: which are under live claims, and which
 *	  are free?  A claim that has ended counts as live if another transaction
 *	  has locked or changed the row since: it may be renewing the claim.  This
 *	  is so whatever else the message is, say one that has expired or was
 *	  claimed too often.  At last the claim chooses free messages, up to the
 *	  bound, gives the lane back, and marks or pops what it has chosen.
 *
 *	  A release or a renewal locks the row, and reads the clock when it has
 *	  the lock; if the claim has ended, it changes nothing.  A message that is
 *	  completed is deleted at once; if the claim has ended then, this is rolled
 *	  back.
 *
 *	  Between any two steps all other processes may take theirs.  These
 *	  properties are checked:
 *
 *	  1.  However the open transactions end, the messages under live claims
 *	  are never more than the bound.  A message that is popped counts until
 *	  the transaction ends.
 *
 *	  2.  With a bound of 1, no message is delivered while another one that was
 *	  delivered is not finished.
 *
 *	  3.  No message is forgotten.  At the end, if a message is free, and the
 *	  group is below its bound, then the lane is in the ring, or is looked at
 *	  because something in it is due, or was locked; and this will be so for each
 *	  message that is claimed or delayed, when it is due.
 *
 *	  4.  No process waits forever (spin's check for invalid end states).
 *
 *	  The ring stands for what leads sessions to a group: that a lane is in
 *	  it, for the flag of a map that says that something may be free.  Left out
 *	  are: the rest of the availability map (availability.pml); what sessions
 *	  answer; the other lanes; rates; clocks that step back.  There are two
 *	  moments in time.
 *
 *	  The size of a run: BOUND; NUMBERS of messages; SESSIONS; CALLS of each
 *	  session.  What may happen in it: ABORT, PREPARE, POP, NEXT (a call
 *	  completes a claim, and claims again), TWICE (a transaction claims twice),
 *	  DELAY (messages are released with a delay).  The defines that make the
 *	  model wrong are in test/model/run.
 */

#define BIT(n)	(1 << (n))

/* The state of a row, as a snapshot sees it */
#define FREE	0				/* it can be claimed when it is due */
#define CLAIMED	1
#define GONE	2

/* Besides these, what a row becomes at the end of a transaction */
#define POPPED	3				/* GONE */
#define AS_IS	4				/* the row is only locked */

#define LATER	1				/* the second moment in time */
#define NEVER	9

/* What a transaction does to a message that its session has claimed */
#define NOTHING		0
#define RENEW		1
#define RELEASE		2
#define COMPLETE	3

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
	bool delivered[NUMBERS];
	bool is_taken;
	byte stale					/* the rows that have changed since */
};

Row row[NUMBERS];
Snapshot vis[SESSIONS];
byte now = 0;
byte group_lock = 0;			/* the session that has it, plus 1 */

/* The lane */
bool linked = true;				/* it is in the ring */
byte due = NEVER;				/* the first message is due */
bool locked = false;			/* something may be due earlier */

hidden byte i_;
hidden byte j_;
hidden byte total_;
hidden byte if_commit_;
hidden byte if_abort_;

#define is_live(n)		(row[n].state == CLAIMED && row[n].until > now)
#define will_be_live(n)	(row[n].pending == POPPED || \
						 (row[n].pending == CLAIMED && \
						  row[n].new_until > now) || \
						 (row[n].pending == AS_IS && is_live(n)))
#define min(a, b)		((a) < (b) -> (a) : (b))

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
		assert(i_ == n || !row[i_].delivered || row[i_].state == GONE ||
			   (row[i_].writer == me + 1 && row[i_].pending == GONE))
	}
	i_ = 0
#else
	skip
#endif
}

/* --- Transactions --- */

/*
 * ProcArrayEndTransaction(), or the same for a prepared transaction.  What
 * the callback has to report is in "ended" and "first_due".
 */
inline leave(commits)
{
	for (i_ : 0 .. NUMBERS - 1) {
		if
		:: row[i_].writer == me + 1 ->
			if
			:: commits && row[i_].pending != AS_IS ->
				ended = ended || row[i_].pending != CLAIMED;
				row[i_].delivered = row[i_].delivered ||
					row[i_].pending == CLAIMED;
				row[i_].state = (row[i_].pending == POPPED ->
								 GONE : row[i_].pending);
				row[i_].owner = (row[i_].state == CLAIMED -> me + 1 : 0);
				row[i_].until = (row[i_].state == GONE ->
								 0 : row[i_].new_until);
				first_due = (row[i_].state == GONE ->
							 first_due : min(first_due, row[i_].until));
				for (j_ : 0 .. SESSIONS - 1) {
					vis[j_].stale = (vis[j_].is_taken ->
									 vis[j_].stale | BIT(i_) : 0)
				}
			:: else -> ended = ended || !commits
			fi;
			row[i_].writer = 0;
			row[i_].pending = 0;
			row[i_].new_until = 0
		:: else
		fi
	}
	i_ = 0; j_ = 0
}

/* XACT_EVENT_COMMIT, XACT_EVENT_ABORT */
inline callback()
{
#ifndef NO_LINK_AT_END
	linked = linked || ended;
#endif
	due = min(due, first_due)
}

inline unlock()
{
	group_lock = (group_lock == me + 1 -> 0 : group_lock)
}

inline take_snapshot()
{
	for (i_ : 0 .. NUMBERS - 1) {
		vis[me].state[i_] = row[i_].state;
		vis[me].until[i_] = row[i_].until;
		vis[me].delivered[i_] = row[i_].delivered
	}
	vis[me].is_taken = true;
	vis[me].stale = 0;
	i_ = 0
}

inline drop_snapshot()
{
	for (i_ : 0 .. NUMBERS - 1) {
		vis[me].state[i_] = 0;
		vis[me].until[i_] = 0;
		vis[me].delivered[i_] = false
	}
	vis[me].is_taken = false;
	vis[me].stale = 0;
	i_ = 0
}

/* --- Claims --- */

/* Has another transaction locked the row, or changed it since the snapshot? */
#define is_changing(n)	(row[n].writer != 0 || (vis[me].stale & BIT(n)))

#define seems_live(n)	(vis[me].state[n] == CLAIMED && \
						 vis[me].until[n] > my_now)
#define seems_ended(n)	(vis[me].state[n] == CLAIMED && \
						 vis[me].until[n] <= my_now)

/* Look at a row. */
inline scan_row(n)
{
	if
	:: row[n].writer == me + 1 ->	/* the transaction sees its own change */
		count = count + (row[n].pending == GONE -> 0 : 1)
	:: row[n].writer != me + 1 && vis[me].state[n] != GONE ->
		if
		:: seems_live(n) -> count++
#ifndef NO_COUNT_OF_CHANGING
		:: seems_ended(n) && is_changing(n) -> count++
#endif
		:: else
		fi;
		if
		:: is_changing(n) -> seen_locked = true
		:: !is_changing(n) && vis[me].until[n] > my_now ->
			seen_due = min(seen_due, vis[me].until[n])
		:: else -> free = free | BIT(n)
		fi;
		if
		:: vis[me].delivered[n] -> head = head | BIT(n)
		:: else
		fi
	:: else
	fi
}

/*
 * Choose messages to mark, any of those that are free, since one with a higher
 * number may have a higher priority.
 */
inline choose()
{
#if BOUND == 1 && !defined(NO_HEAD)
	/* A message that was delivered comes first. */
	free = (head != 0 -> free & head : free);
#endif
	do
	:: n < NUMBERS && (free & BIT(n)) && count < BOUND ->
		chosen = chosen | BIT(n);
		free = free & ~BIT(n);
		count++;
		n++
	:: n < NUMBERS -> n++
	:: n == NUMBERS -> break
	od
}

/* Give the lane back, linked if it may have more. */
inline give_back()
{
#ifdef UNLINK_AFTER_SCAN
	linked = false;
	due = NEVER;
	locked = false;
#endif
	linked = linked || (free != 0 && count < BOUND);
	due = min(due, seen_due);
	locked = locked || seen_locked;
	free = 0; head = 0; count = 0; seen_due = NEVER; seen_locked = false
}

/* Mark or pop a message that is still as the snapshot shows it. */
inline mark(n)
{
	if
	:: !(chosen & BIT(n))
	:: (chosen & BIT(n)) && is_changing(n) -> locked = true
	:: else ->
		check_order(n);
		row[n].writer = me + 1;
		row[n].pending = (pops -> POPPED : CLAIMED);
		row[n].new_until = (pops -> 0 : now + 1);
		is_new = false;
		check_bound()
	fi
}

#define has_claim(n)	(row[n].state == CLAIMED && row[n].owner == me + 1)

proctype session(byte me)
{
	byte calls = CALLS;
	byte claims;				/* of this transaction, still to be made */
	byte does;					/* to message n */
	byte n;
	byte my_now;
	byte count;					/* messages that count for the bound */
	byte free;
	byte head;					/* messages that were delivered */
	byte chosen;
	bool pops;
	bool is_new;				/* the lock; and nothing is marked */
	byte seen_due = NEVER;
	bool seen_locked;
	bool ended;
	byte first_due = NEVER;

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
	fi;

claim:
	/*
	 * The clock is read, and the lane is taken out of the ring.  It need not
	 * be there: a map that is made anew knows nothing.
	 */
	skip;
	d_step {
#ifndef UNLINK_AFTER_SCAN
		linked = false;
		due = NEVER;
		locked = false;
#endif
		my_now = now;
		claims--
	};
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
#ifndef SKIPPED_IS_NOT_LINKED
			linked = true;
#endif
			drop_snapshot()
		};
		goto finish
#endif
	fi;
#ifndef SNAPSHOT_FIRST
	d_step { take_snapshot() };
#endif
	n = 0;
	do
	:: n < NUMBERS -> d_step { scan_row(n); n++ }
	:: else -> break
	od;
	atomic { n = 0; choose(); n = 0 };
	d_step { give_back() };
	do
	:: n < NUMBERS && chosen != 0 ->
		d_step { mark(n); chosen = chosen & ~BIT(n); n++ }
	:: else -> break
	od;
	skip;
	d_step {
		drop_snapshot();
		if
		:: is_new -> unlock(); is_new = false
		:: else
		fi;
		n = 0;
		my_now = 0
	};
#ifdef UNLOCK_BEFORE_COMMIT
	d_step { unlock() };
#endif
	if
	:: claims > 0 -> goto claim
	:: else -> goto finish
	fi;

update:
	if
	:: does = RENEW
	:: does = RELEASE
	:: does = COMPLETE
#ifdef NEXT
	:: d_step { does = COMPLETE; claims = 2 }
#endif
	fi;
	my_now = now;
	/* Wait for the lock of the row. */
	if
	:: d_step {
			row[n].writer == 0 && has_claim(n) ->
			row[n].writer = me + 1;
			row[n].pending = (does == COMPLETE -> GONE : AS_IS)
		}
	:: row[n].writer == 0 && !has_claim(n) -> goto next_call
	fi;
	d_step {
#ifndef RENEW_AFTER_END
		my_now = now;
#endif
		if
		:: row[n].until <= my_now ->	/* the claim has ended */
			does = NOTHING
		:: row[n].until > my_now && does == RENEW ->
			row[n].pending = CLAIMED;
			row[n].new_until = now + 2;
			check_bound()
		:: row[n].until > my_now && does == RELEASE ->
			row[n].pending = FREE
		:: else
		fi
	};
	if
	:: does == NOTHING -> goto roll_back
	:: does == COMPLETE && claims == 2 -> claims = 1; goto claim
#ifdef DELAY
	:: does == RELEASE -> row[n].new_until = LATER
#endif
	:: does != NOTHING && !(does == COMPLETE && claims == 2)
	fi;

finish:
	if
	:: d_step { leave(true) };
		d_step { callback() }
#ifdef ABORT
	:: true ->
#else
	:: false ->
#endif
roll_back:
		skip;
		d_step { leave(false) };
		d_step { callback() }
#ifdef PREPARE
	/* The worker returns what was changed, when the locks are gone. */
	:: true ->
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
	d_step {
		ended = false; first_due = NEVER; n = 0; my_now = 0; claims = 0;
		does = NOTHING; pops = false
	};
	if
	:: calls > 0 -> goto again
	:: else
	fi
}

proctype clock()
{
	now = LATER
}

init
{
	byte n;
	bool below;					/* the group is below its bound */

	atomic {
		for (n : 1 .. SESSIONS) {
			run session(n - 1)
		}
		run clock();
		n = 0
	};
	_nr_pr == 1;
	/* Property 3 */
	d_step {
		total_ = 0;
		j_ = 0;
		for (n : 0 .. NUMBERS - 1) {
			total_ = total_ + (is_live(n) -> 1 : 0);
			if
			:: row[n].delivered && row[n].state != GONE -> j_ = j_ | BIT(n)
			:: else
			fi
		}
		below = total_ < BOUND;
		for (n : 0 .. NUMBERS - 1) {
			assert(group_lock == 0 && row[n].writer == 0);
			if
			:: row[n].state == GONE
#if BOUND == 1
			/* Another message comes first. */
			:: row[n].state != GONE && j_ != 0 && !(j_ & BIT(n))
#endif
			:: else ->
				assert(linked || due <= now || locked ||
					   (row[n].until > now && due <= row[n].until) ||
					   (row[n].until <= now && !below))
			fi
		}
	}
}
