"""The checker of the kill loop finds each kind of anomaly, and says in words what it was."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pandas as pd
import pytest
from anomalies import Anomaly, Commit, Kind, Life, Named, check_facts, check_rows
from generator import SINK_MODES
from lives import Death, deal
from modes import CHECKPOINT_MODES
from points import (
    ALL_POINTS,
    OUTSIDE_POINTS,
    OVERTAKE_POINTS,
    PUBLICATION_POINTS,
    RESTORE_POINTS,
    owner_of,
)

NAMED = Named(id=["id", "way"], lane=["way", "k"], order="seq")
LIVES = (Life(1, 100, "killed after sink commit, time 2"), Life(2, 200, "by itself"))


def row(id_: int, k: str | None, seq: int, v: int | None = 0, way: str = "left") -> dict:
    return {"id": id_, "way": way, "k": k, "seq": seq, "v": v}


GOLDEN = [row(1, "x", 1), row(2, None, 1, None), row(3, "x", 2), row(4, "x", 3)]
GOLDEN += [row(1, "x", 1, way="right")]


def commit(version: int, rows: list[dict], at_ms: int = 150, **note: int) -> Commit:
    columns = list(GOLDEN[0])
    note = note or {"batch": version - 1, "epoch": 1, "attempt": 1}
    return Commit(version, at_ms, note, pd.DataFrame(rows, columns=columns))


def found(*commits: Commit) -> list[Anomaly]:
    return check_rows(pd.DataFrame(GOLDEN), commits, NAMED, LIVES)


def good() -> list[Commit]:
    return [
        commit(1, []),
        commit(2, [GOLDEN[0], GOLDEN[4], GOLDEN[1]]),
        commit(5, GOLDEN[2:4], at_ms=250, batch=3, epoch=2, attempt=1),
    ]


def only(anomalies: list[Anomaly]) -> tuple[Kind, str]:
    assert len(anomalies) == 1, anomalies
    return anomalies[0].kind, anomalies[0].text


def test_good_rows_pass():
    """Every row once and in order, nulls among them, spread over commits in any way: no anomaly."""
    assert found(*good()) == []


def test_a_lost_row_is_told_with_its_neighbours():
    """A row in no commit is lost; what came before and behind it in its lane says where."""
    version1, version2, _ = good()
    missing = commit(5, [GOLDEN[3]], at_ms=250, batch=3, epoch=2, attempt=1)
    assert only(found(version1, version2, missing)) == (
        Kind.LOST,
        "row id 3, way left, k x, seq 2 is in no commit; before it in its lane came id 1, way left "
        "by version 2 (batch 1, epoch 1, attempt 1) in life 1 (the first one; this one ended "
        "killed after sink commit, time 2), behind it came id 4, way left by version 5 (batch 3, "
        "epoch 2, attempt 1) in life 2 (after life 1 ended killed after sink commit, time 2; this "
        "one ended by itself)",
    )


def test_a_lost_row_with_a_null_key_and_nothing_around_it_is_told():
    """Null is a lane of its own."""
    kind, text = only(found(commit(2, [GOLDEN[n] for n in (0, 4, 2, 3)])))
    assert kind is Kind.LOST
    assert "id 2, way left, k null, seq 1 is in no commit" in text
    assert "lane nothing came, behind it nothing came" in text


def test_without_any_commit_everything_is_lost():
    """An empty sink lacks every row."""
    assert [a.kind for a in found()] == [Kind.LOST] * len(GOLDEN)


def test_a_duplicate_is_told_with_both_commits():
    """A row that came twice is one anomaly, with both commits and the kill between them."""
    again = commit(6, [GOLDEN[0]], at_ms=260, batch=4, epoch=2, attempt=1)
    kind, text = only(found(*good(), again))
    assert kind is Kind.DUPLICATED
    assert text.startswith("row id 1, way left, k x, seq 1 came by version 2 (batch 1, ")
    assert " and by version 6 (batch 4, epoch 2, attempt 1) in life 2 (after life 1" in text


@pytest.mark.parametrize(("seen", "due"), [(7, 0), (None, 0), (7, None)])
def test_a_changed_row_is_told_with_what_was_due(seen, due):
    """Another value, null among them, in a column that is not the id."""
    golden = pd.DataFrame([row(1, "x", 1, due), row(2, "x", 2, 5)])
    rows = commit(2, [row(1, "x", 1, seen), row(2, "x", 2, 5)])
    kind, text = only(check_rows(golden, [rows], NAMED))
    assert kind is Kind.CHANGED
    assert "id 1, way left, k x, seq 1 has v" in text
    assert "came by version 2" in text


def test_an_invented_row_is_told():
    """A row that no source ever had."""
    stranger = row(9, "x", 4)
    kind, text = only(found(*good(), commit(6, [stranger])))
    assert (kind, text[:33]) == (Kind.INVENTED, "row id 9, way left, k x, seq 4 wa")


def test_rows_out_of_order_over_commits_are_told():
    """A row behind a later one of its lane, in a later commit."""
    early = commit(2, [GOLDEN[n] for n in (1, 4, 2, 3)])
    kind, text = only(found(early, commit(3, [GOLDEN[0]])))
    assert kind is Kind.OUT_OF_ORDER
    assert text.startswith("row id 1, way left, k x, seq 1 came by version 3")
    assert "behind row id 4, way left, k x, seq 3 by version 2" in text


def test_rows_out_of_order_within_a_commit_are_told():
    """The order of the rows in a commit's files counts too."""
    kind, _ = only(found(commit(2, [GOLDEN[n] for n in (0, 1, 4, 3, 2)])))
    assert kind is Kind.OUT_OF_ORDER


