"""Pages: how rows, barriers and state travel between a shuffle and a stage.

A page is one row of :data:`PAGE_SCHEMA`, whatever it carries; users never see one. Data travels as
one DATA page per key group (and epoch) instead of one row per row: the shuffle then sorts and
copies a few hundred rows per batch, and nothing is ever converted to Python objects.

A payload is an Arrow IPC record batch message (without its schema, which both ends know from the
job's declaration) behind eight bytes: ``AF``, the format version, a spare byte, and the CRC-32 of
the message. The checksum is there because a flipped bit in an Arrow buffer decodes to other values
without any error.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from absflow.errors import PageCorruptError, PageSizeError

__all__ = [
    "CHANNEL_FIELDS",
    "FORWARDED",
    "FOR_THE_DRIVER",
    "ORDER_FIELDS",
    "PAGE_SCHEMA",
    "SEQ_BITS",
    "TIME_FIELDS",
    "TIME_TYPE",
    "Page",
    "PageKind",
    "SentTime",
    "_channel_rows",
    "channel_schema",
    "check",
    "control_rows",
    "decode",
    "encode",
    "encoded",
    "in_parts",
    "one_batch",
    "page_batch",
    "page_batches",
    "pages_of",
    "unpack",
]


class PageKind(Enum):
    """The kinds of page (the *typed rows*)."""

    DATA = "DATA"
    BARRIER = "BARRIER"
    ABORT = "ABORT"
    OVERTAKE = "OVERTAKE"
    END = "END"
    STATE = "STATE"
    # The same, in files of the state history that a worker has written: what the driver commits.
    WRITTEN = "WRITTEN"
    REPORT = "REPORT"
    RESTORE = "RESTORE"
    # How far event time has come; for a whole range, whatever its key group.
    WATERMARK = "WATERMARK"
    # Rows of a source that are late, for a table.
    LATE = "LATE"
    # Nothing; see where a stage's pages are handed to Spark.
    FILL = "FILL"
    # Nothing, but that there is a micro-batch: for timers that are due, to all stages of a chain.
    WAKE = "WAKE"


PAGE_SCHEMA = pa.schema(
    [
        pa.field("key_group", pa.int32()),
        pa.field("kind", pa.string()),
        pa.field("input", pa.string()),
        # DATA: the epoch, 0 if the stage is to assign it. All others but REPORT and END: the
        # checkpoint.
        pa.field("checkpoint_id", pa.int64()),
        # RESTORE: the digest of rows of a set that were read together, in the first page of them.
        pa.field("base_id", pa.int64()),
        pa.field("completed_id", pa.int64()),
        pa.field("triggered_ms", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("payload", pa.binary()),
    ]
)
# A channel's rows have these columns before their own. `_seq` counts within (batch, key group), so
# (`_seq`, `_key_group`) is a total order of a channel's rows that a retried batch repeats.
CHANNEL_FIELDS = (
    pa.field("_epoch", pa.int64()),
    pa.field("_seq", pa.int64()),
    pa.field("_key_group", pa.int32()),
    pa.field("_kind", pa.string()),
    pa.field(
        "_barrier",
        pa.struct(
            [
                pa.field("base_id", pa.int64()),
                pa.field("completed_id", pa.int64()),
                pa.field("triggered_ms", pa.int64()),
            ]
        ),
    ),
)
# Event time, and that of timers.
TIME_TYPE = pa.timestamp("us", tz="UTC")
# Those of a stage with event time have these, too: on a row what the stage had said before the
# batch, on a barrier what it has there.
TIME_FIELDS = (
    pa.field("_watermark", TIME_TYPE),
    pa.field("_watermark_status", pa.string()),
)
ORDER_FIELDS = CHANNEL_FIELDS[1:3]
SEQ_BITS = 31
# What a stage emits beside rows: for the driver, and for the stages that read it.
FOR_THE_DRIVER = (PageKind.REPORT, PageKind.STATE, PageKind.WRITTEN, PageKind.LATE)
FORWARDED = (PageKind.BARRIER, PageKind.END)
# A page is one value of Spark's, and an array of Java's; both end at 2 GB.
_LARGEST = (1 << 31) - (1 << 20)
_PART_PAGES = 32
_HEADER = struct.Struct("<2sBBI")
_MAGIC, _VERSION = b"AF", 1


@dataclass(frozen=True, slots=True)
class Page:
    """One page; the fields are the columns of :data:`PAGE_SCHEMA`."""

    key_group: int
    kind: PageKind
    input: str = ""
    checkpoint_id: int = 0
    base_id: int = 0
    completed_id: int = 0
    triggered_ms: int = 0
    seq: int = 0
    rows: int = 0
    payload: bytes = b""

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Page:
        """The inverse of :meth:`as_row`."""
        return cls(row[0], PageKind(row[1]), *row[2:])

    def as_row(self) -> tuple[object, ...]:
        """The values in the order of :data:`PAGE_SCHEMA`."""
        return (
            self.key_group,
            self.kind.value,
            self.input,
            self.checkpoint_id,
            self.base_id,
            self.completed_id,
            self.triggered_ms,
            self.seq,
            self.rows,
            self.payload,
        )


def encode(table: pa.Table | pa.RecordBatch) -> bytes:
    """The payload of ``table``; its schema is not part of it.

    Raises:
        PageSizeError: it has more than 2 GB.
    """
    return b"".join(encoded(table))


def encoded(table: pa.Table | pa.RecordBatch) -> tuple[bytes, pa.Buffer]:
    """The payload of ``table`` in two parts: the header, which ends with the checksum; the rest.

    Raises:
        PageSizeError: it has more than 2 GB.
    """
    try:
        message = one_batch(table).serialize()
    except pa.ArrowInvalid as error:  # a column of more than 2 GB
        raise _too_large(table) from error
    if len(message) > _LARGEST:
        raise _too_large(table)
    return _HEADER.pack(_MAGIC, _VERSION, 0, zlib.crc32(message)), message


def _too_large(table: pa.Table | pa.RecordBatch) -> PageSizeError:
    what = "a row has" if table.num_rows == 1 else f"{table.num_rows} rows have"
    return PageSizeError(
        f"{what} {table.nbytes} bytes in columns {table.schema.names}, but what travels or is kept "
        f"as one value has at most {_LARGEST}; the batch is not committed. Keep large values "
        "elsewhere and a reference in the row; a key group's state can be larger, in files: lower "
        "spark.absflow.state.max-inline"
    )


def decode(
    payload: bytes | pa.Buffer, schema: pa.Schema, what: str, unchecked: bool = True
) -> pa.RecordBatch:
    """The record batch in ``payload``, whose memory it shares.

    Args:
        payload: what :func:`encode` made of a table with ``schema``.
        schema: the schema it was encoded with.
        what: names the page in the error.
        unchecked: whether to look at the checksum.

    Raises:
        PageCorruptError: if the bytes are not what was encoded.
    """
    message = check(payload, what, unchecked)
    return pa.ipc.read_record_batch(pa.py_buffer(message), schema)


def check(payload: bytes | pa.Buffer, what: str, unchecked: bool = True) -> memoryview:
    """The message in ``payload``; arguments and errors as of :func:`decode`."""
    if len(payload) < _HEADER.size:
        raise PageCorruptError(_corrupt(what, f"only {len(payload)} bytes"))
    *format_, expected = _HEADER.unpack_from(payload)
    if format_ != [_MAGIC, _VERSION, 0]:
        raise PageCorruptError(_corrupt(what, f"header {bytes(payload[:4])!r}"))
    message = memoryview(payload)[_HEADER.size :]
    if unchecked and (seen := zlib.crc32(message)) != expected:
        raise PageCorruptError(_corrupt(what, f"checksum {seen:08x} where {expected:08x} is due"))
    return message


def _corrupt(what: str, seen: str) -> str:
    return (
        f"{what} is corrupt: {seen}; expected a page of format {_VERSION}. The batch is not "
        "committed; if a restart shows the same page, restore the job from its last checkpoint"
    )


def pages_of(table: pa.Table | pa.RecordBatch) -> list[Page]:
    """The rows of a table with :data:`PAGE_SCHEMA` as pages."""
    columns = [table.column(field.name).to_pylist() for field in PAGE_SCHEMA]
    return [Page.from_row(row) for row in zip(*columns, strict=True)]


def page_batches(pages: Iterable[Page], page_bytes: int) -> Iterator[pa.RecordBatch]:
    """The parts (:func:`in_parts`) of the pages as batches."""
    for part in in_parts(pages, page_bytes):
        yield page_batch(part)


def in_parts(pages: Iterable[Page], page_bytes: int) -> Iterator[list[Page]]:
    """The pages, as they come, in lists with about as much payload as 32 pages can have.

    So much is sent to Spark at once; a few times as much is in memory meanwhile.
    """
    part: list[Page] = []
    size = 0
    for page in pages:
        part.append(page)
        size += len(page.payload)
        if size >= _PART_PAGES * page_bytes:
            yield part
            part, size = [], 0
    if part:
        yield part


def page_batch(pages: Sequence[Page]) -> pa.RecordBatch:
    """The inverse of :func:`pages_of`."""
    columns = list(zip(*(page.as_row() for page in pages), strict=True)) or [()] * len(PAGE_SCHEMA)
    arrays = [pa.array(c, type=f.type) for c, f in zip(columns, PAGE_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=PAGE_SCHEMA)


@dataclass(frozen=True, slots=True)
class SentTime:
    """What a stage with event time had said before a batch: its watermark, if there is one."""

    watermark: int | None


def channel_schema(output: pa.Schema, timed: bool = False) -> pa.Schema:
    """The schema of the channel of a stage whose output is ``output``; with event time or not."""
    return pa.schema([*CHANNEL_FIELDS, *(TIME_FIELDS if timed else ()), *output])


def unpack(
    pages: Iterable[pa.RecordBatch],
    output: pa.Schema,
    batch_id: int | None,
    time: SentTime | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of DATA pages, after the stage.

    Args:
        pages: batches of pages; other kinds are passed over.
        output: the schema of their rows.
        batch_id: to get rows of the stage's channel; None to get the bare rows.
        time: for a channel of a stage with event time.
    """
    for batch in pages:
        data = batch.filter(pc.equal(batch.column("kind"), PageKind.DATA.value))
        for page in pages_of(data):
            if batch_id is None:
                yield _output_rows(page, output)
            else:
                yield _channel_rows(page, output, batch_id, time)


