# What test/check does with TAP tests: it says when a file begins and how it ends, ends one
# that hangs with all that it has started, counts it as failed, and lists what was skipped.
# It chooses the files by their names and by its options.

use strict;
use warnings;

use File::Basename;
use File::Spec;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'this is no Linux' unless -r '/proc/self/environ';

my $top = File::Spec->rel2abs(dirname(__FILE__) . '/../..');
my $dir = PostgreSQL::Test::Utils::tempdir();
my $pg_config = $ENV{PG_CONFIG} || 'pg_config';

# The server does not end by itself, as one of its processes is stopped; the child has a
# session of its own, and ignores SIGTERM.
append_to_file(
	"$dir/hangs.pl", q{
	use strict;
	use warnings;
	use POSIX;
	use PostgreSQL::Test::Cluster;
	use PostgreSQL::Test::Utils;
	use Test::More;

	my $node = PostgreSQL::Test::Cluster->new('main');
	$node->init;
	$node->start;
	my $session = $node->background_psql('postgres');
	my ($pid) = $node->safe_psql('postgres',
		q{SELECT pid FROM pg_stat_activity WHERE application_name ~ 'hangs' AND pid <> pg_backend_pid()}) =~ /(\d+)/;
	kill 'STOP', $pid or die $!;
	my $child = fork;
	if ($child == 0)
	{
		setsid;
		$SIG{TERM} = 'IGNORE';
		sleep 1 while 1;
	}
	ok(1, 'has begun');
	append_to_file("$ENV{HANGS}.new", "$$ $child $pid $node->{_pid}");
	rename "$ENV{HANGS}.new", $ENV{HANGS} or die $!;
	sleep 1 while 1;
});
append_to_file("$dir/skips.pl",
	"use Test::More; plan skip_all => 'python3-x is not installed';\n");
append_to_file("$dir/skips_one.pl", q{
	use Test::More;
	ok(1, 'one');
	SKIP: { skip 'no y (apt install y)', 2 }
	done_testing();
});
append_to_file("$dir/fails.pl", "use Test::More; ok(0, 'one'); done_testing();\n");

# What test/check says of the files; a file hangs after so many seconds.
sub check
{
	my ($limit, @files) = @_;
	my ($out, $sandbox) = ('', "$dir/$limit");

	mkdir $_ or die $! foreach $sandbox, "$sandbox/logs";
	local $ENV{QUEUE_SANDBOX} = $sandbox;
	IPC::Run::run(
		[
			'sh', '-euc', q{
			. "$0/test/sandbox.sh"
			. "$0/test/check.d/tap.sh"
			pkglibdir=$("$1" --pkglibdir)
			PATH=$("$1" --bindir):$PATH
			limit=$2
			shift 2
			logs=$QUEUE_SANDBOX/logs
			sandbox_template
			prove_all "$@"
			for test in "$@"; do tap "$test"; done
			skips "$@"
			echo "$passed passed, $failed failed, $skipped skipped"
		}, $top, $pg_config, $limit, map { "preloaded:$dir/$_.pl" } @files
		],
		'>&', \$out);
	return $out;
}

# On a busy machine the file may not have begun to hang by then.
my $out;
$ENV{HANGS} = "$dir/pids";
for (my $limit = 8; !-e $ENV{HANGS} && $limit <= 1024; $limit *= 2)
{
	$out = check($limit, 'hangs', 'fails');
}
my ($test, $child, $stopped, $server) = split ' ', slurp_file($ENV{HANGS});
like($out, qr/^\d\d:\d\d:\d\d hangs, preloaded: begins$/m, 'a file begins');
like($out, qr/^\d\d:\d\d:\d\d hangs, preloaded: fails after \d+ s$/m, 'it hangs: it fails');
like($out, qr/^hangs, preloaded +\d passed, 1 failed$/m, 'it counts as failed');
like($out, qr/^# did not end within \d+ s$/m, 'and this is why');
like($out, qr/^fails, preloaded +0 passed, 1 failed$/m, 'the next file is run');
foreach my $process (
	[ 'the test', $test ],
	[ 'a child', $child ],
	[ 'a stopped process of its server', $stopped ],
	[ 'its server', $server ])
{
	my ($what, $pid) = @$process;
	my $until = time + $PostgreSQL::Test::Utils::timeout_default;

	# One that has ended, and for which nobody waits, is a zombie.
	sleep 1 while -e "/proc/$pid" && readlink "/proc/$pid/exe" && time < $until;
	ok(!readlink "/proc/$pid/exe", "$what has ended");
}

$out = check(600, 'skips', 'skips_one', 'fails');
like($out, qr/^\S+ skips_one, preloaded: ends after \d+ s$/m, 'a file ends');
is($out =~ s/.*?^(?=skipped)//msr,
	"skipped: skips: python3-x is not installed\n"
	  . "skipped: skips_one: no y (apt install y)\n"
	  . "1 passed, 1 failed, 3 skipped\n",
	'what was skipped is said at the end');

# --- Which tests run ---

# What is chosen with these settings and names: TAP tests, models, regression tests
sub chooses
{
	my ($settings, @names) = @_;
	my $chosen = '';

	IPC::Run::run(
		[
			'sh', '-euc', q{
			cd "$0"
			here=$0/test
			. test/sandbox.sh
			. test/check.d/names.sh
			long= older= quick= unpreloaded=
			eval "$1"
			shift
			names=" $* "
			known "$@"
			choose
			echo $all "[$(echo $models)]" $(chosen sql sql)
		}, $top, $settings, @names
		],
		'>&', \$chosen);
	return $chosen;
}

is(chooses('', 'cancel'), "preloaded:test/t/cancel.pl [] cancel\n", 'a name of two kinds');
is(chooses('unpreloaded=yes', 'worker', 'cancel'),
	"preloaded:test/t/cancel.pl preloaded:test/t/worker.pl plain:test/t/worker.pl [] cancel\n",
	'without preloading: what -q runs');
is(chooses('', 'availability'), "preloaded:test/t/models.pl [availability]\n", 'a model');
is(chooses('', 'availability', 'models'), "preloaded:test/t/models.pl []\n", 'all models');
like(chooses('', 'clam_order'), qr/no test "clam_order". Near: claim_order$/m, 'a wrong letter');
like(chooses('', 'laim_order'), qr/Near: claim_order claim_order_without_worker$/m, 'a part of a name');
like(chooses('', 'r'), qr/no test "r". Near:[\w -]+$/, 'what is near are names only');
unlike(chooses(''), qr/\bmodels\.pl/, 'without -a, not what takes long');
like(chooses('long=yes'), qr/\bmodels\.pl/, '-a: that too');
unlike(chooses('quick=yes'), qr/plain:|\bmodels\.pl/, '-q: the core, preloaded');
foreach my $options ('-a -q', '-a -o pg_config', '-q -o ./pg_config', '-x')
{
	my $said = '';
	IPC::Run::run([ "$top/test/check", split ' ', $options ], '>&', \$said);
	like($said, qr/^check: usage: /m, "test/check $options: not allowed");
}

done_testing();
