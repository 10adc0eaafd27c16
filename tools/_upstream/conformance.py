"""Runs the checkout's conformance tests on DeltaSaver, and prints per capability what passed and failed, as JSON."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

from langgraph.checkpoint.conformance import checkpointer_test, validate

from _upstream.plugin import new_delta_saver
from deltastore.langgraph import DeltaSaver


async def run(frequency: int) -> dict[str, Any]:
    @checkpointer_test(name="DeltaSaver")
    async def delta_saver() -> AsyncIterator[DeltaSaver]:
        with new_delta_saver(frequency) as saver:
            yield saver

    report = await validate(delta_saver)
    return {
        capability: {"passed": result.tests_passed, "failed": result.failures}
        for capability, result in report.results.items()
        if result.detected
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(int(sys.argv[1])))))
