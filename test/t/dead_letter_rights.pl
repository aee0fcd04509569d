# Dead letters are for the roles that may claim from the queue that they come
# from, and for no other: whatever creates the dead letter queue, whatever
# changes afterwards, and whatever a role with only the push privilege does.
#
# test/check -q runs it, too.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf('postgresql.conf', 'autovacuum = off');
$node->start;
my $db = 'postgres';

# One session for all that is short; it changes its role.
my $short = $node->background_psql($db, on_error_stop => 0);
$short->query_safe('\set VERBOSITY verbose');

# What calls of a role come to: the last line of the answer, or the SQLSTATE.
sub as
{
	my ($role, $sql) = @_;

	$short->{stderr} = '';
	my $stdout = $short->query("SET ROLE $role; $sql");
	my $stderr = $short->{stderr};
	$short->{stderr} = '';
	return $1 if $stderr =~ /(?:ERROR|FATAL):\s+(\w{5}):/;
	return (split /\n/, $stdout)[-1] // '';
}

sub value
{
	my ($sql) = @_;
	return $short->query_safe("RESET ROLE; $sql");
}

sub owner_of
{
	my ($q) = @_;
	return value("SELECT owner FROM queue_data.queue WHERE name = '$q'");
}

# Pushes a message as the owner and makes it a dead letter.
sub make_dead_letter
{
	my ($role, $q, $body) = @_;
	return as($role, qq{SELECT queue_push('$q', '"$body"');
		SELECT claim_release('$q', claim_id, failed => true) FROM queue_claim('$q', 60, 60)});
}

