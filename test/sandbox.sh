# test/sandbox.sh - a throwaway PostgreSQL with this extension in it
#
# Sourced by the programs in test/ and test/bench/, which begin with
#
#	. "$here/sandbox.sh"
#	sandbox "$@"
#
# sandbox starts the script that called it a second time, and returns only in
# that second run.  The first run, as the caller, installs the packages
# that are missing, makes a temporary directory with a copy of the checkout in
# it, waits for the second run, and cleans up, however that ended.  The second
# run is by an unprivileged user (the caller, or "postgres" if that is root: a
# server does not run as root, and nothing is built as root), in its own
# session, so that one signal reaches all of it.
#
# Nothing but Debian packages is installed into the system, none of which runs
# a service.  "make install" writes where pg_config says, and PostgreSQL finds
# its files relative to its programs, so the second run copies the programs,
# links the rest of that tree beside them, and installs there.  An
# extension_control_path (PostgreSQL 18) does not exist in 15.  An installation
# into the system would need root, be visible in all clusters, and make two
# runs at once conflict.
#
# The server listens on a socket in the temporary directory only; no cluster
# that exists is changed, and the package "postgresql" is prevented from
# creating one.

sandbox()
{
	if [ -z "${QUEUE_SANDBOX-}" ]; then
		sandbox_first_run "$@"
		exit
	fi
	# Ended by the first run: it passes signals on and clears up.
	cd "$QUEUE_SANDBOX/queue"
	sandbox_tree
}

say()
{
	printf '%s\n' "$*"
}

# The text is the last thing that a user reads: say what to do about it.
die()
{
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 1
}

#
# First run
#

# Version 1.2, which the tests of updates update; from the history, or beside the copy
# of a checkout that test/versions has made.
sandbox_before=ed1178a5eaa5f07efe5fb14909cf19ebf0898889
sandbox_path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
sandbox_clusters=/etc/postgresql-common/createcluster.d

sandbox_first_run()
{
	umask 022
	sandbox_dir=
	sandbox_group=
	sudo=
	[ "$(id -u)" -eq 0 ] || sudo=sudo
	trap 'exit 129' HUP
	trap 'exit 130' INT
	trap 'exit 143' TERM
	trap sandbox_clear EXIT
	sandbox_packages
	sandbox_directory

	# A copy: the directory above may be closed to the other user, and a
	# build leaves objects behind.
	mkdir "$sandbox_dir/queue" "$sandbox_dir/tmp"
	(cd "$here/.." && tar -c -f - --exclude=./.git --exclude='*.o' \
		--exclude='*.so' --exclude=./tmp_check \
		--exclude=./results --exclude=./log .) |
		tar -x -f - -C "$sandbox_dir/queue" --no-same-owner
	chmod -R u+rwX,go-w "$sandbox_dir/queue"
	git -c safe.directory='*' -C "$here/.." archive \
		-o "$sandbox_dir/queue-1.2.tar" "$sandbox_before" 2>/dev/null ||
		cp "$here/../../queue-1.2.tar" "$sandbox_dir" 2>/dev/null || :
	mkdir "$sandbox_dir/unpacked"
	for package in $unpack; do
		sandbox_unpack "$package" || say "cannot download $package"
	done
	sandbox_prepare
	[ -z "$sandbox_user" ] ||
		chown -R -h "$sandbox_user" "$sandbox_dir"

	# A clean environment, so that no PGHOST or MAKEFLAGS of the caller
	# decides what is tested.  setsid starts a process group: its leader's
	# id is $!, since a background process leads none so far.  A script
	# that does not lie in test/ says in sandbox_script where it does.
	setsid $sandbox_as env -i QUEUE_SANDBOX="$sandbox_dir" \
		PG_CONFIG="$PG_CONFIG" HOME="$sandbox_dir" ASSERT="${ASSERT-}" \
		USER="${sandbox_user:-$(id -un)}" LOGNAME="${sandbox_user:-$(id -un)}" \
		TMPDIR="$sandbox_dir/tmp" LC_ALL=C.UTF-8 TERM="${TERM:-dumb}" \
		PATH="$sandbox_path:$sandbox_dir/unpacked/usr/sbin" \
		sh "$sandbox_dir/queue/${sandbox_script:-test/${0##*/}}" "$@" </dev/null &
	sandbox_group=$!
	wait "$sandbox_group"
	exit
}

