# test/bench/cells.sh - the cells that are not a plain rate of messages
#
# Sourced by test/bench/run.  cell_NAME ROUND measures one round of a cell on
# every engine that has what it needs, and calls result with the condition (a
# number of messages, "without" or the like) in "at".

#
# A session that stays open
#

# session_open ENGINE [PSQL-OPTION...]: reads what session_do sends
session_open()
{
	session_in=$work/session.in
	session_out=$work/session.out
	[ -p "$session_in" ] || mkfifo "$session_in"
	: >"$session_out"
	session_database=bench_$1
	shift
	psql -XAtq -v ON_ERROR_STOP=1 -d "$session_database" "$@" \
		<"$session_in" >"$session_out" 2>&1 &
	session=$!
	exec 7>"$session_in"
}

# session_do LINE...: returns when it is done
session_do()
{
	printf '%s\n' "$@" '\echo done' >&7
	until grep -qx 'done' "$session_out"; do
		kill -s 0 "$session" 2>/dev/null ||
			{ cat "$session_out" >&2; die "a session ended: $1"; }
		sleep 0.1
	done
	: >"$session_out"
}

session_close()
{
	exec 7>&-
	wait "$session"
}

#
# A transaction that holds xmin
#

hold_xmin()	# engine: until session_close
{
	session_open "$1"
	session_do 'BEGIN ISOLATION LEVEL REPEATABLE READ;' \
		'SELECT count(*) FROM pg_class;'
}

cell_held()	# round
{
	for engine in $engines; do
		[ -z "$(script_of "$engine" one)" ] ||
			held held "$engine" one "$1"
	done
}

cell_held_mixed()	# round
{
	for engine in $engines; do
		! has "$engine" mixed.sql || held held-mixed "$engine" mixed "$1"
	done
}

held()	# cell engine script round
{
	pin 0
	for holder in without held; do
		empty "$2"
		if [ "$3" = mixed ]; then
			# the claim of an hour
			sql "$2" "CALL bench_fill(1, '$body')" >/dev/null
			psql -XAtq -d "bench_$2" -v k=1 -f "$engines_in/$2/hold.sql" \
				>/dev/null
		fi
		begin "$2"
		[ $holder = without ] || hold_xmin "$2"
		curve "$2" "$3" 4
		account "$2" "$1"
		[ $holder = without ] || session_close
		held_result "$@" $holder
	done
}

# curve ENGINE SCRIPT CLIENTS: work for $hold seconds, with the share of it
# that each second did in $work/curve
curve()
{
	if [ -x "$engines_in/$1/load" ]; then
		echo 'SELECT extract(epoch FROM clock_timestamp()), done
			FROM bench_done \watch 1' |
			psql -XAtq -F ' ' -d "bench_$1" >"$work/samples" 2>&1 &
		sampler=$!
		work "$1" "$2" "$3" 1 "$hold"
		kill $sampler 2>/dev/null || :
		wait $sampler 2>/dev/null || :
		awk '/^[0-9.]+ [0-9]+$/ {
				if (before && $2 > done && !first)
					first = before
				if (first)
					print sprintf("%.0f", $1 - first), ($2 - done) / ($1 - before)
				before = $1
				done = $2
			}' "$work/samples" >"$work/rates"
	else
		work "$1" "$2" "$3" 1 "$hold" -P 1
		sed -n 's/^progress: \([0-9.]*\) s, \([0-9.]*\) tps.*/\1 \2/p' \
			"$work/pgbench.log" >"$work/rates"
	fi
	awk -v seconds="$hold" '$1 <= seconds + 0.5 {
			rate[++n] = $2
			second[n] = $1
			sum += $2
		}
		END {
			for (i = 1; i <= n; i++)
				printf "%.0f %f\n", second[i], sum ? rate[i] * n / sum : 0
		}' "$work/rates" >"$work/curve"
}

held_result()	# cell engine script round holder
{
	[ $done -ge 0 ] || done=$deleted
	rate=$(calc "$done / $net")
	while read -r second share; do
		result "$1" "$2" "$4" "$second" "curve_$5" \
			"$(calc "$share * $rate")"
	done <"$work/curve"
	result "$1" "$2" "$4" "$5" messages_per_second "$rate"
	[ "$5" = without ] || result "$1" "$2" "$4" 'held: last quarter' \
		messages_per_second "$(awk -v rate="$rate" '{ share[NR] = $2 }
			END {
				for (i = int(NR * 3 / 4) + 1; i <= NR; i++) {
					sum += share[i]
					n++
				}
				printf "%.0f", n ? sum / n * rate : 0
			}' "$work/curve")"
	say "$1 $2 $4 $5: $rate messages/s" >&2
}

