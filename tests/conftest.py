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


# Of tests with a Spark, for the second process: those that start drivers, programs and pages in
# processes of their own, and some long ones, so that both processes end together.
SECOND = {
    "test_backlog.py",
    "test_compacted_job.py",
    "test_damaged_channel.py",
    "test_demo_on_stores.py",
    "test_documented.py",
    "test_drivers_at_once.py",
    "test_drivers_on_stores.py",
    "test_fencing.py",
    "test_notebooks.py",
    "test_odd_columns.py",
    "test_on_s3.py",
    "test_restore_program.py",
    "test_row_order.py",
    "test_s3_writes.py",
    "test_small_pages.py",
    "test_testing_plugin.py",
    "test_transactional_sinks.py",
    "test_written_savepoint.py",
}

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Most that share a session in one process, the kill loop in another, the rest anywhere.

    The files of :data:`SECOND` come behind the kill loop, with a session of their own. They are one
    scope with it, for scopes are dealt by the number of their tests.

    In ``make soak`` each file goes to the process that is free, and each test of the longest file.
    """
    from xdist.scheduler import LoadScopeScheduling

    soak = config.option.markexpr == "soak"

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0].split("/")
            if soak:
                return nodeid if path[-1] == "test_storage_faults.py" else path[-1]
            if path[1] == "chaos" or path[-1] in SECOND:
                return "second"
            return "first" if path[1] == "spark" else nodeid

    return Scheduling(config, log)
