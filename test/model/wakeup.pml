/*
 * test/model/wakeup.pml
 *	  How listeners are notified of messages that became free, to be checked
 *	  by spin.
 *
 * NOTES
 *	  There are two queues, MAPS availability maps, the background worker of
 *	  their database, and sessions.  PUSHERS push a message to each queue.
 *	  DELAYED push one that becomes due when the clock ticks, which it does
 *	  once.  EVICTORS give a queue a map, which may have been that of the
 *	  other queue: nothing is handed over if that is known to have no messages
 *	  (an idle map).  CLEARERS make a map forget what it knows.  A listener that
 *	  is notified claims what it sees, so a notification is for all that was
 *	  visible when it was sent.
 *
 *	  FAILS steps of the worker fail: an error, a cancel request, a lock that
 *	  is not free.  KILLS times it is terminated instead, and another one
 *	  starts.
 *
 *	  With DEPTHS, each session counts its message when that is visible, and
 *	  then reports it.  A recount, here one step, has a snapshot; sessions whose
 *	  messages that shows count nothing afterwards.  Nothing removes messages.  Without
 *	  DEPTHS, no map is idle.
 *
 *	  Checked is: when all sessions are done, the clock has ticked, and the
 *	  worker sleeps with nothing that would wake it, listeners were notified
 *	  of all messages that became free.
 *
 *	  Functions are named as in src/map/availability*.c,
 *	  src/shmem/database_state.c, src/shmem/shmem.c,
 *	  src/storage/counts.c and src/bgworker/worker*.c.  What is done under one lock is one step here.
 *
 *	  Each of these defines makes the model wrong: CLEAR_FIRST, CLEAR_ALL,
 *	  NO_HANDOVER, NO_EVICTED, NO_RECHECK, FULL_VISIT_CLEARED_LAST,
 *	  NO_FULL_VISIT_AT_START, TIMER_LOST; with DEPTHS: COUNT_LAST, IDLE_UNKNOWN,
 *	  NO_LOSS.
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

typedef Map
{
	byte queue;					/* plus 1; 0: none */
	byte incarnation;
	byte examined;
	byte arrivals;
	byte notified;
	bool flag;					/* MAP_ARRIVALS */
	byte timer;					/* delayed.due */
	byte depth;
	bool open					/* a reservation */
};

Map map[MAPS];
byte incarnations = 0;
byte full_visit_at = NOW;
byte next_due = NOW;
byte until = NEVER;				/* the worker sleeps */
byte sleeps_until = NEVER;		/* as other sessions know */
bool sleeps = false;
bool latch = false;
bool ticked = false;
byte fails = FAILS;
byte kills = KILLS;

/* What is in the tables */
bool is_free[QUEUES];
byte delayed[QUEUES];

/* Depths */
#define SESSIONS	(PUSHERS + DELAYED)
bool counted = false;			/* by a recount */
bool lost = false;				/* and not since */
bool counts[SESSIONS];			/* this one is to count its message */
byte messages[QUEUES];
#ifdef DEPTHS
#define known	(counted && !lost)
#else
#define known	false
#endif

/* What exists only for the checks */
bool unnotified[QUEUES];
bool asleep = false;

hidden byte s_;

