"""The shares of the last minute in which a stage was busy, or waited for its consumers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from absflow.protocol.load import WINDOW_MS, Meter


@pytest.fixture
def meter() -> Meter:
    return Meter(0)


def test_nothing_was_done(meter: Meter) -> None:
    """Also at the very moment that it begins to watch."""
    assert meter.shares(0) == (0, 0)
    assert meter.shares(10_000) == (0, 0)


def test_a_young_job_is_measured_from_its_start(meter: Meter) -> None:
    """Not over a minute that was not."""
    meter.began(0, 1_000)
    meter.done(0, 1_000, 4_000)
    assert meter.shares(10_000) == (pytest.approx(0.3), 0)


def test_a_trigger_that_runs_counts_until_now(meter: Meter) -> None:
    """Else a stage whose batches take minutes would be idle."""
    meter.began(0, 5_000)
    assert meter.shares(10_000) == (pytest.approx(0.5), 0)
    assert meter.shares(5_000 + 2 * WINDOW_MS) == (1, 0)


def test_waiting_is_not_busy(meter: Meter) -> None:
    """While it lasts, and afterwards."""
    meter.began(0, 0)
    meter.waits(2_000)
    assert meter.shares(10_000) == (pytest.approx(0.2), pytest.approx(0.8))
    meter.goes_on(10_000)
    meter.done(0, 0, 15_000)
    assert meter.shares(20_000) == (pytest.approx(7 / 20), pytest.approx(8 / 20))


def test_it_may_be_told_late_that_a_batch_is_done(meter: Meter) -> None:
    """The next one has begun by then, and goes on."""
    meter.began(0, 0)
    meter.began(1, 4_000)
    meter.done(0, 0, 4_000)
    assert meter.shares(8_000) == (1, 0)
    meter.done(1, 4_000, 8_000)
    assert meter.shares(16_000) == (pytest.approx(0.5), 0)


def test_a_dead_query_is_idle(meter: Meter) -> None:
    """Whether it was at work or waited when it died."""
    meter.began(0, 0)
    meter.waits(1_000)
    meter.died(2_000)
    assert meter.shares(10_000) == (pytest.approx(0.1), pytest.approx(0.1))


def test_only_the_last_minute_counts(meter: Meter) -> None:
    """And no more of it is kept than that."""
    for batch in range(1_000):
        meter.began(batch, 1_000 * batch)
        meter.waits(1_000 * batch + 200)
        meter.goes_on(1_000 * batch + 450)
        meter.done(batch, 1_000 * batch, 1_000 * batch + 700)
    assert meter.shares(1_000_000) == (pytest.approx(0.45), pytest.approx(0.25))
    assert meter.shares(1_000_000 + WINDOW_MS // 2) == (pytest.approx(0.225), pytest.approx(0.125))
    assert max(len(meter._ran), len(meter._waited)) <= WINDOW_MS // 1_000 + 2


@given(
    st.lists(
        st.tuples(*[st.integers(0, 30_000)] * 4, st.booleans(), st.booleans()),
        max_size=12,
    ),
    st.integers(0, 100_000),
)
def test_shares_are_those_of_every_millisecond(
    batches: list[tuple[int, int, int, int, bool, bool]], rest: int
) -> None:
    """Against a count of them, whatever is open at the end and however late it is known."""
    meter = Meter(0)
    now, running, waiting = 0, set[int](), set[int]()
    known: list[tuple[int, int, int]] = []
    for number, (idle, before, wait, work, late, dies) in enumerate(batches):
        start = now + idle
        meter.began(number, start)
        for done in known:
            meter.done(*done)
        known = []
        meter.waits(start + before)
        meter.goes_on(start + before + wait)
        now = start + before + wait + work
        running |= set(range(start, now))
        waiting |= set(range(start + before, start + before + wait))
        if dies:
            meter.died(now)
        elif late:
            known.append((number, start, now))
        else:
            meter.done(number, start, now)
    for done in known:
        meter.done(*done)
    end = now + rest
    since = max(0, end - WINDOW_MS)
    busy, backpressured = meter.shares(end)
    whole = max(1, end - since)
    assert backpressured == pytest.approx(sum(t >= since for t in waiting) / whole)
    assert busy == pytest.approx(sum(t >= since for t in running - waiting) / whole)
