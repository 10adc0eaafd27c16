"""`deltastore migrate`: make the tables of a store on PostgreSQL, or bring them up to date."""

from typing import Annotated

import typer

from deltastore.cli.arguments import Debug, Json
from deltastore.cli.session import Session
from deltastore.opening import migrate

EXAMPLE = "deltastore migrate postgresql://admin@db.example/agents --role app --dry-run"
KEYS = {
    "location": "the store's URL, without a password",
    "found": "the version that the tables had; 0: there were none",
    "version": "the version that they have now, or would have",
    "statements": "the SQL that was run, or would be, in this order",
}

Url = Annotated[
    str,
    typer.Argument(metavar="STORE", help="The store's URL, as `postgresql://user@host/database`.", show_default=False),
]
Role = Annotated[
    str | None,
    typer.Option("--role", metavar="NAME", help="Also let this role use the store, without changing its tables."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the SQL, and change nothing.")]


def command(
    context: typer.Context,
    url: Url,
    role: Role = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Make the tables of a store on PostgreSQL, or bring them up to date.

    Stores do this by themselves where their role may; this is for databases where an administrator has to.
    """
    session: Session = context.obj
    done = migrate(url, role=role, dry_run=dry_run)
    lines = [f"{statement};\n" for statement in done.statements] if dry_run else []
    if not dry_run:
        was = f"version {done.found}" if done.found else "no tables"
        lines = [f"{done.location}: {was} before, version {done.version} now"]
    session.answer(as_json, done._asdict(), lines)
