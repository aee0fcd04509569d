# Deduplication keys that are used again and again: a push takes as long while an
# old snapshot keeps all former rows.  The worker removes keys whose time is over.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use QueueTest;
use Test::More;

start_server('');

sub sql { return $node->safe_psql('postgres', @_); }

# --- a held snapshot ---

# Keys of three kinds: its message is popped each time; a period has ended, which a
# superuser can say; the message is replaced and waits on.
my %cycles = (
	popped => [ q{SELECT queue_push('popped', '1', dedup_key => 'k')},
		q{SELECT queue_pop('popped')} ],
	period => [ q{SELECT queue_push('period', '1', dedup_key => 'k', dedup_for => 1)},
		q{SELECT queue_pop('period');
		UPDATE queue_data.dedup_key SET pushed_at = '2000-01-01' WHERE pushed_at IS NOT NULL} ],
	replaced => [ q{SELECT queue_push('replaced', to_jsonb(repeat('x', 1000)), dedup_key => 'k', dedup => 'replace')},
		'SELECT 1' ]);

# Returns how many index entries a push reads.
sub entries
{
	my ($name) = @_;
	my ($push, $end) = @{ $cycles{$name} };

	return (split /\n/, sql(qq{BEGIN; $push;
		SELECT sum(pg_stat_get_xact_tuples_returned(oid)) FROM pg_class
		WHERE relnamespace = 'queue_data'::regnamespace AND relkind = 'i';
		COMMIT; $end}))[1];
}

sub push_often
{
	my ($name) = @_;
	return sql(join ";\n", map { @{ $cycles{$name} } } 1 .. 150);
}

foreach my $name (sort keys %cycles)
{
	my $old = $node->background_psql('postgres');

	push_often($name);
	my $before = entries($name);
	$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
	push_often($name);
	cmp_ok(entries($name), '<=', $before + 10, "$name: while a snapshot is held");
	is(sql("SELECT count(*) FROM queue_data.dedup_key AS k JOIN queue_data.queue AS q
			ON q.id = k.queue_id WHERE q.name = '$name'"),
		$name eq 'popped' ? 0 : 1, "$name: it has one row, if any");
	$old->quit;
}

# --- the worker ---

sql(q{SELECT queue_push('q', '1', dedup_key => 'over', dedup_for => 1),
	queue_push('q', '2', dedup_key => 'waits', dedup_for => 1),
	queue_push('q', '3', dedup_key => 'kept', dedup_for => 2592000)});
sql(q{SELECT message_delete('q', id) FROM queue_messages('q') WHERE body <> '2'});
is(sql(q{SELECT count(*) FROM queue_data.dedup_key AS k JOIN queue_data.queue AS q
		ON q.id = k.queue_id WHERE q.name = 'q'}), 3, 'keys that hold for a time');
sql(q{UPDATE queue_data.dedup_key SET kept_until = now() - interval '1 s'
	WHERE kept_until < now() + interval '2 hours'});

# A new worker looks at once.
sql(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity
	WHERE backend_type = 'queue worker' AND datname = 'postgres'; SELECT queue_push('q', '4')});
ok($node->poll_query_until('postgres', q{SELECT count(*) = 2 FROM queue_data.dedup_key AS k
		JOIN queue_data.queue AS q ON q.id = k.queue_id WHERE q.name = 'q'}),
	'the worker removes what nothing keeps');
is(sql(q{SELECT queue_push('q', '5', dedup_key => 'over', dedup_for => 600) IS NULL,
		queue_push('q', '6', dedup_key => 'waits') IS NULL,
		queue_push('q', '7', dedup_key => 'kept', dedup_for => 600) IS NULL}), 'f|t|t',
	'and no other');
sql(q{SELECT queue_pop('q', 10)});
is(sql(q{SELECT count(*) FROM queue_data.dedup_key AS k JOIN queue_data.queue AS q
		ON q.id = k.queue_id WHERE q.name = 'q'}), 2, 'the last message takes its key along');
$node->stop;

done_testing();
