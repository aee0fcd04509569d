# Rows that come without a callback (plain SQL in a prepared transaction) are
# found within about ten seconds, again and again: a search that found some does
# not put off the next one.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;
use Time::HiRes qw(sleep time);

my $bound = 180;    # seconds; ten are promised, on a machine with time to spare

start_server(
	q{
max_prepared_transactions = 10
autovacuum = off
queue.database_workers = 0
});
$node->safe_psql(
	'postgres', q{
-- Copies a message of another queue, in place of a push
CREATE FUNCTION write_row(to_queue text, segment int, body jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('
		INSERT INTO queue_data.message_%1$s
		SELECT m.*
		FROM queue_data.message_0 t, jsonb_populate_record(
			NULL::queue_data.message_%1$s,
			to_jsonb(t) || jsonb_build_object(
				''id'', (nextval(''queue_data.message_id'') << 14) + %1$s,
				''queue_id'', (SELECT id FROM queue_data.queue WHERE name = $1),
				''body'', $2)) m
		WHERE t.body = ''"template"''', segment) USING to_queue, body;
END $$;
SELECT queue_push('templates', '"template"');
SELECT queue_create(q) FROM unnest(ARRAY['active', 'segment']) q;
});

# Claims one after the other from all queues until each has got what was
# expected, or the time is up.
sub all_found
{
	my ($what, %expected) = @_;
	my $until = time + $bound;
	my %got = map { $_ => [] } keys %expected;

	while (time < $until
		&& grep { @{ $got{$_} } < split ' ', $expected{$_} } keys %expected)
	{
		foreach my $q (keys %expected)
		{
			my $body = $node->safe_psql('postgres',
				"SELECT body #>> '{}' FROM queue_claim('$q', 600, 60, 1)");
			push @{ $got{$q} }, $body if $body ne '';
		}
		sleep 0.2;
	}
	is(join(' ', sort @{ $got{$_} }), $expected{$_}, "$what: $_")
	  foreach sort keys %expected;
	return;
}

# Each queue is known to be empty.
is($node->safe_psql('postgres', "SELECT count(*) FROM queue_claim('$_', 300, 60)"), 0,
	"$_ is empty")
  foreach qw(active segment);
foreach my $round (1, 2)
{
	my $segment = 5 + $round;

	$node->safe_psql(
		'postgres', qq{
		BEGIN;
		SELECT write_row('active', 0, '"a$round"');
		SELECT write_row('segment', $segment, to_jsonb(format('s%s%s', $round, i)))
		FROM generate_series(1, 3) i;
		PREPARE TRANSACTION 'p';
		COMMIT PREPARED 'p'});
	all_found(
		"round $round",
		active => "a$round",
		segment => "s${round}1 s${round}2 s${round}3");
}

$node->stop;
done_testing();
