# The outbox of doc/scaling.md, as it is written there: each order arrives exactly
# once, although a server crashes (kill -9) for each of them after the push has
# committed at the queue's server and before its own transaction has: in turn the
# server of the outbox, in the process that runs the handler, and that of the queue.
#
# QUEUE_PUSH_ONCE_CRASHES: so many instead of eight.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use Test::More;

use ClusterTest;
use PostgreSQL::Test::Utils;

my $top = "$FindBin::RealBin/../..";
my $crashes = $ENV{QUEUE_PUSH_ONCE_CRASHES} || 8;

my ($shop, $queues) = map {
	my $node = PostgreSQL::Test::Cluster->new($_);
	$node->init;
	$node->append_conf('postgresql.conf', q{
restart_after_crash = on
log_min_messages = warning
});
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION queue');
	$node
} qw(shop queues);

# --- the recipe ---

my ($section) = slurp_file("$top/doc/scaling.md") =~ /^## Pushing to another server(.*?)^## /ms;
my ($set_up, $handler, $order) = $section =~ /^```text\n(.*?)^```$/msg;
my ($host, $port) = ($queues->host, $queues->port);
is($set_up =~ s/host '.*?', dbname 'queues'/host '$host', port '$port', dbname 'postgres'/,
	1, 'the recipe has the address of a server');

# A role that is not a superuser uses dblink only with a password that is asked for.
$queues->safe_psql('postgres', q{CREATE ROLE shop LOGIN PASSWORD 'secret' IN ROLE queue_producer});
my $hba = $queues->data_dir . '/pg_hba.conf';
my $rules = slurp_file($hba);
open my $file, '>', $hba or die $!;
print {$file} "local all shop scram-sha-256\n$rules";
close $file or die $!;
$queues->reload;
$shop->safe_psql('postgres', 'CREATE ROLE shop');
$shop->safe_psql('postgres', $set_up);
$shop->safe_psql('postgres', "SET SESSION AUTHORIZATION shop; $handler
	CREATE TABLE orders (id serial, item text)");

# --- the crashes ---

# The handler of the recipe, and then, for each order once, a crash.  Which orders
# have had theirs is committed at the queue's server.
$queues->safe_psql('postgres',
	'CREATE TABLE crashed (id bigint PRIMARY KEY); GRANT ALL ON crashed TO shop;
	GRANT pg_read_all_stats TO shop');
$shop->safe_psql('postgres', q{
GRANT pg_execute_server_program TO shop;
SET SESSION AUTHORIZATION shop;
CREATE FUNCTION deliver_and_crash(m queue_message) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	id bigint = m.body->>'origin_id';
	victim text;
BEGIN
	PERFORM deliver(m);
	SELECT * INTO victim FROM dblink('queues_2', format(
		'WITH new AS (INSERT INTO crashed VALUES (%s) ON CONFLICT DO NOTHING RETURNING id)
		SELECT a.pid FROM new, pg_stat_activity AS a WHERE backend_type = ''checkpointer''',
		id)) AS d(pid text);
	IF victim IS NULL THEN
		RETURN true;
	ELSIF id % 2 = 0 THEN
		victim := '$PPID';
	END IF;
	EXECUTE format('COPY (SELECT) TO PROGRAM %L', 'kill -9 ' || victim);
	RAISE EXCEPTION 'the answer is lost';
END $$;
SELECT job_handler('outbox', NULL);
SELECT job_handler('outbox', 'deliver_and_crash(queue_message)', timeout => 1);
SELECT queue_update('outbox', '{"_retry_delay": 1}');
});
# All at once, before the first crash, which may come before psql has ended
$shop->psql('postgres',
	'SET SESSION AUTHORIZATION shop; BEGIN;' . $order x $crashes . 'COMMIT');

# Either server may be down when it is asked; then psql may end before it has read
# the query, which raises an error.
sub answer
{
	my ($node, $query) = @_;
	my ($status, $out) = eval { $node->psql('postgres', $query) };

	return defined $status && $status == 0 ? $out : '';
}

sub wait_for
{
	my ($node, $query, $expected, $what) = @_;
	my ($now, $before, $tries) = ('', '', 0);

	while (($now = answer($node, $query)) ne $expected)
	{
		# Something must come forward within a minute.
		$tries = $now ne '' && $now ne $before ? 0 : $tries + 1;
		last if $tries > 600;
		$before = $now if $now ne '';
		select undef, undef, undef, 0.1;
	}

	# The server may be down again by now, since the last answer may come just
	# before a crash.
	is($now, $expected, $what);
	return;
}

wait_for($queues, 'SELECT count(*) FROM crashed', $crashes, 'a crash for each order');
wait_for($shop, q{SELECT total FROM queue_stats('outbox')}, 0, 'the outbox is empty');

# --- what has arrived ---

is( $queues->safe_psql('postgres', q{
		SELECT count(*), count(DISTINCT body), min((body->>'id')::int), max((body->>'id')::int)
		FROM queue_messages('mail', "limit" => 10000)}),
	"$crashes|$crashes|1|$crashes", 'each order has arrived once');
is( $queues->safe_psql('postgres', q{
		SELECT count(*), count(DISTINCT message_id) FROM queue_data.push_origin}),
	"$crashes|$crashes", 'and is known by its origin');
is($shop->safe_psql('postgres', q{SELECT total FROM queue_stats('outbox.dead')}),
	0, 'none was given up');

my ($of_shop, $of_queues) = map {
	my @lines = slurp_file($_->logfile) =~ /was terminated by signal 9/g;
	scalar @lines
} $shop, $queues;
is($of_shop, int($crashes / 2), 'crashes of the server of the outbox');
is($of_queues, $crashes - int($crashes / 2), 'crashes of the server of the queue');

done_testing();
