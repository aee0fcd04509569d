# The library is built from the release, which "git archive" makes, in the source
# tree and, with make -f, in another directory: both are the same; make
# installcheck finds the tests from both; make clean leaves nothing behind.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use File::Basename;
use File::Find;
use File::Path qw(rmtree);
use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = dirname(__FILE__) . '/../..';
my $tree = PostgreSQL::Test::Utils::tempdir() . '/queue';
my $root = "$tree.root";
my $pg_config = $ENV{PG_CONFIG} || 'pg_config';

foreach my $program ('make', $ENV{CC} || 'cc', 'nm', 'tar', 'git')
{
	plan skip_all => "$program is not installed"
	  unless grep { -x "$_/$program" || -x $program } split /:/, $ENV{PATH};
}

mkdir $_ or die $! foreach $tree, "$tree/elsewhere", "$tree.logs";
# A repository of its own: the tests also run in a copy that has none, and
# changes that are not committed are tested too.
my $git = "git --git-dir=$tree.git --work-tree=$source"
  . ' -c user.name=test -c user.email=test';
system_or_bail("$git init -q");
system_or_bail("$git add -A && $git commit -q -m release &&"
	  . " $git archive HEAD | tar -x -f - -C $tree");
is(join(' ', map { basename($_) } glob "$tree/.*[a-z]*"),
	'.gitignore', 'the release has only what it needs');
ok(-e "$tree/$_", "the release has $_")
  foreach qw(README.md LICENSE META.json CHANGELOG.md doc test/check);

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->start;
$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;

# All files below a directory
sub files
{
	my ($dir) = @_;
	my @found;

	find({ wanted => sub { push @found, $_ if -f }, no_chdir => 1 }, $dir);
	return join "\n", sort map { substr $_, length $dir } @found;
}

# Runs make in a directory of the tree.  Optimization only takes time.
sub make
{
	my ($dir, @arguments) = @_;
	local $ENV{MAKEFLAGS};

	return $node->command_ok(
		[
			'make', '-s', '-C', $dir, "PG_CONFIG=$pg_config", 'COPT=-O0',
			@arguments
		],
		"$dir: make @arguments" =~ s/\Q$tree\E(\.root)?/.../gr);
}

# The names that a library exports
sub exports
{
	my ($library) = @_;
	my ($stdout, $stderr) =
	  run_command([ 'nm', '-D', '--defined-only', $library ]);

	return join "\n", map { (split)[2] } split /\n/, $stdout;
}

my $clean = files($tree);
my %exports;
my %installed;

foreach my $build ([$tree], [ "$tree/elsewhere", '-f', '../Makefile' ])
{
	my ($dir, @makefile) = @$build;
	my $what = @makefile ? 'in another directory' : 'in the source tree';

	# Most of the time is the compiler's.  So the second build compiles one directory, and
	# has the other objects of the first.
	if (@makefile)
	{
		system_or_bail('cp', '-R', '-p', "$tree.objects", "$dir/src");
		rmtree("$dir/src/queue");
	}
	make($dir, @makefile, '-j2');
	system_or_bail("cp -R -p $dir/src $tree.objects && find $tree.objects -type f ! -name '*.o' -delete")
	  unless @makefile;
	$exports{$what} = exports("$dir/queue.so");
	like($exports{$what}, qr/^sql_queue_push$/m, "$what: the library is built");
	make($dir, @makefile, 'install', "DESTDIR=$root/$what");
	$installed{$what} = files("$root/$what");
	like($installed{$what}, qr/queue--2\.0\.sql/, "$what: it is installed");
	like($installed{$what}, qr/queue_proxy\.control/, "$what: the router's files, too");
	unlike($installed{$what}, qr/bitcode/, "$what: without bitcode");
	make($dir, @makefile, 'installcheck', 'REGRESS=push',
		'ISOLATION=push-visible');
	isnt(files($tree), $clean, "$what: files were made");
	make($dir, @makefile, 'uninstall', "DESTDIR=$root/$what");
	is(files("$root/$what"), '', "$what: make uninstall leaves nothing behind");
	make($dir, @makefile, 'clean');
	is(files($tree), $clean, "$what: make clean leaves nothing behind");
}
is($exports{'in another directory'}, $exports{'in the source tree'},
	'the same library');
is($installed{'in another directory'}, $installed{'in the source tree'},
	'the same files are installed');

$node->stop;
done_testing();
