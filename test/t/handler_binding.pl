# What may be bound as a handler, by which roles: what is refused binds nothing.
#
# test/check -q runs it, too.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use HandlerTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

# One runner, so that the roles take turns
start_server('queue.runners = 1');
create_two_roles();

# --- privileges to bind ---

value(q{SET ROLE alice; SELECT queue_create('bind');
	CREATE FUNCTION alice.lent(jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';
	CREATE FUNCTION alice.takes_text(text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
	CREATE FUNCTION alice.gives_int(jsonb) RETURNS int LANGUAGE sql AS 'SELECT 1';
	CREATE FUNCTION alice.gives_many(jsonb) RETURNS SETOF boolean LANGUAGE sql AS 'SELECT true';
	CREATE FUNCTION alice.fine(jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';
	REVOKE EXECUTE ON FUNCTION alice.fine(jsonb) FROM PUBLIC;
	CREATE TYPE alice.queue_message AS (id int);
	CREATE FUNCTION alice.fake(alice.queue_message) RETURNS boolean LANGUAGE sql AS 'SELECT true';
	CREATE PROCEDURE alice.proc(jsonb) LANGUAGE sql AS 'SELECT true';
	SET ROLE mallory;
	CREATE FUNCTION mallory.hers(jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true'});
my $closed = value(
	q{CREATE SCHEMA closed;
	CREATE FUNCTION closed.f(jsonb) RETURNS boolean SECURITY DEFINER
	LANGUAGE sql AS 'SELECT true';
	SELECT 'closed.f(jsonb)'::regprocedure::oid});
my %errors = (
	"SET ROLE alice; SELECT job_handler('bind', $closed)" => '42501',
	q{SET ROLE mallory; SELECT job_handler('bind', 'alice.lent(jsonb)')} => '42501',
	q{SET ROLE mallory; SELECT queue_create('hers'); SELECT job_handler('hers', 'alice.fine(jsonb)')} => '42501',
	q{SET queue.auto_create = off; SELECT job_handler('nix', 'alice.fine(jsonb)')} => '42704',
	q{SELECT job_handler('bind', 'alice.lent(jsonb)')} => '42501',
	q{SET ROLE alice; SELECT job_handler('bind', 'mallory.hers(jsonb)')} => '42501',
	q{SET ROLE alice; SELECT job_handler('bind', 'alice.fine(jsonb)', teardown => 'mallory.hers(jsonb)')} => '42501',
	q{SELECT job_handler('bind', 'alice.nix(jsonb)')} => '42883',
	q{SELECT job_handler('bind', 0)} => '42883',
	q{SELECT job_handler('bind', 'alice.takes_text(text)')} => '22023',
	q{SELECT job_handler('bind', 'alice.gives_int(jsonb)')} => '22023',
	q{SELECT job_handler('bind', 'alice.gives_many(jsonb)')} => '22023',
	q{SELECT job_handler('bind', 'alice.fake(alice.queue_message)')} => '22023',
	q{SELECT job_handler('bind', 'alice.proc(jsonb)')} => '22023',
	q{SELECT job_handler('bind', 'pg_catalog.max(int)')} => '22023',
	q{SELECT job_handler('bind', 'alice.fine(jsonb)', NULL)} => '22004',
	q{SELECT job_handler('bind', 'alice.fine(jsonb)', 0)} => '22023',
	q{SELECT job_handler('bind', 'alice.fine(jsonb)', 257)} => '22023',
	q{SELECT job_handler('bind', 'alice.fine(jsonb)', 1, 0)} => '22023',
	q{SELECT job_handler('bind', 'alice.fine(jsonb)', 1, 1, 0)} => '22023',
	q{SELECT job_handler('bind', 'alice.fine(jsonb)', 1, 1, 'NaN')} => '22023',
	q{SELECT job_handler('bind', 'alice.fine(jsonb)', 1, 1, -1)} => '22023',
	q{SET ROLE alice; SELECT job_handler('bind', 'alice.fine(jsonb)', 1, 1, 1, 'alice.takes_text(text)')} => '22023',
	q{SET ROLE nobody; SELECT job_handler('bind', 'alice.lent(jsonb)')} => '42501',
	q{CREATE FUNCTION pg_temp.f(jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true'; SELECT job_handler('bind', 'pg_temp.f(jsonb)')} => '22023',
	q{BEGIN READ ONLY; SELECT job_handler('bind', 'alice.fine(jsonb)')} => '25006',
	q{SELECT job_handler(NULL, 'alice.fine(jsonb)')} => '22004',
	q{SET ROLE mallory; SELECT * FROM queue_data.queue_handlers} => '42501',
	q{SET ROLE mallory; SELECT * FROM queue_data.handler} => '42501',
	q{SET ROLE mallory; SELECT * FROM queue_data.runners()} => '42501',
	q{SET ROLE nobody; CALL job_run()} => '42501');
foreach my $sql (sort keys %errors)
{
	is(state_of($sql), $errors{$sql}, "$errors{$sql}: $sql");
}
is(value(q{SELECT count(*) FROM queue_data.queue_handlers WHERE queue = 'bind'}),
	'0', 'none of these bound anything');

$node->stop;
done_testing();
