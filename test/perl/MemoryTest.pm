# A server whose processes cannot create segments of dynamic shared memory while a file
# exists.

package MemoryTest;

use strict;
use warnings;

use Exporter 'import';
use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(can_refuse start_refusing refuse allow);

my $dir;
my $compiler = $ENV{CC} || 'cc';

# A library that a server loads before all others.  A segment is created or
# opened by shm_open(), or by open() where dynamic_shared_memory_type is mmap.
my $source = <<'END';
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int
is_refused(const char *name, int flags)
{
	const char *dir = getenv("REFUSE_MEMORY");
	char		path[1024];

	if (dir == NULL || (flags & O_CREAT) == 0 || (strstr(name, "/PostgreSQL.") == NULL &&
						strstr(name, "pg_dynshmem/mmap.") == NULL))
		return 0;
	snprintf(path, sizeof(path), "%s/refuse", dir);
	if (access(path, F_OK) != 0)
		return 0;
	errno = ENOSPC;
	return 1;
}

int
shm_open(const char *name, int flags, mode_t mode)
{
	int			(*next) (const char *, int, mode_t) = dlsym(RTLD_NEXT, "shm_open");

	return is_refused(name, flags) ? -1 : next(name, flags, mode);
}

#define OPEN(function) \
int \
function(const char *name, int flags, ...) \
{ \
	int			(*next) (const char *, int, ...) = dlsym(RTLD_NEXT, #function); \
	va_list		rest; \
	mode_t		mode; \
\
	va_start(rest, flags); \
	mode = va_arg(rest, int); \
	va_end(rest); \
	return is_refused(name, flags) ? -1 : next(name, flags, mode); \
}

OPEN(open)
OPEN(open64)
END

# False: there is no compiler.  Otherwise builds the library.
sub can_refuse
{
	return 0
	  unless grep { -x "$_/$compiler" || -x $compiler } split /:/, $ENV{PATH};
	$dir = PostgreSQL::Test::Utils::tempdir();
	append_to_file("$dir/refuse.c", $source);
	system_or_bail($compiler, '-w', '-O1', '-shared', '-fPIC', '-o', "$dir/refuse.so",
		"$dir/refuse.c", '-ldl');
	return 1;
}

sub start_refusing
{
	my ($node) = @_;
	local @ENV{qw(LD_PRELOAD REFUSE_MEMORY)} = ("$dir/refuse.so", $dir);
	$node->start;
	return;
}

sub refuse
{
	append_to_file("$dir/refuse", '');
	return;
}

sub allow
{
	unlink "$dir/refuse" or die $!;
	return;
}

1;
