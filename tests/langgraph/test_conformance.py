"""LangGraph's own conformance suite: all of its capabilities pass, base and extended."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import BASE_CAPABILITIES, EXTENDED_CAPABILITIES
from langgraph.checkpoint.conformance.report import CapabilityReport

from deltastore import Store
from deltastore.langgraph import DeltaSaver


def report_on(open_store: Callable[..., Store], **options: Any) -> CapabilityReport:
    @checkpointer_test(name="DeltaSaver")
    async def savers() -> AsyncGenerator[DeltaSaver, None]:
        yield DeltaSaver(open_store(**options))

    return asyncio.run(validate(savers))


@pytest.mark.parametrize("frequency", [1, 2, 50])
def test_every_capability_passes(open_store: Callable[..., Store], frequency: int) -> None:
    """A capability counts as there if its async method is overridden (langgraph#8722): none may be left out unseen."""
    report = report_on(open_store, snapshot_frequency=frequency)
    report.print_report()
    failures = {name: result.failures for name, result in report.results.items() if result.failures}
    assert failures == {}
    assert set(report.results) == {capability.value for capability in BASE_CAPABILITIES | EXTENDED_CAPABILITIES}
    assert all(result.detected and result.tests_passed for result in report.results.values())
    assert report.passed_all()
    assert len(report.results) == 8
