# test/check.d/names.sh - which tests test/check runs
#
# Sourced by test/check in the directory above test/.  $names are those that were asked
# for, with a space before and after each; the options are in $long, $older and $quick.

# known NAME...: each must be the name of a test.
known()
{
	for name in "$@"; do
		for file in "t/$name.pl" "../sql/$name.sql" "isolation/specs/$name.spec" \
			"model/$name.pml"
		do
			[ ! -f "$here/$file" ] || continue 2
		done
		die "there is no test \"$name\". Near:" $(cd "$here" &&
			for file in t/*.pl ../sql/*.sql isolation/specs/*.spec model/*.pml; do
				file=${file##*/}
				echo "${file%.*}"
			done | awk -v name="$name" -f check.d/near.awk)
	done
}

# Those that take more than 40 s
longest='models zaqar_conformance queue_web_browser site languages bench public_harness
	activejob_alone extension_update conformance_python activejob client_python
	conformance_node conformance_activejob lanes_room build queue_web celery
	shard_move_failover layers lanes more_queues_than_maps handlers_crash
	shard_move_faults history expired_messages conformance_python_async group_rate
	shard_move runner_turns depth_changes worker_databases durable_claims
	group_wakeups availability_map_room stress mediawiki segments_dump worker_rests
	segments depths zaqar worker_locks router_rights restore_jobs'

# chosen DIRECTORY ENDING: the names of the files there that are to run
chosen()
{
	for name in $(cd "$1" && ls); do
		name=${name%.$2}
		case $names in "  " | *" $name "*) echo "$name" ;; esac
	done
}

# choose: sets $all to the TAP tests, each with its mode: with the library preloaded
# ("preloaded"), or without ("plain").  What takes longest begins first.  t/models.pl runs the models that are named in $models, or all.
choose()
{
	models=
	case $names in
		*" models "*) ;;
		*)
			for name in $(cd test/model && ls *.pml); do
				case $names in *" ${name%.pml} "*) models="$models ${name%.pml}" ;; esac
			done
			;;
	esac
	[ -z "$models" ] || names="${names}models "
	export models
	all=
	wanted=$(chosen test/t pl | tr '\n' ' ')
	for name in $longest $wanted; do
		file=test/t/$name.pl
		case " $all $wanted" in
			*":$file "*) continue ;;
			*" $name "*) ;;
			*) continue ;;
		esac
		if [ -n "$older" ]; then
			! grep -q '\boldinstall\b' "$file" || all="$all preloaded:$file"
			continue
		fi
		if [ "$names" != "  " ]; then
			:
		elif [ -n "$quick" ]; then
			grep -q '^# test/check -q ' "$file" || continue
		elif [ -z "$long" ]; then
			! grep -q '^# test/check -a ' "$file" || continue
		fi
		all="$all preloaded:$file"
		[ -z "$unpreloaded" ] || ! grep -q '^# test/check -q ' "$file" ||
			all="$all plain:$file"
	done
}
