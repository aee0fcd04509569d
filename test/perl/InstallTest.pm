# What the tests share that install other versions of the extension: a copy of
# the server's installation, so that others are not changed.

package InstallTest;

use strict;
use warnings;

use Exporter 'import';
use File::Basename;
use File::Path;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw($tree $sharedir $pkglibdir copy_installation copy_source
  build write_file write_header commented_anew);

our ($tree, $sharedir, $pkglibdir);

my $source = dirname(__FILE__) . '/../..';
my $pg_config = $ENV{PG_CONFIG} || 'pg_config';

# Copies the programs, and makes links to all other files.  The programs find
# the files relative to themselves (see test/sandbox.sh).  Returns what
# PostgreSQL::Test::Cluster takes as install_path.
sub copy_installation
{
	$tree = PostgreSQL::Test::Utils::tempdir();

	my %dir;
	foreach my $what (qw(bindir sharedir pkglibdir))
	{
		chomp($dir{$what} = `$pg_config --$what`);
		mkpath(dirname("$tree$dir{$what}"));
	}
	system_or_bail("mkdir $tree$dir{bindir}");
	foreach my $program (qw(initdb pg_config pg_ctl pgbench postgres psql))
	{
		system_or_bail('cp', '-L', "$dir{bindir}/$program", "$tree$dir{bindir}");
	}
	system_or_bail('cp', '-R', '-s', $dir{$_}, "$tree$dir{$_}")
	  foreach qw(sharedir pkglibdir);
	($sharedir, $pkglibdir) = ("$tree$dir{sharedir}", "$tree$dir{pkglibdir}");
	return dirname("$tree$dir{bindir}");
}

# A copy of the source, to be changed and built.  It has the objects of the source, if
# there are some, so that only what changes is compiled.
sub copy_source
{
	my $copy = "$tree/source";

	mkdir $copy or die $!;
	system_or_bail(
		"tar -c -f - -C $source --exclude='*.so'"
		  . " Makefile queue.control src | tar -x -f - -C $copy");
	return $copy;
}

# Replaces a header in a copy.  Only the files that include it are compiled again: for
# make, all objects depend on all headers.
sub write_header
{
	my ($copy, $header, $content) = @_;
	my ($accessed, $modified) = (stat "$copy/src/$header")[ 8, 9 ];

	write_file("$copy/src/$header", $content);
	utime $accessed, $modified, "$copy/src/$header" or die $!;
	foreach my $file (glob "$copy/src/*/*.[ch]")
	{
		next unless slurp_file($file) =~ /^#include "\Q$header\E"/m;
		die "$file includes $header" if $file =~ /h$/;
		unlink $file =~ s/c$/o/r;
	}
	return;
}

# Builds a copy of the source.  Optimization only takes time.
sub build
{
	my ($copy) = @_;
	local $ENV{MAKEFLAGS};

	system_or_bail('make', '-s', '-j2', '-C', $copy, "PG_CONFIG=$pg_config",
		'COPT=-O0');
	return;
}

# Replaces a file, which may be a link or in use: the old one is as it was for
# those that have opened it, and no process can open a part of the new one.
sub write_file
{
	my ($path, $content) = @_;

	open my $file, '>', "$path.new" or die "$path: $!";
	binmode $file;
	print $file $content;
	close $file or die $!;
	rename "$path.new", $path or die $!;
	return;
}

# A script of queue_proxy of version 1.2 with what the update to 2.0 changes: comments,
# functions with further arguments, and new ones.  That is what generate makes of the
# functions of 2.0.
sub commented_anew
{
	my ($script) = @_;
	my $dir = dirname(__FILE__) . '/../../src/proxy';
	my $result = slurp_file("$dir/$script");
	my $update = slurp_file("$dir/queue_proxy--1.2--2.0.sql");

	foreach my $name ($update =~ /^CREATE FUNCTION \@extschema\@\.(\w+)\(/gm)
	{
		my $create = qr/CREATE [A-Z ]*(?:FUNCTION|PROCEDURE) /;
		my $function = qr/^$create(?:queue_proxy|\@extschema\@)\.$name\(.*?^COMMENT [^\n]*\n'.*?';\n/ms;

		$update =~ s/($function)// or die $name;
		my $new = $1;
		$new =~ s/^CREATE FUNCTION/CREATE OR REPLACE FUNCTION/gm
		  if $result =~ /^CREATE OR REPLACE FUNCTION/m;
		next if $result =~ s/$function/$new/;

		# They are in the order of their names.
		my ($next) = grep { $_ gt $name } $result =~ /^$create\@extschema\@\.(\w+)\(/gm;
		$result =~ s/^(?=$create(?:queue_proxy|\@extschema\@)\.$next\()/$new\n/m
		  or die $name;
	}
	my %new = $update =~
	  /^(COMMENT ON FUNCTION [^\n]* IS\n)('.*?';\n)/gms;

	$result =~ s/^\Q$_\E'.*?';\n/$_$new{$_}/ms or die $_ foreach keys %new;
	return $result;
}

1;
