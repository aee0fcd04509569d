# All functions with arguments of all kinds, by several roles at once: no
# crash, no unexpected SQLSTATE, nothing changed by a call that failed, nothing
# that does not heed statement_timeout.  QUEUE_FUZZ_SECONDS, QUEUE_FUZZ_SESSIONS,
# QUEUE_FUZZ_SEED and QUEUE_FUZZ_FACTOR make it another one (test/fuzz sets
# them).
#
# test/check -a runs it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $seconds = $ENV{QUEUE_FUZZ_SECONDS} || 7;
my $sessions = $ENV{QUEUE_FUZZ_SESSIONS} || 6;
my $seed = $ENV{QUEUE_FUZZ_SEED} || 1 + int rand 1000000;
my $factor = $ENV{QUEUE_FUZZ_FACTOR} || 1;
my $dir = "$FindBin::RealBin/../fuzz.d";

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init(extra => [ '--encoding=UTF8', '--locale=C' ]);
$node->append_conf(
	'postgresql.conf', qq(
max_connections = @{[ 3 * $sessions + 20 ]}
max_prepared_transactions = $sessions
jit = off
log_error_verbosity = verbose
log_min_messages = warning
log_statement = none
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
queue.min_message_ttl = 1
queue.max_push_count = 100
queue.max_message_size = 20000
));
$node->start;
$node->safe_psql('postgres', slurp_file("$dir/setup.sql"));
my $started =
  $node->safe_psql('postgres', 'SELECT pg_postmaster_start_time()');

$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;
$ENV{PGDATABASE} = 'postgres';
diag "seed $seed";
my ($out, $err) = run_command(
	[
		$^X, "$dir/load", '-s', $seconds, '-c', $sessions, '-r', $seed, '-x',
		$factor
	]);
note $out;
diag $err if $err ne '';
is(join("\n", grep { !/^#|^\S.* +\d+$/ } split /\n/, $out),
	'', "no defect was found (seed $seed)");
cmp_ok(($out =~ /^calls +(\d+)/m ? $1 : 0),
	'>', $seconds / $factor, 'there were calls');
for my $state (qw(22023 22004 42501))
{
	like($out, qr/^error $state +[1-9]/m, "some raised $state");
}

is($node->safe_psql('postgres', 'SELECT * FROM fuzz.violation LIMIT 5'),
	'', 'what was rolled back has changed nothing');
is($node->safe_psql('postgres', 'SELECT * FROM fuzz.orphans()'),
	'', 'no queue has left rows behind');
is( $node->safe_psql(
		'postgres', 'SELECT * FROM fuzz.drain() WHERE free <> claimed OR free = 0'),
	'',
	'all messages that were free are handed out');
is( $node->safe_psql(
		'postgres', q(
		SELECT bt_index_check(c.oid, true) FROM pg_class AS c
		WHERE c.relnamespace = 'queue_data'::regnamespace AND c.relkind = 'i')
		) =~ s/\n//gr,
	'',
	'amcheck finds the indexes in order');
is($node->safe_psql('postgres', 'SELECT pg_postmaster_start_time()'),
	$started, 'the server is the same one');
$node->stop;

# The load judges errors; none of these may ever occur.
my @log = grep {
	/PANIC|TRAP|FATAL:  XX|ERROR:  XX|WARNING:  XX|was terminated by|leak|still referenced|refcount|non-empty|don't own a lock|server process .* exited/
} split /\n/, slurp_file($node->logfile);
is(join("\n", @log[ 0 .. ($#log > 9 ? 9 : $#log) ]),
	'', 'nothing in the log is against the server');

done_testing();