/* s_ becomes the number of the queue's map; MAPS: it has none. */
inline find(q)
{
	s_ = 0;
	do
	:: s_ < MAPS && map[s_].queue != q + 1 -> s_++
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
 * availability_return() and availability_return_delayed(): a message became
 * free (arrives), or one is due then.  w: when the worker has to be awake.
 */
inline return_message(q, arrives, due, w)
{
	d_step {
		w = due;
		find(q);
		if
		:: s_ < MAPS ->
			lower(map[s_].timer, due);
			if
			:: arrives ->
				map[s_].arrivals++; map[s_].flag = true; w = NOW
			:: else
			fi
		:: else ->
			if
			:: arrives -> w = NOW
			:: else
			fi;
#ifndef NO_EVICTED
			lower(full_visit_at, w)
#endif
		fi;
		s_ = 0
	};
	wake(w)
}

/*
 * shmem_get_map(): if q has no map, it gets that of a queue without messages; or
 * shmem_borrow_map(), shmem_return_map(): any, which the other queue gives back.
 */
inline get_map(q, due)
{
	d_step {
		due = NEVER;
		find(q);
		if
		:: s_ == MAPS ->
			s_ = 0;
			do
			:: s_ < MAPS && (map[s_].open || (s_ + 1 < MAPS &&
				map[s_].queue != 0 && map[s_ + 1].queue == 0)) -> s_++
			:: else -> break
			od;
			if
			:: s_ < MAPS ->
				if
				:: map[s_].queue == 0
#ifdef IDLE_UNKNOWN
				:: map[s_].queue != 0 && map[s_].depth == 0
#else
				:: map[s_].queue != 0 && map[s_].depth == 0 && known
#endif
				:: else ->
					if
					:: map[s_].depth > 0 -> lost = true
					:: else
					fi;
#ifndef NO_HANDOVER
					due = map[s_].timer;
					if
					:: map[s_].arrivals != map[s_].notified ||
						map[s_].examined != map[s_].incarnation ->
						due = NOW
					:: else
					fi;
					lower(full_visit_at, due)
#endif
				fi;
				map[s_].depth = 0;
				incarnations++;
				map[s_].queue = q + 1;
				map[s_].incarnation = incarnations;
				map[s_].notified = map[s_].arrivals;
				map[s_].flag = false;
				map[s_].timer = NOW
			:: else
			fi
		:: else
		fi;
		s_ = 0
	};
	wake(due)
}

/* counts_after_end(): session n has written a message */
inline count_message(q, n)
{
#ifdef DEPTHS
	d_step {
		w = NEVER;
		find(q);
		if
		:: counts[n] && s_ < MAPS -> map[s_].depth++
		:: counts[n] && s_ == MAPS ->
#ifndef NO_LOSS
			lost = true;
			full_visit_at = NOW;
#endif
			w = NOW
		:: else
		fi;
		counts[n] = false;
		s_ = 0
	};
	if
	:: w == NOW -> wake(NOW)
	:: else
	fi
#else
	skip
#endif
}

proctype pusher(byte q; byte n)
{
	byte w;

	d_step {
		is_free[q] = true;
		unnotified[q] = true;
		messages[q]++;
		counts[n] = true
	};
#ifdef COUNT_LAST
	return_message(q, true, NEVER, w);
	count_message(q, n)
#else
	count_message(q, n);
	return_message(q, true, NEVER, w)
#endif
}

proctype delayer(byte q; byte n)
{
	byte w;

	d_step {
		delayed[q] = (ticked -> DUE : WAITS);
		unnotified[q] = unnotified[q] || ticked;
		messages[q]++;
		counts[n] = true
	};
#ifdef COUNT_LAST
	return_message(q, false, LATER, w);
	count_message(q, n)
#else
	count_message(q, n);
	return_message(q, false, LATER, w)
#endif
}

proctype evictor(byte q)
{
	byte due;

	get_map(q, due)
}

/* availability_clear(), availability_request_visit() */
proctype clearer(byte q)
{
	d_step {
		find(q);
		if
		:: s_ < MAPS ->
			incarnations++;
			map[s_].incarnation = incarnations;
			map[s_].timer = NOW
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
			:: delayed[s_] == WAITS ->
				delayed[s_] = DUE;
				unnotified[s_] = true
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

/* notify_listeners() */
inline notify_listeners()
{
	d_step {
		s = 0;
		do
		:: s < MAPS && !map[s].flag -> s++
		:: else -> break
		od
	};
	do
	:: s < MAPS && !killed ->
		d_step {
			v_queue = 0;
			if
			:: map[s].flag ->
				v_queue = map[s].queue;
				v_incarnation = map[s].incarnation;
				v_arrivals = map[s].arrivals
#ifdef CLEAR_FIRST
				; map[s].notified = v_arrivals; map[s].flag = false
#endif
			:: else
			fi
		};
		if
		:: v_queue != 0 ->
			commit(ok);
			if
			:: ok ->
				d_step { unnotified[v_queue - 1] = false };
				d_step {			/* availability_notified() */
					if
#ifdef CLEAR_ALL
					:: map[s].queue == v_queue ->
						map[s].notified = map[s].arrivals;
						map[s].flag = false
#else
					:: map[s].queue == v_queue &&
						map[s].incarnation == v_incarnation &&
						map[s].arrivals == v_arrivals ->
						map[s].notified = v_arrivals;
						map[s].flag = false
					/* else they are notified again */
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
	d_step {
		s = 0; v_queue = 0; v_incarnation = 0; v_arrivals = 0; ok = false
	}
}

/* begin_recount(), count_step() */
inline recount()
{
	d_step {
		lost = false;
		counted = false;
		n = 0;
		do
		:: n < SESSIONS -> counts[n] = false; n++
		:: else -> break
		od;
		n = 0;
		do
		:: n < MAPS -> map[n].depth = 0; n++
		:: else -> break
		od;
		n = 0;
		due = 0;
		do
		:: n < QUEUES ->
			found_messages[n] = messages[n];
			due = due + (messages[n] > 0);
			n++
		:: else -> break
		od;
		n = 0;
		if
		:: due > MAPS ->		/* they remain unknown */
			lost = true;
			n = QUEUES
		:: else
		fi;
		due = 0
	};
	do
	:: n < QUEUES ->
		if
		:: found_messages[n] > 0 ->
			get_map(n, due);
			d_step {
				find(n);
				if
				:: s_ < MAPS ->
					map[s_].depth = map[s_].depth + found_messages[n]
				:: else -> lost = true
				fi;
				s_ = 0
			}
		:: else
		fi;
		n++
	:: else -> break
	od;
	skip;
	d_step {
		n = 0; due = 0; found_messages[0] = 0; found_messages[1] = 0;
		counted = true
	}
}

/* visit_queue(), with the phases DUE_DELAYED and DUE_LISTENERS */
inline visit_queue(q)
{
	get_map(q, due);

	/* availability_begin_visit(), availability_reserve_delayed() */
	d_step {
		find(q);
		found = false;
		reserved = false;
		if
		:: s_ < MAPS ->
			v_incarnation = map[s_].incarnation;
			unexamined = map[s_].examined != v_incarnation;
			if
			:: has_come(map[s_].timer) ->
				map[s_].timer = NEVER;
				map[s_].open = true;
				reserved = true
			:: else
			fi
		:: else -> unexamined = false
		fi;
		s_ = 0
	};
	if
	:: reserved ->				/* delayed_move_due() */
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
		return_message(q, moves, due, w);
		d_step { find(q); map[s_].open = false; s_ = 0 }
	:: else -> ok = true
	fi;
	if
	:: unexamined && ok ->		/* the map learns of it: claim_scan_sweep() */
		d_step { found = is_free[q] };
		commit(ok);
		if
		:: ok ->
			d_step {			/* availability_end_visit() */
				find(q);
				if
				:: s_ < MAPS && map[s_].incarnation == v_incarnation ->
					map[s_].examined = v_incarnation;
					due = map[s_].timer;
					if
					:: found -> map[s_].arrivals++; map[s_].flag = true
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
	:: !ok -> d_step { next_due = NOW }		/* task_postpone() */
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
	byte v_arrivals = 0;
	byte found_messages[QUEUES];
	bool ok = false;
	bool found = false;
	bool reserved = false;
	bool unexamined = false;
	bool moves = false;
	bool waits = false;
	bool visits = false;
	bool killed = false;

start:
	skip;
	d_step {					/* become_worker() */
		killed = false; sleeps = false; latch = false;
		s = 0; n = 0; q = 0; until = 0;
		next_due = NOW;
		counted = false;
#ifndef NO_FULL_VISIT_AT_START
		full_visit_at = NOW
#endif
	};
round:
	skip;
	d_step {					/* only to have fewer states */
		n = 0;
		do
		:: n < MAPS ->
			if
			:: map[n].examined == map[n].incarnation ->
				map[n].examined = n + 1
			:: else -> map[n].examined = 0
			fi;
			map[n].incarnation = n + 1;
			if
			:: map[n].arrivals == map[n].notified -> map[n].arrivals = 0
			:: else -> map[n].arrivals = 1
			fi;
			map[n].notified = 0;
			n++
		:: else -> break
		od;
		n = 0;
		incarnations = MAPS
	};
	notify_listeners();
	if
	:: killed -> goto start
	:: else
	fi;

	/* recount_round() */
#ifdef DEPTHS
	if
	:: !known -> recount()
	:: else
	fi;
#endif

	/* due_queues() */
	if
	:: has_come(next_due) ->
		d_step { next_due = NEVER };
		if
		:: has_come(full_visit_at) ->	/* scan_all_queues() */
#ifndef FULL_VISIT_CLEARED_LAST
			d_step { full_visit_at = NEVER };
#endif
			q = 0;
			do
			:: q < QUEUES && !killed ->
				d_step {		/* availability_is_due() */
					find(q);
					visits = s_ < MAPS || map[MAPS - 1].queue == 0 || !known;
					s_ = 0
				};
				if
				:: visits ->
					get_map(q, due);
					d_step {
						find(q);
						visits = s_ == MAPS || has_come(map[s_].timer) ||
							map[s_].examined != map[s_].incarnation;
						s_ = 0
					}
				:: else
				fi;
				if
				:: visits -> visit_queue(q); notify_listeners()
				:: else
				fi;
				visits = false;
				q++
			:: else -> break
			od;
			q = 0;
#ifdef FULL_VISIT_CLEARED_LAST
			d_step { full_visit_at = NEVER }
#endif
		:: else
		fi;
		n = 0;
		do
		:: n < MAPS && !killed ->
			d_step {
				visits = false;
				q = map[n].queue;
				if
				:: q != 0 && (has_come(map[n].timer) ||
					map[n].examined != map[n].incarnation) ->
					visits = true;
					q--
				:: else -> lower(next_due, map[n].timer); q = 0
				fi
			};
			if
			:: visits -> visit_queue(q)
			:: else
			fi;
			d_step { q = 0; visits = false };
			n++
		:: else -> break
		od;
		skip;
		d_step { n = 0; lower(next_due, full_visit_at) }
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
		:: s < MAPS && !map[s].flag -> s++
		:: else -> break
		od;
		visits = s < MAPS || has_come(until);
		s = 0
	};
	if
	:: visits -> d_step { visits = false; sleeps = false }; goto round
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
		:: n < PUSHERS -> run pusher(n % QUEUES, n); n++
		:: else -> n = 0; break
		od;
		do
		:: n < DELAYED -> run delayer(n % QUEUES, PUSHERS + n); n++
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
	assert(!unnotified[0] && !unnotified[1])
}
