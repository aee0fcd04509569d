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
  source_before build installed_files built_files install_files write_file write_header catalog_of);

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
	foreach my $program (
		qw(initdb pg_basebackup pg_config pg_ctl pg_dump pgbench postgres psql))
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

# The source of version 1.2, which test/check takes from the history of the repository,
# as a copy to be built; skips the test where there is none, or which does not compile.
sub source_before
{
	my $tar = ($ENV{QUEUE_SANDBOX} // '') . '/queue-1.2.tar';
	my $copy = "$tree/before";

	plan skip_all => 'version 1.2 is not here: run test/check in a checkout with its history'
	  unless -s $tar;
	plan skip_all => 'version 1.2 is for PostgreSQL 15 to 18'
	  if `$pg_config --version` =~ /PostgreSQL (\d+)/ && $1 > 18;
	mkdir $copy or die $!;
	system_or_bail('tar', '-x', '-f', $tar, '-C', $copy);
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

# What is installed of the extension, by path: the library, control files and scripts
sub installed_files
{
	return map { $_ => slurp_file($_) } "$pkglibdir/queue.so", glob "$sharedir/extension/queue*";
}

# The same of a source that was built
sub built_files
{
	my ($source) = @_;

	return (
		"$pkglibdir/queue.so" => slurp_file("$source/queue.so"),
		map { "$sharedir/extension/" . basename($_) => slurp_file($_) }
		  glob "$source/queue.control $source/src/{sql,proxy,pgmq}/queue*");
}

# Installs these files in place of those that are there.
sub install_files
{
	my (%files) = @_;

	unlink glob "$sharedir/extension/queue*";
	write_file($_, $files{$_}) foreach keys %files;
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

# What an extension consists of: its objects with all that the catalogs say of them, but for
# OIDs, files and statistics, and whether rows were there before a constraint (NOT VALID).
# NOT NULL is one of its columns; from 18 on it is also a constraint, with a name that
# says nothing.
sub catalog_of
{
	my ($node, $database, $extension) = @_;

	return $node->safe_psql($database, q{
WITH member AS (
	SELECT classid, objid FROM pg_depend
	WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
	AND refobjid = (SELECT oid FROM pg_extension WHERE extname = '} . $extension . q{')
), rel AS (
	SELECT c.* FROM pg_class AS c WHERE c.oid IN (
		SELECT objid FROM member WHERE classid = 'pg_class'::regclass
		UNION ALL
		SELECT indexrelid FROM pg_index JOIN member ON objid = indrelid AND classid = 'pg_class'::regclass
		UNION ALL
		SELECT typrelid FROM pg_type AS t JOIN member ON objid = t.oid AND classid = 'pg_type'::regclass)
), obj AS (
	SELECT classid, objid, 0 AS objsubid FROM member
	UNION
	SELECT 'pg_class'::regclass, oid, 0 FROM rel
	UNION ALL
	SELECT 'pg_class'::regclass, attrelid, attnum FROM pg_attribute WHERE attrelid IN (SELECT oid FROM rel)
	UNION ALL
	SELECT 'pg_constraint'::regclass, oid, 0 FROM pg_constraint
	WHERE contype <> 'n' AND conrelid IN (SELECT oid FROM rel)
	UNION ALL
	SELECT 'pg_trigger'::regclass, oid, 0 FROM pg_trigger WHERE tgrelid IN (SELECT oid FROM rel)
	UNION ALL
	SELECT 'pg_attrdef'::regclass, oid, 0 FROM pg_attrdef WHERE adrelid IN (SELECT oid FROM rel)
	UNION ALL
	SELECT 'pg_policy'::regclass, oid, 0 FROM pg_policy WHERE polrelid IN (SELECT oid FROM rel)
	UNION ALL
	SELECT 'pg_rewrite'::regclass, oid, 0 FROM pg_rewrite WHERE ev_class IN (SELECT oid FROM rel)
), named AS (
	SELECT *, pg_describe_object(classid, objid, objsubid) AS name FROM obj
)
SELECT 'object ' || name || ': ' || coalesce(d.description, 'no comment') AS line
FROM named LEFT JOIN pg_description AS d ON d.classoid = named.classid AND d.objoid = named.objid AND d.objsubid = named.objsubid
UNION ALL
SELECT 'depends ' || name || ': ' || deptype::text || ' ' || pg_describe_object(refclassid, refobjid, refobjsubid)
FROM named JOIN pg_depend USING (classid, objid, objsubid)
UNION ALL
SELECT 'relation ' || name || ': ' || (to_jsonb(c) - '{oid,relname,relnamespace,reltype,relfilenode,relpages,reltuples,relallvisible,relallfrozen,reltoastrelid,relacl,relfrozenxid,relminmxid,relchecks,relpartbound,relhastriggers}'::text[])::text
	|| CASE WHEN relkind = 'v' THEN pg_get_viewdef(c.oid) ELSE '' END
FROM named JOIN rel AS c ON c.oid = objid WHERE classid = 'pg_class'::regclass AND objsubid = 0
UNION ALL
SELECT 'index ' || pg_get_indexdef(indexrelid) || (to_jsonb(i) - '{indexrelid,indrelid,indcollation,indclass,indpred,indexprs}'::text[])::text
FROM pg_index AS i JOIN rel ON rel.oid = indrelid
UNION ALL
SELECT 'column ' || name || ': ' || (to_jsonb(a) - '{attrelid,attacl,attcacheoff,atthasmissing,attmissingval,attcacheoff,atttypid,attoptions}'::text[])::text || ' ' || format_type(atttypid, atttypmod)
FROM named JOIN pg_attribute AS a ON attrelid = objid AND attnum = objsubid WHERE classid = 'pg_class'::regclass AND attnum > 0
UNION ALL
SELECT 'default ' || name || ': ' || pg_get_expr(adbin, adrelid)
FROM named JOIN pg_attrdef AS a ON a.oid = objid WHERE classid = 'pg_attrdef'::regclass
UNION ALL
SELECT 'constraint ' || name || ': ' || replace(pg_get_constraintdef(objid), ' NOT VALID', '')
FROM named WHERE classid = 'pg_constraint'::regclass
UNION ALL
SELECT 'trigger ' || pg_get_triggerdef(t.oid) || ' ' || tgenabled::text
FROM named JOIN pg_trigger AS t ON t.oid = objid WHERE classid = 'pg_trigger'::regclass
UNION ALL
SELECT 'policy ' || name || ': ' || (to_jsonb(p) - '{oid,polrelid,polroles,polqual,polwithcheck}'::text[])::text || concat_ws(' ', pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid))
FROM named JOIN pg_policy AS p ON p.oid = objid WHERE classid = 'pg_policy'::regclass
UNION ALL
SELECT 'sequence ' || name || ': ' || (to_jsonb(s) - 'seqrelid')::text
FROM named JOIN pg_sequence AS s ON seqrelid = objid WHERE classid = 'pg_class'::regclass
UNION ALL
SELECT 'function ' || name || ': ' || pg_get_functiondef(p.oid) || ' ' || (to_jsonb(p) - '{oid,pronamespace,proowner,prolang,prorettype,proacl,prosrc,probin,prosqlbody,proargtypes,proallargtypes,proargdefaults}'::text[])::text
FROM named JOIN pg_proc AS p ON p.oid = objid WHERE classid = 'pg_proc'::regclass
UNION ALL
SELECT 'privilege ' || name || ': ' || what || ' ' || a.grantor::regrole || ' ' || CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END || ' ' || a.privilege_type || ' ' || a.is_grantable
FROM named CROSS JOIN LATERAL (
	SELECT 'now', relacl FROM pg_class WHERE oid = objid AND classid = 'pg_class'::regclass AND objsubid = 0
	UNION ALL SELECT 'now', attacl FROM pg_attribute WHERE attrelid = objid AND classid = 'pg_class'::regclass AND attnum = objsubid
	UNION ALL SELECT 'now', proacl FROM pg_proc WHERE oid = objid AND classid = 'pg_proc'::regclass
	UNION ALL SELECT 'now', nspacl FROM pg_namespace WHERE oid = objid AND classid = 'pg_namespace'::regclass
	UNION ALL SELECT 'now', typacl FROM pg_type WHERE oid = objid AND classid = 'pg_type'::regclass
	UNION ALL SELECT 'init', initprivs FROM pg_init_privs AS i WHERE i.objoid = objid AND i.classoid = classid AND i.objsubid = named.objsubid) AS acl (what, acl)
CROSS JOIN LATERAL aclexplode(acl) AS a
UNION ALL
SELECT 'config ' || c.oid::regclass || ' ' || c.condition FROM pg_extension AS e CROSS JOIN unnest(extconfig, extcondition) AS c (oid, condition) WHERE extname = '} . $extension . q{'
ORDER BY 1});
}

1;
