"""A driver killed in the middle of a publication to Kafka, and to PostgreSQL, is exact."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos import play
from destinations import OUTSIDE
from lives import Death
from outside import LANE_POINTS
from places import Disk
from victims import Findings, Generator

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

BEGIN, MIDDLE, BEFORE, DURING, AFTER = LANE_POINTS
DEATHS = [
    Death(MIDDLE, 2),
    Death(DURING, 3),
    Death(AFTER, 4),
    Death("before note of a publication", 2),
    Death(BEFORE, 1, wound=f"1 {AFTER}"),
    Death("after checkpoints commit", 1, wound=f"2 {MIDDLE}"),
]


def judged(root: Path, kind: str, deaths: list[Death]) -> Findings:
    (root / "server").mkdir()
    with OUTSIDE[kind](root / "server") as server:
        victim = Generator(Disk(root), 3, "on-checkpoint", "aligned", server)
        round_ = play(victim, root / "lives", iter(deaths))
    assert [life.end for life in round_.lives] == [*(f"killed {d}" for d in deaths), "by itself"]
    return round_.findings


@pytest.mark.parametrize("kind", ["postgres", pytest.param("kafka", marks=pytest.mark.soak)])
def test_every_row_once_and_in_order(tmp_path: Path, kind: str) -> None:
    """Driver and workers die before, in and behind transactions, and before they are noted."""
    found = judged(tmp_path, kind, DEATHS)
    assert [str(anomaly) for anomaly in found.anomalies] == []
    assert found.rows > 0


@pytest.mark.soak
def test_sparks_own_sink_has_rows_twice(tmp_path: Path) -> None:
    """So the loop would find them."""
    found = judged(
        tmp_path, "spark-kafka", [Death("before note of what went outside", n) for n in (4, 6)]
    )
    assert {anomaly.kind.value for anomaly in found.anomalies} == {"duplicated"}