#
# Latency
#

# claims DATABASE ENGINE [SCRIPT]: the times in ms of a claim from each of the
# queues that $work/queues names, in $work/times
claims()
{
	claim_file=$engines_in/$2/${3:-claim}.sql
	{
		grep '^PREPARE' "$claim_file"
		while IFS= read -r queue; do
			printf '\\set q %s\n' "$queue"
			grep -v '^PREPARE' "$claim_file"
			printf '%s\n' '\echo next'
		done <"$work/queues"
	} >"$work/claims.sql"
	$BENCH_PIN psql -XAtq -v ON_ERROR_STOP=1 -d "$1" -f "$work/claims.sql" \
		>"$work/claims.log" 2>&1 ||
		{ tail "$work/claims.log" >&2; die "claims failed on $2"; }
	awk '/^Time: / { ms += $2 } /^next$/ { print ms; ms = 0 }' \
		"$work/claims.log" >"$work/times"
}

# The mean of the middle half of numbers, one in a line: as steady as the
# median, and finer than the microseconds that they are measured in.
middle()
{
	sort -n >"$work/sorted"
	awk -v n="$(wc -l <"$work/sorted")" '
		NR > int(n / 4) && NR <= n - int(n / 4) { sum += $1; of++ }
		END { printf "%.5f", sum / of }' "$work/sorted"
}

# percentile SHARE: the smallest number that no more than the rest are above
percentile()
{
	sort -n >"$work/sorted"
	awk -v n="$(wc -l <"$work/sorted")" -v share="$1" \
		'NR >= share * n { print; exit }' "$work/sorted"
}

# claim_latency CELL ENGINE ROUND AT [SCRIPT]: free and pinned
claim_latency()
{
	awk -v n="$claims" 'BEGIN { while (n--) print "bench" }' >"$work/queues"
	for pinned in 0 1; do
		pin $pinned
		[ $pinned -eq 0 ] && named=$1 || named=$1:pin
		claims "bench_$2" "$2" "${5-}"
		ms=$(middle <"$work/times")
		result "$named" "$2" "$3" "$4" ms "$ms"
		say "$named $2 $3, $4: $ms ms" >&2
	done
	pin 0
}

fill()	# engine messages [groups]
{
	sql "$1" "CALL bench_fill($2, '$body'${3:+, $3})" >/dev/null
}

cell_inflight()	# round
{
	for engine in $engines; do
		if has "$engine" claim.sql && has "$engine" hold.sql; then
			for k in $inflights; do
				empty "$engine"
				fill "$engine" $((k + 2 * claims + 100))
				session_open "$engine" -v k="$k"
				[ "$k" -eq 0 ] ||
					session_do "\\i $engines_in/$engine/hold.sql"
				sql "$engine" 'VACUUM ANALYZE'
				claim_latency inflight "$engine" "$1" "$k"
				session_close
			done
		fi
	done
}

cell_backlog()	# round
{
	for engine in $engines; do
		if has "$engine" claim.sql; then
			empty "$engine"
			for k in $backlogs; do
				count "$engine"
				fill "$engine" $((k - waiting))
				sql "$engine" 'VACUUM ANALYZE' 'CHECKPOINT'
				claim_latency backlog "$engine" "$1" "$k"
			done
			empty "$engine"
		fi
	done
}

# transactions DATABASE FILE SECONDS PGBENCH-OPTION...: pgbench's log of each
# transaction into $work/log; time in its third column
transactions()
{
	rm -f "$work"/log.*
	log_database=$1 log_file=$2 log_seconds=$3
	shift 3
	$BENCH_PIN pgbench -n -M prepared -T "$log_seconds" -l \
		--log-prefix="$work/log" "$@" -f "$log_file" "$log_database" \
		>"$work/pgbench.log" 2>&1 ||
		{ cat "$work/pgbench.log" >&2; die "$log_file failed"; }
	cat "$work"/log.* >"$work/log"
}

