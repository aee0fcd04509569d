# Rows that plain SQL has written without a callback are found: those of a prepared
# transaction by the worker, and those that no trigger has noticed after a call of
# queue_data.forget().  They are counted, too.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;

start_server(
	q{
max_prepared_transactions = 10
autovacuum = off
});
value(q{
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
	SELECT queue_create(q) FROM unnest(ARRAY['active', 'segment']) q});

# They are claimed one after the other.
sub all_found
{
	my ($what, %expected) = @_;

	foreach my $q (sort keys %expected)
	{
		becomes(qq{SELECT body #>> '{}' FROM queue_claim('$q', 600, 60, 1)}, $_, "$what: $_")
		  foreach split / /, $expected{$q};
		is(value(qq{SELECT count(*) FROM queue_claim('$q', 600, 60)}), 0, "$what: no more");
		becomes(
			qq{SELECT claimed FROM queue_data.queue_status WHERE name = '$q'},
			value(qq{SELECT claimed FROM queue_stats('$q')}),
			"$what: they are counted");
	}
	return;
}

# Each queue is known to be empty.
is(value("SELECT count(*) FROM queue_claim('$_', 300, 60)"), 0, "$_ is empty")
  foreach qw(active segment);
foreach my $round (1, 2)
{
	my $segment = 5 + $round;

	value(qq{
		BEGIN;
		SELECT write_row('active', 0, '"a$round"');
		SELECT write_row('segment', $segment, to_jsonb(format('s%s%s', $round, i)))
		FROM generate_series(1, 3) i;
		PREPARE TRANSACTION 'p';
		COMMIT PREPARED 'p'});
	all_found(
		"prepared, round $round",
		active => "a$round",
		segment => "s${round}1 s${round}2 s${round}3");
}
foreach my $round (1, 2)
{
	my $segment = 7 + $round;

	value(qq{
		ALTER TABLE queue_data.message_0 DISABLE TRIGGER ALL;
		ALTER TABLE queue_data.message_$segment DISABLE TRIGGER ALL;
		SELECT write_row('active', 0, '"b$round"');
		SELECT write_row('segment', $segment, to_jsonb(format('t%s%s', $round, i)))
		FROM generate_series(1, 3) i});
	is(value(qq{SELECT count(*) FROM queue_claim('$_', 300, 60)}), 0, "round $round: claims do not find them in $_")
	  foreach qw(active segment);
	value('BEGIN; SELECT queue_data.forget(); ROLLBACK');
	is(value(q{SELECT count(*) FROM queue_claim('active', 300, 60)}), 0, 'nor after a rollback');
	value('SELECT queue_data.forget()');
	all_found(
		"without a trigger, round $round",
		active => "b$round",
		segment => "t${round}1 t${round}2 t${round}3");
}

$node->stop;
done_testing();
