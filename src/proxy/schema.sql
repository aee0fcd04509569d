CREATE SCHEMA plproxy;
COMMENT ON SCHEMA plproxy IS 'what PL/Proxy calls to find the servers of the extension queue_proxy';
GRANT USAGE ON SCHEMA plproxy
    TO queue_producer, queue_consumer, queue_admin;