cell_empty()	# round
{
	echo 'SELECT 1;' >"$work/select.sql"
	for engine in $engines; do
		if has "$engine" empty.sql; then
			empty "$engine"
			for pinned in 0 1; do
				pin $pinned
				[ $pinned -eq 0 ] && named=empty || named=empty:pin
				for at in 'SELECT 1' 'empty queue'; do
					[ "$at" = 'SELECT 1' ] && file=$work/select.sql ||
						file=$engines_in/$engine/empty.sql
					transactions "bench_$engine" "$file" "$seconds" -c 1
					ms=$(awk '{ print $3 / 1000 }' "$work/log" | middle)
					result $named "$engine" "$1" "$at" ms "$ms"
					say "$named $engine $1, $at: $ms ms" >&2
				done
			done
			pin 0
		fi
	done
}

# Many queues: ours alone has several in one table or takes no harm from a
# table for each.  A database of their own, made when first needed.
cell_queues()	# round
{
	for engine in $engines; do
		kind "$engine" ours || continue
		psql -XAtqlF ' ' | grep -q '^bench_queues ' || queues_setup "$engine"
		empty "$engine"
		fill "$engine" $((1000 + 6 * claims))
		for pinned in 0 1; do
			pin $pinned
			[ $pinned -eq 0 ] && named=queues || named=queues:pin
			awk -v n=$((3 * claims)) 'BEGIN { while (n--) print "bench" }' \
				>"$work/queues"
			claims "bench_$engine" "$engine"
			ms=$(middle <"$work/times")
			result $named "$engine" "$1" '1 queue' ms "$ms"
			# Other ones in each round, three times each.
			awk -v n="$claims" -v first=$(((2 * $1 + pinned) * claims)) \
				-v all="$queues" 'BEGIN {
					for (pass = 0; pass < 3; pass++)
						for (i = 0; i < n; i++)
							print "q" (first + i) * 7919 % all
				}' >"$work/queues"
			claims bench_queues "$engine"
			ms=$(head -n "$claims" "$work/times" | middle)
			result $named "$engine" "$1" \
				"$queues queues: first claim of a session" ms "$ms"
			ms=$(tail -n +$((claims + 1)) "$work/times" | middle)
			result $named "$engine" "$1" "$queues queues: further claims" \
				ms "$ms"
			say "$named $engine $1: $ms ms" >&2
		done
		pin 0
	done
}

queues_setup()	# engine
{
	setup_engine "$1" bench_queues || die "could not set up $1 once more"
	say "pushing to $queues queues ..." >&2
	psql -XAtq -v ON_ERROR_STOP=1 -v queues="$queues" -v body="$body" \
		-d bench_queues >/dev/null <<'EOF'
SELECT format('SELECT count(queue_push_batch(''q'' || i, array_fill(%L::jsonb, ''{3}'')))
    FROM generate_series(%s, %s) AS i',
    :'body', first, least(first + 999, :queues - 1))
FROM generate_series(0, :queues - 1, 1000) AS first \gexec
VACUUM ANALYZE;
EOF
}

# What a message costs by the number of queues that have had one: in a queue by
# chance, claimed from there or from any of all; and what a list of the queues
# costs that have something to claim.  In each round a database of their own.
cell_breadth()	# round
{
	pin 0
	for engine in $engines; do
		has "$engine" named.sql || continue
		setup_engine "$engine" bench_breadth || die "could not set up $engine again"
		before=0
		for k in $breadths; do
			sql breadth "CALL bench_queues($before + 1, $k, '$body')" \
				'VACUUM ANALYZE' 'CHECKPOINT'
			before=$k
			for ready in 10 20000; do
				[ $ready -le "$k" ] || break
				sql breadth "CALL bench_ready($ready, $k, '$body')"
				breadth "$ready ready" "$engine" "$1" "$k" ready
				sql breadth "CALL bench_ready(0, $k, '$body')"
			done
			breadth any "$engine" "$1" "$k" any
			breadth named "$engine" "$1" "$k" named
		done
		dropdb -f bench_breadth
	done
}

breadth()	# cell engine round queues script
{
	sleep 1		# for what the session before this one has used
	cpu0=$(cpu_time)
	transactions bench_breadth "$engines_in/$2/$5.sql" "$seconds" -c 1 \
		-D queues="$4" -D body="$body"
	at="$4 queues"
	[ "$4" -ne 1 ] || at='1 queue'
	ms=$(awk '{ print $3 / 1000 }' "$work/log" | percentile 0.5)
	result "breadth: $1" "$2" "$3" "$at" ms "$ms"
	sql breadth 'SELECT 1' >/dev/null	# pgbench's session has ended by then
	us=$((($(cpu_time) - cpu0) * 1000000 / $(getconf CLK_TCK)))
	us=$(calc "$us / $(wc -l <"$work/log")" 1)
	result "breadth: $1" "$2" "$3" "$at" server_cpu_us_per_transaction "$us"
	say "breadth: $1 $2 $3, $at: $ms ms, $us us of CPU" >&2
}

