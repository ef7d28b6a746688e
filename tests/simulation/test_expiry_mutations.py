"""The checkers of state that expires can fail: each deliberate mistake is caught in a few seeds."""

from dataclasses import replace

import pytest
from mutating import assert_caught

from absflow.simulation import expiry, restore, stage, world
from absflow.simulation.batch import Entry
from absflow.simulation.world import go_back, run

SEEDS = range(480)


def not_refreshed(value, row, ttl, at):
    """A row that changes a key's state does not touch it."""
    made = expiry.step(value, row, ttl, at)
    return made if value is None or made is None else (made[0], value[1])


def refreshed_by_all(value, row, ttl, at):
    """A row that only reads touches a key, whatever is declared."""
    return expiry.step(value, row, replace(ttl, on_read=True), at)


def refreshed_by_writes(value, row, ttl, at):
    """A row that only reads touches nothing, whatever is declared."""
    return expiry.step(value, row, replace(ttl, on_read=False), at)


def touched_in_any_case(value, row, ttl, at):
    """The last row says when a key was touched, though it is older than those before."""
    made = expiry.step(value, row, ttl, at)
    return None if made is None else (made[0], at if made != value else made[1])


def a_little_early(name, value, upto):
    """State expires before its time."""
    return expiry.expired(name, value, None if upto is None else upto + 2)


def all_of_it(values, upto, number):
    """A restore takes whatever the sets have."""
    return {key: Entry(value, number) for key, value in values.items()}


def goes_on_from_old_sets(*args):
    """With another ttl the first snapshot is an increment like any other."""
    made = expiry.draw_clocks(*args)
    return replace(made, origin_ttls=made.ttls)


def a_snapshot_by_the_next_time(real):
    """A snapshot says that what expires in the next moment had expired."""

    def snapshot(work, *more):
        real(work, *more)
        last = work.snapshots.pop()
        upto = None if last.expired_upto is None else last.expired_upto + 1
        work.snapshots.append(replace(last, expired_upto=upto))

    return snapshot


MUTATIONS = {
    "a clock that goes back is believed": (
        [(stage, "batch_time", lambda memory, batch: batch.wall_ms)],
        "expiry: stage",
    ),
    "rows find what has expired": (
        [(stage, "expired", lambda *_: False)],
        "expiry: brief",
    ),
    "a write does not refresh": ([(stage, "step", not_refreshed)], "is gone too early"),
    "a read refreshes though it should not": ([(stage, "step", refreshed_by_all)], "due is"),
    "a read does not refresh": ([(stage, "step", refreshed_by_writes)], "is gone too early"),
    "an older row makes a key older": ([(stage, "step", touched_in_any_case)], "due is"),
    "state expires early": ([(stage, "expired", a_little_early)], "is gone too early"),
    "a manifest is ahead of its watermark": (
        [(stage, "_snapshot", a_snapshot_by_the_next_time(stage._snapshot))],
        "expiry: stage",
    ),
}
RESTORES = {
    "a restore takes what had expired": (
        [(restore, "_living", all_of_it)],
        "had expired or was never there",
    ),
    "another ttl goes on from sets of the old one": (
        [(world, "draw_clocks", goes_on_from_old_sets)],
        "had expired or was never there",
    ),
    "batch time begins anew": (
        [(restore, "_time_at", lambda *_: 0)],
        "had expired or was never there",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_is_caught(name, monkeypatch):
    """With this mistake some world breaks a promise, and the checkers say which."""
    assert_caught(monkeypatch, MUTATIONS[name], SEEDS, lambda n: run(n).violations, name)


@pytest.mark.soak
@pytest.mark.parametrize("name", RESTORES)
def test_a_mistake_of_a_restore_is_caught(name, monkeypatch):
    """With this mistake some attempt that is restored from a sound world breaks a promise."""

    def play(seed):
        result = run(seed)
        assert not result.violations
        for number in result.tables.manifests:
            yield from go_back(seed, result, number).violations

    assert_caught(monkeypatch, RESTORES[name], SEEDS, play, name)
