"""What the position of a source needs beside itself, kept outside of Spark's own directories.

A file source's offset is a number that means nothing without the log of the files read; Kafka and
rate sources remember where they began. Spark keeps this in ``sources/<i>`` of a query's checkpoint,
which may be lost or damaged. So it is copied before a checkpoint that needs it can be reported:
for a file source the entries since the last copy (:mod:`absflow.spark.sources.copies`), for others
the few files that there are.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from absflow.columnar.spec import StageSpec
from absflow.errors import StorageError
from absflow.spark.model import source_index
from absflow.spark.sources import copies, file_log
from absflow.spark.sources.delta import cleaned_up
from absflow.spark.sources.describe import SourceDescription, describe_source
from absflow.spark.sources.file_log import FileEntry
from absflow.spark.sources.kafka import Offsets, available_offsets
from absflow.storage.delta.log import DeltaPosition
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["NOTHING_READ", "SourceLogs", "copies_since", "unreadable"]

# How Spark's offset log says that a source has not given anything yet.
NOTHING_READ = "-"
_COMPACT = ".compact"
# Where Spark's rate source keeps when it began; its position is the seconds since then.
_RATE_START = "0"


class SourceLogs:
    """The copies for the root inputs of one stage in one attempt."""

    def __init__(self, files: Files, layout: Layout, spec: StageSpec, attempt: int) -> None:
        """Copy for ``spec`` in ``attempt``."""
        self._files = files
        self._layout = layout
        self._spec = spec
        self._attempt = attempt
        self._kept: dict[str, set[str]] = {}

    def keep(self, source: str, position: str) -> None:
        """Copy what ``position`` of ``source`` needs and no earlier call has copied.

        Raises:
            StorageError: Spark's files are not what they should be.
        """
        if position == NOTHING_READ:
            return
        own = self._layout.source_log(self._spec.name, source, self._attempt)
        if source not in self._kept:
            self._kept[source] = set(self._files.names(own))
        self._copy(source, position, self._spark_log(source))

    def take(self, source: str, position: str, log: str) -> None:
        """Copy what ``position`` needs of a log that is not this attempt's.

        What an earlier call has copied for ``source`` goes: it may be of another log.

        Args:
            source: the source.
            position: its position.
            log: the directory that another query keeps for the source.

        Raises:
            StorageError: Spark's files are not what they should be.
        """
        self._files.delete_folder(self._layout.source_log(self._spec.name, source, self._attempt))
        self._kept[source] = set()
        self._copy(source, position, log)

    def _copy(self, source: str, position: str, spark: str) -> None:
        own = self._layout.source_log(self._spec.name, source, self._attempt)
        kept = self._kept[source]
        if self._spec.input(source).files:
            upto = offset_of(position)
            after = copies.last_offset(kept)
            if upto > after:
                entries = self._entries(spark, after, upto)
                self._files.write(f"{own}/{upto}", file_log.text(entries))
                self._kept[source] = {str(upto)}
            return
        for name in set(self._files.names(spark)) - kept:
            self._files.write(f"{own}/{name}", self._text(f"{spark}/{name}"))
            kept.add(name)

    def seed(self, source: str, position: str, taken: str, compact_interval: int) -> None:
        """Put in place what a query needs that goes on at ``position``, and copy it at once.

        Args:
            source: the source.
            position: its position.
            taken: the directory of copies of the attempt that the position is of.
            compact_interval: of the file source's log in this session.

        Raises:
            StorageError: a copy is gone.
        """
        if position == NOTHING_READ:
            return
        own, spark = (
            self._layout.source_log(self._spec.name, source, self._attempt),
            self._spark_log(source),
        )
        if self._spec.input(source).files:
            upto = offset_of(position)
            entries = copies.entries_of(self._files, taken)
            texts = file_log.build(entries, upto, compact_interval)
            mine = {e: None for e in entries if e.batch_id <= upto}
            self._files.write(f"{own}/{upto}", file_log.text(mine))
        else:
            texts = copies.texts(self._files, taken)
            for name, text in texts.items():
                self._files.write(f"{own}/{name}", text)
        for name, text in texts.items():
            self._files.write(f"{spark}/{name}", text)

    def _spark_log(self, source: str) -> str:
        checkpoint = self._layout.spark_checkpoint(self._spec.name, self._attempt)
        return f"{checkpoint}/sources/{source_index(self._spec, source)}"

    def _entries(self, log: str, after: int, upto: int) -> list[FileEntry]:
        """The entries of a file source's log behind ``after`` up to ``upto``."""
        names = set(self._files.names(log))
        wanted = [str(n) for n in range(after + 1, upto + 1)]
        if not names.issuperset(wanted):
            # Compacted since, and deleted: the compaction that followed holds them.
            compacted = (n for n in names if n.endswith(_COMPACT))
            last = max(compacted, key=lambda n: int(n.removesuffix(_COMPACT)), default=None)
            wanted = [name for name in wanted if name in names] + ([last] if last else [])
        # One for each micro-batch since: read together, for the next one waits.
        texts = self._files.read_all(f"{log}/{name}" for name in wanted)
        entries = {
            entry: None
            for name, text in zip(wanted, texts, strict=True)
            for entry in file_log.parse(_there(f"{log}/{name}", text))
            if after < entry.batch_id <= upto
        }
        return list(entries)

    def _text(self, path: str) -> str:
        return _there(path, self._files.read(path))


