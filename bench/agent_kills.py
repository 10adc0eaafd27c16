"""Kill an agent at random, again and again, and count the orders and mails that are there twice or not at all.

    python -m bench.agent_kills                       200 runs, each killed in its first life, a third in the second too
    python -m bench.agent_kills --json agent_kills    writes bench/results/agent_kills.json
    python -m bench.agent_kills --seed 7 --points 20

A run takes orders. For each it asks a model, inserts a row into an SQLite database and appends a mail to a file;
neither refuses a second one. Half of the kills come from within, at a random one of the moments before and after each
write to the store and each effect, so also between an effect and its record; half from outside, after a random time.
Then a fresh process goes on. A call in doubt is looked up by its key in the database and in the file. Calls that were
recorded as done when a life ended must not be made again by a later one. For comparison the same kills are made of a
run that makes calls in doubt again without a look.
"""

import argparse
import itertools
import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import deltastore
from bench.killing import KILLED, NEVER, Moments, live, note, notes, preload
from bench.machine import write_result
from deltastore import check
from deltastore.agent import NOT_DONE, CheckpointManager, CurrentCall, Done, Run, current_call
from deltastore.errors import ThreadNotFoundError

POINTS, SEED, ORDERS = 200, 20261201, 3
SECOND_KILLS = 1 / 3
"""The share of runs that are killed in their second life too."""
RUN_ID = "orders"
LOOK, RETRY = "look up", "make again"
"""What is done about a call in doubt."""
WRONG = ("lost", "twice", "completed, made again", "wrong ends")
COUNTED = (
    "kills",
    "kills before the run began",
    "effects",
    "completed",
    "in doubt, done",
    "in doubt, not done",
    *WRONG,
)


class Kill(NamedTuple):
    """How a life ends: at its `moment`-th moment, or from outside after some seconds, if it lives that long."""

    moment: int = NEVER
    after_s: float | None = None


class Shop:
    """What the agent acts on: a database of orders and a file of mails, each act between two moments."""

    def __init__(self, folder: Path, moment: Moments) -> None:
        self.folder = folder
        self.moment = moment

    def plan(self, order: int) -> dict[str, Any]:
        self._entered()
        return {"role": "assistant", "content": f"Let us order number {order}."}

    def create_order(self, order: int, idempotency_key: str) -> str:
        self._entered()
        self.moment("before the order")
        with closing(database(self.folder)) as orders, orders:
            orders.execute("INSERT INTO orders VALUES (?, ?)", (order, idempotency_key))
        self.moment("after the order")
        return f"order {order} is created"

    def send_mail(self, order: int, text: str, idempotency_key: str) -> str:
        self._entered()
        self.moment("before the mail")
        note(self.folder / "mails", [order, text, idempotency_key])
        self.moment("after the mail")
        return f"mail {order} is sent"

    def look(self, call: CurrentCall) -> Any:
        """Say whether the effect of a call in doubt is there."""
        if call.name == "create_order":
            found = [f"order {order} is created" for order, key in created(self.folder) if key == call.idempotency_key]
        else:
            mails = notes(self.folder / "mails")
            found = [f"mail {order} is sent" for order, _, key in mails if key == call.idempotency_key]
        note(self.folder / "looked", bool(found))
        return Done(found[0]) if found else NOT_DONE

    def _entered(self) -> None:
        call = current_call()
        assert call is not None
        note(self.folder / "entered", call.idempotency_key)


def open_shop(folder: Path) -> None:
    folder.mkdir()
    with closing(database(folder)) as orders:
        orders.execute("CREATE TABLE orders (number INTEGER, key TEXT)")


