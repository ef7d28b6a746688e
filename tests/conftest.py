"""Which tests may run at once: ``make test`` has two processes, and a Spark is slow to start.

And no test fails for being slow: Hypothesis has a deadline for each example, if it is let.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling


settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """All that share a session in one process, the kill loop in another, the rest anywhere."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            folder = nodeid.split("/")[1]
            return folder if folder in {"chaos", "spark"} else nodeid

    return Scheduling(config, log)
