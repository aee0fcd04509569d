/*
 * test/model/delayed.pml
 *	  The part of the availability map that is about delayed messages, to be
 *	  checked by spin.  The notes in availability.pml apply here too.
 *
 * NOTES
 *	  All messages are delayed ones that are due.  Pushers push more of them,
 *	  with a delay that is over when they commit.  The map has no ranges.  It
 *	  knows whether a message may be due, and whether one may come free that
 *	  no callback reports.  With PREPARE there are prepared transactions, and
 *	  a claim always scans once more before it returns an empty result, so
 *	  that no message is hidden.
 *
 *	  Checked is, as there: at the end no free message is hidden; a claim that
 *	  finds nothing is right; no process waits forever.
 */

#define ABSENT	0
#define FREE	1
#define GONE	2				/* claimed: it is in a segment now */
#define AS_IS	3

#define PREPARED 100

#define BIT(n)	(1 << (n))
#define MESSAGES (EXISTING + PUSHERS)

typedef Row
{
	byte state;					/* committed */
	byte writer;				/* the process that has locked it; 0: none */
	byte pending				/* what the row becomes when it commits */
};

Row row[MESSAGES];
byte stale[CLAIMERS];			/* changed since the snapshot */

/* The map: DelayedInfo */
bool due = true;				/* its time has come */
bool uncertain = false;
byte open = 0;

/* What exists only for the checks */
byte returned = BIT(EXISTING) - 1;
byte free_since[CLAIMERS];

hidden byte i_;
hidden byte mask_;

#define is_free(n)	(row[n].state == FREE && row[n].writer == 0)

inline record_free()
{
	mask_ = 0;
	for (i_ : 0 .. MESSAGES - 1) {
		if
		:: is_free(i_) && (returned & BIT(i_)) -> mask_ = mask_ | BIT(i_)
		:: else
		fi
	}
	for (i_ : 0 .. CLAIMERS - 1) {
		free_since[i_] = free_since[i_] & mask_
	}
	i_ = 0; mask_ = 0
}

/* ProcArrayEndTransaction() */
inline leave(n, commit)
{
	if
	:: commit && row[n].pending != AS_IS ->
		row[n].state = row[n].pending;
		for (i_ : 0 .. CLAIMERS - 1) {
			stale[i_] = stale[i_] | BIT(n)
		}
		i_ = 0
	:: else
	fi;
	printf("%d: left by %d, commit %d\n", n, row[n].writer, commit);
	row[n].writer = 0;
	row[n].pending = 0
}

/* pending_end(); availability_return_delayed() */
inline end_transaction(n, commit, reports)
{
	d_step { leave(n, commit); returned = returned & ~BIT(n); record_free() };
	d_step {
		due = due || reports;
		returned = returned | BIT(n);
		record_free()
	}
}

#ifdef PREPARE
inline prepare_transaction(n)
{
	d_step { row[n].writer = PREPARED; printf("%d is prepared\n", n) };
	d_step { uncertain = true };
	if
	:: d_step { leave(n, true); returned = returned | BIT(n); record_free() }
	:: d_step { leave(n, false); returned = returned | BIT(n); record_free() }
	fi
}
#endif

proctype pusher(byte n)
{
	d_step { row[n].writer = 100 + n; row[n].pending = FREE };
	if
	:: end_transaction(n, true, true)
	:: end_transaction(n, false, false)
#ifdef PREPARE
	:: prepare_transaction(n)
#endif
	fi
}

/* availability_reserve_delayed() */
inline reserve_delayed(with_uncertain)
{
	d_step {
		if
#ifdef PREPARE
		:: due || with_uncertain ->	/* max_prepared_xacts > 0 */
#else
		:: due || (with_uncertain && uncertain) ->
#endif
			due = false;
			uncertain = false;
			open++;
			reserved = true;
			printf("claimer %d reserves the delayed messages\n", me)
		:: else ->
			printf("claimer %d does not get the delayed messages\n", me)
		fi
	}
}

/* claim_scan_close_delayed(), availability_close_delayed() */
inline close_delayed()
{
	d_step {
		if
		:: reserved ->
			due = due || rescan;
			uncertain = uncertain || rescan_uncertain;
			open--;
			printf("claimer %d closes, again %d\n", me, rescan)
		:: else
		fi;
		reserved = false; rescan = false; rescan_uncertain = false
	}
}

