"""The tables of a store, and how they come to be: steps that are done once each, in order.

Pure: SQL as text. `migrating.py` does them. The invariant: a step that was released is never changed; what is to be
otherwise is another step.
"""

VERSION = 1
"""How many steps there are."""


_FIRST = """
CREATE SCHEMA IF NOT EXISTS "{schema}";

CREATE TABLE IF NOT EXISTS "{schema}".rows (
    thread_no bigint NOT NULL,
    key bytea NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (thread_no, key)
);

ALTER TABLE "{schema}".rows ALTER COLUMN value SET STORAGE EXTERNAL;

CREATE TABLE IF NOT EXISTS "{schema}".counters (
    key bytea NOT NULL PRIMARY KEY,
    following bigint NOT NULL
);

CREATE TABLE IF NOT EXISTS "{schema}".migrations (
    version integer NOT NULL PRIMARY KEY,
    made_at timestamptz NOT NULL DEFAULT now()
);
"""
"""Values are compressed already: EXTERNAL spares the server trying again."""
_STEPS = (_FIRST,)


def steps(schema: str) -> list[list[str]]:
    """Return the statements of each step."""
    return [[part.strip() for part in step.format(schema=schema).split(";") if part.strip()] for step in _STEPS]


def recorded(schema: str, version: int) -> str:
    """Return the statement that notes a step as done."""
    return f'INSERT INTO "{schema}".migrations (version) VALUES ({version}) ON CONFLICT (version) DO NOTHING'


def versions(schema: str) -> str:
    """Return the statement that tells the last step that was done."""
    return f'SELECT coalesce(max(version), 0)::bigint FROM "{schema}".migrations'


def grants(schema: str, role: str) -> list[str]:
    """Return the statements that let a role use a store without being able to change its tables."""
    quoted = '"' + role.replace('"', '""') + '"'
    return [
        f'GRANT USAGE ON SCHEMA "{schema}" TO {quoted}',
        f'GRANT SELECT, INSERT, UPDATE, DELETE ON "{schema}".rows, "{schema}".counters TO {quoted}',
        f'GRANT SELECT ON "{schema}".migrations TO {quoted}',
    ]