def database(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(folder / "orders.sqlite")


def created(folder: Path) -> list[tuple[int, str]]:
    with closing(database(folder)) as orders:
        return orders.execute("SELECT number, key FROM orders ORDER BY rowid").fetchall()


def agent(run: Run, shop: Shop, orders: int) -> None:
    """Take the orders, as an agent's own loop does."""
    while (order := run.step_index) < orders:
        run.add(run.model(shop.plan, order=order))
        answer = run.call(shop.create_order, order)
        run.add({"role": "tool", "content": answer})
        run.add({"role": "tool", "content": run.call(shop.send_mail, order, answer)})
        run.step()


def life(folder: Path, fatal: int, in_doubt: str, orders: int) -> None:
    """Begin the run or go on with it, in a process of its own."""
    began, moment = time.perf_counter(), Moments(fatal)
    moment.watch_writes()
    shop = Shop(folder, moment)
    with deltastore.open(folder / "store.ds") as store:
        manager = CheckpointManager(store, in_doubt=shop.look if in_doubt == LOOK else "retry", on_changed_path="raise")
        with manager.run(RUN_ID) as run:
            agent(run, shop, orders)
    note(folder / "ended", {"moments": moment.seen, "seconds": time.perf_counter() - began})


# --- the judge --------------------------------------------------------------------------------


def trial(folder: Path, kills: Sequence[Kill], in_doubt: str, orders: int) -> Counter[str]:
    """Let a run live, die and live on until it is done; count what came of it."""
    open_shop(folder)
    count = Counter(dict.fromkeys(COUNTED, 0))
    done: list[tuple[int, set[str]]] = []
    for kill in (*kills, Kill()):
        code = live(life, folder, kill.moment, in_doubt, orders, kill_after_s=kill.after_s)
        if code not in (0, KILLED) or (code == KILLED and kill == Kill()):
            raise SystemExit(f"a life with {kill} ended with exit code {code}")
        if code == 0:
            break
        recorded = completed(folder)
        count["kills"] += 1
        count["kills before the run began"] += recorded is None
        done.append((len(notes(folder / "entered")), recorded or set()))
    entered = notes(folder / "entered")
    for so_far, keys in done:
        count["completed"] += len(keys)
        count["completed, made again"] += len(keys & set(entered[so_far:]))
    count.update("in doubt, done" if found else "in doubt, not done" for found in notes(folder / "looked"))
    ordered, mailed = [order for order, _ in created(folder)], [order for order, *_ in notes(folder / "mails")]
    for effects in (Counter(ordered), Counter(mailed)):
        count["effects"] += orders
        count["lost"] += sum(not effects[order] for order in range(orders))
        count["twice"] += sum(max(0, effects[order] - 1) for order in range(orders))
    count["wrong ends"] += not ended_well(folder, orders)
    return count


def completed(folder: Path) -> set[str] | None:
    """Return the keys of the calls that are recorded as done; None before the run began."""
    if not (folder / "store.ds").exists():
        return None
    with deltastore.open(folder / "store.ds") as store:
        manager = CheckpointManager(store)
        try:
            calls = manager.list_calls(RUN_ID)
        except ThreadNotFoundError:
            return None
        earlier = manager.list_checkpoints(RUN_ID)[0].tool_results
    return {call.idempotency_key for call in calls if call.state == "done"} | {record["id"] for record in earlier}


def ended_well(folder: Path, orders: int) -> bool:
    """Tell whether the run's last checkpoint holds all that happened, and the store is sound."""
    expected = [text for order in range(orders) for text in (f"order {order} is created", f"mail {order} is sent")]
    with deltastore.open(folder / "store.ds") as store:
        last = CheckpointManager(store).list_checkpoints(RUN_ID)[0]
        recorded = [record["result"] for record in last.tool_results]
        said = [message["content"] for message in last.messages if message["role"] == "tool"]
        return last.status == "done" and recorded == said == expected and check(store).ok


def killed_trial(folder: Path, kills: Sequence[Kill], in_doubt: str, orders: int) -> Counter[str]:
    """Return the counts of a run that was killed: sooner, where it had ended before."""
    for number in itertools.count():
        count = trial(folder.with_name(f"{folder.name} {number}"), kills, in_doubt, orders)
        if count["kills"]:
            return count
        kills = [kill._replace(after_s=kill.after_s and kill.after_s / 2) for kill in kills]
    raise AssertionError


def draw(points: int, moments: int, whole_s: float, chance: random.Random) -> list[list[Kill]]:
    """Return how the lives of each run end, from within and from outside by turns."""
    found = []
    for point in range(points):
        lives = 2 if chance.random() < SECOND_KILLS else 1
        within = [Kill(chance.randrange(moments)) for _ in range(lives)]
        outside = [Kill(after_s=chance.uniform(0, whole_s)) for _ in range(lives)]
        found.append(outside if point % 2 else within)
    return found


def measure(points: int, seed: int, orders: int = ORDERS) -> dict[str, Any]:
    """Return what was counted, by what is done about calls in doubt."""
    with tempfile.TemporaryDirectory(prefix="deltastore-bench-") as made:
        for name in ("warm", "whole"):
            open_shop(folder := Path(made, name))
            live(life, folder, NEVER, LOOK, orders)
        (whole,) = notes(folder / "ended")
        moments = whole["moments"]
        kills = draw(points, len(moments), whole["seconds"], random.Random(seed))
        counts: dict[str, Counter[str]] = {}
        for policy in (LOOK, RETRY):
            counts[policy] = Counter()
            for point, lives in enumerate(kills):
                counts[policy].update(killed_trial(Path(made, f"{policy} {point}"), lives, policy, orders))
    within = Counter(moments[kill.moment] for lives in kills for kill in lives if kill.moment != NEVER)
    return {"seed": seed, "points": points, "orders": orders, "moments": dict(within), "counts": counts}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=POINTS, help="runs that are killed")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--json", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()
    preload("deltastore.agent", "deltastore.storage.lmdb")
    print(f"seed {options.seed}", flush=True)
    found = measure(options.points, options.seed)
    for policy, count in found["counts"].items():
        print(f"{policy}: " + ", ".join(f"{what} {number}" for what, number in count.items()))
    if options.json:
        write_result(options.json, "bench.agent_kills", found)
    return int(any(found["counts"][LOOK][what] for what in WRONG))


if __name__ == "__main__":
    sys.exit(main())
