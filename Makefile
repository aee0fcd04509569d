# contrib-style Makefile: make && make install && make installcheck
EXTENSION = queue
MODULE_big = queue
PGFILEDESC = "queue - message queues with claims, and jobs"

DATA = $(wildcard src/sql/queue--*.sql)
OBJS = $(patsubst %.c,%.o,$(wildcard src/*.c))
# PGXS tracks no header by itself
OUR_HEADERS = $(wildcard src/*.h)

TESTS = $(wildcard sql/*.sql)
REGRESS = $(patsubst sql/%.sql,%,$(TESTS))
REGRESS_OPTS = --inputdir=.

ISOLATION = $(patsubst test/isolation/specs/%.spec,%,$(wildcard test/isolation/specs/*.spec))
ISOLATION_OPTS = --inputdir=test/isolation --outputdir=test/isolation/output_iso

PROVE_TESTS = $(wildcard test/t/*.pl)

# Callbacks have the parameters that the server gives them.
PG_CFLAGS = -Wno-unused-parameter

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# The server's headers are not ours to warn about.
override CPPFLAGS := -isystem $(includedir_server) $(CPPFLAGS)

$(OBJS): $(OUR_HEADERS)
