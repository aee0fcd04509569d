# contrib-style Makefile: make && make install && make installcheck
#
# Also builds in another directory: make -f ../queue/Makefile.  PGXS sets
# srcdir, so what depends on it is expanded later ("=", not ":=").
EXTENSION = queue src/proxy/queue_proxy src/pgmq/queue_pgmq
MODULE_big = queue
PGFILEDESC = "queue - message queues with claims, and jobs"

# $(call sources,PATTERN): files of the source tree, relative to its top
sources = $(patsubst $(srcdir)/%,%,$(wildcard $(addprefix $(srcdir)/,$(1))))

DATA = $(call sources,src/sql/queue--*.sql src/proxy/queue_proxy--*.sql \
	src/pgmq/queue_pgmq--*.sql)
DATA_built = queue_proxy--1.2--2.0.sql
SCRIPTS = $(call sources,src/bin/*)
OBJS = $(patsubst %.c,%.o,$(call sources,src/*.c src/*/*.c))

TESTS = $(call sources,sql/*.sql)
REGRESS = $(patsubst sql/%.sql,%,$(TESTS))

SPECS = $(call sources,test/isolation/specs/*.spec)
ISOLATION = $(patsubst test/isolation/specs/%.spec,%,$(SPECS))
ISOLATION_OPTS = --inputdir=$(srcdir)/test/isolation

PROVE_TESTS = $(call sources,test/t/*.pl)

PG_CPPFLAGS = -I$(srcdir)/src
# The library exports only what is marked PGDLLEXPORT.  Callbacks have the
# parameters that the server gives them.
PG_CFLAGS = -fvisibility=hidden -Wno-unused-parameter

# ASSERT=1: with assertions, for any server.  A server that was built without them
# has what they call, too, and its structures are the same.
ifeq ($(ASSERT),1)
PG_CPPFLAGS += -DUSE_ASSERT_CHECKING
endif

# No bitcode for the server's JIT compiler: nothing here gains from being inlined,
# and a server that still runs an older library would inline parts of this one.
override with_llvm = no

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# The script of queue_proxy replaces what an earlier version has made, too.
queue_proxy--1.2--2.0.sql: src/proxy/queue_proxy--2.0.sql
	sed -e '1s/--/--1.2--/' -e 's/CREATE EXTENSION queue_proxy"/ALTER EXTENSION queue_proxy UPDATE"/' \
		$< >$@

# PGXS removes no script that has a path.
uninstall: uninstall-scripts
uninstall-scripts:
	rm -f $(addprefix '$(DESTDIR)$(bindir)'/,$(notdir $(SCRIPTS)))
.PHONY: uninstall-scripts

# The archive for PGXN
dist:
	$(srcdir)/packaging/pgxn
.PHONY: dist

# The server's headers are not ours to warn about.
override CPPFLAGS := -isystem $(includedir_server) $(CPPFLAGS)

# PGXS tracks no header by itself, and makes no directory for an object.  The
# directories' names are absolute, or make would find those in srcdir.
OUR_HEADERS = $(call sources,src/*.h src/*/*.h)
OBJ_DIRS = $(addprefix $(CURDIR)/,$(sort $(dir $(OBJS))))

$(OBJS): $(OUR_HEADERS) | $(OBJ_DIRS)

$(OBJ_DIRS):
	$(MKDIR_P) $@

# Lay out the source as pgindent does; needs Debian's package pg-bsd-indent.
# src/typedefs.list names the types that the source uses, sorted with LC_ALL=C.
INDENT = pg_bsd_indent -bad -bap -bbb -bc -bl -cli1 -cp33 -cdb -nce -d0 -di12 \
	-nfc1 -i4 -l79 -lp -lpl -nip -npro -sac -tpg -ts4 -Usrc/typedefs.list
indent:
	cd $(srcdir) && for file in src/*.c src/*/*.[ch]; do \
		$(INDENT) <$$file >$$file.new && \
		sed -E -e 's!^([A-Za-z_][^[:space:]]*)[[:space:]]+\*$$!\1 *!' \
			-e 's!\*/(/\*.*\*/)$$!*/\t\1!' $$file.new >$$file || exit; \
		rm $$file.new; \
	done
.PHONY: indent

# Draw the diagrams of the documents; needs Debian's package graphviz.
diagrams:
	cd $(srcdir)/doc/plots && dot -Tsvg life.dot -o life.svg
.PHONY: diagrams
