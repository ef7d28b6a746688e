"""Rows to pages and back: each row once, in its key group, in its order."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from arrow_cases import examples
from hypothesis import given
from hypothesis import strategies as st

from absflow.columnar.keys import key_groups
from absflow.columnar.packing import Packer
from absflow.columnar.pages import (
    CHANNEL_FIELDS,
    ORDER_FIELDS,
    Page,
    PageKind,
    channel_schema,
    control_rows,
    decode,
    encode,
    page_batch,
    pages_of,
    unpack,
)
from absflow.errors import PageCorruptError

# -- packing a root input ------------------------------------------------------------------------

SCHEMA = pa.schema([("k", pa.string()), ("j", pa.int32()), ("tag", pa.int64())])
KEYS = ("k", "j")
NAMES = st.sampled_from(["a", "b", "c", None])
ROW_LISTS = st.lists(st.lists(st.tuples(NAMES, st.integers(0, 2)), max_size=9), max_size=6)


def tagged(lists):
    """Batches of (k, j, tag) in which every row has a tag of its own, rising."""
    tags = itertools.count()
    return [
        pa.RecordBatch.from_pylist(
            [{"k": k, "j": j, "tag": next(tags)} for k, j in rows], schema=SCHEMA
        )
        for rows in lists
    ]


def packed(packer, batches, partition=0):
    return [page for batch in packer.pack(batches, partition) for page in pages_of(batch)]


def payload_of(page, packer):
    """A root page has the declared columns, a channel page the order columns behind them."""
    schema = packer.schema if packer.root else pa.schema([*packer.schema, *ORDER_FIELDS])
    return decode(page.payload, schema, "page")


def rows_in(page, packer):
    rows = payload_of(page, packer).to_pylist()
    assert len(rows) == page.rows
    return rows


def group_of(row, groups):
    columns = [pa.array([row[name]], type=SCHEMA.field(name).type) for name in KEYS]
    return int(key_groups(columns, groups)[0])


def flushes(batches, limit):
    """How the rows are cut into flushes: by whole batches, once the limit is reached."""
    parts, waiting = [], []
    for batch in batches:
        waiting += batch.to_pylist()
        if len(waiting) >= limit:
            parts.append(waiting)
            waiting = []
    return [*parts, waiting] if waiting else parts


@examples(100)
@given(ROW_LISTS, st.integers(1, 12), st.sampled_from([1, 3, 128]), st.sampled_from([0, 7]))
def test_a_root_packer_moves_each_row_once(lists, flush_rows, groups, partition):
    """Each flush gives one page per key group that it has rows of, with these rows in order."""
    batches = tagged(lists)
    packer = Packer("legs", SCHEMA, KEYS, groups, root=True, flush_rows=flush_rows)
    pages = packed(packer, batches, partition)
    due = []
    for part in flushes(batches, flush_rows):
        by_group = {}
        for row in part:
            by_group.setdefault(group_of(row, groups), []).append(row)
        due += [(group, by_group[group]) for group in sorted(by_group)]
    assert [(page.key_group, rows_in(page, packer)) for page in pages] == due
    assert [page.seq for page in pages] == [(partition << 32) + n + 1 for n in range(len(pages))]
    assert {(p.kind, p.input, p.checkpoint_id) for p in pages} <= {(PageKind.DATA, "legs", 0)}


@examples(50)
@given(ROW_LISTS, st.integers(1, 12))
def test_flushing_bounds_memory_and_nothing_else(lists, flush_rows):
    """However small the flushes are, a key group gets the same rows in the same order."""
    batches = tagged(lists)

    def received(limit):
        packer = Packer("legs", SCHEMA, KEYS, 3, root=True, flush_rows=limit)
        groups = {}
        for page in sorted(packed(packer, batches), key=lambda page: page.seq):
            groups.setdefault(page.key_group, []).extend(rows_in(page, packer))
        return groups

    assert received(flush_rows) == received(10**6)


def test_a_flush_happens_at_the_limit():
    """Not a row before it; what is left at the end is flushed too."""
    batches = tagged([[("a", 0)] * 2] * 5)
    packer = Packer("legs", SCHEMA, KEYS, 1, root=True, flush_rows=4)
    assert [page.rows for page in packed(packer, batches)] == [4, 4, 2]
    assert [batch.num_rows for batch in packer.pack(batches[:2], 0)] == [1]


def test_no_rows_make_no_pages():
    """Neither an empty partition nor empty batches give a batch of pages."""
    for root in (True, False):
        schema = SCHEMA if root else channel_schema(SCHEMA)
        packer = Packer("legs", SCHEMA, KEYS, 4, root=root)
        empty = pa.RecordBatch.from_pylist([], schema=schema)
        assert list(packer.pack([], 0)) == []
        assert list(packer.pack([empty, empty], 0)) == []


def test_empty_batches_between_others_do_no_harm():
    """Spark hands out empty batches now and then."""
    packer = Packer("legs", SCHEMA, KEYS, 1, root=True, flush_rows=2)
    pages = packed(packer, tagged([[], [("a", 0)], [], [], [("b", 1)], []]))
    assert [[row["tag"] for row in rows_in(page, packer)] for page in pages] == [[0, 1]]


def test_rows_are_brought_to_the_declared_columns():
    """Columns in another order, of a narrower type, or not declared at all."""
    rows = pa.RecordBatch.from_pydict(
        {
            "more": ["x", "y"],
            "tag": pa.array([1, 2], type=pa.int16()),
            "j": pa.array([5, 6], type=pa.int64()),
            "k": pa.array(["a", "a"], type=pa.large_string()),
        }
    )
    packer = Packer("legs", SCHEMA, KEYS, 1, root=True)
    (page,) = packed(packer, [rows])
    assert rows_in(page, packer) == [{"k": "a", "j": 5, "tag": 1}, {"k": "a", "j": 6, "tag": 2}]


def test_without_keys_rows_stay_together():
    """A forwarding stage keeps the rows of a partition in one key group."""
    packer = Packer("legs", SCHEMA, (), 4, root=True)
    for partition in range(9):
        (page,) = packed(packer, tagged([[("a", 0), ("b", 1), (None, 2)]]), partition)
        assert page.key_group == partition % 4
        assert [row["tag"] for row in rows_in(page, packer)] == [0, 1, 2]


def channel_row(epoch, seq, group, k, j, tag):
    return {
        "_epoch": epoch,
        "_seq": seq,
        "_key_group": group,
        "_kind": "DATA",
        "_barrier": None,
        "k": k,
        "j": j,
        "tag": tag,
    }


def control_row(kind, checkpoint_id, seq=0, barrier=None):
    return channel_row(checkpoint_id, seq, 0, None, None, None) | {
        "_kind": kind.value,
        "_barrier": barrier,
    }


def channel_batch(rows):
    return pa.RecordBatch.from_pylist(rows, schema=channel_schema(SCHEMA))


CHANNEL_ROWS = st.lists(
    st.tuples(st.sampled_from([1, 2, 3, 65_537]), st.integers(0, 5), NAMES, st.integers(0, 2)),
    max_size=15,
)


@examples(100)
@given(CHANNEL_ROWS, st.integers(1, 20), st.lists(st.integers(0, 15), max_size=2))
def test_a_channel_packer_moves_each_row_once(rows, flush_rows, barriers):
    """A page per flush, epoch and key group; rows in order, with their places in the channel."""
    given_rows = [
        channel_row(epoch, n // 2, group, k, j, n) for n, (epoch, group, k, j) in enumerate(rows)
    ]
    for at in barriers:
        given_rows.insert(at, control_row(PageKind.BARRIER, 7))
    batches = [channel_batch(given_rows[at : at + 3]) for at in range(0, len(given_rows), 3)]
    packer = Packer("trips", SCHEMA, KEYS, 3, root=False, flush_rows=flush_rows)
    pages = packed(packer, batches, partition=5)
    due = []
    for part in flushes(batches, flush_rows):
        runs = {}
        for row in part:
            if row["_kind"] == "DATA":
                runs.setdefault((row["_epoch"], group_of(row, 3)), []).append(row)
        due += sorted(runs.items())
    data = [page for page in pages if page.kind is PageKind.DATA]
    names = [*SCHEMA.names, "_seq", "_key_group"]
    assert [((p.checkpoint_id, p.key_group), rows_in(p, packer)) for p in data] == [
        (run, [{name: row[name] for name in names} for row in part]) for run, part in due
    ]
    numbers = [page.seq for page in data]
    assert numbers == sorted(set(numbers))
    assert {number >> 32 for number in numbers} <= {5}
    assert len(pages) - len(data) == 3 * len(barriers)


def test_a_control_row_reaches_every_key_group():
    """Each key group gets each control row once, with all that the barrier says."""
    said = {"base_id": 3, "completed_id": 2, "triggered_ms": 1_700_000_000_000}
    batch = channel_batch(
        [
            control_row(PageKind.BARRIER, 5, barrier=said),
            channel_row(6, 1, 0, "a", 0, 0),
            control_row(PageKind.END, 6),
        ]
    )
    packer = Packer("trips", SCHEMA, KEYS, 128, root=False)
    pages = packed(packer, [batch])
    barriers = [page for page in pages if page.kind is PageKind.BARRIER]
    ends = [page for page in pages if page.kind is PageKind.END]
    assert barriers == [
        Page(group, PageKind.BARRIER, "trips", checkpoint_id=5, **said) for group in range(128)
    ]
    assert ends == [Page(group, PageKind.END, "trips", checkpoint_id=6) for group in range(128)]
    assert [page.rows for page in pages if page.kind is PageKind.DATA] == [1]


def test_control_rows_alone_are_packed():
    """A batch that brings nothing but a barrier; a forwarding stage gets it, too."""
    batch = channel_batch([control_row(PageKind.BARRIER, 5)])
    for keys in (KEYS, ()):
        packer = Packer("trips", SCHEMA, keys, 3, root=False)
        assert [page.key_group for page in packed(packer, [batch], partition=2)] == [0, 1, 2]


def output_pages(counts, key_group=0, epoch=1):
    """DATA pages as a stage emits them: `seq` is the number of rows emitted before."""
    pages, before = [], 0
    for count in counts:
        rows = pa.table(
            {"k": ["a"] * count, "j": [1] * count, "tag": range(before, before + count)},
        ).cast(SCHEMA)
        pages.append(
            Page(
                key_group,
                PageKind.DATA,
                checkpoint_id=epoch,
                seq=before,
                rows=count,
                payload=encode(rows),
            )
        )
        before += count
    return pages


CONTROL = [Page(0, kind) for kind in PageKind if kind is not PageKind.DATA]


@examples(50)
@given(st.lists(st.integers(0, 4), max_size=5), st.integers(0, 2**31))
def test_rows_come_out_of_a_stage_as_they_went_into_it(counts, batch_id):
    """DATA pages give their rows in order, other pages nothing; given a batch, channel rows."""
    pages = [*CONTROL, *output_pages(counts, key_group=9, epoch=4), *CONTROL]
    bare = list(unpack([page_batch(pages), page_batch(CONTROL)], SCHEMA, None))
    assert all(batch.schema == SCHEMA for batch in bare)
    tags = [row["tag"] for batch in bare for row in batch.to_pylist()]
    assert tags == list(range(sum(counts)))
    rows = list(unpack([page_batch(pages)], SCHEMA, batch_id))
    assert all(batch.schema == channel_schema(SCHEMA) for batch in rows)
    assert [row for batch in rows for row in batch.to_pylist()] == [
        channel_row(4, (batch_id << 31) + n, 9, "a", 1, n) for n in range(sum(counts))
    ]


@examples(50)
@given(st.lists(st.integers(0, 4), max_size=5), st.integers(1, 5), st.integers(0, 2**20))
def test_a_direct_edge_carries_what_a_channel_would(counts, key_groups, batch_id):
    """Rows, barriers and ENDs come as through the channel; the driver's pages are handed on."""
    said = {"checkpoint_id": 4, "base_id": 3, "completed_id": 2, "triggered_ms": 17}
    to_driver = (PageKind.STATE, PageKind.WRITTEN, PageKind.REPORT)
    driver = [Page(n, kind, "legs", rows=n) for n in (0, 7) for kind in to_driver]
    both = [Page(n, kind, **said) for n in (0, 7) for kind in (PageKind.BARRIER, PageKind.END)]
    emitted = [*output_pages(counts, 9, epoch=4), *driver, *both, *output_pages(counts, 7, 5)]
    packer = Packer("legs", SCHEMA, KEYS, key_groups, root=False)
    seen = list(packer.repack(emitted, batch_id, 6))

    first = [page for page in both if page.key_group == 0]
    rows = [*unpack([page_batch(emitted)], SCHEMA, batch_id)]
    rows += control_rows(first, SCHEMA, batch_id).to_batches()
    due = packed(packer, rows, partition=6)

    def as_said(pages):
        """What they say, in no order: the rows of a page are in that of the partition."""
        return sorted(
            (p.kind.value, p.checkpoint_id, *p.as_row()[:1], *p.as_row()[4:7], page_rows(p, packer))
            for p in pages
        )

    assert as_said(p for p in seen if p.kind not in to_driver) == as_said(due)
    assert [page for page in seen if page.kind in to_driver] == driver


