# What the documents show works as it stands.  README.md, doc/*.md and doc/howto/*.md are read
# in the order of @documents, from top to bottom, in one database.  Every block
# in SQL, shell and Python has a comment before it:
#
#	<!-- test: NAME -->				it is run as the role of the README
#	<!-- test: NAME, superuser -->	it is run as a superuser
#	<!-- output -->					what psql prints for the block before
#	<!-- test: languages -->		it is a program that languages.pl runs
#	<!-- test: test-databases -->	languages.pl runs it in template1
#	<!-- test: NAME, once -->		a program that does something, and ends
#
# Other programs are workers that run until they are stopped.  A line of their own
# says how long they wait when nothing wakes them; only that is changed here.  It
# becomes much longer than the test may take, so that they have to be woken.
#
# Links must lead to a file, and to a heading in it.  The blocks of tutorials are run by
# tests of their own (test/perl/Tutorial.pm).

use strict;
use warnings;

use Cwd 'abs_path';
use File::Basename;
use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = abs_path(dirname(__FILE__) . '/../..');

# In the order of reading
my @documents = ('README.md',
	map { "doc/$_.md" }
	  qw(workers languages jobs groups batches reference operations scaling guarantees migrating benchmarks
	  internals contributing troubleshooting));

# The role that the README creates, with the privileges that it grants
my $role = 'app';

