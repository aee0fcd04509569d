# test/check.d/tap.sh - runs TAP tests, and counts what passed
#
# Sourced by test/check, after sandbox.sh.  $logs is a directory for what they print.

passed=0
failed=0
skipped=0

# The seconds after which a file counts as hanging: the longest takes two minutes of
# processor time, of which a busy machine gives it a thirtieth.
limit=3600

# count NAME PASSED FAILED SKIPPED
count()
{
	printf '%-40s %5d passed, %d failed' "$1" "$2" "$3"
	[ "$4" -eq 0 ] || printf ', %d skipped' "$4"
	echo
	passed=$((passed + $2))
	failed=$((failed + $3))
	skipped=$((skipped + $4))
}

# The end of a file that shows why something failed.
show()
{
	[ -s "$1" ] || return 0
	printf -- '---- %s\n' "$1"
	tail -n "$2" "$1"
	printf -- '----\n'
}

# set_mode MODE
set_mode()
{
	mode=$1
	[ "$mode" = plain ] && preload= || preload=queue
	prove_dir=$QUEUE_SANDBOX/tap.$mode/tmp_check
}

# prove_all MODE:FILE...: one after the other, but those that another call has
# taken.  The tests mostly wait, so there are several calls at once.
prove_all()
{
	for test in "$@"; do
		set_mode "${test%%:*}"
		file=${test#*:}
		name=$(basename "$file" .pl)
		log=$logs/$name.$mode
		mkdir "$log" 2>/dev/null || continue
		began=$(date +%s)
		say "$(date +%T) $name, $mode: begins"
		status=0
		prove_limit=$limit sandbox_prove "$file" >"$log/output" 2>&1 || status=$?
		[ $status -ne 124 ] || end_file "$file"
		echo $status >"$log/status"
		[ $status -eq 0 ] && how=ends || how=fails
		say "$(date +%T) $name, $mode: $how after $(($(date +%s) - began)) s"
	done
}

# end_file FILE: ends all that it has started.  First the test itself, which would start
# servers again, and then these: after an immediate shutdown a server kills what does
# not end, even what is stopped (SIGSTOP).
end_file()
{
	echo "# did not end within $limit s" >>"$log/output"
	servers=
	for pid in $(started_by "$1"); do
		case $(readlink "/proc/$pid/exe") in
			*/postgres) servers="$servers $pid" ;;
			*) kill -s KILL "$pid" || : ;;
		esac
	done
	for signal in QUIT CONT; do
		[ -z "$servers" ] || kill -s $signal $servers || :
	done
	tries=100
	while [ $tries -gt 0 ] && [ -n "$(started_by "$1")" ]; do
		tries=$((tries - 1))
		sleep 0.2
	done
	for pid in $(started_by "$1"); do
		kill -s KILL "$pid" || :
	done
} >/dev/null 2>&1

# Processes have the name of the file's configuration in their environment.
started_by()
{
	grep -F -l -x -z "TEMP_CONFIG=$prove_dir/${1##*/}.conf" /proc/[0-9]*/environ |
		cut -d / -f 3
}

# tap MODE:FILE, which has been proved: every "ok" counts; what was planned and
# never reported has failed, and so has a file that ends with an error without a
# test that did.
tap()
{
	set_mode "${1%%:*}"
	name=$(basename "${1#*:}" .pl)
	log=$logs/$name.$mode
	status=$(cat "$log/status" 2>/dev/null || echo 1)
	set -- $(awk -v status="$status" '
		/^ok [0-9]+.* # [Tt][Oo][Dd][Oo]/     { good++; next }
		/^ok [0-9]+.* # [Ss][Kk][Ii][Pp]/     { skip++; next }
		/^ok [0-9]+/                          { good++; next }
		/^not ok [0-9]+.* # [Tt][Oo][Dd][Oo]/ { good++; next }
		/^not ok [0-9]+/                      { bad++; next }
		/\.\. skipped: /                      { skip++; next }
		/^1\.\.[0-9]+/                        { planned = substr($1, 4) }
		END {
			if (planned > good + bad + skip)
				bad += planned - good - skip - bad
			if (!bad && (status != 0 || good + skip == 0))
				bad = 1
			print good + 0, bad + 0, skip + 0
		}' "$log/output")
	count "$name, $mode" "$@"
	if [ "$2" -gt 0 ]; then
		grep -n -A 4 -E '^(not ok|#   Failed test)' "$log/output" | head -n 80
		show "$log/output" 80
		# The server's log holds every statement: leave them out.
		for server in "$prove_dir/log"/*"$name"*.log; do
			[ -f "$server" ] || continue
			grep -E '(ERROR|FATAL|PANIC|WARNING|DETAIL|HINT):  |TRAP|signal' \
				"$server" >"$log/server" || :
			show "$log/server" 40
		done
		show "$prove_dir/log/regress_log_$name" 60
	fi
}

# skips MODE:FILE...: what was not tested, and why
skips()
{
	for test in "$@"; do
		set_mode "${test%%:*}"
		name=$(basename "${test#*:}" .pl)
		sed -n -E "s/^(ok [0-9]+.* # skip|.* \.\. skipped:) */skipped: $name: /Ip" \
			"$logs/$name.$mode/output" 2>/dev/null || :
	done | sort -u
}
