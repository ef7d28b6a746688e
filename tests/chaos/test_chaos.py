"""A driver killed with SIGKILL anywhere, and started again with the same command, is exact."""

from __future__ import annotations

import pytest
from chaos import Round, play
from lives import Death
from victims import Generator

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1800)]

# `make chaos` kills at all points, in random orders; here each kind of write is met once.
DEATHS = [
    Death("after channel commit", 3),
    Death("before barrier commit", 1),
    Death("after sink commit", 2),
    Death("before commit of an abort", 1),
    Death("before state append", 1),
    Death(None, 40, 500),
    Death("after state append", 1),
    Death("before Spark's commit", 2),
    Death("before sink commit", 2),
    Death("before checkpoints commit", 1),
    Death("after barrier commit", 1),
    Death("after checkpoints commit", 1),
]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Round:
    """One job of three stages, killed in every life but the last."""
    root = tmp_path_factory.mktemp("chaos")
    return play(Generator(root, seed=3), root / "lives", iter(DEATHS))


def test_every_life_ended_as_ordered(killed: Round) -> None:
    """Each of the points was met, and the last life ended by itself."""
    ends = [f"killed {death}" for death in DEATHS]
    assert [life.end for life in killed.lives] == [*ends, "by itself"]


def test_sink_states_and_checkpoints_are_exact(killed: Round) -> None:
    """Nothing is lost, twice or out of order, in the end and at the cut of every checkpoint."""
    assert [str(anomaly) for anomaly in killed.findings.anomalies] == []
    assert killed.findings.rows > 0


def test_what_a_kill_left_pending_was_aborted_and_later_ones_completed(killed: Round) -> None:
    """There were checkpoints of both ends, so that the other tests have something to say."""
    assert killed.findings.aborted >= 2
    assert killed.findings.completed >= 2
