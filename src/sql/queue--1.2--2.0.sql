/* src/sql/queue--1.2--2.0.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION queue UPDATE TO '2.0'" to load this file. \quit

-- An error with a hint if the session has loaded an older library.
SELECT queue_data.library_version('2.0');
