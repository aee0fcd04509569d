/* src/proxy/queue_proxy--1.2--2.0.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION queue_proxy UPDATE TO '2.0'" to load this file. \quit

-- What the servers' functions do since 2.0
COMMENT ON FUNCTION @extschema@.queue_redrive(text, text, integer, text, text) IS
'moves up to limit (NULL: all) dead letters of queue q, oldest first, back to the queues that they came from or to target, as new messages with claim_count 0; returns their number. Passes over those whose origin is gone, and a NOTICE says how many: it was dropped, and queue.auto_create is off, or another role has created a queue of that name. Errors: 22023/22004 argument, 42704 unknown target with queue.auto_create off, 42501 no right to claim from q or to push to where they are sent. Source: Amazon SQS, redrive';
COMMENT ON FUNCTION @extschema@.queue_step(text, text, bigint[], jsonb, jsonb, integer, integer, integer, text, text) IS
'a worker''s cycle in one call, all or nothing: of the claim (NULL: none yet), deletes the messages in done (NULL: all that are not in failed), retries those in failed ([{"id", "error", "delay", "bury"}, ...], only id, a number or a string, is required; true in bury makes it a dead letter) and gives the rest back; pushes the messages in push (as queue_post; without a field queue, to q); and claims the next as queue_claim; a limit of 0 claims nothing. Errors: QU001 the claim is not live, QU002 a message is not in it, QU004 one was canceled, 22023/22004 argument, among them a message that is named twice, 42501, those of queue_push, and with bury of message_bury. Source: claim_next';
