"""`deltastore retain`: what rules don't keep goes; or the rules themselves, stored and shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from deltastore.cli import exits, places, quantities
from deltastore.cli.arguments import Debug, DryRun, Json, StorePath, Yes
from deltastore.cli.opening import open_store
from deltastore.cli.session import Session
from deltastore.cli.sweeping import Applied, Planned
from deltastore.cli.text import escaped
from deltastore.errors import CorruptionError, InvalidInputError, ThreadNotFoundError
from deltastore.log import listing
from deltastore.log.retention import KeepForks, Retention
from deltastore.store import Store
from deltastore.upkeep import retention
from deltastore.upkeep.retention import Reason

EXAMPLE = "deltastore retain runs.ds --keep-last 20 --keep-daily 7 --drop-idle 90d --dry-run"
KEYS = {
    "rules": "what threads without rules of their own are judged by: counts, bytes, and ages in seconds, by the names "
    "of the options with `_`; {} keeps all; null where none are given or stored",
    "own[].thread": "one with its own rules; --show, --store and --forget give `rules` and `own`, and nothing else",
    "own[].rules": "as above",
    "applied": "whether it was done",
    "looked_at": "threads that have rules",
    "changed": "of these, those that lose something",
    "dropped": "of these, those that go whole",
    "checkpoints": "that go, or would go",
    "stray_writes": "pending writes that go because their checkpoint never came",
    "freed_bytes": "of rows that go; what they alone name goes with compaction",
    "by_reason": "how many checkpoints go for each reason: "
    + ", ".join(
        f"`{reason.name.lower()}`"
        for reason in (
            Reason.EXPIRED,
            Reason.DROPPED_BRANCH,
            Reason.OVER_MAX_BYTES,
            Reason.IDLE_THREAD,
            Reason.WITH_ROOT,
        )
    ),
    "more": "whether it stopped at --limit, and others may be due",
    "damaged[].thread": "one that can't be read, and is left as it is",
    "damaged[].error": "what is wrong",
    "note": "why nothing goes, where that may surprise; else empty",
    "plan[].thread": "of a thread that has rules; `plan` is null where they were applied",
    "plan[].whole": "whether all of it goes",
    "plan[].going": "checkpoints",
    "plan[].staying": "checkpoints",
    "plan[].stray_writes": "as above, of the thread",
    "plan[].freed_bytes": "as above, of the thread",
    "plan[].checkpoints[].namespace": "of a checkpoint that rules look at",
    "plan[].checkpoints[].id": "its id",
    "plan[].checkpoints[].stays": "whether it stays",
    "plan[].checkpoints[].reason": "why it stays or goes: as above, and "
    + ", ".join(
        f"`{reason.name.lower()}`"
        for reason in Reason
        if reason.name.startswith("KEEP_") or reason in (Reason.LATEST, Reason.TAGGED, Reason.PENDING_WRITES)
    )
    + ", `fork_head`, `no_rule`",
    "plan[].calls[].namespace": "of a sub-graph call, which stays or goes with its root checkpoint",
    "plan[].calls[].checkpoints": "how many it has",
    "plan[].calls[].stays": "whether they stay",
    "plan[].calls[].reason": "why",
}

Threads = Annotated[
    list[str] | None, typer.Argument(metavar="[THREAD]...", help="Only these threads.", show_default=False)
]
KeepLast = Annotated[
    int | None,
    typer.Option(
        "--keep-last",
        min=0,
        metavar="N",
        help="Keep the newest N checkpoints of each namespace; 0, here and below: off.",
    ),
]
KeepWithin = Annotated[
    str | None, typer.Option("--keep-within", metavar="AGE", help="Keep those not older: 90s, 30m, 12h, 7d or 4w.")
]
KeepHourly = Annotated[
    int | None,
    typer.Option(
        "--keep-hourly", min=0, metavar="N", help="Keep the newest of each of the last N hours that have one."
    ),
]
KeepDaily = Annotated[int | None, typer.Option("--keep-daily", min=0, metavar="N", help="The same by days, in UTC.")]
KeepWeekly = Annotated[
    int | None, typer.Option("--keep-weekly", min=0, metavar="N", help="The same by weeks, from Monday.")
]
KeepForksOption = Annotated[
    str | None,
    typer.Option(
        "--keep-forks",
        metavar="WHICH",
        help="Of branches beside the latest checkpoint's, keep all, as without it; latest: none; AGE: those not older.",
    ),
]
MaxBytes = Annotated[
    str | None,
    typer.Option(
        "--max-bytes", metavar="SIZE", help="Let a thread's oldest go until the others are within, as 50M or 2GiB."
    ),
]
DropIdle = Annotated[
    str | None, typer.Option("--drop-idle", metavar="AGE", help="Delete threads to which nothing was put for longer.")
]
StrayWrites = Annotated[
    str | None,
    typer.Option(
        "--stray-writes",
        metavar="AGE",
        help="Delete older pending writes whose checkpoint never came: 7d if any other rule is on.",
    ),
]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, metavar="N", help="Stop when N threads were changed; a dry run doesn't.")
]
StoreThem = Annotated[
    bool, typer.Option("--store", help="Delete nothing: store these rules with the store, or with the threads named.")
]
Forget = Annotated[
    bool, typer.Option("--forget", help="Delete nothing: remove the rules of the store, or of the threads named.")
]
Show = Annotated[bool, typer.Option("--show", help="Delete nothing: show the stored rules.")]


def command(
    context: typer.Context,
    path: StorePath,
    threads: Threads = None,
    keep_last: KeepLast = None,
    keep_within: KeepWithin = None,
    keep_hourly: KeepHourly = None,
    keep_daily: KeepDaily = None,
    keep_weekly: KeepWeekly = None,
    keep_forks: KeepForksOption = None,
    max_bytes: MaxBytes = None,
    drop_idle: DropIdle = None,
    stray_writes: StrayWrites = None,
    limit: Limit = None,
    store_them: StoreThem = False,
    forget: Forget = False,
    show: Show = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Delete the checkpoints, idle threads and stray writes that no rule keeps.

    Without rules those stored with the store count; a thread's own come first in any case. Always kept are the latest
    checkpoint of each namespace, tagged ones, and ends of branches with pending writes, unless their thread is idle.
    """
    session: Session = context.obj
    rules = _rules(
        {
            "keep_last": keep_last,
            "keep_within": _age(keep_within, "--keep-within"),
            "keep_hourly": keep_hourly,
            "keep_daily": keep_daily,
            "keep_weekly": keep_weekly,
            "keep_forks": _forks(keep_forks),
            "max_bytes": None if max_bytes is None else quantities.parse_size(max_bytes, "--max-bytes"),
            "drop_idle": _age(drop_idle, "--drop-idle"),
            "stray_writes": _age(stray_writes, "--stray-writes"),
        }
    )
    modes = [name for name, on in (("--store", store_them), ("--forget", forget), ("--show", show)) if on]
    _check(modes, rules, others=dry_run or limit is not None)
    with open_store(path) as store:
        chosen = [places.find_thread(store, thread) for thread in threads] if threads else None
        if modes:
            if not show:
                _set(store, chosen, None if forget else rules)
            _show(session, store, chosen, as_json)
            return
        done = sweep(session, store, Wish(rules, chosen, limit, dry_run, yes))
        in_force = rules or store.retention
    document = {"rules": quantities.rules_as_document(in_force), **done.document()}
    session.answer(as_json, document, done.lines(session, detailed=chosen is not None))
    if document["damaged"]:
        session.code = exits.OF_ERRORS[CorruptionError]


