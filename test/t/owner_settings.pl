# Whatever the owner of a database or a superuser sets for the database or a role, the
# background processes do their work: each parameter that a session may have set has
# each of its extreme values once.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;
use Time::HiRes qw(sleep time);

start_server(
	q{
autovacuum = off
min_parallel_table_scan_size = 0
max_prepared_transactions = 5
queue.segment_size = '256kB'
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
});
value(q{CREATE ROLE owner; CREATE ROLE app; CREATE ROLE other; CREATE DATABASE owned OWNER owner});

# Sessions that the settings do not reach, because they are there before
my $admin = $node->background_psql($db);
my $one = $node->background_psql('owned');
sub in_one { return $one->query_safe($_[0]) }

sub soon
{
	my ($query, $what) = @_;
	my $until = time + 180;
	my $got;

	sleep 0.05 while ($got = in_one("SELECT $query")) ne 't' && time < $until;
	return is($got, 't', $what);
}

in_one(
	q{SET client_min_messages = error;
	CREATE EXTENSION queue;
	CREATE SCHEMA app AUTHORIZATION app;
	CREATE TABLE app.done (what text);
	ALTER TABLE app.done OWNER TO app;
	CREATE FUNCTION app.note(body jsonb) RETURNS bool LANGUAGE plpgsql AS
		'BEGIN INSERT INTO app.done VALUES (body #>> ''{}''); RETURN true; END';
	GRANT queue_admin TO app;
	-- so large that they are in the TOAST table
	CREATE FUNCTION metadata(options jsonb) RETURNS jsonb LANGUAGE sql AS
		$$SELECT options || jsonb_build_object('note', string_agg(md5(i::text), ''))
			FROM generate_series(1, 1000) AS i$$;
	SELECT queue_create('q', metadata('{}')), queue_create('history', metadata('{"_keep_finished": 1}')),
		queue_create('dies', metadata('{"_max_claim_count": 1}')), queue_create('member', metadata('{}'));
	SET ROLE app;
	SELECT queue_create('jobs', metadata('{}')), job_handler('jobs', 'app.note(jsonb)');
	RESET ROLE;
	SELECT 'LISTEN ' || queue_channel('q') \gexec
	-- so many that another process counts them
	SELECT queue_push_batch('big', (SELECT array_agg(to_jsonb(repeat(md5(i::text), 55)))
		FROM generate_series(1, 2500) AS i)) IS NOT NULL FROM generate_series(1, 4)});

# Texts that are odd for a parameter; all others get the same two.
$admin->query_safe(
	q{SET client_min_messages = error;
	CREATE TABLE odd (name text, vals text[]);
	INSERT INTO odd VALUES
		('lc_messages', '{C}'), ('lc_monetary', '{C}'), ('lc_numeric', '{C}'), ('lc_time', '{C}'),
		('TimeZone', '{Pacific/Chatham, America/St_Johns}'),
		('DateStyle', '{"SQL, DMY", German}'),
		('client_encoding', '{LATIN9, SQL_ASCII, EUC_JP}'),
		('role', '{other, none}'), ('session_authorization', '{other, postgres}'),
		('search_path', '{nowhere, "", app}'),
		-- Only a superuser sets it; from PostgreSQL 18 on no extension is found without this.
		('dynamic_library_path', '{$libdir}'),
		('application_name', '{pg_dump, "queue worker"}')});
my $generate = q{SELECT CASE s.vartype
		WHEN 'bool' THEN CASE ROUND % 2 WHEN 0 THEN 'off' ELSE 'on' END
		WHEN 'enum' THEN s.enumvals[1 + ROUND % cardinality(s.enumvals)]
		WHEN 'string' THEN o.vals[1 + ROUND % cardinality(o.vals)]
		-- all that they can be; where one counts only if another is large, or only if it
		-- is small, that is in the third and the fourth round
		ELSE CASE WHEN ROUND = 0 OR ROUND = 2 AND s.name ~ '^min_|_cost$' OR
			ROUND = 3 AND s.name !~ '^max_|_mem$' OR ROUND > 3 AND ascii(md5(s.name)) % 2 = 0
			THEN s.min_val ELSE s.max_val END END AS value,
	s.name, s.context
	FROM pg_settings AS s, LATERAL (SELECT coalesce((SELECT vals FROM odd
		WHERE odd.name = s.name), '{nowhere, ""}') AS vals) AS o
	WHERE s.context IN ('user', 'superuser')
	UNION ALL SELECT vals[1 + ROUND % cardinality(vals)], name, 'user' FROM odd
	WHERE name IN ('role', 'session_authorization')};

# Lists of log levels are long, and there is no need to try each.
my $rounds = $admin->query_safe(
	q{SELECT max(cardinality(enumvals)) FROM pg_settings
	WHERE context IN ('user', 'superuser') AND NOT 'debug5' = ANY (enumvals)});

