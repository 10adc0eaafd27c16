"""What a transaction says follows a moment: nothing was written since, by this process or another."""

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltastore.storage.lmdb import LmdbStorage
from deltastore.storage.port import Moment

ROOT = Path(__file__).parents[2]
KEYS = (b"a", b"b", b"c")
ELSEWHERE = """
import sys
from deltastore.storage.lmdb import LmdbStorage
storage = LmdbStorage(sys.argv[1])
with storage.write() as tx:
    tx.put(b"a", sys.argv[2].encode()) if sys.argv[2] else tx.delete(b"not there")
storage.close()
"""


class Abandoned(Exception):
    """Ends a transaction without a commit."""


steps = st.lists(
    st.tuples(
        st.sampled_from(("put", "delete", "delete nothing", "delete a range", "mint", "only look", "abandon")),
        st.integers(0, 1),
        st.sampled_from(KEYS),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@given(steps)
def test_what_follows_a_moment_sees_what_that_one_left(steps: list[tuple[str, int, bytes, bool]]) -> None:
    """Moments are taken in the middle and at the end of transactions of two handles; each is asked about ever after."""
    with tempfile.TemporaryDirectory() as place:
        handles = [LmdbStorage(Path(place) / "s"), LmdbStorage(Path(place) / "s")]
        taken: list[tuple[Moment, dict[bytes, bytes]]] = []
        is_last = False  # whether the last moment taken was the end of the last commit
        for number, (what, handle, key, in_between) in enumerate(steps):
            own: list[tuple[Moment, dict[bytes, bytes]]] = []
            with contextlib.suppress(Abandoned), handles[handle].write() as tx:
                now = dict(tx.scan(b"", b"\xff"))
                followed = [moment for moment, _ in taken if tx.follows(moment)]
                assert all(rows == now for moment, rows in taken if moment in followed)
                assert not is_last or followed == [taken[-1][0]]
                wrote = act(tx, what, key, b"%d" % number)
                assert not (wrote and any(tx.follows(moment) for moment, _ in taken))
                own.append((tx.moment(), dict(tx.scan(b"", b"\xff"))))
                if in_between and wrote:
                    tx.put(b"again", b"%d" % number)
                if what == "abandon":
                    abandon()
            if wrote and what != "abandon":
                taken += own
                is_last = not in_between
        for each in handles:
            each.close()


def abandon() -> None:
    raise Abandoned


def act(tx: Any, what: str, key: bytes, value: bytes) -> bool:
    """Do something; tell whether it wrote."""
    match what:
        case "put" | "abandon":
            tx.put(key, value)
        case "delete":
            return bool(tx.delete(key))
        case "delete nothing":
            return bool(tx.delete(b"never there"))
        case "delete a range":
            return bool(tx.delete_range(key, b"\xff", limit=1))
        case "mint":
            tx.mint(b"counter")
        case _:
            return False
    return True


@pytest.mark.parametrize("wrote", [True, False])
def test_a_commit_of_another_process_is_seen(tmp_path: Path, wrote: bool) -> None:
    storage = LmdbStorage(tmp_path / "s")
    with storage.write() as tx:
        tx.put(b"a", b"ours")
        moment = tx.moment()
    with storage.write() as tx:
        assert tx.follows(moment)
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path / "s"), "theirs" if wrote else ""]
    subprocess.run(command, check=True, cwd=ROOT)
    with storage.write() as tx:
        assert tx.follows(moment) is not wrote
        assert tx.get(b"a") == (b"theirs" if wrote else b"ours")
    storage.close()


def test_a_moment_is_no_other_stores(tmp_path: Path) -> None:
    """Nor of one that was opened in its place: numbers of commits begin anew there."""
    moments = []
    for name in ("one", "other"):
        storage = LmdbStorage(tmp_path / name)
        with storage.write() as tx:
            assert not any(tx.follows(moment) for moment in moments)
            tx.put(b"a", b"1")
            moments.append(tx.moment())
        with storage.write() as tx:
            assert [tx.follows(moment) for moment in moments] == [False] * (len(moments) - 1) + [True]
        storage.close()
