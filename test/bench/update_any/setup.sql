\ir ../update_in/setup.sql
