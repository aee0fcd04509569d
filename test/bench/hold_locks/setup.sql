-- No row is ever updated: pages may be full.
CREATE TABLE message (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    body          jsonb NOT NULL
);

\ir ../table.sql
