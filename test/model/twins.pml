/*
 * test/model/twins.pml
 *	  Messages with one deduplication key, and runs that cover others
 *	  (src/push/dedup*.c), to be checked by spin as availability.pml is.
 *
 * NOTES
 *	  Each pusher changes something, pushes a message with the key, and
 *	  commits or rolls back.  Message n is that of pusher n, if its push is
 *	  not dropped.  Workers claim messages, read what the pushers have
 *	  changed, and complete or release their claims, or these run out; or they
 *	  pop.  Wherever other sessions can come in between, there is a step of
 *	  its own: the snapshot of the statement that claims, the lock on a
 *	  message, waiting for a lock, the end of the transaction.  With HAND the
 *	  first message that was pushed is deleted, if it is not claimed, and with
 *	  it what it stood for.  With ROOT the first message becomes the leaf of
 *	  an older root job.  With LIMIT the queue lets no message be claimed a
 *	  second time, and then does again.  With RUNNING each worker has claimed
 *	  one of the messages that exist at the start, which know of each other.
 *
 *	  There is one key, and so one row of dedup_key.  Its ids are read in any
 *	  order.  Messages are scanned in the order in which they were inserted.
 *	  A reader sees what was committed, or what its own transaction has done;
 *	  "version" says whether a row has changed since.
 *
 *	  Checked is: at the end each change that was committed was seen by a run
 *	  that was completed, or a message is left whose run will see it; and no
 *	  process waits forever.  (What a run sees is what was committed when its
 *	  claim was, as at READ COMMITTED.)
 */

#define ABSENT	0
#define WAITS	1				/* no claim, or one that has run out */
#define CLAIMED	2
#define GONE	3
#define AS_IS	4

#define BIT(n)	(1 << (n))
#define NONE	0
#define PUSHER(n)	(1 + (n))
#define WORKER(n)	(1 + PUSHERS + (n))
#define DELETER		(1 + PUSHERS + WORKERS)

typedef Message
{
	byte state;					/* committed */
	byte claimer;				/* the worker, plus 1 */
	bool run_out;					/* the claim has, by the clock */
	bool covered;
	bool old;					/* a newer root job was registered */
	bool claimed_before;					/* once */
	byte version;
	byte writer;				/* the session that has locked it */
	byte sharers;				/* pushers that have locked it FOR SHARE */
	byte pending;				/* its state when the writer commits */
	bool pending_covered;
	byte stands_for				/* pushers that it was pushed for */
};

Message message[PUSHERS];

/* The row of dedup_key: committed, and as its writer leaves it */
byte ids = BIT(EXISTING) - 1;	/* 0: there is no row */
byte joined = 0;
byte row_version = 0;
byte row_writer = NONE;
byte row_sharers = 0;			/* pushers */
byte pending_ids;
byte pending_joined;

bool limited = false;

/* What exists only for the checks */
byte committed = BIT(EXISTING) - 1;	/* pushers */
byte seen_by_runs = BIT(EXISTING) - 1;	/* changes, by completed ones */

hidden byte i_;

#define is_claimed(m)	(message[m].state == CLAIMED && !message[m].run_out)
#define is_exhausted(m)	(limited && message[m].claimed_before)
#define is_there(m)		(message[m].state == WAITS || \
						 message[m].state == CLAIMED)

/* dedup_is_duplicate() */
#ifdef COVERED_HOLDS_KEY
#define will_not_run(m)	(message[m].old)
#else
#define will_not_run(m)	(message[m].covered || message[m].old)
#endif

/* No other session has locked it. */
#define is_unlocked(m, session) \
	((message[m].writer == NONE || message[m].writer == session) && \
	 message[m].sharers == 0)

/* The end of the session's transaction; inside of a d_step */
inline leave(session, commit)
{
	for (i_ : 0 .. PUSHERS - 1) {
		if
		:: message[i_].writer == session ->
			if
			:: commit && message[i_].pending != AS_IS ->
				message[i_].state = message[i_].pending;
				message[i_].covered = message[i_].pending_covered;
				message[i_].version++;
				if
				:: message[i_].state != CLAIMED ->
					message[i_].run_out = false;
					message[i_].claimer = NONE
				:: else
				fi
			:: else
			fi;
			message[i_].writer = NONE;
			message[i_].pending = AS_IS
		:: else
		fi
	}
	if
	:: row_writer == session && commit ->
		ids = pending_ids;
		joined = (ids == 0 -> 0 : pending_joined);
		row_version++
	:: else
	fi;
	if
	:: row_writer == session -> row_writer = NONE; pending_ids = 0;
		pending_joined = 0
	:: else
	fi;
	i_ = 0
}

