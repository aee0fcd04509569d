/*
 * test/model/twins.pml
 *	  Messages with one key, and runs that stand for others (src/key.c), to be
 *	  checked by spin as cursor.pml is.
 *
 * NOTES
 *	  Each pusher changes something, pushes the key, and commits or rolls
 *	  back; message n is pusher n's, if its push is not dropped.  Workers claim
 *	  messages, look at what the pushers have changed, and complete, release,
 *	  or lose their claims to the clock; or they pop.  All steps at which
 *	  others can be in between are steps here: the snapshot of the statement
 *	  that claims, the lock on a message, waiting for a lock, the end of the
 *	  transaction.  With HAND somebody deletes the first message that was
 *	  pushed, if no claim holds it, and with it what it stood for.  With ROOT
 *	  the first message becomes the leaf of an older root job, and with LIMIT
 *	  the queue lets nobody claim a message a second time, and then does again.
 *	  With RUNNING each worker has claimed one of the messages that are there
 *	  at the beginning, which know of each other.
 *
 *	  Only one key is there, so there is one row of pending_key.  Its ids are
 *	  looked at in any order.  Messages are seen in the order in which
 *	  they come to be, by what was committed (or by their own transaction);
 *	  "version" tells whether a row has changed since.
 *
 *	  Checked is: in the end each change that was committed was seen by a run
 *	  that was completed, or a message is left whose run will; and nobody
 *	  waits for ever.  (What a run sees is what was committed when its claim
 *	  was, as at READ COMMITTED.)
 */

#define ABSENT	0
#define WAITS	1				/* no claim, or one that has run out */
#define CLAIMED	2
#define GONE	3
#define AS_IS	4

#define BIT(n)	(1 << (n))
#define NOBODY	0
#define PUSHER(n)	(1 + (n))
#define WORKER(n)	(1 + PUSHERS + (n))
#define DELETER		(1 + PUSHERS + WORKERS)

typedef Message
{
	byte state;					/* committed */
	byte holder;				/* of the claim */
	bool over;					/* so is the claim, by the clock */
	bool covered;
	bool old;					/* a newer root job came */
	bool tried;					/* it was claimed once */
	byte version;
	byte writer;				/* who has it locked */
	byte sharers;				/* pushers that have */
	byte pending;				/* what it is to be when he commits */
	bool pending_covered;
	byte stands_for				/* pushers that it was pushed for */
};

Message message[PUSHERS];

/* The row of pending_key: committed, and as its writer leaves it */
byte ids = BIT(EXISTING) - 1;	/* 0: there is no row */
byte joined = 0;
byte row_version = 0;
byte row_writer = NOBODY;
byte row_sharers = 0;			/* pushers */
byte pending_ids;
byte pending_joined;

bool limited = false;

/* What is only there to be checked */
byte committed = BIT(EXISTING) - 1;	/* pushers */
byte seen_by_runs = BIT(EXISTING) - 1;	/* changes, by completed ones */

hidden byte i_;

#define is_claimed(m)	(message[m].state == CLAIMED && !message[m].over)
#define is_exhausted(m)	(limited && message[m].tried)
#define is_there(m)		(message[m].state == WAITS || \
						 message[m].state == CLAIMED)

/* key_is_duplicate() */
#ifdef COVERED_HOLDS_KEY
#define will_not_run(m)	(message[m].old)
#else
#define will_not_run(m)	(message[m].covered || message[m].old)
#endif

/* Nobody but this one has it locked. */
#define is_unlocked(m, who) \
	((message[m].writer == NOBODY || message[m].writer == who) && \
	 message[m].sharers == 0)

/* The end of the transaction of who; inside of a d_step */
inline leave(who, commit)
{
	for (i_ : 0 .. PUSHERS - 1) {
		if
		:: message[i_].writer == who ->
			if
			:: commit && message[i_].pending != AS_IS ->
				message[i_].state = message[i_].pending;
				message[i_].covered = message[i_].pending_covered;
				message[i_].version++;
				if
				:: message[i_].state != CLAIMED -> message[i_].over = false;
					message[i_].holder = NOBODY
				:: else
				fi
			:: else
			fi;
			message[i_].writer = NOBODY;
			message[i_].pending = AS_IS
		:: else
		fi
	}
	if
	:: row_writer == who && commit ->
		ids = pending_ids;
		joined = (ids == 0 -> 0 : pending_joined);
		row_version++
	:: else
	fi;
	if
	:: row_writer == who -> row_writer = NOBODY; pending_ids = 0;
		pending_joined = 0
	:: else
	fi;
	i_ = 0
}

