# What README.md shows works as it stands: every block in SQL, shell, Python
# and JavaScript has a comment before it, <!-- test: NAME -->, and is run here,
# in the order of the file, in one database; <!-- output --> before a block
# says that it is what psql prints for the block before.
#
# Programs are workers that go on for ever.  They say in a line of their own
# how long they wait when nobody wakes them; only that is changed here.  With
# the library preloaded it becomes much longer than the test may take, so that
# they have to be woken; without, short.

use strict;
use warnings;

use File::Basename;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $readme = dirname(__FILE__) . '/../../README.md';

# Fenced blocks with the comment and the heading before them
my @blocks;
{
	my ($mark, $block, $line) = ('');
	foreach (split /\n/, slurp_file($readme))
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
			$block = { lang => $1, mark => $mark, line => $line, text => '' };
		}
		$mark = /^<!-- (.*) -->$/ ? $1 : '';
	}
	ok(!$block, 'every block is closed');
}
my @unmarked = map { "line $_->{line}" } grep {
	$_->{lang} =~ /^(?:sql|sh|python|javascript)$/ && $_->{mark} !~ /^test: [\w-]+$/
} @blocks;
is("@unmarked", '', 'every block of code is marked to be tested');

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->start;
# psycopg 3 returns text of an SQL_ASCII database as bytes.
$node->safe_psql('postgres', q{CREATE DATABASE readme TEMPLATE template0
	ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'});
my $dir = PostgreSQL::Test::Utils::tempdir();
$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;
# Node's pg asks the environment, not the system, who runs it.
$ENV{PGUSER} = getpwuid($<);
$ENV{PGDATABASE} = 'readme';

sub query
{
	return $node->safe_psql('readme', $_[0]);
}

my $preloaded = query('SHOW shared_preload_libraries') =~ /\bqueue\b/;
my $fallback  = $preloaded ? 1000 : 1;

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
my @node;
{
	my $program = first_that([ 'node', 'nodejs' ], '-e', 'require("pg")');
	push @node, [ 'pg', $program ] if $program;
}

# A worker that goes on for ever is not to outlive a test that dies.
my $worker;

END
{
	local $?;
	$worker->signal('KILL') if $worker;
}

# What a worker is to do: everything once, what was there when it came and
# what comes while it waits.
sub run_worker
{
	my ($block, $messages, @drivers) = @_;
	my $file   = "$dir/" . ($block->{mark} =~ s/test: //r);
	my $text   = $block->{text};
	my $where  = "line $block->{line}";
	my $rounds = 3;

	is($text =~ s/^((?:const )?fallback ?= ?)30\b/$1$fallback/gim,
		1, "$where says how long it waits when nobody wakes it");
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
			$worker ||= IPC::Run::start([ @command, $file ], '<', \undef,
				'>', \$out, '2>', \$err,
				init => sub { chdir $dir or die $! });

			# It has done all, and has been waiting for a while.
			$done += $node->poll_query_until('readme',
				qq{SELECT (SELECT count(*) >= $round * $messages FROM sent)
					AND (SELECT total = 0 FROM queue_stats('mail'))
					AND (SELECT max(clock_timestamp() - state_change) > '0.3 s' $others)});
			last if $done < $round;
		}
		is($done, $rounds, "$where with $name works and waits");
		$worker->pump_nb;
		is($err, '', "$where with $name has no complaint")
		  or diag($out);
		is( query('SELECT count(*), count(DISTINCT message_id), count(DISTINCT recipient) FROM sent'),
			join('|', ($rounds * $messages) x 3),
			"$where with $name does everything once");
		is(query(q{SELECT free, claimed FROM queue_stats('mail')}),
			'0|0', "$where with $name leaves nothing");

		# One that waits does not notice that its client is gone; and the
		# shell's psql is not.
		$worker->signal('TERM');
		query("SELECT pg_terminate_backend(pid) $others");
		eval { $worker->finish };
		undef $worker;
		$node->poll_query_until('readme', "SELECT count(*) = 0 $others")
		  or die 'a session of a worker stays';
	}
	return;
}

# What the blocks leave behind: a query and its answer
my %after = (
	'first'        => [ q{SELECT free, claimed FROM queue_stats('mail')}, '1|1' ],
	'first-delete' => [ q{SELECT body FROM queue_messages('mail')}, '{"to": "bob@example.org"}' ],
	'sent'         => [ q{SELECT count(*) FROM sent}, '0' ],
	'psql-worker'  =>
	  [ q{SELECT string_agg(recipient, ' '), (SELECT total FROM queue_stats('mail')) FROM sent},
		'bob@example.org|0' ],
	'psql-renew' =>
	  [ q{SELECT free, claimed, delayed FROM queue_stats('mail')}, '0|0|1' ],
	'psql-pop' =>
	  [ q{SELECT string_agg(recipient, ' '), (SELECT free FROM queue_stats('mail')) FROM sent WHERE recipient ~ '^(dan|eve)'},
		'dan@example.org eve@example.org|0' ],
	'push-options' =>
	  [ q{SELECT free, delayed FROM queue_stats('jobs')}, '5|1' ],
	'dead-letters' =>
	  [ q{SELECT (SELECT total FROM queue_stats('orders.dead')), claim_count, body FROM queue_messages('orders')},
		'0|0|{"order": 1}' ],
	'ready' =>
	  [ q{SELECT count(*) FROM queue_ready()}, '0' ],
	'jobs-lazy' =>
	  [ q{SELECT body FROM queue_messages('purge')}, qq{{"page": 7}\n{"page": 8}} ],
	'jobs-duplicates' => [ q{SELECT free FROM queue_stats('links')}, '1' ],
	'jobs-roots' => [ q{SELECT total FROM queue_stats('leaves')}, '2' ],
	'jobs-retry' => [ q{SELECT total FROM queue_stats('fetch')}, '0' ],
	'handler' =>
	  [ q{SELECT handler, reason IS NULL FROM queue_data.queue_handlers}, 'public.index_page(jsonb)|t' ],
	'job_run' => [
		q{DO $$BEGIN
			FOR i IN 1 .. 600 LOOP
				EXIT WHEN EXISTS (SELECT FROM search_index);
				PERFORM pg_sleep(0.1);
			END LOOP;
		END$$; SELECT words FROM search_index}, '4' ],
	'handlers' => [ q{SELECT count(*) FROM queue_data.queue_handlers}, '1' ],
	'settings' =>
	  [ q{SELECT count(*) FROM queue_claim('nothing', 300, 60, 1000)}, '0' ],
	'roles' =>
	  [ q{SET ROLE web; SELECT queue_push('mail', '1') IS NOT NULL;
		SET ROLE mailer; SELECT count(*) > 0 FROM queue_claim('mail', 300, 60)},
		"t\nt" ],
	'leaver' => [ q{SELECT count(*) FROM pg_roles WHERE rolname = 'leaver'}, '0' ],
	'monitoring' => [ q{SELECT 1}, '1' ]);

my $output;
foreach my $block (@blocks)
{
	my ($name) = $block->{mark} =~ /^test: (.*)/;
	if ($block->{mark} eq 'output')
	{
		is(trim($output), trim($block->{text}),
			"line $block->{line}: psql prints this");
		next;
	}
	next unless $name;
  SKIP:
	{
		if ($block->{lang} eq 'python')
		{
			skip 'no python3 with psycopg or psycopg2 (apt install python3-psycopg2)', 1
			  unless @python;
			run_worker($block, 25, @python);
		}
		elsif ($block->{lang} eq 'javascript')
		{
			skip 'no node with pg (apt install node-pg, or npm install pg and NODE_PATH)', 1
			  unless @node;
			run_worker($block, 25, @node);
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
			ok( IPC::Run::run(
					[ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', '-' ],
					'<', \$block->{text}, '>', \$output, '2>', \$err),
				"line $block->{line}: $name runs");
			is($err, '', "line $block->{line}: $name has no complaint");
			my $expected = delete $after{$name};
			is(query($expected->[0]), $expected->[1],
				"line $block->{line}: $name did what it says");
		}
	}
}
is(join(' ', keys %after), '', 'nothing that is tested is gone from the file');

$node->stop;
done_testing();
