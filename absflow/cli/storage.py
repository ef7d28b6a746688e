"""A storage root read without a JVM: Delta logs by deltalake, data files by Arrow."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import and_, or_
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow.fs import FileSelector, FileSystem, FileType, SubTreeFileSystem

from absflow.errors import NotFoundError, StorageError
from absflow.facts.reading import Match

__all__ = ["FileReader", "expression"]


class FileReader:
    """Looks into one storage root; each table is as it was when it was first asked for.

    Raises:
        NotFoundError: a table is not there.
        StorageError: something cannot be read.
    """

    def __init__(self, root: str) -> None:
        """Read below ``root``; it is named in errors only."""
        self._root = root
        self._tables: dict[str, DeltaTable] = {}
        self._datasets: dict[str, ds.Dataset] = {}

    def table(self, path: str, columns: Sequence[str], matches: Sequence[Match] = ()) -> pa.Table:
        """Rows of a table that match one of these; without any, all."""
        wanted = expression(matches) if matches else None
        with self.reading(path):
            return self.open(path).to_table(columns=list(columns), filter=wanted)

    def values(self, table: str, column: str) -> frozenset[int]:
        """The values that a partition column has in a table."""
        with self.reading(table):
            return frozenset(int(part[column]) for part in self._delta(table).partitions())

    def sets(self, table: str) -> dict[int, int]:
        """The sets of a state history, and how many rows the log says that each has; 0 for none."""
        rows: dict[int, int] = {}
        for file in self.files(table):
            set_id = file["partition.set_id"]
            rows[set_id] = rows.get(set_id, 0) + (file["num_records"] or 0)
        return rows

    def names(self, directory: str) -> list[str]:
        """The names in a directory, but for hidden ones; empty if there is none."""
        with self.reading(directory):
            store, path = _place(directory)
            found = store.get_file_info(FileSelector(path, allow_not_found=True))
            names = (info.base_name for info in found)
            # Hidden ones are being written, or a kill left them: absflow.storage.files.
            return sorted(name for name in names if not name.startswith("."))

    def read(self, path: str) -> str | None:
        """The text of a file; None if there is none."""
        with self.reading(path):
            store, inside = _place(path)
            if store.get_file_info(inside).type is not FileType.File:
                return None
            with store.open_input_file(inside) as file:
                return str(file.read().decode())

    def files(self, table: str) -> list[dict[str, Any]]:
        """The set, the size and the rows of each file of a state history."""
        with self.reading(table):
            files = pa.table(self._delta(table).get_add_actions(flatten=True))
        wanted = ["partition.set_id", "size_bytes", "num_records"]
        return list(files.select(wanted).to_pylist())

    def open(self, table: str) -> ds.Dataset:
        """A table.

        Its files are read through Arrow's own file system. The one that deltalake would hand it is
        in Python, and its threads abort the process if they are still at work when Python ends.
        """
        if table not in self._datasets:
            with self.reading(table):
                store, path = _place(table)
                inside = SubTreeFileSystem(path, store)
                self._datasets[table] = self._delta(table).to_pyarrow_dataset(filesystem=inside)
        return self._datasets[table]

    def _delta(self, table: str) -> DeltaTable:
        if table not in self._tables:
            self._tables[table] = DeltaTable(table)
        return self._tables[table]

    @contextmanager
    def reading(self, table: str) -> Iterator[None]:
        """Turns what the libraries raise into errors of absflow."""
        try:
            yield
        except TableNotFoundError as error:
            raise NotFoundError(
                f"{self._root!r} is not the storage root of a job: there is no table {table!r}; "
                "give the job's spark.absflow.storage.path"
            ) from error
        except (DeltaError, OSError, ValueError) as error:
            seen = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
            raise StorageError(f"could not read table {table!r}: {seen}") from error


def _place(path: str) -> tuple[FileSystem, str]:
    store, inside = FileSystem.from_uri(path if "://" in path else os.path.abspath(path))
    return store, inside


def expression(matches: Sequence[Match]) -> ds.Expression:
    """Rows that match one of these."""
    return reduce(or_, map(_one, matches))


def _one(match: Match) -> ds.Expression:
    parts = [ds.field(name) == value for name, value in match.equal]
    parts += [ds.field("kind").isin(match.kinds)] if match.kinds else []
    checkpoint_id = ds.field("checkpoint_id")
    parts += [] if match.first is None else [checkpoint_id >= match.first]
    parts += [] if match.last is None else [checkpoint_id <= match.last]
    return reduce(and_, parts)
