# A claim or pop of a group with a bound locks the group until its transaction
# ends.  Another session finds nothing there meanwhile, and waits; it is woken at
# the end if the transaction has left room in the group and a message.
#
# test/check -q runs it, too.

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
my $other = $node->background_psql($db);
my $listener = $node->background_psql($db);
my $channel = value(q{SELECT queue_channel('q')});
my $any = 'SELECT count(*) FROM queue_claim_any(NULL, 300, 0, 1)';

# True as soon as the listener is notified
sub is_notified
{
	my $until = time + 180;

	while (time < $until)
	{
		return 1 if $listener->query_safe('SELECT 1') =~ /notification "queue_/i;
		sleep 0.02;
	}
	return 0;
}

foreach my $function ('claim', 'pop')
{
	my $taken = $function eq 'pop' ? q{queue_pop('q', 1)} : q{queue_claim('q', 300, 0, 1)};

	foreach my $end ('COMMIT', 'ROLLBACK')
	{
		my $name = "$function, $end";

		my $claimed;

		is_woken(
			$name,
			sub {
				value(q{SELECT queue_drop('q');
					SELECT queue_create('q', '{"_group_concurrency": 2}');
					SELECT queue_push_batch('q', '{1,2,3}'::jsonb[], group_keys => '{a,a,a}')});
				$other->query_safe("BEGIN; SELECT count(*) FROM $taken");
				is(value($any), '0', "$name: nothing of a group that is locked");
				my $job = begin_wait('q', $long,
					after => q{SELECT count(*) FROM queue_claim('q', 300, 0, 1)});
				wait_for_waiters(1);
				still_waits($job, "$name: a session waits");
				$listener->query_safe("SELECT pg_sleep(0.3); LISTEN $channel; SELECT 1");
				$other->query_safe($end);
				my @result = result($job);
				$claimed = $result[2];
				return @result;
			});
		is($claimed, '1', "$name: and it claims");
		ok(is_notified(), "$name: listeners are notified");
		$listener->query_safe('UNLISTEN *');
		is(value($any), $name eq 'claim, COMMIT' ? '0' : '1', "$name: what is left");
	}
}

# queue_claim_any finds what an empty answer has left out.
value(q{SELECT queue_drop('q');
	SELECT queue_create('q', '{"_group_concurrency": 2}');
	SELECT queue_push_batch('q', '{1,2,3}'::jsonb[], group_keys => '{a,a,a}')});
$other->query_safe(q{BEGIN; SELECT count(*) FROM queue_claim('q', 300, 0, 1)});
is(value($any), '0', 'nothing while the group is locked');
is(value(q{SELECT count(*) FROM queue_claim('q')}), '0', 'nor from the queue');
$other->query_safe('COMMIT');
is(value($any), '1', 'queue_claim_any finds the rest');
is(value($any), '0', 'up to the bound');

$_->quit foreach $other, $listener, $one;
$node->stop;
done_testing();
