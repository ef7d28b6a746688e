"""A storage root read without a JVM: Delta logs by deltalake, data files by Arrow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow.fs import FileSelector, FileType, SubTreeFileSystem

from absflow.cli.clients import CHECKED, Client, client
from absflow.errors import DamagedError, NotFoundError, StorageError
from absflow.facts.damage import damage_error
from absflow.facts.matching import Match, expression
from absflow.storage.layout import Layout

__all__ = ["FileReader"]


class FileReader:
    """Looks into one storage root; each table is as it was when it was first asked for.

    Raises:
        NotFoundError: a table is not there.
        DamagedError: a file of it is gone, or is not what was written.
        StorageError: something else cannot be read.
    """

    def __init__(self, root: str, layout: Layout, conf: Mapping[str, str] | None = None) -> None:
        """Read where things lie by ``layout``; ``root`` is its name in errors.

        Args:
            root: as it was given.
            layout: of the same root, as :func:`~absflow.facts.attempts.plain_root` names it.
            conf: Spark's, as far as it says how the root is reached.
        """
        self._root = root
        self._layout = layout
        self._conf = conf or {}
        self._tables: dict[str, DeltaTable] = {}
        self._datasets: dict[str, ds.Dataset] = {}

    @cached_property
    def client(self) -> Client:
        """What reads below the root."""
        return client(self._layout.root, self._conf)

    def inside(self, path: str) -> str:
        """A path, as the client's file system names it."""
        return path.removeprefix(f"{self._layout.root}/")

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
            if not self.client.in_python:
                # Arrow does not say which file an error is of; one by one it is seen.
                with suppress(OSError, ValueError):
                    return dataset.to_table(**given)
            parts = [dataset.schema.empty_table().select(list(columns))]
            for fragment in dataset.get_fragments(wanted):
                try:
                    parts.append(
                        self.client.fetched(fragment).to_table(schema=dataset.schema, **given)
                    )
                except (OSError, ValueError) as error:
                    raise self._damaged(f"{table}/{fragment.path}", error) from error
            return pa.concat_tables(parts)

    def _damaged(self, path: str, error: Exception) -> DamagedError:
        what = "it is gone" if isinstance(error, FileNotFoundError) else str(error)
        return damage_error(self, self._layout, self.inside(path), what)

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
            sought = FileSelector(self.inside(directory), allow_not_found=True)
            found = self.client.files.get_file_info(sought)
            names = (info.base_name for info in found)
            # Hidden ones are being written, or a kill left them: absflow.storage.files.
            return sorted(name for name in names if not name.startswith("."))

    def read(self, path: str) -> str | None:
        """The text of a file; None if there is none."""
        with self.reading(path):
            files, inside = self.client.files, self.inside(path)
            if files.get_file_info(inside).type is not FileType.File:
                return None
            with files.open_input_file(inside) as file:
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

        Its files are read through the client's file system, for deltalake would hand out another.
        """
        if table not in self._datasets:
            with self.reading(table):
                inside = SubTreeFileSystem(self.inside(table), self.client.files)
                self._datasets[table] = self._delta(table).to_pyarrow_dataset(filesystem=inside)
        return self._datasets[table]

    def _delta(self, table: str) -> DeltaTable:
        if table not in self._tables:
            self._tables[table] = DeltaTable(table, storage_options=dict(self.client.options))
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
