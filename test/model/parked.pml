/*
 * test/model/parked.pml
 *	  The cursor's part for parked messages, to be checked by spin, as
 *	  cursor.pml is for all others; the notes there apply here too.
 *
 * NOTES
 *	  There are parked messages that are due, and pushers that push such
 *	  (a moment ago, that is: with a delay that is over when they commit), and
 *	  no others.  Instead of ranges the cursor knows whether one may be due,
 *	  and whether one may be let go by somebody who does not tell.  With
 *	  PREPARE there are prepared transactions, and a claim always looks once
 *	  more before it answers that there is nothing, so that none is hidden.
 *
 *	  Checked is, as there: in the end no free message is hidden; a claim that
 *	  finds nothing does so rightly; nobody waits for ever.
 */

#define ABSENT	0
#define FREE	1
#define GONE	2				/* claimed: it lies in a segment now */
#define AS_IS	3

#define PREPARED 100

#define BIT(n)	(1 << (n))
#define MESSAGES (EXISTING + PUSHERS)

typedef Row
{
	byte state;					/* committed */
	byte writer;				/* who has it locked; 0: nobody */
	byte pending				/* what it is to be when he commits */
};

Row row[MESSAGES];
byte stale[CLAIMERS];			/* changed since the snapshot */

/* The cursor */
bool due = true;				/* parked_due has come */
bool doubtful = false;			/* parked_doubtful */
byte open = 0;

/* What is only there to be checked */
byte told = BIT(EXISTING) - 1;
byte free_since[CLAIMERS];

hidden byte i_;
hidden byte mask_;

#define is_free(n)	(row[n].state == FREE && row[n].writer == 0)

inline note()
{
	mask_ = 0;
	for (i_ : 0 .. MESSAGES - 1) {
		if
		:: is_free(i_) && (told & BIT(i_)) -> mask_ = mask_ | BIT(i_)
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

/* end_transaction(); cursor_return_parked() */
inline end_transaction(n, commit, tell)
{
	d_step { leave(n, commit); told = told & ~BIT(n); note() };
	d_step {
		due = due || tell;
		told = told | BIT(n);
		note()
	}
}

#ifdef PREPARE
inline prepare_transaction(n)
{
	d_step { row[n].writer = PREPARED; printf("%d is prepared\n", n) };
	d_step { doubtful = true };
	if
	:: d_step { leave(n, true); told = told | BIT(n); note() }
	:: d_step { leave(n, false); told = told | BIT(n); note() }
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

/* cursor_reserve_parked() */
inline reserve_parked(again)
{
	d_step {
		if
#ifdef PREPARE
		:: due || again ->		/* max_prepared_xacts > 0 */
#else
		:: due || (again && doubtful) ->
#endif
			due = false;
			doubtful = false;
			open++;
			parked_open = true;
			printf("claimer %d reserves the parked ones\n", me)
		:: else ->
			printf("claimer %d does not get the parked ones\n", me)
		fi
	}
}

/* close_parked(), cursor_close_parked() */
inline close_parked()
{
	d_step {
		if
		:: parked_open ->
			due = due || parked_again;
			doubtful = doubtful || parked_doubtful;
			open--;
			printf("claimer %d closes, again %d\n", me, parked_again)
		:: else
		fi;
		parked_open = false; parked_again = false; parked_doubtful = false
	}
}

/* add_parked(): the rows are those of in_hand. */
inline add_parked(again)
{
	reserve_parked(again);
	if
	:: parked_open ->
		d_step {
			for (n : 0 .. MESSAGES - 1) {
				if
				:: row[n].state == FREE -> in_hand = in_hand | BIT(n)
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

/* try_row() */
inline try_row()
{
	d_step {
		do
		:: !(in_hand & BIT(n)) -> n++
		:: else -> break
		od;
		in_hand = in_hand & ~BIT(n);
		if
		:: stale[me] & BIT(n) -> parked_again = true	/* TM_Updated */
		:: !(stale[me] & BIT(n)) && row[n].writer != 0 ->
			parked_doubtful = true	/* TM_WouldBlock */
		:: else ->
			row[n].writer = me + 1;
			row[n].pending = AS_IS;
			taken = n + 1;
			parked_again = true;	/* there may be more */
			note()
		fi;
		printf("claimer %d has looked at %d (has %d)\n", me, n, taken - 1);
		n = 0
	}
}

proctype claimer(byte me)
{
	byte calls = CALLS;
	byte in_hand = 0;			/* rows of the snapshot */
	byte taken = 0;				/* plus 1 */
	bool parked_open = false;
	bool parked_again = false;
	bool parked_doubtful = false;
	bool parked_doubted = false;
	bool parked_due;			/* as cursor_reserve() has found it */
	bool others;
	byte n = 0;

again:
	skip;
	d_step {
		calls--;
		free_since[me] = BIT(MESSAGES) - 1;
		note();
		printf("claimer %d calls\n", me)
	};

	/* walk_with_cursor() */
	add_parked(false);
look:
	do
	:: taken == 0 && in_hand != 0 -> try_row()
	:: else -> break
	od;
	in_hand = 0;
	close_parked();
	if
	:: taken != 0 -> goto found
	:: else
	fi;

	/* cursor_reserve() */
	do
	:: d_step { others = open > 0; parked_due = due };
		if
		:: others -> open == 0	/* wait_for_closing() */
		:: else -> break
		fi
	od;
#ifndef PARKED_ONCE
	/* Not if somebody was faster: then wait for him. */
	if
	:: parked_due -> add_parked(false); goto look
	:: else
	fi;
#endif
	if
	:: !parked_doubted ->
		parked_doubted = true;
		add_parked(true);
		if
		:: in_hand != 0 -> goto look
		:: else -> close_parked()
		fi
	:: else
	fi;
	printf("claimer %d answers that there is nothing\n", me);
	assert(free_since[me] == 0);
	goto next_call;

found:
	skip;
	d_step { free_since[me] = 0; row[taken - 1].pending = GONE };
	if
	:: end_transaction(taken - 1, true, false)
	:: end_transaction(taken - 1, false, true)
#ifdef PREPARE
	:: prepare_transaction(taken - 1)
#endif
	fi;

next_call:
	skip;
	d_step {
		free_since[me] = 0; stale[me] = 0;
		taken = 0; parked_doubted = false; others = false; parked_due = false
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
			assert(!is_free(n) || due || doubtful)
#endif
			skip
		}
	}
}
