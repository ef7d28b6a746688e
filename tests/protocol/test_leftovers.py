"""A5: what is swept is never a file that a commit names, whatever dies and whatever is replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from absflow.protocol.retention.inventory import Channel, Completed, Inventory
from absflow.protocol.retention.leftovers import (
    epochs_over,
    is_data_file,
    sets_over,
    sort_directories,
    unnamed,
)

_Rule = Callable[[Inventory], tuple[Callable[[int], bool], Callable[[int], bool]]]


@dataclass(frozen=True)
class File:
    """A file of a table of one stage."""

    table: str  # "channel" or "history"
    number: int  # its epoch, or its set
    serial: int


@dataclass(frozen=True)
class Life:
    """A stage, its channel and its history; every batch snapshots the next checkpoint.

    Attributes:
        serial: how many files were ever written.
        there: all files that lie there.
        named: those that a version names.
        batch: the batch that runs or is to run; checkpoint ``batch + 1`` is snapshotted in it.
        written: what its last try has written; the next commit names it.
        rows: its rows are committed.
        queue: sets whose commit is still to come: their id and files.
        found: sets that were found in the log, or needed none.
        dead: ids that were aborted.
        completed: ids that have completed.
        tries: how many times the batch may be tried still.
        kills: how many times the driver may be killed still.
        batches: how many there are.
        lost: a commit named a file that was swept.
    """

    serial: int = 0
    there: frozenset[File] = frozenset()
    named: frozenset[File] = frozenset()
    batch: int = 0
    written: frozenset[File] = frozenset()
    rows: bool = False
    queue: tuple[tuple[int, frozenset[File]], ...] = ()
    found: frozenset[int] = frozenset()
    dead: frozenset[int] = frozenset()
    completed: frozenset[int] = frozenset()
    tries: int = 1
    kills: int = 1
    batches: int = 2
    lost: bool = False


def inventory(life: Life) -> Inventory:
    """The facts."""
    completed = tuple(Completed(n, 1, {}) for n in sorted(life.completed))
    # Checkpoint n was snapshotted in batch n - 1; Spark has committed those before ``batch``.
    committed = max((n for n in life.completed if n - 1 < life.batch), default=0)
    channel = Channel("stage", 1, frozenset(), committed)
    return Inventory({1: 0}, completed=completed, channels=(channel,))


def the_rule(there: Inventory) -> tuple[Callable[[int], bool], Callable[[int], bool]]:
    """The one that is used."""
    return epochs_over(there.channels[0]), sets_over(there)


def sweep(life: Life, rule: _Rule) -> Life:
    """Take all that the rule allows."""
    epochs, sets = rule(inventory(life))
    taken = set()
    for table, column, over in (("channel", "_epoch", epochs), ("history", "set_id", sets)):
        mine = [f for f in life.there if f.table == table]
        named = {f"{column}={f.number}" for f in mine if f in life.named}
        found = sort_directories({f"{column}={f.number}" for f in mine}, column, over, named)
        for f in mine:
            directory, name = f"{column}={f.number}", f"part-{f.serial}.parquet"
            of_log = {f"part-{g.serial}.parquet" for g in life.named if g.table == table}
            if directory in found.drop or (directory in found.look and unnamed([name], of_log)):
                taken.add(f)
    return replace(life, there=life.there - taken)


def commit(life: Life, files: frozenset[File]) -> Life:
    """A version names files, which must be there."""
    lost = life.lost or not files <= life.there
    return replace(life, named=life.named | files, lost=lost)


def steps(life: Life) -> Iterator[Life]:
    """What may happen next, but for a sweep."""
    n = life.batch + 1
    if life.batch < life.batches and life.tries:
        # Rows before the barrier, rows behind it, and the snapshot; a kill of the task leaves
        # them, and so does one that was tried twice.
        numbers = (("channel", n), ("channel", n + 1), ("history", n))
        new = frozenset(File(t, k, life.serial + i) for i, (t, k) in enumerate(numbers))
        yield replace(
            life,
            serial=life.serial + 3,
            there=life.there | new,
            written=new,
            tries=life.tries - 1,
        )
    if life.written and not life.rows:
        rows = frozenset(f for f in life.written if f.table == "channel")
        # A replay whose rows are there already commits none.
        again = any(f in life.named and f.table == "channel" and f.number == n for f in life.there)
        yield replace(life if again else commit(life, rows), rows=True)
    if life.rows and all(k != n for k, _ in life.queue) and n not in life.found | life.dead:
        handed = (n, frozenset(f for f in life.written if f.table == "history"))
        yield replace(life, queue=(*life.queue, handed))
    handed_over = n in life.found | life.dead or any(k == n for k, _ in life.queue)
    if life.rows and handed_over:  # Spark commits the batch
        yield replace(life, batch=n, written=frozenset(), rows=False, tries=2)
    if life.queue:
        (k, files), *rest = life.queue
        done = replace(life, queue=tuple(rest), found=life.found | {k})
        yield done if max(life.found, default=0) >= k else commit(done, files)
    for k in life.found - life.dead - life.completed:
        if k > max(life.completed, default=0):
            yield replace(
                life, completed=life.completed | {k}, dead=life.dead | set(range(1, k)) - life.found
            )
    pending = {k for k in range(1, n + 1)} - life.dead - life.completed
    for k in pending:
        yield replace(life, dead=life.dead | {k})
    if life.kills:
        yield replace(
            life,
            written=frozenset(),
            rows=False,
            queue=(),
            dead=life.dead | pending,
            tries=2,
            kills=life.kills - 1,
        )


def explore(rule: _Rule, batches: int) -> tuple[int, bool]:
    """All lives with a sweep after any step; how many states, and whether one loses a file."""
    seen: set[Life] = set()
    todo = [Life(batches=batches)]
    while todo:
        life = todo.pop()
        if life in seen:
            continue
        seen.add(life)
        if life.lost:
            return len(seen), True
        for after in steps(life):
            todo += [after, sweep(after, rule)]
    return len(seen), False


@pytest.mark.parametrize("batches", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_a5_no_schedule_has_a_file_swept_that_a_commit_names(batches: int) -> None:
    """Of kills, retries, aborts and sweeps, in every order."""
    states, lost = explore(the_rule, batches)
    assert not lost
    assert states > 1000


@pytest.mark.parametrize("wrong", ["epochs", "sets"])
def test_a5_a_rule_that_is_one_checkpoint_too_quick_loses_files(wrong: str) -> None:
    """So the search above would find it."""

    def rule(there: Inventory) -> tuple[Callable[[int], bool], Callable[[int], bool]]:
        epochs, sets = the_rule(there)
        return (
            (lambda e: epochs(e - 1)) if wrong == "epochs" else epochs,
            (lambda s: sets(s - 1)) if wrong == "sets" else sets,
        )

    assert explore(rule, batches=2)[1]


def test_a5_what_is_left_over_goes_once_the_next_checkpoint_has_completed() -> None:
    """Of three tries of a batch all files go but those that are named."""
    life = replace(Life(), tries=9)
    for _ in range(3):
        life = next(iter(steps(life)))
    left = life.there - life.written
    life = commit(life, life.written)
    life = replace(life, batch=1, written=frozenset(), found=frozenset({1}), tries=2)
    assert sweep(life, the_rule).there == life.there
    life = replace(life, completed=frozenset({1}))
    swept = sweep(life, the_rule)
    assert swept.there == life.named | {f for f in left if f.number == 2}


def test_a5_sets_of_compactions_are_over_for_whoever_makes_them() -> None:
    """And of checkpoints those up to the newest of this attempt that is no written savepoint."""
    there = Inventory(
        {1: 0, 2: 4},
        completed=tuple(Completed(n, k, {}) for n, k in ((4, 1), (7, 2), (9, 2))),
        written=frozenset({9}),
    )
    over = sets_over(there)
    assert [n for n in (-4, 1, 7, 8, 9) if over(n)] == [-4, 1, 7]
    assert not sets_over(replace(there, attempts={1: 0, 2: 4, 3: 7}))(1)


def test_a5_only_data_files_are_taken() -> None:
    """Not the log, nor what is hidden, nor what somebody else has put there."""
    names = ["_delta_log", ".part-0.parquet.crc", "part-0.parquet", "part-1.parquet", "notes.txt"]
    assert unnamed(names, {"part-1.parquet"}) == ("part-0.parquet",)
    assert not is_data_file("deletion_vector_1.bin")
