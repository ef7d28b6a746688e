"""How far a sink's table must go back is found in its log alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from absflow.sink_cut import SinkCut, SinkRestore, put_back
from absflow.storage.delta.log import Commit

AT = datetime(2026, 1, 2, 9, 0, tzinfo=timezone.utc)


@dataclass
class Table:
    """A table's log, and beside it what each version of the table holds.

    Attributes:
        log: its commits.
        rows: for each version the commits whose rows it holds.
    """

    log: list[Commit] = field(default_factory=list)
    rows: list[frozenset[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """The table is created by the job's first start."""
        self._commit(frozenset(), "CREATE TABLE", changes=False)

    def _commit(self, rows: frozenset[int], operation: str, changes: bool = True, **n: Any) -> None:
        version = len(self.log)
        self.log.append(Commit(version, changes_data=changes, operation=operation, at=AT, note=n))
        self.rows.append(rows)

    def write(self, job: str, attempt: int, epoch: int) -> None:
        """A job appends the rows of an epoch."""
        rows = self.rows[-1] | {len(self.log)}
        self._commit(rows, "WRITE", job=job, attempt=attempt, epoch=epoch)

    def append(self) -> None:
        """Someone appends rows."""
        self._commit(self.rows[-1] | {len(self.log)}, "WRITE")

    def optimize(self) -> None:
        """Someone compacts."""
        self._commit(self.rows[-1], "OPTIMIZE", changes=False)

    def restore(self, planned: SinkRestore, attempt: int) -> None:
        """The job puts it back as planned."""
        if planned.then is not None:
            self._commit(self.rows[planned.then], "RESTORE", job="j", attempt=attempt)

    def plan(self, cut: SinkCut, kept: int = 0) -> SinkRestore:
        """What puts it back, if the log begins with version ``kept``."""
        return put_back("t", self.log[kept:][::-1], cut)


@dataclass
class Job:
    """A job that writes one table.

    Attributes:
        table: the table.
        attempt: its attempt.
        epoch: what it writes now.
        begun: the version at which each attempt began.
        cuts: by checkpoint: its attempt, and the table's version at the cut.
        attempts: how many there have been, those that were never ready included.
        ready: the newest of them is; if not, nothing runs before another restore.
    """

    table: Table = field(default_factory=Table)
    attempt: int = 1
    epoch: int = 1
    attempts: int = 1
    begun: dict[int, int] = field(default_factory=lambda: {1: 0})
    cuts: dict[int, tuple[int, int]] = field(default_factory=dict)
    ready: bool = True

    def checkpoint(self) -> None:
        """All rows up to now are before the cut; its id is greater than any before."""
        number = max(self.epoch, max(self.cuts, default=0) + 1)
        self.cuts[number] = (self.attempt, len(self.table.log) - 1)
        self.epoch = number + 1

    def cut(self, number: int) -> SinkCut:
        """Where a checkpoint wants the table to be."""
        attempt, _ = self.cuts[number]
        return SinkCut("j", attempt, number, self.begun[attempt])

    def restore(self, number: int, ready: bool) -> SinkRestore:
        """Put the table back, if it can be; the driver may die before it is ready."""
        planned = self.table.plan(self.cut(number))
        if not planned.problems:
            self.attempts += 1
            self.ready = ready
            self.table.restore(planned, self.attempts)
            if ready:
                self.attempt, self.epoch = self.attempts, number + 1
                self.begun[self.attempt] = len(self.table.log) - 1
        return planned


def is_own(commit: Commit) -> bool:
    """Whether it is the job's, and changed rows."""
    return commit.changes_data and commit.note.get("job") == "j"


def foreign(table: Table, rows: frozenset[int]) -> frozenset[int]:
    """Those that are not the job's."""
    return frozenset(n for n in rows if table.log[n].note.get("job") != "j")


OF_OTHERS = ["append", "write of another job"]
THINGS = ["write", "write", "checkpoint", "optimize", "restore", *OF_OTHERS]


