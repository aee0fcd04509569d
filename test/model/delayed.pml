/*
 * test/model/delayed.pml
 *	  Delayed messages, which the worker moves to where claims find them, to be
 *	  checked by spin.  The notes in availability.pml apply here too.
 *
 * NOTES
 *	  All messages are delayed ones that are due.  Pushers push more of them,
 *	  with a delay that is over when they commit.  A deleter locks one, and
 *	  deletes it or is rolled back.  The worker moves those that it can lock.
 *	  What it has moved is in a set, which stands for the ranges of the map:
 *	  how claims find that is in availability.pml, so a claim takes it in one
 *	  step here.
 *
 *	  Checked is: at the end the worker knows of each message that is left; and
 *	  a claim finds nothing only if no message was due, and known to be, since
 *	  it has begun.  One that the worker has left because it was locked counts
 *	  only when the worker has seen it again, a second later.
 */

#define ABSENT	0
#define DELAYED	1
#define FREE	2				/* moved: claims find it */
#define GONE	3
#define AS_IS	4

#define WORKER	50
#define DELETER	60
#define BIT(n)	(1 << (n))
#define MESSAGES (EXISTING + PUSHERS)

typedef Row
{
	byte state;					/* committed */
	byte writer;				/* the process that has locked it; 0: none */
	byte pending				/* what the row becomes when it commits */
};

Row row[MESSAGES];

/* The map */
bool due = true;				/* DelayedInfo: its time has come */
bool later = false;				/* ... or comes, as some were locked */
byte open = 0;
byte ready = 0;					/* messages that claims find */

/* What exists only for the checks: those that a claim has to find */
byte known = BIT(EXISTING) - 1;
byte known_since[CLAIMERS];

byte users = PUSHERS + CLAIMERS + DELETERS;

hidden byte i_;

/* Callback after the end of a transaction: availability_return_delayed() */
inline return_delayed(n)
{
	due = true;

	/* It may be moved and claimed already. */
	if
	:: row[n].state != GONE -> set_known(known | BIT(n))
	:: else
	fi
}

inline set_known(set)
{
	known = set;
	for (i_ : 0 .. CLAIMERS - 1) {
		known_since[i_] = known_since[i_] & known
	}
	i_ = 0
}

/* ProcArrayEndTransaction() */
inline leave(n, commit)
{
	if
	:: commit && row[n].pending != AS_IS -> row[n].state = row[n].pending
	:: else
	fi;
	row[n].writer = 0;
	row[n].pending = 0
}

/* A transaction that inserts a message */
proctype pusher(byte n)
{
	d_step { row[n].writer = 100 + n; row[n].pending = DELAYED };
	if
	:: d_step { leave(n, true) };
		d_step { return_delayed(n) }
	:: d_step { leave(n, false) }
	fi;
	d_step { users-- }
}

/*
 * A transaction that deletes a message, or is rolled back; no callback reports
 * that if it was prepared.
 */
proctype deleter(byte n)
{
	bool commit;
	bool reports;

	d_step {
		if
		:: row[n].state == DELAYED && row[n].writer == 0 ->
			row[n].writer = DELETER;
			row[n].pending = GONE;
			set_known(known & ~BIT(n))
		:: else
		fi
	};
	if
	:: row[n].writer == DELETER ->
		if
		:: commit = true; reports = true
		:: commit = false; reports = true
		:: commit = false; reports = false
		fi;
		d_step { leave(n, commit) };
		d_step {
			if
			:: !commit && reports -> return_delayed(n)
			:: else
			fi
		}
	:: else
	fi;
	d_step { commit = false; reports = false; users-- }
}

/* delayed_move_due(), again and again */
proctype worker()
{
	byte seen = 0;				/* by the snapshot */
	byte moved = 0;
	bool left = false;
	bool commit;
	byte n = 0;

	do
	:: users == 0 && !due -> break
	:: due || later ->
		d_step {				/* availability_begin_move() */
			due = false;
			later = false;
#ifndef NO_RESERVATION
			open++
#endif
		};
		d_step {
			for (n : 0 .. MESSAGES - 1) {
				if
				:: row[n].state == DELAYED -> seen = seen | BIT(n)
				:: else
				fi
			}
			n = 0
		};
		do
		:: n < MESSAGES ->
			d_step {
				if
				:: (seen & BIT(n)) && row[n].state == DELAYED &&
						row[n].writer == 0 ->
					row[n].writer = WORKER;
					row[n].pending = FREE;
					moved = moved | BIT(n)
				:: (seen & BIT(n)) && !(row[n].state == DELAYED &&
						row[n].writer == 0) ->
					left = true
				:: else
				fi;
				n++
			}
		:: else -> break
		od;
		skip;
		if
		:: commit = true
		:: commit = false
		fi;
		d_step {
			for (n : 0 .. MESSAGES - 1) {
				if
				:: moved & BIT(n) -> leave(n, commit)
				:: else
				fi
			}
			n = 0
		};
#ifdef END_FIRST
		d_step { open--; due = due || !commit; later = later || left };
#endif
		d_step {				/* return_records() */
			if
			:: commit -> ready = ready | moved
			:: else -> due = true
			fi
		};
#ifndef END_FIRST
		d_step {				/* availability_end_move() */
#ifndef NO_RESERVATION
			open--;
#endif
#ifndef FORGET_LEFT
			later = later || left;
#endif
			due = due || !commit
		};
#endif
		d_step { seen = 0; moved = 0; left = false; commit = false }
	od
}

proctype claimer(byte me)
{
	byte calls = CALLS;
	byte n = 0;

	do
	:: calls > 0 ->
		d_step { calls--; known_since[me] = known };
		do
		:: atomic { ready != 0 ->
				do
				:: !(ready & BIT(n)) -> n++
				:: else -> break
				od;
				ready = ready & ~BIT(n);
				row[n].state = GONE;
				set_known(known & ~BIT(n));
				n = 0
			};
			break
#ifdef NO_WAIT
		:: atomic { ready == 0 && open == 0 ->
#else
		:: atomic { ready == 0 && open == 0 && !due ->
#endif
				assert(known_since[me] == 0)
			};
			break
		od;
		skip;
		d_step { known_since[me] = 0 }
	:: else -> break
	od;
	users--
}

init
{
	byte n;

	atomic {
		for (n : 0 .. EXISTING - 1) {
			row[n].state = DELAYED
		}
		for (n : 1 .. PUSHERS) {
			run pusher(EXISTING + n - 1)
		}
		for (n : 1 .. CLAIMERS) {
			run claimer(n - 1)
		}
		for (n : 1 .. DELETERS) {
			run deleter(n - 1)
		}
		run worker();
		n = 0
	};
	_nr_pr == 1;
	d_step {
		assert(open == 0);
		for (n : 0 .. MESSAGES - 1) {
			assert(row[n].writer == 0 &&
				(row[n].state != DELAYED || due || later) &&
				(row[n].state != FREE || (ready & BIT(n))))
		}
	}
}
