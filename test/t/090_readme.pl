# What README.md shows works as it stands: every block in SQL, Python and
# JavaScript has a comment before it, <!-- test: NAME -->, and is run here, in
# the order of the file, in one database; <!-- output --> before a block says
# that it is what psql prints for the block before.

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
	$_->{lang} =~ /^(?:sql|python|javascript)$/ && $_->{mark} !~ /^test: [\w-]+$/
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

# What a worker that ran is to have done: all of these, each once.
sub run_worker
{
	my ($block, $messages, @drivers) = @_;
	my $file = "$dir/" . ($block->{mark} =~ s/test: //r);
	append_to_file($file, $block->{text});
	foreach my $driver (@drivers)
	{
		my ($name, @command) = @$driver;
		query(
			qq{TRUNCATE sent;
			SELECT queue_purge('mail');
			SELECT queue_push_batch('mail', array_agg(jsonb_build_object('to', 'r' || g)))
			FROM generate_series(1, $messages) AS g;});
		my ($out, $err);
		ok(run_in_dir([ @command, $file ], \$out, \$err),
			"line $block->{line} with $name runs")
		  or diag($out, $err);
		is($err, '', "line $block->{line} with $name has no complaint");
		is( query('SELECT count(*), count(DISTINCT message_id), count(DISTINCT recipient) FROM sent'),
			join('|', ($messages) x 3),
			"line $block->{line} with $name does everything once");
		is(query(q{SELECT free, claimed FROM queue_stats('mail')}),
			'0|0', "line $block->{line} with $name leaves nothing");
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
	'settings' =>
	  [ q{SELECT count(*) FROM queue_claim('nothing', 300, 60, 1000)}, '0' ],
	'roles' =>
	  [ q{SET ROLE web; SELECT queue_push('mail', '1') IS NOT NULL;
		SET ROLE mailer; SELECT count(*) > 0 FROM queue_claim('mail', 300, 60)},
		"t\nt" ],
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
		else
		{
			my $err;
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
