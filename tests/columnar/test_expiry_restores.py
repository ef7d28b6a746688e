"""State that expires, over snapshots that complete or not, restores, rescales and another ttl."""

from dataclasses import replace

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from test_expiry import EVENT, PROCESSING, Model, rows, snapshot_of, spec_of
from test_stage_schedules import MemoryFiles
from timed_cases import KEYS, TimedStage

from absflow.columnar.expiry import TOUCHED, Expiry, expired
from absflow.columnar.pages import pages_of
from absflow.columnar.piece_files import INLINE
from absflow.columnar.restore_packer import StatePacker
from absflow.columnar.state import snapshot_schema
from absflow.protocol import event_time

STEPS = st.tuples(
    st.lists(rows, max_size=6),
    st.sampled_from(["nothing", "aborts", "completes", "completes", "restore"]),
    st.integers(0, 20),
)
SHAPES = st.tuples(st.integers(1, 7), st.sampled_from([None, 0, 600]), st.integers(3, 40))


class Attempts:
    """A job of one stage over its attempts, beside the rule; its clock goes on all the time."""

    def __init__(self, domain, on_read, shape):
        self.domain, self.on_read, self.now = domain, on_read, 0
        self.stage, self.model = self.begin(shape), Model(self.expiry(shape))
        self.newest, self.number, self.base, self.full = 100, 0, 0, True
        self.sets, self.lineage, self.kept = {}, (), None

    def expiry(self, shape):
        unit = 1 if self.domain is EVENT else 1_000
        return Expiry(shape[2] * unit, self.domain, self.on_read)

    def begin(self, shape):
        groups, inline, _ = shape
        spec = replace(spec_of(self.expiry(shape)), key_groups=groups)
        return TimedStage(spec, INLINE if inline is None else MemoryFiles(inline))

    def take(self, made):
        given_rows = [(k, self.newest + ahead, v) for k, ahead, v in made]
        watermark = self.stage.time.stage.value
        self.stage.fired(given_rows, now_ms=self.now)
        self.model.take(given_rows, watermark, self.now * 1_000)
        self.newest = max([self.newest, *(ts for _, ts, _ in given_rows)])

    def snapshot(self, completes):
        self.number += 1
        base = 0 if self.full else self.base
        out = self.stage.batch(barrier=self.number, now_ms=self.now, base=base)
        if not completes:
            return
        self.sets[self.number] = snapshot_of(self.stage, out)
        self.lineage = (self.number,) if base == 0 else (*self.lineage, self.number)
        clock = self.stage.time.stage.value if self.domain is EVENT else self.now * 1_000
        upto = None if clock is None else clock - self.model.expiry.after
        visible = self.model.visible(clock)
        living = {key: self.model.keys[key] for key in visible}
        assert self.history(upto) == visible
        self.base, self.full = self.number, False
        self.kept = (living, self.stage.time, self.newest, upto)

    def history(self, upto):
        """What SQL sees: the last row of each key along the lineage, unless it has expired."""
        latest = {row["k"]: row for n in self.lineage for row in self.sets[n]}
        schema = snapshot_schema(KEYS, self.stage.spec.state)
        table = pa.Table.from_pylist(list(latest.values()), schema=schema)
        gone = expired(table, upto)
        there = table if gone is None else table.filter(pa.array(~gone))
        return {row["k"]: row["n"] for row in there.to_pylist() if not row["_deleted"]}

    def restore(self, shape):
        """Go back to the last checkpoint, with other key groups, other files and another ttl."""
        living, time, self.newest, upto = self.kept
        packer = StatePacker(
            stage="s", keys=KEYS, state=self.stage.spec.state, key_groups=shape[0],
            checkpoint_id=self.base, lineage=self.lineage, expired_upto=upto,
            defaults={TOUCHED.name: 0},
        )  # fmt: skip
        found = [
            {**row, "set_id": n, "op": "delete" if row["_deleted"] else "upsert"}
            for n in self.lineage
            for row in self.sets[n]
        ]
        names = [*KEYS, *self.stage.spec.state, pa.field("set_id", pa.int64())]
        schema = pa.schema([*names, pa.field("op", pa.string())])
        table = pa.Table.from_pylist(found, schema=schema)
        self.stage = self.begin(shape)
        pages = [p for batch in packer.pack(table.to_batches()) for p in pages_of(batch)]
        self.stage.take_state(pages)
        self.stage.time = event_time.restored(self.stage.spec.begin_time(), time, self.base, {})
        self.stage.alignment = self.stage.spec.start(self.base)
        self.full = self.expiry(shape) != self.model.expiry
        self.model = Model(self.expiry(shape))
        self.model.keys = dict(living)


@given(
    st.lists(STEPS, min_size=2, max_size=14),
    st.sampled_from([EVENT, PROCESSING]),
    st.booleans(),
    st.lists(SHAPES, min_size=1, max_size=5),
)
def test_what_has_expired_stays_so_over_restores(steps, domain, on_read, shapes):
    """Engine and history agree with a dictionary, and nothing that had expired comes back."""
    job = Attempts(domain, on_read, shapes[0])
    for number, (made, what, later) in enumerate(steps):
        job.now += later
        if what == "restore" and job.base:
            job.restore(shapes[number % len(shapes)])
        job.take(made)
        if what in ("aborts", "completes"):
            job.snapshot(what == "completes")
    job.snapshot(completes=True)
