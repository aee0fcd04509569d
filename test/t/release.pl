# The release: META.json obeys the rules of PGXN, all files name the same
# version, the scripts of released versions do not change, and "git archive"
# makes what is released (build.pl builds that).

use strict;
use warnings;

use Digest::SHA;
use File::Basename;
use File::Copy;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = dirname(__FILE__) . '/../..';

# --- META.json ---

# The PGXN Meta Spec, version 1.0.0 (https://pgxn.org/spec), as far as it can be
# checked.  A rule is a function that returns what is wrong with its argument,
# or nothing.

my $number = qr/(?:0|[1-9][0-9]*)/;
my $semantic = qr/$number\.$number\.$number(?:-?[A-Za-z][0-9A-Za-z-]*)?/;
my $operator = qr/(?:<|<=|==|>=|>|!=)/;
my %rule = (
	string => sub { ref $_[0] || $_[0] eq '' ? 'no text' : () },
	term => sub { $_[0] =~ m{^[^\s[:cntrl:]/\\]{2,}$} ? () : 'no term' },
	tag => sub { $_[0] =~ m{^[^[:cntrl:]/\\]{1,255}$} ? () : 'no tag' },
	url => sub { $_[0] =~ m{^[a-z][a-z+.-]*://[^/?#]+} ? () : 'no URL' },
	version => sub { $_[0] =~ /^$semantic$/ ? () : 'no semantic version' },
	range => sub {
		(grep { !/^(?:0|(?:$operator\s*)?$semantic)$/ } split /,\s*/, $_[0], -1)
		  ? 'no range of versions'
		  : ();
	},
	status => sub { $_[0] =~ /^(?:stable|testing|unstable)$/ ? () : 'unknown' },
	license => sub {
		$_[0] =~ /^(?:agpl_3|apache_[12]_[01]|artistic_[12]|bsd|freebsd|gfdl_1_[23]
			|l?gpl_[123](?:_[01])?|mit|mozilla_1_[01]|openssl|perl_5|postgresql
			|qpl_1_0|ssleay|sun|zlib|open_source|restricted|unrestricted|unknown)$/x
		  ? ()
		  : 'unknown';
	},
	file => sub { -f "$top/$_[0]" ? () : 'no such file' });

my %extension = (
	file => 'file',
	version => 'version',
	'abstract?' => 'string',
	'docfile?' => 'file');
my %packages = ('*term' => 'range');
my %phase = map { +"$_?" => \%packages } qw(requires recommends suggests conflicts);
my %definition = (
	name => 'term',
	version => 'version',
	abstract => 'string',
	maintainer => ['string'],
	license => ['license'],
	provides => { '*term' => \%extension },
	'meta-spec' => { version => 'version', 'url?' => 'url' },
	'description?' => 'string',
	'generated_by?' => 'string',
	'release_status?' => 'status',
	'tags?' => ['tag'],
	'no_index?' => { 'file?' => ['string'], 'directory?' => ['string'] },
	'prereqs?' => {
		map { +"$_?" => \%phase } qw(configure build test runtime develop)
	},
	'resources?' => {
		'homepage?' => 'url',
		'bugtracker?' => { 'web?' => 'url', 'mailto?' => 'string' },
		'repository?' => { 'url?' => 'url', 'web?' => 'url', 'type?' => 'string' }
	});

# What is wrong with a value, by a definition: the name of a rule, a list of
# values (or one of them), or the keys of an object.  "?" is behind an optional
# key; "*RULE" stands for any key that obeys the rule.
sub errors
{
	my ($where, $value, $expected) = @_;

	if (ref $expected eq 'ARRAY')
	{
		return map { errors($where, $_, $expected->[0]) }
		  ref $value eq 'ARRAY' ? @$value : $value;
	}
	return map { "$where: $_" } $rule{$expected}->($value)
	  unless ref $expected;
	return "$where: no object" unless ref $value eq 'HASH';

	my ($any) = map { /^\*(.*)/ } keys %$expected;
	my @errors = map { "$where$_: missing" }
	  grep { !/[*?]/ && !exists $value->{$_} } keys %$expected;
	foreach my $key (sort keys %$value)
	{
		my $definition = $expected->{$key} || $expected->{"$key?"};

		next if $key =~ /^x_/i;
		if (!$definition && $any && !$rule{$any}->($key))
		{
			$definition = $expected->{"*$any"};
		}
		push @errors,
		  $definition
		  ? errors("$where$key/", $value->{$key}, $definition)
		  : "$where$key: unknown";
	}
	return @errors;
}

my $text = slurp_file("$top/META.json");
my $meta = decode_json($text);
is(join("\n", errors('/', $meta, \%definition)),
	'', 'META.json is as PGXN requires');

# The rules find what is wrong.
foreach (
	[ qr/"name": "pg_claim_queue",/ => '', '/name: missing' ],
	[ qr/"version": "[^"]*"/ => '"version": "1.0"', '/version/: no semantic version' ],
	[ qr/"license": "[^"]*"/ => '"license": "PostgreSQL"', '/license/: unknown' ],
	[ qr/"license": "[^"]*"/ => '"license": ["mit", "own"]', '/license/: unknown' ],
	[ qr/"file": "[^"]*"/ => '"file": "queue.sql"', '/provides/queue/file/: no such file' ],
	[ qr/"15.0.0"/ => '"15"', '/prereqs/runtime/requires/PostgreSQL/: no range of versions' ],
	[ qr/"runtime"/ => '"run"', '/prereqs/run: unknown' ],
	[ qr/"unstable"|"stable"/ => '"done"', '/release_status/: unknown' ],
	[ qr/"message queue"/ => '"a/b"', '/tags/: no tag' ],
	[ qr/"abstract"/ => '"summary"', '/abstract: missing' ],
	[ qr/"tags"/ => '"keywords"', '/keywords: unknown' ])
{
	my ($pattern, $wrong, $error) = @$_;
	my $changed = $text =~ s/$pattern/$wrong/r;

	isnt($changed, $text, "META.json with $wrong: changed");
	ok((grep { $_ eq $error } errors('/', decode_json($changed), \%definition)),
		"META.json with $wrong: $error")
	  or diag(errors('/', decode_json($changed), \%definition));
}

# --- Versions ---

my $version = $meta->{version};
my ($of_sql) = $version =~ /^(\d+\.\d+)\./;

sub found_in
{
	my ($file, $pattern) = @_;
	my ($found) = slurp_file("$top/$file") =~ $pattern;
	return $found;
}

my $date = found_in('CHANGELOG.md', qr/^## \Q$version\E - (\S+)$/m);
my $is_released = defined $date && $date ne 'unreleased';
is($meta->{provides}{queue}{version},
	$version, 'META.json: the version of the extension');
is(found_in('queue.control', qr/^default_version = '(.*)'$/m),
	$of_sql, 'queue.control: the version');
is($meta->{provides}{queue_proxy}{version},
	$version, 'META.json: the version of queue_proxy');
is(found_in('src/proxy/queue_proxy.control', qr/^default_version = '(.*)'$/m),
	$of_sql, 'queue_proxy.control: the version');
ok(glob("$top/src/proxy/queue_proxy--{*--,}$of_sql.sql") ? 1 : 0,
	'queue_proxy has a script of that version');
is(found_in('src/util/version.h', qr/^#define QUEUE_VERSION\s+"(.*)"$/m),
	$version, 'version.h: the version of the library');
# The revision 0upstream1: a package of a distribution, which has a higher one, replaces it.
is(found_in('packaging/debian/changelog', qr/^postgresql-queue \((.*)\)/),
	"$version-0upstream1", 'packaging/debian/changelog: the version');
is(found_in('CHANGELOG.md', qr/^## (\S+)/m),
	$version, 'CHANGELOG.md begins with the version');
like($date, qr/^(?:unreleased|20\d\d-[01]\d-[0-3]\d)$/,
	'CHANGELOG.md: the date of the version');
is( found_in('packaging/debian/changelog', qr/^postgresql-queue \(.*\) (\w+);/),
	$is_released ? 'unstable' : 'UNRELEASED',
	'packaging/debian/changelog: released or not');
is($meta->{release_status}, $is_released ? 'stable' : 'unstable',
	'META.json: released or not');

# --- The scripts of released versions ---

# What is wrong with the scripts in a directory: those in SHA256SUMS are as they
# were, and a released version has one that is there.
sub script_errors
{
	my ($dir, @released) = @_;
	my $list = "$dir/SHA256SUMS";
	my %sums = -e $list
	  ? map { reverse split } split /\n/, slurp_file($list)
	  : ();
	my @errors;

	foreach my $script (sort keys %sums)
	{
		my $path = "$dir/$script";

		push @errors, -f $path ? "$script has changed" : "$script is gone"
		  unless -f $path
		  && Digest::SHA->new(256)->addfile($path)->hexdigest eq $sums{$script};
	}
	foreach my $released (@released)
	{
		push @errors, "no script of $released is in SHA256SUMS"
		  unless grep { /--\Q$released\E\.sql$/ } keys %sums;
	}
	return join "\n", @errors;
}

# Those of versions before 2.0 are in the history only.
my @released = grep { $_ >= 2 }
  slurp_file("$top/CHANGELOG.md") =~ /^## (\d+\.\d+)\.\d+ - 2/mg;
is(script_errors("$top/src/$_", @released),
	'', "the scripts of released versions in src/$_ have not changed")
  foreach qw(sql proxy pgmq);

# The check finds a change.
my $copy = PostgreSQL::Test::Utils::tempdir();
my $script = "queue--$of_sql.sql";
my $list = "$copy/SHA256SUMS";
copy("$top/src/sql/$script", $copy) or die $!;
is(script_errors($copy, $of_sql),
	"no script of $of_sql is in SHA256SUMS",
	'a released version that is not frozen');
append_to_file($list,
	Digest::SHA->new(256)->addfile("$copy/$script")->hexdigest . "  $script\n");
is(script_errors($copy, $of_sql), '', 'a script that is frozen');
append_to_file("$copy/$script", "\n");
is(script_errors($copy, $of_sql),
	"$script has changed", 'a script that changes after that');
unlink "$copy/$script" or die $!;
is(script_errors($copy, $of_sql),
	"$script is gone", 'a script that is removed after that');

done_testing();
