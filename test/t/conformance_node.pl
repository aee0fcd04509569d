# The worker library clients/node: the conformance suite of clients/conformance, and the
# library's own tests.

use strict;
use warnings;

use File::Basename;
use FindBin;
use lib "$FindBin::RealBin/../perl", "$FindBin::RealBin/../../clients/conformance";

use Conformance;
use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;

# Where the first node that has it finds a package
my $program;

sub find_package
{
	my ($name) = @_;
	foreach my $node ($program // grep { -x } map { ("$_/node", "$_/nodejs") } split(/:/, $ENV{PATH}))
	{
		my $path = `$node -p 'require.resolve("$name/package.json")' 2>/dev/null`;
		next unless $path;
		$program = $node;
		chomp $path;
		return dirname($path);
	}
	return;
}
my $pg = find_package('pg') or plan skip_all => 'no node with pg (apt install node-pg)';
my $typescript = find_package('typescript')
  or plan skip_all => 'typescript is not installed (apt install node-typescript)';
plan skip_all => 'node is older than 18' if `$program -p 'parseInt(process.versions.node)'` < 18;

# A copy, built as "npm run build" does
my $dir = PostgreSQL::Test::Utils::tempdir();
system_or_bail('cp', '-r', dirname(__FILE__) . '/../../clients/node', $dir);
my $modules = "$dir/node/node_modules";
system_or_bail('rm', '-rf', $modules, "$dir/node/dist");
mkdir $modules or die $!;
symlink $pg, "$modules/pg" or die $!;
my $types = find_package('@types/node');
my @options = ($types ? ('--typeRoots', dirname($types)) : (), '--skipLibCheck');
my ($out, $err) = run_command([ $program, "$typescript/bin/tsc", '-p', "$dir/node", @options ]);
BAIL_OUT($out) unless -e "$dir/node/dist/index.js";

test_conformance([ $program, "$dir/node/tests/runner.mjs" ]);
is($out, '', 'the types are right') if $types;

# A wrong payload does not compile.
SKIP:
{
	skip 'the types of node are not installed', 1 unless $types;
	($out) = run_command(
		[
			$program, "$typescript/bin/tsc", '--noEmit', '--strict', '--target', 'es2022',
			'--module', 'nodenext', '--moduleResolution', 'nodenext',
			'--skipLibCheck', '--typeRoots', dirname($types), "$dir/node/tests/types.ts"
		]);
	is($out, '', 'the types of payloads');
}

local @ENV{qw(PGHOST PGPORT PGUSER PGDATABASE)} = ($node->host, $node->port, 'app', $db);
($out, $err) = run_command([ $program, '--test', '--test-reporter=tap', "$dir/node/tests/library.test.mjs" ]);
my ($passed, $failed) = map { $out =~ /^# $_ (\d+)/m } qw(pass fail);
ok($passed > 9 && $failed == 0, "its own tests: $passed passed, $failed failed") or diag($out . $err);

$node->stop;
done_testing();
