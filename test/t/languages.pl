# The programs of doc/languages.md, as they stand there.  Each does what the page
# says: it sees that a message is ready, and its work and the delete of the
# message take effect together.  If its claim is over when it deletes, it notices
# QU001, and neither takes effect.  What the page's table says to pass for several
# ids is what messages_delete takes.  A database that the role creates has the
# extension, once it is in template1 as the page says.
#
# A language whose driver is not installed is skipped.
#
# test/check -a runs it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest qw(:DEFAULT plant_functions $end_claims);
use Test::More;

my $top = "$FindBin::RealBin/../..";
my $dir = PostgreSQL::Test::Utils::tempdir();

# --- Programs ---

# Runs one in a directory of its own: Python would take the queue.so that a
# build leaves behind for its module "queue".
sub run_in_dir
{
	my ($command, %environment) = @_;
	my ($out, $err) = ('', '');
	my $success = IPC::Run::run(
		$command, '<', \undef, '>', \$out, '2>', \$err,
		init => sub {
			chdir $dir or die $!;
			@ENV{ keys %environment } = values %environment;
		});

	return wantarray ? ($success, $out, $err) : $success;
}

# The first of these programs with which this command succeeds
sub first_that
{
	my ($names, @arguments) = @_;

	foreach my $directory (split(/:/, $ENV{PATH}), '/usr/bin')
	{
		foreach my $program (grep { -x } map { "$directory/$_" } @$names)
		{
			return $program if run_in_dir([ $program, @arguments ]);
		}
	}
	return;
}

# A python3 that has the module
sub python
{
	my ($module) = @_;

	return first_that(['python3'], '-c', "import $module");
}

# A java that compiles and has the driver
sub java
{
	my $jar = '/usr/share/java/postgresql.jar';

	append_to_file("$dir/Nothing.java",
		'class Nothing { public static void main(String[] a) {} }');
	my $program = -e $jar && first_that(['java'], 'Nothing.java') or return;
	return ($program, '-cp', $jar);
}

# Debian's Go, which has its packages in one tree.  That of pgx 4 differs from the
# program in the paths that the page names.
my ($go_packages, $pgx4) = ('/usr/share/gocode');

sub go
{
	my $pgx = "$go_packages/src/github.com/jackc/pgx";

	$pgx4 = !-d "$pgx/v5";
	return if $pgx4 && !-d "$pgx/v4";
	@ENV{qw(GO111MODULE GOPATH GOCACHE)} = ('off', $go_packages, "$dir/go");
	my $program = first_that(['go'], 'version') or return;
	return ($program, 'run');
}

sub pgx4
{
	my ($text) = @_;

	return $text =~ s,jackc/pgx/v5/pgconn\b,jackc/pgconn,r =~ s,/pgx/v5\b,/pgx/v4,r;
}

# By the heading of its part: the name of the file, the package of Debian, and the
# command that runs the file, if it is installed
my %languages = (
	'psycopg2'   => [ 'mail.py', 'python3-psycopg2', sub { python('psycopg2') } ],
	'asyncpg'    => [ 'mail.py', 'python3-asyncpg', sub { python('asyncpg') } ],
	'SQLAlchemy' => [
		'mail.py',
		'python3-sqlalchemy python3-psycopg2',
		sub { python('sqlalchemy, psycopg2') } ],
	'JDBC' =>
	  [ 'Mail.java', 'default-jdk-headless libpostgresql-jdbc-java', \&java ],
	'Ruby' => [
		'mail.rb', 'ruby-pg',
		sub { first_that(['ruby'], '-e', 'require "pg"') } ],
	'Go'  => [ 'mail.go', 'golang-go golang-github-jackc-pgx-v4-dev', \&go ],
	'PHP' => [
		'mail.php',
		'php-cli php-pgsql',
		sub { first_that(['php'], '-r', 'exit(extension_loaded("pdo_pgsql") ? 0 : 1);') } ],
	'Perl' => [
		'mail.pl', 'libdbd-pg-perl',
		sub { first_that(['perl'], '-e', 'use DBD::Pg; use JSON::PP') } ],
	'psql' => [ 'mail.sql', 'postgresql-client', sub { ('psql', '-X', '-q', '-f') } ]);

# --- The page ---

