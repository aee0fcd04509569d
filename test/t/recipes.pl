# The recipes of doc/contributing.md.  The one for an SQL function is applied to a
# copy of the source, with the SQL and the commands that it has: roles may call
# the function, and PUBLIC may not, on a server and through a router; the copy
# keeps to its layers, and scripts of released versions are as they were.
# Files and names of all recipes are in the source, and SQLSTATEs in the
# reference.

use strict;
use warnings;

use Digest::SHA;
use FindBin;
use lib "$FindBin::RealBin/../perl";

use File::Basename;
use File::Copy;
use File::Find;
use File::Path;
use InstallTest;
use IPC::Run;
use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest qw($node value);
use Test::More;

my $top = "$FindBin::RealBin/../..";
my $pg_config = $ENV{PG_CONFIG} || 'pg_config';

foreach my $program ('make', $ENV{CC} || 'cc', 'tar')
{
	plan skip_all => "$program is not installed"
	  unless grep { -x "$_/$program" || -x $program } split /:/, $ENV{PATH};
}

# --- What the recipes name ---

my ($recipes) =
  slurp_file("$top/doc/contributing.md") =~ /^## Recipes\n(.*?)^## /ms
  or die 'no recipes';

my ($source, %files) = ('');
find(
	{
		no_chdir => 1,
		wanted => sub {
			return if !-f || /\.(?:o|so|bc)$/;
			$files{ basename($_) } = 1;
			$source .= slurp_file($_) unless m{^\Q$top\E/test/t/};
		}
	},
	map { "$top/$_" } qw(Makefile src sql test/t test/fuzz.d test/stress.d));

# Names with a part in capitals stand for others.
my @missing;
foreach (sort keys %{ { map { $_ => 1 } $recipes =~ /`([\w.\/-]+?)(?:\(\))?`/g } })
{
	next if /NAME|--[AB]\b/;
	push @missing, $_
	  if m{/|\.(?:c|h|sql|pl|md)$} ? !-e "$top/$_" && !$files{$_}
	  : /^\w+$/ && $source !~ /\b\Q$_\E(?:\b|(?<=_)\w)/;
}
is("@missing", '', 'the files and names in the recipes exist');

