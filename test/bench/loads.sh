# test/bench/loads.sh - the cells with a steady load, and with many sessions
#
# Sourced by test/bench/run, as cells.sh is.

#
# A steady load
#

# Messages are pushed at a rate, whatever becomes of them, and workers ask for
# one at another rate; all for $hold seconds, in steps of a minute (in a shorter
# run of a tenth of it), each with sessions of its own.
step_seconds()
{
	[ "$hold" -ge 600 ] && echo 60 || echo $(((hold + 9) / 10))
}

# step CELL ENGINE ROUND AT PUSHES TAKES WORKERS
step()
{
	seconds_of_step=$(step_seconds)
	before=$waiting
	$BENCH_PIN pgbench -n -M prepared -c 2 -R "$5" -T "$seconds_of_step" \
		-D body="$body" -f "$engines_in/$2/push_one.sql" "bench_$2" \
		>"$work/producers.log" 2>&1 &
	producers=$!
	transactions "bench_$2" "$engines_in/$2/take.sql" "$seconds_of_step" \
		-c "$7" -R "$6" -D claim=none
	wait $producers || { cat "$work/producers.log" >&2; die "producers failed"; }
	count "$2"
	awk '{ print ($3 - $7) / 1000 }' "$work/log" >"$work/times"
	step_result "$@"
}