#
# One transaction
#

# It claims and completes k messages, one by one.
cell_loop()	# round
{
	pin 0
	for engine in $engines; do
		has "$engine" loop.sql || continue
		for k in 1000 4000 16000; do
			empty "$engine"
			sql "$engine" "CALL bench_fill($k, '$body')"
			ms=$(psql -XAtq -v ON_ERROR_STOP=1 -v k=$k -d "bench_$engine" \
				-f "$engines_in/$engine/loop.sql" | awk '/^Time: / { print $2 }')
			count "$engine"
			[ "$waiting" -eq 0 ] || die "loop on $engine: $waiting of $k are left"
			result loop "$engine" "$1" "$k" us_per_message \
				"$(calc "$ms * 1000 / $k" 1)"
			say "loop $engine $1, $k messages: $(calc "$ms * 1000 / $k" 1) us each" >&2
		done
	done
}

#
# Batches
#

# One batch that 16 sessions finish, beside as many messages of no batch; the one
# or the other comes first, in turn.
cell_batches()	# round
{
	pin 0
	for n in $members_at_once; do
		[ "$n" -eq 1 ] && script=finish || script=finish_batch
		for engine in $engines; do
			has "$engine" $script.sql || continue
			for i in "$1" $(($1 + 1)); do
				batches_round "$engine" "$1" $script "$n" $(((i + 1) % 2))
			done
		done
	done
}

batches_round()	# engine round script n batched
{
	# at least two claims for each session
	k=$((backlog / 20))
	[ $k -ge $((32 * $4)) ] || k=$((32 * $4))
	[ "$5" -eq 0 ] && at='without a batch' || at='in a batch'
	empty "$1"
	ms=$(printf '%s\n' '\timing on' \
		"CALL bench_members($k, '$body', $5 = 1);" |
		psql -XAtq -v ON_ERROR_STOP=1 -d "bench_$1" | awk '/^Time: / { print $2 }')
	sql "$1" 'VACUUM ANALYZE' CHECKPOINT
	finish "$1" "$3" "$4" $((k / (16 * $4) - 1))
	count "$1"
	done=$((k - waiting))
	# The batch has not finished before its last members, and has after them.
	left=$(sql "$1" 'SELECT bench_batch_left()')
	{ [ $done -gt 0 ] && [ "$waiting" -gt 0 ] && [ "$left" -eq "$5" ]; } ||
		die "batches on $1: $done of $k done, and $left unfinished batches"
	result "batches: finished by $4" "$1" "$2" "$at" messages_per_second \
		"$(calc "$done / $net")"
	rate=$(calc "1 / ($net / $done + $ms / 1000 / $k)")
	result "batches: pushed and finished by $4" "$1" "$2" "$at" \
		messages_per_second "$rate"
	say "batches by $4 $1 $2, $at: finished $(calc "$done / $net")," \
		"pushed and finished $rate messages/s" >&2
	for try in $(seq 100); do
		finish "$1" "$3" "$4" $((waiting / (16 * $4) + 1))
		count "$1"
		left=$(sql "$1" 'SELECT bench_batch_left()')
		[ "$waiting" -gt 0 ] || [ "$left" -gt 0 ] || return 0
		sleep 0.1
	done
	die "batches on $1: $waiting messages and $left batches are not finished"
}

# finish ENGINE SCRIPT N TRANSACTIONS: of each session; sets net to the time
finish()
{
	pgbench -n -M prepared -c 16 -j 2 -t "$4" -D n="$3" \
		-f "$engines_in/$1/$2.sql" "bench_$1" >"$work/pgbench.log" 2>&1 &&
		! grep -Eq 'aborted|failed transactions: [1-9]' "$work/pgbench.log" ||
		{ cat "$work/pgbench.log" >&2; die "$2 failed on $1"; }
	net=$(awk -v n=$((16 * $4)) '/^tps = / { print n / $3 }' \
		"$work/pgbench.log")
}

#
# Topics
#

cell_topics()	# round
{
	pin 0
	for engine in $engines; do
		has "$engine" publish.sql || continue
		topics_round "$engine" "$1" push_one 0 0 'a push'
		topics_round "$engine" "$1" publish 1 0 '1 queue'
		topics_round "$engine" "$1" publish 3 0 '3 queues'
		topics_round "$engine" "$1" publish 3 9997 '3 queues (10000 bindings)'
		topics_round "$engine" "$1" publish 16 0 '16 queues'
		empty "$engine"
	done
}