/* claim_scan_add_delayed(): the rows are those of to_scan. */
inline add_delayed(with_uncertain)
{
	reserve_delayed(with_uncertain);
	if
	:: reserved ->
		d_step {
			for (n : 0 .. MESSAGES - 1) {
				if
				:: row[n].state == FREE -> to_scan = to_scan | BIT(n)
				:: else
				fi
			}
			n = 0;
			stale[me] = 0;
			printf("claimer %d takes a snapshot\n", me)
		}
	:: else
	fi
}

/* claim_scan_row() */
inline scan_row()
{
	d_step {
		do
		:: !(to_scan & BIT(n)) -> n++
		:: else -> break
		od;
		to_scan = to_scan & ~BIT(n);
		if
		:: stale[me] & BIT(n) -> rescan = true	/* TM_Updated */
		:: !(stale[me] & BIT(n)) && row[n].writer != 0 ->
			rescan_uncertain = true	/* TM_WouldBlock */
		:: else ->
			row[n].writer = me + 1;
			row[n].pending = AS_IS;
			locked = n + 1;
			rescan = true;		/* there may be more */
			record_free()
		fi;
		printf("claimer %d has scanned %d (has %d)\n", me, n, locked - 1);
		n = 0
	}
}

proctype claimer(byte me)
{
	byte calls = CALLS;
	byte to_scan = 0;			/* rows of the snapshot */
	byte locked = 0;				/* plus 1 */
	bool reserved = false;
	bool rescan = false;
	bool rescan_uncertain = false;
	bool scanned_uncertain = false;
	bool delayed_is_due;		/* in ReserveRequest */
	bool others;
	byte n = 0;

again:
	skip;
	d_step {
		calls--;
		free_since[me] = BIT(MESSAGES) - 1;
		record_free();
		printf("claimer %d calls\n", me)
	};

	/* map_scan_pass() */
	add_delayed(false);
scan:
	do
	:: locked == 0 && to_scan != 0 -> scan_row()
	:: else -> break
	od;
	to_scan = 0;
	close_delayed();
	if
	:: locked != 0 -> goto found
	:: else
	fi;

	/* availability_reserve() */
	do
	:: d_step { others = open > 0; delayed_is_due = due };
		if
		:: others -> open == 0	/* availability_wait_for_close() */
		:: else -> break
		fi
	od;
#ifndef DELAYED_ONCE
	/* If another session reserves them first, wait for it. */
	if
	:: delayed_is_due -> add_delayed(false); goto scan
	:: else
	fi;
#endif
	if
	:: !scanned_uncertain ->
		scanned_uncertain = true;
		add_delayed(true);
		if
		:: to_scan != 0 -> goto scan
		:: else -> close_delayed()
		fi
	:: else
	fi;
	printf("claimer %d answers that there is nothing\n", me);
	assert(free_since[me] == 0);
	goto next_call;

found:
	skip;
	d_step { free_since[me] = 0; row[locked - 1].pending = GONE };
	if
	:: end_transaction(locked - 1, true, false)
	:: end_transaction(locked - 1, false, true)
#ifdef PREPARE
	:: prepare_transaction(locked - 1)
#endif
	fi;

next_call:
	skip;
	d_step {
		free_since[me] = 0; stale[me] = 0;
		locked = 0; scanned_uncertain = false; others = false;
		delayed_is_due = false
	};
	if
	:: calls > 0 -> goto again
	:: else
	fi
}

init
{
	byte n;

	atomic {
		for (n : 0 .. EXISTING - 1) {
			row[n].state = FREE
		}
		for (n : 1 .. PUSHERS) {
			run pusher(EXISTING + n - 1)
		}
		for (n : 1 .. CLAIMERS) {
			run claimer(n - 1)
		}
		n = 0
	};
	_nr_pr == 1;
	d_step {
		assert(open == 0);
		for (n : 0 .. MESSAGES - 1) {
#ifndef PREPARE
			assert(!is_free(n) || due || uncertain)
#endif
			skip
		}
	}
}