my (%programs, %ids, $template);
{
	my $text = slurp_file("$top/doc/languages.md");

	while ($text =~ /^## (.*)\n((?:(?!^## ).*\n)*)/mg)
	{
		my ($heading, $part) = ($1, $2);
		my @blocks = $part =~ /^<!-- test: languages -->\n```\w+\n(.*?)^```$/msg;
		$programs{$heading} = $blocks[0] if @blocks == 1;
	}
	($template) = slurp_file("$top/doc/howto/test-your-jobs.md") =~ /^<!-- test: test-databases -->\n```sql\n(.*?)^```$/ms;
	$ids{$1} = [ $2, $3 ]
	  while $text =~ /^\| ([\w ]+) \| .* \| `(.*)` \| `(.*)` \|$/mg;
}
my $all = join(', ', sort keys %languages);
is(join(', ', sort keys %programs), $all, 'each language has one program');
is(join(', ', sort keys %ids), $all, 'each language is in the table');

# --- The server ---

# JDBC has no Unix-domain sockets.
$node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf('postgresql.conf', q{listen_addresses = '127.0.0.1'});
unlink $node->data_dir . '/pg_hba.conf';
append_to_file($node->data_dir . '/pg_hba.conf',
	"local all all trust\nhost all app 127.0.0.1/32 scram-sha-256\n");
$node->start;

# The programs push a letter that is not ASCII.
$node->safe_psql('postgres', q{CREATE DATABASE languages TEMPLATE template0
	ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'});
$db = 'languages';

# The extension, the role and the table are the README's.
my %readme = slurp_file("$top/README.md") =~
  /^<!-- test: (install|push)\b.*? -->\n```sql\n(.*?)^```$/msg;
my $password = join '', map { ('a' .. 'z')[ rand 26 ] } 1 .. 20;
$readme{install} =~ s/:"DBNAME"/$db/;
value("$readme{install}; ALTER ROLE app PASSWORD '$password'");
$readme{push} =~ s/^SELECT .*//m;
value("SET ROLE app; $readme{push}");

# Where it is enabled, a claim is over before its message is deleted.
value($end_claims);

# No program calls one of these.
plant_functions($db);

my %environment = (
	PGHOST     => '127.0.0.1',
	PGPORT     => $node->port,
	PGUSER     => 'app',
	PGPASSWORD => $password,
	PGDATABASE => $db);

# To whom the programs write, with a letter that is not ASCII
my $recipient = 'zoë@example.org';

# --- The tests ---

# What a program says and does.  Times of a busy machine do not matter: its claim
# lasts 300 seconds.
sub is_run
{
	my ($what, $file, $text, $command, $trigger, $says, $effect) = @_;

	value("TRUNCATE sent; SELECT queue_purge('mail');
		ALTER TABLE sent $trigger TRIGGER end_claim");
	unlink "$dir/$file";
	append_to_file("$dir/$file", $text);
	my ($success, $out, $err) = run_in_dir([ @$command, $file ], %environment);
	ok($success, "$what ends well") or diag($err);

	# psql prints the error, which it does not raise, and results.
	$err = '' if $command->[0] eq 'psql' && $says =~ /expired/;
	is($err, '', "$what: no complaint");
	$out = join '; ', $out =~ /^(?:ready|the claim).*/mg;
	is($out =~ s/^ready: (?:t|True)\b/ready: true/r, $says, "$what: what it says");
	is( value(
			q{SELECT array(SELECT recipient FROM sent), free, claimed
			FROM queue_stats('mail')}),
		$effect, "$what: what it does");
	return;
}

foreach my $language (sort keys %languages)
{
	my ($file, $packages, $find) = @{ $languages{$language} };
	my $text    = $programs{$language};
	my @command = grep { defined } $find->();

  SKIP:
	{
		skip "$language: not installed (apt install $packages)", 1 unless @command;
		$text = pgx4($text) if $language eq 'Go' && $pgx4;
		is_run("$language, work", $file, $text, \@command, 'DISABLE',
			'ready: true', "{$recipient}|0|0");
		is_run("$language, claim over", $file, $text, \@command, 'ENABLE',
			'ready: true; the claim has expired', '{}|0|1');

		my ($id, $ids) = @{ $ids{$language} };
		is($text =~ s/\bmessage(_delete\b.*?)(?<!\w)\Q$id\E(?!\w)/messages$1$ids/s,
			1, "$language: the id");
		$text =~ s/(messages_delete\b.*?\bbigint)\b/$1\[]/s;
		is_run("$language, several ids", $file, $text, \@command, 'DISABLE',
			'ready: true', "{$recipient}|0|0");
	}
}

# --- Test databases ---

$node->safe_psql('template1', $template);
my @psql = ('psql', '-X', '-q', '-A', '-t', '-v', 'ON_ERROR_STOP=1');
ok( run_in_dir([ @psql, '-c', 'CREATE DATABASE test_languages' ], %environment),
	'the role creates a test database');
my (undef, $claimed, $complaint) = run_in_dir(
	[
		@psql, '-c',
		q{BEGIN;
		SELECT queue_push('mail', '{"to": "amy@example.org"}') > 0;
		CALL queue_wait('mail', 0);
		SELECT message_delete('mail', id, claim_id) FROM queue_claim('mail');
		ROLLBACK;
		SELECT queue_exists('mail')}
	],
	%environment,
	PGDATABASE => 'test_languages');
is($claimed . ClusterTest::without_creation($complaint), "t\nt\nt\nf\n", 'a test in a transaction works there');

$node->stop;
done_testing();
