# What the tests of queue_status share: a server, and a comparison of queue_status
# with queue_stats.

package StatusTest;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Utils;
use QueueTest qw($node value);
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw($node value start_server use_server status_is_right depths
  depths_become recounts kill_worker);

# The server logs when it has counted all messages.
sub start_server
{
	my (%conf) = @_;
	%conf = (
		autovacuum => 'off',
		log_min_messages => 'debug1',
		max_prepared_transactions => 20,
		'queue.min_claim_ttl' => 1,
		'queue.min_claim_grace' => 0,
		'queue.min_message_ttl' => 1,
		%conf);
	QueueTest::start_server(
		join "\n",
		map { "$_ = $conf{$_}" } grep { defined $conf{$_} } sort keys %conf);
	use_server($node);
	return;
}

# Use a server that the test has started, and that has the extension.
sub use_server
{
	($node) = @_;
	create_check();
	return;
}

# A function that returns what is wrong in queue_status and queue_depth.  The numbers must come
# without a scan of a table of messages; that sees all scans of the
# session, so each call needs a new one.
sub create_check
{
	value(
		q{
CREATE FUNCTION wrong() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    wrong text;
BEGIN
    SELECT string_agg(format('%s: %s %s %s is %s %s %s', s.name, s.ready, s.claimed,
                             s.delayed, t.free, t.claimed, t.delayed), ', ')
    INTO wrong
    FROM queue_data.queue_status AS s, queue_stats(s.name) AS t
    WHERE (s.ready, s.claimed, s.delayed) IS DISTINCT FROM (t.free, t.claimed, t.delayed);
    IF wrong IS NULL THEN
        SELECT string_agg(format('%s: queue_depth', s.name), ', ') INTO wrong
        FROM queue_data.queue_status AS s LEFT JOIN queue_depth() AS d ON d.queue = s.name
        WHERE s.project = '' AND ((d.free, d.claimed, d.delayed, d.dead_letters)
            IS DISTINCT FROM (s.ready, s.claimed, s.delayed, s.dead_letters)
            OR (d.oldest_age IS NULL) <> (s.oldest_ready_age IS NULL));
    END IF;
    IF wrong IS NULL THEN
        SELECT 'read: ' || string_agg(relname, ' ') INTO wrong
        FROM pg_stat_xact_user_tables
        WHERE schemaname = 'queue_data' AND relname ~ '^(message|delayed)_\d'
          AND seq_scan > 0;
    END IF;
    RETURN wrong;
END
$$});
	return;
}

# queue_status is as queue_stats says, soon; how soon is printed.
sub status_is_right
{
	my ($what) = @_;
	my $began = time;
	my $wrong;

	do
	{
		$wrong = value('SELECT wrong()');
	} while ($wrong ne '' && time < $began + 180 && sleep 0.1);
	is($wrong, '', $what);
	note sprintf 'after %.1f s', time - $began;
	return;
}

# ready, claimed and delayed of a queue, as queue_status shows them
sub depths
{
	my ($queue) = @_;
	return value(
		"SELECT ready, claimed, delayed FROM queue_data.queue_status WHERE name = '$queue'"
	);
}

# They become that, and then all rows are right.
sub depths_become
{
	my ($queue, $expected, $what) = @_;
	my $began = time;
	my $got;

	while (($got = depths($queue)) ne $expected && time < $began + 180)
	{
		sleep 0.1;
	}
	is($got, $expected, $what);
	note sprintf 'after %.1f s', time - $began;
	status_is_right("$what: all queues are right");
	return;
}

# How often the worker has counted all messages
sub recounts
{
	my $log = slurp_file($node->logfile);
	return scalar(() = $log =~ /counted the messages of all queues/g);
}

# Terminate the worker; another one is started after a second.
sub kill_worker
{
	return value(
		q{SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE backend_type = 'queue worker'});
}

1;
