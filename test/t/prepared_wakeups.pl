# What a prepared transaction has created, resumed or bound is found when it is
# committed, though no callback runs then, also after a crash.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use QueueTest qw($node $db start_server value becomes_true);
use Test::More;
use Time::HiRes qw(sleep time);

start_server(
	q{
autovacuum = off
max_prepared_transactions = 5
});
$node->safe_psql(
	$db, q{
	CREATE TABLE done (body jsonb);
	CREATE FUNCTION run(m jsonb) RETURNS boolean LANGUAGE sql AS
		'INSERT INTO done VALUES (m); SELECT true';
	SELECT queue_create('r'); SELECT queue_push('r', '1');
	SELECT queue_create('h'); SELECT queue_push('h', '"job"')});

foreach my $crash (0, 1)
{
	my $how = $crash ? 'after a crash' : 'without a crash';
	my $new = "new$crash";
	my $lazy = "lazy$crash";
	my $channels =
	  "SELECT queue_channel(q) FROM unnest('{$new, $lazy, r}'::text[]) AS q";

	value('SELECT queue_pause(\'r\')');
	value(
		"BEGIN; SELECT queue_create('$new'), queue_push('$new', '1');
		SELECT queue_resume('r'); PREPARE TRANSACTION 'p'");

	# This one creates its queue as the transaction is prepared.
	value("BEGIN; SELECT queue_push_lazy('$lazy', '1'); PREPARE TRANSACTION 'l'");
	value(
		"BEGIN; SELECT job_handler('h', 'run(jsonb)'); PREPARE TRANSACTION 'h'")
	  if !$crash;

	# The worker scans what was prepared, and finds nothing.
	sleep 2.5;
	if ($crash)
	{
		$node->stop('immediate');
		$node->start;
		sleep 1.5;
	}
	is(value('SELECT string_agg(q, \' \') FROM queue_ready() AS q WHERE q <> \'h\''),
		'', "$how: nothing is ready yet");
	my $listener = $node->background_psql($db);
	$listener->query_safe("LISTEN $_") foreach split /\n/, value($channels);
	value(q{COMMIT PREPARED 'p'});
	value(q{COMMIT PREPARED 'h'}) if !$crash;

	# Not at once: one commit would make the worker find both.
	sleep 2.5;
	value(q{COMMIT PREPARED 'l'});
	becomes_true(
		"SELECT count(*) = 3 FROM queue_ready() AS q WHERE q IN ('r', '$new', '$lazy')",
		"$how: all queues are ready");
	my %heard;
	my $until = time + 180;
	while (keys %heard < 3 && time < $until)
	{
		$heard{$_} = 1
		  foreach $listener->query_safe('SELECT') =~ /payload "([^"]*)"/g;
		sleep 0.05;
	}
	is(join(' ', sort keys %heard), "$lazy $new r", "$how: listeners are notified");
	becomes_true('SELECT count(*) = 1 FROM done', "$how: the handler has run");
	is( value(
			"SELECT string_agg(queue, ' ') FROM (SELECT queue FROM queue_claim_any(ARRAY['$new'], 600, 60)) AS c"),
		$new,
		"$how: it can be claimed from");
	value(q{SELECT claim_release('r', claim_id) FROM queue_claim('r', 600, 60)});
	value("SELECT queue_drop('$lazy')");
	$listener->quit;
}

# The worker cannot see to the queue when it learns of the commit, because
# tables are locked; it tries again.
value(q{SELECT queue_create('l'), queue_push('l', '1'), queue_pause('l')});
sleep 1.5;
value(q{BEGIN; SELECT queue_resume('l'); PREPARE TRANSACTION 'l'});
my $locker = $node->background_psql($db);
my $listener = $node->background_psql($db);
$listener->query_safe('LISTEN ' . value(q{SELECT queue_channel('l')}));
my $tables = value(
	q{SELECT string_agg(oid::regclass::text, ', ') FROM pg_class
		WHERE relnamespace = 'queue_data'::regnamespace AND relkind = 'r'
			AND relname ~ '^(message|delayed)_[0-9]+$'});
$locker->query_safe("BEGIN; LOCK TABLE $tables IN ACCESS EXCLUSIVE MODE");
value(q{COMMIT PREPARED 'l'});
sleep 3;
$locker->query_safe('ROLLBACK');
$locker->quit;
my $heard = 0;
my $until = time + 180;
while (!$heard && time < $until)
{
	$heard = $listener->query_safe('SELECT') =~ /payload "l"/;
	sleep 0.05;
}
ok($heard, 'a queue that was locked at COMMIT PREPARED is not forgotten');
$listener->quit;

# What is rolled back leaves nothing to do.
value(
	q{BEGIN; SELECT queue_create('never'), queue_push('never', '1'); PREPARE TRANSACTION 'p'});
sleep 1.5;
value(q{ROLLBACK PREPARED 'p'});
sleep 1.5;
my $rounds = q{SELECT rounds FROM queue_data.queue_workers WHERE database = current_database()};
my ($before, $after) = (-1, value($rounds));
for (my $tries = 0; $before != $after && $tries < 60; $tries++)
{
	$before = $after;
	sleep 2.5;
	$after = value($rounds);
}
is($after, $before, 'nothing is done for a queue that never was');

$node->stop;
done_testing();