# A directory in which the unprivileged user may write and run programs:
# TMPDIR may be closed to others, or mounted noexec.
sandbox_directory()
{
	sandbox_user=
	sandbox_as=
	if [ "$(id -u)" -eq 0 ]; then
		sandbox_user=postgres
		id "$sandbox_user" >/dev/null 2>&1 || sandbox_user=nobody
		sandbox_as="setpriv --reuid=$sandbox_user
			--regid=$(id -g "$sandbox_user") --init-groups --"
	fi
	for parent in "${TMPDIR:-/tmp}" /tmp /var/tmp; do
		# A socket's path has 107 bytes at most.
		[ "${#parent}" -le 60 ] || continue
		sandbox_dir=$(mktemp -d "$parent/queue.XXXXXX" 2>/dev/null) ||
			continue
		printf '#!/bin/sh\n: >"$0.written"\n' >"$sandbox_dir/probe"
		chmod 755 "$sandbox_dir/probe"
		[ -z "$sandbox_user" ] ||
			chown -R "$sandbox_user" "$sandbox_dir"
		if $sandbox_as "$sandbox_dir/probe" 2>/dev/null; then
			rm -f "$sandbox_dir/probe" "$sandbox_dir/probe.written"
			return 0
		fi
		rm -rf "$sandbox_dir"
	done
	sandbox_dir=
	die "cannot write and run programs in TMPDIR, /tmp or /var/tmp:" \
		"set TMPDIR to where ${sandbox_user:-$(id -un)} can"
}

# A script may define it anew, to say something at the end of the first run.
# Its failure is the script's.
sandbox_exit()
{
	:
}

# A script may define it anew, to name more packages: "missing" ones, those
# that only some tests need in "optional" (VERSION stands for the server's),
# and in "unpack" those whose programs are wanted without an installation,
# since that would start a service.
sandbox_more()
{
	:
}

# A script may define it anew, to put more into $sandbox_dir; PG_CONFIG is
# known by then.
sandbox_prepare()
{
	:
}

# sandbox_unpack PACKAGE: its files, below $sandbox_dir/unpacked.
sandbox_unpack()
{
	(
		cd "$sandbox_dir/unpacked"
		apt-get -q download "$1" >/dev/null 2>&1 &&
			dpkg -x "$1"_*.deb .
	)
}

# What sandbox_prove needs.
sandbox_tap()
{
	command -v prove >/dev/null 2>&1 || missing="$missing perl"
	perl -MIPC::Run -e 1 2>/dev/null || missing="$missing libipc-run-perl"
}

# Runs on every way out.
sandbox_clear()
{
	sandbox_status=$?
	trap '' HUP INT TERM
	sandbox_installed
	if [ -n "$sandbox_group" ]; then
		# The group may not be there yet.
		kill -s TERM -- "$sandbox_group" "-$sandbox_group" 2>/dev/null || :
		tries=50
		while kill -s 0 -- "-$sandbox_group" 2>/dev/null; do
			tries=$((tries - 1))
			if [ "$tries" -eq 0 ]; then
				kill -s KILL -- "-$sandbox_group" 2>/dev/null || :
				break
			fi
			sleep 0.2
		done
	fi
	# Servers live in sessions of their own.
	if [ -n "$sandbox_dir" ]; then
		find "$sandbox_dir" -name postmaster.pid -exec dirname {} \; |
			while IFS= read -r data; do
				$sandbox_as "$sandbox_dir${PG_CONFIG%/*}/pg_ctl" stop \
					-s -m immediate -D "$data" || :
			done >/dev/null 2>&1
	fi
	sandbox_exit || sandbox_status=1
	[ -z "$sandbox_dir" ] || rm -rf "$sandbox_dir"
	exit "$sandbox_status"
}

