\ir ../pgq/setup.sql