def page_rows(page, packer):
    """The rows of a DATA page; nothing for others."""
    if page.kind is not PageKind.DATA:
        return ""
    return repr(payload_of(page, packer).to_pylist())


@examples(50)
@given(st.lists(st.lists(st.integers(0, 4), max_size=3), max_size=4))
def test_the_order_of_a_channel_rises(batches):
    """`_seq` of one key group rises strictly from row to row and from batch to batch."""
    seen = [
        number
        for batch_id, counts in enumerate(batches)
        for batch in unpack([page_batch(output_pages(counts))], SCHEMA, batch_id)
        for number in batch.column("_seq").to_pylist()
    ]
    assert all(left < right for left, right in itertools.pairwise(seen))


def test_nothing_comes_of_no_pages():
    """No batches, or batches without DATA."""
    assert list(unpack([], SCHEMA, 1)) == []
    assert list(unpack([page_batch([]), page_batch(CONTROL)], SCHEMA, 1)) == []


def test_a_corrupt_output_page_is_refused():
    """The error names the key group."""
    (page,) = output_pages([2], key_group=77)
    damaged = page_batch([Page(77, PageKind.DATA, payload=page.payload[:-1])])
    with pytest.raises(PageCorruptError, match="output page of key group 77"):
        list(unpack([damaged], SCHEMA, None))


def test_a_stage_reads_what_another_has_written():
    """Unpacked for a channel and packed again, rows keep their epoch and their order."""
    written = unpack([page_batch(output_pages([2, 3], key_group=1, epoch=6))], SCHEMA, 8)
    packer = Packer("trips", SCHEMA, KEYS, 1, root=False)
    (page,) = packed(packer, list(written))
    assert page.checkpoint_id == 6
    rows = payload_of(page, packer)
    assert rows.column("tag").to_pylist() == [0, 1, 2, 3, 4]
    assert rows.column("_seq").to_numpy().tolist() == [(8 << 31) + n for n in range(5)]
    assert np.unique(rows.column("_key_group")).tolist() == [1]
    assert [field.name for field in CHANNEL_FIELDS][1:3] == [field.name for field in ORDER_FIELDS]
