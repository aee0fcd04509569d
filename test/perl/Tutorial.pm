# Does what a tutorial of doc/tutorials says, as a reader would, from top to bottom: in an
# empty directory, on a server of its own, as the role that the tutorial creates.  A
# comment before each block of the page says what the reader does with it:
#
#	<!-- install -->			types it into a shell, where packages are installed.  It is
#								not run: here all that is there.  The test of the tutorial
#								says what stands for the packages of its language.
#	<!-- environment -->		types it into a shell.  It is not run: the variables have
#								the values of this server.
#	<!-- superuser -->			types it into psql, as a superuser
#	<!-- psql -->				types it into psql, which goes on from block to block
#	<!-- psql, until -->		types it into psql again and again until it prints what
#								follows
#	<!-- shell -->				types it into a shell; "output not shown" after that says
#								that the page leaves out what is printed
#	<!-- file: NAME -->			writes it into this file
#	<!-- change: NAME -->		writes it there in place of what begins with the same line
#								and goes on to the end
#	<!-- insert after TEXT: NAME -->	writes it there below the line with this text
#	<!-- worker -->				types it into another shell, where it runs until it is
#								stopped
#	<!-- stop -->				presses Ctrl+C there, before what is in the block is printed
#	<!-- output -->				sees this, printed for the block before
#	<!-- worker prints -->		sees this, printed by the worker
#
# "among others" after the last one or "stop" says that other lines may be between these.
#
# What is printed is compared line by line.  White space counts as one blank, and dashes as
# one, since columns are as wide as what they contain.  A number of four or more digits and
# a time are ids and times of the author's: each stands for one of the reader's, and for
# the same in all of the page.  A line "  ..." stands for the indented lines of a traceback.
#
# What a worker does before it is stopped, and what is left to the next one, depends on
# when the reader presses Ctrl+C: the lines of both are compared together, in any order.

package Tutorial;

use strict;
use warnings;

use Cwd 'abs_path';
use Exporter 'import';
use File::Basename;
use IPC::Run;
use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(tutorial $top find_program);

our $top = abs_path(dirname(__FILE__) . '/../..');

# How long a step may take, in seconds
my $limit = 180;

# The server, the reader's directory, and what runs there
my ($server, $home, $psql, $worker);

# What the page shows of a worker that was stopped, and what it has printed
my $left;

# The reader's ids and times by the author's, and the author's by the reader's
my (%reader, %author);

# Nothing outlives a test that dies.
END
{
	local $?;
	$_->{run}->kill_kill foreach grep { defined } $psql, $worker;
}

# The first of these programs in PATH with which this command succeeds.  It is not run in
# the directory of the tests: there, Python would take queue.so for its module "queue".
sub find_program
{
	my ($names, @arguments) = @_;

	foreach my $program (map { my $d = $_; map { "$d/$_" } @$names } split(/:/, $ENV{PATH}))
	{
		return $program
		  if -x $program && IPC::Run::run([ $program, @arguments ], '<', \undef, '>&', \my $said,
			init => sub { chdir '/' or die $! });
	}
	return;
}

