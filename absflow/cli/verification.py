"""All that a checkpoint needs, read without a JVM and compared with what was written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import FileSelector, FileSystem, FileType

from absflow.cli.clients import CHECKED
from absflow.cli.reader import Reader
from absflow.columnar.digest import added, set_digests
from absflow.columnar.pages import PageKind
from absflow.columnar.piece_files import check_pieces
from absflow.errors import AbsflowError, PageCorruptError
from absflow.facts.damage import ChannelFile, SetFile, advice, needed_by, spared
from absflow.protocol.checkpoints import ChannelState, Manifest, SetDigest, StageColumns
from absflow.protocol.recovery.savepoint_writer import cut_of

__all__ = ["Part", "Verification", "verify"]


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a checkpoint that was read.

    Attributes:
        stage: the stage that needs it.
        name: what it is.
        damaged: what it is to those that may need it, too; None if no checkpoint does.
        files: how many files were read.
        rows: the rows in them.
        bytes: their size.
        problems: what is wrong with it.
    """

    stage: str
    name: str
    damaged: SetFile | ChannelFile | None
    files: int = 0
    rows: int = 0
    bytes: int = 0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found.

    Attributes:
        checkpoint_id: the checkpoint.
        parts: in the order of the stages.
        advice: what to do; empty if all is whole.
    """

    checkpoint_id: int
    parts: tuple[Part, ...]
    advice: str = ""

    @property
    def problems(self) -> list[str]:
        """What is wrong, each with its place."""
        return [f"{p.name} of stage {p.stage}: {text}" for p in self.parts for text in p.problems]


def verify(reader: Reader, checkpoint_id: int, begin: Callable[[str], None]) -> Verification:
    """Read all rows that a checkpoint needs, and the state that its job works on.

    Args:
        reader: of the storage root.
        checkpoint_id: a completed checkpoint.
        begin: called with each part before it is read.

    Raises:
        NotFoundError: there is no such completed checkpoint.
    """
    manifest, taken = reader.manifest(checkpoint_id)
    written = reader.known([checkpoint_id]).written
    parts = []
    for stage in manifest.stages:
        name = stage.report.stage
        columns = reader.columns(name, taken)
        due = {each.set_id: each for each in stage.sets}
        for set_id in stage.lineage:
            begin(f"set {set_id} of {name}")
            parts.append(_set(reader, columns, set_id, due.get(set_id)))
        for state in stage.in_flight:
            begin(f"rows in flight to {name}")
            parts.append(_in_flight(reader, state, cut_of(checkpoint_id, written)))
        if columns.key and taken.derived_from is None:
            begin(f"state that {name} works on")
            parts += _state_files(reader, name, taken.attempt)
    return Verification(checkpoint_id, tuple(parts), _advice(reader, manifest, parts))


def _advice(reader: Reader, manifest: Manifest, parts: list[Part]) -> str:
    """For all that is damaged together."""
    bad = [part for part in parts if part.problems]
    if not bad:
        return ""
    damaged = [part.damaged for part in bad if part.damaged is not None]
    if not damaged:
        return (
            "The checkpoint is whole, but the job cannot go on by itself: absflow restore --from "
            f"{manifest.checkpoint_id}"
        )
    try:
        needed = needed_by(reader.storage, reader.layout)
    except AbsflowError as error:
        return f"What needs it is not known: {error}"
    return advice(*spared(needed, damaged))


def _set(reader: Reader, columns: StageColumns, set_id: int, due: SetDigest | None) -> Part:
    path = reader.layout.state(columns.table)
    wanted = ds.field("set_id") == set_id
    part = Part(columns.stage, f"set {set_id}", SetFile(columns.table, set_id))
    digests: list[SetDigest] = []
    for read in _fragments(reader, path, wanted):
        part = read.added_to(part)
        if read.table is not None:
            digests += set_digests(read.table)
    seen = added(digests).get(set_id, SetDigest(set_id, 0, 0))
    if part.problems or due is None or seen == due:
        return part
    what = f"{seen.rows} rows where {due.rows} were written"
    if seen.rows == due.rows:
        what = "rows with other values than were written"
    return replace(part, problems=(f"it has {what}",))


def _in_flight(reader: Reader, state: ChannelState, cut: int) -> Part:
    path = reader.layout.channel(state.input, state.attempt)
    data = ds.field("_kind") == PageKind.DATA.value
    epochs = (ds.field("_epoch") >= state.epoch) & (ds.field("_epoch") <= cut)
    name = f"rows in flight from {state.input}"
    part = Part(state.stage, name, ChannelFile(state.input, state.attempt, state.epoch))
    named = {file.rpartition("/")[2] for file in state.files}
    rows = 0
    for read in _fragments(reader, path, data & epochs):
        table = read.table
        if table is not None and read.path.rpartition("/")[2] not in named:
            table = table.filter(pc.greater_equal(table["_seq"], state.from_seq))
            if not table.num_rows:
                continue  # it was read before the cut
        part = replace(read, rows=0 if table is None else table.num_rows).added_to(part)
        rows += 0 if table is None else table.num_rows
    if part.problems or rows == state.rows:
        return part
    return replace(part, problems=(f"there are {rows} rows where {state.rows} were in flight",))


def _state_files(reader: Reader, stage: str, attempt: int) -> Iterator[Part]:
    """The large state of an attempt, if it has any; a running job may delete files meanwhile."""
    store = reader.storage.client.files
    folder = reader.storage.inside(reader.layout.state_files(stage, attempt))
    part = Part(stage, f"state that attempt {attempt} works on", None)
    found = store.get_file_info(FileSelector(folder, allow_not_found=True, recursive=True))
    for info in found:
        if info.type is not FileType.File or info.base_name.startswith("."):
            continue
        try:
            with store.open_input_file(info.path) as file:
                path = f"{reader.layout.root}/{info.path}"
                check_pieces(file.read_buffer(), f"file {path!r}")
        except FileNotFoundError:
            continue
        except (PageCorruptError, OSError) as error:
            part = replace(part, problems=(*part.problems, str(error)))
        part = replace(part, files=part.files + 1, bytes=part.bytes + info.size)
    if part.files:
        yield part


@dataclass(frozen=True, slots=True)
class _Read:
    """A file that was read, or not: then it has no table and a problem."""

    path: str
    bytes: int
    rows: int
    table: pa.Table | None
    problem: str

    def added_to(self, part: Part) -> Part:
        problems = (*part.problems, self.problem) if self.problem else part.problems
        return replace(
            part,
            files=part.files + 1,
            rows=part.rows + self.rows,
            bytes=part.bytes + self.bytes,
            problems=problems,
        )


def _fragments(reader: Reader, path: str, wanted: ds.Expression) -> Iterator[_Read]:
    """The files of a table, one at a time."""
    dataset, client = reader.storage.open(path), reader.storage.client
    for fragment in dataset.get_fragments(wanted):
        given: dict[str, Any] = {"schema": dataset.schema, "filter": wanted}
        try:
            size = _size(fragment.filesystem, fragment.path)
            table = client.fetched(fragment).to_table(**given, fragment_scan_options=CHECKED)
        except FileNotFoundError:
            yield _Read(fragment.path, 0, 0, None, f"file {fragment.path!r} is gone")
        except (OSError, ValueError) as error:
            problem = f"file {fragment.path!r} is damaged: {error}"
            yield _Read(fragment.path, size, 0, None, problem)
        else:
            yield _Read(fragment.path, size, table.num_rows, table, "")


def _size(store: FileSystem, path: str) -> int:
    return store.get_file_info(path).size or 0
