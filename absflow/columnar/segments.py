"""The files in which the recent rows of a large key group lie: segments, each over those before.

A micro-batch writes the rows that it has changed, and not those of others: a *segment*. Its head
says which rows of the segments before it still count; then come its rows, each with the row of the
base that it stands for. So what a micro-batch writes is in proportion to what it changes.

That they stay few, a segment takes in the first one before it that has at most a third as many
rows as all that came later, and those behind that. So of one size there are three at most, and a
row is written again when four of a size become one: as often as the logarithm of their number.
(Tiered compaction, as Cassandra has it, and RocksDB in its universal style.)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from absflow.columnar.piece_files import StateFiles, read_headed, write_pieces
from absflow.columnar.pieces import pieces
from absflow.columnar.state import KeyedState

__all__ = ["SHADOWS", "read_segments", "untouched", "write_segment"]

# Beside the columns of the state: the row of the base that a row stands for, -1 for none.
SHADOWS = pa.field("_shadows", pa.int64())
_HEAD = pa.schema([pa.field("counts", pa.bool_())])
_TIMES = 3


def read_segments(
    files: StateFiles, names: Sequence[str], schema: pa.Schema, what: str
) -> tuple[pa.Table, npt.NDArray[np.int64], tuple[int, ...]]:
    """The recent rows.

    Args:
        files: has the segments.
        names: of their files, oldest first; one at least.
        schema: of the state and :data:`SHADOWS`.
        what: names the state in errors.

    Returns:
        The rows that count; for each its row among all of the segments; the rows of each segment.

    Raises:
        PageCorruptError: the bytes are not what was written.
        StorageError: a file is gone.
    """
    found = [read_headed(files, name, _HEAD, schema, what) for name in names]
    tables = [table for _, table in found]
    counts = np.ones(sum(table.num_rows for table in tables), dtype=bool)
    newest = found[-1][0]["counts"].to_numpy(zero_copy_only=False)
    counts[: len(newest)] = newest
    rows = pa.concat_tables(tables)
    if not counts.all():
        rows = rows.filter(pa.array(counts))
    return rows, np.flatnonzero(counts), tuple(table.num_rows for table in tables)


def write_segment(
    state: KeyedState, names: Sequence[str], files: StateFiles, place: str, piece_bytes: int
) -> list[str]:
    """Write what has changed of the recent rows.

    Args:
        state: has recent rows, and a base.
        names: the segments that it was read from.
        files: where the new one goes.
        place: what its name begins with.
        piece_bytes: the size of a piece.

    Returns:
        The names of the segments that it lies in now.

    Raises:
        StorageError: the file cannot be written.
    """
    written, shadows = state.written, state.shadows
    assert written is not None and shadows is not None
    new = int(np.count_nonzero(written < 0))
    stay = untouched(state.segments, new)
    below = sum(state.segments[:stay])
    mine = (written < 0) | (written >= below)
    counts = np.zeros(below, dtype=bool)
    counts[written[~mine]] = True
    head = pa.record_batch([pa.array(counts)], schema=_HEAD)
    rows = state.table.append_column(SHADOWS, pa.array(shadows)).filter(pa.array(mine))
    batches = chain([head], pieces(rows.to_batches(), piece_bytes))
    return [*names[:stay], write_pieces(files, f"{place}-segment", batches)]


def untouched(rows: Sequence[int], new: int) -> int:
    """How many of the segments stay as they are, when so many rows are to be written.

    Args:
        rows: of each segment, oldest first.
        new: in none of them yet.
    """
    behind = sum(rows) + new
    for number, own in enumerate(rows):
        behind -= own
        if own * _TIMES <= behind:
            return number
    return len(rows)
