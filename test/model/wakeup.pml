/*
 * test/model/wakeup.pml
 *	  How listeners get to know that something came free, to be checked by spin.
 *
 * NOTES
 *	  There are two queues, SLOTS cursors, the background worker of their
 *	  database, and sessions: PUSHERS push a message to each queue, DELAYED push
 *	  one that is due at a time that comes (the clock ticks once), EVICTORS give
 *	  a queue a cursor, which may be that of the other queue before, and
 *	  CLEARERS make a cursor forget what it knows.  A listener that is notified
 *	  claims what it sees, so a notification is for all that was visible when it
 *	  was sent.
 *
 *	  FAILS steps of the worker fail: an error, a cancel request, a lock that is
 *	  not free.  KILLS times it is terminated instead, and another one starts.
 *
 *	  Checked is that when all sessions are done, the clock has ticked, and the
 *	  worker sleeps with nothing that would wake it, there is nothing of which
 *	  listeners were not notified.
 *
 *	  Functions are named as in src/cursor.c, src/database.c, src/shmem.c and
 *	  src/worker.c.  What one holds a lock for is one step here.
 *
 *	  With one of these it is wrong: CLEAR_FIRST, CLEAR_ALL, NO_HANDOVER,
 *	  NO_LOSE, NO_RECHECK, LOOK_CLEARED_LAST, NO_LOOK_AT_START, TIMER_LOST.
 */

#define QUEUES	2

/* Times: of what is due; and until when the worker sleeps */
#define NEVER	0
#define LATER	1				/* when the clock ticks */
#define NOW		2
#define has_come(t)	((t) == NOW || ((t) == LATER && ticked))

/* A delayed message */
#define NONE	0
#define WAITS	1
#define DUE		2
#define MOVED	3

typedef Cursor
{
	byte queue;					/* plus 1; 0: none */
	byte incarnation;
	byte examined;
	byte news;
	byte told;
	bool flag;					/* CURSOR_NEWS */
	byte timer;					/* parked.due */
	bool open					/* a reservation */
};

Cursor cursor[SLOTS];
byte incarnations = 0;
byte look_at = NOW;
byte next_due = NOW;
byte until = NEVER;				/* the worker sleeps */
byte sleeps_until = NEVER;		/* as others know */
bool sleeps = false;
bool latch = false;
bool ticked = false;
byte fails = FAILS;
byte kills = KILLS;

/* What is in the tables */
bool is_free[QUEUES];
byte delayed[QUEUES];

/* What is only there to be checked */
bool untold[QUEUES];
bool asleep = false;

hidden byte s_;

/* s_ becomes the queue's cursor, or SLOTS. */
inline find(q)
{
	s_ = 0;
	do
	:: s_ < SLOTS && cursor[s_].queue != q + 1 -> s_++
	:: else -> break
	od
}

/* The earlier one of two times */
inline lower(x, y)
{
	if
	:: y > x -> x = y
	:: else
	fi
}

inline wake(due)
{
	d_step { lower(next_due, due) };
	d_step {
		if
		:: sleeps && due > sleeps_until -> sleeps = false; latch = true
		:: else
		fi
	}
}

/*
 * cursor_return() and cursor_return_parked(): a message came free, or one is
 * due then.  w: when the worker has to be awake.
 */
inline give_back(q, came_free, due, w)
{
	d_step {
		w = due;
		find(q);
		if
		:: s_ < SLOTS ->
			lower(cursor[s_].timer, due);
			if
			:: came_free ->
				cursor[s_].news++; cursor[s_].flag = true; w = NOW
			:: else
			fi
		:: else ->
			if
			:: came_free -> w = NOW
			:: else
			fi;
#ifndef NO_LOSE
			lower(look_at, w)
#endif
		fi;
		s_ = 0
	};
	wake(w)
}

/* shmem_get_cursor(): a cursor for q, in any slot if there is none */
inline get_cursor(q, due)
{
	d_step {
		due = NEVER;
		find(q);
		if
		:: s_ == SLOTS ->
			s_ = 0;
			do
			:: s_ < SLOTS && (cursor[s_].open || (s_ + 1 < SLOTS &&
				cursor[s_].queue != 0 && cursor[s_ + 1].queue == 0)) -> s_++
			:: else -> break
			od;
			if
			:: s_ < SLOTS ->
#ifndef NO_HANDOVER
				if
				:: cursor[s_].queue == 0
				:: cursor[s_].queue != 0 ->
					due = cursor[s_].timer;
					if
					:: cursor[s_].news != cursor[s_].told ||
						cursor[s_].examined != cursor[s_].incarnation ->
						due = NOW
					:: else
					fi;
					lower(look_at, due)
				fi;
#endif
				incarnations++;
				cursor[s_].queue = q + 1;
				cursor[s_].incarnation = incarnations;
				cursor[s_].told = cursor[s_].news;
				cursor[s_].flag = false;
				cursor[s_].timer = NOW
			:: else
			fi
		:: else
		fi;
		s_ = 0
	};
	wake(due)
}

