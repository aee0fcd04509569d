/* src/proxy/queue_proxy--1.2--2.0.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION queue_proxy UPDATE TO '2.0'" to load this file. \quit

-- Nothing changes so far but the number.
