"""Files of a job's tables that no version names: which of them nobody will name any more.

Rules of this file: plain functions over facts, names in directories and names in a log; no clock.

Workers write files, then a commit names them. A kill in between, a task that was tried twice, a
conflict leave files that no commit will ever name, and they look just like those that are about to
be committed. How old they are says nothing: a micro-batch may take a day. But a file lies in a
directory that says to which checkpoint its rows belong, and facts say which checkpoints are over:

- ``_epoch=E`` of a channel of the current attempt: Spark has committed the batch in which the
  writing stage snapshotted E, or a later id (:attr:`Channel.committed`). It runs none of the
  batches up to there again, and later ones emit rows of later epochs only;
- ``set_id=S`` of a state history: a checkpoint C >= S of the current attempt has completed. A stage
  commits its sets one by one in the order of their ids, and C completes when its sets are found in
  the logs. Ids rise over all attempts, and whoever took an earlier attempt runs no more;
- sets of compactions (below 0) are committed by the thread that asks, so by nobody meanwhile.

This rests on the lock of the storage root: nobody else writes the job's tables. Nothing is asked of
files that a commit has removed: the log names them until they may go, and VACUUM takes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from absflow.protocol.retention.inventory import Channel, Inventory

__all__ = ["Directories", "epochs_over", "is_data_file", "sets_over", "sort_directories", "unnamed"]

_Over = Callable[[int], bool]  # of the number in a directory's name


@dataclass(frozen=True, slots=True)
class Directories:
    """Directories whose rows are of what is over.

    Attributes:
        over: all of them, by their number.
        drop: those in which no version names a file; all that lies there may go.
        look: those in which some files are named; the others may go.
    """

    over: tuple[str, ...]
    drop: tuple[str, ...]
    look: tuple[str, ...]


def epochs_over(channel: Channel) -> _Over:
    """Which epochs of a channel of the current attempt are over."""
    return lambda epoch: epoch <= channel.committed


def sets_over(there: Inventory) -> _Over:
    """Which sets of the state histories are over."""
    newest = max(
        (
            c.checkpoint_id
            for c in there.completed
            if c.attempt == there.attempt and c.checkpoint_id not in there.written
        ),
        default=0,
    )
    return lambda set_id: set_id <= newest


def sort_directories(
    names: Iterable[str], column: str, over: _Over, named: Collection[str]
) -> Directories:
    """What may be done about the directories of a table.

    Args:
        names: the names in the table's directory.
        column: its partition column.
        over: which of its values are over.
        named: directories in which a version names a file, which was asked after the names.

    >>> names = ["_delta_log", "e=1", "e=2", "e=3", "e=__HIVE_DEFAULT_PARTITION__"]
    >>> found = sort_directories(names, "e", lambda n: n <= 2, {"e=2", "e=3"})
    >>> found.drop, found.look
    (('e=1',), ('e=2',))
    """
    matches = (re.fullmatch(rf"{column}=(-?\d+)", name) for name in names)
    numbered = sorted((int(m[1]), m[0]) for m in matches if m and over(int(m[1])))
    found = tuple(name for _, name in numbered)
    return Directories(
        found,
        drop=tuple(name for name in found if name not in named),
        look=tuple(name for name in found if name in named),
    )


def unnamed(names: Iterable[str], named: Collection[str]) -> tuple[str, ...]:
    """The data files among the names in a directory that no version names."""
    return tuple(sorted(name for name in names if is_data_file(name) and name not in named))


def is_data_file(name: str) -> bool:
    """Whether a table of absflow's has files that are called so.

    >>> is_data_file("part-00000-b2-c000.snappy.parquet"), is_data_file("_delta_log")
    (True, False)
    """
    return name.startswith("part-") and name.endswith(".parquet")
