\ir ../queue/setup.sql
ALTER DATABASE :"DBNAME" SET queue.durable_claims = off;
