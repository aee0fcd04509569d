# Rounds of load from many sessions, with rollbacks, delays, lifetimes, prepared
# transactions and terminated workers; each second round ends with a crash.
# After each round, each row of queue_status is soon as queue_stats says.
#
# QUEUE_STRESS_SECONDS makes it a longer one (test/stress sets it).  Then, from
# two seconds after each round on, each row of queue_status must be as
# queue_stats was within the last two seconds: that needs a machine that has time
# for it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use List::Util qw(max min sum);
use ClusterTest;
use PostgreSQL::Test::Utils;
use StatusTest;
use Test::More;
use Time::HiRes qw(sleep time);

my $seconds = $ENV{QUEUE_STRESS_SECONDS};
my $load = $seconds ? 12 : 3;
my $watch = 10;
my $late = 2;
my $dir = "$FindBin::RealBin/../stress.d";

$node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q(
max_connections = 50
max_prepared_transactions = 10
track_commit_timestamp = on
jit = off
max_pred_locks_per_transaction = 1000
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
queue.min_message_ttl = 1
));
$node->start;
value(slurp_file("$dir/ledger.sql"));
use_server($node);

# Short delays and lifetimes, groups, purges and drops of queues, until the table
# has a row
value(
	q{
CREATE TABLE stop ();
CREATE PROCEDURE change() LANGUAGE plpgsql AS $$
DECLARE
    q text;
BEGIN
    WHILE NOT EXISTS (SELECT FROM stop) LOOP
        q := 'more' || floor(random() * 20);
        PERFORM queue_push(q, '1', delay => floor(random() * 3)::int,
                           ttl => CASE WHEN random() < 0.5
                                       THEN 1 + floor(random() * 3)::int END,
                           group_key => CASE WHEN random() < 0.3
                                             THEN floor(random() * 4)::text END);
        IF random() < 0.2 THEN
            ROLLBACK;
        ELSE
            COMMIT;
        END IF;
        BEGIN
            PERFORM FROM queue_claim(q, 1 + floor(random() * 4)::int, 0, 3);
            IF random() < 0.3 THEN
                RAISE 'this is rolled back';
            END IF;
        EXCEPTION WHEN raise_exception THEN
            NULL;
        END;
        COMMIT;
        PERFORM queue_purge(q) WHERE random() < 0.01;
        COMMIT;
        PERFORM queue_drop(q) WHERE random() < 0.01;
        COMMIT;
        PERFORM pg_sleep(0.005);
    END LOOP;
END
$$;
SELECT queue_create('prepared' || i) FROM generate_series(0, 3) AS i});

$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;
$ENV{PGDATABASE} = 'postgres';

# Begin such a load.
sub begin_load
{
	my ($crash) = @_;
	my ($out, $err) = ('', '');
	my @file = $crash ? ('-a', PostgreSQL::Test::Utils::tempdir() . '/file') : ();

	value('TRUNCATE stop');
	return {
		out => \$out,
		harness => IPC::Run::start(
			[ $^X, "$dir/load", '-s', $load, '-c', 12, @file ],
			'>', \$out, '2>', \$err),
		change => [
			map {
				IPC::Run::start([qw(psql -X -q -c), 'CALL change()'],
					'>', \my $o, '2>', \my $e)
			} 1 .. 3
		]
	};
}

# Prepare a transaction, or end one.  Either may fail: the name is in use, or
# not; the worker of a test has to live with both.
sub change_prepared
{
	my $name = int rand 5;
	my $q = 'prepared' . int rand 4;
	my $ttl = 1 + int rand 3;

	$node->psql(
		'postgres', qq{
SET lock_timeout = '2s';
BEGIN;
SELECT queue_push('$q', '1', delay => @{[ int rand 2 ]}), queue_push('$q', '2');
SELECT FROM queue_claim('$q', $ttl, 0, 2);
SELECT FROM queue_pop('$q');
PREPARE TRANSACTION '$name'});
	sleep rand 0.5;
	end_prepared($name) if rand() < 0.9;
	return;
}

sub end_prepared
{
	my ($name) = @_;
	$node->psql('postgres', (rand() < 0.7 ? 'COMMIT' : 'ROLLBACK') . " PREPARED '$name'");
	return;
}

# The rows of queue_status, each with that of queue_stats: what differs from all
# that was seen within the last two seconds.  Between two looks, claims may have
# ended that made messages ready, of which some have expired: so a number of those
# that were ready is believed, too, if the sum of the three was seen.
my %seen;
my $round = 0;

sub compare
{
	my $now = time;
	my @wrong;

	foreach (
		split /\n/,
		value(
			q{SELECT s.name, s.ready, s.claimed, s.delayed, t.free, t.claimed, t.delayed
			FROM queue_data.queue_status AS s, queue_stats(s.name) AS t}))
	{
		my ($queue, @n) = split /\|/;
		my @status = (@n[ 0 .. 2 ], sum(@n[ 0 .. 2 ]));
		my @stats = (@n[ 3 .. 5 ], sum(@n[ 3 .. 5 ]));
		my $list = $seen{$queue} //= [];

		push @$list, [ $now, @stats ];

		# One that was seen at that time or before is needed.
		shift @$list while @$list > 1 && $list->[1][0] <= $now - $late;
		my ($ready, $claimed, $delayed, $sum) = map {
			my $i = $_;
			my @range = map { $_->[ $i + 1 ] } @$list;
			$status[$i] >= min(@range) && $status[$i] <= max(@range)
		} 0 .. 3;
		push @wrong, "$queue: @n[0 .. 2] is @n[3 .. 5]"
		  unless $claimed && $delayed && ($ready || $sum);
	}
	return @wrong;
}

# Do that for a while: claims, delays and lifetimes go on ending.
my $comparisons = 0;

sub watch_rows
{
	my $began = time;
	my @wrong;

	%seen = ();
	while (time < $began + $watch)
	{
		my @found = compare();
		$comparisons++;
		push @wrong, @found if time > $began + $late;
		sleep 0.1;
	}
	is(join("\n", @wrong), '',
		"round $round: each row is that of the last two seconds");
	return;
}

my $end = time + ($seconds || 0);
my $killed = 0;

do
{
	my $crash = ++$round % 2 == 0;
	my $sessions = begin_load($crash);
	my $until = time + $load;

	while (time < $until)
	{
		change_prepared();
		$killed += kill_worker() if !$killed || rand() < 0.2;
	}
	if ($crash)
	{
		$node->stop('immediate');
	}
	else
	{
		value('INSERT INTO stop DEFAULT VALUES');
	}
	$_->finish foreach $sessions->{harness}, @{ $sessions->{change} };
	is(join("\n", grep { /^unexpected/ } split /\n/, ${ $sessions->{out} }),
		'', "round $round: no error but those that such a load explains");
	$node->start if $crash;
	end_prepared($_) foreach split /\n/, value('SELECT gid FROM pg_prepared_xacts');

	watch_rows() if $seconds;
	status_is_right("round $round: each row is right");
} while (time < $end || $round < 2);

cmp_ok($killed, '>', 0, 'workers were terminated');
note "$round rounds, $comparisons comparisons, $killed workers terminated";

$node->stop;
done_testing();