topics_round()	# engine round script queues others at
{
	# What the row before has left would slow this one down.
	empty "$1"
	sql "$1" "CALL bench_topics($4, $5)" 'VACUUM ANALYZE' 'CHECKPOINT'
	work "$1" "$3" 8 1 "$seconds" -D queues="$4"
	rate=$(calc "$want / $net")
	result topics "$1" "$2" "$6" calls_per_second "$rate"
	say "topics $1 $2, $6: $rate/s" >&2
}

#
# The ring
#

# Tail latencies with segments being switched as usual, and not at all.
# Pushes and claims take turns by chance in each of four sessions, so that
# about nothing is left waiting and segments can be truncated.
cell_switching()	# round
{
	pin 0
	for engine in $engines; do
		kind "$engine" ours || continue
		for speed in '2000/s' 'full speed'; do
			[ "$speed" = '2000/s' ] && rate='-R 4000' || rate=
			for at in off on; do
				switching_set $at
				empty "$engine"
				sql "$engine" CHECKPOINT
				sleep 3		# for what the last round left to truncate
				before=$(truncations "$engine")
				transactions "bench_$engine" "$engines_in/$engine/push_one.sql" \
					"$hold" -c 4 -j 2 $rate -D body="$body" -D claim=none \
					-f "$engines_in/$engine/take.sql"
				sleep 2
				before=$(($(truncations "$engine") - before))
				result "switching at $speed" "$engine" "$1" "switches $at" \
					truncations $before
				switching_result "$engine" "$1" $at push 1
				switching_result "$engine" "$1" $at claim 0
			done
		done
	done
	switching_set on
}

switching_set()	# on or off
{
	if [ "$1" = on ]; then
		alter_system 'RESET queue.segment_size'
	else
		alter_system 'SET queue.segment_size = 0'
	fi
}

# The time that the call took: what a session was late (the last column, with
# -R) is not in it.
switching_result()	# engine round at what script
{
	awk -v script="$5" '$4 == script { print ($3 - $7) / 1000 }' "$work/log" \
		>"$work/times"
	ms=$(percentile 0.999 <"$work/times")
	result "switching: $4 at $speed" "$1" "$2" "switches $3" ms "$ms"
	say "switching $1 $2: $4 at $speed, $3, $before truncations: $ms ms" >&2
}

# How often a segment was truncated so far; each truncation updates its row.
truncations()	# engine
{
	sql "$1" "SELECT n_tup_upd FROM pg_stat_user_tables
		WHERE relid = 'queue_data.segment'::regclass"
}

#
# Groups
#

# regroup ENGINE GROUPS [BOUND]: its queue anew, 0 for one without groups
regroup()
{
	sql "$1" "SELECT bench_groups($2, ${3:-NULL})" >/dev/null
	empty "$1"
}

in_groups()	# number
{
	case $1 in
	0) echo 'without groups' ;;
	1) echo '1 group' ;;
	*) echo "$1 groups" ;;
	esac
}

# grouped CELL ENGINE ROUND AT GROUPS [BOUND [WAITING]]: one by one, free and
# pinned, with so many messages waiting
grouped()
{
	[ "$5" -eq 0 ] && script=one || script=group
	for pinned in 0 1; do
		pin $pinned
		[ $pinned -eq 0 ] && named=$1 || named=$1:pin
		regroup "$2" "$5" "${6-}"
		[ -z "${7-}" ] || {
			fill "$2" "$7" "$5"
			sql "$2" 'VACUUM ANALYZE'
		}
		begin "$2"
		BENCH_GROUPS=$5
		work "$2" $script 8 1 "$seconds" -D groups="$5"
		account "$2" "$named"
		# A claim may find only messages of groups that are at their bound.
		few=$((8 + waiting0))
		{ [ -z "${6-}" ] && kind "$2" ours; } || few=$((few + pushed / 20))
		rate_result "$named" "$2" "$3" "$4"
	done
	pin 0
}

cell_groups()	# round
{
	for engine in $engines; do
		if has "$engine" group.sql; then
			for k in $groups; do
				grouped groups "$engine" "$1" "$(in_groups "$k")" "$k"
			done
			regroup "$engine" 0
		fi
	done
}

