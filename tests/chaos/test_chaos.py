"""A driver killed with SIGKILL anywhere, and started again with the same command, is exact."""

from __future__ import annotations

import pytest
from chaos import Round, play
from lives import Death
from places import Disk
from victims import Generator

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

# `make chaos` kills at all points and at random moments; here each kind of write is met once.
DEATHS = {
    ("immediate", "aligned"): [
        Death("after channel commit", 3),
        Death("before barrier commit", 1),
        Death("after sink commit", 2),
        Death("after state append", 1),
        Death("before checkpoints commit", 1),
    ],
    ("on-checkpoint", "unaligned"): [
        Death("before Spark's commit", 2),
        Death("before commit of an abort", 1),
        Death("after overtake commit", 1),
        Death("after checkpoints commit", 1),
        Death("before publication", 1),
    ],
}


# The other is as long, and on-checkpoint is killed in make chaos as well.
SOAK = ("on-checkpoint", "unaligned")
JOBS = [
    pytest.param(job, marks=pytest.mark.soak if job == SOAK else (), id=", ".join(job))
    for job in DEATHS
]


@pytest.fixture(scope="module", params=JOBS)
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Round:
    """One job of three stages, killed in every life but the last."""
    root = tmp_path_factory.mktemp("chaos")
    orders = DEATHS[request.param]
    round_ = play(Generator(Disk(root), 3, *request.param), root / "lives", iter(orders))
    ends = [f"killed {death}" for death in orders]
    assert [life.end for life in round_.lives] == [*ends, "by itself"]
    return round_


def test_sink_states_and_checkpoints_are_exact(killed: Round) -> None:
    """Nothing is lost, twice or out of order, in the end and at the cut of every checkpoint."""
    assert [str(anomaly) for anomaly in killed.findings.anomalies] == []
    assert killed.findings.rows > 0


def test_what_a_kill_left_pending_was_aborted_and_later_ones_completed(killed: Round) -> None:
    """There were checkpoints of both ends, so that the other tests have something to say."""
    assert killed.findings.aborted >= 1
    assert killed.findings.completed >= 2