# Sets PG_CONFIG, after installing what is missing.  A PG_CONFIG that the
# caller set is taken as it is, the pg_config in PATH if it belongs to a
# server that extensions can be built for, else the distribution's default.
sandbox_packages()
{
	missing=
	optional=
	unpack=
	for tool in gcc make; do
		command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
	done
	[ -f /usr/include/stdio.h ] || missing="$missing libc6-dev"
	sandbox_more

	if [ -n "${PG_CONFIG-}" ]; then
		command -v "$PG_CONFIG" >/dev/null ||
			die "there is no program $PG_CONFIG:" \
				"set PG_CONFIG to a pg_config or leave it unset"
	elif sandbox_complete pg_config; then
		PG_CONFIG=pg_config
	else
		PG_CONFIG=
	fi
	if [ -z "$PG_CONFIG" ]; then
		missing="$missing postgresql"
	fi
	if [ -n "$missing" ]; then
		sandbox_install
	elif [ -n "$optional$unpack" ]; then
		[ -z "$sudo" ] || sudo='sudo -n'
		if ! (sandbox_install) 2>/dev/null; then
			say "cannot install$optional $unpack: some tests are skipped"
			unpack=
		fi
	fi
	sandbox_complete "$PG_CONFIG" ||
		die "$PG_CONFIG belongs to no server that extensions can be built for:" \
			"install that server and its development files"
	PG_CONFIG=$("$PG_CONFIG" --bindir)/pg_config
}

sandbox_complete()
{
	bindir=$("$1" --bindir 2>/dev/null) &&
		[ -x "$bindir/initdb" ] && [ -x "$bindir/pg_config" ] &&
		[ -f "$("$1" --pgxs)" ] &&
		[ -f "$("$1" --includedir-server)/postgres.h" ]
}

sandbox_install()
{
	command -v apt-get >/dev/null 2>&1 ||
		die "this is no Debian; install for yourself:$missing$optional $unpack"
	[ -z "$sudo" ] || command -v sudo >/dev/null 2>&1 ||
		die "needs root or sudo to install:$missing$optional $unpack"
	say "installing packages ..."
	sandbox_apt update
	if [ -z "$PG_CONFIG" ]; then
		version=$(apt-cache depends postgresql |
			sed -n 's/.*Depends: postgresql-\([0-9][0-9]*\)$/\1/p')
		[ -n "$version" ] ||
			die "this distribution has no package postgresql: set PG_CONFIG"
		missing="${missing% postgresql} postgresql-$version"
		missing="$missing postgresql-server-dev-$version"
		PG_CONFIG=/usr/lib/postgresql/$version/bin/pg_config
	fi

	# Not every server's version has all packages.
	case $optional in *VERSION*)
		[ -n "${version-}" ] ||
			version=$("$PG_CONFIG" --version | sed 's/^[^0-9]*\([0-9]*\).*/\1/')
		wanted=$optional
		optional=
		for package in $wanted; do
			package=$(echo "$package" | sed "s/VERSION/$version/")
			! apt-cache show "$package" >/dev/null 2>&1 ||
				optional="$optional $package"
		done
	esac

	# Of what is unpacked only the libraries are installed, those of Python
	# too, no JavaScript; of alternatives the first.
	libraries=
	for package in $unpack; do
		libraries="$libraries $(apt-cache depends --important "$package" |
			awk '/Depends:/ && !more && !/: libjs-/ &&
					$2 ~ /^(lib|python3-)/ { print $2 }
				{ more = /\|Depends:/ }')"
	done

	# Without this the package makes a cluster and starts it.
	$sudo mkdir -p "$sandbox_clusters"
	printf 'create_main_cluster = false\n' |
		$sudo tee "$sandbox_clusters/queue-$$.conf" >/dev/null
	sandbox_add $missing

	# A package that is not available does not prevent the others.
	if [ -n "$optional$libraries" ] &&
		! (sandbox_add $optional $libraries) 2>/dev/null
	then
		for package in $optional $libraries; do
			(sandbox_add "$package") 2>/dev/null ||
				say "cannot install $package: some tests are skipped"
		done
	fi
	sandbox_installed
}

