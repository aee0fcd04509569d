# test/bench/rounds.sh - the engines, what changes between cells, and a round
#
# Sourced by test/bench/run, which describes the files of an engine.

#
# Engines
#

sql()	# engine statement...
{
	database=bench_$1
	shift
	for statement in "$@"; do
		set -- "$@" -c "$statement"
		shift
	done
	psql -XAtq -F ' ' -v ON_ERROR_STOP=1 -d "$database" "$@"
}

start_server()
{
	set --
	while IFS= read -r setting; do
		set -- "$@" "$setting"
	done <<EOF
$settings
EOF
	sandbox_start "$@"
}

# The server finds the files of the packages in its own directories.
place_packages()
{
	find "$work/unpacked" -path '*/lib/*' -name '*.so' \
		-exec cp -n {} "$pkglibdir/" \;
	find "$work/unpacked" -path '*/extension/*' -type f \
		-exec cp -n {} "$work$sharedir/extension/" \;
}

# The scripts that engines share; in a copy of the checkout.
place_scripts()
{
	for engine in $engines; do
		! has "$engine" like ||
			cp -n "$engines_in/$(cat "$engines_in/$engine/like")"/*.sql \
				"$engines_in/$engine/"
	done
}

setup_engine()	# engine [database]
{
	database=${2:-bench_$1}
	createdb "$database"
	{
		[ ! -x "$engines_in/$1/setup" ] ||
			PGDATABASE=$database "$engines_in/$1/setup"
	} >"$work/setup.log" 2>&1 &&
		psql -Xq -v ON_ERROR_STOP=1 -d "$database" \
			-f "$engines_in/$1/setup.sql" >>"$work/setup.log" 2>&1 || {
		cat "$work/setup.log" >&2
		return 1
	}
}

# The engine queue is required; another that cannot be set up is left out.
setup_engines()
{
	all=$engines
	engines=
	for engine in $all; do
		if setup_engine "$engine"; then
			engines="$engines $engine"
		elif [ "$engine" = queue ]; then
			die "could not set up $engine"
		else
			say "**$engine** is left out: it could not be set up" \
				"($(grep -i -m 1 error "$work/setup.log"))."
			say
		fi
	done
}

# Those of the engines that take part in one of the cells.
taking_part()	# cell...
{
	for engine in $engines; do
		pattern='*'
		! has "$engine" cells || pattern=$(cat "$engines_in/$engine/cells")
		for cell; do
			eval "case \$cell in $pattern) echo $engine; break ;; esac"
		done
	done
}

kind()	# engine kind
{
	[ "$(cat "$engines_in/$1/kind")" = "$2" ]
}

has()	# engine file
{
	[ -f "$engines_in/$1/$2" ]
}

#
# Pinning
#

pin_server()	# list of CPUs
{
	postmaster=$(head -n 1 "$data/postmaster.pid")
	for pid in "$postmaster" $(ps -o pid= --ppid "$postmaster"); do
		# a process may end meanwhile
		taskset -c -p "$1" "$pid" >/dev/null 2>&1 || :
	done
}

# The server, and what is run with $BENCH_PIN before it.
pin()	# 0 or 1
{
	pinned=$1
	BENCH_PIN=
	if [ "$1" -eq 1 ]; then
		[ -n "$cpu_one" ] || find_cpus
		pin_server "$cpu_one"
		BENCH_PIN="taskset -c $cpu_one"
	else
		[ -z "$cpu_one" ] || pin_server "$cpus_all"
	fi
	export BENCH_PIN
}

cpus_all=
cpu_one=
find_cpus()
{
	command -v taskset >/dev/null ||
		die "needs taskset (util-linux) for the cells with :pin"
	cpus_all=$(taskset -c -p $$ | sed 's/.*: *//')
	# The last one: the first serves most interrupts.
	cpu_one=$(echo "$cpus_all" | sed 's/.*[,-]//')
}

#
# Settings that change between cells
#

# For sessions that begin later.
alter_system()	# "SET name = value" or "RESET name"
{
	psql -XAtq -v ON_ERROR_STOP=1 -c "ALTER SYSTEM $1" \
		-c 'SELECT pg_reload_conf()' -c 'SELECT pg_sleep(1)' >/dev/null
}

