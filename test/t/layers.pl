# The source keeps to its layers: includes point downwards, a header declares
# what its .c file defines and others use, names begin with their module's
# prefix, the library exports only what PostgreSQL calls, no file is long, and the
# layout is that of pgindent.
#
# test/check -q runs it, too.

use strict;
use warnings;

use File::Basename;
use File::Temp;
use IPC::Run;
use Test::More;

my $source = dirname(__FILE__) . '/../../src';
my $pg_config = $ENV{PG_CONFIG} || 'pg_config';

# From the top to the bottom; module.c is above all of them.
my @layers = qw(api bgworker jobs commands claim push stats queue storage map
  shmem catalog util);
my %rank = map { $layers[$_] => $#layers - $_ } 0 .. $#layers;

# A function begins with a word of its file's name, or with one of these.
my %prefixes = (
	'catalog/message_table' => 'index_list',
	'bgworker/wakeup' => 'await',
	'catalog/relations' => 'catalog',
	'jobs/run' => 'batch|job_log',
	'util/hash' => 'digest',
	'queue/registry' => 'queue');

# The files below src, with their path from there: as they are, without
# comments, and the headers of ours that they include
my (%text, %code, %includes);
foreach my $path (glob "$source/*.[ch] $source/*/*.[ch]")
{
	my $file = substr $path, length "$source/";
	open my $handle, '<', $path or die "$path: $!";
	$text{$file} = do { local $/; <$handle> };
	close $handle;
	$code{$file} = $text{$file} =~ s{/\*.*?\*/}{}gsr;
}
foreach my $file (keys %code)
{
	my @all = $code{$file} =~ /^#include "([^"]+)"/mg;
	$includes{$file} =
	  [ grep { $text{$_} || $text{ dirname($file) . "/$_" } } @all ];
}
my @sources = sort grep { /\.c$/ } keys %text;
my @headers = sort grep { /\.h$/ } keys %text;

# Functions that a source file defines for others
sub definitions
{
	my ($file) = @_;
	my @found;
	my $before = '';

	foreach my $line (split /\n/, $code{$file})
	{
		my ($name) = $line =~ /^(\w+)\(/;
		push @found, $name
		  if $name && $before =~ /^[A-Za-z][\w \t*]*$/ && $before !~ /^static\b/;
		$before = $line;
	}
	return @found;
}

# Functions that a header declares, but for inline ones
sub declarations
{
	my ($file) = @_;

	my $c = $code{$file} =~ s/^#(?:.*\\\n)*.*\n//mgr;
	return $c =~ /^(?:pg_noreturn\s+)?extern\b[^;(]*?(\w+)\s*\(/mg;
}

# The header of a source file, and the one that it shares with others: what
# worker.c, worker_task.c and so on tell each other is in worker_internal.h.
sub headers_of
{
	my ($file) = @_;
	my ($name) = $file =~ /^(.*)\.c$/;
	my @shared = grep { /^(.*)_internal\.h$/ && "${name}_" =~ /^\Q$1\E_/ } @headers;

	return ("$name.h", @shared);
}

# A test that nothing is wrong
sub none
{
	my ($what, @wrong) = @_;

	return is(join("\n", @wrong), '', $what);
}

sub slurp
{
	my ($path) = @_;

	open my $handle, '<', $path or die "$path: $!";
	local $/;
	return scalar <$handle>;
}

sub output_of
{
	my ($out, $err);

	IPC::Run::run([@_], '>', \$out, '2>', \$err) or die "@_: $err";
	chomp $out;
	return $out;
}

# Functions that PostgreSQL calls by their name
my @workers = map { /background_describe\([^;"]*"[^"]*",\s*"(\w+)"\)/g } @code{@sources};
my @functions = map { /^PG_FUNCTION_INFO_V1\((\w+)\)/mg } @code{@sources};
my %called = map { $_ => 1 } '_PG_init', @workers, @functions;

# The functions that each source file defines for others
my %defined = map { $_ => { map { $_ => 1 } definitions($_) } } @sources;

cmp_ok(scalar(@sources), '>', 40, 'the source is found');

# A lock of a session survives a process that exits between two transactions,
# unless it was taken by this file.
none('locks of a session are in session_lock.c only',
	grep { $_ ne 'util/session_lock.c'
		  && $code{$_} =~ /\bLockAcquire(?:Extended)?\([^;]*?,[^;,]*?,\s*true,|ForSession\(/ }
	  @sources);

# --- includes ---

none(
	'a folder of the source is a layer',
	grep { m{^(.*)/} && !exists $rank{$1} } sort keys %text);
none('only module.c lies above the layers',
	grep { !m{/} && $_ ne 'module.c' } sort keys %text);
none(
	'our headers are included with their path from src',
	map {
		my $file = $_;
		map { "$file: $_" } grep { !$text{$_} } @{ $includes{$file} }
	} sort keys %text);
none(
	'no file includes a header of a layer above it',
	map {
		my $file = $_;
		my $own = $file =~ m{^(\w+)/} ? $rank{$1} : @layers;
		map { "$file: $_" }
		  grep { m{^(\w+)/} && $rank{$1} > $own } @{ $includes{$file} }
	} sort keys %text);
none(
	'only the api includes headers of the api',
	map {
		my $file = $_;
		map { "$file: $_" } grep { m{^api/} } @{ $includes{$file} }
	} grep { !m{^api/} } sort keys %text);
none('SQL calls functions of the api and no others',
	grep { !m{^api/} && $code{$_} =~ /^PG_FUNCTION_INFO_V1/m } @sources);
none(
	'each .c file includes postgres.h first',
	grep { ($code{$_} =~ /^#include\s+["<]([^">]+)/m)[0] ne 'postgres.h' }
	  @sources);
none('no header includes postgres.h',
	grep { $code{$_} =~ /^#include "postgres\.h"/m } @headers);
none(
	'only compat.h depends on the version of PostgreSQL',
	grep { $_ ne 'util/compat.h' && $code{$_} =~ /^#.*\bPG_VERSION_NUM\b/m }
	  sort keys %text);

# --- headers ---

SKIP:
{
	my ($cc) = split ' ', $ENV{CC} || 'cc';
	skip "$cc is not installed", 1
	  unless grep { -x "$_/$cc" || -x $cc } split /:/, $ENV{PATH};
	my $server = output_of($pg_config, '--includedir-server');
	none(
		'each header compiles by itself',
		grep {
			!IPC::Run::run(
				[
					$cc, '-fsyntax-only', '-x', 'c', "-I$source", '-isystem',
					$server, '-'
				],
				'<', \qq{#include "postgres.h"\n#include "$_"\n},
				'2>', \my $err)
		} @headers);
}
none(
	'what a header declares is defined in a .c file of its name',
	map {
		my $file = $_;
		my @of = grep { grep { $_ eq $file } headers_of($_) } @sources;
		map { "$file: $_" } grep {
			my $name = $_;
			!grep { $defined{$_}{$name} } @of
		} declarations($file)
	} @headers);
# An inline function of the header may call it for other files.
none(
	'what a header declares is used by another file',
	map {
		my $file = $_;
		map { "$file: $_" } grep {
			my $name = $_;
			my @others =
			  grep { $_ ne $file && !$defined{$_}{$name} } keys %code;
			!$called{$name} && (() = $code{$file} =~ /\b$name\b/g) < 2
			  && !grep { $code{$_} =~ /\b$name\b/ } @others
		} declarations($file)
	} @headers);

# --- names ---

none(
	'each function for others is in the header of its file',
	map {
		my $file = $_;
		my %declared = map { $_ => 1 }
		  map { $text{$_} ? declarations($_) : () } headers_of($file);
		map { "$file: $_" }
		  grep { !$declared{$_} && !$called{$_} } sort keys %{ $defined{$file} }
	} @sources);
none('no .c file declares functions of others itself',
	grep { $code{$_} =~ /^extern\b[^;]*\(/m } @sources);
none(
	"each begins with a word of its file's name",
	map {
		my $file = $_;
		my $words = join '|', map { (s/s$//r, $_) } split /_/,
		  basename($file, '.c');
		my $more = $prefixes{ $file =~ s/\.c$//r } || $words;
		map { "$file: $_" }
		  grep { !/^(?:$words|$more)(?:_|$)/ && !$called{$_} }
		  sort keys %{ $defined{$file} }
	} @sources);
none(
	'each other prefix is used',
	map {
		my $file = $_;
		map { "$file: $_" } grep {
			my $prefix = $_;
			!grep { /^${prefix}_/ } keys %{ $defined{"$file.c"} || {} }
		} split /\|/, $prefixes{$file}
	} sort keys %prefixes);

# --- what the library exports ---

SKIP:
{
	my $library = output_of($pg_config, '--pkglibdir') . '/queue.so';
	skip 'the library is not installed', 1 unless -f $library;
	skip 'nm is not installed', 1
	  unless grep { -x "$_/nm" } split /:/, $ENV{PATH};
	my %wanted = map { $_ => 1 } 'Pg_magic_func', '_PG_init', @workers;
	foreach my $script (glob "$source/sql/*.sql $source/pgmq/*.sql")
	{
		my $sql = slurp($script);
		$wanted{$_} = $wanted{"pg_finfo_$_"} = 1
		  foreach $sql =~ /'MODULE_PATHNAME',\s*'(\w+)'/g;
	}
	my %exported = map { (split)[2] => 1 }
	  split /\n/, output_of('nm', '-D', '--defined-only', $library);
	none('the library exports what PostgreSQL calls, and nothing else',
		(map { "not exported: $_" } grep { !$exported{$_} } sort keys %wanted),
		(map { "exported: $_" } grep { !$wanted{$_} } sort keys %exported));
}

# --- tests ---

none(
	'test servers have the limits of ClusterTest',
	grep { m{^(?!perl/ClusterTest)} && slurp("$source/../test/$_") =~ /^use PostgreSQL::Test::Cluster\b/m }
	  map { s{.*/test/}{}r } glob "$source/../test/{perl/*.pm,t/*.pl}");

# The copy of the source that recipes.pl makes and changes has no other tests.
none('every mutant in test/mutants applies, and its tests exist',
	split /\n/, output_of('perl', "$source/../test/mutants/mutants.pl", 'check'))
  if -d "$source/../test/mutants";

# --- layout ---

none('no file has more than 800 lines',
	grep { $text{$_} =~ tr/\n// > 800 } sort keys %text);

SKIP:
{
	# Other versions lay out initializers of several lines in another way.
	my $version = eval { output_of('pg_bsd_indent', '--version') } || '';
	skip 'pg_bsd_indent 2.1.1 is not installed', 1
	  unless $version =~ /^pg_bsd_indent 2\.1\.1\b/;
	my $copy = File::Temp->newdir;
	output_of('cp', '-r', "$source/../Makefile", $source, $copy);
	output_of('make', '-s', '-C', $copy, "PG_CONFIG=$pg_config", 'indent');
	none('make indent changes nothing',
		grep { -f "$source/$_" && slurp("$source/$_") ne slurp("$copy/src/$_") }
		  sort keys %text);
}

done_testing();
