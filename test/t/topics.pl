# Topics: what is logged of queues that are left out, what other sessions notice,
# roles that bindings name, and a dump.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;

start_server('autovacuum = off');
my $dir = PostgreSQL::Test::Utils::tempdir();

value(q{
	CREATE ROLE "Odd ""shop""" IN ROLE queue_producer;
	CREATE ROLE other IN ROLE queue_producer;
	CREATE ROLE owner IN ROLE queue_producer;
	SET ROLE owner;
	SELECT queue_create('small', '{"_max_messages_post_size": 100}');
	RESET ROLE;
	SELECT topic_bind('t.#', 'small'), topic_bind('t.*', 'large'),
		topic_bind('only', 'large', '{"f": {"g": [1]}}', ARRAY['"Odd ""shop"""', 'other']::regrole[]);
	SET queue.project = 'p';
	SELECT topic_bind('t.x', 'elsewhere', '{}')});

# --- The session's bindings ---

is(value(q{SELECT topic_bind('one', 'large'), topic_publish('one', '1'), topic_unbind('one', 'large'),
		topic_publish('one', '1')}), 't|1|t|0', 'a statement that binds and unbinds notices both');
is(value(q{SET queue.project = E'p\n.t'; SELECT topic_bind('x', 'lines'), topic_publish('x', '1');
	SET queue.project = 'p'; SELECT topic_publish('t', '1'), topic_publish('x', '1');
	SELECT pattern, queue FROM topic_list()}), "t|1\n0|0\nt.x|elsewhere",
	'a project whose name has a newline is another one');
value(q{SET queue.project = E'p\n.t'; SELECT queue_drop('lines')});

# --- The log ---

sub logged
{
	my ($from) = @_;
	return join "\n", substr(slurp_file($node->logfile), $from) =~ /LOG:  (\d.*message.*left out.*)/g;
}

my $large = q{topic_publish('t.x', to_jsonb(repeat('x', 1000)))};
my $from = -s $node->logfile;
is( value("SET ROLE other; SET client_min_messages = debug1;
	SELECT $large FROM generate_series(1, 5)"),
	join("\n", (1) x 5), 'a queue whose limit the message exceeds is left out');
is( logged($from),
	'1 published message was left out of queue "small" in project ""',
	'which is logged once');
like(substr(slurp_file($node->logfile), $from),
	qr/DETAIL:  Topic "t.x": The message is larger than "_max_messages_post_size"/, 'with the reason');

my $session = $node->background_psql('postgres');
$session->query_safe("SELECT $large");
my $purge = $node->background_psql('postgres');
$purge->query_safe(q{BEGIN; SELECT queue_purge('large')});
$from = -s $node->logfile;
is(value(q{SELECT topic_publish('t.x', '1')}), '1', 'so is one that is being purged');
is( logged($from),
	'1 published message was left out of queue "large" in project ""',
	'which is logged, too');
is(state_of(q{SET lock_timeout = 100; SELECT queue_push('large', '1')}),
	'55P03', 'where a push waits');
$purge->query_safe('ROLLBACK');
$purge->quit;

# --- Rows that SQL writes ---

is($session->query_safe(q{SELECT topic_publish('t.x', '1')}), '2', 'bindings that a session knows');
value(q{DELETE FROM queue_data.topic WHERE pattern = 't.*'});
is($session->query_safe(q{SELECT topic_publish('t.x', '1')}), '1', 'SQL deletes one');
value(q{BEGIN; INSERT INTO queue_data.topic
	SELECT id, '', 't.*', NULL, '{queue_producer}' FROM queue_data.queue WHERE name = 'large'; COMMIT});
is($session->query_safe(q{SELECT topic_publish('t.x', '1')}), '2', 'SQL inserts one');
value('TRUNCATE queue_data.topic; DROP ROLE other');
is($session->query_safe(q{SELECT topic_publish('t.x', '1')}), '0', 'SQL truncates the table');
value(q{CREATE ROLE other IN ROLE queue_producer;
	SELECT topic_bind('only', 'large', '{"f": {"g": [1]}}', ARRAY['"Odd ""shop"""', 'other']::regrole[]);
	SELECT topic_bind('t.*', 'large'), topic_bind('#', 'small');
	SET queue.project = 'p'; SELECT topic_bind('t.x', 'elsewhere', '{}')});

# An extension that is dropped takes its bindings along.
value('CREATE DATABASE again');
my $again = $node->background_psql('again');
$again->query_safe(q{CREATE EXTENSION queue; SELECT topic_bind('#', 'a')});
is($again->query_safe(q{SELECT topic_publish('x', '1')}), '1', 'a database of its own');
value('DROP EXTENSION queue; CREATE EXTENSION queue', 'again');
is($again->query_safe(q{SELECT topic_publish('x', '1')}), '0', 'the extension was created again');
$again->quit;

# --- A dump ---

my $all = q{SELECT q.project, q.name, t.project, pattern, filter, publishers
	FROM queue_data.topic AS t JOIN queue_data.queue AS q ON q.id = t.queue_id ORDER BY 1, 2, 4};
my $before = value($all);
like($before, qr/only\|\{"f": \{"g": \[1\]\}\}\|\{"\\"Odd/, 'there are bindings');
$node->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/dump", $node->connstr('postgres') ], 'pg_dump');
value('CREATE DATABASE restored');
$node->command_ok([ 'pg_restore', '--exit-on-error', '-d', $node->connstr('restored'), "$dir/dump" ],
	'pg_restore');
is(value($all, 'restored'), $before, 'a dump has the bindings');
is( value(q{SET ROLE "Odd ""shop"""; SELECT topic_publish('only', '1', '{"f": {"g": [1, 2]}}');
	SET ROLE owner; SELECT topic_publish('only', '1', '{"f": {"g": [1, 2]}}')}, 'restored'),
	"2\n1", 'which work');
my (undef, undef, $error) = $node->psql('postgres', 'DROP ROLE other');
like($error, qr/with topic_bind\. They are:\npublish of queue "large"/, 'the hint of DROP ROLE');
value('DROP EXTENSION queue');
(undef, undef, $error) = $node->psql('postgres', 'DROP ROLE other');
like($error, qr/privileges for column role of view queue_data.queue_roles|1 object in database restored/,
	'and keep their roles');
is( state_of(q{DROP ROLE other}, database => 'restored'), '2BP01', 'in the restored database');
value(q{SELECT topic_unbind('only', 'large')}, 'restored');
is(state_of('DROP ROLE other'), 'none', 'until they are removed');

$session->quit;
$node->stop;
done_testing();