/* key_drop(), of a message that who has locked; inside of a d_step */
inline drop_key(m, who)
{
	if
	:: row_writer == NOBODY && row_sharers == 0 && (ids & BIT(m)) ->
		row_writer = who;
		pending_ids = ids & ~BIT(m);
		pending_joined = joined
	:: row_writer == who -> pending_ids = pending_ids & ~BIT(m)
	:: else					/* locked by somebody, or it has no such id */
	fi
}

/* Lock m for deletion or a change; inside of a d_step */
inline lock(m, who, what)
{
	message[m].writer = who;
	message[m].pending = what;
	message[m].pending_covered = message[m].covered
}

proctype pusher(byte me)
{
	byte row_ids;				/* as we found the row */
	byte row_joined;
	byte found;					/* its version */
	byte left;					/* ids to be looked at */
	byte kept;
	byte version;
	byte t;
	bool dropped = false;

again:
	skip;
	/* row_find_unique() */
	d_step {
		row_writer == NOBODY;
		row_ids = ids; row_joined = joined; found = row_version;
		left = ids; kept = 0; t = 0; version = 0;
		printf("%d finds the row: ids %d\n", me, ids)
	};
	if
	:: row_ids == 0 -> goto take
	:: else
	fi;

	/* look_at_twins() */
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
			/* row_lock(), LockWaitBlock */
			d_step {
				message[t].writer == NOBODY;
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
	:: row_ids & (row_ids - 1) ->	/* there are others */
		/* replace_row() */
		d_step {
			row_writer == NOBODY && row_sharers == 0;
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
		/* lock_row() */
		d_step {
			row_writer == NOBODY;
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
	/* row_insert_unique() or replace_row() */
	d_step {
		row_writer == NOBODY && row_sharers == 0;
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

/* cover(), of all twins */
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

/* key_begin(): the row as the snapshot shows it */
inline begin_run(row_ids, row_joined)
{
	begun_joined = row_joined;
	twins = row_ids & ~BIT(m);
#ifndef STAND_WITHOUT_ROW
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

	/* try_row(): any message; which one is claimed first does not matter. */
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
			is_unlocked(m, NOBODY) ->
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
			message[m].holder = me + 1;
			message[m].over = false;
			message[m].tried = true;
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
	:: goto next_call			/* the claim is lost, or is still there */
	:: skip
	fi;

	/* row_delete() or row_lock(), which wait for who has the message */
	atomic {
		is_unlocked(m, NOBODY);
		if
		:: message[m].state == CLAIMED && message[m].holder == me + 1 &&
			!message[m].over
		:: else -> goto next_call	/* QU001 */
		fi;
		if
		:: d_step { lock(m, WORKER(me), WAITS) }; ok = false
		:: d_step { lock(m, WORKER(me), GONE); drop_key(m, WORKER(me)) }
		fi
	};
	if
	:: message[m].over ->		/* QU001 */
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
			:: d_step { message[m].state == CLAIMED && !message[m].over ->
					message[m].over = true }
			:: skip
			fi
		}
		n--
	:: break
	od
}

#ifdef HAND
/* message_delete() without a claim */
proctype deleter()
{
	byte m = EXISTING;

	if
	:: d_step {
			is_there(m) && !is_claimed(m) && is_unlocked(m, NOBODY) ->
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
/* job_root(): what the first message stood for is to be done anew. */
proctype root()
{
	d_step {
		message[0].old = true;
		seen_by_runs = seen_by_runs | message[0].stands_for
	}
}
#endif

#ifdef LIMIT
/* queue_update() of _max_claim_count */
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
			message[n - 1].holder = n;
			message[n - 1].tried = true;
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
		assert(row_writer == NOBODY && row_sharers == 0);
		for (n : 0 .. PUSHERS - 1) {
			assert(message[n].writer == NOBODY && message[n].sharers == 0);
			left = left || (is_there(n) && !message[n].covered &&
				!message[n].old)
		}
		assert(left || (committed & ~seen_by_runs) == 0)
	}
}
