"""Watermarks of inputs that are blocked, or whose rows a checkpoint overtakes, in a stage."""

import json

import pyarrow as pa
from test_timers import KEYS, OUTPUT, STATE, counting, emitting
from timed_cases import ROWS, run

from absflow.columnar.event_time import TimeReport, watermark_payload
from absflow.columnar.pages import ORDER_FIELDS, Page, PageKind, encode
from absflow.columnar.spec import InputSpec, StageSpec
from absflow.columnar.stage import Batch, run_range
from absflow.columnar.timers import timer_fields
from absflow.protocol import alignment, alignment_state
from absflow.protocol.watermarks import WatermarkStatus


def stage_of(*names):
    """A stage that reads channels; each value in a row of theirs sets a timer for that time."""
    inputs = tuple(InputSpec(name, ROWS, False, timed=True) for name in names)
    state = pa.schema([*STATE, *timer_fields()])
    process = dict.fromkeys(names, counting)
    return StageSpec("joins", inputs, KEYS, state, OUTPUT, process, 1, emitting)


def row(name, epoch, seq, value):
    schema = pa.schema([*ROWS, *ORDER_FIELDS])
    columns = [["k"], [1], [value], [seq], [0]]
    arrays = [pa.array(c).cast(f.type) for c, f in zip(columns, schema, strict=True)]
    payload = encode(pa.record_batch(arrays, schema=schema))
    return Page(0, PageKind.DATA, name, epoch, seq=seq, rows=1, payload=payload)


def mark(name, epoch, value):
    payload = watermark_payload(value, WatermarkStatus.ACTIVE)
    return Page(0, PageKind.WATERMARK, name, epoch, payload=payload)


def barrier(name, number, value):
    payload = watermark_payload(value, WatermarkStatus.ACTIVE)
    return Page(0, PageKind.BARRIER, name, number, payload=payload)


class Work:
    """The stage's only key group, through its micro-batches."""

    def __init__(self, *names):
        self.spec, self.stored, self.number = stage_of(*names), b"", 0
        self.time, self.alignment = self.spec.begin_time(), alignment.start(names)

    def batch(self, *pages):
        """The kinds of what it emits, with epochs; of a barrier its watermark, too."""
        given = Batch(self.number, 0, self.alignment, self.time)
        out, self.stored = run(run_range(self.spec, given, pages, self.stored))
        self.number += 1
        texts = [p.payload.decode() for p in out if p.kind is PageKind.REPORT]
        for text in texts:
            if '"alignment"' in text:
                said = json.loads(text)["alignment"]
                self.alignment = alignment_state.from_json(said)
            elif '"time"' in text:
                self.time = TimeReport.from_payload(text).time
        kinds = {PageKind.DATA: "fired", PageKind.BARRIER: "barrier"}
        seen = [p for p in out if p.kind in kinds]
        return [(kinds[p.kind], p.checkpoint_id, *_value(p)) for p in seen]


def _value(page):
    """Of a barrier its watermark."""
    return [json.loads(page.payload)["value"]] if page.kind is PageKind.BARRIER else []


def test_trap_6_the_watermark_of_a_blocked_input_waits_with_its_rows():
    """So a timer that it makes due fires behind the barrier, for which the other input waits."""
    work = Work("a", "b")
    assert work.batch(row("a", 1, 0, 45), mark("a", 1, 40), mark("b", 1, 30)) == []
    assert work.time.stage.value == 30
    behind = [barrier("a", 1, 40), row("a", 2, 1, 95), mark("a", 2, 90), mark("b", 1, 60)]
    assert work.batch(*behind) == []
    assert work.time.stage.value == 40
    assert work.batch(barrier("b", 1, 60)) == [("barrier", 1, 40), ("fired", 2)]
    assert work.time.stage.value == 60


def test_trap_8_a_watermark_does_not_overtake_the_rows_in_flight():
    """A checkpoint that overtakes has what was admitted before it; all the rest comes behind."""
    work = Work("a", "b")
    assert work.batch(row("a", 1, 0, 45), mark("a", 1, 40), mark("b", 1, 30)) == []
    overtake = Page(0, PageKind.OVERTAKE, checkpoint_id=1)
    assert work.batch(barrier("a", 1, 80), overtake) == [("barrier", 1, 30)]
    assert work.batch(row("b", 1, 0, 99), mark("b", 1, 35)) == []
    assert work.time.stage.value == 35
    assert work.batch(barrier("b", 1, 70)) == [("fired", 2)]
