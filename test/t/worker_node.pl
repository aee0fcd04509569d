# doc/examples/worker.mjs, with the package pg.

use strict;
use warnings;

use File::Basename;
use FindBin;
use lib "$FindBin::RealBin/../perl";

use ExampleTest;
use PostgreSQL::Test::Utils;
use Test::More;

# The first node that has the package, wherever that is
my ($program, $package);
foreach my $node (grep { -x } map { ("$_/node", "$_/nodejs") } split(/:/, $ENV{PATH}))
{
	$package = `$node -p 'require.resolve("pg/package.json")' 2>/dev/null`;
	$program = $node;
	last if $package;
}
plan skip_all => 'no node with pg (apt install node-pg, or npm install pg and NODE_PATH)'
  unless $package;
chomp $package;

# As "npm install pg" would put it beside the worker
sub install
{
	my ($dir) = @_;
	mkdir "$dir/node_modules" or die $!;
	symlink dirname($package), "$dir/node_modules/pg" or die $!;
	return;
}

test_worker([$program], 'worker.mjs', <<'JAVASCRIPT', \&install);
  if (body.sql) await db.query('SELECT pg_sleep($1) FROM slow', [body.sql])
  if (body.own && (await db.query('SELECT FROM slow')).rowCount) await sleep(body.own * 1000)
  while (body.stop && !stopping) await sleep(10)
  while (body.hold && (await db.query('SELECT FROM slow')).rowCount) await sleep(10)
  if (body.weird) throw new Error('\0 \ud800')
  if (body.leave) throw null
  if (body.bad) throw new Permanent('no address')
  if (body.fail) throw new Error('no such address')
JAVASCRIPT

done_testing();
