use strict; use warnings;
use lib "/usr/lib/postgresql/15/lib/pgxs/src/test/perl";
use PostgreSQL::Test::Cluster; use PostgreSQL::Test::Utils; use Test::More; use Time::HiRes qw(sleep time);
my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf('postgresql.conf', q{
shared_preload_libraries = 'queue'
autovacuum = off
max_worker_processes = 16
});
$node->start;
my $db='postgres';
$node->safe_psql($db, q{CREATE EXTENSION queue;
 CREATE FUNCTION done(jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';
 SELECT queue_create('r'||i) FROM generate_series(1,6) i;
 SELECT job_handler('r'||i, 'done(jsonb)', 4, NULL, 1000000) FROM generate_series(1,6) i;
});
my @s;
for my $k (1..3) { my $b = $node->background_psql($db, on_error_stop=>0); push @s,$b;
 $b->query_until(qr/go/, q{\echo go
DO $$ DECLARE t timestamptz := clock_timestamp()+interval '15 s'; BEGIN WHILE clock_timestamp()<t LOOP PERFORM job_handler('r'||(1+floor(random()*6))::int,'done(jsonb)',4,NULL,1000000); COMMIT; END LOOP; END $$;
}); }
{ my $b = $node->background_psql($db, on_error_stop=>0); push @s,$b; $b->query_until(qr/go/, "\\echo go\nDO \$\$ DECLARE t timestamptz := clock_timestamp()+interval '15 s'; BEGIN WHILE clock_timestamp()<t LOOP PERFORM queue_push_batch('r'||(1+floor(random()*6))::int, array_fill('1'::jsonb, ARRAY[20])); COMMIT; END LOOP; END \$\$;\n"); }
my $t=time+15; my $n=0;
while(time<$t){ my ($ret,$o,$e)=$node->psql($db,join(';',('VACUUM queue_data.handler')x50)); $n++; last if $ret; }
ok(1,"vacuums $n");
my $log = slurp_file($node->logfile);
my @l = grep { /TRAP|PANIC|FATAL|signal|ERROR/ } split /\n/,$log;
is(scalar(@l),0,'log'); diag(join "\n",@l[0..(@l>8?8:$#l)]) if @l;
$node->stop('immediate');
done_testing();