# The blocks of the page, each with the comment before it
sub blocks_of
{
	my ($page) = @_;
	my $text = slurp_file($page);
	my @blocks;

	push @blocks, { mark => $1, text => $2, line => 1 + (substr($text, 0, $-[0]) =~ tr/\n//) }
	  while $text =~ /^<!-- ([^\n]*) -->\n```\w+\n(.*?)^```$/msg;
	die "$page: a block does not say what is done with it" if 2 * @blocks != ($text =~ s/^```//mg);
	return @blocks;
}

sub comparable
{
	my ($text) = @_;

	return $text =~ s/[ \t]+/ /gr =~ s/-+/-/gr =~ s/\s*\n\s*/\n/gr =~ s/^\s+|\s+$//gr;
}

# What is printed, with the marks that the page has for tracebacks
sub shortened
{
	my ($printed, $shown) = @_;

	return $shown =~ /^  \.\.\.$/m ? $printed =~ s/(?:^  .*\n)+/  ...\n/gmr : $printed;
}

my $variable = qr/\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|(?<=\[)\d+(?=\])|\b\d{4}-\d\d-\d\d[ T][\d:.,]+(?:[+-]\d\d(?::\d\d)?)?|\b\d{4,}\b/;

# Whether what is printed is what the page shows; if so, the reader's ids and times stand
# for the author's from here on.
sub same
{
	my ($printed, $shown) = map { comparable($_) } shortened(@_), $_[1];
	my (@reader, @author, %reads, %writes);

	push @reader, $1 while $printed =~ s/($variable)/<>/;
	push @author, $1 while $shown =~ s/($variable)/<>/;
	return if $printed ne $shown || @reader != @author;
	foreach my $n (0 .. $#author)
	{
		my ($mine, $his) = ($reader[$n], $author[$n]);

		return if ($reads{$his} // $reader{$his} // $mine) ne $mine
		  || ($writes{$mine} // $author{$mine} // $his) ne $his;
		$reads{$his} = $mine;
		$writes{$mine} = $his;
	}
	@reader{ keys %reads } = values %reads;
	@author{ keys %writes } = values %writes;
	return 1;
}

# The lines without ids and times
sub lines_of
{
	return split /\n/, comparable($_[0]) =~ s/$variable/<>/gr;
}

# Whether the same lines are printed that the page shows, in any order, or among others
sub alike
{
	my ($printed, $shown, %how) = @_;
	my @shown = lines_of($shown);
	my @printed = lines_of(shortened($printed, $shown));

	if ($how{others})
	{
		my %shown = map { $_ => 1 } @shown;
		@printed = grep { $shown{$_} } @printed;
	}
	return join("\n", $how{order} ? @printed : sort @printed) eq join("\n", $how{order} ? @shown : sort @shown);
}

# Waits until the worker has printed what the page shows, and compares that; together with
# what the one before has printed if that is left.
sub prints
{
	my ($block) = @_;
	my $until = time + $limit;
	my $others = $block->{mark} =~ /others/;
	my $alike = $others ? sub { alike(@_, others => 1, order => 1) } : undef;

	if ($left)
	{
		$block->{text} = $left->{text} . $block->{text};
		$worker->{said} = $left->{said};
		$alike = sub { alike(@_, others => $others) };
		undef $left;
	}
	$alike //= \&same;
	until ($alike->($worker->{said}, $block->{text}) || time > $until || !$worker->{run}->pumpable)
	{
		$worker->{run}->pump_nb;
		sleep 0.01;
	}
	is_printed($worker->{said}, $block, $alike);
	$worker->{said} = '';
	return;
}

# Stops the worker.  What it has printed since is compared, unless another one follows.
sub stop
{
	my ($block, @rest) = @_;

	$worker->{run}->signal('INT');
	ok($worker->{run}->finish, "line $block->{line}: the worker ends");
	if (grep { $_->{mark} eq 'worker' } @rest)
	{
		$left = { text => $block->{text}, said => $worker->{said} };
	}
	else
	{
		is_printed($worker->{said}, $block,
			$block->{mark} =~ /others/ && sub { alike(@_, others => 1, order => 1) });
	}
	undef $worker;
	return;
}

sub is_printed
{
	my ($said, $block, $alike) = @_;
	my $name = "line $block->{line}: it prints this";

	return ok(1, $name) if $alike ? $alike->($said, $block->{text}) : same($said, $block->{text});
	return is($said, $block->{text}, $name);
}

sub start
{
	my (@command) = @_;
	my $process = { said => '', input => '' };

	$process->{run} = IPC::Run::start(\@command, '<', \$process->{input}, '>&', \$process->{said},
		init => sub { chdir $home or die $! });
	return $process;
}

# Types this into psql; what it prints
sub psql
{
	my ($text) = @_;
	my $end = 'this block has ended';
	my $until = time + $limit;

	$psql //= start('psql', '-X');
	$psql->{input} .= "$text\\echo $end\n";
	$psql->{run}->pump while $psql->{said} !~ /^\Q$end\E$/m && time < $until;
	my $said = $psql->{said} =~ s/^\Q$end\E\n//mr;
	$psql->{said} = '';
	return $said;
}

# What a shell says to the commands in a block, and its status
sub shell
{
	my ($text) = @_;

	IPC::Run::run([ 'sh', '-c', $text ], '<', \undef, '>&', \my $said,
		init => sub { chdir $home or die $! });
	return wantarray ? ($said, $?) : $said;
}

# Waits for what a query prints
sub psql_until
{
	my ($text, $block) = @_;
	my $until = time + $limit;
	my $said = psql($text);

	while (!same($said, $block->{text}) && time < $until)
	{
		sleep 0.05;
		$said = psql($text);
	}
	return $said;
}

# How the extension is installed: up to where the reader connects as "app"
sub installation
{
	my (@blocks) = @_;
	my @texts;

	while (my $block = shift @blocks)
	{
		last if $block->{mark} eq 'environment';
		push @texts, $block->{text};
	}
	return join '', @texts;
}

# Starts the server, and does what the tutorial of this name says, with these variables in
# the environment of its programs, after this function has put what the reader installs into
# the reader's directory
sub tutorial
{
	my ($name, $environment, $install) = @_;
	my @blocks = blocks_of("$top/doc/tutorials/$name.md");
	my $said = '';

	is(installation(@blocks), installation(blocks_of("$top/doc/tutorials/sql.md")),
		'the extension is installed as in the other tutorials');

	$server = PostgreSQL::Test::Cluster->new('main');
	$server->init;
	$server->start;
	# psycopg 3 returns text of an SQL_ASCII database as bytes.
	$server->safe_psql('postgres',
		q{CREATE DATABASE mydb TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'});
	$home = PostgreSQL::Test::Utils::tempdir();
	local %ENV = (
		%ENV, %{ $environment // {} },
		PGHOST => $server->host, PGPORT => $server->port, PGDATABASE => 'mydb', PGUSER => 'app');
	$install->($home) if $install;

	while (my $block = shift @blocks)
	{
		my ($mark, $text) = @$block{qw(mark text)};
		my $next = $blocks[0] // { mark => '' };

		if ($mark eq 'install' || $mark eq 'environment')
		{
			next;
		}
		elsif ($mark eq 'superuser')
		{
			local $ENV{PGUSER} = getpwuid($<);
			IPC::Run::run([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1' ],
				'<', \$text, '>&', \$said);
		}
		elsif ($mark eq 'psql')
		{
			$said = psql($text);
		}
		elsif ($mark eq 'psql, until')
		{
			$said = psql_until($text, $next);
		}
		elsif ($mark eq 'shell')
		{
			$said = shell($text);
		}
		elsif ($mark eq 'shell, output not shown')
		{
			my ($out, $status) = shell("set -e\n$text");
			is($status, 0, "line $block->{line}: this runs") or diag($out);
		}
		elsif ($mark =~ /^file: (\S+)$/)
		{
			unlink "$home/$1";
			append_to_file("$home/$1", $text);
		}
		elsif ($mark =~ /^insert after (.+): (\S+)$/)
		{
			my ($place, $file) = ($1, "$home/$2");
			my $before = slurp_file($file);

			ok($before =~ s/^(.*\Q$place\E.*\n)/$1$text/m, "line $block->{line}: there is such a line");
			unlink $file;
			append_to_file($file, $before);
		}
		elsif ($mark =~ /^change: (\S+)$/)
		{
			my $file = "$home/$1";
			my $before = slurp_file($file);
			my ($first) = $text =~ /^(.*\n)/;

			ok($before =~ s/^\Q$first\E.*//ms, "line $block->{line}: there is something to change");
			unlink $file;
			append_to_file($file, $before . $text);
		}
		elsif ($mark eq 'worker')
		{
			$worker = start('sh', '-c', "exec $text");
		}
		elsif ($mark =~ /^worker prints(?:, among others)?$/)
		{
			prints($block);
		}
		elsif ($mark =~ /^stop(?:, among others)?$/)
		{
			stop($block, @blocks);
		}
		elsif ($mark eq 'output')
		{
			is_printed($said, $block);
			$said = '';
		}
		else
		{
			fail("line $block->{line}: \"$mark\" is known");
		}

		if ($mark =~ /^(?:superuser|psql|shell)$/ && $next->{mark} ne 'output')
		{
			is($said, '', "line $block->{line}: nothing is printed that the page does not show");
			$said = '';
		}
	}
	$psql->{run}->kill_kill if $psql;
	undef $psql;
	$server->stop;
	return;
}

1;
