"""Let several processes work on one store for long, kill them at random, and compare what they leave with a model.

    python -m bench.soak                          ten minutes
    python -m bench.soak --minutes 60 --seed 7    longer, and repeatable in what each process draws
    python -m bench.soak --json soak              writes bench/results/soak.json

Writers of both APIs, readers, one process that applies retention, compacts and shrinks without a pause, and one that
stays for the whole time with retention in its background. All but the last are killed with SIGKILL and replaced. Each
state carries its own digest, so whoever reads judges; and what was acknowledged is compared when its writer is dead.
Ends with 1 when anything was wrong.
"""

import argparse
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import deltastore
from bench import soak_roles
from bench.machine import write_result
from bench.soak_roles import GRAPH, KEEP_LAST, NATIVE, Part, WrongError, front_of
from deltastore import NotFoundError, Store, check

RESULTS = Path(__file__).with_name("results")
SILENCE_S = 120
"""How long all processes may say nothing before that counts as hanging, in seconds."""
KILL_EVERY = (40, 400)
"""How many things are heard of from one kill to the next."""
SAMPLE_EVERY = 500
"""How many things are heard of from one look at the file's size to the next."""
Role = Callable[..., None]
CREW: list[tuple[Role, str]] = [
    (soak_roles.write, NATIVE),
    (soak_roles.write, GRAPH),
    (soak_roles.read, "reader"),
    (soak_roles.keep_small, "upkeep"),
]


@dataclass
class Member:
    """A process under way."""

    role: Role
    kind: str
    number: int
    process: Any
    pipe: Connection
    killed: bool = False