/* dedup_drop_message(), for a locked message; inside of a d_step */
inline drop_key(m, session)
{
	if
	:: row_writer == NONE && row_sharers == 0 && (ids & BIT(m)) ->
		row_writer = session;
		pending_ids = ids & ~BIT(m);
		pending_joined = joined
	:: row_writer == session -> pending_ids = pending_ids & ~BIT(m)
	:: else					/* another session has locked the row, or
								 * the id is not in it */
	fi
}

/* Lock m for deletion or a change; inside of a d_step */
inline lock(m, session, what)
{
	message[m].writer = session;
	message[m].pending = what;
	message[m].pending_covered = message[m].covered
}

proctype pusher(byte me)
{
	byte row_ids;				/* as this session has found the row */
	byte row_joined;
	byte found;					/* its version */
	byte left;					/* ids to be checked */
	byte kept;
	byte version;
	byte t;
	bool dropped = false;

again:
	skip;
	/* dedup_table_find() */
	d_step {
		row_writer == NONE;
		row_ids = ids; row_joined = joined; found = row_version;
		left = ids; kept = 0; t = 0; version = 0;
		printf("%d finds the row: ids %d\n", me, ids)
	};
	if
	:: row_ids == 0 -> goto take
	:: else
	fi;

	/* check_twins() */
	do
	:: left == 0 -> break
	:: left != 0 ->
		if
		:: left & 1 -> t = 0
		:: left & 2 -> t = 1
		:: left & 4 -> t = 2
		:: left & 8 -> t = 3
		fi;
		d_step {
			left = left & ~BIT(t);
			version = message[t].version;
			if
			:: !is_there(t) || will_not_run(t) -> version = 255
			:: is_there(t) && !will_not_run(t) && is_claimed(t) ->
				version = 255;
				kept = kept | BIT(t)
			:: else ->
				if
				:: is_exhausted(t) -> version = 255
				:: else
				fi
			fi
		};
		if
		:: version == 255		/* gone, or claimed */
		:: else ->
#ifdef NO_LOCK_BY_PUSH
			goto waits;
#endif
			/* lock_waiting_message() */
			d_step {
				message[t].writer == NONE;
				if
				:: message[t].version == version ->
					message[t].sharers = message[t].sharers | BIT(me);
					version = 254;
					printf("%d has %d locked\n", me, t)
				:: else
				fi
			};
			if
			:: version == 254 -> goto waits
			:: else -> goto again
			fi
		fi
	od;
	goto take;

waits:
	dropped = true;
	if
	/* join_waiting() */
	:: row_ids & (row_ids - 1) ->	/* there are others */
		/* row_update() */
		d_step {
			row_writer == NONE && row_sharers == 0;
			if
			:: row_version == found ->
				row_writer = PUSHER(me);
				pending_ids = row_ids;
				pending_joined = row_joined + 1;
				printf("%d counts up\n", me)
			:: else -> dropped = false
			fi
		}
	:: else ->
#ifndef NO_LOCK_ON_ROW
		/* row_lock() */
		d_step {
			row_writer == NONE;
			if
			:: row_version == found -> row_sharers = row_sharers | BIT(me)
			:: else -> dropped = false
			fi
		}
#else
		skip
#endif
	fi;
	if
	:: dropped -> goto end
	:: else -> goto again
	fi;

take:
	skip;
	/* try_take_key() or add_id_to_key() */
	d_step {
		row_writer == NONE && row_sharers == 0;
		if
		:: row_version == found ->
			row_writer = PUSHER(me);
			pending_ids = kept | BIT(me);
			pending_joined = row_joined;
#ifndef LEAVE_OUT_QUIETLY
			if
			:: row_ids & ~kept -> pending_joined++
			:: else
			fi;
#endif
			lock(me, PUSHER(me), WAITS);
			version = 254;
			printf("%d takes the key\n", me)
		:: else -> version = 0
		fi
	};
	if
	:: version == 0 -> goto again
	:: else
	fi;

end:
	if
	:: d_step {
			committed = committed | BIT(me);
			if
			:: dropped ->
				message[t].stands_for = message[t].stands_for | BIT(me)
			:: else -> message[me].stands_for = BIT(me)
			fi;
			if
			:: dropped && message[t].old ->
				seen_by_runs = seen_by_runs | BIT(me)
			:: else
			fi;
			leave(PUSHER(me), true);
			for (i_ : 0 .. PUSHERS - 1) {
				message[i_].sharers = message[i_].sharers & ~BIT(me)
			}
			row_sharers = row_sharers & ~BIT(me);
			i_ = 0;
			printf("%d commits, dropped %d (%d)\n", me, dropped, t)
		}
#ifdef ABORT
	:: d_step {
			leave(PUSHER(me), false);
			for (i_ : 0 .. PUSHERS - 1) {
				message[i_].sharers = message[i_].sharers & ~BIT(me)
			}
			row_sharers = row_sharers & ~BIT(me);
			i_ = 0;
			printf("%d rolls back\n", me)
		}
#endif
	fi
}

