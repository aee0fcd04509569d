# The storage driver for Zaqar: Zaqar's tests of storage drivers and of its HTTP
# interface, and those of the driver.
#
# test/check -a runs it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use PostgreSQL::Test::Utils;
use QueueTest qw(:DEFAULT find_python plant_functions);
use Test::More;

my $python = find_python();
# Isolated: queue.so in this directory is not the module "queue".
foreach my $package (qw(zaqar zaqarclient sqlalchemy pymongo setuptools ddt))
{
	plan skip_all => "package python3-$package is not installed"
	  if system("$python -I -c 'import $package' >/dev/null 2>&1") != 0;
}

start_server('autovacuum = off');
plant_functions();
($ENV{PGHOST}, $ENV{PGPORT}) = ($node->host, $node->port);
$ENV{HOME} = PostgreSQL::Test::Utils::tempdir();
$ENV{PYTHONDONTWRITEBYTECODE} = 1;
$ENV{PYTHONWARNINGS} = 'ignore';

my ($out, $err);
IPC::Run::run([ "$FindBin::RealBin/../../clients/zaqar/tests/run" ],
	'<', \undef, '>', \$out, '2>', \$err);
is($?, 0, 'tests pass');
like($err, qr/^Ran [5-9]\d\d tests/m, 'hundreds of them');
diag($err =~ s/.*?^(?======)//msr) if $?;

$node->stop;
done_testing();
