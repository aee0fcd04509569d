\ir ../update_in/hold.sql