step_result()	# as step
{
	pushes=$(sed -n 's/.*actually processed: *\([0-9]*\).*/\1/p' \
		"$work/producers.log")
	rate=$(calc "($pushes - ($waiting - $before)) / $seconds_of_step" 1)
	read -r space dead <<EOF
$(sql "$2" "SELECT pg_database_size(current_database()), sum(n_dead_tup)
	FROM pg_stat_user_tables")
EOF
	p50=$(percentile 0.5 <"$work/times")
	p99=$(percentile 0.99 <"$work/times")
	result "$1: rate" "$2" "$3" "$4" messages_per_second "$rate"
	result "$1: claim p50" "$2" "$3" "$4" ms "$p50"
	result "$1: claim p99" "$2" "$3" "$4" ms "$p99"
	result "$1: waiting" "$2" "$3" "$4" messages "$waiting"
	result "$1: dead rows" "$2" "$3" "$4" rows "$dead"
	result "$1: database" "$2" "$3" "$4" bytes "$space"
	say "$1 $2 $3, $4: $rate messages/s, claim p50 $p50 p99 $p99 max" \
		"$(tail -n 1 "$work/sorted") ms, $waiting waiting, $dead dead rows," \
		"database $space bytes" >&2
}

steady_engines()
{
	for engine in $engines; do
		! has "$engine" push_one.sql || echo "$engine"
	done
}

# 2000 messages a second while a transaction holds xmin: all of the time, after
# about a twelfth of it without.  The rate at full speed is measured before, at
# the end of it, and after, to tell what else has changed since.
cell_held_long()	# round
{
	pin 0
	for engine in $(steady_engines); do
		empty "$engine"
		sql "$engine" CHECKPOINT
		for i in $(seq $((hold / 12 / $(step_seconds) + 1))); do
			step held-long "$engine" "$1" without 2000 2100 4
		done
		full_speed held-long "$engine" "$1" without
		sizes "$engine" >"$work/sizes"
		hold_xmin "$engine"
		for i in $(seq $((hold / $(step_seconds)))); do
			step held-long "$engine" "$1" "$((i * $(step_seconds))) s" \
				2000 2100 4
		done
		sizes "$engine" | join "$work/sizes" - |
			awk '$3 > $2 { print "held-long:", $1, "grew from", $2, "to", $3 }' >&2
		full_speed held-long "$engine" "$1" held
		session_close
		full_speed held-long "$engine" "$1" after
	done
}

# Not by an account: claims of earlier sessions end meanwhile.
full_speed()	# cell engine round at
{
	for again in $(seq "$rounds"); do
		count "$2"
		before=$waiting
		work "$2" one 4 1 "$seconds"
		count "$2"
		rate=$(calc "($want - ($waiting - $before)) / $net")
		result "$1: full speed" "$2" "$3" "$4" messages_per_second "$rate"
		say "$1 $2 $3, $4: full speed $rate messages/s" >&2
	done
}

# Tables with their indexes and TOAST
sizes()	# engine
{
	sql "$1" "SELECT oid::regclass, pg_total_relation_size(oid)
		FROM pg_class WHERE relkind = 'r'" | sort
}

# PlanetScale's recipe of 2026: 800 jobs a second, and three reports that
# overlap, each as long as 120 s are of 15 minutes, one after the other in three
# sessions.  The reports sleep: they hold snapshots, and take no CPU time.
cell_reports()	# round
{
	pin 0
	for engine in $(steady_engines); do
		empty "$engine"
		sql "$engine" CHECKPOINT
		step reports "$engine" "$1" without 800 1600 8
		begin_reports "$engine" $((hold * 2 / 15))
		for i in $(seq $((hold / $(step_seconds)))); do
			step reports "$engine" "$1" "$((i * $(step_seconds))) s" 800 1600 8
		done
		kill $reports 2>/dev/null || :
		wait $reports 2>/dev/null || :
		sql "$engine" "SELECT pg_cancel_backend(pid) FROM pg_stat_activity
			WHERE query LIKE '%pg_sleep%' AND pid <> pg_backend_pid()" >/dev/null
	done
}

begin_reports()	# engine seconds
{
	reports=
	for i in 0 1 2; do
		{
			sleep "$(calc "$i * $2 / 3" 1)"
			while psql -XAtqd "bench_$1" -c "SELECT pg_sleep($2)"; do :; done
		} >/dev/null 2>&1 &
		reports="$reports $!"
	done
}

# Messages are scheduled at a rate, by pgbench, and workers claim them as fast
# as they come; one that finds nothing sleeps for 2 ms.  The time counts from
# when a message was to be pushed, and so with the delay of a producer, to when
# its claim has been committed.  A transaction holds xmin after the first fifth.
cell_open()	# round
{
	pin 0
	slice=$((hold / 4))
	for engine in $engines; do
		has "$engine" open_take.sql || continue
		empty "$engine"
		sql "$engine" 'TRUNCATE bench_took' CHECKPOINT
		open_load "$engine" $((5 * slice))
		open_times "$engine" $((5 * slice))
		for i in 0 1 2 3 4; do
			[ $i -eq 0 ] && at=without ||
				at="held: $(((i - 1) * slice)) to $((i * slice)) s"
			open_result "$engine" "$1" "$at" "$work/slice.$i"
		done
		empty "$engine"
	done
}

open_load()	# engine seconds
{
	# Of a pipeline one consumer has what comes.
	kind "$1" pipeline && workers=1 || workers=4
	beside=
	if has "$1" beside.sql; then
		psql -XAtq -d "bench_$1" -f "$engines_in/$1/beside.sql" >/dev/null 2>&1 &
		beside=$!
	fi
	pgbench -n -M prepared -c $workers -T $(($2 + 3)) -D claim=none \
		-f "$engines_in/$1/open_take.sql" "bench_$1" >"$work/workers.log" 2>&1 &
	workers=$!
	sleep 1
	transactions "bench_$1" "$engines_in/$1/open_push.sql" "$2" -c 2 \
		-R "$open_rate" -D body="$body" -D number=0 &
	producers=$!
	sleep $(($2 / 5))
	hold_xmin "$1"
	wait $producers || exit 1
	wait $workers || { cat "$work/workers.log" >&2; die "workers failed on $1"; }
	session_close
	[ -z "$beside" ] || { kill $beside; wait $beside || :; } 2>/dev/null
}

# The times in ms of each fifth, in $work/slice.0 to slice.4.  What no worker
# got counts as if it had been claimed when the time was over; what no producer
# came to push until then is missing, and a fifth may have none.  The number of a
# message is that of its client, and of the transaction of this client.
open_times()	# engine seconds
{
	sql "$1" 'SELECT message, extract(epoch FROM at) FROM bench_took' \
		>"$work/took"
	rm -f "$work"/slice.*
	awk -v seconds="$2" -v slices="$work/slice." '
		FILENAME == ARGV[1] {
			if ($1 in took)
				twice++
			took[$1] = $2
			next
		}
		{
			message = $1 * 10000000 + ++number[$1]
			due[message] = $5 + ($6 - $3) / 1000000
			if (!first || due[message] < first)
				first = due[message]
		}
		END {
			for (message in due) {
				slice = int((due[message] - first) * 5 / seconds)
				if (slice > 4)
					slice = 4
				left[slice] += !(message in took)
				at = message in took ? took[message] : first + seconds
				printf "%.3f\n", (at > due[message] ? at - due[message] : 0) * 1000 \
					>(slices slice)
			}
			for (i = 0; i < 5; i++)
				print left[i] + 0 >(slices i ".left")
			print twice + 0
		}' "$work/took" "$work/log" >"$work/twice"
	read -r twice <"$work/twice"
	[ "$twice" -eq 0 ] || die "open on $1: $twice messages were claimed twice"
}

open_result()	# engine round at file
{
	if [ ! -e "$4" ]; then
		say "open $1 $2, $3: nothing was pushed of that time" >&2
		return
	fi
	for p in 50 99; do
		ms=$(percentile 0.$p <"$4")
		result "open: p$p" "$1" "$2" "$3" ms "$ms"
		say "open $1 $2, $3: p$p $ms ms" >&2
	done
	result 'open: the slowest' "$1" "$2" "$3" ms "$(tail -n 1 "$work/sorted")"
	read -r left <"$4.left"
	result 'open: not claimed' "$1" "$2" "$3" left "$left"
	[ "$left" -eq 0 ] || say "open $1 $2, $3: $left were not claimed" >&2
}

#
# Many sessions
#

# They claim at once; every 100 ms what they wait for is looked up.  A session
# that waits for its client is not counted, nor one that has a statement to read
# but no CPU yet.
cell_crowd()	# round
{
	pin 0
	for engine in $(steady_engines); do
		empty "$engine"
		fill "$engine" "$backlog"
		sql "$engine" 'VACUUM ANALYZE' 'CHECKPOINT'
		count "$engine"
		before=$waiting
		echo "SELECT coalesce(wait_event_type || ':' || wait_event, 'running'),
				count(*)
			FROM pg_stat_activity
			WHERE application_name = 'pgbench' AND state = 'active'
			GROUP BY 1 \\watch 0.1" |
			psql -XAtq -F ' ' -d "bench_$engine" >"$work/samples" 2>&1 &
		sampler=$!
		transactions "bench_$engine" "$engines_in/$engine/take.sql" \
			$((hold + crowd / 100)) -c "$crowd" -D claim=none
		kill $sampler 2>/dev/null || :
		wait $sampler 2>/dev/null || :
		crowd_result "$engine" "$1"
		empty "$engine"
	done
}

crowd_result()	# engine round
{
	count "$1"
	[ "$waiting" -gt 0 ] ||
		say "crowd $1 $2: all was claimed before the end; use -B" >&2
	rate=$(awk -v n=$((before - waiting)) '
		/actually processed/ { all = $NF }
		/^tps = / { print n / (all / $3) }' "$work/pgbench.log")
	awk '{ print $3 / 1000 }' "$work/log" >"$work/times"
	result crowd "$1" "$2" "$crowd sessions" messages_per_second "$rate"
	for p in 50 99; do
		ms=$(percentile 0.$p <"$work/times")
		result "crowd: claim" "$1" "$2" "p$p" ms "$ms"
		say "crowd $1 $2: $rate messages/s, p$p $ms ms" >&2
	done
	awk 'BEGIN { n["LWLock:LockManager"] = n["LWLock:MultiXact"] = 0 }
		/ [0-9]+$/ {
			sub(/MultiXact[A-Za-z]*/, "MultiXact", $1)
			n[$1] += $NF
			all += $NF
		}
		END { for (event in n) if (all) print event, 100 * n[event] / all }' \
		"$work/samples" | sort >"$work/waits"
	say "crowd $1 $2: seen $(awk '{ n += $NF } END { print n + 0 }' \
		"$work/samples") times active" >&2
	while read -r event percent; do
		result "crowd: waits" "$1" "$2" "$event" percent "$percent"
		say "crowd $1 $2: $event $percent %" >&2
	done <"$work/waits"
}