synchronous=0
sync_commit()	# 0 or 1
{
	[ "$1" -ne $synchronous ] || return 0
	if [ "$1" -eq 1 ]; then
		alter_system 'SET synchronous_commit = on'
	else
		alter_system 'RESET synchronous_commit'
	fi
	synchronous=$1
}

#
# One round
#

# A body such as a mail to be sent: 68 bytes as jsonb, and a text.  Without a
# size in the cell's name the text has 150, else it is random, which does not
# compress, but the same in each run.
body_of()	# cell
{
	size=
	case $1 in *@*) size=${1#*@} size=${size%%:*} ;; esac
	awk -v size="$size" 'BEGIN {
		letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
		printf "{\"to\": \"ann@example.org\", \"template\": \"welcome\", \"text\": \""
		for (i = 0; size == "" && i < 25; i++)
			printf "lorem "
		for (x = 1; i < size - 68; i++) {
			x = x * 16807 % 2147483647
			printf "%s", substr(letters, int(x / 33554432) + 1, 1)
		}
		print "\"}"
	}'
}

BENCH_WORK=$work
BENCH_GROUPS=0
export BENCH_BODY BENCH_GROUPS BENCH_WORK

result()	# cell engine round at measure value
{
	printf '%s,%s,%s,%s,%s,%s\n' "$@" >>"$work/results.csv"
}

count()	# engine: sets pushed, deleted, waiting, updated, hot, heap, lsn
{
	read -r pushed deleted waiting updated hot heap lsn <<EOF
$(sql "$1" "SELECT pushed, deleted, waiting, updated, hot, heap,
	pg_current_wal_lsn() - '0/0' FROM bench_count")
EOF
}

# The CPU time, in clock ticks, of all backends that have ended so far.
cpu_time()
{
	awk '{ print $16 + $17 }' "/proc/$(head -n 1 "$data/postmaster.pid")/stat" \
		2>/dev/null || echo 0
}

empty()	# engine
{
	sql "$1" "SELECT bench_empty()" "VACUUM" >/dev/null
	count "$1"
	[ "$waiting" -eq 0 ] || die "$1 could not be emptied"
}

# begin ENGINE: what the account of a round begins with
begin()
{
	sql "$1" "CHECKPOINT"
	count "$1"
	pushed0=$pushed deleted0=$deleted waiting0=$waiting lsn0=$lsn
	updated0=$updated hot0=$hot
	cpu0=$(cpu_time)
}

# work ENGINE SCRIPT CLIENTS N SECONDS [PGBENCH-OPTION...]: a round of
# throughput, with pgbench if the engine has that script, else with its load.
# Sets want, the messages that the clients say they pushed, and done and net,
# the messages done in that time, -1 where only the server can tell, and the
# time.
work()
{
	dir=$engines_in/$1
	if ! has "$1" "$2.sql"; then
		out=$(PGDATABASE=bench_$1 "$dir/load" "$2" "$3" "$4" "$5" \
			2>"$work/load.log") ||
			{ cat "$work/load.log" >&2; die "$2 failed on $1"; }
		read -r want left net <<EOF
$out
EOF
		done=$((want - left))
	else
		pgbench_run "$@"
		want=$((transactions * $4))
		done=-1
	fi
}

pgbench_run()	# as work
{
	database=bench_$1 file=$engines_in/$1/$2.sql clients=$3 n=$4 time=$5
	jobs=1
	[ "$pinned" -eq 1 ] || [ "$clients" -eq 1 ] || jobs=2
	shift 5
	$BENCH_PIN pgbench -n -M prepared -c "$clients" -j $jobs -T "$time" \
		-D n="$n" -D body="$body" -D claim=none -D made=0 "$@" \
		-f "$file" "$database" >"$work/pgbench.log" 2>&1 &&
		! grep -Eq 'aborted|failed transactions: [1-9]' "$work/pgbench.log" ||
		{ cat "$work/pgbench.log" >&2; die "$file failed"; }
	transactions=$(sed -n 's/.*actually processed: *\([0-9]*\).*/\1/p' \
		"$work/pgbench.log")
	# by the time without connecting
	net=$(awk -v n="$transactions" '/^tps = / { tps = $3 }
		END { print n / tps }' "$work/pgbench.log")
}

# account ENGINE CELL: sets pushed and deleted to the messages since begin.
# What moves within the tables counts as deleted and pushed once more: only
# ours does that.
account()
{
	# A backend may report what it did a moment after it has gone.
	for try in 1 2 3 4 5 6 7 8 9 10; do
		count "$1"
		pushed=$((pushed - pushed0))
		deleted=$((deleted - deleted0))
		moved=$((pushed - want))
		if [ $((pushed - deleted)) -eq $((waiting - waiting0)) ] &&
			{ [ $moved -eq 0 ] || { [ $moved -gt 0 ] && kind "$1" ours; }; }
		then
			pushed=$want
			deleted=$((deleted - moved))
			return
		fi
		sleep 1
	done
	die "$2 on $1: the clients pushed $want messages, the server says" \
		"pushed $pushed, deleted $deleted, waiting $waiting after $waiting0"
}

# The script SCRIPT of an engine, or what stands for it.
script_of()	# engine script
{
	# An engine without a call for both works one by one.
	if has "$1" load; then
		case $2 in
		next | step) echo one ;;
		push) echo produce_batch ;;
		*) echo "$2" ;;
		esac
	elif has "$1" "$2.sql"; then
		echo "$2"
	elif [ "$2" = next ] || [ "$2" = step ]; then
		echo one
	fi
}