# --- rules


def _age(text: str | None, option: str) -> timedelta | None:
    return None if text is None else quantities.parse_age(text, option)


def _forks(text: str | None) -> KeepForks | None:
    if text == "all":
        return "all"
    if text == "latest":
        return "latest"
    return _age(text, "--keep-forks")


def _rules(given: Mapping[str, Any]) -> Retention | None:
    """Return the rules given; None without any. Raises InvalidInputError."""
    found = {name: value for name, value in given.items() if value is not None}
    return Retention(**found) if found else None


def _check(modes: Sequence[str], rules: Retention | None, *, others: bool) -> None:
    if len(modes) > 1:
        raise InvalidInputError(f"{' and '.join(modes)} exclude each other")
    if modes and others:
        raise InvalidInputError(f"{modes[0]} deletes nothing, so it takes neither --dry-run nor --limit")
    if modes == ["--store"] and rules is None:
        raise InvalidInputError("--store needs rules; --keep-forks all keeps everything, --forget removes stored rules")
    if modes and modes != ["--store"] and rules is not None:
        raise InvalidInputError(f"{modes[0]} takes no rules; give them with --store")


def _set(store: Store, threads: Sequence[str] | None, rules: Retention | None) -> None:
    if threads is None:
        store.retention = rules
    for name in threads or ():
        store.thread(name).retention = rules


def _show(session: Session, store: Store, threads: Sequence[str] | None, as_json: bool) -> None:
    rules = store.retention
    own: dict[str, Retention] = {}
    names = (row.name for row in listing.readable_threads(store.log.storage) if isinstance(row, listing.ThreadRow))
    for name in session.counted("reading rules", names if threads is None else threads):
        try:
            found = store.thread(name).retention
        except ThreadNotFoundError:  # gone meanwhile
            continue
        if found is not None:
            own[name] = found
    document = {
        "rules": quantities.rules_as_document(rules),
        "own": [{"thread": name, "rules": quantities.rules_as_document(each)} for name, each in own.items()],
    }
    lines = [f"store: {'no rules, so all stays' if rules is None else quantities.rules_as_options(rules)}"]
    lines += [f"thread {escaped(name)}: {quantities.rules_as_options(each)}" for name, each in own.items()]
    session.answer(as_json, document, lines)


# --- sweeps


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for; without rules the stored ones count."""

    rules: Retention | None
    threads: Sequence[str] | None
    limit: int | None
    dry_run: bool
    yes: bool


def sweep(session: Session, store: Store, wish: Wish) -> Planned | Applied:
    """Plan, ask if anything goes, and apply; with --yes apply at once. The rules count as of the moment of the plan."""
    now = datetime.fromtimestamp(store.log.now_ms() / 1000, UTC)
    if wish.dry_run or not wish.yes:
        with session.progress("looking at threads") as progress:
            planned = Planned(
                retention.plan(store, wish.rules, threads=wish.threads, now=now, progress=progress), wish.dry_run
            )
        table = planned.table(session, detailed=wish.threads is not None)
        if wish.dry_run or (planned.changes and not session.confirm(planned.question, yes=False, first=table)):
            return planned
    with session.progress("sweeping threads") as progress:
        return Applied(
            retention.apply(store, wish.rules, threads=wish.threads, now=now, limit=wish.limit, progress=progress)
        )