def _output_rows(page: Page, output: pa.Schema) -> pa.RecordBatch:
    return decode(page.payload, output, f"output page of key group {page.key_group}")


def _channel_rows(
    page: Page, output: pa.Schema, batch_id: int, time: SentTime | None
) -> pa.RecordBatch:
    rows = _output_rows(page, output)
    count = rows.num_rows
    added: list[pa.Array] = []
    if time is not None:
        watermark = pa.scalar(time.watermark, pa.int64()).cast(TIME_TYPE)
        added = [pa.repeat(watermark, count), pa.nulls(count, TIME_FIELDS[1].type)]
    # `seq` of an output page is the number of rows the key group emitted before it.
    order = (batch_id << SEQ_BITS) + page.seq + np.arange(count, dtype=np.int64)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(page.checkpoint_id, pa.int64()), count),
            pa.array(order),
            pa.repeat(pa.scalar(page.key_group, pa.int32()), count),
            pa.repeat(PageKind.DATA.value, count),
            pa.nulls(count, CHANNEL_FIELDS[4].type),
            *added,
            *rows.columns,
        ],
        schema=channel_schema(output, time is not None),
    )


def control_rows(
    pages: Sequence[Page], output: pa.Schema, batch_id: int, timed: bool = False
) -> pa.Table:
    """The rows of a stage's channel for BARRIER and END pages.

    Args:
        pages: the pages, of one key group.
        output: the schema of the stage's rows.
        batch_id: the batch.
        timed: whether the stage has event time.
    """
    rows = [
        {
            **_time_columns(page),
            "_epoch": page.checkpoint_id,
            # Behind every row of the batch.
            "_seq": (batch_id + 1 << SEQ_BITS) - 1,
            "_key_group": 0,
            "_kind": page.kind.value,
            "_barrier": {
                "base_id": page.base_id,
                "completed_id": page.completed_id,
                "triggered_ms": page.triggered_ms,
            },
        }
        for page in pages
    ]
    return pa.Table.from_pylist(rows, schema=channel_schema(output, timed))


def _time_columns(page: Page) -> dict[str, Any]:
    """What a BARRIER page says of event time, as columns of a channel."""
    if not page.payload:
        return {}
    said = json.loads(page.payload)
    time = pa.scalar(said["value"], pa.int64()).cast(TIME_TYPE)
    return {"_watermark": time, "_watermark_status": said["status"]}


def one_batch(table: pa.Table | pa.RecordBatch) -> pa.RecordBatch:
    """The table as one batch, copied only if it has several."""
    if isinstance(table, pa.RecordBatch):
        return table
    columns = [
        column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        for column in table.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)
