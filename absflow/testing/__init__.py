"""For the tests of jobs: process functions without Spark, and jobs on a local one.

:class:`Stage` runs the functions of a stage on rows, state, barriers and time, without a JVM, by
the code that workers run. :func:`check_deterministic` runs them in many ways that must all give the
same. :func:`assert_same_rows` compares. :class:`LocalJobs` runs whole jobs on a local Spark; the
fixture ``absflow_local`` of the pytest plugin gives one::

    def test_visits():
        stage = Stage(count, inputs="user string", key="user",
                      state="visits long", output="user string, visits long")
        assert stage.batch([("ada",), ("ada",)]) == [{"user": "ada", "visits": 2}]
        check_deterministic(stage, [("ada",), BATCH, ("bob",), ("ada",)], output="newest")
"""

from absflow.testing.compare import assert_same_rows, difference
from absflow.testing.deterministic import RUNS, NotDeterministicError, check_deterministic
from absflow.testing.feeding import Emitted
from absflow.testing.local import LocalJobs, local_session
from absflow.testing.signs import (
    BARRIER,
    BATCH,
    END,
    RESTORE,
    AdvanceWatermark,
    BarrierOn,
    Input,
    Wait,
)
from absflow.testing.stage import Stage

__all__ = [
    "BARRIER",
    "BATCH",
    "END",
    "RESTORE",
    "RUNS",
    "AdvanceWatermark",
    "BarrierOn",
    "Emitted",
    "Input",
    "LocalJobs",
    "NotDeterministicError",
    "Stage",
    "Wait",
    "assert_same_rows",
    "check_deterministic",
    "difference",
    "local_session",
]
