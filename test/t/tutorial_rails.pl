# The tutorial of Rails, as a reader would do it.  What the reader installs from
# rubygems.org is that of the distribution, so the application is made without what needs
# other gems, and has a Gemfile of its own.
#
# test/check -a runs it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;
use Tutorial;

plan skip_all => 'Rails is not installed (apt install ruby-rails bundler)'
  unless find_program(['rails'], '--version') && find_program(['bundle'], '--version');
plan skip_all => 'ruby-pg is not installed' unless find_program(['ruby'], '-e', 'require "pg"');

sub run_there
{
	my ($home, @command) = @_;
	my $said;

	IPC::Run::run(\@command, '<', \undef, '>&', \$said, init => sub { chdir $home or die $! })
	  or BAIL_OUT("@command: $said");
	return;
}

sub install
{
	my ($home) = @_;

	run_there($home, 'rails', 'new', '.', '--name=shop', '--database=postgresql', '--skip-javascript',
		'--skip-bundle', map { "--skip-$_" } qw(git spring bootsnap listen sprockets asset-pipeline));
	unlink "$home/Gemfile" or die $!;
	append_to_file("$home/Gemfile",
		qq(source "https://rubygems.org"\ngem "rails"\ngem "pg"\ngem "activejob-queue", path: "$top/clients/activejob"\n));
	run_there($home, 'bundle', 'install', '--local');
	return;
}

my $dir = PostgreSQL::Test::Utils::tempdir();
append_to_file("$dir/sync.rb", '$stdout.sync = true');

# A terminal shows each line at once; so does a pipe with the last of these.
tutorial('rails', { HOME => $dir, GEM_HOME => "$dir/gems", RUBYOPT => "-W0 -r$dir/sync.rb" }, \&install);
done_testing();
