#!/usr/bin/perl
#
# mutants.pl - reads the lists of mutants, and makes the change of one
#
#	mutants.pl list [ROOM | FILE[:FUNCTION] | NUMBER ...]
#	mutants.pl apply NUMBER
#	mutants.pl check
#
# "list" prints a line for each mutant: its number, its place, "?" with the tests that
# find it or "!" with the verdict, and the defect, separated by tabs.  "apply" changes
# the file.  "check" prints what is wrong with any mutant: its old text is not there,
# or a test of it.  "run" describes the lists.

use strict;
use warnings;

use File::Basename;

my $lists = dirname(__FILE__);
my @rooms = qw(claim map push storage jobs queue other asserts);

sub read_file
{
	my ($name) = @_;

	open my $file, '<', $name or die "cannot read $name: $!\n";
	local $/;
	return <$file> // '';
}

# A list has a block of lines for each mutant.
sub read_list
{
	my ($room) = @_;
	my @mutants;

	for my $block (split /\n{2,}/, read_file("$lists/$room"))
	{
		my ($place, @lines) = grep { length } split /\n/, $block;
		my %mutant = (room => $room, old => [], new => [], defect => '');

		@mutant{qw(file function nth)} = split ' ', $place;
		for (@lines)
		{
			if    (/^- (.*)$/)      { push @{ $mutant{old} }, $1; }
			elsif (/^\+(?: (.*))?$/) { push @{ $mutant{new} }, $1 // ''; }
			elsif (/^([?!]) (.*)$/) { @mutant{qw(mark verdict)} = ($1, $2); }
			elsif (/^# (.*)$/)      { $mutant{defect} = $1; }
			else                    { die "$room: what is this line?\n$_\n"; }
		}
		die "$room: $place has no verdict\n" if !$mutant{mark};
		push @mutants, \%mutant;
	}
	return @mutants;
}

# A function begins with its name at the start of a line, a table with its type, and both
# end with the next closing brace there.
sub function_lines
{
	my ($function, @lines) = @_;

	for my $i (0 .. $#lines)
	{
		my $end = $i;

		next if $lines[$i] !~ /^(?:static const \w+ )?\Q$function\E[(\[]/;
		$end++ while $end < $#lines && $lines[$end] !~ /^\}/;
		return ($i, $end);
	}
	return;
}

# Returns what is wrong with the mutant, or nothing; then the file is changed, unless
# "check" is set.
sub apply
{
	my ($mutant, $check) = @_;
	my $name = "src/$mutant->{file}";
	return "no file $name" if !-f $name;
	my @lines = split /\n/, read_file($name);
	my ($begin, $end) = function_lines($mutant->{function}, @lines);
	my @old = @{ $mutant->{old} };
	my @found;

	return "no function $mutant->{function}" if !defined $begin;
	for my $i ($begin .. $end - $#old)
	{
		my @here = map { s/^\s+|\s+$//gr } @lines[ $i .. $i + $#old ];

		push @found, $i if "@here" eq "@old";
	}
	return 'the old text is found ' . @found . ' times'
	  if $mutant->{nth} ? @found < $mutant->{nth} : @found != 1;
	return if $check;
	splice @lines, $found[ ($mutant->{nth} || 1) - 1 ], scalar @old, @{ $mutant->{new} };
	open my $file, '>', $name or die "cannot write $name: $!\n";
	print $file map { "$_\n" } @lines;
	close $file or die "cannot write $name: $!\n";
	return;
}

# Returns the tests of a mutant that do not exist.
sub missing_tests
{
	my ($mutant) = @_;

	return if $mutant->{mark} eq '!';
	return grep {
		my ($kind, $name) = m{^(sql|iso)/(.+)$};
		!-f (!$kind ? "test/t/$_.pl" :
			$kind eq 'sql' ? "sql/$name.sql" : "test/isolation/specs/$name.spec")
	} split ' ', $mutant->{verdict};
}

my ($what, @chosen) = @ARGV;
chdir "$lists/../.." or die "cannot change to the top directory: $!\n";
$lists = 'test/mutants';
my @mutants = map { read_list($_) } grep { -f "$lists/$_" } @rooms;

if ($what eq 'apply')
{
	my $wrong = apply($mutants[ $chosen[0] - 1 ]);

	die "$wrong\n" if $wrong;
	exit;
}
if ($what eq 'check')
{
	for my $mutant (@mutants)
	{
		my @wrong = (apply($mutant, 1) // (), map { "no test $_" } missing_tests($mutant));

		print map { "$mutant->{file}:$mutant->{function}: $_\n" } @wrong;
	}
	exit;
}
for my $i (0 .. $#mutants)
{
	my $mutant = $mutants[$i];
	my $number = $i + 1;
	my $place = "$mutant->{file}:$mutant->{function}";

	# What only an assertion finds is found in a build with assertions.
	next if !@chosen && ($mutant->{room} eq 'asserts') != !!$ENV{ASSERT};
	next if @chosen && !grep { $_ eq $mutant->{room} || $_ eq $number ||
			$_ eq $mutant->{file} || $_ eq $place } @chosen;
	print join("\t", $number, $place, $mutant->{mark}, $mutant->{verdict},
		$mutant->{defect}), "\n";
}
