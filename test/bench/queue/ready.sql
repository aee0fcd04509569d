SELECT count(*) FROM queue_ready();