# One task each.  They are read in the order of their names.
push @documents, map { s/^\Q$top\E\///r } glob "$top/doc/howto/*.md";

is( join(' ', sort map { s/^\Q$top\E\///r } glob "$top/doc/*.md $top/doc/howto/*.md"),
	join(' ', sort grep { /^doc/ } @documents),
	'all documents are read');

# Fenced blocks with the comment before them; headings and links outside
my (@blocks, %anchors, @links);

sub read_document
{
	my ($file) = @_;
	my ($mark, $block, $line, %slugs) = ('');
	foreach (split /\n/, slurp_file("$top/$file"))
	{
		$line++;
		if ($block && /^```$/)
		{
			push @blocks, $block;
			undef $block;
		}
		elsif ($block)
		{
			$block->{text} .= "$_\n";
		}
		elsif (/^```(\w*)$/)
		{
			$block = {
				lang  => $1,
				mark  => $mark,
				where => "$file line $line",
				text  => ''
			};
		}
		elsif (/^#+ (.*)/)
		{
			my $slug = lc($1) =~ s/[^\w -]//gr =~ s/ /-/gr;
			$anchors{$file}{ $slugs{$slug}++ ? "$slug-" . ($slugs{$slug} - 1) : $slug } = 1;
		}
		else
		{
			push @links, map { [ $file, $line, $_ ] } /\]\(([^()\s]+)\)/g;
		}
		$mark = /^<!-- (.*) -->$/ ? $1 : '';
	}
	ok(!$block, "$file: every block is closed");
	return;
}
my @tutorials = map { s/^\Q$top\E\///r } glob "$top/doc/tutorials/*.md";
read_document($_) foreach grep { -e "$top/$_" } @documents, @tutorials,
  'doc/monitoring/README.md', 'packaging/image/README.md', 'CHANGELOG.md';

# The blocks of a tutorial are run by its own test.
is(join(' ', grep { !-e "$top/test/t/" . basename($_) =~ s/(.*)\.md$/tutorial_$1.pl/r } @tutorials),
	'', 'each tutorial has a test');
@blocks = grep { $_->{where} !~ m{^doc/tutorials/} } @blocks;

# Those of the clients have tests of their own for their code.
{
	my @of_others = splice @blocks;

	read_document(s/^\Q$top\E\///r) foreach glob "$top/clients/README.md $top/clients/*/*.md";
	@blocks = @of_others;
}

# The README begins with code; what installs the extension comes later.
@blocks = ((grep { $_->{mark} =~ /^test: install\b/ } @blocks),
	(grep { $_->{mark} !~ /^test: install\b/ } @blocks));

my @unmarked = map { $_->{where} } grep {
	$_->{lang} =~ /^(?:sql|sh|python|javascript|java|ruby|go|php|perl)$/
	  && $_->{mark} !~ /^test: [\w-]+(?:, (?:superuser|once))?$/
} @blocks;
is("@unmarked", '', 'every block of code is marked to be tested');

# An address outside of this tree is not checked.
my @broken;
foreach (grep { $_->[2] !~ /^https?:/ } @links)
{
	my ($file, $line, $link) = @$_;
	my ($path, $anchor) = $link =~ /^([^#]*)(?:#(.*))?$/;
	my $target = $path eq '' ? $file : dirname($file) . "/$path";
	$target =~ s,^\./,,;
	1 while $target =~ s,[^/]+/\.\./,,;
	push @broken, "$file line $line: $link"
	  if !-e "$top/$target" || defined $anchor && !$anchors{$target}{$anchor};
}
is(join("\n", @broken), '', 'every link leads somewhere');

# What doc/internals.md names in the source must be there.
{
	my $internals = slurp_file("$top/doc/internals.md");
	my @files     = glob "$top/src/*.[ch] $top/src/*/*.[ch]";
	my $source    = join '', map { slurp_file($_) } @files;
	my %names     = map { basename($_) => 1 } @files;
	my @missing   = grep { !$names{$_} } $internals =~ /`(\w+\.[ch])`/g;

	my %functions = map { $_ => 1 } 'sql_NAME', $source =~ /^(?:static .*?)?(\w+)\(/mg;
	push @missing, grep { !$functions{$_} } $internals =~ /`(\w+)\(\)`/g;
	is("@missing", '', 'the files and functions in doc/internals.md exist');
}

# Pages that are to be read as a whole
my %max_words = ('README.md' => 1200, 'doc/internals.md' => 5000);
foreach my $file (sort keys %max_words)
{
	my @words = split ' ', slurp_file("$top/$file");
	cmp_ok(scalar(@words), '<=', $max_words{$file}, "$file is short");
}

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->start;
# psycopg 3 returns text of an SQL_ASCII database as bytes.
$node->safe_psql('postgres', q{CREATE DATABASE documents TEMPLATE template0
	ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'});
my $dir = PostgreSQL::Test::Utils::tempdir();
$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;
$ENV{PGUSER} = getpwuid($<);
$ENV{PGDATABASE} = 'documents';

sub query
{
	return $node->safe_psql('documents', $_[0]);
}

my $fallback = 1000;

# Sessions of a worker under test
my $others = q{FROM pg_stat_activity WHERE datname = current_database()
	AND backend_type = 'client backend' AND pid <> pg_backend_pid()};

sub trim
{
	my ($text) = @_;
	$text =~ s/[ \t]+$//mg;
	$text =~ s/\s+\z//;
	return $text;
}

# Runs a program in a directory of its own: Python would take the queue.so
# that a build leaves behind for its module "queue".
sub run_in_dir
{
	my ($command, $out, $err) = @_;
	return IPC::Run::run($command, '>', $out, '2>', $err,
		init => sub { chdir $dir or die $! });
}

# Programs that can run a worker: [name, command before the file's name]
my @paths = (split(/:/, $ENV{PATH}), '/usr/bin');

sub first_that
{
	my ($programs, @arguments) = @_;
	foreach my $program (map { my $p = $_; map { "$_/$p" } @paths } @$programs)
	{
		next unless -x $program;
		my ($out, $err);
		return $program
		  if run_in_dir([ $program, @arguments ], \$out, \$err);
	}
	return;
}

my @python;
foreach my $module ('psycopg', 'psycopg2')
{
	my $program = first_that(['python3'], '-c', "import $module") or next;

	# with psycopg2 as if psycopg were not installed
	my @command = ($program);
	push @command, '-c',
	  'import sys; sys.modules["psycopg"] = None; exec(open(sys.argv[1]).read())'
	  if $module eq 'psycopg2';
	push @python, [ $module, @command ];
}

# A worker must not outlive a test that dies.
my $worker;

END
{
	local $?;
	$worker->signal('KILL') if $worker;
}

# A worker must do everything once, what is there when it starts and what
# arrives while it waits.  The queue is left as it was.
sub run_worker
{
	my ($block, $messages, @drivers) = @_;
	my $file   = "$dir/$block->{name}";
	my $text   = $block->{text};
	my $where  = $block->{where};
	my $rounds = 3;
	my $before =
	  query(q{SELECT quote_literal(array_agg(body)) || '::jsonb[]' FROM queue_messages('mail')});

	my $library = $text =~ /pg_claim_queue/;

	is($text =~ s/^(fallback ?= ?)30\b/$1$fallback/gim,
		1, "$where says how long it waits when nothing wakes it")
	  unless $library;
	append_to_file($file, $text);
	foreach my $driver (@drivers)
	{
		my ($name, @command) = @$driver;
		my ($out, $err) = ('', '');
		my $done = 0;

		query(q{TRUNCATE sent; SELECT queue_purge('mail')});
		foreach my $round (1 .. $rounds)
		{
			query(qq{SELECT queue_push_batch('mail',
					array_agg(jsonb_build_object('to', 'r$round.' || g)))
				FROM generate_series(1, $messages) AS g});
			$worker ||= do
			{
				local $ENV{PGUSER} = $role;
				local $ENV{PYTHONPATH} = "$top/clients/python" if $library;
				IPC::Run::start([ @command, $file ], '<', \undef,
					'>', \$out, '2>', \$err,
					init => sub { chdir $dir or die $! });
			};

			# It has done all, and has been waiting for a while.
			$done += $node->poll_query_until('documents',
				qq{SELECT (SELECT count(*) >= $round * $messages FROM sent)
					AND (SELECT total = 0 FROM queue_stats('mail'))
					AND (SELECT max(clock_timestamp() - state_change) > '0.3 s' $others)});
			last if $done < $round;
		}
		is($done, $rounds, "$where with $name works and waits");
		$worker->pump_nb;
		is(ClusterTest::without_creation($err), '', "$where with $name has no complaint")
		  or diag($out);
		is( query('SELECT count(*), count(DISTINCT message_id), count(DISTINCT recipient) FROM sent'),
			join('|', ($rounds * $messages) x 3),
			"$where with $name does everything once");
		is(query(q{SELECT free, claimed FROM queue_stats('mail')}),
			'0|0', "$where with $name leaves nothing");

		# A session in queue_wait does not notice that its client is gone;
		# and the shell's psql is not.
		$worker->signal('TERM');
		query("SELECT pg_terminate_backend(pid) $others");
		eval { $worker->finish };
		undef $worker;
		$node->poll_query_until('documents', "SELECT count(*) = 0 $others")
		  or die 'a session of a worker stays';
	}
	query('TRUNCATE sent');
	query("SELECT queue_push_batch('mail', $before)") if $before;
	return;
}

# A program that ends: with the libraries of clients/.  Returns what it prints;
# undef if what it needs is not installed.
my %once = (
	'python' => {
		program => 'python3',
		needs   => [ '-c', 'import psycopg' ],
		library => { PYTHONPATH => "$top/clients/python" } },
	'celery' => {
		program => 'python3',
		needs   => [ '-c', 'import celery, psycopg2' ],
		library => { PYTHONPATH => "$top/clients/celery" } },
	'ruby' => {
		program => 'ruby',
		needs   => [ '-e', 'require "active_job"; require "pg"' ],
		library => { RUBYLIB => "$top/clients/activejob/lib" } });

sub run_once
{
	my ($block) = @_;
	my $once    = $once{ $block->{text} =~ /celery/ ? 'celery' : $block->{lang} };
	my $program = first_that([ $once->{program} ], @{ $once->{needs} }) or return;
	my $library = $once->{library};
	my ($out, $err);

	append_to_file("$dir/$block->{name}", $block->{text});
	local @ENV{ keys %$library } = values %$library;
	local $ENV{PGUSER} = $role;
	ok(run_in_dir([ $program, "$dir/$block->{name}" ], \$out, \$err),
		"$block->{where}: $block->{name} runs");
	is(ClusterTest::without_creation($err), '',
		"$block->{where}: $block->{name} has no complaint");
	return $out;
}

# What the blocks leave behind: a query and its answer, and what they print
my %after = (
	'install' => [
		q{SELECT rolsuper, (SELECT string_agg(roleid::regrole::text, ' ' ORDER BY roleid::regrole::text)
				FROM pg_auth_members WHERE member = r.oid)
			FROM pg_roles AS r WHERE rolname = 'app'},
		'f|queue_consumer queue_producer' ],
	'first' => [
		q{SELECT body, (SELECT total FROM queue_stats('mail')) FROM queue_messages('mail')},
		'{"to": "bob@example.org"}|1' ],
	'first-stats' => [ q{SELECT owner FROM queue_data.queue}, 'app' ],
	'push' => [
		q{SELECT (SELECT count(*) FROM sent), body FROM queue_messages('mail')},
		'0|{"to": "ann@example.org"}' ],
	'psql-worker' => [
		q{SELECT string_agg(recipient, ' '), (SELECT total FROM queue_stats('mail')) FROM sent},
		'bob@example.org|0' ],
	'psql-renew' =>
	  [ q{SELECT free, claimed, delayed FROM queue_stats('mail')}, '0|0|1' ],
	'psql-pop' => [
		q{SELECT string_agg(recipient, ' '), (SELECT free FROM queue_stats('mail'))
			FROM sent WHERE recipient ~ '^(dan|eve)'},
		'dan@example.org eve@example.org|0' ],
	'wait-plpgsql' => [ q{SELECT claimed FROM queue_stats('mail')}, '0' ],
	'push-options' =>
	  [ q{SELECT free, delayed FROM queue_stats('jobs')}, '5|2' ],
	'dead-letters' => [
		q{SELECT (SELECT total FROM queue_stats('orders.dead')), claim_count, body FROM queue_messages('orders')},
		'0|0|{"order": 1}' ],
	'ready'     => [ q{SELECT count(*) FROM queue_ready()}, '0' ],
	'jobs-lazy' => [
		q{SELECT body FROM queue_messages('purge')}, qq{{"page": 7}\n{"page": 8}} ],
	'jobs-duplicates' => [ q{SELECT free FROM queue_stats('links')}, '1' ],
	'jobs-roots'      => [ q{SELECT total FROM queue_stats('leaves')}, '2' ],
	'jobs-retry'      => [ q{SELECT total FROM queue_stats('fetch')}, '0' ],
	'jobs-bury'       => [ q{SELECT total FROM queue_stats('fetch.dead')}, '2' ],
	'jobs-cancel'     => [ q{SELECT total FROM queue_stats('fetch')}, '0' ],
	'jobs-results'    => [ q{SELECT count(*) FROM queue_finished('resize')}, '1' ],
	'handler'         => [
		q{SELECT role, handler, reason IS NULL FROM queue_data.queue_handlers},
		'app|public.index_page(jsonb)|t' ],
	'job-list' =>
	  [ q{SELECT DISTINCT queue, handler FROM job_list()}, 'index|public.index_page(jsonb)' ],
	'job-progress' => [
		q{BEGIN; SELECT index_pages('{"pages": [{"page": 7, "text": "a b"}]}');
		SELECT words FROM search_index WHERE page = 7; ROLLBACK}, "t\n2" ],
	'job_run' => [
		q{DO $$BEGIN
			FOR i IN 1 .. 600 LOOP
				EXIT WHEN EXISTS (SELECT FROM search_index);
				PERFORM pg_sleep(0.1);
			END LOOP;
		END$$; SELECT words FROM search_index}, '4' ],
	'handlers' => [ q{SELECT count(*) FROM queue_data.queue_handlers}, '1' ],
	'slots' => [ q{SELECT count(*) FROM queue_data.queue_handlers}, '2' ],
	'topics-bind' => [ q{SELECT count(*) FROM topic_list()}, '3' ],
	'topics-publish' => [ q{SELECT total FROM queue_stats('audit')}, '0' ],
	'batches-import' => [ q{SELECT delayed FROM queue_stats('report')}, '1' ],
	'batches-progress' => [ q{SELECT free FROM queue_stats('import')}, '3' ],
	'batches-end'      => [ q{SELECT total FROM queue_stats('report')}, '0' ],
	'batches-diamond'  => [ q{SELECT total FROM queue_stats('steps')}, '0' ],
	'batches-map'      => [ q{SELECT total FROM queue_stats('reduce')}, '0' ],
	'batches-failures' => [
		q{SELECT body #>> '{}', reason, (SELECT total FROM queue_stats('receipts'))
			FROM queue_dead_letters('receipts.dead')}, 'send|batch|0' ],
	'groups-tenants' => [
		q{SELECT group_key, free FROM queue_groups('exports')}, qq{acme|1000\nzoe|1} ],
	'groups-turns'    => [ q{SELECT claimed FROM queue_stats('exports')}, '4' ],
	'groups-accounts' => [ q{SELECT free FROM queue_stats('ledger')}, '3' ],
	'groups-heads'    => [ q{SELECT claimed FROM queue_stats('ledger')}, '2' ],
	'groups-retry'    => [ q{SELECT total FROM queue_stats('ledger')}, '3' ],
	'groups-api'      => [ q{SELECT free FROM queue_stats('geocode')}, '5' ],
	'groups-bound'    => [ q{SELECT claimed FROM queue_stats('geocode')}, '2' ],
	'groups-done'     => [ q{SELECT free, claimed FROM queue_stats('geocode')}, '2|2' ],
	'groups-rate'     => [ q{SELECT free FROM queue_stats('invoices')}, '5' ],
	'groups-rate-wait' =>
	  [ q{SELECT free, claimed FROM queue_stats('invoices')}, '3|2' ],
	'groups-wikis' => [
		q{DO $$DECLARE
			result jsonb;
		BEGIN
			FOR i IN 1 .. 600 LOOP
				CALL job_run('{refreshLinks}', result => result);
				EXIT WHEN (SELECT count(*) = 6 FROM links);
				PERFORM pg_sleep(0.1);
			END LOOP;
		END$$; SELECT wiki, count(DISTINCT page) FROM links GROUP BY 1 ORDER BY 1},
		qq{dewiki|3\nenwiki|3} ],
	'settings' =>
	  [ q{SELECT count(*) FROM queue_claim('nothing', 300, 60, 1000)}, '0' ],
	'roles' =>
	  [ q{SET ROLE web; SELECT queue_push('postcards', '1') IS NOT NULL}, 't' ],
	'grants' => [
		q{SET ROLE web; SELECT queue_push('mail', '1') IS NOT NULL;
		SET ROLE mailer; SELECT count(*) > 0 FROM queue_claim('mail', 300, 60);
		RESET ROLE; SELECT string_agg(role || ' ' || privilege, ', ' ORDER BY role::text)
			FROM queue_data.queue_roles WHERE queue = 'mail'},
		"t\nt\napp owner, mailer claim, web push" ],
	'leaver' => [ q{SELECT count(*) FROM pg_roles WHERE rolname = 'leaver'}, '0' ],
	'sequence' => [
		q{SELECT last_value > (SELECT coalesce(max(id), 0) >> 22 FROM queue_data.message) FROM queue_data.message_id},
		't' ],
	'queue-dump' =>
	  [ q{SELECT free, claimed, delayed FROM queue_stats('parts')}, '2502|1|1' ],
	'queue-restore' => [
		q{WITH old AS (SELECT *, row_number() OVER (ORDER BY id) AS n FROM before_dump),
			new AS (SELECT *, row_number() OVER (ORDER BY id) AS n
				FROM queue_messages('parts', NULL, 10000))
		SELECT count(old.id), count(new.id), bool_and((old.body, old.priority) = (new.body, new.priority)),
			bool_and((old.group_key, old.headers) IS NOT DISTINCT FROM (new.group_key, new.headers)),
			bool_and(new.ttl BETWEEN 60 AND old.ttl),
			bool_and(new.created_at + new.ttl * interval '1 s'
				> old.created_at + (old.ttl - 2) * interval '1 s')
		FROM old FULL JOIN new USING (n)},
		'2504|2504|t|t|t|t' ],
	'monitoring-status' => [ q{SELECT 1}, '1' ],
	'monitoring-tables' => [ q{SELECT 1}, '1' ],
	'versions'          => [ q{SELECT 1}, '1' ],
	'queue-shard'       => [ q{SELECT 1}, '1' ],
	'sqs'               => [
		q{SELECT claimed, delayed, queue_exists('parcels-dlq') FROM queue_stats('parcels')},
		'1|1|t' ],
	'archive' => [
		q{SELECT body, (SELECT total FROM queue_stats('letters')) FROM archive},
		'{"to": "ann"}|0' ],
	'wrong-claim'      => [ q{SELECT 1}, '1', qr/\bdelayed\b.*no answer/ ],
	'wrong-twice'      => [ q{SELECT 1}, '1', qr/\{\"order\": 7\} +\| +2\n/ ],
	'wrong-grows'      => [ q{SELECT 1}, '1', qr/\| no answer +\|/ ],
	'wrong-tables'     => [ q{SELECT 1}, '1' ],
	'wrong-slow'       => [ q{SELECT 1}, '1', qr/^ queues +\|/m ],
	'wrong-permission' => [ q{SELECT 1}, '1', qr/^ app +\| t +\| t +\| t$/m ],
	'wrong-function'   => [ q{SELECT 1}, '1', qr/\| queue +\|/ ],
	'wrong-handler'    => [ q{SELECT 1}, '1', qr/^ index +\| public\.index_page\(jsonb\) +\| (?:idle|running) /m ],
	'wrong-restore'    => [ q{SELECT 1}, '1', qr/^ queue\.runners +\|/m ],
	'wrong-version'    => [ q{SELECT 1}, '1', qr/^ 2\.0 +\| 2\.0/m ],
	'wrong-worker'     => [ q{SELECT 1}, '1', qr/^ documents +\| (?:idle|busy) .*\| queue worker +\| documents /ms ],
	'wrong-wake'       => [ q{SELECT 1}, '1', qr/^ queue_[0-9a-f]{32}$/m ],
	'howto-unique' => [ q{SELECT free FROM queue_stats('reports') WHERE free = 1}, '1' ],
	'howto-unique-replace' => [
		q{SELECT free, delayed FROM queue_stats('reports')}, '1|1' ],
	'howto-successor' => [ q{SELECT delayed FROM queue_stats('poll')}, '1' ],
	'howto-progress-list'  => [ q{SELECT 1}, '1' ],
	'howto-progress-table' => [ q{SELECT done, total FROM progress}, '3|10' ],
	'howto-long' => [ q{SELECT total FROM queue_stats('video')}, '0' ],
	'howto-deploy' => [ q{SELECT max(claim_count) FROM queue_messages('deploy')}, '0' ],
	'howto-deploy-handler' => [ q{SELECT paused FROM queue_get('index')}, 'f' ],
	'howto-test-python' => [ q{SELECT total FROM queue_stats('welcome')}, '0' ],
	'howto-test'        => [ q{SELECT total FROM queue_stats('welcome')}, '0' ],
	'howto-pgbouncer'   => [
		q{SELECT total FROM queue_data.queue_status, LATERAL (SELECT ready AS total) AS r
			WHERE project = 'shop'}, '1' ],
	'howto-probe'         => [ q{SELECT 1}, '1' ],
	'howto-scale'         => [ q{SELECT 1}, '1' ],
	'howto-alerts'        => [ q{SELECT 1}, '1' ],
	'howto-alerts-worker' => [ q{SELECT 1}, '1' ],
	'howto-restored'      => [ q{SELECT 1}, '1' ],
	'howto-river-create'  => [ q{SELECT queue_exists('sort')}, 't' ],
	'howto-river'         => [
		q{SELECT free, delayed, (SELECT count(*) FROM river_job),
			(SELECT max(priority) FROM queue_messages('sort')) FROM queue_stats('sort')},
		'1|1|1|9' ],
	'howto-sidekiq-create' => [ q{SELECT queue_exists('mailers')}, 't' ],
	'howto-sidekiq'     => [ q{SELECT free, delayed FROM queue_stats('mailers')}, '1|1' ],
	'howto-delayed-job' => [ q{SELECT queue_exists('invoices.pdf.dead')}, 't' ],
	'howto-celery'      => [ q{SELECT free FROM queue_stats('celery')}, '1' ],
	'queue_pgmq' => [
		q{SELECT count(*) FROM pg_extension WHERE extname = 'queue_pgmq'}, '1' ],
	'pgmq' => [
		q{SELECT message, (SELECT count(*) FROM pgmq.q_tasks) FROM pgmq.a_tasks},
		'{"to": "ann"}|0' ]);

# What a block needs: messages of all kinds, in more than one page, and what is to
# be found again; then nothing
my %before = (
	'queue-dump' => q{
		SET ROLE app;
		SELECT queue_post('parts', '[{"body": null, "delay": 3600},
			{"body": {"path": "C:\\\\new\\n", "name": "\\u00eb"}, "priority": 7, "ttl": 7200},
			{"body": [1], "group_key": "acme", "headers": {"trace": "1"}},
			{"body": "text", "dedup_key": "text"}]');
		SELECT count(*) FROM queue_claim('parts', 300, 60, 1);
		SELECT cardinality(queue_push_batch('parts', array_agg(to_jsonb(g))))
		FROM generate_series(1, 2500) AS g;
		CREATE TABLE before_dump AS
		SELECT * FROM queue_messages('parts', NULL, 10000, true, true, true)},
	'queue-restore' => q{SELECT queue_purge('parts')},
	'wrong-claim' => q{
		SET ROLE app;
		SELECT queue_push('orders', '{"order": 7}') FROM generate_series(1, 2);
		SELECT message_retry('orders', id, claim_id, 'no answer', 3600)
		FROM queue_claim('orders', 300, 60, 1)},
	'howto-river' => q{
		CREATE TABLE river_job (id bigserial, kind text, args jsonb, priority smallint,
			scheduled_at timestamptz, state text);
		ALTER TABLE river_job OWNER TO app;
		INSERT INTO river_job (kind, args, priority, scheduled_at, state)
		VALUES ('sort', '[2, 1]', 1, now(), 'available'), ('sort', '[3]', 4, now() + '1 h', 'scheduled'),
			('sort', '[4]', 1, now(), 'completed')});

my $output;
foreach my $block (@blocks)
{
	my $where = $block->{where};
	if ($block->{mark} eq 'output')
	{
		is(trim($output), trim($block->{text}), "$where: psql prints this");
		next;
	}
	my ($name, $how) = $block->{mark} =~ /^test: ([\w-]+)(?:, (superuser|once))?$/
	  or next;
	my $superuser = ($how // '') eq 'superuser';
	next if $name eq 'languages' || $name eq 'test-databases';
	$block->{name} = $name;
  SKIP:
	{
		if (($how // '') eq 'once')
		{
			query(delete $before{$name}) if $before{$name};
			my $expected = delete $after{$name};
			$output = run_once($block);
			skip "what $name needs is not installed", 1 unless defined $output;
			is( $expected && query($expected->[0]),
				$expected && $expected->[1],
				"$where: $name did what it says");
		}
		elsif ($block->{lang} eq 'python')
		{
			skip 'no python3 with psycopg or psycopg2 (apt install python3-psycopg2)', 1
			  unless @python;
			my @drivers = grep { $_->[0] eq 'psycopg' || $block->{text} !~ /pg_claim_queue/ } @python;
			skip 'the library for Python needs psycopg (apt install python3-psycopg)', 1
			  unless @drivers;
			run_worker($block, 25, @drivers);
		}
		elsif ($block->{lang} eq 'sh')
		{
			run_worker($block, 25, [ 'psql', 'sh' ]);
		}
		else
		{
			my $err;

			# the worker that the shell repeats
			append_to_file("$dir/worker.sql", $block->{text})
			  if $name eq 'psql-worker';
			query(delete $before{$name}) if $before{$name};
			{
				local $ENV{PGUSER} = $superuser ? $ENV{PGUSER} : $role;
				ok( IPC::Run::run(
						[ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', '-' ],
						'<', \$block->{text}, '>', \$output, '2>', \$err,
						init => sub { chdir $dir or die $! }),
					"$where: $name runs");
			}
			is(ClusterTest::without_creation($err), '', "$where: $name has no complaint");
			my $expected = delete $after{$name};
			is( $expected && query($expected->[0]),
				$expected && $expected->[1],
				"$where: $name did what it says");
			like($output, $expected->[2], "$where: $name shows what it is for")
			  if $expected && $expected->[2];
			ok($expected, "$where: $name has an expectation");
		}
	}
}
is(join(' ', keys %after, keys %before), '', 'nothing that is tested is gone from the documents');

# The reference has every function with its arguments, every setting, and every
# column of the views.  queue_revoke is listed together with queue_grant.
my $reference = slurp_file("$top/doc/reference.md");
my @missing;
foreach (
	split /\n/,
	query(
		q{SELECT proname || '(' || pg_get_function_arguments(oid) || ')'
			FROM pg_proc WHERE pronamespace = 'queue'::regnamespace
				AND probin LIKE '%/queue'}))
{
	s/ DEFAULT (NULL|[^:,)]+)(?:::[\w\[\]]+(?: \w+)*)?/ = $1/g;
	s/\bIN //g;
	s/\binteger\b/int/g;
	s/\btimestamp with time zone\b/timestamptz/g;
	s/^queue_revoke\K.*/(/;
	push @missing, $_ if index($reference, $_) < 0;
}
push @missing, grep { $reference !~ /`\Q$_\E`/ } split /\n/,
  query(q{SELECT queue_channel('q'); SELECT name FROM pg_settings WHERE name ~ '^queue\.'}) =~ s/.*\n//r;
push @missing, grep { $reference !~ /\b$_\b/ } split /\n/,
  query(q{SELECT DISTINCT relname FROM pg_class WHERE relnamespace = 'queue_data'::regnamespace AND relkind = 'v'
	UNION SELECT attname FROM pg_attribute WHERE attnum > 0 AND attrelid IN
		(SELECT oid FROM pg_class WHERE relnamespace = 'queue_data'::regnamespace AND relkind = 'v')});
is(join("\n", @missing), '', 'the reference is complete');

$node->stop;
done_testing();
