# queue_ready names the queues from which something can be claimed, at every
# moment, also after a restart and without a worker.
#
# test/check -q runs it, too.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use Test::More;
use WorkerTest;

start_server();

# --- queue_ready ---

is(ready(), '', 'no queue is ready yet');
value(q{SELECT queue_create('r1')});
value(q{SELECT queue_push('r2', '1')});
is(ready(), 'r2', 'a push makes one ready');
value('BEGIN');
value(q{SELECT queue_push('r3', '1')});
is(ready(), 'r2 r3', 'a push of the own transaction too');
value('ROLLBACK');
is(ready(), 'r2', 'until it is rolled back');
value(q{SET queue.project = 'p'});
is(ready(), '', 'not in another project');
value(q{SELECT queue_push('r4', '1')});
is(ready(), 'r4', 'which has its own');
value(q{RESET queue.project});
is(ready(), 'r2', 'and this one has not');
my $claim = value(q{SELECT claim_id FROM queue_claim('r2', 600, 0)});
is(ready(), '', 'a claim takes the last message');
value("SELECT claim_renew('r2', '$claim', 1)");
becomes_ready('r2', 'and gives it back when it is over');
value(q{SELECT FROM queue_push_batch('r1', ARRAY['1', '2']::jsonb[])});
is(ready(), 'r1 r2', 'two are ready');
value(q{SELECT FROM queue_pop('r1')});
is(ready(), 'r1 r2', 'one of two messages is gone');
value(q{SELECT FROM queue_pop('r1')});
is(ready(), 'r2', 'both are');
value(q{SELECT queue_pause('r2')});
is(ready(), '', 'a paused queue is not ready');
value(q{SELECT queue_push('r2', '2')});
is(ready(), '', 'whatever is pushed');
value(q{SELECT queue_resume('r2')});
is(ready(), 'r2', 'a resumed one is');
value(q{SELECT queue_push('r5', '1', delay => 600)});
is(ready(), 'r2', 'a delayed message does not count');
value(q{SELECT queue_push('r5', '2', delay => 1)});
becomes_ready('r2 r5', 'until it is due');
value(q{SELECT queue_push('r6', '1', ttl => 600)});
is(ready(), 'r2 r5 r6', 'a message that will expire');
value(q{SELECT queue_purge('r6'), queue_push('r6', '2', ttl => 1)});
becomes_ready('r2 r5', 'and one that has');
value(q{SELECT queue_purge('r5')});
is(ready(), 'r2', 'a purged queue');
value(q{SELECT queue_push('r7', '1'), queue_drop('r7')});
is(ready(), 'r2', 'a dropped one');
value(q{CREATE ROLE outsider; CREATE ROLE consumer IN ROLE queue_consumer});
value(q{SELECT queue_push('r10', '1')});
value(q{SELECT queue_grant('r10', 'outsider', 'claim')});
value(q{SET ROLE consumer});
is(ready(), 'r2', 'of the others only those that one may claim from');
value(q{RESET ROLE});
value(q{SELECT queue_drop('r10')});

# --- what another session changes ---

# This session has r2 in its cache; the second call would find it there.
sub others
{
	my ($sql, $wanted, $what) = @_;
	$node->safe_psql($db, $sql);
	is(ready(), $wanted, $what);
	is(ready(), $wanted, "$what: again");
	return;
}

others(q{SELECT queue_push('r11', '1')}, 'r11 r2', 'a new queue');
others(q{SELECT queue_pause('r11')}, 'r2', 'another session pauses it');
others(q{SELECT queue_resume('r11')}, 'r11 r2', 'and resumes it');
others(q{SELECT queue_drop('r11')}, 'r2', 'drops it');
others(q{SELECT queue_push('r11', '1')}, 'r11 r2', 'and makes it anew');
value(q{SET ROLE consumer});
is(ready(), 'r11 r2', 'another role, which may claim from all');
others(q{SELECT queue_grant('r11', 'outsider', 'claim')},
	'r2', 'from all but one');
others(q{GRANT outsider TO consumer}, 'r11 r2', 'as a member from all');
value(q{RESET ROLE; BEGIN});
is(ready(), 'r11 r2', 'in a transaction');
others(q{SELECT queue_pause('r11')}, 'r2', 'in a transaction: paused');
value(q{SELECT queue_resume('r11')});
is(ready(), 'r11 r2', 'resumed by itself');
value('ROLLBACK');
is(ready(), 'r2', 'not any more after its end');
is( value(
		q{SELECT string_agg(project || '/' || queue, ' '
			ORDER BY project, queue) FROM queue_ready_in_projects()}),
	'/r2 p/r4',
	'in all projects');
others(q{SELECT queue_resume('r11')}, 'r11 r2', 'resumed by the other');
is( value(
		q{SELECT string_agg(project || '/' || queue, ' '
			ORDER BY project, queue) FROM queue_ready_in_projects()}),
	'/r11 /r2 p/r4',
	'in all projects: resumed');
value(q{SELECT queue_drop('r11')});

# --- restart ---

# Two messages become due while it restarts, or before or after that.
value(q{SELECT queue_push('r8', '1', delay => 2), queue_push('r9', '1')});
value(q{SELECT FROM queue_claim('r9', 2, 0)});
$_->quit foreach ($one, $listener);
$node->restart;
connect_sessions();
is(ready() =~ s/ r[89]//gr, 'r2', 'after a restart, at once');
ok( $node->poll_query_until(
		$db, q{SELECT state IN ('idle', 'busy') FROM queue_data.queue_workers WHERE database = 'postgres'}
	),
	'the worker is back');
becomes_ready('r2 r8 r9', 'what was due is seen to');
value(q{SELECT queue_purge('r2'), queue_purge('r8'), queue_purge('r9')});
is(ready(), '', 'nothing is left');

# --- termination ---

sub comes_back
{
	my ($pid, $what) = @_;
	ok( $node->poll_query_until(
			$db,
			"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'queue worker' AND datname = 'postgres' AND pid <> $pid"
		),
		$what);
	return;
}

my $pid = worker_pid();
listen_to('t');
value("SELECT queue_push('t', '1', delay => 1), pg_terminate_backend($pid)");
value(q{SELECT queue_push('r1', '1')});
is(ready(), 'r1', 'queue_ready without a worker');
comes_back($pid, 'a worker that was terminated comes back');
ok(wait_to_hear('t'), 'and notifies of what has become due');
value(q{SELECT queue_purge('r1')});

# --- no workers ---

value(q{ALTER SYSTEM SET queue.database_workers = 0});
value(q{SELECT pg_reload_conf()});
ok( $node->poll_query_until(
		$db, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'queue worker'}
	),
	'queue.database_workers = 0 sends the worker away');
value(q{SELECT queue_push('r1', '1'), queue_push('r2', '1', delay => 600)});
$claim = value(q{SELECT claim_id FROM queue_claim('r1', 600, 0)});
is(ready(), '', 'without a worker: nothing is ready');
value("SELECT claim_renew('r1', '$claim', 1)");
becomes_ready('r1', 'without a worker: a claim that has run out is');
value(q{SELECT queue_pop('r1'), queue_pop('r2')});
is(ready(), '', 'without a worker: nothing else is');
value(q{ALTER SYSTEM RESET queue.database_workers});
value(q{SELECT pg_reload_conf()});
comes_back(0, 'and back');

stop_server();
done_testing();
