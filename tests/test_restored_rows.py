"""Rows in flight that an attempt began with stay until no batch can ask for them any more."""

from __future__ import annotations

import pyarrow as pa
import pytest

from absflow.columnar.spec import InputSpec, StageSpec
from absflow.spark.batch.restored_rows import RestoredRows
from absflow.storage.layout import Layout

LAYOUT = Layout("/job")
NOTHING = LAYOUT.nothing(2)
HERE = LAYOUT.in_flight("b", 2)


class Memory:
    """Directories, and the names in them."""

    def __init__(self, committed: int, there: bool) -> None:
        commits = f"{LAYOUT.spark_checkpoint('a', 2)}/commits"
        self.there = {commits: [str(n) for n in range(committed + 1)]}
        if there:
            self.there[HERE] = ["page"]

    def exists(self, path: str) -> bool:
        return path in self.there

    def names(self, path: str) -> list[str]:
        return self.there.get(path, [])

    def delete_folder(self, path: str) -> None:
        self.there.pop(path, None)

    def make_directory(self, path: str) -> None:
        self.there.setdefault(path, [])


def chain(source: str) -> list[StageSpec]:
    """Two stages of one query, the first of which reads a source and one channel."""
    none = pa.schema([])
    inputs = InputSpec("x", none, root=True, format=source), InputSpec("y", none, root=False)
    direct = InputSpec("a", none, root=False, direct=True)
    first = StageSpec("a", inputs, none, none, none, {}, 1)
    return [first, StageSpec("b", (direct,), none, none, none, {}, 1)]


# The first real batch is the second one where a Delta table is read.
@pytest.mark.parametrize(("source", "first"), [("kafka", 1), ("delta", 2)])
def test_restored_rows_leave_the_plan_once_they_are_in(source: str, first: int) -> None:
    """They are there until the batch behind theirs is committed, by a start or a batch later."""
    for committed in range(first + 4):
        files = Memory(committed, there=True)
        restored = RestoredRows(files, LAYOUT, chain(source), 2)
        needed = committed <= first
        assert restored.directories == {"a": NOTHING, "b": HERE if needed else NOTHING}
        assert files.exists(HERE) == needed
        for batch_id in range(committed + 1, first + 4):
            restored.before(batch_id)
            # What the query lists stays a directory; another start would want no more of it.
            assert files.exists(HERE) == needed
            assert bool(files.names(HERE)) == (needed and batch_id <= first + 1)


def test_an_attempt_without_rows_in_flight_looks_for_nothing_more() -> None:
    """One look at its start; the sources read an empty directory."""
    files = Memory(0, there=False)
    restored = RestoredRows(files, LAYOUT, chain("kafka"), 2)
    for batch_id in range(1, 5):
        restored.before(batch_id)
    assert restored.directories == {"a": NOTHING, "b": NOTHING}
    assert not files.exists(HERE)
