# queue_pgmq: what several sessions do at once, notifications, two projects, a
# dump, and what remains when the extension is dropped.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;

start_server('autovacuum = off');
value('CREATE EXTENSION queue_pgmq');

# --- Sessions ---

value(q{SELECT pgmq.create('q'); SELECT pgmq.send_batch('q', ARRAY(
	  SELECT to_jsonb(i) FROM generate_series(1, 6) AS i))});
my $one = $node->background_psql('postgres', on_error_die => 1);
my $other = $node->background_psql('postgres', on_error_die => 1);
my $read = sub { my ($s, $what) = @_;
	return join ',', sort { $a <=> $b } split /\n/,
	  $s->query("SELECT message FROM $what"); };

$one->query('BEGIN');
is($read->($one, q{pgmq.read('q', 60, 2)}), '1,2', 'a reads two');
is($read->($other, q{pgmq.read('q', 60, 1)}), '3', 'b gets the next one');
is($read->($other, q{pgmq.read('q', 60, 9, '2')}), '', '... and not by a condition');
$one->query('ROLLBACK');
is($read->($other, q{pgmq.read('q', 60, 9, '2')}), '2', 'after a rollback it does');
$one->query('BEGIN');
$one->query(q{SELECT pgmq.delete('q', msg_id) FROM pgmq.q_q WHERE message = '4'});
is($read->($other, q{pgmq.read('q', 60, 1, '4')}), '', 'what is being deleted is not read');
$one->query(q{SELECT pgmq.set_vt('q', msg_id, 60) FROM pgmq.q_q WHERE message = '5'});
is($read->($other, q{pgmq.read('q', 60, 9)}), '1,6', 'nor what is being hidden');
$one->query('ROLLBACK');
is($read->($other, q{pgmq.read('q', 60, 9)}), '4,5', 'after the rollback they are');

# First in, first out: a group that another transaction reads is left to it.
value(q{SELECT pgmq.create('f');
	  SELECT pgmq.send('f', to_jsonb(i), '{"x-pgmq-group": "g"}'::jsonb)
	  FROM generate_series(1, 4) AS i;
	  SELECT pgmq.send('f', '5')});
$one->query('BEGIN');
is($read->($one, q{pgmq.read_grouped('f', 60, 2)}), '1,2', 'a reads two of a group');
for my $how (qw(grouped grouped_rr grouped_head))
{
	$other->query('BEGIN');
	is($read->($other, "pgmq.read_$how('f', 60, 9)"), '5', "$how leaves the group to it");
	$other->query('ROLLBACK');
}
$one->query('COMMIT');
is($read->($other, q{pgmq.read_grouped('f', 60, 9)}), '5', 'and when it is read');
$one->query(q{SELECT pgmq.delete('f', msg_id) FROM pgmq.q_f WHERE message IN ('1', '2')});
is($read->($other, q{pgmq.read_grouped('f', 60, 9)}), '3,4', 'then come the next ones');

# One that a plain read holds ends what is taken of its group.
value(q{SELECT pgmq.purge_queue('f');
	  SELECT pgmq.send('f', to_jsonb(i), '{"x-pgmq-group": "g"}'::jsonb)
	  FROM generate_series(1, 3) AS i});
$one->query('BEGIN');
$one->query(q{SELECT * FROM pgmq.read('f', 60, 1)});
is($read->($other, q{pgmq.read_grouped('f', 60, 9)}), '', 'nothing behind a locked head');
$one->query('ROLLBACK');

# Many readers get each message once.
value(q{SELECT pgmq.create('many'); CREATE TABLE got (id bigint);
	  SELECT count(*) FROM pgmq.send_batch('many', ARRAY(
		  SELECT jsonb_build_object('k', i % 2) FROM generate_series(1, 400) AS i))});
my $script = $node->basedir . '/read.sql';
append_to_file($script, <<'EOS');
INSERT INTO got SELECT msg_id FROM pgmq.read('many', 600, 3);
INSERT INTO got SELECT msg_id FROM pgmq.read('many', 600, 3, '{"k": 1}');
WITH r AS MATERIALIZED (SELECT msg_id FROM pgmq.read('many', 600, 2))
INSERT INTO got SELECT d FROM pgmq.delete('many', ARRAY(SELECT msg_id FROM r)) AS d;
EOS
$node->command_ok([ 'pgbench', '-n', '-c', 4, '-t', 25, '-f', $script,
		'postgres' ], 'four readers');
is(value('SELECT count(*), count(DISTINCT id) FROM got'),
	'400|400', 'each message was read once');
is(value(q{SELECT queue_visible_length FROM pgmq.metrics('many')}), '0', 'none is left');

# --- Depths ---

value(q{SELECT pgmq.create('depth'); SELECT pgmq.send_batch('depth', '{1,2,3,4,5,6}');
	  SELECT pgmq.read('depth', 600, 3);
	  SELECT pgmq.set_vt('depth', msg_id, CASE message WHEN '1' THEN 0 ELSE 900 END)
	  FROM pgmq.q_depth WHERE message IN ('1', '2', '5', '6');
	  SELECT pgmq.set_vt('depth', msg_id, 0) FROM pgmq.q_depth WHERE message = '6';
	  SELECT pgmq.delete('depth', msg_id) FROM pgmq.q_depth WHERE message = '3';
	  SELECT pgmq.archive('depth', msg_id) FROM pgmq.q_depth WHERE message = '4'});
is(value(q{SELECT free, claimed, delayed FROM queue_stats('depth')}), '2|1|1',
	'the states after set_vt');
