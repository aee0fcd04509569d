# Timeouts, cancels and terminated sessions: what they interrupt has not
# happened at all, and what it held is free.
#
# test/check -q runs it, too.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf('postgresql.conf', 'autovacuum = off');
$node->start;
my $count = 20000;
$node->safe_psql(
	'postgres', qq{
	CREATE EXTENSION queue;
	SELECT count(queue_push_batch('big', (SELECT array_agg(to_jsonb(h)) FROM generate_series(1, 5000) h)))
		FROM generate_series(1, $count / 5000);
	SELECT count(*) FROM queue_claim('big', 6000, 60, 50)});

sub state_of
{
	my ($sql) = @_;
	my ($ret, $stdout, $stderr) = $node->psql('postgres', $sql,
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return $stderr =~ /(?:ERROR|FATAL):\s+(\w{5}):/ ? $1 : 'none';
}

sub totals
{
	return $node->safe_psql('postgres',
		q{SELECT free, claimed, total FROM queue_stats('big')});
}
my $all = $count - 50 . "|50|$count";
is(totals(), $all, 'many messages');

# The last message is locked with plain SQL, so that a purge or drop waits when
# it has done nearly all of its work.
my $holder = $node->background_psql('postgres', on_error_stop => 0);
$holder->query_safe(q{BEGIN});
$holder->query_safe(
	q{SELECT id FROM queue_data.message_0 ORDER BY id DESC LIMIT 1 FOR UPDATE});

foreach my $function ('queue_purge', 'queue_drop')
{
	is(state_of("SET statement_timeout = '1s'; SELECT $function('big')"),
		'57014', "$function: statement_timeout");
	is(totals(), $all, "$function: nothing is gone");
	is(state_of("SET lock_timeout = '100ms'; SELECT $function('big')"),
		'55P03', "$function: lock_timeout");
	is(totals(), $all, "$function: nothing is gone");

	foreach my $signal ('pg_cancel_backend', 'pg_terminate_backend')
	{
		my $victim = $node->background_psql('postgres', on_error_stop => 0);
		my $pid = $victim->query_safe('SELECT pg_backend_pid()');
		$victim->query_until(qr/started/,
			"\\echo started\nSELECT $function('big');\n");
		ok( $node->poll_query_until(
				'postgres',
				"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid"),
			"$function: is held up");
		is($node->safe_psql('postgres', "SELECT $signal($pid)"),
			't', "$function: $signal");
		ok( $node->poll_query_until(
				'postgres',
				"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid AND state = 'active'"
			),
			"$function: is over");
		is(totals(), $all, "$function: nothing is gone");
		# psql ends by itself when its server process has gone
		eval { $victim->quit };
	}
}
$holder->query_safe('ROLLBACK');

# A purge that is cut off wherever a short timeout happens to find it
my ($state, $tries) = ('57014', 0);
for (my $ms = 1; $state eq '57014' && $tries < 30; $ms *= 2)
{
	$state =
	  state_of("SET statement_timeout = $ms; BEGIN; SELECT queue_purge('big'); ROLLBACK");
	$tries++;
	is(totals(), $all, "purge with $ms ms: nothing is gone");
}
is($state, 'none', 'long enough at last');
cmp_ok($tries, '>', 1, 'and not at once');

# the same for a push of many
for ($state = '57014', my $ms = 1; $state eq '57014'; $ms *= 2)
{
	$state = state_of(
		qq{SET statement_timeout = $ms;
		SELECT queue_push_batch('pushed', (SELECT array_agg(to_jsonb(h)) FROM generate_series(1, 10000) h))}
	);
	my $total =
	  $node->safe_psql('postgres', q{SELECT total FROM queue_stats('pushed')});
	is($total, $state eq 'none' ? '10000' : '0',
		"push with $ms ms: all or nothing");
}

# What a session has locked is free when it ends in the middle of a transaction.
$node->safe_psql('postgres',
	q{SELECT queue_push_batch('q', ARRAY['"m1"', '"m2"', '"m3"']::jsonb[])});

sub free_ones
{
	return $node->safe_psql('postgres',
		q{BEGIN; SELECT string_agg(body #>> '{}', ' ') FROM queue_claim('q', 600, 60); ROLLBACK}
	);
}

foreach my $work ('queue_claim(\'q\', 600, 60, 2)', 'queue_pop(\'q\', 2)')
{
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	$session->query_safe("BEGIN; SELECT $work");
	is(free_ones(), 'm3', "$work: held");
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	$node->poll_query_until('postgres',
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid");
	is(free_ones(), 'm1 m2 m3', "$work: given back by a terminated session");
	eval { $session->quit };
}

my $idle = $node->background_psql('postgres', on_error_stop => 0);
my $pid = $idle->query_safe('SELECT pg_backend_pid()');
$idle->query_safe(q{SET idle_in_transaction_session_timeout = '200ms'});
$idle->query_safe(q{BEGIN; SELECT queue_claim('q', 600, 60, 2)});
$node->poll_query_until('postgres',
	"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid");
is(free_ones(), 'm1 m2 m3', 'given back by a session that idled too long');
eval { $idle->quit };

# a claim does not wait for locks, so it needs no timeout: with all messages
# locked it is empty
$holder->query_safe(q{BEGIN; SELECT id FROM queue_data.message_0 FOR UPDATE});
is( $node->safe_psql(
		'postgres',
		q{SET lock_timeout = '100ms'; SELECT count(*) FROM queue_claim('q', 600, 60)}),
	'0',
	'a claim waits for no row');
is( state_of(
		q{SET lock_timeout = '100ms'; SELECT message_delete('q', id) FROM queue_messages('q')}),
	'55P03',
	'a delete does, as long as it may');
$holder->query_safe('ROLLBACK');
$holder->quit;

# a cancelled statement does not end the transaction around a savepoint
my $saved = $node->background_psql('postgres', on_error_stop => 0);
$saved->query_safe(
	q{BEGIN; SELECT queue_claim('q', 600, 60, 1); SAVEPOINT a; SET LOCAL statement_timeout = '100ms'});
$saved->query(q{SELECT body, pg_sleep(10) FROM queue_claim('q', 600, 60, 1)});
$saved->{stderr} = '';
$saved->query_safe('ROLLBACK TO a');
is(free_ones(), 'm2 m3', 'rolled back to a savepoint after a timeout');
$saved->query_safe('COMMIT');
is(free_ones(), 'm2 m3', 'the earlier claim stays');
$saved->quit;

$node->stop;
done_testing();
