"""What the position of a source needs beside itself, kept outside of Spark's own directories.

A file source's offset is a number that means nothing without the log of the files read; Kafka and
rate sources remember where they began. Spark keeps this in ``sources/<i>`` of a query's checkpoint,
which may be lost or damaged. So it is copied before a checkpoint that needs it can be reported:
for a file source the entries since the last copy, for others the few files that there are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import unquote

from absflow.columnar.stage import StageSpec
from absflow.errors import StorageError
from absflow.spark.plan import source_index
from absflow.storage import file_source_log
from absflow.storage.file_source_log import FileEntry
from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["NOTHING_READ", "SourceLogs", "missing_files"]

# How Spark's offset log says that a source has not given anything yet.
NOTHING_READ = "-"
_COMPACT = ".compact"


class SourceLogs:
    """The copies for the root inputs of one stage in one attempt.

    A copy of a file source's log is one file per call, named after the last offset in it; entries
    may stand in several of them.
    """

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
        copies = self._layout.source_log(self._spec.name, source, self._attempt)
        if source not in self._kept:
            self._kept[source] = set(self._files.names(copies))
        kept, spark = self._kept[source], self._spark_log(source)
        if self._spec.input(source).files:
            upto = offset_of(position)
            after = max(map(int, kept), default=-1)
            if upto > after:
                entries = self._entries(spark, after, upto)
                self._files.write(f"{copies}/{upto}", file_source_log.text(entries))
                kept.add(str(upto))
            return
        for name in set(self._files.names(spark)) - kept:
            if not name.startswith("."):
                self._files.write(f"{copies}/{name}", self._text(f"{spark}/{name}"))
                kept.add(name)

    def seed(self, source: str, position: str, copies: str, compact_interval: int) -> None:
        """Put in place what a query needs that goes on at ``position``, and copy it at once.

        Args:
            source: the source.
            position: its position.
            copies: the directory of copies of the attempt that the position is of.
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
        names = self._files.names(copies)
        texts = {name: self._text(f"{copies}/{name}") for name in names if name[0] != "."}
        if self._spec.input(source).files:
            upto = offset_of(position)
            entries = [e for text in texts.values() for e in file_source_log.parse(text)]
            texts = file_source_log.build(entries, upto, compact_interval)
            mine = {e: None for e in entries if e.batch_id <= upto}
            self._files.write(f"{own}/{upto}", file_source_log.text(mine))
        else:
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
        entries = {
            entry: None
            for name in wanted
            for entry in file_source_log.parse(self._text(f"{log}/{name}"))
            if after < entry.batch_id <= upto
        }
        return list(entries)

    def _text(self, path: str) -> str:
        text = self._files.read(path)
        if text is None:
            raise StorageError(f"{path!r} is gone, which the position of a source needs")
        return text


def offset_of(position: str) -> int:
    """The ``logOffset`` of a file source's position."""
    return int(json.loads(position)["logOffset"])


def missing_files(files: Files, copies: str, position: str) -> list[str]:
    """Files that were read after ``position`` and are gone: a restore would lose their rows."""
    upto = -1 if position == NOTHING_READ else offset_of(position)
    later: Mapping[str, None] = {
        unquote(entry.path): None
        for name in files.names(copies)
        if name.isdecimal() and int(name) > upto
        for entry in file_source_log.parse(files.read(f"{copies}/{name}") or "")
        if entry.batch_id > upto
    }
    return [path for path in later if not files.exists(path)]