proctype pusher(byte q)
{
	byte w;

	d_step { is_free[q] = true; untold[q] = true };
	give_back(q, true, NEVER, w)
}

proctype delayer(byte q)
{
	byte w;

	d_step {
		delayed[q] = (ticked -> DUE : WAITS);
		untold[q] = untold[q] || ticked
	};
	give_back(q, false, LATER, w)
}

proctype evictor(byte q)
{
	byte due;

	get_cursor(q, due)
}

/* cursor_clear(), cursor_examine() */
proctype clearer(byte q)
{
	d_step {
		find(q);
		if
		:: s_ < SLOTS ->
			incarnations++;
			cursor[s_].incarnation = incarnations;
			cursor[s_].timer = NOW
		:: else
		fi;
		s_ = 0
	};
	wake(NOW)
}

proctype clock()
{
	d_step {
		ticked = true;
		s_ = 0;
		do
		:: s_ < QUEUES ->
			if
			:: delayed[s_] == WAITS -> delayed[s_] = DUE; untold[s_] = true
			:: else
			fi;
			s_++
		:: else -> break
		od;
		s_ = 0
	}
}

/* A step of the worker commits, or not; or it is terminated. */
inline commit(ok)
{
	if
	:: ok = true
	:: fails > 0 -> fails--; ok = false
	:: kills > 0 -> kills--; ok = false; killed = true
	fi
}

/* see_to_news() */
inline see_to_news()
{
	d_step {
		s = 0;
		do
		:: s < SLOTS && !cursor[s].flag -> s++
		:: else -> break
		od
	};
	do
	:: s < SLOTS && !killed ->
		d_step {
			v_queue = 0;
			if
			:: cursor[s].flag ->
				v_queue = cursor[s].queue;
				v_incarnation = cursor[s].incarnation;
				v_news = cursor[s].news
#ifdef CLEAR_FIRST
				; cursor[s].told = v_news; cursor[s].flag = false
#endif
			:: else
			fi
		};
		if
		:: v_queue != 0 ->
			commit(ok);
			if
			:: ok ->
				d_step { untold[v_queue - 1] = false };
				d_step {			/* cursor_end_news() */
					if
#ifdef CLEAR_ALL
					:: cursor[s].queue == v_queue ->
						cursor[s].told = cursor[s].news;
						cursor[s].flag = false
#else
					:: cursor[s].queue == v_queue &&
						cursor[s].incarnation == v_incarnation &&
						cursor[s].news == v_news ->
						cursor[s].told = v_news;
						cursor[s].flag = false
					/* else it is told again */
#endif
					:: else
					fi
				}
			:: else
			fi
		:: else
		fi;
		s++
	:: else -> break
	od;
	skip;
	d_step { s = 0; v_queue = 0; v_incarnation = 0; v_news = 0; ok = false }
}

/* see_to_queue(): do_due(), end_due() */
inline see_to_queue(q)
{
	get_cursor(q, due);

	/* cursor_begin_visit(), cursor_reserve_parked() */
	d_step {
		find(q);
		found = false;
		reserved = false;
		if
		:: s_ < SLOTS ->
			v_incarnation = cursor[s_].incarnation;
			unexamined = cursor[s_].examined != v_incarnation;
			if
			:: has_come(cursor[s_].timer) ->
				cursor[s_].timer = NEVER;
				cursor[s_].open = true;
				reserved = true
			:: else
			fi
		:: else -> unexamined = false
		fi;
		s_ = 0
	};
	if
	:: reserved ->				/* park_bring_in() */
		d_step { moves = delayed[q] == DUE; waits = delayed[q] == WAITS };
		commit(ok);
		if
		:: ok && moves -> d_step { delayed[q] = MOVED; is_free[q] = true }
		:: else
		fi;
		d_step {
			due = (waits -> LATER : NEVER);
#ifndef TIMER_LOST
			if
			:: !ok -> due = NOW
			:: else
			fi;
#endif
			moves = moves && ok
		};
		give_back(q, moves, due, w);
		d_step { find(q); cursor[s_].open = false; s_ = 0 }
	:: else -> ok = true
	fi;
	if
	:: unexamined && ok ->		/* walk_peek() */
		d_step { found = is_free[q] };
		commit(ok);
		if
		:: ok ->
			d_step {			/* cursor_end_visit() */
				find(q);
				if
				:: s_ < SLOTS && cursor[s_].incarnation == v_incarnation ->
					cursor[s_].examined = v_incarnation;
					due = cursor[s_].timer;
					if
					:: found -> cursor[s_].news++; cursor[s_].flag = true
					:: else
					fi
				:: else
				fi;
				s_ = 0
			};
			wake(due)
		:: else
		fi
	:: else
	fi;
	if
	:: !ok -> d_step { next_due = NOW }		/* postpone() */
	:: else
	fi;
	d_step {
		v_incarnation = 0; due = 0; w = 0; found = false; reserved = false;
		unexamined = false; moves = false; waits = false; ok = false
	}
}

