"""What a key group keeps between two micro-batches, and where.

Spark hands all that the key groups of a range have kept to each batch that touches one of them,
through a pickle, and takes it back and writes it whole if anything has changed. That is dear for a
large state, so one that is larger than a limit lies in files beside Spark's state store, which has
their names only: a *base*, and the *recent* rows since, if they are many
(:class:`~absflow.columnar.state.KeyedState`), in segments (:mod:`~absflow.columnar.segments`). All
are merged into a new base once the recent rows are half as many as those of the base, so that what
a batch writes is in proportion to what it changes.

A file has pieces (:mod:`~absflow.columnar.piece_files`). So it is written, read and merged piece by
piece, and may be of any size.

A file is written once, before the batch that names it is committed, and never changed. It is called
after its key group, its batch and a checksum of its pieces' checksums, so a batch that is run again
writes the same file, or another one if the function was not deterministic. It is deleted by the
second change of the key group behind its last use: the batch that replaced it is then committed,
and Spark runs no batch again that is older.

The files of a key group lie in a directory of its own, but for small ones, which it shares with
others (:mod:`~absflow.columnar.shared_files`). When it writes one, it deletes there what is
of earlier batches and neither kept nor to be kept: a worker that was killed has left it, or a batch
that ran again and wrote another file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import astuple, dataclass, replace

import numpy as np
import pyarrow as pa

from absflow.columnar.expiry import last_touched
from absflow.columnar.pages import decode, encode
from absflow.columnar.piece_files import StateFiles, read_pieces, write_pieces
from absflow.columnar.pieces import PAGE_BYTES, pieces
from absflow.columnar.segments import SHADOWS, read_segments, write_segment
from absflow.columnar.state import DELETED, KeyedState, state_schema
from absflow.columnar.timers import NEVER, TIMER_COLUMNS, next_times

__all__ = [
    "PIECE_PAGES",
    "KeyGroupState",
    "in_range",
    "load",
    "of_range",
    "retire",
    "store",
    "store_base",
    "sweep",
]

_RANGE = pa.schema(
    [
        ("key_group", pa.int32()),
        ("changed_epoch", pa.int64()),
        ("live_keys", pa.int64()),
        ("size", pa.int64()),
        ("held", pa.large_binary()),
        ("held_files", pa.string()),
        ("held_counts", pa.string()),
        ("state", pa.large_binary()),
        ("base", pa.string()),
        ("recent", pa.string()),
        ("stale", pa.string()),
        ("event_timer", pa.int64()),
        ("processing_timer", pa.int64()),
        ("last_touched", pa.int64()),
    ]
)
# A merge costs as much as the base, so it comes once for so many parts of it.
_PARTS = 2
# A piece of a file is so many pages large: what is read and never sent may be larger than a page.
PIECE_PAGES = 16


@dataclass(frozen=True, slots=True)
class KeyGroupState:
    """What a key group keeps between micro-batches.

    Attributes:
        changed_epoch: the last epoch in which a key changed; older snapshots need not look.
        live_keys: how many keys have state.
        size: bytes of the keyed state in memory.
        held: pages held by the alignment, encoded; empty if none, or they lie in files.
        held_files: names of files with pages that are held, with spaces between.
        held_counts: JSON: input, epoch, rows and bytes of the pages that are held; empty if none.
        state: the keyed state, or its recent rows if there is a base, encoded; empty if there are
            none or they lie in a file.
        base: the name of the base's file; empty if there is no base.
        recent: names of the files of the recent rows, oldest first, with spaces between; empty if
            they lie in no file.
        stale: names of files, with spaces between, that nobody needs once this is committed.
        event_timer: the least time of a timer in event time, microseconds since 1970 (UTC);
            :data:`~absflow.columnar.timers.NEVER` if there is none.
        processing_timer: the same in processing time.
        last_touched: no key was touched later, microseconds since 1970 (UTC); -``NEVER`` if keys do
            not expire.
    """

    changed_epoch: int = 0
    live_keys: int = 0
    size: int = 0
    held: bytes = b""
    held_files: str = ""
    held_counts: str = ""
    state: bytes = b""
    base: str = ""
    recent: str = ""
    stale: str = ""
    event_timer: int = NEVER
    processing_timer: int = NEVER
    last_touched: int = -NEVER

    @property
    def files(self) -> set[str]:
        """The names of the files that it needs."""
        return {self.base, *self.recent.split(), *self.held_files.split()} - {""}


def of_range(states: Mapping[int, KeyGroupState]) -> bytes:
    """What the key groups of a range keep, by key group, as one payload."""
    rows = [(key_group, *astuple(state)) for key_group, state in states.items()]
    columns = zip(*rows, strict=True)
    return encode(pa.record_batch(list(map(list, columns)), schema=_RANGE))


def in_range(payload: bytes, what: str) -> dict[int, KeyGroupState]:
    """The inverse of :func:`of_range`; ``what`` names the range in errors.

    Raises:
        PageCorruptError: the bytes are not what was kept.
    """
    columns = [column.to_pylist() for column in decode(payload, _RANGE, what).columns]
    rows = zip(*columns, strict=True)
    return {key_group: KeyGroupState(*state) for key_group, *state in rows}


def load(
    stored: KeyGroupState, keys: pa.Schema, columns: pa.Schema, files: StateFiles, what: str
) -> KeyedState:
    """The keyed state, which shares the memory of its files.

    Args:
        stored: what the key group kept.
        keys: the key columns.
        columns: the state columns.
        files: has its files.
        what: names the state in errors.

    Raises:
        PageCorruptError: the bytes are not what was kept.
        StorageError: a file of it is gone.
    """
    schema = state_schema(keys, columns)

    def inline(schema: pa.Schema) -> pa.Table:
        batches = [decode(stored.state, schema, what)] if stored.state else []
        return pa.Table.from_batches(batches, schema)

    if not stored.base:
        return KeyedState(inline(schema), len(keys))
    base, rows = read_pieces(files, stored.base, schema, what), schema.append(SHADOWS)
    segments: tuple[int, ...] = ()
    if stored.recent:
        recent, written, segments = read_segments(files, stored.recent.split(), rows, what)
    else:
        recent = inline(rows)
        written = np.full(recent.num_rows, -1)
    shadows = recent[SHADOWS.name].to_numpy()
    table = recent.drop_columns([SHADOWS.name])
    return KeyedState(table, len(keys), base, shadows, written, segments)


def store(
    state: KeyedState,
    before: KeyGroupState,
    files: StateFiles,
    place: str,
    page_bytes: int = PAGE_BYTES,
    expired_upto: int | None = None,
) -> KeyGroupState:
    """Keep a state that has changed; the rest is as before.

    Args:
        state: the new state.
        before: what the key group kept.
        files: where files go.
        place: the key group and the batch, with a slash between, for the names of files.
        page_bytes: the size of a page.
        expired_upto: state that was touched last up to then has expired, and is dropped where
            that costs nothing; None if none has.

    Raises:
        PageSizeError: it is larger than 2 GB, and there is no place for files.
        StorageError: a file cannot be written.
    """
    state = state.without_expired(expired_upto)
    size = state.size
    before = _with_times(state, before)
    if size <= files.max_inline:
        flat = state.flat().table
        payload = encode(flat) if flat.num_rows else b""
        kept = replace(before, live_keys=state.live, size=size, base="")
        return replace(kept, state=payload, recent="")
    piece_bytes = PIECE_PAGES * page_bytes
    if _is_due(state):
        kept = store_base(
            before, files, place, pieces(state.live_batches(expired_upto), piece_bytes)
        )
        # The base was written piece by piece, and is not needed here.
        state = state.merged(state.table.schema.empty_table())
        kept = replace(kept, size=kept.size + state.size)
    else:
        kept = replace(before, live_keys=state.live, size=size)
    if state.table.nbytes > files.max_inline:
        segments = write_segment(state, before.recent.split(), files, place, piece_bytes)
        return replace(kept, state=b"", recent=" ".join(segments))
    rows = state.table.append_column(SHADOWS, pa.array(state.shadows))
    return replace(kept, state=encode(rows) if rows.num_rows else b"", recent="")


def retire(
    before: KeyGroupState, after: KeyGroupState, files: StateFiles, place: str
) -> KeyGroupState:
    """Note the files that only ``before`` needs, and delete those that it had noted.

    Args:
        before: what the key group kept.
        after: what it keeps from now on.
        files: has its files.
        place: the key group and the batch, as for :func:`store`.
    """
    for name in before.stale.split():
        files.delete(name)
    folder, _, batch = place.partition("/")
    if any(name.startswith(f"{folder}/") for name in after.files - before.files):
        sweep(files, folder, int(batch), before.files | after.files)
    return replace(after, stale=" ".join(sorted(before.files - after.files)))


def store_base(
    before: KeyGroupState, files: StateFiles, place: str, live: Iterable[pa.RecordBatch]
) -> KeyGroupState:
    """Keep live rows, which come in pieces, as a new base.

    Args:
        before: what the key group kept.
        files: where files go.
        place: the key group and the batch, for the name of the file.
        live: the rows.
    """
    count = size = 0
    timers, touched = [NEVER, NEVER], -NEVER

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal count, size, touched
        for batch in live:
            count += batch.num_rows
            size += batch.nbytes
            touched = max(touched, last_touched(batch))
            if TIMER_COLUMNS[0] in batch.schema.names:
                timers[:] = map(min, timers, next_times(pa.Table.from_batches([batch])))
            yield batch

    base = write_pieces(files, f"{place}-base", counted())
    event, processing = timers
    kept = replace(before, live_keys=count, size=size, base=base)
    return replace(kept, event_timer=event, processing_timer=processing, last_touched=touched)


def _with_times(state: KeyedState, kept: KeyGroupState) -> KeyGroupState:
    # Of what the base has it is known from before.
    if (newest := last_touched(state.table)) > kept.last_touched:
        kept = replace(kept, last_touched=newest)
    if TIMER_COLUMNS[0] not in state.table.column_names:
        return kept
    event, processing = state.next_timers()
    return replace(kept, event_timer=event, processing_timer=processing)


def _is_due(state: KeyedState) -> bool:
    """Whether to merge, by the number of recent rows of which a merge would relieve the state."""
    if state.base is None or state.shadows is None:
        return True
    live = ~state.table[DELETED].to_numpy()
    count = int(np.count_nonzero(live | (state.shadows >= 0)))
    return bool(count * _PARTS > state.base.num_rows)


def sweep(files: StateFiles, folder: str, batch_id: int, needed: Set[str]) -> None:
    """Delete what batches before this one have left in a folder, but for ``needed``.

    What is of this batch stays: another worker may run it, too, and one of the two is committed.
    """
    for name in files.names(folder):
        written = re.match(r"\.?(\d+)-", name)
        if written and int(written[1]) < batch_id and f"{folder}/{name}" not in needed:
            files.delete(f"{folder}/{name}")
