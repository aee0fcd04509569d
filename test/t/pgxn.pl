# The archive for PGXN, which packaging/pgxn makes: its name, and every file of
# the release as it is.  META.json says the same as the other packages do.
# (release.pl checks META.json by the rules of PGXN, and build.pl builds
# a release.)

use strict;
use warnings;

use File::Basename;
use File::Spec;
use IO::Uncompress::Unzip qw($UnzipError);
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = File::Spec->rel2abs(dirname(__FILE__) . '/../..');
my $meta = decode_json(slurp_file("$top/META.json"));

# --- META.json ---

# The name that is searched for is that of the images, too.
foreach my $file (map { "packaging/image/$_" } qw(Containerfile Containerfile.cloudnativepg))
{
	my $text = slurp_file("$top/$file");

	foreach my $label (
		[ title => $meta->{name} ],
		[ version => $meta->{version} ],
		[ licenses => 'PostgreSQL' ])
	{
		my ($key, $value) = @$label;
		is(join(' ', $text =~ /\borg\.opencontainers\.image\.$key="(.*)"/),
			$value, "$file: the label $key");
	}
}
like(slurp_file("$top/$_"), qr/`\Q$meta->{name}\E`/, "$_ says the name")
  foreach qw(README.md CHANGELOG.md packaging/image/README.md);

is_deeply(
	[ sort keys %{ $meta->{provides} } ],
	[
		sort map { basename($_, '.control') } glob "$top/*.control $top/src/*/*.control"
	],
	'META.json provides all extensions');
foreach my $extension (sort keys %{ $meta->{provides} })
{
	like($meta->{provides}{$extension}{file}, qr/\b\Q$extension\E--[\d.]+\.sql$/,
		"META.json: the file of $extension");
}

my ($maintainer, $address) = slurp_file("$top/packaging/debian/control.in") =~
  /^Maintainer: (.*) <(.*)>$/m;
is($meta->{maintainer}, $maintainer, 'META.json: the maintainer of the packages');
is($meta->{resources}{bugtracker}{mailto},
	$address, 'META.json: where bugs are reported to');

# --- The archive ---

# Files by name, without those that a checkout alone needs
sub files_of_git
{
	my ($tree) = @_;

	return map { $_ => slurp_file("$tree/$_") }
	  grep { !m{^(?:\.ci/|\.editorconfig$|\.gitattributes$)} }
	  split /\n/, `cd '$tree' && git -c core.quotePath=off ls-files`;
}

# Files by name; the directories that the archive has for them are left out.
sub files_of_zip
{
	my ($file) = @_;
	my $zip = IO::Uncompress::Unzip->new($file) or die $UnzipError;
	my (%files, $status);

	do
	{
		my $name = $zip->getHeaderInfo->{Name};
		my $text = '';
		my $n;

		$text .= $_ while ($n = $zip->read($_)) > 0;
		die $UnzipError if $n < 0;
		$files{$name} = $text unless $name =~ m{/$};
	} while (($status = $zip->nextStream) > 0);
	die $UnzipError if $status < 0;
	return %files;
}

# What the two have in common is left out.
sub differences
{
	my ($expected, $found) = @_;

	return join "\n",
	  (map { "$_ is missing" } grep { !exists $found->{$_} } sort keys %$expected),
	  map { exists $expected->{$_} ? "$_ is another" : "$_ is too many" }
	  grep { !exists $expected->{$_} || $expected->{$_} ne $found->{$_} }
	  sort keys %$found;
}

SKIP:
{
	skip 'git is not installed', 1
	  unless grep { -x "$_/git" } split /:/, $ENV{PATH};

	# A repository of its own: the tests also run in a copy that has none, and
	# changes that are not committed are tested too.
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my $release = "$meta->{name}-$meta->{version}";
	my $git = 'git -c user.name=test -c user.email=test';
	local $ENV{GIT_DIR} = "$dir/git";
	local $ENV{GIT_WORK_TREE} = $top;

	system_or_bail("git init -q");
	system_or_bail("cd '$top' && $git add -A && $git commit -q -m release");

	mkdir "$dir/out" or die $!;
	my ($stdout, $stderr) = run_command([ "$top/packaging/pgxn", "$dir/out" ]);
	is($stdout, "$dir/out/$release.zip", 'the archive is made');
	is($stderr, '', 'without a warning');

	my %expected = do
	{
		my %files = files_of_git($top);
		map { +"$release/$_" => $files{$_} } keys %files;
	};
	my %found = files_of_zip("$dir/out/$release.zip");
	is(differences(\%expected, \%found), '', 'it has all files, and no other');
	ok(exists $found{"$release/$_"}, "it has $_")
	  foreach qw(META.json Makefile README.md LICENSE queue.control),
	  map { $_->{file}, $_->{docfile} } values %{ $meta->{provides} };

	# The comparison finds what differs.
	my %changed = (%found, "$release/Makefile" => '', "$release/extra" => '');
	delete $changed{"$release/LICENSE"};
	is( differences(\%expected, \%changed),
		"$release/LICENSE is missing\n"
		  . "$release/Makefile is another\n"
		  . "$release/extra is too many",
		'what differs is found');

	# The archive has only what is committed, and the program says so.
	local $ENV{GIT_WORK_TREE} = "$dir/tree";
	mkdir "$dir/tree" or die $!;
	system_or_bail("cd '$dir/tree' && git checkout -q -f HEAD");
	append_to_file("$dir/tree/Makefile", "# changed\n");
	($stdout, $stderr) = run_command([ "$dir/tree/packaging/pgxn", "$dir/out" ]);
	like($stderr, qr/what is not committed is not in the archive/,
		'a change that is not committed');
	my %again = files_of_zip("$dir/out/$release.zip");
	is(differences(\%found, \%again), '', 'it is not in the archive');

	# Where there is no commit
	local $ENV{GIT_DIR} = "$dir/none";
	($stdout, $stderr) = run_command([ "$top/packaging/pgxn", "$dir/out" ]);
	like($stderr, qr/there is no commit to make an archive of/,
		'outside of a checkout');
	is($stdout, '', 'no archive is made there');
}

done_testing();