proctype worker()
{
	byte s = 0;
	byte n = 0;
	byte q = 0;
	byte due = 0;
	byte w = 0;
	byte v_queue = 0;
	byte v_incarnation = 0;
	byte v_news = 0;
	bool ok = false;
	bool found = false;
	bool reserved = false;
	bool unexamined = false;
	bool moves = false;
	bool waits = false;
	bool looks = false;
	bool killed = false;

start:
	skip;
	d_step {					/* enter() */
		killed = false; sleeps = false; latch = false;
		s = 0; n = 0; q = 0; until = 0;
		next_due = NOW;
#ifndef NO_LOOK_AT_START
		look_at = NOW
#endif
	};
round:
	skip;
	d_step {					/* only so that there are fewer states */
		n = 0;
		do
		:: n < SLOTS ->
			if
			:: cursor[n].examined == cursor[n].incarnation ->
				cursor[n].examined = n + 1
			:: else -> cursor[n].examined = 0
			fi;
			cursor[n].incarnation = n + 1;
			if
			:: cursor[n].news == cursor[n].told -> cursor[n].news = 0
			:: else -> cursor[n].news = 1
			fi;
			cursor[n].told = 0;
			n++
		:: else -> break
		od;
		n = 0;
		incarnations = SLOTS
	};
	see_to_news();
	if
	:: killed -> goto start
	:: else
	fi;

	/* see_to_due() */
	if
	:: has_come(next_due) ->
		d_step { next_due = NEVER };
		if
		:: has_come(look_at) ->	/* look_at_all() */
#ifndef LOOK_CLEARED_LAST
			d_step { look_at = NEVER };
#endif
			q = 0;
			do
			:: q < QUEUES && !killed ->
				get_cursor(q, due);
				d_step {		/* cursor_is_due() */
					find(q);
					looks = s_ == SLOTS || has_come(cursor[s_].timer) ||
						cursor[s_].examined != cursor[s_].incarnation;
					s_ = 0
				};
				if
				:: looks -> see_to_queue(q); see_to_news()
				:: else
				fi;
				looks = false;
				q++
			:: else -> break
			od;
			q = 0;
#ifdef LOOK_CLEARED_LAST
			d_step { look_at = NEVER }
#endif
		:: else
		fi;
		n = 0;
		do
		:: n < SLOTS && !killed ->
			d_step {
				looks = false;
				q = cursor[n].queue;
				if
				:: q != 0 && (has_come(cursor[n].timer) ||
					cursor[n].examined != cursor[n].incarnation) ->
					looks = true;
					q--
				:: else -> lower(next_due, cursor[n].timer); q = 0
				fi
			};
			if
			:: looks -> see_to_queue(q)
			:: else
			fi;
			d_step { q = 0; looks = false };
			n++
		:: else -> break
		od;
		skip;
		d_step { n = 0; lower(next_due, look_at) }
	:: else
	fi;
	if
	:: killed -> goto start
	:: else
	fi;

	/* sleep_until_due() */
	d_step { until = next_due };
	d_step { sleeps_until = until; sleeps = true };
#ifndef NO_RECHECK
	d_step {
		lower(until, next_due);
		s = 0;
		do
		:: s < SLOTS && !cursor[s].flag -> s++
		:: else -> break
		od;
		looks = s < SLOTS || has_come(until);
		s = 0
	};
	if
	:: looks -> d_step { looks = false; sleeps = false }; goto round
	:: else
	fi;
#endif
	asleep = true;
end_sleep:
	if
	:: latch
	:: has_come(until)
	fi;
	d_step { asleep = false; latch = false; sleeps = false; until = 0 };
	goto round
}

init
{
	byte n = 0;

	atomic {
		run worker();
		do
		:: n < PUSHERS -> run pusher(n % QUEUES); n++
		:: else -> n = 0; break
		od;
		do
		:: n < DELAYED -> run delayer(n % QUEUES); n++
		:: else -> n = 0; break
		od;
		do
		:: n < EVICTORS -> run evictor((n + 1) % QUEUES); n++
		:: else -> n = 0; break
		od;
		do
		:: n < CLEARERS -> run clearer(n % QUEUES); n++
		:: else -> n = 0; break
		od;
		run clock()
	};
	_nr_pr == 2 && asleep && !latch && until == NEVER;
	assert(!untold[0] && !untold[1])
}
