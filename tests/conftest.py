"""Which tests may run at once: ``make test`` has two processes, and a Spark is slow to start."""

from __future__ import annotations

from pathlib import Path

import pytest

CHAOS = Path(__file__).parent / "chaos"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All that share a session in one process, the kill loop in another, the rest anywhere."""
    for item in items:
        if item.path.is_relative_to(CHAOS):
            item.add_marker(pytest.mark.xdist_group("chaos"))
        elif item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))
