"""Where a store on PostgreSQL is: the URL, taken apart into what libpq is told and what is ours.

Imports the errors and psycopg's parser. Pure.
"""

import re
from typing import NamedTuple
from urllib.parse import quote, unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from deltastore.errors import InvalidInputError

DEFAULT_SCHEMA = "deltastore"
DEFAULT_POOL_SIZE = 8
"""Connections that a handle opens at most: one commits at a time, the others read."""
MAX_SCHEMA_LENGTH = 63
"""What PostgreSQL cuts names to, in bytes."""
LOCKING = ("advisory", "serializable")
"""How writers are kept apart, see `locks`; without an option, by what the server is."""
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]*")
_OURS = ("schema", "pool_size", "locking")
_DEFAULTS = {
    "application_name": "deltastore",
    "connect_timeout": "10",
    # a server that is gone without a word is noticed within a minute, not after the system's two hours
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}


class Address(NamedTuple):
    """What a URL says: parameters for libpq, and our own. `location` is for messages, without the password."""

    parameters: dict[str, str]
    location: str
    schema: str
    pool_size: int
    locking: str | None


def parse(url: str, *, schema: str | None = None, pool_size: int | None = None) -> Address:
    """Take a URL apart; what is given beside it comes before what it says. Raises InvalidInputError."""
    try:
        base, _, query = url.partition("?")
        said = dict(part.partition("=")[::2] for part in query.split("&") if part)
        ours = {name: unquote(said.pop(name)) for name in _OURS if name in said}
        bare = base + "?" + "&".join(f"{name}={value}" for name, value in said.items())
        parameters = {name: str(value) for name, value in conninfo_to_dict(bare).items() if value is not None}
    except (ValueError, psycopg.ProgrammingError) as error:
        raise InvalidInputError(
            f"the URL of the store can't be read: {str(error).strip()}; expected postgresql://user@host:port/database"
        ) from error
    schema = schema if schema is not None else ours.get("schema", DEFAULT_SCHEMA)
    if not _SCHEMA.fullmatch(schema) or len(schema) > MAX_SCHEMA_LENGTH or schema.startswith("pg_"):
        raise InvalidInputError(
            f"the schema {schema!r} can't be taken; expected lower-case letters, digits and _, at most "
            f"{MAX_SCHEMA_LENGTH}, not beginning with a digit or pg_"
        )
    size = pool_size if pool_size is not None else _number(ours.get("pool_size", str(DEFAULT_POOL_SIZE)))
    if type(size) is not int or size < 1:
        raise InvalidInputError(f"pool_size is {size!r}; expected an int of at least 1")
    locking = ours.get("locking")
    if locking is not None and locking not in LOCKING:
        raise InvalidInputError(f"locking is {locking!r}; expected {' or '.join(LOCKING)}")
    return Address(_DEFAULTS | parameters, _location(parameters, schema), schema, size, locking)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0


def _location(parameters: dict[str, str], schema: str) -> str:
    user = quote(parameters["user"]) + "@" if "user" in parameters else ""
    hosts = parameters.get("host", "").split(",")
    ports = parameters.get("port", "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    places = [quote(host, safe="") + (f":{port}" if port else "") for host, port in zip(hosts, ports, strict=False)]
    return f"postgresql://{user}{','.join(places)}/{parameters.get('dbname', '')}?schema={schema}"
