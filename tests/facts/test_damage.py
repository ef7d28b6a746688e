"""What is said of a damaged file, and which checkpoints can do without it."""

from types import SimpleNamespace

import pytest

from absflow.errors import StorageError
from absflow.facts.damage import (
    ChannelFile,
    SetFile,
    advice,
    damage_error,
    file_in,
    part_of,
    spared,
)
from absflow.protocol.lineage import Compacted
from absflow.protocol.retention.inventory import Completed, InFlight, Inventory
from absflow.storage.layout import Layout

SAID = """An error occurred while calling o1.showString.
: org.apache.spark.SparkException: [FAILED_READ_FILE.{}] Encountered error while reading file {}. {}
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.x(QueryExecutionErrors.scala:940)"""


@pytest.mark.parametrize("root", ["/a b/job", "file:/a b/job", "file:///a b/job/"])
def test_the_file_in_an_error_of_spark(root):
    """Whether it is gone or damaged; files of others, and other errors, are not for us."""
    path = "file:///a%20b/job/state/left/set_id=7/part-0.c000.snappy.parquet"
    inside = "state/left/set_id=7/part-0.c000.snappy.parquet"
    damaged = SAID.format("NO_HINT", path, " SQLSTATE: KD001")
    assert file_in(damaged, root) == (inside, "its bytes are not what was written")
    gone = SAID.format("FILE_NOT_EXIST", path, "File does not exist.")
    assert file_in(gone, root) == (inside, "it is gone")
    assert file_in(damaged, "/a b/job2") is None
    assert file_in("TASK_WRITE_FAILED", root) is None


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("state/left.2/set_id=-7/p.parquet", SetFile("left.2", -7)),
        ("channels/left/attempt=3/_epoch=12/p.parquet", ChannelFile("left", 3, 12)),
        ("checkpoints/p.parquet", None),
        ("state/left/_delta_log/p.parquet", None),
    ],
)
def test_what_a_file_belongs_to(path, part):
    """A set, an epoch of a channel, or nothing that a checkpoint names."""
    assert part_of(f"/job/{path}", "file:/job") == part


def found():
    """Checkpoints 1 to 5, of which 2 is deleted; 1 and 3 are compacted; 5 has another table."""
    lineages = {1: (1,), 2: (1, 2), 3: (1, 3), 4: (1, 3, 4), 5: (5,)}
    flying = {4: (InFlight("left", 1, 3),)}
    inventory = Inventory(
        attempts={1: 0, 2: 4},
        ready=True,
        completed=tuple(
            Completed(n, 1 + n // 5, {"left": sets}, flying.get(n, ()))
            for n, sets in lineages.items()
        ),
        deleted=frozenset({2}),
        compacted=(Compacted(3, "left", -3, (1, 3)),),
    )
    tables = {"left": frozenset({-3, 1, 2, 3, 4}), "left.2": frozenset({5})}
    return SimpleNamespace(inventory=inventory, sets={"left": tables})


@pytest.mark.parametrize(
    ("damaged", "harmed", "whole"),
    [
        (SetFile("left", 1), [1], [3, 4, 5]),
        (SetFile("left", -3), [3, 4], [1, 5]),
        (SetFile("left", 4), [4], [1, 3, 5]),
        (SetFile("left.2", 5), [5], [1, 3, 4]),
        (SetFile("left.2", 4), [], [1, 3, 4, 5]),
        (SetFile("left", 2), [], [1, 3, 4, 5]),
        (ChannelFile("left", 1, 3), [4], [1, 3, 5]),
        (ChannelFile("left", 1, 5), [], [1, 3, 4, 5]),
        (ChannelFile("left", 2, 3), [], [1, 3, 4, 5]),
    ],
)
def test_who_can_do_without_it(damaged, harmed, whole):
    """A set by the lineages that are read now, a channel's file by the rows in flight."""
    assert spared(found(), damaged) == (harmed, whole)


def test_the_advice_names_the_newest_whole_checkpoint():
    """What is lost, and a command that works; without any, where else to look."""
    said = advice([4, 3], [1, 2])
    assert "Without it checkpoints 4, 3 cannot be read or restored" in said
    assert "absflow restore --from 2 " in said
    assert "checkpoints 9, 8, 7, 6, 5 and 2 older can" in advice([1], range(3, 10))
    assert "No checkpoint needs it; checkpoint 1 can" in advice([], [1])
    assert "there is no other checkpoint" in advice([3], [])


class Nothing:
    """A storage root whose facts cannot be read."""

    def table(self, path, columns, matches=()):
        raise StorageError("checkpoints are gone, too")


def test_what_more_is_damaged_is_said():
    """If nobody can say what needs a file, and of a file that is no checkpoint's."""
    layout = Layout("/job")
    said = str(damage_error(Nothing(), layout, "state/left/set_id=1/p.parquet", "it is gone"))
    assert "set 1 of state history 'left'" in said
    assert "what needs it is not known: checkpoints are gone, too" in said
    said = str(damage_error(Nothing(), layout, "attempts/p.parquet", "it is gone"))
    assert said.endswith("bring it back from a copy of the storage root")
