# A library that is newer or older than the extension in the database, as after
# a new version is installed until the server is restarted: what works goes on
# working, and what cannot work fails with a hint.  Never a crash.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use InstallTest;
use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;

foreach my $program ('make', $ENV{CC} || 'cc', 'tar')
{
	plan skip_all => "$program is not installed"
	  unless grep { -x "$_/$program" || -x $program } split /:/, $ENV{PATH};
}

my $node =
  PostgreSQL::Test::Cluster->new('main', install_path => copy_installation());
$node->init;
$node->append_conf('postgresql.conf', 'autovacuum = off');
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION queue');
$node->safe_psql('postgres', "CREATE DATABASE $_") foreach qw(two three);


# On PostgreSQL 17 and later it may not be.
my $preloaded = $node->safe_psql('postgres', 'SHOW shared_preload_libraries') =~
  /\bqueue\b/;
my $version_query = 'SELECT queue_data.library_version()';
my $old = $node->safe_psql('postgres', $version_query);
my ($old_sql) = $old =~ /^(\d+\.\d+)\./;

# The next version: one more function, and one more column in a table.  Its
# library can do with both versions of the table.
my $new = '99.0.1';
my $new_sql = '99.0';

my $update = qq{SELECT queue_data.library_version('$new_sql');
CREATE FUNCTION queue_data.new_function() RETURNS text
AS 'MODULE_PATHNAME', 'sql_queue_new_function' LANGUAGE C;
};
my $new_column =
  'ALTER TABLE queue_data.root_job ADD COLUMN new_column integer';

my %library = ($old => slurp_file("$pkglibdir/queue.so"));
{
	my $copy = copy_source();
	my $header = slurp_file("$copy/src/util/version.h");
	my $relations = slurp_file("$copy/src/catalog/relations.c");

	$header =~ s/"\Q$old\E"/"$new"/ or die;
	write_header($copy, 'util/version.h', $header);
	$relations =~ s/(RelationGetNumberOfAttributes\(rel\) != natts)\)/$1 &&
		(natts != Natts_root_job || RelationGetNumberOfAttributes(rel) != natts + 1))/
	  or die;
	write_file("$copy/src/catalog/relations.c", $relations);
	write_file(
		"$copy/src/api/new_api.c", q{
#include "postgres.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "util/compat.h"

PG_FUNCTION_INFO_V1(sql_queue_new_function);

Datum
sql_queue_new_function(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text("new"));
}
});
	build($copy);
	$library{$new} = slurp_file("$copy/queue.so");

	# One more, that shares something else between sessions.
	my $shmem = slurp_file("$copy/src/shmem/shmem.c");
	$shmem =~ s/(#define LAYOUT_VERSION)\s+\d+/$1 999/ or die;
	write_file("$copy/src/shmem/shmem.c", $shmem);
	build($copy);
	$library{shares} = slurp_file("$copy/queue.so");
}

sub install_library
{
	my ($version) = @_;
	write_file("$pkglibdir/queue.so", $library{$version});
	return;
}

sub install_scripts
{
	my $control = slurp_file("$sharedir/extension/queue.control");
	$control =~ s/^default_version = .*$/default_version = '$new_sql'/m or die;
	write_file("$sharedir/extension/queue.control", $control);
	write_file("$sharedir/extension/queue--$old_sql--$new_sql.sql", $update);
	return;
}