@settings(max_examples=400)
@given(st.data())
def test_a_table_is_put_back_to_the_cut_or_left_alone(data: st.DataObject) -> None:
    """Whatever happens to it: its own rows are those of the cut, and nobody else's are touched."""
    job = Job()
    table = job.table
    often = data.draw(st.sampled_from([THINGS, [t for t in THINGS if t not in OF_OTHERS]]))
    for thing in data.draw(st.lists(st.sampled_from(often), max_size=25)):
        if thing in {"write", "checkpoint"} and not job.ready:
            continue
        if thing == "write":
            table.write("j", job.attempt, job.epoch)
        elif thing == "checkpoint":
            job.checkpoint()
        elif thing == "append":
            table.append()
        elif thing == "write of another job":
            table.write("other", job.attempt, job.epoch)
        elif thing == "optimize":
            table.optimize()
        elif job.cuts:
            number = data.draw(st.sampled_from(sorted(job.cuts)))
            before, log = table.rows[-1], list(table.log)
            wanted = job.cuts[number][1]
            undone = [c.version for c in log[wanted + 1 :] if is_own(c)]
            planned = job.restore(number, ready=data.draw(st.booleans()))
            newer = [c for c in log[min(undone, default=len(log)) :] if not is_own(c)]
            assert bool(planned.problems) == any(c.changes_data for c in newer)
            assert len(planned.undone) == len(undone)
            if not planned.problems:
                after, at_cut = table.rows[-1], table.rows[wanted]
                assert after - foreign(table, after) == at_cut - foreign(table, at_cut)
                assert foreign(table, after) == foreign(table, before)
                assert (planned.then is None) == (not undone)


def cut(checkpoint_id: int, attempt: int = 1, begun: int | None = 0) -> SinkCut:
    """A cut of job j."""
    return SinkCut("j", attempt, checkpoint_id, begun)


def test_what_is_undone_is_told_oldest_first() -> None:
    """Version, operation and time; a compaction is not named, and one before them stays."""
    table = Table()
    for epoch in (1, 2, 2, 3):
        table.write("j", 1, epoch)
        table.optimize()
    assert table.plan(cut(1)) == SinkRestore(
        "t",
        now=8,
        then=2,
        undone=(
            "version 3 (WRITE, 2026-01-02 09:00:00 UTC)",
            "version 5 (WRITE, 2026-01-02 09:00:00 UTC)",
            "version 7 (WRITE, 2026-01-02 09:00:00 UTC)",
        ),
    )
    assert table.plan(cut(3)) == SinkRestore("t", now=8)


def test_an_attempt_that_wrote_nothing_before_the_cut_goes_back_to_its_begin() -> None:
    """Epochs of other attempts say nothing about it."""
    table = Table()
    table.write("j", 1, 1)
    table.write("j", 2, 2)
    table.write("j", 2, 9)
    assert table.plan(cut(8, attempt=2, begun=1)).then == 2
    assert table.plan(cut(1, attempt=2, begun=1)).then == 1
    assert table.plan(cut(5)).then == 1


def test_a_foreign_commit_that_would_be_undone_is_a_problem_and_named() -> None:
    """Also one of another job; not one that came before the first of the job's to undo."""
    table = Table()
    table.write("j", 1, 1)
    table.append()
    table.write("j", 1, 2)
    table.append()
    table.write("other", 1, 1)
    table.write("j", 1, 3)
    commits = [f"version {n} (WRITE, 2026-01-02 09:00:00 UTC)" for n in range(7)]
    planned = table.plan(cut(1))
    (problem,) = planned.problems
    assert (
        f"since version 2, and to put it back would undo them: {commits[4]}; {commits[5]}"
        in problem
    )
    assert (planned.then, planned.undone) == (2, (commits[3], commits[6]))
    assert planned.note == f"not this job's, and stays: {commits[2]}"
    note = f"not this job's, and stays: {commits[4]}; {commits[5]}"
    assert table.plan(cut(2)) == SinkRestore("t", 6, 5, (commits[6],), note=note)
    assert table.plan(cut(3)) == SinkRestore("t", 6)


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
def test_a_log_that_was_cleaned_up_is_enough_if_it_holds_the_cut(kept: int) -> None:
    """If not, the first version that is gone is named, and what would have kept it."""
    table = Table()
    for epoch in (1, 2, 3, 4):
        table.write("j", 1, epoch)
    planned = table.plan(cut(2), kept)
    if kept <= 2:
        assert (planned.then, planned.problems) == (2, ())
        return
    (problem,) = planned.problems
    assert f"version {kept - 1} is gone" in problem
    assert "delta.logRetentionDuration" in problem
    assert planned.then is None


def test_a_table_that_the_attempt_never_wrote_was_replaced() -> None:
    """Its log is whole and has neither the attempt's begin nor a commit of it."""
    table = Table()
    table.append()
    (problem,) = table.plan(cut(3, begun=7)).problems
    assert "attempt 1 of job 'j'" in problem
    assert "was replaced" in problem


def test_no_more_of_the_log_is_read_than_is_needed() -> None:
    """A log is as long as its table is old."""
    table = Table()
    for epoch in (1, 2, 3):
        table.write("j", 1, epoch)
    read = iter(table.log[::-1])
    put_back("t", read, cut(2))
    assert next(read).version == 1
