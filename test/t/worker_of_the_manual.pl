# The short worker in doc/workers.md does not stop because of one message.  A body that
# Python cannot parse, an error that PostgreSQL cannot store, and work that takes longer
# than idle_in_transaction_session_timeout, cost the message an attempt; it waits, the
# worker names it, and handles the others.  It calls no function that another role has
# planted beside those of the extension.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use PostgreSQL::Test::Utils;
use QueueTest qw(:DEFAULT find_python plant_functions);
use Test::More;
use Time::HiRes qw(sleep time);

my $python = find_python();
my $dir = PostgreSQL::Test::Utils::tempdir();
my $top = "$FindBin::RealBin/../..";

start_server('');
value(q{
	CREATE ROLE app LOGIN IN ROLE queue_producer, queue_consumer;
	ALTER ROLE app SET idle_in_transaction_session_timeout = '4s';
	CREATE TABLE sent (message_id bigint, recipient text);
	GRANT ALL ON sent TO app});
plant_functions();
local @ENV{qw(PGHOST PGPORT PGUSER PGDATABASE)} = ($node->host, $node->port, 'app', $db);

# What the work does with some messages
my $work = q{
%sif '"idle"' in str(body) or "'idle'" in str(body):
%s    cur.execute("SELECT 1")
%s    __import__("time").sleep(6)
%sif '"weird"' in str(body) or "'weird'" in str(body):
%s    raise ValueError("\0 \ud800")
};

sub push_message
{
	my ($body) = @_;
	return value("SELECT queue_push('mail', '$body'::jsonb)");
}

{
	my $document = 'doc/workers.md';
	my $place = qr/^ +cur\.execute\("SAVEPOINT message"\)\n +try:\n/m;
	my ($text) = slurp_file("$top/$document") =~ /<!-- test: python-next -->\n```python\n(.*?)^```/ms;
	my $more = $work =~ s/%s/' ' x 16/ger;
	is($text =~ s/($place)/$1$more/, 1, "$document: the work");
	append_to_file("$dir/worker.py", $text);
	value(q{
		TRUNCATE sent;
		SELECT queue_drop('mail');
		SELECT queue_create('mail', '{"_retry_delay": 3600}'::jsonb)});
	my @bad = map { push_message($_) }
	  '{"deep": ' . '[' x 3000 . ']' x 3000 . '}', '{"weird": true, "to": "x"}', '1';
	push_message(qq({"to": "good $_"})) foreach 1, 2;

	my $output = '';
	my $worker = IPC::Run::start([ $python, "$dir/worker.py" ], '<', \undef, '>&', \$output,
		init => sub { chdir $dir or die $! });
	becomes(q{SELECT count(*) FROM sent WHERE recipient ~ 'good'}, 2, "$document: the others are handled");
	push @bad, push_message('{"idle": true, "to": "x"}');
	my $waiting = q{SELECT count(*) FROM queue_messages('mail', include_delayed => true)
		WHERE claim_count = 1 AND id NOT IN (SELECT id FROM queue_messages('mail'))};
	becomes($waiting, 4, "$document: each waits after one attempt");
	push_message('{"to": "good 3"}');
	becomes(q{SELECT count(*) FROM sent WHERE recipient ~ 'good'}, 3, "$document: nor does a timeout stop it");
	$worker->pump_nb;
	ok($worker->pumpable, "$document: it works on");
	my @named = grep { $output =~ /\b$_\b/ } @bad;
	is("@named", "@bad", "$document: it has named them") or diag($output);
	$worker->kill_kill;
}

$node->stop;
done_testing();
