"""A stage of two inputs, its pages, and a runner that keeps its state in memory."""

import itertools
import json

import pyarrow as pa
from arrow_cases import rows_of

from absflow.columnar.packing import Packer
from absflow.columnar.pages import Page, PageKind, channel_schema, decode, pages_of
from absflow.columnar.piece_files import INLINE
from absflow.columnar.pieces import PAGE_BYTES
from absflow.columnar.process import Result
from absflow.columnar.spec import InputSpec, StageSpec
from absflow.columnar.stage import Batch, run_key_group
from absflow.columnar.state import DELETED, snapshot_schema
from absflow.columnar.stored import KeyGroupState, load
from absflow.protocol import alignment, alignment_state

KEYS = pa.schema([("k", pa.string())])
ROWS = pa.schema([("k", pa.string()), ("tag", pa.string())])
STATE = pa.schema([("n", pa.int64()), ("seen", pa.list_(pa.string()))])
OUTPUT = pa.schema([("k", pa.string()), ("tag", pa.string()), ("n", pa.int64())])
SNAPSHOT = snapshot_schema(KEYS, STATE)


def step(state, tag):
    """What one row does to its key: its order shows in the state, and a "-" forgets the key."""
    n, seen = state or (0, [])
    return None if tag.startswith("-") else (n + 1, [*seen, tag])


def remember(rows, state, context):
    """`step` for all rows of a call: the process function of every stage here."""
    keys = state["k"].to_pylist()
    now = [
        None if new else (n, seen)
        for n, seen, new in zip(
            state["n"].to_pylist(), state["seen"].to_pylist(), context.is_new, strict=True
        )
    ]
    output = []
    for at, tag in zip(context.key_of_row, rows["tag"].to_pylist(), strict=True):
        now[at] = step(now[at], tag)
        output.append((keys[at], tag, now[at][0] if now[at] else -1))
    there = [(key, *value) for key, value in zip(keys, now, strict=True) if value]
    return Result(
        output=table(output, OUTPUT),
        state=table(there, state.schema),
        delete=[value is None for value in now],
    )


def table(rows, schema):
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(c, type=f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def stage(roots, process=remember, key_groups=1):
    """A stage with inputs "a", "b", ... that read sources or channels."""
    names = "abc"[: len(roots)]
    inputs = tuple(InputSpec(n, ROWS, root) for n, root in zip(names, roots, strict=True))
    return StageSpec(
        name="legs",
        inputs=inputs,
        keys=KEYS if process else pa.schema([]),
        state=STATE if process else pa.schema([]),
        output=OUTPUT if process else ROWS,
        process=dict.fromkeys(names, process) if process else {},
        key_groups=key_groups,
    )


def pages(spec, name, rows, epoch=0, partition=0, first=0):
    """Pages of an input's rows, each a (key, tag); in a channel they lie from `first` on."""
    given_input = spec.input(name)
    packer = Packer(name, ROWS, tuple(spec.keys.names), spec.key_groups, given_input.root)
    if given_input.root:
        batch = pa.RecordBatch.from_pylist([{"k": k, "tag": t} for k, t in rows], schema=ROWS)
    else:
        order = [
            {"_epoch": epoch, "_seq": first + n, "_key_group": 0, "_kind": "DATA", "k": k, "tag": t}
            for n, (k, t) in enumerate(rows)
        ]
        batch = pa.RecordBatch.from_pylist(order, schema=channel_schema(ROWS))
    return [page for packed in packer.pack([batch], partition) for page in pages_of(packed)]


def barrier(name, n, base=0, completed=0, ms=0):
    return Page(0, PageKind.BARRIER, name, n, base, completed, ms)


def end(name):
    return Page(0, PageKind.END, name)


def abort(n):
    return Page(0, PageKind.ABORT, checkpoint_id=n)


def run(work):
    """The pages of a generator that makes them, and what it returns."""
    out = []
    while True:
        try:
            out.append(next(work))
        except StopIteration as end_:
            return out, end_.value


def report_of(out):
    reports = [page for page in out if (page.kind, page.input) == (PageKind.REPORT, "legs")]
    assert reports in ([], out[-1:])
    return json.loads(reports[0].payload) if reports else None


def rows_out(out, schema=OUTPUT):
    """(epoch, *row) of each row that was emitted, in order."""
    data = [page for page in out if page.kind is PageKind.DATA]
    assert [page.seq for page in data] == list(
        itertools.accumulate((page.rows for page in data[:-1]), initial=0)
    )[: len(data)]
    return [
        (page.checkpoint_id, *row)
        for page in data
        for row in rows_of(decode(page.payload, schema, "output"))
    ]


def state_of(spec, stored, files=INLINE):
    whole = load(stored, spec.keys, spec.state, files, "state").flat().table.to_pylist()
    return {row["k"]: (row["n"], row["seen"]) for row in whole if not row[DELETED]}


class Runner:
    """One key group through its micro-batches, as the driver would run it."""

    def __init__(self, spec, key_group=0, files=INLINE, page_bytes=PAGE_BYTES):
        self.spec = spec
        self.files = files
        self.page_bytes = page_bytes
        self.key_group = key_group
        self.align = alignment.start(given.name for given in spec.inputs)
        self.stored = KeyGroupState()
        self.batch_id = 0
        self.take_changes = None

    def run(self, *given_pages):
        batch = Batch(
            self.batch_id, 1000 * self.batch_id, self.align, take_changes=self.take_changes
        )
        out, self.stored = run(
            run_key_group(
                self.spec,
                self.key_group,
                batch,
                given_pages,
                self.stored,
                self.files,
                self.page_bytes,
            )
        )
        report = report_of(out)
        if report is not None:
            self.align = alignment_state.from_json(report["alignment"])
        self.batch_id += 1
        return out

    @property
    def state(self):
        return state_of(self.spec, self.stored, self.files)


def tags_out(out):
    return [(epoch, tag) for epoch, _, tag, _ in rows_out(out)]


def filled(spec):
    """A runner whose key group has two keys, snapshotted and completed as 1."""
    runner = Runner(spec)
    names = [given.name for given in spec.inputs]
    runner.run(
        *pages(spec, "a", [("x", "a1"), ("y", "a2")], epoch=1), *(barrier(n, 1) for n in names)
    )
    return runner


def flipped(payload, at=40):
    return payload[:at] + bytes([payload[at] ^ 4]) + payload[at + 1 :]
