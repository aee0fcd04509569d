# queue_wait and notifications with groups: while all groups are at their bounds
# nothing is there; whatever makes room in one wakes those that wait.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use FindBin;
use lib "$FindBin::RealBin/../perl";

use WaitTest qw($node $db $one $long start_server value begin_wait result
  wait_for_waiters still_waits is_woken);

start_server();
$node->append_conf('postgresql.conf', 'max_prepared_transactions = 5');
$one->quit;
$node->restart;
$one = $node->background_psql($db);

# the queue anew, with a claim of the first message of its group
my $claim;

sub fresh
{
	my ($bound, $ttl) = @_;
	value(
		qq{SELECT queue_drop('q');
		SELECT queue_create('q', '{"_group_concurrency": $bound}');
		SELECT queue_push_batch('q', array_fill('1'::jsonb, ARRAY[5]),
			group_keys => array_fill('a'::text, ARRAY[5]))});
	$claim = value("SELECT DISTINCT claim_id FROM queue_claim('q', $ttl, 0)");
	return;
}

# A session waits; this makes room.
sub wakes
{
	my ($what, $sql, %options) = @_;
	my $claimed;

	is_woken(
		$what,
		sub {
			fresh($options{bound} || 1, $options{ttl} || 300);
			my $job = begin_wait('q', $long,
				after => q{SELECT count(*) > 0 FROM queue_claim('q', 300, 0)});
			wait_for_waiters(1);
			still_waits($job, "$what: it waits") unless $options{ttl};
			value($sql->());
			my @result = result($job);
			$claimed = $result[2];
			return @result;
		});
	is($claimed, 't', "$what: and claims");
	return;
}

foreach my $bound (1, 2)
{
	my $how = "bound of $bound";
	my $message = q{(SELECT min(id) FROM claim_messages('q', '%s'))};
	my $get = sub { sprintf $message, $claim };

	wakes("$how, complete", sub { "SELECT claim_complete('q', '$claim')" },
		bound => $bound);
	wakes("$how, release", sub { "SELECT claim_release('q', '$claim')" },
		bound => $bound);
	wakes("$how, delete",
		sub { "SELECT message_delete('q', @{[$get->()]}, '$claim')" },
		bound => $bound);
	wakes("$how, retry",
		sub { "SELECT message_retry('q', @{[$get->()]}, '$claim', 'error', 0)" },
		bound => $bound);

	# With a bound of 1 the message comes first, and the group waits for it.
	my $delay = $bound == 1 ? 1 : 600;
	wakes(
		"$how, retry with a delay",
		sub { "SELECT message_retry('q', @{[$get->()]}, '$claim', 'error', $delay)" },
		bound => $bound);
	wakes("$how, a higher bound",
		sub { "SELECT queue_update('q', '{\"_group_concurrency\": 5}')" },
		bound => $bound);
	wakes("$how, the bound is dropped",
		sub { "SELECT queue_update('q', '{\"_group_concurrency\": null}')" },
		bound => $bound);
	wakes("$how, all metadata is replaced",
		sub { "SELECT queue_set_metadata('q', '{}')" },
		bound => $bound);
	wakes("$how, the claim expires", sub { 'SELECT 1' },
		bound => $bound, ttl => 2);
	wakes("$how, a message of another group",
		sub { "SELECT queue_push('q', '1', group_key => 'b')" }, bound => $bound);
	wakes("$how, a message without a key",
		sub { "SELECT queue_push('q', '1')" }, bound => $bound);
}

# What a transaction that is still open has taken
foreach my $end ('COMMIT', 'ROLLBACK')
{
	foreach my $call ("queue_pop('q')", "queue_claim('q', 1, 0)")
	{
		my $other = $node->background_psql($db);
		fresh(1, 300);
		value("SELECT claim_complete('q', '$claim')");
		$other->query_safe("BEGIN; SELECT count(*) FROM $call");
		my $job = begin_wait('q', $long);
		wait_for_waiters(1);
		still_waits($job, "$call, open: it waits");
		$other->query_safe($end);
		my ($ready) = result($job);
		is($ready, 't', "$call, $end: it is woken");
		$other->quit;
	}
}

# With a higher bound a claim that was committed leaves room.
foreach my $call ("queue_claim('q', 300, 0, 1)", "queue_pop('q')")
{
	foreach my $end ('COMMIT', "PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p'")
	{
		my $other = $node->background_psql($db);
		is_woken(
			"bound of 2, $call, $end",
			sub {
				fresh(2, 300);
				value("SELECT claim_complete('q', '$claim')");
				$other->query_safe("BEGIN; SELECT count(*) FROM $call");
				my $job = begin_wait('q', $long);
				wait_for_waiters(1);
				still_waits($job, "bound of 2, $call, open: it waits");
				$other->query_safe($end);
				return result($job);
			});
		$other->quit;
	}
}

# A backend that is terminated while it has taken something
{
	my $other = $node->background_psql($db, on_error_stop => 0);
	fresh(1, 300);
	value("SELECT claim_complete('q', '$claim')");
	my $pid = $other->query('SELECT pg_backend_pid()');
	$other->query("BEGIN; SELECT count(*) FROM queue_claim('q', 300, 0)");
	my $job = begin_wait('q', $long);
	wait_for_waiters(1);
	still_waits($job, 'it waits');
	value("SELECT pg_terminate_backend($pid)");
	my ($ready, $ms) = result($job);
	is($ready, 't', 'it is woken when the other backend is terminated');
	eval { $other->quit };
}

