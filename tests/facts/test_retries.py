"""A fact without which the job cannot go on is written again while the storage fails, and once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from model_log import ModelLog
from py4j.protocol import Py4JError

from absflow.errors import FencedError, StorageError
from absflow.facts import driver_table
from absflow.facts.driver_table import DriverTable
from absflow.facts.fence import Fence
from absflow.facts.lock import RootLock
from absflow.protocol.restarts import RestartPolicy

TWICE = RestartPolicy(attempts=2, initial_ms=100, max_ms=1000, multiplier=3, reset_after_ms=10**9)
SCHEMA = pa.schema([("kind", pa.string())])


class Storage(ModelLog):
    """A log whose calls fail as ``faults`` says: by name, how many times before they work."""

    def __init__(self, **faults: int) -> None:
        super().__init__(lambda: None)
        self.faults = faults

    def fails(self, call: str) -> bool:
        self.faults[call] = self.faults.get(call, 0) - 1
        return self.faults[call] >= 0

    def read(self, path: str) -> str | None:
        if self.log and self.fails("read"):
            raise StorageError("cannot be read")
        return super().read(path)

    def append_once(self, *args: Any, **named: Any) -> None:
        if self.fails("before"):
            raise Py4JError("no space left")
        super().append_once(*args, **named)
        if self.fails("after"):
            raise Py4JError("no answer")


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[DriverTable, list[float]]]:
    """A driver's table in a storage, and how long it has waited, in seconds."""

    def make(storage: Storage, incarnation: int = 1) -> tuple[DriverTable, list[float]]:
        waits: list[float] = []
        monkeypatch.setattr(driver_table.tables, "create", lambda *args, **named: None)
        monkeypatch.setattr(driver_table.transactions, "append_once", storage.append_once)
        monkeypatch.setattr(driver_table.time, "sleep", waits.append)
        fence = Fence(lambda path: None, lambda path: [], "attempts", 1, RootLock("", None))
        files: Any = storage
        files.names = lambda path: []
        spark: Any = None
        driver = f"driver {incarnation}"
        made = DriverTable(
            spark, files, "facts", SCHEMA, "job/driver", incarnation, driver, fence, TWICE
        )
        return made, waits

    return make


# Of what may fail around a commit, how often.
@pytest.mark.parametrize(
    ("before", "after", "read"),
    [each for each in itertools.product(range(3), repeat=3) if 0 < sum(each) <= 2],
)
def test_a_fact_is_there_once_whatever_failed(table, before: int, after: int, read: int) -> None:
    """Nothing before the commit, nothing of its answer, nothing in the look at the log."""
    storage = Storage(before=before, after=after, read=read)
    facts, waits = table(storage)
    facts.insist({"kind": "ABORTED"})
    facts.insist({"kind": "END"})
    assert [commit["kinds"] for commit in storage.log] == [["ABORTED"], ["END"]]
    assert waits == [0.1, 0.3][: len(waits)]


def test_equal_facts_are_two(table) -> None:
    """Only a commit that has failed is the same as the next."""
    storage = Storage(after=1)
    facts, _ = table(storage)
    facts.insist({"kind": "END"})
    facts.insist({"kind": "END"})
    assert [commit["kinds"] for commit in storage.log] == [["END"], ["END"]]


def test_it_is_given_up_by_the_restart_strategy(table) -> None:
    """And what failed is said."""
    storage = Storage(before=99)
    facts, waits = table(storage)
    with pytest.raises(StorageError, match="no space left"):
        facts.insist({"kind": "END"})
    assert waits == [0.1, 0.3]
    assert storage.log == []


def test_what_is_appended_only_is_not_tried_again(table) -> None:
    """A trigger that cannot be written fails its checkpoint, and the next one may be written."""
    storage = Storage(before=1)
    facts, waits = table(storage)
    with pytest.raises(StorageError):
        facts.append({"kind": "CHECKPOINT"})
    facts.append({"kind": "SAVEPOINT"})
    assert [commit["kinds"] for commit in storage.log] == [["SAVEPOINT"]]
    assert waits == []


def test_a_newer_driver_ends_it_at_once(table) -> None:
    """The storage does not fail; it refuses."""
    storage = Storage()
    newer, _ = table(storage, incarnation=2)
    newer.claim()
    older, waits = table(storage, incarnation=1)
    with pytest.raises(FencedError):
        older.insist({"kind": "END"})
    assert waits == []
