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

# What npm installs from the package, in a project that has only pg, works as the README
# says.
SKIP:
{
	my ($npm) = grep { -x } map { "$_/npm" } split(/:/, $ENV{PATH});
	skip 'npm is not installed', 1 unless $npm;
	my $project = "$dir/project/node_modules";
	system_or_bail('mkdir', '-p', "$project/pg-claim-queue");
	symlink $pg, "$project/pg" or die $!;
	local $ENV{HOME} = $dir;
	chdir "$dir/node" or die $!;
	# --ignore-scripts: it is built already.
	($out, $err) = run_command([ $npm, 'pack', '--ignore-scripts', '--offline' ]);
	my ($package) = glob("$dir/node/*.tgz");
	ok($package, 'it is packed') or diag("$out$err");
	system_or_bail('tar', '-xzf', $package, '--strip-components=1', '-C', "$project/pg-claim-queue");
	ok(!-e "$project/pg-claim-queue/src", 'without its source');
	chdir "$dir/project" or die $!;
	my $readme = slurp_file("$dir/node/README.md");
	my ($app) = $readme =~ /^`app\.mjs`:\n\n```js\n(.*?)^```/ms;
	my ($push) = $readme =~ /^node -e "(import.*?)"\n/ms;
	s/'mail'/'letters'/g foreach $app, $push;      # a queue of its own
	append_to_file('app.mjs', $app);
	my $worker = IPC::Run::start([ $program, 'app.mjs' ], '<', \undef, '>&', \my $said);
	run_command([ $program, '-e', $push ]);
	eval { $worker->pump until $said =~ /^to ann\@example\.org$/m };
	is($@, '', 'a push and a worker') or diag($said);
	($out) = run_command([ $program, 'node_modules/pg-claim-queue/dist/cli.js', 'status' ]);
	like($out, qr/'letters'/, 'the command');
	$worker->signal('TERM');
	ok($worker->finish, 'it ends') or diag($said);
	chdir $FindBin::RealBin or die $!;
}

$node->stop;
done_testing();
