# queue_web: what roles see and may do there, forged requests and foreign hosts, names and
# bodies that are HTML, 10,000 queues, a server that is restarted.  clients/web/test is the
# long form, and queue_web_browser.pl looks at its pages in Chromium.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;

# Debian's python3: its packages are not for others.
my $python = '/usr/bin/python3';
our $browser;
foreach my $package ([ 'bottle', 'python3-bottle' ], [ 'psycopg', 'python3-psycopg' ],
	$browser ? [ 'selenium', 'python3-selenium' ] : ())
{
	plan skip_all => "package $package->[1] is not installed"
	  unless -x $python
	  and system("$python -I -c 'import $package->[0]' >/dev/null 2>&1") == 0;
}

plan skip_all => 'package chromium-driver is not installed'
  if $browser && !-x '/usr/bin/chromedriver';

start_server('');

my $dir = PostgreSQL::Test::Utils::tempdir();
my ($out, $err) = ('', '');
{
	local %ENV = (
		%ENV,
		HOME => $dir,
		PGHOST => $node->host,
		PGPORT => $node->port,
		PYTHONDONTWRITEBYTECODE => 1);
	IPC::Run::run(
		[ $python, "$FindBin::RealBin/../../clients/web/test_queue_web.py", $node->data_dir,
			$browser ? 'browser' : () ],
		'<', \undef, '>', \$out, '2>', \$err)
	  or $err .= "\nstatus $?";
}
is($err, '', 'the tests ran to the end');

my @results = split /\n/, $out;
ok(@results > ($browser ? 40 : 100), 'and have told what they saw');
foreach (@results)
{
	my ($result, $name, $detail) = split /\t/;
	if (/^# (.*)/)
	{
		note $1;
		next;
	}
	ok($result eq 'ok', $name) or diag($detail);
}

$node->stop;
done_testing();
