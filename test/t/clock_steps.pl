# The clock is set back, or forward, while the server runs: waits and pauses
# last as long as they should, and the worker sees what is due by the new time.
#
# Needs a C compiler, for a library that stands between the server and the
# clock.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run ();
use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest qw($node $db $one value);
use Test::More;
use Time::HiRes qw(sleep time);

my $dir = PostgreSQL::Test::Utils::tempdir();
my $library = "$dir/clock.so";
my $file = "$dir/offset";

# The seconds in the file are added to the time of day whenever the server
# asks for it.  The monotonic clock goes on.
open my $source, '>', "$dir/clock.c" or die $!;
print $source q{
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int
gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
	static volatile long long *offset = 0;
	struct timespec now;

	if (offset == 0)
	{
		int			fd = open(getenv("CLOCK_OFFSET"), O_RDONLY);

		offset = mmap(0, sizeof(*offset), PROT_READ, MAP_SHARED, fd, 0);
		close(fd);
	}
	clock_gettime(CLOCK_REALTIME, &now);
	tv->tv_sec = now.tv_sec + *offset;
	tv->tv_usec = now.tv_nsec / 1000;
	return 0;
}
};
close $source;
plan skip_all => 'no C compiler'
  unless grep { -x "$_/" . ($ENV{CC} || 'cc') || -x ($ENV{CC} || '') } split /:/, $ENV{PATH};
system_or_bail($ENV{CC} || 'cc', '-shared', '-fPIC', '-o', $library, "$dir/clock.c");

sub set_clock
{
	my ($seconds) = @_;
	open my $out, -e $file ? '+<' : '>', $file or die $!;
	syswrite $out, pack('q', $seconds) or die $!;
	close $out;
	return;
}

set_clock(0);
$node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
autovacuum = off
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
});
{
	local $ENV{LD_PRELOAD} = $library;
	local $ENV{CLOCK_OFFSET} = $file;
	$node->start;
}
$one = $node->background_psql($db);

# The server's clock, in seconds ahead of ours
sub ahead
{
	return value('SELECT extract(epoch FROM clock_timestamp())') - time;
}

sub becomes_true
{
	my ($sql, $what) = @_;
	my $until = time + 180;
	my $got = '';

	while (($got = value($sql)) ne 't' && time < $until)
	{
		sleep 0.1;
	}
	is($got, 't', $what);
	return;
}

value('CREATE EXTENSION queue');
value(q{SELECT queue_create('q'), queue_create('w')});
my $listener = $node->background_psql($db);
my $channel = value(q{SELECT queue_channel('q')});
$listener->query_safe("LISTEN $channel");

sub hears
{
	my ($what) = @_;
	my $until = time + 180;
	my $heard = 0;

	while (!$heard && time < $until)
	{
		$heard = 1
		  if $listener->query_safe('SELECT') =~ /with payload "q"/;
		sleep 0.05;
	}
	is($heard, 1, $what);
	return;
}

# --- back ---

my ($out, $err) = ('', '');
my $start = time;
my $wait = IPC::Run::start(
	[ 'psql', '-XAtq', '-d', $node->connstr($db), '-c', q{CALL queue_wait('w', 3000)} ],
	'>', \$out, '2>', \$err, IPC::Run::timeout(1800));
ok( $node->poll_query_until(
		$db, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ '^CALL queue_wait' AND wait_event_type = 'Extension'}),
	'a session waits');
set_clock(-600);
cmp_ok(ahead(), '<', -500, 'the clock was set back');
eval { $wait->finish; 1 } or $wait->kill_kill;
my $took = time - $start;
is($out, "f\n", 'its wait ends');
cmp_ok($took, '<', 600, 'not when its end comes by the new time');
note sprintf 'a wait of 3 s took %.1f s', $took;

my $pid = value(
	q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'queue worker'});
value("SELECT pg_terminate_backend($pid)");
sleep 0.2;
set_clock(-1200);
becomes_true(
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'queue worker' AND pid <> $pid",
	'a worker that was terminated comes back');
value(q{SELECT queue_push('q', '1', delay => 1)});
hears('listeners are notified of a message that was delayed since');
value(q{SELECT queue_pop('q')});

# --- forward ---

value(q{SELECT queue_push('q', '2', delay => 3600)});
sleep 1;
set_clock(3600);
hears('listeners are notified of a message that is due at once by the new time');
value(q{SELECT queue_push('q', '3', delay => 4000)});
sleep 1;
set_clock(7200);
value(q{SELECT queue_push('q', '4', delay => 1)});
hears('and one that is delayed after that');

# --- back, with a group that waits for its rate ---

value(
	q{SELECT queue_create('r', '{"_group_rate": 0.2}');
	SELECT queue_push_batch('r', '{1,2}', group_keys => '{a,a}')});
sleep 2;
my $take = q{SELECT count(*) FROM queue_claim('r', 300, 0, 1)};
is(value("$take; $take"), "1\n0", 'a claim, and the rate allows no other');
set_clock(5200);
becomes_true(q{SELECT count(*) = 1 FROM queue_claim('r', 300, 0, 1)},
	'the group goes on');

# --- back, before the end of a claim that was counted ---

value(q{SELECT queue_create('e'); SELECT queue_push('e', '1');
	SELECT FROM queue_claim('e', 300, 0, 1)});

sub depths
{
	return value(q{SELECT ready || ' ' || claimed FROM queue_data.queue_status WHERE name = 'e'});
}
is(depths(), '0 1', 'a message is claimed');
set_clock(5600);
becomes_true(
	q{SELECT (claim_priorities & 16384) <> 0 FROM ONLY queue_data.message_0
		WHERE queue_id = (SELECT id FROM queue_data.queue WHERE name = 'e')},
	'the end of its claim is counted');
is(depths(), '1 0', 'it is ready');
set_clock(5200);
is(depths(), '', 'that is not known any more, as the clock was set back');
set_clock(5600);
is(depths(), '1 0', 'until the claim ends once more');

$_->quit foreach ($one, $listener);
$node->stop;
done_testing();