round()	# engine cell round
{
	engine=$1
	cell=$2
	script=${cell%%:*}
	clients=${cell#*:}
	clients=${clients%%:*}
	case $cell in *:pin*) pin 1 ;; *) pin 0 ;; esac
	script=${script%@*}
	n=$(echo "$script" | sed 's/[^0-9]*//')
	n=${n:-1}
	script=$(echo "$script" | sed 's/[0-9]*$//')
	[ "$script" = push ] && time=1 || time=$seconds
	# pgbench's time begins before its sessions are connected.
	time=$((time + clients / 100))
	script=$(script_of "$engine" "$script")
	[ -n "$script" ] || return 0

	empty "$engine"
	begin "$engine"
	work "$engine" "$script" "$clients" "$n" "$time"
	account "$engine" "$cell"

	# A claim that meets nothing but rows of others, or younger ones than its
	# snapshot, comes back short and leaves messages, which later ones find;
	# plain SQL does that now and then, ours must not, and the producers of a
	# pipeline may be ahead.  A cell that only pushes leaves all.
	few=$((clients * n))
	kind "$engine" ours || few=$((few + pushed / 20))
	case $cell in push*) few=$pushed done=$pushed ;; esac
	rate_result "$cell" "$engine" "$3" ''
	case $cell in push*)
		result "$cell" "$engine" "$3" '' heap_bytes_per_message \
			"$(calc "$heap / $waiting" 1)"
		empty "$engine" ;;
	esac
}

# rate_result CELL ENGINE ROUND AT: what a round has done, after account.  No
# more than $few messages may be left over.
rate_result()
{
	cpu=$(($(cpu_time) - cpu0))
	[ $done -ge 0 ] || done=$deleted
	counted=$deleted
	case $1 in push*) counted=$pushed ;; esac
	kind "$2" pipeline || [ "$waiting" -le $few ] ||
		die "$1 on $2: $waiting messages were left over"
	[ $done -gt 0 ] || die "$1 on $2: nothing was done"

	rate=$(calc "$done / $net")
	result "$@" messages_per_second "$rate"
	result "$@" pushed "$pushed"
	result "$@" deleted "$deleted"
	result "$@" waiting "$waiting"
	# Not where a part of the work of many of them is still to be done.
	[ "$waiting" -gt $few ] || {
		result "$@" server_cpu_us_per_message \
			"$(calc "$cpu / $(getconf CLK_TCK) / $counted * 1e6" 1)"
		result "$@" wal_bytes_per_message "$(calc "$((lsn - lsn0)) / $counted")"
	}
	[ "$updated" -eq "$updated0" ] ||
		result "$@" hot_percent \
			"$(calc "100 * $((hot - hot0)) / $((updated - updated0))" 1)"
	say "$1 $2 $3${4:+, $4}: $rate messages/s" >&2
}

calc()	# expression [digits]
{
	awk "BEGIN { printf \"%.${2:-0}f\", $1 }"
}
