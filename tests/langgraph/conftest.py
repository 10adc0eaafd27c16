"""Savers over the checked stores of tests/conftest.py."""

from collections.abc import Callable

import pytest

from deltastore import Store
from deltastore.langgraph import DeltaSaver
from tests.langgraph.comparing import Pair


@pytest.fixture
def saver(store: Store) -> DeltaSaver:
    return DeltaSaver(store)


@pytest.fixture
def pair(open_store: Callable[..., Store]) -> Pair:
    """Both savers; ours anchors every 4 checkpoints, so that short tests meet anchors, deltas and packs."""
    return Pair(DeltaSaver(open_store(snapshot_frequency=4)))