ok($node->poll_query_until('postgres', q{
	SELECT (ready, claimed, delayed) = (2, 1, 1)
	FROM queue_data.queue_status WHERE name = 'depth'}), 'so say the depths');
ok($node->poll_query_until('postgres',
		q{SELECT total_messages = 6 FROM pgmq.metrics('depth')}),
	'six were sent');

# --- Notifications ---

value(q{SELECT pgmq.enable_notify_insert('q', 60000); SELECT pgmq.enable_notify_delete('q', 0)});
my $listener = $node->background_psql('postgres');
$listener->query('LISTEN "pgmq.q_q.INSERT"; LISTEN "pgmq.q_q.DELETE"');
my $notified = sub
{
	my $out = $listener->query('SELECT 1');
	return join ' ', $out =~ /"pgmq\.q_q\.(\w+)"/g;
};
value(q{SELECT pgmq.send('q', '7')});
like($notified->(), qr/^INSERT$/, 'a send is notified');
value(q{SELECT pgmq.send('q', '8')});
is($notified->(), '', 'the next one within the interval is not');
value(q{SELECT pgmq.delete('q', msg_id) FROM pgmq.q_q WHERE message = '7'});
like($notified->(), qr/^DELETE$/, 'a delete is');
value(q{SELECT pgmq.update_notify_insert('q', 60000); BEGIN; SELECT pgmq.send('q', '9'); ROLLBACK});
value(q{SELECT pgmq.send('q', '10')});
like($notified->(), qr/^INSERT$/, 'a send that is rolled back does not count');

# Another sender does not wait for one whose transaction is open.
value(q{SELECT pgmq.update_notify_insert('q', 60000)});
$one->query(q{BEGIN});
$one->query(q{SELECT pgmq.send('q', '11')});
value(q{SET lock_timeout = '10s'; SELECT pgmq.send('q', '12')});
like($notified->(), qr/^INSERT$/, 'and notifies, as the other may be rolled back');
$one->query(q{ROLLBACK});
$listener->quit;

# --- Two projects ---

value(q{SELECT pgmq.create('shared'); SELECT pgmq.send('shared', '"none"');
	  SET queue.project = 'p'; SELECT pgmq.create('shared');
	  SELECT pgmq.send('shared', '"p"')});
is(value(q{SELECT message FROM pgmq.q_shared}), '"none"', 'the view shows the project');
is(value(q{SET queue.project = 'p'; SELECT message FROM pgmq.q_shared}), '"p"', '... of the session');
value(q{SELECT pgmq.drop_queue('shared')});
is(value(q{SET queue.project = 'p'; SELECT message FROM pgmq.q_shared}), '"p"',
	'and stays while one has such a queue');

# --- A dump ---

value(q{SELECT pgmq.archive('q', msg_id) FROM pgmq.q_q WHERE message = '8';
	  SELECT pgmq.bind_topic('a.#', 'q')});
my $state = q{SELECT string_agg(msg_id || ' ' || read_ct || ' ' || message, ', ' ORDER BY msg_id) FROM pgmq.q_q;
	SELECT string_agg(msg_id || ' ' || message, ', ' ORDER BY msg_id) FROM pgmq.a_q;
	SELECT string_agg(pattern || ' ' || queue_name, ', ') FROM pgmq.topic_bindings;
	SELECT string_agg(queue_name, ', ' ORDER BY queue_name) FROM pgmq.meta;
	SELECT count(*) FROM pgmq.read('q', 1, 0)};
my $before = value($state);
my $dump = $node->basedir . '/dump.sql';
$node->command_ok([ 'pg_dump', '-f', $dump, 'postgres' ], 'pg_dump');
value('CREATE DATABASE restored');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $dump,
		'restored' ], 'restore');
is(value($state, 'restored'), $before, 'all is there');
is(value(q{SELECT pgmq.send('q', '13') > max(msg_id) FROM pgmq.q_q}, 'restored'), 't', 'ids go on');
is(value(q{DELETE FROM pgmq.q_q WHERE message = '2';
		 SELECT count(*) FROM pgmq.q_q WHERE message = '2'}, 'restored'), '0',
	'the trigger of the view, too');

# --- Dropping and creating the extension ---

is(value(q{SET client_min_messages = error; DROP EXTENSION queue_pgmq CASCADE;
		 SELECT to_regnamespace('pgmq') IS NULL;
		 SELECT queue_exists('q')}), "t\nt", 'the schema goes, and the queues stay');
value(q{CREATE EXTENSION queue_pgmq; SELECT pgmq.create('q')});
is(value($state), $before =~ s/^shared, //mr, 'and are there again');

# Another role that owned the schema could replace what functions of a superuser call.
$node->safe_psql('postgres', 'CREATE DATABASE planted');
value('CREATE EXTENSION queue; CREATE ROLE planter; CREATE SCHEMA pgmq AUTHORIZATION planter', 'planted');
is(state_of('CREATE EXTENSION queue_pgmq', database => 'planted'), '42P06', 'the schema belongs to the extension');
is(value(q{SET client_min_messages = error; DROP SCHEMA pgmq; CREATE EXTENSION queue_pgmq;
		SELECT pgmq.create('x'); DROP EXTENSION queue_pgmq CASCADE;
		SELECT to_regnamespace('pgmq') IS NULL}, 'planted'), "\nt", 'and goes with it');
value(q{UPDATE pg_extension SET extversion = '1.2' WHERE extname = 'queue'}, 'planted');
is(state_of('CREATE EXTENSION queue_pgmq', database => 'planted'), '55000', 'it needs version 2.0 of queue');
$one->quit;
$other->quit;
$node->stop;

done_testing();
