"""LangGraph's own conformance suite: every base capability passes."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import BASE_CAPABILITIES
from langgraph.checkpoint.conformance.report import CapabilityReport

from deltastore import Store
from deltastore.langgraph import DeltaSaver


def report_on(open_store: Callable[..., Store], **options: Any) -> CapabilityReport:
    @checkpointer_test(name="DeltaSaver")
    async def savers() -> AsyncGenerator[DeltaSaver, None]:
        yield DeltaSaver(open_store(**options))

    return asyncio.run(validate(savers))


@pytest.mark.parametrize("frequency", [1, 2, 50])
def test_every_base_capability_passes(open_store: Callable[..., Store], frequency: int) -> None:
    report = report_on(open_store, snapshot_frequency=frequency)
    report.print_report()
    failures = {name: result.failures for name, result in report.results.items() if result.failures}
    assert failures == {}
    assert report.passed_all_base()
    assert all(report.results[capability.value].tests_passed for capability in BASE_CAPABILITIES)


def test_what_is_detected_passes(open_store: Callable[..., Store]) -> None:
    """C110: a capability counts as there if its async method is overridden."""
    report = report_on(open_store)
    detected = {name for name, result in report.results.items() if result.detected}
    assert detected >= {capability.value for capability in BASE_CAPABILITIES}
    assert report.passed_all()
