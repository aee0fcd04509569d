# The worker of clients/activejob: the cases of clients/conformance.  Left out are those of
# what ActiveJob has no word for, a result and a snooze (it enqueues another job), and those
# of more jobs than connections, since a thread of the worker has a connection.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl", "$FindBin::RealBin/../../clients/conformance";

use Conformance;
use Test::More;

my $client = "$FindBin::RealBin/../../clients/activejob";
foreach my $library ('active_job', 'pg')
{
	plan skip_all => "ruby with $library is not installed"
	  if system("ruby -e 'require %q($library)' >/dev/null 2>&1") != 0;
}
$ENV{RUBYLIB} = "$client/lib";
$ENV{RUBYOPT} = '-W0';
test_conformance(
	[ 'ruby', "$client/test/conformance.rb" ],
	'^work', '^a delay', 'several queues', 'commit together', 'an error is kept', 'permanent', 'a time limit',
	'^poison', 'idle_in', 'terminated', 'restarted', 'longer than its claim', 'lost', 'canceled',
	'SIGTERM', 'killed', 'kills its worker', 'suspended', 'groups', 'batches', 'rate',
	'10,000', 'clock', 'dropped', 'password');

done_testing();
