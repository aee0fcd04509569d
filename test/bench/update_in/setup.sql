-- One index, on the id; a claim changes no indexed column, and fillfactor 50
-- leaves room on the page for the version that it writes, so that it is HOT.
CREATE TABLE message (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    claimed_until timestamptz NOT NULL DEFAULT '-infinity',
    claim         bigint NOT NULL DEFAULT 0,
    body          jsonb NOT NULL
) WITH (fillfactor = 50);

\ir ../table.sql