def test_lanes_do_not_wait_for_each_other():
    """Other keys and other ways may come in any order."""
    assert found(commit(2, [GOLDEN[n] for n in (4, 1, 0, 2, 3)])) == []


def fact(id_: int, kind: str = "COMPLETED", reason: str | None = None) -> dict:
    return {"checkpoint_id": id_, "kind": kind, "reason": reason, "cause": "why"}


def test_good_checkpoints_pass():
    """Rising ids with one end each, some aborted by a restart."""
    assert check_facts([1, 3], [fact(1, "ABORTED", "DRIVER_RESTART"), fact(3)]) == []


@pytest.mark.parametrize(
    ("triggered", "facts", "said"),
    [
        ([1, 2], [fact(1)], "2 has no end"),
        ([1], [fact(1), fact(1, "ABORTED", "DRIVER_RESTART")], "1 has 2 ends"),
        ([1], [fact(1), fact(2)], "2 has an end, but was never triggered"),
        ([2, 1], [fact(1), fact(2)], "1 was triggered behind 2"),
        ([1], [fact(1, "ABORTED", "EXPIRED")], "1 was aborted (EXPIRED): why"),
        ([1], [fact(1), fact(1, "DELETED"), fact(1, "DELETED")], "1 was deleted 2 times"),
        (
            [1],
            [fact(1, "ABORTED", "DRIVER_RESTART"), fact(1, "DELETED")],
            "1 was deleted, but had not completed",
        ),
    ],
)
def test_bad_checkpoints_are_told(triggered, facts, said):
    """What is not one trigger with one end."""
    assert only(check_facts(triggered, facts)) == (Kind.CHECKPOINT, f"checkpoint {said}")


def test_every_point_is_a_function_that_there_is():
    """A point whose function was renamed would never be met."""
    for point in (point for point in ALL_POINTS.values() if point.function):
        owner, name = owner_of(point.function)
        assert callable(getattr(owner, name))


def dealt(seed: int, kills: int) -> list[tuple[str, str, list[Death]]]:
    """Rounds of a loop in which every third death came late, its point not met, once."""
    chance, met = random.Random(seed), Counter()
    late, rounds = set(), []
    turn = itertools.cycle(itertools.product(CHECKPOINT_MODES, SINK_MODES))
    while kills > 0:
        mode, sink = next(turn)
        hand = deal(chance, min(kills, 18), met, sink, mode)
        rounds.append((mode, sink, hand))
        kills -= len(hand)
        for number, death in enumerate(hand):
            if number % 3 == 0 and death.point not in late:
                late.add(death.point)
            elif death.point:
                met[death.point] += 1
    return rounds


def test_a_seed_gives_the_same_deaths():
    """A failed loop is repeated by its seed."""
    assert dealt(7, 100) == dealt(7, 100) != dealt(8, 100)


@pytest.mark.parametrize("seed", range(20))
def test_a_hundred_deaths_are_at_every_point_and_at_moments_though_some_come_late(seed):
    """A point that a round could not meet comes again; none is dealt where it can't be met."""
    rounds = dealt(seed, 100)
    deaths = [death for *_, hand in rounds for death in hand]
    assert len(deaths) == 100
    assert {death.point for death in deaths} == {*ALL_POINTS, None} - {*OUTSIDE_POINTS}
    for mode, sink, hand in rounds:
        points = {death.point for death in hand}
        assert sink == "on-checkpoint" or not points & PUBLICATION_POINTS.keys()
        assert mode.startswith("unaligned") or not points & OVERTAKE_POINTS.keys()
        assert all((death.start == "restore") == (death.point in RESTORE_POINTS) for death in hand)


def test_deaths_of_a_job_with_a_sink_outside_are_around_that():
    """At every point of a lane, and of the driver around it; or a worker dies before it does."""
    hand = deal(random.Random(3), 60, Counter(), "immediate", "aligned", outside=True)
    points = {death.point for death in hand}
    assert {*OUTSIDE_POINTS, *PUBLICATION_POINTS, None} <= points
    assert all(bool(death.wound) == (death.point is None) for death in hand)


def test_a_death_is_told_in_words():
    """As the loop prints it."""
    assert str(Death(None, 3, 250)) == "250 ms behind its point 3"
    assert str(Death("after sink commit", 2)) == "after sink commit, time 2"