# SQLSTATE, message and hint of the error in which a command ends
sub error_of
{
	my ($db, $sql) = @_;
	my ($ret, $stdout, $stderr) = $node->psql($db, $sql,
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return $stderr;
}

# Everything works: in a session that is connected, or in a new one.
my $number = 0;

sub works
{
	my ($what, $session) = @_;
	my $q = 'works' . ++$number;
	my $sql = qq{SELECT count(queue_push('$q', '1'));
		SELECT sum(claim_complete('$q', claim_id))
		FROM queue_claim('$q', 600, 60, 1)};

	is($session ? $session->query_safe($sql) : $node->safe_psql('postgres', $sql),
		"1\n1", "$what: push and claim");
	return;
}

my $needs_restart =
  qr/ERROR:  55000: version 99.0 .* needs a library.*DETAIL:  .*version \Q$old\E.*HINT:  .*restart the server/s;
my $other_version =
  qr/ERROR:  55000: table "queue_data.root_job" has \d+ columns.*DETAIL:  The library, version \Q$old\E.*HINT:  .*ALTER EXTENSION queue UPDATE, or restart/s;
my $version_in = q{SELECT extversion FROM pg_extension WHERE extname = 'queue'};

# --- The new version is installed; the server is not restarted ---

is($old =~ /^\d+\.\d+\.\d+$/ ? 1 : 0, 1, "the library has version $old");
foreach my $wrong ('1', 'next')
{
	like(error_of('postgres', "SELECT queue_data.library_version('$wrong')"),
		qr/ERROR:  22023: "$wrong" is no version/, "$wrong is no version");
}
my $connected = $node->background_psql('postgres', on_error_stop => 0);
works('before', $connected);
install_library($new);
install_scripts();

works('installed, a connected session', $connected);
works('installed, a new session');
is($connected->query_safe($version_query),
	$old, 'a connected session keeps its library');
is( $node->safe_psql('postgres', $version_query),
	$preloaded ? $old : $new,
	'a new session has the library that the server has loaded, or the new one');

$connected->query('ALTER EXTENSION queue UPDATE');
like($connected->{stderr}, qr/needs a library of that version.*restart the server/s,
	'a connected session cannot update, and says what to do');
$connected->{stderr} = '';
works('after that error', $connected);
if ($preloaded)
{
	like(error_of('postgres', 'ALTER EXTENSION queue UPDATE'),
		$needs_restart, 'nor can a new session');
	like(error_of('two', 'CREATE EXTENSION queue'),
		$needs_restart, 'the new version cannot be created');
	$node->safe_psql('two', "CREATE EXTENSION queue VERSION '$old_sql'");
	is($node->safe_psql('two', $version_in),
		$old_sql, 'but the old one can be');

	my $worker = q{SELECT min(pid) FROM pg_stat_activity
		WHERE backend_type = 'queue worker' AND datname = 'postgres'};
	my $pid = $node->safe_psql('postgres', $worker);
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	ok($node->poll_query_until('postgres', "SELECT ($worker) <> $pid"),
		'a worker that ends comes back');
	works('with a new worker');
}
is($node->safe_psql('postgres', $version_in),
	$old_sql, 'the extension has the version that it had');

# --- A new library, the old extension; then both are new ---

$node->restart if $preloaded;
$connected->quit;
is($node->safe_psql('postgres', $version_query),
	$new, 'restarted: the new library');
works('new library, old extension');
$connected = $node->background_psql('postgres', on_error_stop => 0);
works('before the update', $connected);
$node->safe_psql('postgres', 'ALTER EXTENSION queue UPDATE');
is( $node->safe_psql('postgres', "$version_in; SELECT queue_data.new_function()"),
	"$new_sql\nnew",
	'the extension is updated');
works('updated, a connected session', $connected);
works('updated, a new session');
$node->safe_psql('three', 'CREATE EXTENSION queue');
is($node->safe_psql('three', $version_in), $new_sql, 'the new version created');

# --- An old library, the new extension ---

install_library($old);
$node->restart if $preloaded;
$connected->quit;
is($node->safe_psql('postgres', $version_query), $old, 'the old library again');
works('old library, new extension');
like(error_of('postgres', 'SELECT queue_data.new_function()'),
	qr/ERROR:  42883: could not find function "sql_queue_new_function"/,
	'a function that it does not have is an error');

# A table that has changed is an error from then on, and no longer with the
# library of its version.
$connected = $node->background_psql('postgres', on_error_stop => 0);
works('before a table changes', $connected);
$node->safe_psql('postgres', $new_column);
foreach my $call (
	q{SELECT queue_push('q', '1')},
	q{SELECT * FROM queue_claim('q', 600, 60)},
	q{SELECT job_root('q', 's')},
	q{SELECT * FROM queue_stats('q')})
{
	like(error_of('postgres', $call), $other_version,
		"a table has changed: $call");
}
$connected->query(q{SELECT queue_push('q', '1')});
like($connected->{stderr}, qr/root_job" has \d+ columns/,
	'in a connected session too');
$connected->quit;
is($node->safe_psql('three', q{SELECT count(queue_push('q', '1'))}),
	'1', 'other databases are not affected');

install_library($new);
$node->restart if $preloaded;
works('the new library again');

# --- A library that shares something else ---

$connected = $node->background_psql('postgres', on_error_stop => 0);
works('before it is installed', $connected);
install_library('shares');
works('a session with the library of before', $connected);
if ($node->pg_version >= 17 && !$preloaded)
{
	like(error_of('postgres', q{SELECT queue_push('q', '1')}),
		qr/ERROR:  55000: another version of the library "queue" is in use.*HINT:  Restart the server/s,
		'a new session cannot use the memory');
	like(error_of('postgres', q{SELECT 1; SELECT queue_push('q', '1')}),
		qr/another version of the library/, 'again');
	works('after that, a session with the library of before', $connected);
}
$connected->quit;
$node->restart;
works('restarted with that');

unlike(slurp_file($node->logfile), qr/PANIC|TRAP|signal \d+/, 'no crash');
$node->stop;
done_testing();
