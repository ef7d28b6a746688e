"""Back to a checkpoint of a seeded world, then on to the end, with new settings and new faults."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from absflow.protocol.checkpoints import Kind
from absflow.simulation import restore
from absflow.simulation.expiry import expired
from absflow.simulation.world import go_back, run

SEEDS = 200
BLOCK = 50


def begins_with(result, number):
    """What is special about a restore from this checkpoint."""
    tables, manifest = result.tables, result.tables.manifests[number]
    flying = tables.in_flight(manifest)
    late = [row for rows in flying.values() for row in rows]
    yield from (["rows in flight"] if late else [])
    yield from (["rows in flight in two channels"] if sum(map(bool, flying.values())) > 1 else [])
    yield from (["a savepoint"] if manifest.kind is Kind.SAVEPOINT else [])
    ended = [s for s in manifest.stages if s.report.checkpoint_id != number]
    yield from (["a stage that had ended"] if ended else [])
    sets = [tables.histories[s.report.stage].sets[n] for s in manifest.stages for n in s.lineage]
    yield from (["a tombstone"] if any(None in changes.values() for changes in sets) else [])
    gone = any(
        expired(key, value, part.report.expired_upto)
        for part in manifest.stages
        for n in part.lineage
        for key, value in tables.histories[part.report.stage].sets[n].items()
    )
    yield from (["state that had expired"] if gone else [])
    yield from (["an older branch"] if number < max(tables.manifests) else [])


def choose(result, seed):
    """A checkpoint to go back to, half of the times one with rows in flight; None if none is."""
    dice, manifests = random.Random(seed), result.tables.manifests
    flying = [n for n, m in manifests.items() if any(result.tables.in_flight(m).values())]
    numbers = sorted(flying if flying and dice.random() < 0.5 else manifests)
    return dice.choice(numbers) if numbers else None


def played(seed):
    """A world, and two restores one after the other: what was wrong, and what they began with."""
    marks = Counter()
    result = run(seed)
    for again in range(2):
        number = choose(result, seed + again)
        if number is None:
            break
        marks.update(begins_with(result, number))
        result = go_back(1_000_000 * (again + 1) + seed, result, number)
        if result.violations or not result.finished:
            return f"restored from {number}: {result.explain()}", marks
        marks["a restore of a restore"] += again
        marks["another ttl"] += result.tables.clocks.full_first
    return "", marks


@pytest.fixture(scope="module")
def worlds():
    """Every seed, played once."""
    return [played(seed) for seed in range(SEEDS)]


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_nothing_is_lost_or_repeated(first, worlds):
    """Published rows and those of the new attempt together are each row once; every cut is one."""
    for wrong, _ in worlds[first : first + BLOCK]:
        assert not wrong, wrong


@pytest.mark.parametrize(
    "case",
    [
        "rows in flight",
        "rows in flight in two channels",
        "a savepoint",
        "a stage that had ended",
        "a tombstone",
        "an older branch",
        "a restore of a restore",
        "state that had expired",
        "another ttl",
    ],
)
def test_hard_cases_were_reached(case, worlds):
    """Over all seeds."""
    assert sum(marks[case] for _, marks in worlds) >= 3


def without(real):
    """Rows in flight are left out."""
    return lambda *args: replace(real(*args), held=())


def twice(real):
    """They come once as channel state, and once because they are read again."""

    def memory(*args):
        made = real(*args)
        return replace(made, held=(*made.held, *made.held))

    return memory


def behind(real):
    """They are taken for rows behind the barrier."""

    def memory(*args):
        made = real(*args)
        late = (replace(held, epoch=held.epoch + 1_000_000) for held in made.held)
        return replace(made, held=tuple(late))

    return memory


@pytest.mark.parametrize("mistake", [without, twice, behind])
def test_a_mistake_is_caught(mistake, monkeypatch):
    """The checkers see it within a few seeds."""
    monkeypatch.setattr(restore, "_memory", mistake(restore._memory))
    assert any(played(seed)[0] for seed in range(60))
