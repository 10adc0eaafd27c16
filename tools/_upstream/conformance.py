"""Runs the checkout's conformance tests on DeltaSaver, and prints per capability what passed and failed, as JSON.

The delta channel history has its tests run in any case: a saver that doesn't implement it inherits one.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

from langgraph.checkpoint.conformance import checkpointer_test, validate

from _upstream.plugin import new_delta_saver
from deltastore.langgraph import DeltaSaver

HISTORY = "delta_channel_history"


def history_runner() -> Callable[..., Any] | None:
    """Return the function that runs the history's tests; earlier checkouts have none."""
    try:
        from langgraph.checkpoint.conformance.spec import test_delta_channel_history
    except ImportError:
        return None
    runner: Callable[..., Any] = test_delta_channel_history.run_delta_channel_history_tests
    return runner


async def run(frequency: int) -> dict[str, Any]:
    @checkpointer_test(name="DeltaSaver")
    async def delta_saver() -> AsyncIterator[DeltaSaver]:
        with new_delta_saver(frequency) as saver:
            yield saver

    report = await validate(delta_saver)
    results: dict[str, Any] = {
        name: {"passed": result.tests_passed, "failed": result.failures}
        for name, result in report.results.items()
        if result.detected
    }
    runner = history_runner()
    if HISTORY not in results and runner is not None:
        with new_delta_saver(frequency) as saver:
            passed, _, failures = await runner(saver)
        results[HISTORY] = {"passed": passed, "failed": failures, "inherited": True}
    return results


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(int(sys.argv[1])))))
