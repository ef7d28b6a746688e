"""Whether the files of the state and of rows in channels are still there; none is opened.

The newest version of a table names its files, in its log. One that is gone was deleted by hand, or
by a VACUUM that keeps nothing; a set without a file was deleted by a command. A look
costs a read of each table's log, and a listing for each set of a lineage and each epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from absflow.errors import StorageError
from absflow.facts.damage import ChannelFile, SetFile, needed_by, spared
from absflow.facts.find import FoundCheckpoint
from absflow.facts.spark_reader import SparkStorageReader
from absflow.protocol.checkpoints import ChannelState
from absflow.protocol.recovery.matching import StageFit
from absflow.storage.delta import tables
from absflow.storage.layout import Layout
from absflow.storage.root import StorageRoot

__all__ = ["missing_files"]


@dataclass(frozen=True, slots=True)
class _Gone:
    """What is gone: in words, and which set or channel it is of."""

    words: str
    part: SetFile | ChannelFile


def missing_files(
    root: StorageRoot,
    found: FoundCheckpoint,
    fits: Sequence[StageFit],
    owed: Mapping[str, tuple[str, int]],
) -> list[str]:
    """What is gone, in words, each with a checkpoint that does without it.

    Args:
        root: the job's own storage root.
        found: the checkpoint.
        fits: how each stage gets its state from it.
        owed: of each on-checkpoint sink that has yet to publish rows before the cut, its stage and
            the newest checkpoint that it holds.
    """
    look = _Look(root, Layout(found.origin.root))
    gone = [
        *(each for fit in fits if fit.source and fit.lineage for each in look.sets(found, fit)),
        *(
            each
            for fit in fits
            for _, state in fit.in_flight
            for each in look.in_flight(fit.stage, state, found.cut)
        ),
        *(
            each
            for sink, (stage, held) in owed.items()
            for each in look.unpublished(sink, (stage, found.attempt), held, found.cut)
        ),
    ]
    if not gone:
        return []
    needed = needed_by(SparkStorageReader(root.spark), Layout(found.origin.root))
    _, others = spared(needed, [each.part for each in gone])
    if others:
        then = (
            f"bring back what is gone, or restore checkpoint {max(others)}, which does not need it"
        )
    else:
        then = "bring back what is gone: every other checkpoint that is kept needs some of it, too"
    return [f"{each.words}; {then}" for each in gone]


class _Look:
    """A look at the tables of a storage root."""

    def __init__(self, root: StorageRoot, layout: Layout) -> None:
        self._root = root
        self._layout = layout

    def sets(self, found: FoundCheckpoint, fit: StageFit) -> list[_Gone]:
        """What is gone of the sets of a stage's lineage."""
        stage = str(fit.source)
        table = found.described[stage]["table"]
        path = self._layout.state(table)
        title = f"the state of stage {stage!r}"
        try:
            files = self._files(path, F.col("set_id").isin(*fit.lineage))
        except StorageError as error:
            gone = f"{title} is gone: {error}"
            return [_Gone(gone, SetFile(table, n)) for n in fit.lineage[:1]]
        by_set = _by_value(files, "set_id")
        missing = _by_value(self._root.files.missing(files), "set_id")
        # A snapshot without a change has no set; a compaction of nothing but tombstones is empty.
        due = [n for n in fit.lineage if n > 0 or (fit.keys and not by_set)]
        unnamed = [n for n in due if n not in by_set]
        return [
            *(_Gone(f"{title}: table {path!r} has no set {n}", SetFile(table, n)) for n in unnamed),
            *(
                _Gone(
                    f"{title}: {len(some)} of {len(by_set[n])} files of set {n} are gone, "
                    f"{some[0]!r} first",
                    SetFile(table, n),
                )
                for n, some in missing.items()
            ),
        ]

    def in_flight(self, stage: str, state: ChannelState, cut: int) -> list[_Gone]:
        """What is gone of the rows in flight from one channel; their epochs go up to ``cut``."""
        title = f"{state.rows} rows in flight from {state.input!r} to stage {stage!r}"
        channel = (state.input, state.attempt)
        gone, files = self._channel(title, channel, state.epoch, cut)
        names = {path.rpartition("/")[2] for path in files}
        unnamed = [p for p in state.files if p.rpartition("/")[2] not in names]
        if gone:
            return gone
        if not files:
            words = f"{self._layout.channel(*channel)!r} has no epoch from {state.epoch} to {cut}"
        elif unnamed:
            words = f"{len(unnamed)} files are not in the channel any more, {unnamed[0]!r} first"
        else:
            return []
        return [_Gone(f"{title} are gone: {words}", ChannelFile(*channel, None))]

    def unpublished(self, sink: str, channel: tuple[str, int], held: int, cut: int) -> list[_Gone]:
        """What is gone of the rows that a sink has yet to publish: of epochs behind ``held``."""
        title = f"rows that sink {sink!r} has yet to publish, up to checkpoint {cut},"
        return self._channel(title, channel, held + 1, cut)[0]

    def _channel(
        self, title: str, channel: tuple[str, int], first: int, last: int
    ) -> tuple[list[_Gone], list[str]]:
        """What is gone of some epochs of a channel, and the files that it has of them."""
        table = self._layout.channel(*channel)
        try:
            files = self._files(table, F.col("_epoch").between(first, last))
        except StorageError as error:
            return [_Gone(f"{title} are gone: {error}", ChannelFile(*channel, None))], []
        missing = self._root.files.missing(files)
        if not missing:
            return [], files
        words = f"{len(missing)} files of the channel, {missing[0]!r} first"
        return [_Gone(f"{title} are gone: {words}", ChannelFile(*channel, None))], files

    def _files(self, table: str, where: Column) -> list[str]:
        """The files of a table, by its log alone.

        Raises:
            StorageError: it cannot be read.
        """
        with tables.reading(table):
            return list(tables.read(self._root.spark, table).where(where).inputFiles())


def _by_value(paths: Iterable[str], column: str) -> dict[int, list[str]]:
    """Files by the value of a partition column, which is the name of their directory."""
    found: dict[int, list[str]] = {}
    for path in paths:
        folder = path.rsplit("/", 2)[1]
        found.setdefault(int(folder.removeprefix(f"{column}=")), []).append(path)
    return found