my @codes = slurp_file("$top/src/util/errcodes.h") =~ /MAKE_SQLSTATE\(([^)]*)\)/g;
my $reference = slurp_file("$top/doc/reference.md");
cmp_ok(scalar @codes, '>', 3, 'there are SQLSTATEs');
is(join(' ', grep { $reference !~ /^\| `$_` \|/m } map { s/\W//gr } @codes),
	'', 'the table of errors in the reference has them');

# --- The recipe of an SQL function ---

# The SQL and the commands of the recipe, without the indentation
my ($recipe) = $recipes =~ /^\*\*Add an SQL function\.\*\*(.*?)^\*\*Add/ms;
my ($sql) = map { s/^ +```text\n| +```$//gr =~ s/^   //gmr }
  $recipe =~ /^( +```text\n.*?^ +```)$/gms;

# The update script
my ($version) = slurp_file("$top/queue.control") =~ /^default_version = '(.*)'/m;
my ($before) = map { /queue--(.*?)--/ } glob "$top/src/sql/queue--*--$version.sql";
if (-e "$top/src/sql/SHA256SUMS"
	&& slurp_file("$top/src/sql/SHA256SUMS") =~ /--\Q$version\E\.sql$/m)
{
	note 'no version is being developed';
	done_testing();
	exit;
}

my $install = copy_installation();
my $copy = copy_source();
mkpath("$copy/test/t");
copy("$top/test/t/layers.pl", "$copy/test/t") or die $!;

# The server's headers, for the program pg_config of the copy
chomp(my $headers = `$pg_config --includedir-server`);
mkpath(dirname("$tree$headers"));
symlink $headers, "$tree$headers" or die $! unless -e "$tree$headers";
$pg_config = "$install/bin/pg_config";

my $name = 'queue_is_paused';
my $api = "$copy/src/api/queue_api.c";
my $script = "$copy/src/sql/queue--$version.sql";
my $update = "$copy/src/sql/queue--$before--$version.sql";

write_file(
	$api,
	slurp_file($api) =~ s/^(PG_FUNCTION_INFO_V1\(sql_queue_pause\);\n)/$1PG_FUNCTION_INFO_V1(sql_$name);\n/mr
	  . q{
/*
 * queue_is_paused(q text) returns boolean
 *
 * Is a queue paused?
 *
 * Result: NULL when the queue is unknown.
 * Errors: 22004 and 22023 name.
 */
Datum
sql_queue_is_paused(PG_FUNCTION_ARGS)
{
	QueueSummary queue;
	Jsonb	   *metadata;

	if (!queue_describe(arg_queue_name(fcinfo, 0, "q"), &queue, &metadata))
		PG_RETURN_NULL();
	PG_RETURN_BOOL(queue.paused);
}
});
$sql =~ s/\bNAME\b|(?<=sql_)NAME/$name/g;
write_file($update, slurp_file($update) . "\n$sql");
$sql =~ s/^REVOKE .*//ms;
write_file($script, slurp_file($script) =~ s/^--\n-- Pushing\n/$sql\n$&/mr);
build($copy);

sub install
{
	local $ENV{MAKEFLAGS};
	my ($out, $err);

	ok( IPC::Run::run(
			[ 'make', '-s', '-C', $copy, "PG_CONFIG=$pg_config", 'install' ],
			'>', \$out, '2>', \$err),
		'the copy is installed')
	  or diag($out, $err);
	return;
}
install();

$node = PostgreSQL::Test::Cluster->new('main', install_path => $install);
$node->init;
$node->start;

# The SQLSTATE of the error of a statement
sub state_of
{
	my ($statement) = @_;
	my $error = ($node->psql('postgres', "\\set VERBOSITY verbose\n$statement"))[2];
	return $error =~ /ERROR:  (\w{5}): / ? $1 : 'none';
}

value(q{CREATE EXTENSION queue;
	CREATE ROLE app IN ROLE queue_consumer;
	CREATE ROLE nobody;
	SELECT queue_create('q'), queue_create('paused'), queue_pause('paused')});
is(value(qq{SET ROLE app; SELECT $name('q'), $name('paused'), $name('none') IS NULL}),
	'f|t|t', 'a role that was granted the function calls it');
is(state_of("SET ROLE nobody; SELECT $name('q')"), '42501', 'another one may not');
is(state_of("SELECT $name(NULL)"), '22004', 'without a name');
is( value(qq{SELECT count(*) FROM pg_roles
		WHERE rolname IN ('queue_producer', 'queue_consumer', 'queue_admin')
		AND has_function_privilege(rolname, '$name(text)', 'EXECUTE')}),
	3, 'it is granted to all three roles');
isnt(value(qq{SELECT obj_description('$name(text)'::regprocedure, 'pg_proc')}),
	'', 'it has a comment');

# --- The router ---

# The signature
my ($row) = $recipe =~ /^\s*(NAME\(.*;)$/m;
my $router = "$copy/src/proxy/queue_proxy--$version.sql";
$row =~ s/\bNAME\b/$name/g;
write_file($router, slurp_file($router) =~ s/^    (?=batch_create\()/    $row\n$&/mr);

install();
SKIP:
{
	skip 'PL/Proxy is not installed', 1
	  unless -e "$sharedir/extension/plproxy.control";
	value('CREATE DATABASE router');
	value('CREATE EXTENSION queue_proxy CASCADE', 'router');
	is( value(qq{SELECT has_function_privilege('app', f, 'EXECUTE'),
			has_function_privilege('nobody', f, 'EXECUTE')
			FROM CAST('$name(text, text, text)' AS regprocedure) AS f}, 'router'),
		't|f', 'the function of the router has the same privileges');
}
$node->stop;

# --- The source ---

foreach my $dir ('src/sql', 'src/proxy', 'src/pgmq')
{
	next unless -e "$top/$dir/SHA256SUMS";
	foreach (split /\n/, slurp_file("$top/$dir/SHA256SUMS"))
	{
		my ($sum, $file) = split;
		is(Digest::SHA->new(256)->addfile("$copy/$dir/$file")->hexdigest,
			$sum, "$file is as it was released");
	}
}

{
	# Its headers are those of the source, and need not be compiled once more.
	local $ENV{CC} = 'none';
	local $ENV{PG_CONFIG} = $pg_config;
	my $out;

	ok(IPC::Run::run([ $^X, "$copy/test/t/layers.pl" ], '>', \$out, '2>&1'),
		'the copy keeps to its layers')
	  or diag($out);
}
done_testing();
