-- What a push cannot do without.
CREATE TABLE message (
    id         bigserial PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now(),
    body       jsonb NOT NULL
);

\ir ../table.sql
