# queue_pgmq: what another role can hold, or make, keeps nobody waiting: advisory locks,
# a lock on a view, a view on a view.  A long name is not that of another view.  And
# pgmq.set_vt locks messages in the order of queue_step.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;

start_server('autovacuum = off');
value(q{
	CREATE EXTENSION queue_pgmq;
	ALTER DATABASE postgres SET lock_timeout = '60s';
	CREATE ROLE stranger IN ROLE queue_consumer;
	GRANT CREATE, TEMPORARY ON DATABASE postgres TO stranger;
	SELECT pgmq.create('seen'), pgmq.create('locked'), pgmq.create('grouped');
	SELECT pgmq.send('grouped', '1', '{"x-pgmq-group": "g"}'::jsonb)});
my $stranger = $node->background_psql('postgres', on_error_die => 1);
$stranger->query_safe(q{
	SET ROLE stranger;
	CREATE TEMPORARY VIEW mine AS SELECT * FROM pgmq.q_seen;
	BEGIN;
	LOCK TABLE mine IN ACCESS SHARE MODE;
	LOCK TABLE pgmq.a_locked IN ACCESS SHARE MODE;
	SELECT pg_advisory_xact_lock(hashtextextended('pgmq ' || q, 0))
	FROM unnest('{new,seen,locked}'::text[]) AS q;
	SELECT pg_advisory_xact_lock(hashtextextended('/grouped/g', 1))});

my $views = q{SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class
	WHERE relnamespace = 'pgmq'::regnamespace AND relname ~ '^[qa]_.*(new|seen|locked)$'};
is(value(q{SELECT message FROM pgmq.read_grouped('grouped', 60, 1)}), 1, 'a group is read');
is(value(q{SELECT pgmq.create('new'); SELECT count(*) FROM pgmq.q_new}), "\n0", 'a queue is created');
is(value(q{SELECT pgmq.drop_queue('new')}), 't', 'and dropped');
is(value(q{SELECT pgmq.drop_queue('seen')}), 't', 'so is one that another role has a view on');
is(value(q{SELECT pgmq.drop_queue('locked')}), 't', 'and one whose view it has locked');
is(value($views), 'a_locked a_seen q_locked q_seen', 'their views stay');
value(q{SELECT pgmq.create('seen'), pgmq.send('seen', '7')});
is(value('SELECT message FROM pgmq.q_seen'), 7, 'for the next queue of that name');
$stranger->query_safe('ROLLBACK; DROP VIEW mine');
$stranger->quit;
value(q{SELECT pgmq.drop_queue('seen'), pgmq.create('locked'), pgmq.drop_queue('locked')});
is(value($views), '', 'which may then be dropped');

# --- Two projects with a queue of the same name ---

my $one = $node->background_psql('postgres', on_error_die => 1);
$one->query_safe(q{SELECT pgmq.create('shared'); BEGIN; SELECT pgmq.drop_queue('shared')});
my $other = $node->background_psql('postgres', on_error_die => 1);
$other->query_until(qr/begins/, qq{\\echo begins\nSET queue.project = 'p'; SELECT pgmq.create('shared');\n});
becomes(q{SELECT count(*) FROM pg_locks WHERE NOT granted}, 1, 'a creation waits for a drop');
$one->query_safe('COMMIT');
$other->query_safe('SELECT 1');
is(value(q{SELECT to_regclass('pgmq.q_shared') IS NOT NULL}), 't', 'and makes the view again');
$_->quit foreach $one, $other;

# --- Long names ---

value(q{
	SELECT queue_create(repeat('a', 61), '{"_pgmq_base": 0}');
	SELECT pgmq._create_views(repeat('a', 61)), pgmq._drop_views(repeat('a', 61) || 'b')});
is(value(q{SELECT count(*) FROM pg_class WHERE relname ~ '^[qa]_aaaaa'}), 2,
	'a longer name is not that of another view');

# --- set_vt and queue_step ---

my $from = -s $node->logfile;
value(q{ALTER DATABASE postgres SET deadlock_timeout = '100ms';
	ALTER DATABASE postgres SET queue.max_claim_limit = 10000;
	SELECT pgmq.create('vt'); SELECT count(*) FROM pgmq.send_batch('vt', ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 1000) AS i))});
foreach my $round (1 .. 3)
{
	value(q{SELECT count(*) FROM pgmq.set_vt('vt', ARRAY(SELECT generate_series(1, 1000)), 0)});
	my $claim = value(q{SELECT max(claim_id) FROM queue_claim('vt', 600, 60, 10000)});
	my ($first, $step, $second) = map { $node->background_psql('postgres', on_error_stop => 0) } 1 .. 3;
	my $waits = q{SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'};

	# The step waits for the first message, which changes; then another one has locked
	# it, and waits for the second.
	$first->query_safe(q{BEGIN; SELECT count(*) FROM pgmq.set_vt('vt', 1, 500)});
	$step->query_until(qr/begins/,
		qq{\\echo begins\nSELECT queue_step('vt', '$claim', '{}', "limit" => 0);\n});
	becomes($waits, 1, 'a step waits');
	$second->query_until(qr/begins/,
		qq{\\echo begins\nSELECT count(*) FROM pgmq.set_vt('vt', ARRAY(SELECT generate_series(1, 1000)), 400);\n});
	becomes($waits, 2, 'so does another session');
	$first->query_safe('COMMIT');
	$_->quit foreach $first, $step, $second;
}
unlike(slurp_file($node->logfile, $from), qr/deadlock detected/, 'no deadlock');

$node->stop;
done_testing();