# A prepared transaction, which no callback reports
foreach my $end ('COMMIT', 'ROLLBACK')
{
	fresh(1, 300);
	value("SELECT claim_complete('q', '$claim')");
	value(q{BEGIN; SELECT count(*) FROM queue_pop('q'); PREPARE TRANSACTION 'p'});
	my $job = begin_wait('q', $long);
	wait_for_waiters(1);
	still_waits($job, "prepared pop: it waits");
	value("$end PREPARED 'p'");
	my ($ready) = result($job);
	is($ready, 't', "prepared pop, $end: it is woken");

	fresh(1, 300);
	value("BEGIN; SELECT claim_complete('q', '$claim'); PREPARE TRANSACTION 'p'");
	$job = begin_wait('q', $long);
	wait_for_waiters(1);
	still_waits($job, "prepared completion: it waits");
	value("$end PREPARED 'p'");
	value("SELECT claim_complete('q', '$claim')") if $end eq 'ROLLBACK';
	($ready) = result($job);
	is($ready, 't', "prepared completion, $end: it is woken");
}

# Nothing wakes it while the group is at its bound, though messages of the group are
# pushed.
fresh(1, 300);
my $job = begin_wait('q', $long);
wait_for_waiters(1);
value(q{SELECT queue_push('q', '1', group_key => 'a')}) for 1 .. 3;
still_waits($job, 'nothing for a session while the group is at its bound');
is(value(q{SELECT count(*) FROM queue_ready() AS q WHERE q = 'q'}),
	'0', 'the queue is not ready');

# Listeners are notified when the claim ends.
my $listener = $node->background_psql($db);
$listener->query_safe('LISTEN ' . value(q{SELECT queue_channel('q')}));
sleep 0.5;
$listener->query_safe('SELECT');
value("SELECT claim_complete('q', '$claim')");
is((result($job))[0], 't', 'until the claim ends');
my $heard = 0;
my $until = time + 180;
while (!$heard && time < $until)
{
	$heard = $listener->query_safe('SELECT') =~ /payload "q"/;
	sleep 0.02;
}
ok($heard, 'a listener is notified when a claim has made room');
is(value(q{SELECT count(*) FROM queue_ready() AS q WHERE q = 'q'}),
	'1', 'the queue is ready again');
$listener->quit;

# The probes of a session that waits wake neither itself nor listeners, also if
# the group has more messages than a probe reserves.
value(
	q{SELECT queue_create('many', '{"_group_concurrency": 1}');
	SELECT queue_push_batch('many', array_fill('1'::jsonb, ARRAY[60]),
		group_keys => array_fill('a'::text, ARRAY[60]));
	SELECT FROM queue_claim('many', 300, 0, 1)});
$listener = $node->background_psql($db);
$listener->query_safe('LISTEN ' . value(q{SELECT queue_channel('many')}));
sleep 1;
$listener->query_safe('SELECT');
$job = begin_wait('many', 2000);
my ($ready, $ms) = result($job);
is($ready, 'f', 'many messages in a group at its bound: nothing for a session');
sleep 1;
unlike($listener->query_safe('SELECT'),
	qr/payload/, 'and no listener is notified meanwhile');
$listener->quit;

# A claim that finds nothing notifies no listener, whatever another transaction does
# meanwhile in the group: listeners that claim would never rest.  The worker looks
# once in a second whether a prepared transaction has ended.
foreach my $change (
	q{claim_complete('many', '%s')},
	q{count(message_delete('many', id)) FROM queue_messages('many', NULL, 100)},
	q{FROM queue_claim('many', 300, 0, 1)})
{
	value(
		q{SELECT queue_purge('many');
		SELECT queue_push_batch('many', array_fill('1'::jsonb, ARRAY[60]),
			group_keys => array_fill('a'::text, ARRAY[60]))});
	my $claimed = $change =~ /%s/
	  && value(q{SELECT claim_id FROM queue_claim('many', 300, 0, 1)});
	my $other = $node->background_psql($db);
	$other->query_safe('BEGIN; SELECT ' . sprintf($change, $claimed));
	$listener = $node->background_psql($db);
	$listener->query_safe('LISTEN ' . value(q{SELECT queue_channel('many')}));
	my $began = time;
	my $got   = '';
	for (1 .. 60)
	{
		$got .= $listener->query_safe(q{SELECT 'claimed' FROM queue_claim('many', 300, 0, 1)});
		sleep 0.05;
	}
	unlike($got, qr/claimed/, "$change: nothing is there");
	cmp_ok(scalar(() = $got =~ /payload/g),
		'<=', 5 + 2 * (time - $began), 'and a claim that finds nothing notifies no listener');
	$_->quit foreach $listener, $other;
}

# A wait takes no turn, also if the first message of the group is tried again.
value(
	q{SELECT queue_create('turns', '{"_group_concurrency": 1}');
	SELECT queue_push_batch('turns', array_fill('1'::jsonb, ARRAY[60]),
		group_keys => ARRAY(SELECT 'g' || i % 3 FROM generate_series(1, 60) AS i))});
$node->poll_query_until($db,
	q{SELECT state = 'complete' FROM queue_data.availability_map WHERE queue = 'turns'})
  or die 'the worker does not read the queue';
my $retried = value(
	q{SELECT group_key FROM queue_claim('turns', 300, 0, 1),
		LATERAL (SELECT message_retry('turns', id, claim_id, 'error', 0)) AS r});
my @served;
for (1 .. 6)
{
	value(q{CALL queue_wait('turns', 0)});
	push @served,
	  value(
		q{SELECT group_key FROM queue_claim('turns', 300, 0, 1),
			LATERAL (SELECT message_delete('turns', id, claim_id)) AS d});
}
is(scalar(grep { $_ eq $retried } @served),
	2, "a group whose first message is tried again has its turn ($retried of @served)");

$one->quit;
$node->stop;
done_testing();
