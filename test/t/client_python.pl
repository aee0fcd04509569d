# The worker library of Python, clients/python: its own tests, those of its Django part,
# its types, and the wheel.  conformance_python has the cases of all worker libraries.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use ClusterTest;
use PostgreSQL::Test::Utils;
use PythonClient;
use QueueTest;
use Test::More;

sub run_ok
{
	my ($name, $pattern, @command) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $out = '';
	my $ok = IPC::Run::run(\@command, '<', \undef, '>&', \$out);

	ok($ok, $name) or diag $out;
	return like($out, $pattern, "$name: they have run");
}

my $python = python_with('psycopg');
start_server("queue.min_claim_ttl = 1");

local @ENV{qw(PGHOST PGPORT PGDATABASE)} = ($node->host, $node->port, $db);
delete local $ENV{PGUSER};
run_ok('tests of the library', qr/^Ran [1-9][0-9]+ tests/m,
	$python, '-W', 'error::ResourceWarning', 'tests/test_library.py');

SKIP:
{
	my $django = find_python_with('psycopg', 'django.tasks') // find_python_with('psycopg', 'django_tasks');
	skip 'no Django 6 and no django-tasks is installed', 1 unless $django;
	run_ok('tests of the Django part', qr/^Ran [1-9][0-9]+ tests/m, $django,
		'tests/test_django.py');
}
my $dir = PostgreSQL::Test::Utils::tempdir();
SKIP:
{
	my $mypy = find_python_with('mypy', 'psycopg');
	skip 'mypy is not installed', 1 unless $mypy;
	run_ok('the types are right', qr/^Success/, $mypy, '-m', 'mypy', '--cache-dir', $dir,
		'-p', 'pg_claim_queue');
	append_to_file("$dir/wrong.py", slurp_file('tests/types.txt'));
	my $out = '';
	IPC::Run::run([ $mypy, '-m', 'mypy', '--cache-dir', $dir, '--strict', "$dir/wrong.py" ], '>', \$out);
	my @found = $out =~ /wrong\.py:(\d+): error/g;
	my @wanted = grep { (split /\n/, slurp_file("$dir/wrong.py"))[ $_ - 1 ] =~ /# wrong/ }
	  1 .. scalar(split /\n/, slurp_file("$dir/wrong.py"));
	is("@found", "@wanted", 'a wrong payload has no type') or diag $out;
}

SKIP:
{
	my $build = find_python_with('build', 'setuptools', 'wheel');
	skip 'python3-build is not installed', 1 unless $build;
	system_or_bail('cp', '-R', $client, "$dir/source");
	chdir "$dir/source" or die;
	run_ok('a wheel is built', qr/pg_claim_queue-\S+\.whl/, $build, '-m', 'build', '--wheel',
		'--no-isolation');
	my ($wheel) = glob("$dir/source/dist/*.whl");
	my @files = split /\n/,
	  `$build -c 'import sys, zipfile; print(*zipfile.ZipFile(sys.argv[1]).namelist(), sep="\\n")' $wheel`;
	foreach my $file ('py.typed', 'worker.py', 'django/management/commands/queue_worker.py',
		'django/migrations/0001_initial.py')
	{
		ok((grep { $_ eq "pg_claim_queue/$file" } @files), "it has $file");
	}

	# Installed where nothing else is, but for the driver, it works as its README says.
	skip 'python3-venv is not installed', 1
	  if system("$build -m venv --system-site-packages $dir/venv >/dev/null 2>&1") != 0;
	chdir "$dir/venv" or die;
	delete local $ENV{PYTHONPATH};
	my ($app) = slurp_file("$client/README.md") =~ /^`app\.py`:\n\n```python\n(.*?)^```/ms;
	append_to_file('app.py', $app);
	run_ok('the wheel is installed', qr/Successfully installed/, 'bin/pip', 'install',
		'--no-index', '--no-deps', $wheel);
	run_ok('a push', qr/^\d+$/m, 'bin/python', '-c',
		'from app import *; print(send_mail.push(Mail("ann@example.org")))');
	my $worker = IPC::Run::start([ 'bin/python', '-u', '-m', 'pg_claim_queue', 'app:queue' ],
		'<', \undef, '>&', \my $out);
	$worker->pump until $out =~ /^to ann\@example\.org$/m;
	run_ok('the status', qr/^mail  /m, 'bin/pg-claim-queue', 'status');
	$worker->signal('TERM');
	ok($worker->finish, 'it ends') or diag $out;
	chdir $client or die;
}

$node->stop;
done_testing();