# sandbox_add [PACKAGE...]: only what is missing; nothing that runs here is to
# be upgraded for us.
sandbox_add()
{
	[ $# -gt 0 ] || return 0
	sandbox_apt install --no-install-recommends --no-upgrade "$@"
	say "installed: $*"
}

# That is only for the time of the installation.
sandbox_installed()
{
	[ ! -e "$sandbox_clusters/queue-$$.conf" ] ||
		$sudo rm -f "$sandbox_clusters/queue-$$.conf"
}

# Another apt may hold a lock, that of a second run among them.
sandbox_apt()
{
	tries=60
	until said=$($sudo env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 \
		NEEDRESTART_SUSPEND=1 \
		apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" 2>&1 </dev/null)
	do
		tries=$((tries - 1))
		case $tries:$said in
			0:*) ;;
			*'Could not get lock'* | *'Unable to lock'*)
				sleep 5
				continue
				;;
		esac
		printf '%s\n' "$said" >&2
		die "apt-get $1 failed"
	done
}

#
# Second run
#

# The copy of the PostgreSQL installation; see the top.
sandbox_tree()
{
	root=$QUEUE_SANDBOX
	bindir=$("$PG_CONFIG" --bindir)
	pkglibdir=$("$PG_CONFIG" --pkglibdir)
	sharedir=$("$PG_CONFIG" --sharedir)
	mkdir -p "$root$bindir" "$root${pkglibdir%/*}" "$root${sharedir%/*}"
	for program in "$bindir"/initdb "$bindir"/p[go]* "$bindir"/psql \
		"$bindir"/*db "$bindir"/*user
	do
		[ ! -f "$program" ] || [ -e "$root$program" ] ||
			cp -L "$program" "$root$bindir/"
	done
	cp -R -s "$pkglibdir" "$root$pkglibdir"
	cp -R -s "$sharedir" "$root$sharedir"
	for dir in "$("$PG_CONFIG" --includedir)" \
		"$("$PG_CONFIG" --includedir-server)"
	do
		[ -e "$root$dir" ] && continue
		mkdir -p "$root${dir%/*}"
		ln -s "$dir" "$root$dir"
	done
	# Not the one that may be installed already.
	rm -f "$root$pkglibdir/queue.so" "$root$sharedir/extension/queue.control" \
		"$root$sharedir/extension/queue_proxy.control" \
		"$root$sharedir/extension/queue_pgmq.control" \
		"$root$sharedir/extension"/queue--*.sql \
		"$root$sharedir/extension"/queue_proxy--*.sql \
		"$root$sharedir/extension"/queue_pgmq--*.sql

	PG_CONFIG=$root$bindir/pg_config
	PATH=$root$bindir:$PATH
	pkglibdir=$root$pkglibdir
	export PG_CONFIG PATH
}

# sandbox_build [MAKE-ARGUMENT...]: builds the extension and installs it into
# that copy.
sandbox_build()
{
	if ! make -s -j2 PG_CONFIG="$PG_CONFIG" "$@" \
		>"$QUEUE_SANDBOX/build.log" 2>&1 ||
		! make -s PG_CONFIG="$PG_CONFIG" install \
		>>"$QUEUE_SANDBOX/build.log" 2>&1
	then
		tail -n 60 "$QUEUE_SANDBOX/build.log" >&2
		return 1
	fi
}

# sandbox_start [SETTING...]: a new server with these lines in its
# configuration.  Sets the environment so that psql finds it.
sandbox_start()
{
	data=$QUEUE_SANDBOX/data
	rm -rf "$data"
	initdb -D "$data" -U postgres -A trust -E UTF8 --locale=C.UTF-8 -N \
		>"$QUEUE_SANDBOX/initdb.log" 2>&1 || {
		cat "$QUEUE_SANDBOX/initdb.log" >&2
		die "initdb failed"
	}
	{
		printf "%s\n" "listen_addresses = ''" \
			"unix_socket_directories = '$QUEUE_SANDBOX'" \
			"fsync = off" "log_min_messages = warning" "$@"
		sandbox_settings
	} >>"$data/postgresql.conf"
	pg_ctl start -s -w -D "$data" -l "$QUEUE_SANDBOX/server.log" || {
		cat "$QUEUE_SANDBOX/server.log" >&2
		die "the server did not start"
	}
	PGHOST=$QUEUE_SANDBOX
	PGUSER=postgres
	PGDATABASE=postgres
	export PGHOST PGUSER PGDATABASE
}

# A chroot may have no usable /dev/shm.  To compile a query takes more processor time than
# to run it once, as the tests do.
sandbox_settings()
{
	printf 'jit = off\n'
	if ! (: >"/dev/shm/queue.$$") 2>/dev/null; then
		printf 'dynamic_shared_memory_type = mmap\n'
	fi
	rm -f "/dev/shm/queue.$$"
}

sandbox_stop()
{
	pg_ctl stop -s -m fast -D "$QUEUE_SANDBOX/data"
}

# From here on sandbox_prove copies the data directory of a new server instead of
# making it, which takes a second of CPU time each: a program before initdb in PATH
# does that, as PostgreSQL's own tests do from version 17 on.
sandbox_template()
{
	template=$QUEUE_SANDBOX/template
	mkdir "$template"
	cat >"$template/initdb" <<-END
		#!/bin/sh
		if [ "\$1 \${3-} \${4-} \${5-} \${6-}" = '-D -A trust -N ' ]; then
			exec cp -R -p '$template/data' "\$2"
		fi
		exec '$(command -v initdb)' "\$@"
	END
	chmod +x "$template/initdb"
	initdb -D "$template/data" -A trust -N >"$QUEUE_SANDBOX/initdb.log" 2>&1 || {
		cat "$QUEUE_SANDBOX/initdb.log" >&2
		die "initdb failed"
	}
}

# sandbox_prove FILE: runs one TAP test as "make installcheck" would, with what
# $preload names in shared_preload_libraries; its data and logs are in
# $prove_dir, which a caller may set.  PostgreSQL's own modules come with its
# development files.  With $prove_limit, ends prove after so many seconds, and
# returns 124: what prove has started goes on.
sandbox_prove()
{
	prove_dir=${prove_dir:-$QUEUE_SANDBOX/tap/tmp_check}
	mkdir -p "$prove_dir"
	{
		sandbox_settings
		printf "shared_preload_libraries = '%s'\n" "${preload-}"
	} >"$prove_dir/${1##*/}.conf"
	PATH=$QUEUE_SANDBOX/template:$PATH INITDB_TEMPLATE=$QUEUE_SANDBOX/template/data \
		PERL5LIB=$pkglibdir/pgxs/src/test/perl \
		PG_REGRESS=$pkglibdir/pgxs/src/test/regress/pg_regress \
		TEMP_CONFIG=$prove_dir/${1##*/}.conf \
		TESTDIR=${prove_dir%/*} TESTDATADIR=$prove_dir \
		TESTLOGDIR=$prove_dir/log \
		PG_TEST_PORT_DIR=$QUEUE_SANDBOX/ports top_builddir=$pkglibdir/pgxs \
		timeout --foreground "${prove_limit:-0}" \
		prove --verbose --nocolor "$1" </dev/null
}
