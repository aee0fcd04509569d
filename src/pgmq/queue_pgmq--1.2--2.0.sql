/* src/pgmq/queue_pgmq--1.2--2.0.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION queue_pgmq UPDATE TO '2.0'" to load this file. \quit
