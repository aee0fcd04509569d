# Every function gives the same rows and the same SQLSTATE through the router as
# in a direct session.  A function of queue without a case here fails the test.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use ClusterTest;
use PostgreSQL::Test::Utils;
use ProxyTest;
use Test::More;

start_servers();
$one->safe_psql('postgres', 'CREATE DATABASE direct');
$one->safe_psql('direct', 'CREATE EXTENSION queue');
foreach my $node ($one, $two)
{
	$node->safe_psql($_, q{
		CREATE FUNCTION work(jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true'})
	  foreach $node == $one ? qw(postgres direct) : 'postgres';
	$node->safe_psql('postgres', 'CREATE ROLE other; GRANT other TO app');
}

# What cannot be called through the router
my %refused = map { $_ => 1 }
  qw(queue_channel queue_push_lazy queue_ready_in_projects job_run job_progress job_result queue_await
	batch_cancel batch_close
	batch_status batch_list job_due queue_shard_init
  topic_bind topic_list topic_publish topic_unbind);

# --- The cases ---

# Statements of psql, in the order in which they run; what they return is compared
# where they do not keep it in variables.  A queue is on any of the servers.
my $cases = <<'SQL';
SELECT queue_create('a'), queue_create('b'), queue_create('c', '{"k": 1}');
SELECT queue_create('a', '{"k": 2}'), queue_create('a', '{"_max_claim_count": -1}');
SELECT queue_create('d', '{"_max_claim_count": 1, "_dead_letter_queue_messages_ttl": 600}');
SELECT queue_create('deep', '{"_dead_letter_queue": "deep"}');
SELECT queue_set_metadata('a', '{"x": [1, 2, null]}'), queue_set_metadata('b', '{"_default_message_ttl": 90}');
SELECT queue_set_metadata('none', '{}');
SELECT queue_set_metadata('a', '[]');
SELECT queue_update('a', '{"x": null, "y": "z"}'), queue_update('b', '{}');
SELECT queue_update('none', '{}');
SELECT queue_update('a', '{"_max_claim_count": "x"}');
SELECT queue_exists('a'), queue_exists('b'), queue_exists('none');
SELECT * FROM queue_get('a');
SELECT * FROM queue_get('c');
SELECT * FROM queue_get('none');
SELECT * FROM queue_list();
SELECT * FROM queue_list('a', 2);
SELECT name FROM queue_list(NULL, 100, '^[bc]');
SELECT queue_list(NULL, 0);
SELECT queue_list(NULL, 10, '[');
SELECT queue_list('a b', 10);
SELECT queue_shard('a'), queue_shard('a', 'p'), queue_shard('a.dead');
SELECT queue_shard('');
SELECT queue_push('a', '"m1"') AS m1, queue_push('a', '{"m": 2}', 300, 0, 5) AS m2 \gset
SELECT queue_push('a', '"d"', dedup_key => 'key') AS m3 \gset
SELECT queue_push('a', '"d"', dedup_key => 'key'), queue_push('b', '1', group_key => 'g', headers => '{"h": 1}') > 0;
SELECT queue_push('a', '"late"', NULL, 500) > 0, queue_push('new', 'null') > 0;
SELECT queue_push('a', '1', 0);
SELECT queue_push('a', '1', 60, 1209601);
SELECT queue_push('a', '1', priority => 10);
SELECT queue_push('a', to_jsonb(repeat('x', 262144)));
SELECT queue_push_once('once', 'shop', 1, '1') = queue_push_once('once', 'shop', 1, '2');
SELECT body FROM queue_messages('once');
SELECT queue_push_once('once', '', 1, '1');
SELECT cardinality(queue_push_batch('b', ARRAY['1', '2', '"3"']::jsonb[], 400, 0, 2)), queue_push_batch('b', '{}');
SELECT cardinality(queue_push_batch('b', ARRAY['1', '2']::jsonb[], group_keys => ARRAY['x', NULL]));
SELECT queue_push_batch('b', ARRAY['1', NULL]::jsonb[]);
SELECT queue_push_once('b', 'orders', 1, '"once"', priority => 1) AS o1 \gset
SELECT queue_push_once('b', 'orders', 1, '"once"') = :o1, queue_push_once('b', 'orders', 2, '2') > :o1;
SELECT queue_push_once('b', '', 1, '1');
SELECT queue_push_batch('b', ARRAY['1', '2']::jsonb[], group_keys => ARRAY['x']);
SELECT array_ndims(queue_post('c', '[{"body": 1}, {"body": 2, "ttl": 90, "dedup_key": "k"}]')), (queue_post('c', '[{"body": 3, "dedup_key": "k"}]'))[1];
SELECT queue_post('c', '[{"ttl": 90}]');
SELECT queue_post('c', '{"body": 1}');
SELECT body, ttl, claim_count, priority, group_key, headers FROM queue_messages('a');
SELECT body, ttl, group_key, headers FROM queue_messages('b', NULL, 2);
SELECT body FROM queue_messages('a', :m1, 10, true, true, true);
SELECT queue_messages('a', 1, 0);
SELECT queue_messages('none');
SET queue.client_id = 'me';
SELECT queue_push('mine', '1') > 0;
SELECT count(*) FROM queue_messages('mine');
SELECT count(*) FROM queue_messages('mine', echo => true);
RESET queue.client_id;
SELECT count(*) FROM queue_messages('mine');
SELECT id = :m2, queue, body, ttl, age < 600, claim_id, claim_count, priority, created_at > now() - interval '1 hour' FROM message_get('a', :m2);
SELECT * FROM message_get('a', 1);
SELECT body FROM messages_get('a', ARRAY[:m2, 1, :m1]);
SELECT messages_get('a', ARRAY[NULL]::bigint[]);
SELECT * FROM queue_stats('none');
SELECT free, claimed, delayed, total, oldest_id = :m1, newest_id > :m1, oldest_age < 600 FROM queue_stats('a');
SELECT group_key, free, claimed, delayed, oldest_age < 600 FROM queue_groups('b');
SELECT group_key FROM queue_groups('b', 'g', 1);
SELECT queue_groups('b', NULL, 0);
SELECT r FROM queue_ready() AS r ORDER BY r COLLATE "C";
SELECT queue_is_empty('a');
SELECT * FROM job_list('none');
SELECT * FROM job_list('');
SELECT queue_is_empty('none');
SELECT queue_is_empty('');
CALL queue_wait('a', 1000);
CALL queue_wait('none', 10);
CALL queue_wait('a', -1);
BEGIN;
CALL queue_wait('a', 0);
CALL queue_wait('a', 1);
ROLLBACK;
DO 'DECLARE r boolean; BEGIN CALL queue_wait($$a$$, 10, r); END';
SELECT body, claim_count, priority FROM queue_claim('a', 6000, 60, 2);
SELECT claim_id AS claim FROM queue_messages('a', include_claimed => true) WHERE claim_id IS NOT NULL LIMIT 1 \gset
SELECT queue_claim('a', 0);
SELECT queue_claim('a', 60, 60, 0);
SELECT queue_claim('a', NULL);
SELECT count(*) FROM queue_claim('none');
SELECT claim_id = :'claim', ttl, age < 600, grace, expires_at > now(), message_count FROM claim_get('a', :'claim');
SELECT count(*) FROM claim_get('a', 'x');
SELECT body FROM claim_messages('a', :'claim');
SELECT count(*) FROM claim_messages('a', NULL);
SELECT claim_renew('a', :'claim', 6000) > now(), claim_renew('a', 'x', 100);
SELECT claim_renew('a', :'claim', 0);
SELECT message_delete('a', :m1), message_delete('a', :m1);
SELECT message_delete('a', :m1, :'claim');
SELECT message_delete('a', :m1, :'claim'), message_delete('a', 1), message_delete('none', 1);
SELECT message_delete('a', :m3, 'x');
SELECT messages_delete('a', ARRAY[:m2, :m3], :'claim');
SELECT messages_delete('a', ARRAY[:m3, 1]), messages_delete('none', ARRAY[1]);
SELECT messages_delete('a', ARRAY[NULL]::bigint[]);
SELECT message_retry('a', :m2, :'claim', 'failed', 400) > now();
SELECT message_retry('a', :m2, 'x');
SELECT message_retry('a', 1, :'claim');
SELECT message_bury('a', 1, :'claim', 'failed');
SELECT message_cancel('a', 1), messages_cancel('a', '{1}'), queue_cancel_where('a', '"none"'), messages_cancel('a', '{1}', 'why'), queue_cancel_where('a', '"none"', reason => NULL);
SELECT message_complete('a', 1, :'claim', '{"r": 1}'), message_complete('a', :m3, 'x');
SELECT message_result('a', 1), message_result('none', 1);
SELECT outcome, result FROM queue_finished('a');
SELECT queue_finished('a', outcome => 'x');
SELECT * FROM job_errors('a', marker => '-infinity');
SELECT error FROM job_errors('a');
SELECT outcome FROM message_finished('a', 1);
SELECT body, state, claim_count, last_error FROM queue_browse('a');
SELECT id > 0 FROM queue_browse('b', 'free', '1', 1, 1);
SELECT queue_browse('a', 'x');
SELECT queue, paused, last_error FROM queue_depth();
SELECT queue, paused, last_error FROM queue_depth('a');
SELECT queue_depth('none');
SELECT queue_depth('a b');
SELECT messages_run_now('a', '{1}'), messages_bury('none', '{1}', 'e');
SELECT messages_run_now('a', '{NULL}');
SELECT claim_complete('a', :'claim');
SELECT count(*) FROM claim_next('b', NULL, 6000, 60, 1);
SELECT claim_id AS claim FROM queue_messages('b', include_claimed => true) WHERE claim_id IS NOT NULL LIMIT 1 \gset
SELECT body, claim_id <> :'claim' FROM claim_next('b', :'claim', 6000, 60, 2);
SELECT claim_next('b', :'claim');
SELECT body FROM queue_step('b', NULL, NULL, NULL, '[{"body": "step"}]', 6000, 60, 1);
SELECT queue_step('b', :'claim');
SELECT queue_step('b', "limit" => -1);
SELECT batch_create('x', false, 'b') > 0;
SELECT claim_id AS claim FROM queue_messages('b', include_claimed => true) WHERE claim_id IS NOT NULL LIMIT 1 \gset
SELECT claim_release('b', :'claim', failed => true), claim_release('b', :'claim', failed => true), claim_release('b', NULL, failed => true);
SELECT claim_release('b', :'claim', -1, failed => true);
SELECT count(*) FROM queue_claim('c', 60), claim_complete('c', claim_id);
SELECT queue, body FROM queue_claim_any(ARRAY['none', 'new']);
SELECT count(*) FROM queue_claim_any(ARRAY['none', 'new']);
SELECT count(*) FROM queue_claim_any('{}');
SELECT queue_claim_any(ARRAY['a b']);
SELECT queue, body FROM queue_claim_any(ARRAY[['none', 'none'], ['none', 'b']], 60, 60, 1);
SELECT queue_claim_any(ARRAY[['b', 'c'], [NULL, 'a']]);
SELECT queue_claim_any(ARRAY['b', NULL]);
SELECT queue_claim_any(ARRAY['b'], 0);
SELECT queue_claim_any(NULL, NULL);
SELECT count(*) FROM queue_pop('b', 2);
SELECT queue_pop('b', 0);
SELECT queue_pop('none');
SELECT queue_push('d', '"dies"') > 0;
SELECT claim_release('d', claim_id, failed => true) FROM queue_claim('d');
SELECT body, origin_queue, reason, last_error, claim_count, died_at > now() - interval '1 hour' FROM queue_dead_letters('d.dead');
SELECT queue_dead_letters('d.dead', 0);
SELECT body FROM queue_dead_letters('d.dead', marker => 9223372036854775807);
SELECT queue_redrive('d.dead', ids => '{1}');
SELECT queue_redrive('d.dead'), queue_redrive('d.dead', 'd'), queue_redrive('none');
SELECT queue_redrive('d.dead', NULL, 0);
SELECT body FROM queue_messages('d');
SELECT queue_dedup_key('{"b": 1, "a": 2}'), queue_dedup_key('{"b": 1, "c": 2}', '{c}');
SELECT queue_dedup_key(NULL);
SELECT jsonb_object_keys(job_root('a', 'sig'));
SELECT job_root('a', NULL);
SELECT claimed, completed, retried, abandoned, duplicates, expired, last_error FROM job_stats('a');
SELECT * FROM job_stats('none');
SELECT job_handler('c', 'work(jsonb)');
SELECT job_handler('c', 'work(jsonb)', 0);
SELECT job_handler('c', 'missing(jsonb)');
SELECT job_handler('c', 'work(jsonb)', 2, 10, 5.5, 'work(text)');
SELECT job_handler('none', 'work(jsonb)');
SELECT metadata FROM queue_get('c');
SELECT job_handler('c', NULL);
SELECT queue_pause('a'), queue_pause('a'), queue_resume('a'), queue_resume('a');
SELECT queue_pause('none');
SELECT queue_resume('none');
SELECT queue_grant('a', 'queue_admin', 'push'), queue_revoke('a', 'queue_admin', 'push');
SELECT queue_grant('a', 'nosuchrole', 'push');
SELECT queue_grant('a', 'app', 'x');
SELECT queue_grant('none', 'app', 'push');
SELECT queue_revoke('a', 'app', 'claim');
SELECT queue_set_owner('b', 'other');
SELECT queue_set_owner('b', 'queue_admin');
SELECT queue_set_owner('none', 'app');
SELECT queue_push('b', '1') > 0;
SELECT queue_purge('a'), queue_purge('a'), queue_purge('none');
BEGIN READ ONLY;
SELECT queue_purge('a');
ROLLBACK;
SELECT queue_drop('d.dead');
SELECT queue_drop('a'), queue_drop('a'), queue_drop('d'), queue_drop('d.dead');
SET queue.project = 'p';
SELECT queue_exists('b'), queue_create('b');
SELECT name FROM queue_list();
RESET queue.project;
SELECT name FROM queue_list();
SQL

# Without values, and with a name that is none: for each function
my @routines = split /\n/, $one->safe_psql('direct', q{
	SELECT p.proname || ' ' || format('%s %s(%s)',
		CASE p.prokind WHEN 'p' THEN 'CALL' ELSE 'SELECT' END, p.proname,
		(SELECT string_agg('NULL::' || CASE WHEN t = 'regprocedure'::regtype THEN 'text'
			ELSE format_type(t, NULL) END, ', ' ORDER BY i)
		FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS u (t, i)))
	FROM pg_proc AS p JOIN pg_depend AS d
	ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
	JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'queue'
	WHERE p.pronamespace = 'public'::regnamespace
	ORDER BY p.proname COLLATE "C"});
cmp_ok(scalar @routines, '>=', 48, 'there are functions');
my $manual = slurp_file("$FindBin::RealBin/../../doc/reference.md");
foreach my $routine (@routines)
{
	my ($name, $call) = split / /, $routine, 2;

	if ($refused{$name})
	{
		is(state_of(routed($call)), '0A000', "$name is refused");
		like($manual, qr/^\|[^|]*`$name`[^|]*\| `0A000`/m, "$name: the manual says so");
		next;
	}
	like($cases, qr/\b$name\(/, "$name has a case");
	# Without an argument it is no call that fails.  Neither is queue_depth of all
	# queues; its cases leave out the numbers, which come later.
	next if $call !~ /NULL/ || $name eq 'queue_depth';
	$cases .= "$call;\n";
	$cases .= $call =~ s/NULL::text(?!\[)/'a b'/r . ";\n" if $call =~ /\(NULL::text(?!\[)/;
}
# For direct calls a function is not a text.
(my $direct_cases = $cases) =~ s/^(.*job_handler\()(.*)NULL::text, (NULL::integer.*)NULL::text\)/$1$2NULL::regprocedure, $3NULL::regprocedure)/mg;

# --- Both ways ---

# What psql prints of these statements, each with a heading.  What differs from
# one run to another gets a name by the order in which it appears.
sub run_cases
{
	my ($database, $statements) = @_;
	my %names;
	my $input = "\\set VERBOSITY sqlstate\nSET client_min_messages = error;\n"
	  . join '', map { (my $text = $_) =~ s/'/''/g; "\\echo '=== $text'\n$_\n" }
	  split /\n/, $statements;
	my ($stdout) = ('');

	IPC::Run::run(
		[ 'psql', '-XqAt', '-d', $one->connstr($database) . ' user=app', '-f', '-' ],
		'<', \$input, '>&', \$stdout);
	$stdout =~ s/^psql:<stdin>:\d+: //mg;
	$stdout =~ s/\b[0-9a-f]{52}\b/$names{$&} ||= 'claim ' . keys %names/eg;
	$stdout =~ s/\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.\d]*[-+][:\d]+/a time/g;
	return $stdout;
}

my @direct = split /^(?==== )/m, run_cases('direct', $direct_cases);
my @routed = split /^(?==== )/m, run_cases('router', $cases);
is(scalar @routed, scalar @direct, 'as many results');
foreach my $i (0 .. $#direct)
{
	my ($heading, $result) = split /\n/, $direct[$i], 2;
	my ($ignored, $through) = split /\n/, $routed[$i], 2;

	is($through, $result, $heading);
}
# Not everything is an error, or empty.
my $rows = grep { /\n./ && !/^ERROR/m } @direct;
my $errors = grep { /^ERROR/m } @direct;
note "$rows with rows, $errors with errors";
cmp_ok($rows, '>', 60, 'rows');
cmp_ok($errors, '>', 100, 'errors');
is(join('', grep { /ERROR:  (?:42601|42883)\b/ && !/missing|work.text/ } @direct),
	'', 'none is for want of a function');

$_->stop foreach $one, $two;
done_testing();
