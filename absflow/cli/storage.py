"""A storage root read without a JVM: Delta logs by deltalake, data files by Arrow."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow.fs import FileSelector, FileSystem, FileType, SubTreeFileSystem

from absflow.errors import DamagedError, NotFoundError, StorageError
from absflow.facts.damage import damage_error
from absflow.facts.matching import Match, expression
from absflow.storage.layout import Layout

__all__ = ["CHECKED", "FileReader", "place"]

# Without, Arrow reads a flipped bit as another value.
CHECKED = ds.ParquetFragmentScanOptions(pre_buffer=True, page_checksum_verification=True)


class FileReader:
    """Looks into one storage root; each table is as it was when it was first asked for.

    Raises:
        NotFoundError: a table is not there.
        DamagedError: a file of it is gone, or is not what was written.
        StorageError: something else cannot be read.
    """

    def __init__(self, root: str, layout: Layout) -> None:
        """Read where things lie by ``layout``; ``root`` is its name in errors."""
        self._root = root
        self._layout = layout
        self._tables: dict[str, DeltaTable] = {}
        self._datasets: dict[str, ds.Dataset] = {}

    def table(self, path: str, columns: Sequence[str], matches: Sequence[Match] = ()) -> pa.Table:
        """Rows of a table that match one of these; without any, all.

        Columns that a table of an earlier version does not have are left out.
        """
        there = self.open(path).schema.names
        wanted = expression(matches) if matches else None
        return self.rows(path, [name for name in columns if name in there], wanted)

    def rows(self, table: str, columns: Sequence[str], wanted: ds.Expression | None) -> pa.Table:
        """Rows of a table for which an expression holds; without one, all."""
        dataset = self.open(table)
        given = {"columns": list(columns), "filter": wanted, "fragment_scan_options": CHECKED}
        with self.reading(table):
            try:
                return dataset.to_table(**given)
            except (OSError, ValueError):
                # Arrow does not say which file; so they are read one by one until it is seen.
                for fragment in dataset.get_fragments(wanted):
                    try:
                        fragment.to_table(schema=dataset.schema, **given)
                    except (OSError, ValueError) as error:
                        path = f"{table}/{fragment.path}"
                        raise self._damaged(path, error) from error
                raise

    def _damaged(self, path: str, error: Exception) -> DamagedError:
        inside = path.removeprefix(f"{self._layout.root}/")
        what = "it is gone" if isinstance(error, FileNotFoundError) else str(error)
        return damage_error(self, self._layout, inside, what)

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
            store, path = place(directory)
            found = store.get_file_info(FileSelector(path, allow_not_found=True))
            names = (info.base_name for info in found)
            # Hidden ones are being written, or a kill left them: absflow.storage.files.
            return sorted(name for name in names if not name.startswith("."))

    def read(self, path: str) -> str | None:
        """The text of a file; None if there is none."""
        with self.reading(path):
            store, inside = place(path)
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

    def size(self, table: str) -> tuple[int, int]:
        """How many files the log of a table names, and their bytes."""
        with self.reading(table):
            sizes = pa.table(self._delta(table).get_add_actions()).column("size_bytes")
        return len(sizes), pc.sum(sizes).as_py() or 0

    def open(self, table: str) -> ds.Dataset:
        """A table.

        Its files are read through Arrow's own file system. The one that deltalake would hand it is
        in Python, and its threads abort the process if they are still at work when Python ends.
        """
        if table not in self._datasets:
            with self.reading(table):
                store, path = place(table)
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
                f"{self._root!r} is not the storage root of a job (or its job is just starting): "
                f"there is no table {table!r}; give the job's spark.absflow.storage.path"
            ) from error
        except (DeltaError, OSError, ValueError) as error:
            seen = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
            raise StorageError(f"could not read table {table!r}: {seen}") from error


def place(path: str) -> tuple[FileSystem, str]:
    """The file system of a path, and the path in it."""
    store, inside = FileSystem.from_uri(path if "://" in path else os.path.abspath(path))
    return store, inside