def _there(path: str, text: str | None) -> str:
    if text is None:
        raise StorageError(f"{path!r} is gone, which the position of a source needs")
    return text


def offset_of(position: str) -> int:
    """The ``logOffset`` of a file source's position."""
    return int(json.loads(position)["logOffset"])


def copies_since(files: Files, layout: Layout, names: Collection[str], attempt: int) -> list[str]:
    """The directories of copies for a source in an attempt and in those after it, in order.

    Another stage may read it in another attempt, and under another of its ``names``.
    """
    attempts = (name.partition("=")[2] for name in files.names(layout.positions))
    return [
        layout.source_log(stage, source, since)
        for since in sorted(int(number) for number in attempts if number.isdecimal())
        if since >= attempt
        for stage in files.names(layout.positions_of(since))
        for source in files.names(f"{layout.positions_of(since)}/{stage}")
        if source in names
    ]


def unreadable(
    spark: SparkSession,
    files: Files,
    frame: DataFrame,
    position: str,
    taken: str,
    since: Sequence[str],
) -> list[str]:
    """What is gone of that which a source needs to go on at a position, in words.

    Args:
        spark: the session.
        files: for looking.
        frame: the source's frame.
        position: where it is to go on.
        taken: the directory of copies of the attempt that the position is of.
        since: that one, and those of later attempts: they name files that were read behind it.

    Raises:
        StorageError: the source cannot be asked.
    """
    source = describe_source(frame)
    if source.is_files:
        return _missing_files(files, taken, since, position)
    if position == NOTHING_READ:
        return _begins_elsewhere(source)
    if source.format == "kafka":
        return _expired(available_offsets(spark, source.options, position), position)
    if source.format == "delta" and "path" in source.options:
        return cleaned_up(spark, files, source.options, DeltaPosition.parse(position))
    if source.format == "rate" and _RATE_START not in files.names(taken):
        return [f"{taken}/{_RATE_START} is gone, which says when it began"]
    return []


def _begins_elsewhere(source: SourceDescription) -> list[str]:
    """Without a position a source begins where its options say, which must still be the same."""
    if source.format == "delta" and source.options.get("startingversion", "").lower() == "latest":
        return [
            "it had read nothing, and its startingVersion=latest is another version now; set "
            "startingVersion to the first version that it is to read"
        ]
    return []


def _missing_files(files: Files, taken: str, since: Sequence[str], position: str) -> list[str]:
    """Of a file source: its log up to the position, or files that it has read behind it."""
    upto = -1 if position == NOTHING_READ else offset_of(position)
    try:
        each_of = dict.fromkeys([taken, *since])
        entries = {each: copies.entries_of(files, each) for each in each_of}
        file_log.build(entries[taken], upto, compact_interval=1)
    except StorageError as error:
        return [f"{error} ({taken})"]
    before = {entry.path for entry in entries[taken] if entry.batch_id <= upto}
    later = {e.path: None for each in entries.values() for e in each if e.path not in before}
    gone = files.missing(map(unquote, later))
    if not gone:
        return []
    return [f"{len(gone)} files that were read behind it are gone, {gone[0]!r} first"]


def _expired(there: Mapping[tuple[str, int], Offsets], position: str) -> list[str]:
    problems = []
    for topic, partitions in json.loads(position).items():
        for partition, wanted in partitions.items():
            found = there.get((topic, int(partition)))
            named = f"partition {partition} of topic {topic!r}"
            if found is None:
                problems.append(f"{named} is gone; offset {wanted} was wanted")
            elif not found.earliest <= wanted <= found.latest:
                problems.append(
                    f"{named} has offsets {found.earliest} to {found.latest}, wanted {wanted}"
                )
    return problems