value(
	q{SET client_min_messages = warning;
	CREATE EXTENSION queue;
	CREATE ROLE ann IN ROLE queue_producer, queue_consumer;
	CREATE ROLE ben IN ROLE queue_producer, queue_consumer;
	CREATE ROLE rival IN ROLE queue_producer;
	CREATE ROLE reader IN ROLE queue_consumer;
	CREATE ROLE deputy IN ROLE queue_producer;
	CREATE ROLE chief IN ROLE queue_admin;
	CREATE FUNCTION work(jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';
});

#
# Whichever role creates it, it belongs to the queue's owner
#
is(as('ann', q{SELECT queue_create('a1', '{"_max_claim_count": 1}')}),
	't', 'queue_create');
is(as('ann', q{SELECT queue_push('a2', '1') IS NOT NULL}), 't', 'auto-created');
value(q{SELECT queue_grant('a2', 'deputy', 'admin')});
is(as('deputy', q{SELECT queue_update('a2', '{"_max_claim_count": 1}') IS NOT NULL}),
	't', 'a role with admin patches');
is( as('chief',
		q{SELECT queue_set_metadata('a1', '{"_max_claim_count": 1, "_dead_letter_queue": "a1/named"}') IS NOT NULL}),
	't',
	'queue_admin replaces');
is(as('ann', q{SELECT queue_push('a3', '1') IS NOT NULL}), 't', 'auto-created');
is(as('chief', q{SELECT job_handler('a3', 'work(jsonb)')}), '', 'bound');
is(owner_of($_), 'ann', "$_ belongs to the owner of its source")
  foreach (qw(a1.dead a1/named a2.dead a3.dead));
is( value(q{SELECT count(*) FROM queue_data.queue
		WHERE name ~ '(dead|named)$' AND metadata = '{}'}),
	'4',
	'with metadata {}');
value(q{SELECT job_handler('a3', NULL)});

#
# Its claim and admin are those of the source at every moment
#
is(as('ann', q{SELECT queue_create('s', '{"_max_claim_count": 1}')}), 't', 's');
is(make_dead_letter('ann', 's', 'secret'), '1', 'a message becomes a dead letter');
my $warm = $node->background_psql($db, on_error_stop => 0);
$warm->query_safe('SET ROLE reader');
my $read = q{SELECT count(*) FROM queue_dead_letters('s.dead')};
is($warm->query_safe($read), '1', 'a role that may claim from the source may read it');
is(as('rival', $read), '42501', 'a role that may only push may not');
is(as('rival', q{SELECT queue_push('s.dead', '1')}),
	'42501', 'nor push to it');
is(as('ben', q{SELECT queue_push('s.dead', '1')}),
	'42501', 'nor may others who may push to its source');
is(as('ann', q{SELECT queue_push('s.dead', '1') IS NOT NULL}),
	't', 'its owner may');
is( as('ann', q{SELECT message_delete('s.dead', id) FROM queue_pop('s.dead', 2) WHERE body = '1'; SELECT count(*) FROM queue_messages('s.dead')}),
	'0', 'popped');
is(make_dead_letter('ann', 's', 'secret'), '1', 'another becomes a dead letter');

value(q{SELECT queue_grant('s', 'ben', 'claim')});
$warm->query($read);
like($warm->{stderr}, qr/permission denied/,
	'narrowed at the source: a session that knew it is refused');
$warm->{stderr} = '';
is(as('ben', $read), '1', 'the role named may read');
is(as('deputy', q{SELECT queue_purge('s.dead')}), '42501', 'no admin yet');
value(q{SELECT queue_grant('s', 'deputy', 'admin')});
is(as('deputy', $read), '1', 'admin at the source is admin there');
is(as('deputy', q{SELECT queue_push('s.dead', '2') IS NOT NULL}),
	't', 'and may push');
value(q{SELECT queue_revoke('s', 'deputy', 'admin'); SELECT queue_revoke('s', 'ben', 'claim')});
is(as('deputy', $read), '42501', 'no more');
is(as('ben', $read), '42501', 'no more');

# until a privilege is granted there
value(q{SELECT queue_grant('s.dead', 'reader', 'claim')});
is($warm->query_safe($read), '1', 'granted on the dead letter queue itself');
value(q{SELECT queue_grant('s', 'ben', 'claim')});
is(as('ben', $read), '42501', 'the privileges on the source do not apply any more');
value(q{SELECT queue_grant('s', 'deputy', 'admin')});
is(as('deputy', $read), '1', 'for admin it does');
value(q{SELECT queue_grant('s.dead', 'chief', 'admin')});
is(as('deputy', $read), '42501', 'until that is granted too');

# its own dead letters follow the same rules
is( as('ann', q{SELECT queue_create('t', '{"_max_claim_count": 1}');
		SELECT queue_update('t.dead', '{"_max_claim_count": 1}') IS NOT NULL}),
	't', 'dead letters of dead letters');
value(q{SELECT queue_grant('t', 'ben', 'claim')});
make_dead_letter('ann', 't', 'deep');
is(as('ben', q{SELECT claim_release('t.dead', claim_id, failed => true) FROM queue_claim('t.dead', 60, 60)}),
	'1', 'claimed by a role that may claim from the first');
is(as('ben', q{SELECT body FROM queue_dead_letters('t.dead.dead')}),
	'"deep"', 'and read in the third');
is(as('reader', q{SELECT * FROM queue_dead_letters('t.dead.dead')}),
	'42501', 'by no other role');
is(owner_of('t.dead.dead'), 'ann', 'which belongs to the owner');

#
# Existing queues: of whom, and with which rights
#
is(as('rival', q{SELECT queue_create('u.dead')}), 't', 'a rival was first');
is(as('ann', q{SELECT queue_create('u', '{"_max_claim_count": 1}')}),
	'42501', 'refused when the queue is created');
is(as('ann', q{SELECT queue_exists('u')}), 'f', 'which has not happened');
is( as('ann', q{SELECT queue_create('u'); SELECT queue_update('u', '{"_max_claim_count": 1}')}),
	'42501', 'or patched');
is(as('ann', q{SELECT queue_set_metadata('u', '{"_max_claim_count": 1}')}),
	'42501', 'or its metadata replaced');
is(as('ann', q{SELECT job_handler('u', 'work(jsonb)')}), '42501', 'or bound');
is(value(q{SELECT count(*) FROM queue_data.handler}), '0', 'no handler');
my ($ret, $stdout, $stderr) = $node->psql($db,
	q{SET ROLE ann; SELECT queue_update('u', '{"_dead_letter_queue": "u.dead"}')});
like($stderr, qr/WARNING:.*"u\.dead" of role "rival", which may not claim from "u"/,
	'named, it is accepted with a warning');
is( as('ann', q{SELECT queue_update('u', '{"_dead_letter_queue": null}') IS NOT NULL}),
	't', 'taken back');

# a role with admin on a queue does not push where it may not
value(q{SELECT queue_create('closed'); SELECT queue_grant('closed', 'ann', 'push')});
value(q{SELECT queue_grant('u', 'deputy', 'admin')});
is( as('deputy', q{SELECT queue_update('u', '{"_dead_letter_queue": "closed"}')}),
	'42501', 'confused deputy: the caller needs push');
is( as('deputy', q{SELECT queue_set_metadata('u', '{"_max_claim_count": 1, "_dead_letter_queue": "closed"}')}),
	'42501', 'replacing as well');
is( as('ann', q{SELECT queue_update('u', '{"_dead_letter_queue": "closed"}') IS NOT NULL}),
	't', 'the owner has it');
is(as('deputy', q{SELECT queue_update('u', '{"colour": "red"}') IS NOT NULL}),
	't', 'other keys are not concerned');
value(q{SELECT queue_grant('closed', 'deputy', 'push'); SELECT queue_revoke('closed', 'ann', 'push')});
is( as('deputy', q{SELECT queue_update('u', '{"_dead_letter_queue": null}') IS NOT NULL;
		SELECT queue_update('u', '{"_dead_letter_queue": "closed"}')}),
	'42501', 'and the owner needs push too');
is(as('ann', q{SELECT queue_update('u', '{"_max_claim_count": 2}')}),
	'42501', 'and so it remains');

#
# Dropping
#
is(as('ann', q{SELECT queue_drop('s.dead')}), '2BP01', 'required: it stays');
is(value(q{SELECT count(*) FROM queue_messages('s.dead')}),
	'2', 'with its messages');
is(as('ann', q{SELECT queue_update('s', '{"_max_claim_count": null}') IS NOT NULL}),
	't', 'not required any more');
is(owner_of('s.dead'), 'ann', 'it is kept');
is(as('ben', $read), '42501', 'with its privileges');
is(as('ann', q{SELECT queue_drop('s.dead')}), 't', 'and can be dropped');

# No role can keep another one from dropping its queue.
is(as('ann', q{SELECT queue_create('v')}), 't', 'a queue open to all producers');
is( as('rival', q{SELECT queue_create('evil', '{"_max_claim_count": 1, "_dead_letter_queue": "v"}')}),
	't', 'a rival sends its dead letters there');
is(as('ann', q{SELECT queue_drop('v')}), '2BP01', 'so it stays');
value(q{SELECT queue_grant('v', 'ann', 'push')});
is(as('ann', q{SELECT queue_drop('v')}), 't', 'until push is narrowed');
is(as('ben', q{SELECT queue_create('v')}), 't', 'a later queue of that name');
is(make_dead_letter('rival', 'evil', 'stays'), '1', 'a message becomes a dead letter');
is(as('rival', q{SELECT count(*) FROM queue_claim('evil', 60, 60)}),
	'0', 'it is not handed out');
is( value(q{SELECT total FROM queue_stats('evil')})
	  . value(q{SELECT total FROM queue_stats('v')}),
	'10', 'nor moved there');
is( as('rival', q{SELECT queue_update('evil', '{"colour": "red"}') IS NOT NULL;
		SELECT queue_update('evil', '{"_max_claim_count": 2, "_dead_letter_queue": "v"}') IS NOT NULL}),
	't', 'metadata that does not name another one');
as('rival', q{SELECT claim_release('evil', claim_id, failed => true) FROM queue_claim('evil', 60, 60)});
as('rival', q{SELECT count(*) FROM queue_claim('evil', 60, 60)});
is(value(q{SELECT total FROM queue_stats('v')}), '0',
	'has the later queue not take its place');
is( as('rival', q{SELECT queue_update('evil', '{"_dead_letter_queue": null, "_max_claim_count": null}') IS NOT NULL;
		SELECT queue_update('evil', '{"_max_claim_count": 1, "_dead_letter_queue": "v"}') IS NOT NULL}),
	't', 'named anew');
as('rival', q{SELECT count(*) FROM queue_claim('evil', 60, 60)});
is(value(q{SELECT total FROM queue_stats('v')}), '1', 'it does');

# The source is dropped: what is left is its owner's alone.
is(as('ann', q{SELECT queue_create('w', '{"_max_claim_count": 1}')}), 't', 'w');
make_dead_letter('ann', 'w', 'kept');
is(as('reader', q{SELECT count(*) FROM queue_dead_letters('w.dead')}),
	'1', 'open as its source');
is(as('ann', q{SELECT queue_drop('w')}), 't', 'the source is dropped');
is(as('reader', q{SELECT count(*) FROM queue_dead_letters('w.dead')}),
	'42501', 'its dead letters are not open');
is(as('ann', q{SELECT count(*) FROM queue_dead_letters('w.dead')}),
	'1', 'but there');
is(as('rival', q{SELECT queue_create('w')}), 't', 'a rival creates it anew');
is(as('ann', q{SELECT queue_redrive('w.dead')}),
	'0', 'dead letters do not go there by themselves');
is(value(q{SELECT total FROM queue_stats('w')}), '0', 'none has');
is(as('ann', q{SELECT queue_redrive('w.dead', 'elsewhere')}),
	'42704', 'nor to a target that does not exist');
is(as('ann', q{SELECT queue_create('elsewhere')}), 't', 'it is created');
is(as('ann', q{SELECT queue_redrive('w.dead', 'elsewhere')}), '1', 'to a target');
is(as('rival', q{SELECT queue_drop('w')}), 't', 'gone again');
is(as('ann', q{SELECT queue_create('w', '{"_max_claim_count": 1}')}), 't', 'w');
is(as('ann', q{SELECT queue_create('w2', '{"_max_claim_count": 1, "_dead_letter_queue": "w2/dead"}')}), 't', 'w2');
make_dead_letter('ann', 'w', 'new');
make_dead_letter('ann', 'w2', 'back');
is(as('reader', q{SELECT count(*) FROM queue_dead_letters('w.dead')}),
	'42501', 'created anew by the owner it opens nothing');
is(as('ann', q{SELECT queue_drop('w2')}), 't', 'dropped');
is( as('ann', q{SELECT queue_redrive('w.dead')})
	  . as('ann', q{SELECT queue_redrive('w2/dead')}),
	'11', 'redriven to where they came from, be it dropped');
is(owner_of('w2'), 'ann', 'and created by that');

#
# The right to push is revoked later, or the queue is locked
#
value(q{SELECT queue_create('morgue')});
is( as('ann', q{SELECT queue_create('x', '{"_max_claim_count": 1, "_dead_letter_queue": "morgue"}')}),
	't', 'x');
value(q{SELECT queue_grant('morgue', 'ben', 'push')});

sub moved
{
	my ($what) = @_;
	my $until = time + 180;

	sleep 0.05
	  while (value(q{SELECT total FROM queue_stats('x')}) ne '0'
		&& time < $until);
	is( value(q{SELECT total FROM queue_stats('x')}) . '|'
		  . value(q{SELECT total FROM queue_stats('morgue')}),
		'0|2', $what);
	value(q{SELECT queue_purge('morgue')});
	return;
}

my $session = $node->background_psql($db, on_error_stop => 0);
$session->query_safe('SET ROLE ann');
my $push = q{SELECT cardinality(queue_push_batch('x', '{1, 2}'))};
my $release = q{SELECT claim_release('x', claim_id, failed => true) FROM queue_claim('x', 60, 60, 1)};
my $retry = q{SELECT message_retry('x', id, claim_id) IS NULL FROM queue_claim('x', 60, 60, 1)};
my $claim = q{SELECT count(*) FROM queue_claim('x', 60, 60)};
is($session->query_safe($push), '2', 'pushed');
$session->{stderr} = '';
$session->query($_) foreach ($release, $retry, $claim, $claim);
is(scalar(() = $session->{stderr} =~ /WARNING:  messages of queue "x" cannot/g),
	1, 'one warning for all that cannot be moved');
$session->{stderr} = '';
is(value(q{SELECT free, claimed, total FROM queue_stats('x')}),
	'2|0|2', 'they stay');
value(q{SELECT queue_grant('morgue', 'ann', 'push')});
moved('granted again, they go');

my $purge = $node->background_psql($db, on_error_stop => 0);
$purge->query_safe(q{BEGIN; SELECT queue_purge('morgue')});
$session->query_safe(q{SET statement_timeout = '600s'});
is($session->query_safe($push), '2', 'pushed');
is( join('', map { $session->query_safe($_) } ($release, $retry, $claim)),
	'1t0', 'the dead letter queue is locked: nothing waits');
is(value(q{SELECT free, claimed, total FROM queue_stats('x')}),
	'2|0|2', 'they stay');
$purge->query_safe('COMMIT');
moved('unlocked, they are moved');

# A change of metadata waits for a rival, no longer than lock_timeout says.
$purge->query_safe(q{SET ROLE rival; BEGIN; SELECT queue_create('y.dead')});
is( as('ann', q{SET lock_timeout = '100ms'; SELECT queue_create('y', '{"_max_claim_count": 1}')}),
	'55P03', 'lock_timeout');
$purge->query_safe('ROLLBACK');
is(as('ann', q{SELECT queue_create('y', '{"_max_claim_count": 1}')}),
	't', 'the rival has given up');

$_->quit foreach ($warm, $session, $purge, $short);
$node->stop;
done_testing();