/* dedup_finish_run(): cover all twins. */
inline cover_all(popped)
{
	for (t : 0 .. PUSHERS - 1) {
		d_step {
			if
			:: (twins & BIT(t)) && is_there(t) &&
#ifndef COVER_LOCKED
				is_unlocked(t, WORKER(me)) &&
#endif
				!(popped && is_claimed(t)) &&
#ifndef NO_JOINED
				(row_writer == WORKER(me) -> pending_ids : ids) != 0 &&
				(row_writer == WORKER(me) -> pending_joined : joined) ==
				begun_joined &&
#endif
				message[t].pending != GONE ->
				if
				:: is_claimed(t) ->
					lock(t, WORKER(me), CLAIMED);
					message[t].pending_covered = true
				:: else ->
					lock(t, WORKER(me), GONE);
					drop_key(t, WORKER(me))
				fi;
				printf("worker %d covers %d\n", me, t)
			:: else
			fi
		}
	}
}

/* dedup_begin_run(), with the row as the snapshot shows it */
inline begin_run(row_ids, row_joined)
{
	begun_joined = row_joined;
	twins = row_ids & ~BIT(m);
#ifndef COVER_WITHOUT_ROW
	if
	:: (row_ids & BIT(m)) == 0 -> twins = 0
	:: else
	fi
#endif
}

proctype worker(byte me)
{
	byte calls = CALLS;
	byte m = 0;
	byte t = 0;
	byte twins = 0;
	byte begun_joined = 0;
	byte snapshot_ids = 0;
	byte snapshot_joined = 0;
	byte sees = 0;				/* the run */
	bool ok = true;

#ifdef RUNNING
	d_step {
		calls--;
		m = me;
		twins = (BIT(EXISTING) - 1) & ~BIT(m);
		sees = BIT(EXISTING) - 1
	};
	goto claimed;
#endif

again:
	skip;
	d_step {
		calls--;
		snapshot_ids = ids;
		snapshot_joined = joined;
		ok = true;
		printf("worker %d takes a snapshot\n", me)
	};

	/* choose(), of any message; the order of claims does not matter. */
	if
	:: m = 0
	:: m = 1
#if PUSHERS > 2
	:: m = 2
#endif
#if PUSHERS > 3
	:: m = 3
#endif
	fi;
	if
	:: atomic {
			is_there(m) && !is_claimed(m) && !is_exhausted(m) &&
			is_unlocked(m, NONE) ->
			if
			:: message[m].covered || message[m].old ->
				d_step {
					lock(m, WORKER(me), GONE);
					drop_key(m, WORKER(me))
				};
				goto remove
			:: else ->
				d_step {
					lock(m, WORKER(me), CLAIMED);
					begin_run(snapshot_ids, snapshot_joined)
				};
				if
				:: goto claim
#ifdef POP
				:: goto pop
#endif
				fi
			fi
		}
	:: goto next_call
	fi;

remove:
	if
	:: d_step { leave(WORKER(me), true) }
#ifdef ABORT
	:: d_step { leave(WORKER(me), false) }
#endif
	fi;
	goto next_call;

#ifdef POP
pop:
	skip;
	d_step {
		sees = committed;
		message[m].pending = GONE;
		drop_key(m, WORKER(me))
	};
	cover_all(true);
	goto complete;
#endif

claim:
	if
	:: d_step {
			message[m].claimer = me + 1;
			message[m].run_out = false;
			message[m].claimed_before = true;
			leave(WORKER(me), true);
			sees = committed;
			printf("worker %d has claimed %d, twins %d\n", me, m, twins)
		}
#ifdef ABORT
	:: d_step { leave(WORKER(me), false) };
		goto next_call
#endif
	fi;

claimed:
	if
	:: goto next_call			/* the worker does not end the claim */
	:: skip
	fi;

	/* lock_row_of_claim() in claim_update.c, which waits for the lock */
	atomic {
		is_unlocked(m, NONE);
		if
		:: message[m].state == CLAIMED && message[m].claimer == me + 1 &&
			!message[m].run_out
		:: else -> goto next_call	/* QU001 */
		fi;
		if
		:: d_step { lock(m, WORKER(me), WAITS) }; ok = false
		:: d_step { lock(m, WORKER(me), GONE); drop_key(m, WORKER(me)) }
		fi
	};
	if
	:: message[m].run_out ->	/* QU001 */
		d_step { leave(WORKER(me), false) };
		goto next_call
	:: else
	fi;
	if
	:: !ok ->					/* a release */
		if
		:: d_step { leave(WORKER(me), true) }
#ifdef ABORT
		:: d_step { leave(WORKER(me), false) }
#endif
		fi;
		goto next_call
	:: else
	fi;
#ifdef TWINS_AT_END
	d_step { begin_run((ids | BIT(m)), joined) };
#endif
	cover_all(false);

complete:
	if
	:: d_step {
			seen_by_runs = seen_by_runs | sees;
			leave(WORKER(me), true);
			printf("worker %d is done with %d\n", me, m)
		}
#ifdef ABORT
	:: d_step { leave(WORKER(me), false) }
#endif
	fi;

next_call:
	skip;
	d_step {
		m = 0; t = 0; twins = 0; begun_joined = 0; sees = 0;
		snapshot_ids = 0; snapshot_joined = 0
	};
	if
	:: calls > 0 -> goto again
	:: else
	fi
}