@dataclass
class Soak:
    """What is known, and what came of it."""

    path: Path
    seed: int
    sync: Any = "full"
    model: dict[str, dict[str, str | None]] = field(default_factory=dict)
    """Conversation → checkpoint → digest, of what was acknowledged; None where somebody began to delete it."""
    doomed: set[str] = field(default_factory=set)
    """Conversations that somebody began to delete."""
    did: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    mismatches: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    memory: list[tuple[float, int, int]] = field(default_factory=list)
    """Seconds since the beginning, the staying process's own memory and all that is resident, in KB."""
    file_bytes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["bench.soak_roles"])
        self.chance = random.Random(self.seed)
        self.members: list[Member] = []
        self.launched = 0
        self.began = time.monotonic()

    def run(self, *, seconds: float | None = None, things: int | None = None) -> None:
        """Go on for so long, or until so many things were done; then let all end, and compare everything."""
        with deltastore.open(self.path, sync=self.sync) as store:
            try:
                self.launch(soak_roles.stay, GRAPH)
                for role, kind in CREW:
                    self.launch(role, kind)
                self.work(store, seconds, things)
                for member in self.members:
                    member.pipe.send("end")
                while self.members:
                    self.hear(self.next())
            finally:
                for member in self.members:
                    member.process.kill()
            self.judge(store, [name for name in self.model if name not in self.doomed])
            self.sample(store)
            report = check(store)
            self.mismatches += [f"check: {problem}" for problem in report.problems]

    def work(self, store: Store, seconds: float | None, things: int | None) -> None:
        until_kill = self.chance.randint(*KILL_EVERY)
        while not self.failures and not self.mismatches:
            heard = self.did.total()
            if (things is not None and heard >= things) or (seconds is not None and self.elapsed() >= seconds):
                return
            self.hear(self.next())
            until_kill -= 1
            if until_kill <= 0:
                until_kill = self.chance.randint(*KILL_EVERY)
                self.replace(self.chance.choice(self.members[1:]), store)
            if heard % SAMPLE_EVERY == 0:
                self.sample(store)

    def elapsed(self) -> float:
        return time.monotonic() - self.began

    # --- processes

    def launch(self, role: Role, kind: str) -> None:
        self.launched += 1
        mine, its = self.context.Pipe()
        part = Part(str(self.path), self.sync, kind, self.launched, self.chance.randrange(2**32))
        process = self.context.Process(target=guarded, args=(role, part, its), daemon=True)
        process.start()
        its.close()
        self.members.append(Member(role, kind, self.launched, process, mine))

    def next(self) -> Member:
        ready = wait([member.pipe for member in self.members], SILENCE_S)
        if not ready:
            raise TimeoutError(f"nobody said anything for {SILENCE_S} s: {[m.kind for m in self.members]} hang")
        chosen = self.chance.choice(ready)
        return next(member for member in self.members if member.pipe is chosen)

    def hear(self, member: Member) -> bool:
        """Hear one word of a process; tell whether it goes on."""
        try:
            said = member.pipe.recv()
        except (EOFError, ConnectionResetError):
            said = ("died",)
        match said:
            case ("put", name, id_, digest):
                self.model.setdefault(name, {})[id_] = digest
                self.did["puts"] += 1
            case ("deleting", name, None):
                self.doomed.add(name)
            case ("deleting", name, id_):
                self.model.setdefault(name, {})[id_] = None
            case ("gone", name):
                self.model.pop(name, None)
                self.doomed.discard(name)
                self.did["conversations ended"] += 1
            case ("did", what):
                self.did[what] += 1
            case ("memory", own, resident):
                self.memory.append((self.elapsed(), own, resident))
            case ("failed", error):
                self.failures.append(f"{member.kind} {member.number}: {error}")
            case _:  # it ended, or died
                self.bury(member, expected=member.killed or said == ("end",))
                return False
        return True

    def bury(self, member: Member, *, expected: bool) -> None:
        self.members.remove(member)
        member.pipe.close()
        member.process.join()
        if not expected and not self.failures:
            self.failures.append(f"{member.kind} {member.number} ended with {member.process.exitcode}")
        member.process.close()

    def replace(self, member: Member, store: Store) -> None:
        """Kill a process at whatever it does, look at what it left, and start another one in its place."""
        member.killed = True
        member.process.kill()
        self.kills[member.kind] += 1
        while self.hear(member):
            pass
        prefix = f"{member.kind}.{member.number}."
        self.judge(store, [name for name in self.model if name.startswith(prefix) and name not in self.doomed])
        for name in [found.name for found in store.threads() if found.name.startswith(prefix)]:
            store.delete(name)
        for name in [name for name in self.model if name.startswith(prefix)]:
            del self.model[name]
        self.doomed = {name for name in self.doomed if not name.startswith(prefix)}
        self.launch(member.role, member.kind)

    # --- the judgement

    def judge(self, store: Store, names: list[str]) -> None:
        """Compare conversations that nobody writes any more with what was acknowledged."""
        for name in names:
            known, front = self.model[name], front_of(name, store)
            try:
                listed = front.ids(name)
                # One may be stored without a word, and one that was deleted counted as long as it was there.
                must = {id_ for id_ in sorted(known)[-KEEP_LAST + 1 :] if known[id_]}
                if missing := must - set(listed):
                    self.mismatches.append(f"{name}: {sorted(missing)} of {len(listed)} listed ones are missing")
                for id_ in listed:
                    state = front.read(name, id_)
                    if state is not None and state["check"] != (known.get(id_) or state["check"]):
                        self.mismatches.append(f"{name}, {id_}: another state than was acknowledged")
                    self.compared += 1
            except (WrongError, NotFoundError) as error:
                self.mismatches.append(f"{name}: {error!r}")

    def sample(self, store: Store) -> None:
        self.file_bytes.append(store.info().file_bytes)

    def summary(self) -> dict[str, Any]:
        """Return what was tried, survived and found."""
        settled = self.memory[len(self.memory) // 3 :]  # before that, caches fill
        own = [kb for _, kb, _ in settled]
        slope = (
            statistics.linear_regression([at for at, _, _ in settled], own).slope * 60 / 1024
            if len({at for at, _, _ in settled}) > 1
            else 0.0
        )
        return {
            "seconds": round(self.elapsed(), 1),
            "seed": self.seed,
            "sync": self.sync,
            "operations": dict(sorted(self.did.items())),
            "kills": dict(sorted(self.kills.items())),
            "checkpoints_compared": self.compared,
            "mismatches": self.mismatches,
            "failures": self.failures,
            "own_memory_mb": {
                "first": round(own[0] / 1024, 1) if own else None,
                "last": round(own[-1] / 1024, 1) if own else None,
                "most": round(max(own, default=0) / 1024, 1),
                "slope_per_minute": round(slope, 3),
            },
            "resident_mb_most": round(max((kb for _, _, kb in settled), default=0) / 1024, 1),
            "file_mb": {
                "most": round(max(self.file_bytes) / 2**20, 1),
                "last": round(self.file_bytes[-1] / 2**20, 1),
            },
        }


def guarded(role: Role, part: Part, pipe: Connection) -> None:
    """Play a part to its end; tell what went wrong in place of a trace on the terminal."""
    try:
        role(part, pipe)
        pipe.send(("end",))
    except (EOFError, BrokenPipeError):
        pass  # whoever listened is gone
    except BaseException as error:  # noqa: BLE001 - the listener judges it
        pipe.send(("failed", repr(error)))


def show(found: dict[str, Any]) -> None:
    did, kills = found["operations"], found["kills"]
    print(f"{found['seconds']} s, seed {found['seed']}, sync={found['sync']!r}")
    print(f"operations: {sum(did.values())}: " + ", ".join(f"{count} {what}" for what, count in did.items()))
    print(f"kills survived: {sum(kills.values())}: " + ", ".join(f"{count} {kind}" for kind, count in kills.items()))
    print(f"checkpoints compared with the model: {found['checkpoints_compared']}")
    memory, file = found["own_memory_mb"], found["file_mb"]
    print(
        f"memory of the process that stayed: {memory['first']} MB when settled, {memory['last']} at the end, at most "
        f"{memory['most']}, slope {memory['slope_per_minute']} MB a minute; file: at most {file['most']} MB, "
        f"{file['last']} at the end"
    )
    print(f"mismatches: {len(found['mismatches'])}, failures: {len(found['failures'])}")
    for text in (*found["mismatches"][:10], *found["failures"][:10]):
        print(f"  {text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--sync", choices=["full", "meta", "none"], default="full")
    parser.add_argument("--directory", type=Path, help="where the store is made; a temporary one by default")
    parser.add_argument("--json", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        soak = Soak(Path(directory) / "store.ds", seed, options.sync)
        print(f"seed {seed}", flush=True)
        soak.run(seconds=options.minutes * 60)
    found = soak.summary()
    show(found)
    if options.json:
        write_result(options.json, "bench.soak", found)
    sys.exit(bool(found["mismatches"] or found["failures"]))


if __name__ == "__main__":
    main()