# Sets all of them for the database and for the roles of the processes.  A value that
# PostgreSQL refuses is left out.
sub set_extremes
{
	my ($round) = @_;
	my $settings = $generate =~ s/ROUND/$round/gr;

	return $admin->query_safe(
		qq{CREATE TEMP TABLE refused (name text);
		DO \$\$
		DECLARE p record; target text;
		BEGIN
			FOR p IN $settings LOOP
				FOREACH target IN ARRAY '{database owned, role app, role postgres}'::text[] LOOP
					BEGIN
						-- An owner can do this.
						IF p.context = 'user' AND target = 'database owned' THEN
							SET LOCAL ROLE owner;
						END IF;
						EXECUTE format('ALTER %s SET %I = %L', target, p.name, p.value);
						RESET ROLE;
					EXCEPTION WHEN OTHERS THEN
						INSERT INTO refused VALUES (p.name);
					END;
				END LOOP;
			END LOOP;
		END \$\$;
		SELECT string_agg(DISTINCT name, ' ') FROM refused;
		DROP TABLE refused});
}

my $worker = q{FROM queue_data.queue_workers WHERE database = current_database()};
my $scans = q{SELECT sum(pg_stat_get_xact_numscans(oid)) AS n FROM pg_class WHERE relname ~ '^message_\d+$'};

# The settings of this round are those of the processes that run from here on.
sub restart_processes
{
	my $pid = in_one("SELECT pid $worker");

	in_one(qq{SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid $worker
		UNION ALL SELECT pid FROM queue_data.queue_runners) AS p});
	return soon("count(*) = 1 $worker AND pid IS NOT NULL AND pid <> $pid",
		'there is a new worker');
}

# All that the processes do
sub use_processes
{
	my ($expired, $dead, $notified, $truncated) = split /\|/,
	  in_one("SELECT expired_claims, dead_letters, notifications, truncated $worker");

	in_one(
		q{TRUNCATE app.done;
		SELECT queue_push('jobs', '"now"'), queue_push('jobs', '"later"', delay => 1);
		SELECT queue_push('q', '1'), queue_push('dies', '1');
		SELECT count(*) FROM queue_claim('q', 1, 0);
		SELECT count(*) FROM queue_claim('dies', 1, 0);
		BEGIN;
		SELECT batch_create() AS b \gset
		SELECT queue_push('member', '1', batch => :b), queue_push('jobs', '"after"', after => :b);
		COMMIT;
		SELECT count(*) FROM queue_pop('member');
		SELECT queue_push_batch('history', array_fill('1'::jsonb, '{100}')) IS NOT NULL;
		SELECT claim_complete('history', claim_id)
		FROM (SELECT DISTINCT claim_id FROM queue_claim('history', 60, 0, 100)) AS c;});
	soon(q{array_agg(what ORDER BY what) = '{after, later, now}' FROM app.done}, 'jobs are run');
	soon("expired_claims > $expired AND dead_letters > $dead AND notifications > $notified $worker",
		'claims run out');
	in_one(q{SELECT queue_purge('q'), queue_purge('dies.dead')});
	for (my $until = time + 180; in_one("SELECT truncated $worker") == $truncated && time < $until; sleep 0.1)
	{
		in_one(q{SELECT queue_push_batch('fills', array_fill(to_jsonb(repeat('x', 1000)), '{200}')) IS NOT NULL;
			SELECT count(*) FROM queue_pop('fills', 100); SELECT count(*) FROM queue_pop('fills', 100)});
	}
	cmp_ok(in_one("SELECT truncated $worker"), '>', $truncated, 'segments are truncated');
	soon(
		q{sum(pg_relation_size(oid)) = 0 FROM pg_class
			WHERE relnamespace = 'queue_data'::regnamespace AND relname ~ '^finished_\d$'},
		'the history is truncated');

	# Until the messages are counted, queue_status reads them.
	my $counted = '';
	for (my $until = time + 180; $counted ne 't' && time < $until; sleep 0.1)
	{
		$counted = in_one("BEGIN; $scans \\gset
			SELECT count(*) FROM queue_data.queue_status \\g /dev/null
			SELECT n = :n FROM ($scans) AS s; COMMIT");
	}
	is($counted, 't', 'messages are counted');
	is(in_one(q{SELECT ready FROM queue_data.queue_status WHERE name = 'big'}), '10000', 'all of them');
	return;
}

foreach my $round (0 .. $rounds - 1)
{
	note "round $round; refused: ", set_extremes($round);
	cmp_ok($admin->query_safe(q{SELECT min(cardinality(setconfig)) FROM pg_db_role_setting}),
		'>', 150, 'most parameters are set');
	restart_processes();
	use_processes();
}
is(in_one("SELECT last_error IS NULL $worker"), 't', 'the worker had no error');
unlike(slurp_file($node->logfile), qr/was terminated by signal/, 'no process crashed');
$_->quit foreach $admin, $one;
$node->stop;
done_testing();
