# The models of the availability map, of deduplication keys, of wake-ups, of
# groups and of their lanes (test/model): the checker finds no error in them as
# they are, and one in each that is wrong in one thing.  The largest runs are left
# to test/model/run.  The environment variable "models" names some of them (see
# test/check).
#
# test/check -a runs it.

use strict;
use warnings;

use File::Basename;
use IPC::Run;
use Test::More;

foreach my $program ('spin', $ENV{CC} || 'cc')
{
	plan skip_all => "$program is not installed"
	  unless grep { -x "$_/$program" || -x $program } split /:/, $ENV{PATH};
}

my $run = dirname(__FILE__) . '/../model/run';
my ($out, $err);

IPC::Run::run([ $run, '-q', split ' ', $ENV{models} // '' ], '>', \$out, '2>', \$err, IPC::Run::timeout(7200));
my $status = $?;

# What the checker said follows the line of a run that failed.
foreach (split /\n/, $out)
{
	if (/^(not )?ok - (.*)/) { ok(!$1, $2) }
	else { diag($_) }
}
is($status, 0, 'exits with 0');
is($err, '', 'without messages');
done_testing();