/* Claims run out. */
proctype clock()
{
	byte n = EXPIRIES;
	byte m;

	do
	:: n > 0 ->
		for (m : 0 .. PUSHERS - 1) {
			if
			:: d_step { message[m].state == CLAIMED && !message[m].run_out ->
					message[m].run_out = true }
			:: skip
			fi
		}
		n--
	:: break
	od
}

#ifdef HAND
/* claim_delete_messages() without a claim */
proctype deleter()
{
	byte m = EXISTING;

	if
	:: d_step {
			is_there(m) && !is_claimed(m) && is_unlocked(m, NONE) ->
			lock(m, DELETER, GONE);
			drop_key(m, DELETER)
		}
	:: goto done
	fi;
	if
	:: d_step {
			seen_by_runs = seen_by_runs | message[m].stands_for;
			leave(DELETER, true)
		}
#ifdef ABORT
	:: d_step { leave(DELETER, false) }
#endif
	fi;
done:
	skip
}
#endif

#ifdef ROOT
/* root_job_register(): another job does what the first message stood for. */
proctype root()
{
	d_step {
		message[0].old = true;
		seen_by_runs = seen_by_runs | message[0].stands_for
	}
}
#endif

#ifdef LIMIT
/* A change of _max_claim_count */
proctype limiter()
{
	limited = true;
	limited = false
}
#endif

init
{
	byte n;
	bool left = false;

	atomic {
		for (n : 0 .. PUSHERS - 1) {
			message[n].pending = AS_IS
		}
		for (n : 1 .. EXISTING) {
#ifdef RUNNING
			message[n - 1].state = CLAIMED;
			message[n - 1].claimer = n;
			message[n - 1].claimed_before = true;
#else
			message[n - 1].state = WAITS;
#endif
			message[n - 1].stands_for = BIT(n - 1)
		}
		for (n : EXISTING .. PUSHERS - 1) {
			run pusher(n)
		}
		for (n : 0 .. WORKERS - 1) {
			run worker(n)
		}
#if EXPIRIES > 0
		run clock();
#endif
#ifdef HAND
		run deleter();
#endif
#ifdef ROOT
		run root();
#endif
#ifdef LIMIT
		run limiter();
#endif
		n = 0
	};
	_nr_pr == 1;
	d_step {
		assert(row_writer == NONE && row_sharers == 0);
		for (n : 0 .. PUSHERS - 1) {
			assert(message[n].writer == NONE && message[n].sharers == 0);
			left = left || (is_there(n) && !message[n].covered &&
				!message[n].old)
		}
		assert(left || (committed & ~seen_by_runs) == 0)
	}
}
