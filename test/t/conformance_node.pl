# The worker library clients/node: the conformance suite of clients/conformance, and the
# library's own tests.

use strict;
use warnings;

use File::Basename;
use FindBin;
use lib "$FindBin::RealBin/../perl", "$FindBin::RealBin/../../clients/conformance";

use Conformance;
use NodeClient;
use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();
my ($out, $typescript) = build_client($dir);
my $err;

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
