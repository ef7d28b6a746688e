"""A checkpoint may be named by a time: the newest that was triggered by then."""

from datetime import datetime, timedelta

import pytest
from commands_run import document, failure, run
from storage_roots import START


def triggered(checkpoint_id: int) -> datetime:
    """When the fixture's checkpoints were."""
    return START + timedelta(seconds=10 * checkpoint_id)


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        (triggered(8).isoformat(), 8),
        (f"{triggered(8):%Y-%m-%d %H:%M:%S}", 8),
        (triggered(8).isoformat().replace("+00:00", "Z"), 8),
        # 7 was aborted.
        (triggered(7).isoformat(), 6),
        (f"{triggered(6):%Y-%m-%d %H:%M}", 6),
        (f"{triggered(6) - timedelta(seconds=1)}", 5),
        ("2999-01-01", 8),
    ],
)
def test_the_newest_by_then(small, moment, number):
    assert document(small, "show", moment)["checkpoint_id"] == number
    assert document(small, "state", "aircraft", "--at", moment)["checkpoint_id"] == number


def test_a_zone_counts(small):
    """Without one it is UTC, as in all that is shown."""
    later = f"{triggered(8):%Y-%m-%dT%H:%M:%S}+01:00"  # an hour before 8 there
    assert "no completed checkpoint" in failure(small, "show", later)


def test_before_the_first_there_is_none(small):
    """It says which is the oldest."""
    line = failure(small, "show", "2026-01-01")
    assert "no completed checkpoint" in line
    assert f"the oldest is checkpoint 1, of {START:%Y-%m-%d}" in line


def test_neither_id_nor_time(small):
    done = run(small, "show", "yesterday")
    assert done.exit_code == 2
    assert "nor a time such as '2026-11-23 09:00'" in " ".join(done.stderr.split())
