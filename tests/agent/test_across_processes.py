"""A run's lives may be in different processes: what one recorded, asked or decided, another finds."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import deltastore
from deltastore.agent import CheckpointManager

PROGRAM = """
import json, sys
from dataclasses import dataclass
import deltastore
from deltastore.agent import CheckpointManager, Paused

@dataclass
class Offer:
    price: int

def ask_price(item):
    with open("asked", "a") as out:
        out.write(item)
    return Offer(7)

command = sys.argv[1]
with deltastore.open("store.ds") as store:
    manager = CheckpointManager(store)
    if command == "decide":
        manager.restore("r").resume({"ok": True, "note": ("by", "hand")})
    elif command == "run":
        try:
            with manager.run("r") as run:
                run.add({"role": "user", "content": "buy"})
                offer = run.call(ask_price, "book")
                decision = run.pause({"pay": offer})
                run.state["bought"] = [offer.price, decision["note"][1]]
        except Paused as paused:
            print(json.dumps(["paused", paused.question["pay"].price]))
    elif command == "late":
        run = manager.restore("r")
        print(json.dumps("ready"), flush=True)
        sys.stdin.readline()
        try:
            run.step()
        except deltastore.ConflictError as error:
            print(json.dumps("conflict"))
    else:
        last = manager.list_checkpoints("r")[0]
        print(json.dumps([last.status, last.state.get("bought")]))
"""


def start(folder: Path, command: str) -> "subprocess.Popen[str]":
    (folder / "program.py").write_text(PROGRAM)
    return subprocess.Popen(
        [sys.executable, "program.py", command],
        cwd=folder,
        env={"PYTHONPATH": str(Path(deltastore.__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def run(folder: Path, command: str) -> Any:
    out, _ = (process := start(folder, command)).communicate()
    assert process.returncode == 0
    return json.loads(out) if out else None


def test_question_and_decision_go_from_process_to_process(tmp_path: Path) -> None:
    assert run(tmp_path, "run") == ["paused", 7]
    assert run(tmp_path, "show") == ["paused", None]
    assert run(tmp_path, "decide") is None
    assert run(tmp_path, "run") is None
    assert run(tmp_path, "show") == ["done", [7, "hand"]]
    assert (tmp_path / "asked").read_text() == "book"


def test_a_process_that_was_overtaken_is_stopped(tmp_path: Path) -> None:
    with deltastore.open(tmp_path / "store.ds") as store:
        manager = CheckpointManager(store)
        manager.run("r", state={"x": 1})
        late = start(tmp_path, "late")
        assert late.stdout is not None
        assert json.loads(late.stdout.readline()) == "ready"
        with manager.run("r") as mine:
            mine.state["x"] = 2
            mine.step()
        out, _ = late.communicate("go\n")
        assert json.loads(out) == "conflict"
        assert manager.restore("r").state == {"x": 2}
