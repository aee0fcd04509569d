/*
 * test/model/batches.pml
 *	  The end of a batch (src/shmem/batch_state.c, src/storage/batches.c,
 *	  src/commands/batch_end.c, src/bgworker/worker_batches.c), to be checked
 *	  by spin.
 *
 * NOTES
 *	  A batch has MEMBERS members.  For each there is a session that finishes
 *	  it; with ABORT it may roll back once before.  ADDERS sessions add another
 *	  member, unless the batch has finished, and finish that; with ABORT they
 *	  may roll the first part back.  With PREPARE a transaction may be prepared
 *	  and committed later; its end is not reported, as if the list of prepared.c
 *	  were lost.  The worker probes.  It is terminated KILLS times,
 *	  and another one starts.  The slot of the batch is taken by another one
 *	  EVICTIONS times.
 *
 *	  What is done under one lock is one step.  A transaction leaves the proc
 *	  array in one step, by which its locks on rows end, too, and reports in
 *	  another one.
 *
 *	  Checked is: the batch finishes once, when no member is left and none is
 *	  being added; and when all sessions are done, it has finished.
 *
 *	  Each of these defines makes the model wrong: REPORT_FIRST,
 *	  TAKE_AFTER_SNAPSHOT, SET_WITNESS_ANYWAY, NO_LOCK_BY_ADDER, NO_SECOND_LOOK,
 *	  NO_RETRY, NO_PROBE_AT_START.
 */

#define IDS		(MEMBERS + ADDERS)

/* A member, as committed */
#define ABSENT		0
#define UNFINISHED	1
#define GONE		2

byte member[IDS];				/* index: its id */
bool deleting[IDS];				/* by a transaction that is not over */
bool prepared[IDS];				/* that transaction is prepared */
byte sharers = 0;				/* transactions that have locked the row */
bool prepared_sharer = false;	/* one of them is prepared */
bool row_locked = false;		/* by the worker */
byte finished = 0;

/* The slot */
#define NONE		0
#define WITNESS		1
#define MAY_END		2
#define UNKNOWN		3

byte slot = MAY_END;			/* the batch was just created */
byte witness;
bool retry = false;				/* the worker probes again, after a pause */
byte kills = KILLS;
byte evictions = EVICTIONS;

hidden byte i_;

/* batch_state_report() */
inline report(id)
{
	d_step {
		if
		:: slot == WITNESS && id != witness
		:: else -> slot = MAY_END
		fi
	}
}

/* batch_state_report(), of a transaction that has only locked the batch */
inline report_unlocked()
{
	d_step {
		if
		:: slot == UNKNOWN || slot == NONE -> slot = MAY_END
		:: else
		fi
	}
}

/* Finish a member. */
inline finish(id, aborts)
{
	do
	:: d_step { deleting[id] = true };
		if
#ifdef ABORT
		:: aborts ->
			d_step { deleting[id] = false; aborts = false }
#endif
#ifdef PREPARE
		:: d_step { prepared[id] = true };
			report(id);
			d_step { member[id] = GONE; deleting[id] = false;
				prepared[id] = false };
			break
#endif
#ifdef REPORT_FIRST
		:: report(id);
			d_step { member[id] = GONE; deleting[id] = false };
			break
#else
		:: d_step { member[id] = GONE; deleting[id] = false };
			report(id);
			break
#endif
		fi
	od
}

proctype Finisher(byte id)
{
	bool aborts = true;

	finish(id, aborts)
}

proctype Adder(byte id)
{
	bool aborts = true;
	bool adds = true;

	/* lock_batch() */
	atomic {
		!row_locked;
		if
		:: finished > 0 -> adds = false
#ifndef NO_LOCK_BY_ADDER
		:: else -> sharers++
#else
		:: else
#endif
		fi
	}
	if
	:: !adds
	:: adds ->
		if
#ifdef ABORT
		:: d_step { sharers--; adds = false }
#endif
#ifdef PREPARE
		:: d_step { prepared_sharer = true };
			report_unlocked();
			d_step { member[id] = UNFINISHED; sharers--;
				prepared_sharer = false; assert(finished == 0) };
			goto added
#endif
		:: d_step {
				member[id] = UNFINISHED;
#ifndef NO_LOCK_BY_ADDER
				sharers--;
#endif
				assert(finished == 0)
			}
		fi;
		report_unlocked();
added:
		if
		:: adds -> finish(id, aborts)
		:: else
		fi
	fi
}

/* find_member() with a snapshot: any unfinished member */
inline find_member()
{
	atomic {
		found = IDS;
		i_ = 0;
		do
		:: i_ < IDS ->
			if
			:: member[i_] == UNFINISHED -> found = i_
			:: member[i_] != UNFINISHED || found < IDS
			fi;
			i_++
		:: else -> break
		od;
		undecided = found < IDS && prepared[found];
		i_ = 0
	}
}

proctype Worker()
{
	byte found;
	bool undecided;

end:
	do
	:: atomic {
			if
			:: slot == MAY_END
			:: slot != MAY_END && retry -> retry = false
			fi;
#ifndef TAKE_AFTER_SNAPSHOT
			slot = UNKNOWN
#endif
		};
		if
		:: kills > 0 ->
			/* It is terminated, or a step fails; then all are probed. */
			d_step {
				kills--;
#ifndef NO_PROBE_AT_START
				retry = true
#endif
			}
		:: true ->
			/* batch_end_step() */
			find_member();
#ifdef TAKE_AFTER_SNAPSHOT
			slot = UNKNOWN;
#endif
			if
			:: found < IDS
			:: found == IDS ->
				atomic {
					if
					:: sharers > 0 -> undecided = true
					:: else -> row_locked = true
					fi
				};
#ifndef NO_SECOND_LOOK
				if
				:: undecided
				:: else -> find_member()
				fi
#endif
			fi;
			if
			:: undecided ->
				d_step {
					row_locked = false;
#ifndef NO_RETRY
					retry = true
#endif
				}
			:: !undecided && found < IDS ->
				row_locked = false;
				d_step {
					if
#ifdef SET_WITNESS_ANYWAY
					:: slot != NONE ->
#else
					:: slot == UNKNOWN ->
#endif
						slot = WITNESS; witness = found
					:: else
					fi
				}
			:: !undecided && found == IDS ->
				/* The row says that it has finished, if it did before. */
				d_step {
					finished = 1;
					i_ = 0;
					do
					:: i_ < IDS -> assert(member[i_] != UNFINISHED); i_++
					:: else -> break
					od;
					i_ = 0;
					row_locked = false
				};
				d_step {
					if
					:: slot == UNKNOWN -> slot = NONE
					:: else
					fi
				}
			fi;
			undecided = false;
			found = 0
		fi
	od
}

/* Another batch takes the slot. */
proctype Evictor()
{
end:
	do
	:: atomic { evictions > 0 && slot == WITNESS -> evictions--; slot = NONE }
	:: atomic { evictions > 0 && slot == UNKNOWN ->
			evictions--; slot = NONE; retry = true }
	od
}

/* When nothing else can happen, the batch has finished. */
active proctype Check()
{
	timeout -> assert(finished == 1)
}

init
{
	byte n = 0;

	atomic {
		do
		:: n < MEMBERS ->
			member[n] = UNFINISHED;
			run Finisher(n);
			n++
		:: else -> break
		od;
		do
		:: n < IDS ->
			run Adder(n);
			n++
		:: else -> break
		od;
		run Worker();
#if EVICTIONS > 0
		run Evictor()
#endif
	}
}
