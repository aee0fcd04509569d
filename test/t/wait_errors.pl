# queue_wait ends with an error: when it is canceled, where it cannot wait, and
# where its role has no right to the queue.
#
# test/check -q runs it, too.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

start_server();
value(q{SELECT queue_create('q')});
my ($job, @jobs);

# --- cancelled ---

$job = begin("SET statement_timeout = 300;\n" . wait_sql('q', $long));
finish($job);
like($job->{err}, qr/ERROR:  57014: .*statement timeout/,
	'a statement timeout ends the wait');
@jobs = begin_several(1, $long);
value('SELECT pg_cancel_backend(' . waiter_pid() . ')');
finish($jobs[0]);
like($jobs[0]->{err}, qr/ERROR:  57014: .*user request/,
	'pg_cancel_backend does');
@jobs = begin_several(1, $long);
value('SELECT pg_terminate_backend(' . waiter_pid() . ')');
finish($jobs[0]);
like($jobs[0]->{err}, qr/FATAL:  57P01: /, 'pg_terminate_backend does');

# The first session in the line ends; those behind it are woken nevertheless.
@jobs = begin_several(1, $long);
my $pid = waiter_pid();
push @jobs, begin_wait('q', $long, after => q{SELECT count(*) FROM queue_pop('q')});
wait_for_waiters(2);
value("SELECT pg_cancel_backend($pid)");
finish($jobs[0]);
value(q{SELECT queue_push('q', '1')});
is((result($jobs[1]))[0], 't', 'others are woken after a cancel');
@jobs = begin_several(1, $long);
$pid = waiter_pid();
push @jobs, begin_wait('q', $long, after => q{SELECT count(*) FROM queue_pop('q')});
wait_for_waiters(2);
value("SELECT queue_push('q', '1'), pg_terminate_backend($pid)");
finish($jobs[0]);
is((result($jobs[1]))[0], 't', 'and after a termination together with a push');
is(value(q{SELECT total FROM queue_stats('q')}), '0', 'nothing is left');