# The messages that wait were pushed to each group in turn.
cell_groups_backlog()	# round
{
	k=$((backlog / 10))
	for engine in $engines; do
		if has "$engine" group.sql; then
			grouped groups-backlog "$engine" "$1" 'without groups' 0 '' $k
			grouped groups-backlog "$engine" "$1" '1000 groups' 1000 '' $k
			regroup "$engine" 0
		fi
	done
}

cell_fifo()	# round
{
	for engine in $engines; do
		if has "$engine" group.sql || has "$engine" produce_group.sql; then
			grouped fifo "$engine" "$1" 'without groups' 0
			grouped fifo "$engine" "$1" '10000 groups (one at a time)' 10000 1
			! has "$engine" group.sql ||
				grouped fifo "$engine" "$1" '10000 groups (100 at a time)' \
					10000 100
			regroup "$engine" 0
		fi
	done
}

# One group has k messages, and 999 others get 50 a second in all.  With a
# backlog workers never rest, so that a message has to wait for one of them;
# without, one is waiting for it.  Workers that take 4 ms for each message, 32 of
# them, claim up to 8000 a second: one is free every eighth of a millisecond, and
# that is about half of what the server can do.
cell_turns()	# round
{
	pin 0
	for engine in $engines; do
		has "$engine" worker.sql || continue
		for k in 0 $((backlog / 10)) "$backlog"; do
			regroup "$engine" 1000
			fill "$engine" "$k" 1
			sql "$engine" 'TRUNCATE bench_wait' 'VACUUM ANALYZE' 'CHECKPOINT'
			pgbench -n -M prepared -c 32 -j 2 -T $((hold + 2)) -D work=4 \
				-f "$engines_in/$engine/worker.sql" "bench_$engine" \
				>"$work/workers.log" 2>&1 &
			workers=$!
			sleep 1
			transactions "bench_$engine" "$engines_in/$engine/push_group.sql" \
				"$hold" -c 1 -R 50 -D body="$body" -D groups=999
			wait $workers || { cat "$work/workers.log" >&2; die "workers failed"; }
			turns_result "$engine" "$1" "$k waiting"
		done
		regroup "$engine" 0
	done
}

# A message that no worker got counts as if it had waited all of the time.
turns_result()	# engine round at
{
	sql "$1" "INSERT INTO bench_wait SELECT 1000 * $hold FROM generate_series(1,
		$(wc -l <"$work/log") - (SELECT count(*) FROM bench_wait))"
	for p in 50 99; do
		ms=$(sql "$1" "SELECT percentile_disc(0.$p) WITHIN GROUP (ORDER BY ms)
			FROM bench_wait")
		result "turns: p$p" "$1" "$2" "$3" ms "$ms"
		say "turns $1 $2, $3: p$p $ms ms" >&2
	done
}

# The head of group g0, whose bound is 1, is claimed, and k messages wait behind
# it.  What is claimed are messages of other groups, which come after these.
cell_blocked()	# round
{
	for engine in $engines; do
		if has "$engine" group.sql && has "$engine" hold.sql; then
			for k in 0 "$backlog"; do
				regroup "$engine" 1000 1
				fill "$engine" 1 1
				psql -XAtq -d "bench_$engine" -v k=1 \
					-f "$engines_in/$engine/hold.sql" >/dev/null
				fill "$engine" "$k" 1
				fill "$engine" $((2 * claims + 100)) 1000
				sql "$engine" 'VACUUM ANALYZE' 'CHECKPOINT'
				claim_latency blocked "$engine" "$1" "$k"
			done
			regroup "$engine" 0
		fi
	done
}

# Some messages in each group, so that only few groups come to their end.  What
# is consumed while a transaction holds xmin remains.
cell_ready_groups()	# round
{
	for engine in $engines; do
		if has "$engine" group.sql && has "$engine" claim_delete.sql; then
			for k in $groups; do
				[ "$k" -eq 0 ] && script=one || script=group
				at=$(in_groups "$k")
				regroup "$engine" "$k"
				few=$((4 * claims + 100))
				[ "$few" -gt $((3 * k)) ] || few=$((3 * k))
				fill "$engine" $few "$k"
				sql "$engine" 'VACUUM ANALYZE' 'CHECKPOINT'
				claim_latency ready-groups "$engine" "$1" "$at" claim_delete
				hold_xmin "$engine"
				work "$engine" $script 4 1 "$seconds" -D groups="$k"
				claim_latency ready-groups "$engine" "$1" "$at (xmin held)" \
					claim_delete
				session_close
			done
			regroup "$engine" 0
		fi
	done
}