# The client of the first session in the line is gone, which the server does not
# know: the wake-up is not lost with it.
is_woken(
	'another session gets what a dead client waited for',
	sub {
		@jobs = begin_several(1, $long);
		$pid = waiter_pid();
		push @jobs, begin_wait('q', $long, after => q{SELECT count(*) FROM queue_pop('q')});
		wait_for_waiters(2);
		$jobs[0]->{run}->kill_kill;
		value(q{SELECT queue_push('q', '1')});
		my @result = result($jobs[1]);
		$node->poll_query_until($db, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid");
		return @result;
	});
ok( $node->poll_query_until(
		$db, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid"),
	'the session of the dead client ends');

# --- where it cannot wait ---

value(
	q{CREATE PROCEDURE plain(INOUT r boolean) LANGUAGE plpgsql AS 'BEGIN CALL queue_wait(''q'', 200, r); END'}
);
my %nowhere = (
	'transaction block' => q{BEGIN; CALL queue_wait('q', 20000); COMMIT},
	'several in one message' => q{SELECT 1\; CALL queue_wait('q', 20000)},
	'function' =>
	  q{CREATE FUNCTION pg_temp.f() RETURNS boolean LANGUAGE plpgsql AS 'DECLARE r boolean; BEGIN CALL queue_wait(''q'', 20000, r); RETURN r; END'; SELECT pg_temp.f()},
	'procedure with SECURITY DEFINER' =>
	  q{CREATE PROCEDURE pg_temp.p(INOUT r boolean) LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN CALL queue_wait(''q'', 20000, r); END'; CALL pg_temp.p(NULL)},
	'procedure with SET' =>
	  q{CREATE PROCEDURE pg_temp.p(INOUT r boolean) LANGUAGE plpgsql SET work_mem = '1MB' AS 'BEGIN CALL queue_wait(''q'', 20000, r); END'; CALL pg_temp.p(NULL)},
	'block with an exception handler' =>
	  q{DO $$DECLARE r boolean; BEGIN CALL queue_wait('q', 20000, r); EXCEPTION WHEN division_by_zero THEN NULL; END$$},
	'DO in a transaction block' =>
	  q{BEGIN; DO $$DECLARE r boolean; BEGIN CALL queue_wait('q', 20000, r); END$$; COMMIT});
foreach my $where (sort keys %nowhere)
{
	is(state_of($nowhere{$where}), '25001', "$where: it cannot wait");
	is(state_of($nowhere{$where} =~ s/20000|200/0/r),
		'none', "$where: it can probe once");
}
like(
	($node->psql($db, q{BEGIN; CALL queue_wait('q', 1)}))[2],
	qr/HINT:  Call it by itself, with autocommit, or with a timeout of 0/,
	'a hint says what to do');
value(q{SELECT queue_push('q', '1')});
is(state_of(q{BEGIN; CALL queue_wait('q', 20000); COMMIT}),
	'25001', 'whether or not something is there');
is(finish(begin(q{BEGIN; CALL queue_wait('q', 0); COMMIT})),
	't', 'which a probe finds');
value(q{SELECT queue_pop('q')});

# A pipeline, in which what comes before it has not committed
value('CREATE TABLE piped ()');

sub pipeline
{
	my ($timeout) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir() . '/pipeline.sql';
	my ($out, $err) = ('', '');

	append_to_file($file, qq{\\startpipeline
INSERT INTO piped DEFAULT VALUES;
CALL queue_wait('q', $timeout);
\\endpipeline
});
	IPC::Run::run(
		[ 'pgbench', '-n', '-t', '1', '-M', 'extended', '-f', $file, $node->connstr($db) ],
		'>', \$out, '2>', \$err, IPC::Run::timer(180));
	return $err;
}

like(pipeline(200), qr/queue_wait\(\) cannot wait here/, 'pipeline: it cannot wait');
is(value('SELECT count(*) FROM piped'), '0', 'and all of the pipeline is rolled back');
unlike(pipeline(0), qr/ERROR/, 'pipeline: it can probe once');
is(value('SELECT count(*) FROM piped'), '1', 'and the rest is done');

# A procedure, or DO, that is no transaction of its own can
is(state_of(q{DO $$DECLARE r boolean; BEGIN CALL queue_wait('q', 200, r); END$$}),
	'none', 'DO waits');
$job = begin(q{DO $$DECLARE r boolean; BEGIN CALL queue_wait('q', 600000, r); RAISE NOTICE 'ready: %', r; END$$});
$node->poll_query_until($db,
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'DO %' AND wait_event_type = 'Extension'}
);
is( value(
		q{SELECT count(*), count(backend_xid), count(backend_xmin) FROM pg_stat_activity WHERE query LIKE 'DO %' AND wait_event_type = 'Extension'}
	),
	'1|0|0',
	'a procedure holds nothing while it waits');
value(q{SELECT queue_push('q', '1')});
finish($job);
like($job->{err}, qr/ready: t/, 'a procedure is woken');
value(q{SELECT queue_pop('q')});
is(finish(begin('CALL plain(NULL)')), 'f', 'one in another');

# --- arguments and rights ---

is(state_of(q{CALL queue_wait(NULL, 0)}), '22004', 'no name');
is(state_of(q{CALL queue_wait('a b', 0)}), '22023', 'a bad name');
is(state_of(q{CALL queue_wait('q', NULL)}), '22004', 'no timeout');
is(state_of(q{CALL queue_wait('q', -1)}), '22023', 'a negative one');
value(q{CREATE ROLE nobody LOGIN; CREATE ROLE producer LOGIN IN ROLE queue_producer; CREATE ROLE consumer LOGIN IN ROLE queue_consumer}
);
is(state_of(q{CALL queue_wait('q', 0)}, user => 'nobody'), '42501', 'a role without rights');
is(state_of(q{CALL queue_wait('q', 0)}, user => 'producer'), '42501', 'one that only pushes');
is(state_of(q{CALL queue_wait('q', 0)}, user => 'consumer'), 'none', 'one that claims');
is(state_of(q{SET default_transaction_read_only = on; CALL queue_wait('q', 1000)}),
	'25006', 'read-only');
is(state_of(q{SET default_transaction_isolation = 'serializable'; CALL queue_wait('q', 100)}),
	'none', 'serializable');
is(state_of(q{SET default_transaction_isolation = 'repeatable read'; CALL queue_wait('q', 100)}),
	'none', 'repeatable read');

# A right that is taken away meanwhile
$job = begin_wait('q', $long, before => "SET SESSION AUTHORIZATION consumer;\n");
wait_for_waiters(1);
value(q{SELECT queue_grant('q', 'producer', 'claim')});
value(q{SELECT queue_push('q', '1')});
finish($job);
like($job->{err}, qr/ERROR:  42501/, 'a right taken away meanwhile');
value(q{SELECT queue_revoke('q', 'producer', 'claim')});
value(q{SELECT FROM queue_pop('q')});

# Another project
$job = begin_wait('q', $long, before => "SET queue.project = 'p';\n");
wait_for_waiters(1);
value(q{SELECT queue_push('q', '1')});
still_waits($job, 'of another project nothing wakes');
value(q{SET queue.project = 'p'; SELECT queue_push('q', '1'); RESET queue.project});
is((result($job))[0], 't', 'of the own something does');
value(q{SELECT FROM queue_pop('q')});

# --- standby ---

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby);
is(state_of(q{CALL queue_wait('q', 1000)}, node => $standby),
	'25006', 'standby: it is refused');
is($standby->safe_psql($db, q{SELECT queue_channel('q')}),
	value(q{SELECT queue_channel('q')}), 'standby: the name of the channel');
$standby->stop;

unlike(slurp_file($node->logfile), qr/(?:PANIC|TRAP|WARNING):/,
	'nothing bad in the log');
$one->quit;
$node->stop;
done_testing();
