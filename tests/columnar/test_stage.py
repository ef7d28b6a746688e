"""One key group in one micro-batch: the consistent cut, and nothing lost, doubled or reordered."""

import dataclasses
import itertools
import json
import random
from collections import defaultdict
from dataclasses import dataclass, field
from unittest.mock import patch

import pyarrow as pa
import pytest
from arrow_cases import examples, rows_of
from hypothesis import event, given
from hypothesis import strategies as st

from absflow.columnar import stage as stage_module
from absflow.columnar import stored as stored_module
from absflow.columnar.keys import key_groups
from absflow.columnar.packing import Packer
from absflow.columnar.pages import Page, PageKind, channel_schema, decode, encode, pages_of
from absflow.columnar.process import Result
from absflow.columnar.spec import InputSpec, StageSpec
from absflow.columnar.stage import Batch, run_key_group, run_range
from absflow.columnar.state import DELETED, snapshot_schema, state_schema
from absflow.columnar.stored import KeyGroupState, in_range, load
from absflow.errors import PageCorruptError, ProcessError, ProtocolViolation
from absflow.protocol import alignment, alignment_state
from absflow.protocol.alignment import AbortArrived, BarrierArrived, InputEnded
from absflow.protocol.alignment_state import Barrier

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


def overtake(barrier):
    return Page(0, PageKind.OVERTAKE, "", *dataclasses.astuple(barrier))


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


def state_of(spec, stored, files=None):
    whole = load(stored, spec.keys, spec.state, files, "state").flat().table.to_pylist()
    return {row["k"]: (row["n"], row["seen"]) for row in whole if not row[DELETED]}


@dataclass
class MemoryFiles:
    """Files of state, each as it was written; to write the same again is fine."""

    max_inline: int
    files: dict[str, bytes] = field(default_factory=dict)

    def read(self, name):
        return pa.py_buffer(self.files[name]), True

    def write(self, name, parts):
        payload = b"".join(map(bytes, parts))
        assert self.files.setdefault(name, payload) == payload

    def delete(self, name):
        self.files.pop(name, None)


class Runner:
    """One key group through its micro-batches, as the driver would run it."""

    def __init__(self, spec, key_group=0, files=None):
        self.spec = spec
        self.files = files
        self.key_group = key_group
        self.align = alignment.start(given.name for given in spec.inputs)
        self.stored = KeyGroupState()
        self.batch_id = 0

    def run(self, *given_pages):
        batch = Batch(self.batch_id, 1000 * self.batch_id, self.align)
        out, self.stored = run_key_group(
            self.spec, self.key_group, batch, given_pages, self.stored, self.files
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


# -- any schedule --------------------------------------------------------------------------------


@dataclass
class Item:
    """A row, barrier or END of one input, and the micro-batch that brings it."""

    batch: int
    kind: PageKind
    number: int = 0
    row: tuple[str, str] = ("", "")


@dataclass
class World:
    """All that the inputs of a stage ever bring."""

    roots: list[bool]
    barriers: list[Barrier]
    inputs: dict[str, list[Item]]
    batches: int
    overtakes: list[tuple[int, int]]  # which batch brings one, and for which checkpoint


@st.composite
def worlds(draw):
    """Two or three inputs; rows, barriers and ENDs cut into micro-batches in any way that can be.

    A root brings its barriers behind all rows of their batch. A channel may bring rows before the
    barrier that precedes them (they are an earlier commit), but never a barrier before its rows.
    """
    roots = draw(st.lists(st.booleans(), min_size=2, max_size=3))
    batches = draw(st.integers(1, 5))
    barriers, completed = [], 0
    for n in range(1, draw(st.integers(1, 3)) + 1):
        completed = draw(st.integers(completed, n - 1))
        base = draw(st.sampled_from([0, *range(completed, n)]))
        barriers.append(Barrier(n, base, completed, 1000 * n))
    tags = itertools.count()
    inputs = {}
    for name, root in zip("abc", roots, strict=False):
        ended_after = draw(st.none() | st.integers(0, len(barriers)))
        segments = len(barriers) + 1 if ended_after is None else ended_after + 1
        items, now, brought = [], 0, 0
        for number in range(1, segments + 1):
            for key, forget in draw(
                st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 4)), max_size=3)
            ):
                now = min(now + draw(st.integers(0, 1)), batches - 1)
                tag = f"{'-' if not forget else ''}{name}{next(tags)}"
                items.append(Item(now, PageKind.DATA, number, (key, tag)))
            brought = max(brought, now) + (0 if root else draw(st.integers(0, 1)))
            brought = min(brought, batches - 1)
            if number < segments:
                items.append(Item(brought, PageKind.BARRIER, number))
        if ended_after is not None:
            items.append(Item(brought, PageKind.END))
        if root:
            behind = {item.batch: item.number for item in items if item.kind is PageKind.BARRIER}
            for item in items:
                # A root row has the epoch of its batch: all its barriers come behind it.
                before = [n for b, n in behind.items() if b < item.batch]
                if item.kind is PageKind.DATA:
                    item.number = max(before, default=0) + 1
        inputs[name] = items
    overtakes = st.tuples(st.integers(0, batches - 1), st.integers(1, len(barriers)))
    return World(roots, barriers, inputs, batches, draw(st.lists(overtakes, max_size=2)))


class Oracle:
    """The stage, row by row: it knows the whole world, so it needs no gates and no queues.

    A snapshot n may be taken when every input has brought barrier n or has ended without it. What
    may be processed between the snapshots n - 1 and n is what comes before barrier n: epoch <= n.
    An overtake of n takes n at the end of its batch in any case, and before it what is awaited.
    """

    def __init__(self, world):
        self.world = world
        self.state = {}
        self.waiting = []
        self.arrived = []
        self.live_at = {}
        self.done = []

    @property
    def epoch(self):
        return max(self.live_at, default=0) + 1

    def controls(self, batch):
        """What each input has brought but for rows."""
        return [
            {(i.kind, i.number) for i in items if i.batch <= batch and i.kind is not PageKind.DATA}
            for items in self.world.inputs.values()
        ]

    def settled(self, n, batch):
        """Whether somebody has brought barrier n, and all who have not have ended."""
        arrived = self.controls(batch)
        brought = [(PageKind.BARRIER, n) in control for control in arrived]
        ended = [(PageKind.END, 0) in control for control in arrived]
        return any(brought) and all(b or e for b, e in zip(brought, ended, strict=True))

    def run(self, batch):
        """The rows that the batch emits, in order."""
        for place, (root, items) in enumerate(
            zip(self.world.roots, self.world.inputs.values(), strict=True)
        ):
            for item in items:
                if item.batch == batch and item.kind is PageKind.DATA:
                    # A root row comes behind what was overtaken, whether its barrier has come.
                    epoch = max(item.number, self.epoch) if root else item.number
                    self.waiting.append((epoch, place, len(self.arrived), item.row))
                    self.arrived.append((epoch, item.row[1]))
        emitted = []
        while self.epoch <= len(self.world.barriers) and self.settled(self.epoch, batch):
            emitted += self.snapshot(self.epoch)
            self.check_aligned()
        ended = all((PageKind.END, 0) in control for control in self.controls(batch))
        for number in sorted(n for at, n in self.world.overtakes if at == batch and not ended):
            waits = {n for control in self.controls(batch) for kind, n in control if n < number}
            for n in sorted(waits | {number}):
                emitted += self.snapshot(n) if n >= self.epoch else []
        return emitted + self.process(self.epoch)

    def snapshot(self, n):
        emitted = self.process(n)
        # Of what has come, all before the cut is in, and nothing else: the definition.
        assert sorted(self.done) == sorted(tag for number, tag in self.arrived if number <= n)
        self.live_at[n] = dict(self.state)
        return emitted

    def process(self, upto):
        due = sorted(row for row in self.waiting if row[0] <= upto)
        self.waiting = [row for row in self.waiting if row[0] > upto]
        emitted = []
        for _, _, _, (key, tag) in due:
            value = step(self.state.pop(key, None), tag)
            if value:
                self.state[key] = value
            self.done.append(tag)
            emitted.append((self.epoch, key, tag, value[0] if value else -1))
        return emitted

    def check_aligned(self):
        """Nothing that comes later is before the barrier of an aligned snapshot."""
        known = {tag for _, tag in self.arrived}
        for root, items in zip(self.world.roots, self.world.inputs.values(), strict=True):
            later = (i for i in items if i.kind is PageKind.DATA and i.row[1] not in known)
            assert root or all(item.number >= self.epoch for item in later)


def pages_in(world, spec, batch, partitions):
    """The pages that the micro-batch brings; rows are spread over `partitions` tasks."""
    found = [overtake(world.barriers[n - 1]) for at, n in world.overtakes if at == batch]
    for name, items in world.inputs.items():
        here = [item for item in items if item.batch == batch]
        for item in here:
            if item.kind is PageKind.BARRIER:
                b = world.barriers[item.number - 1]
                found.append(
                    barrier(name, b.checkpoint_id, b.base_id, b.completed_id, b.triggered_ms)
                )
            elif item.kind is PageKind.END:
                found.append(end(name))
        data = [(items.index(i), i) for i in here if i.kind is PageKind.DATA]
        size = -(-len(data) // partitions)
        for task in range(partitions if data else 0):
            part = data[task * size : (task + 1) * size]
            for epoch, same in itertools.groupby(part, key=lambda pair: pair[1].number):
                places, rows = zip(*((place, item.row) for place, item in same), strict=True)
                found += pages(spec, name, rows, epoch, task, places[0])
    return found


def renumbered(found):
    """Number the pages of a task as one packer would have."""
    numbers = {}
    for place, page in enumerate(found):
        if page.kind is PageKind.DATA:
            task = page.input, page.seq >> 32
            numbers[task] = numbers.get(task, 0) + 1
            found[place] = dataclasses.replace(page, seq=((page.seq >> 32) << 32) + numbers[task])
    return found


def jumped(snapshots, n):
    """Whether a base of checkpoint n was overtaken unseen; then n was never triggered on it."""
    return n != 0 and (n not in snapshots or jumped(snapshots, snapshots[n][0]))


def summed(snapshots, n):
    """The state at checkpoint n from the increments along its lineage."""
    if n == 0:
        return {}
    base, rows = snapshots[n]
    state = dict(summed(snapshots, base))
    for row in rows:
        state.pop(row["k"], None)
        if not row[DELETED]:
            state[row["k"]] = (row["n"], row["seen"])
    return state


@examples(250)
@given(
    worlds(),
    st.integers(1, 2),
    st.none() | st.builds(MemoryFiles, st.sampled_from([0, 150, 300])),
    st.sampled_from([4, 0]),
    st.randoms(use_true_random=False),
)
def test_every_schedule_gives_the_cut_of_the_oracle(world, partitions, files, parts, shuffle):
    """Output, snapshots and state are those of a stage that takes one row at a time.

    And they are the same, byte for byte, whatever order the pages of a batch come in, and when a
    batch is run again; also if state lies in files, of which only those of this batch and of the
    one before are there, and whether a base is soon or never merged.
    """
    with patch.object(stored_module, "_PARTS", parts):
        check_schedule(world, partitions, files, shuffle)


def check_schedule(world, partitions, files, shuffle):
    """One schedule."""
    spec = stage(world.roots)
    runner, oracle = Runner(spec, files=files), Oracle(world)
    snapshots, said = {}, []
    for batch in range(world.batches):
        found = renumbered(pages_in(world, spec, batch, partitions))
        before = Batch(batch, 1000 * batch, runner.align), runner.stored
        out = runner.run(*found)
        for _ in range(2):
            shuffle.shuffle(found)
            again = run_key_group(spec, 0, before[0], found, before[1], files)
            assert again == (out, runner.stored)
        if files is not None:
            kept = runner.stored
            assert {kept.base, kept.recent, *kept.stale.split()} - {""} == set(files.files)
            event("no base" if not kept.base else "recent rows" if kept.recent else "a base")
        assert rows_out(out) == oracle.run(batch)
        assert runner.state == oracle.state
        for page in out:
            if page.kind is PageKind.STATE:
                rows = decode(page.payload, SNAPSHOT, "snapshot").to_pylist()
                assert len(rows) == page.rows
                snapshots[page.checkpoint_id] = (
                    world.barriers[page.checkpoint_id - 1].base_id,
                    rows,
                )
            elif page.kind is PageKind.BARRIER:
                due = world.barriers[page.checkpoint_id - 1]
                snapshots.setdefault(page.checkpoint_id, (due.base_id, []))
                assert page == barrier("", *dataclasses.astuple(due))
        said += [page.kind for page in out]
        assert list(snapshots) == list(oracle.live_at)
        for n, live in oracle.live_at.items():
            if not jumped(snapshots, n):
                assert summed(snapshots, n) == live
        report = report_of(out)
        assert (report["held_rows"] if report else 0) == len(oracle.waiting)
        assert bool(runner.stored.held) == bool(oracle.waiting)
        if oracle.waiting:
            event("rows were held")
        if report and any(n > 0 and name == "" for name, n, _ in report["arrived"]):
            event("overtaken")
    all_ended = all(
        items[-1:] and items[-1].kind is PageKind.END for items in world.inputs.values()
    )
    assert said.count(PageKind.END) == all_ended
    event(f"{len(oracle.live_at)} snapshots")


def test_key_groups_are_independent():
    """A stage of four key groups is four stages of one: each sees its keys and every barrier."""
    spec = stage([True, False], key_groups=4)
    rows = [(f"key-{n % 20}", f"a{n}") for n in range(60)]
    found = pages(spec, "a", rows) + pages(spec, "b", rows, epoch=1)
    control = [barrier("a", 1), barrier("b", 1)]
    keys = {}
    for group in range(4):
        runner = Runner(spec, group)
        out = runner.run(*(page for page in found if page.key_group == group), *control)
        assert [page.key_group for page in out] == [group] * len(out)
        keys |= {key: group for key in runner.state}
    distinct = sorted({key for key, _ in rows})
    groups = key_groups([pa.array(distinct)], 4).tolist()
    assert keys == dict(zip(distinct, groups, strict=True))


# -- alignment, one case at a time ---------------------------------------------------------------


def test_rows_behind_a_barrier_wait_for_the_other_input():
    """Held over several batches, they are in no snapshot they do not belong to, and come once."""
    spec = stage([True, True])
    runner = Runner(spec)
    runner.run(*pages(spec, "a", [("x", "a1")]), barrier("a", 1))
    assert tags_out(runner.run(*pages(spec, "a", [("x", "a2")]))) == []
    out = runner.run(*pages(spec, "a", [("x", "a3")]), *pages(spec, "b", [("x", "b1")]))
    assert tags_out(out) == [(1, "b1")]
    assert report_of(out)["held_rows"] == 2
    out = runner.run(*pages(spec, "b", [("x", "b2")]), barrier("b", 1))
    assert tags_out(out) == [(1, "b2"), (2, "a2"), (2, "a3")]
    (snapshot,) = (page for page in out if page.kind is PageKind.STATE)
    assert decode(snapshot.payload, SNAPSHOT, "snapshot").to_pylist() == [
        {"k": "x", "n": 3, "seen": ["a1", "b1", "b2"], DELETED: False}
    ]
    assert runner.state == {"x": (5, ["a1", "b1", "b2", "a2", "a3"])}
    assert not runner.stored.held


def test_held_rows_of_a_source_stay_before_later_ones():
    """Page numbers begin anew in each batch; an older batch comes first all the same."""
    spec = stage([True, True])
    runner = Runner(spec)
    runner.run(barrier("a", 1))
    first, second = (pages(spec, "a", [("x", f"a{task}")], partition=task)[0] for task in range(2))
    runner.run(second, first)
    runner.run(*pages(spec, "a", [("x", "a2")]))
    out = runner.run(*pages(spec, "a", [("x", "a3")]), barrier("b", 1))
    assert tags_out(out) == [(2, "a0"), (2, "a1"), (2, "a2"), (2, "a3")]


def test_rows_that_overtook_their_barrier_wait_for_it():
    """A channel brings rows of epoch 2 one commit before barrier 1: they are not in snapshot 1."""
    spec = stage([False])
    runner = Runner(spec)
    early = pages(spec, "a", [("x", "a2")], epoch=2, first=1)
    out = runner.run(*early, *pages(spec, "a", [("x", "a1")], epoch=1))
    assert tags_out(out) == [(1, "a1")]
    assert report_of(out)["held_rows"] == 1
    out = runner.run(barrier("a", 1))
    assert [page.kind.name for page in out] == ["STATE", "BARRIER", "DATA", "REPORT"]
    assert tags_out(out) == [(2, "a2")]
    assert not runner.stored.held


def test_rows_behind_several_barriers_pass_snapshot_by_snapshot():
    """Three checkpoints in flight at one input: their rows fall between the right snapshots."""
    spec = stage([False, True])
    runner = Runner(spec)
    for n in (1, 2, 3):
        rows = pages(spec, "a", [("x", f"a{n}")], epoch=n, first=n)
        out = runner.run(*rows, barrier("a", n))
        assert tags_out(out) == ([(1, "a1")] if n == 1 else [])
    out = runner.run(*pages(spec, "b", [("x", "b")]), *(barrier("b", n) for n in (3, 1, 2)))
    kinds = [(page.kind.name, page.checkpoint_id) for page in out]
    assert kinds == [
        ("DATA", 1),
        ("STATE", 1),
        ("BARRIER", 1),
        ("DATA", 2),
        ("STATE", 2),
        ("BARRIER", 2),
        ("DATA", 3),
        ("STATE", 3),
        ("BARRIER", 3),
        ("REPORT", 0),
    ]
    assert tags_out(out) == [(1, "b"), (2, "a2"), (3, "a3")]


def test_an_abort_lets_held_rows_go():
    """Without a snapshot and without a barrier; the stage stays in its epoch."""
    spec = stage([True, True])
    runner = Runner(spec)
    runner.run(barrier("a", 1))
    runner.run(*pages(spec, "a", [("x", "a1")]))
    out = runner.run(abort(1))
    assert tags_out(out) == [(1, "a1")]
    assert {page.kind for page in out} == {PageKind.DATA, PageKind.REPORT}
    assert tags_out(runner.run(barrier("b", 1))) == []
    assert runner.align.snapshot == 0


def test_an_abort_beats_the_barriers_of_its_batch():
    """Given up before it was aligned everywhere, a checkpoint is not snapshotted by anybody."""
    spec = stage([True, True])
    for control in itertools.permutations([abort(1), barrier("a", 1), barrier("b", 1)]):
        runner = Runner(spec)
        out = runner.run(*pages(spec, "a", [("x", "a1")]), *control)
        assert [page.kind.name for page in out] == ["DATA", "REPORT"]
        assert runner.align.snapshot == 0


def test_rows_of_a_channel_are_taken_in_the_order_they_were_emitted():
    """By place in the channel, then by the producer's key group, whatever page they come in."""
    spec = stage([False])
    rows = [(3, 0, "d"), (1, 5, "b"), (1, 2, "a"), (2, 0, "c")]
    found = []
    for number, (seq, group, tag) in enumerate(rows):
        (page,) = pages(spec, "a", [("x", tag)], epoch=1, partition=number)
        placed = table([("x", tag, seq, group)], spec.input("a").page_schema)
        found.append(dataclasses.replace(page, payload=encode(placed)))
    for order in itertools.permutations(found):
        out = Runner(spec).run(*order)
        assert [tag for _, tag in tags_out(out)] == ["a", "b", "c", "d"]


def test_inputs_of_one_epoch_come_in_declared_order():
    """Epoch by epoch, input by input, task by task."""
    spec = stage([True, True])
    found = [
        page
        for name in "ba"
        for task in (1, 0)
        for page in pages(spec, name, [("x", f"{name}{task}")], partition=task)
    ]
    assert [tag for _, tag in tags_out(Runner(spec).run(*found))] == ["a0", "a1", "b0", "b1"]


# -- END -----------------------------------------------------------------------------------------


def test_the_last_input_ends_the_stage():
    """END goes out behind the last rows, once, when every input has ended."""
    spec = stage([True, True])
    runner = Runner(spec)
    out = runner.run(*pages(spec, "a", [("x", "a1")]), end("a"))
    assert [page.kind.name for page in out] == ["DATA", "REPORT"]
    assert not runner.align.ended
    out = runner.run(end("b"), *pages(spec, "b", [("x", "b1")]))
    assert [page.kind.name for page in out] == ["DATA", "END", "REPORT"]
    assert runner.align.ended
    assert [page.kind.name for page in runner.run(end("b"))] == ["REPORT"]


def test_an_ended_input_holds_nobody_up():
    """It counts as aligned; its state is in the later snapshots."""
    spec = stage([True, True])
    runner = Runner(spec)
    runner.run(*pages(spec, "a", [("x", "a1")]), end("a"))
    out = runner.run(barrier("b", 1))
    assert [page.kind.name for page in out] == ["STATE", "BARRIER", "REPORT"]


def test_an_input_may_end_while_its_barrier_waits():
    """The barrier still is aligned; the rows behind it come after the snapshot, then END."""
    spec = stage([False, True])
    runner = Runner(spec)
    runner.run(barrier("a", 1), *pages(spec, "a", [("x", "a2")], epoch=2), end("a"))
    out = runner.run(barrier("b", 1), end("b"))
    kinds = [(page.kind.name, page.checkpoint_id) for page in out]
    assert kinds == [("BARRIER", 1), ("DATA", 2), ("END", 2), ("REPORT", 0)]


# -- what is kept --------------------------------------------------------------------------------


@pytest.fixture
def decoded(monkeypatch):
    """Names of all that is decoded."""
    names = []

    def counting(payload, schema, what):
        names.append(what)
        return decode(payload, schema, what)

    monkeypatch.setattr(stage_module, "decode", counting)
    monkeypatch.setattr(stored_module, "decode", counting)
    return names


def filled(spec):
    """A runner whose key group has two keys, snapshotted and completed as 1."""
    runner = Runner(spec)
    names = [given.name for given in spec.inputs]
    runner.run(
        *pages(spec, "a", [("x", "a1"), ("y", "a2")], epoch=1), *(barrier(n, 1) for n in names)
    )
    return runner


def test_a_barrier_without_a_change_costs_nothing(decoded):
    """The very value that was stored comes back, and its state was not even decoded."""
    runner = filled(stage([True]))
    stored = runner.stored
    decoded.clear()
    out = runner.run(barrier("a", 2, base=1, completed=1))
    assert [page.kind.name for page in out] == ["BARRIER", "REPORT"]
    assert runner.stored is stored
    assert decoded == []
    assert report_of(out)["snapshots"] == [[2, 0, 0, 2, stored.size]]


def test_a_batch_without_pages_costs_nothing(decoded):
    """Neither output nor a new value."""
    runner = filled(stage([True]))
    stored = runner.stored
    decoded.clear()
    assert runner.run() == []
    assert runner.stored is stored
    assert decoded == []


def test_a_full_snapshot_without_a_change_writes_no_state():
    """A savepoint decodes and emits the whole state, and stores nothing."""
    runner = filled(stage([True]))
    stored = runner.stored
    out = runner.run(barrier("a", 2, base=0, completed=1))
    assert [(page.kind.name, page.rows) for page in out[:-1]] == [("STATE", 2), ("BARRIER", 0)]
    assert runner.stored is stored


def test_rows_that_change_no_key_store_nothing():
    """A function that only emits leaves the stored value alone."""
    spec = stage([True], process=lambda rows, *_: Result(output=rows.append_column("n", [[1]])))
    runner = Runner(spec)
    stored = runner.stored
    assert tags_out(runner.run(*pages(spec, "a", [("x", "a1")]))) == [(1, "a1")]
    assert runner.stored is stored


def test_held_rows_do_not_touch_the_state(decoded):
    """While a barrier blocks its input the state stays encoded, in the very bytes it had."""
    spec = stage([True, True])
    runner = filled(spec)
    runner.run(*pages(spec, "a", [("z", "a3")]), barrier("a", 2, base=1))
    runner.run(*pages(spec, "a", [("z", "a4")]))
    state = runner.stored.state
    decoded.clear()
    runner.run(*pages(spec, "a", [("z", "a5")]))
    assert runner.stored.state is state
    assert {name.split(" of ")[0] for name in decoded} == {"held pages"}
    assert runner.stored.changed_epoch == 2
    assert runner.stored.live_keys == 3


def test_what_is_kept_says_what_changed():
    """changed_epoch is the last epoch that changed a key, live_keys counts those not deleted."""
    spec = stage([True])
    runner = filled(spec)
    assert (runner.stored.changed_epoch, runner.stored.live_keys) == (1, 2)
    runner.run(*pages(spec, "a", [("x", "-a3")]))
    assert (runner.stored.changed_epoch, runner.stored.live_keys) == (2, 1)
    out = runner.run(barrier("a", 2, base=1, completed=1))
    (snapshot,) = (page for page in out if page.kind is PageKind.STATE)
    assert decode(snapshot.payload, SNAPSHOT, "snapshot").to_pylist() == [
        {"k": "x", "n": None, "seen": None, DELETED: True}
    ]
    runner.run(barrier("a", 3, base=2, completed=2), *pages(spec, "a", [("y", "a4")]))
    kept = decode(runner.stored.state, state_schema(KEYS, STATE), "state")
    assert kept.column("k").to_pylist() == ["y"]


def test_a_replay_gives_the_same_bytes():
    """Pages and kept value, with random numbers in the output."""

    def chance(rows, state, context):
        n = pa.array(context.random.integers(0, 1 << 40, rows.num_rows))
        return Result(output=rows.append_column("n", n), state=state)

    spec = stage([True, False], process=chance)
    found = pages(spec, "a", [("x", "a1"), ("y", "a2")]) + pages(spec, "b", [("x", "b")], epoch=1)
    found += [barrier("a", 1), barrier("b", 1)]
    batch = Batch(7, 1000, alignment.start("ab"))
    first = run_key_group(spec, 0, batch, found, KeyGroupState())
    random.Random(1).shuffle(found)
    assert run_key_group(spec, 0, batch, found, KeyGroupState()) == first
    numbers = [n for *_, n in rows_out(first[0])]
    assert len(set(numbers)) == len(numbers) == 3
    other = run_key_group(spec, 0, dataclasses.replace(batch, batch_id=8), found, KeyGroupState())
    assert rows_out(other[0]) != rows_out(first[0])


# -- ranges --------------------------------------------------------------------------------------


def test_a_range_gives_what_its_key_groups_give():
    """In the order of the key groups, whoever of them has pages; what the others keep stays."""
    spec = stage([True], key_groups=4)
    rows = [(str(n), f"a{n}") for n in range(20)]
    runners = [Runner(spec, key_group) for key_group in range(4)]
    kept, batches = b"", [rows, rows[:1], [], rows[3:5], rows]
    for number, due in enumerate(batches):
        by_group = defaultdict(list)
        for page in pages(spec, "a", due):
            by_group[page.key_group].append(page)
        if not due:
            by_group = {n: [dataclasses.replace(barrier("a", 1), key_group=n)] for n in range(4)}
        batch = Batch(number, 1000 * number, runners[0].align)
        alone = [page for n in sorted(by_group) for page in runners[n].run(*by_group[n])]
        for runner in runners:
            runner.batch_id = number + 1
            runner.align = runners[0].align
        out, kept = run_range(spec, batch, by_group, kept)
        assert out == alone
        assert in_range(kept, "range") == {
            n: runner.stored for n, runner in enumerate(runners) if runner.stored.live_keys
        }
    assert len(in_range(kept, "range")) > 1


def test_a_range_that_nothing_changes_is_not_written():
    """Spark would write all of it, and pickle it before."""
    spec = stage([True], key_groups=2)
    batch = Batch(0, 0, alignment.start("a"))
    found = {page.key_group: [page] for page in pages(spec, "a", [("x", "a1")])}
    _, kept = run_range(spec, batch, found, b"")
    barriers = {key_group: [barrier("a", 1)] for key_group in found}
    out, again = run_range(spec, dataclasses.replace(batch, batch_id=1), barriers, kept)
    assert [page.kind.name for page in out] == ["STATE", "BARRIER", "REPORT"]
    assert again is kept


def test_what_a_range_keeps_is_checked():
    """A flipped bit is an error, not another state."""
    spec = stage([True])
    batch = Batch(0, 0, alignment.start("a"))
    found = {0: pages(spec, "a", [("x", "a1")])}
    _, kept = run_range(spec, batch, found, b"")
    damaged = bytearray(kept)
    damaged[len(damaged) // 2] ^= 1
    with pytest.raises(PageCorruptError, match="state of stage 'legs'"):
        run_range(spec, batch, found, bytes(damaged))


# -- forwarding ----------------------------------------------------------------------------------


def test_a_forwarding_stage_passes_rows_on():
    """No keys, no state: rows go through, held at barriers, and a snapshot is the barrier alone."""
    spec = stage([True, False], process=None)
    runner = Runner(spec)
    out = runner.run(*pages(spec, "a", [("x", "a1"), (None, "a2")]), barrier("a", 1))
    assert rows_out(out, ROWS) == [(1, "x", "a1"), (1, None, "a2")]
    out = runner.run(*pages(spec, "a", [("x", "a3")]), *pages(spec, "b", [("y", "b1")], epoch=1))
    assert rows_out(out, ROWS) == [(1, "y", "b1")]
    out = runner.run(barrier("b", 1), end("a"), end("b"))
    kinds = [page.kind.name for page in out]
    assert kinds == ["BARRIER", "DATA", "END", "REPORT"]
    assert rows_out(out, ROWS) == [(2, "x", "a3")]
    assert runner.stored == KeyGroupState()


# -- damage --------------------------------------------------------------------------------------


def flipped(payload, at=40):
    return payload[:at] + bytes([payload[at] ^ 4]) + payload[at + 1 :]


@pytest.mark.parametrize("root", [True, False])
def test_a_corrupt_page_is_refused(root):
    """The error names stage, input and key group."""
    spec = stage([root])
    (page,) = pages(spec, "a", [("x", "a1")], epoch=1)
    damaged = dataclasses.replace(page, payload=flipped(page.payload))
    with pytest.raises(PageCorruptError, match="page of stage 'legs', input 'a', key group 0 is"):
        Runner(spec).run(damaged)


def test_a_page_of_another_length_is_refused():
    """A whole page in the place of another is seen by its number of rows."""
    spec = stage([True])
    (page,) = pages(spec, "a", [("x", "a1")])
    with pytest.raises(PageCorruptError, match="has 1 rows where 2 were packed"):
        Runner(spec).run(dataclasses.replace(page, rows=2))


def test_corrupt_state_is_refused():
    """The stored state, as soon as it is needed, and not before."""
    spec = stage([True])
    runner = filled(spec)
    runner.stored = dataclasses.replace(runner.stored, state=flipped(runner.stored.state))
    runner.run(barrier("a", 2, base=1))
    with pytest.raises(PageCorruptError, match="state of stage 'legs', key group 0 is corrupt"):
        runner.run(*pages(spec, "a", [("x", "a1")]))


def test_corrupt_held_pages_are_refused():
    """Both the stored bytes of the held pages, and the bytes of one held page."""
    spec = stage([True, True])
    runner = Runner(spec)
    runner.run(barrier("a", 1))
    (page,) = pages(spec, "a", [("x", "a1")])
    runner.run(dataclasses.replace(page, payload=flipped(page.payload)))
    held = runner.stored
    with pytest.raises(PageCorruptError, match="page of stage 'legs', input 'a'"):
        runner.run(barrier("b", 1))
    runner.stored = dataclasses.replace(held, held=flipped(held.held))
    with pytest.raises(PageCorruptError, match="held pages of stage 'legs', key group 0 is"):
        runner.run()


def test_a_failing_function_stops_the_batch():
    """Its error says where, and nothing is returned that could be committed."""
    spec = stage([True], process=lambda *_: 1 / 0)
    with pytest.raises(ProcessError, match=r"stage 'legs', input 'a', key group 0: .*\{'k': 'x'\}"):
        Runner(spec).run(*pages(spec, "a", [("x", "a1")]))


def test_a_barrier_of_an_unknown_input_is_refused():
    """It was written by another graph; the machine says so."""
    with pytest.raises(ProtocolViolation, match="names input 'z', but the stage has"):
        Runner(stage([True])).run(barrier("z", 1))


# -- the report ----------------------------------------------------------------------------------


def test_a_report_is_written_only_with_something_to_say():
    """With a control row or held pages; rows alone need none."""
    spec = stage([True, True])
    runner = Runner(spec)
    assert report_of(runner.run(*pages(spec, "a", [("x", "a1")]))) is None
    assert report_of(runner.run(barrier("a", 1))) is not None
    assert report_of(runner.run()) is None
    assert report_of(runner.run(*pages(spec, "a", [("x", "a2")]))) is not None
    assert report_of(runner.run()) is not None


def test_a_report_says_what_arrived_was_snapshotted_and_held():
    """Each number of it, after a batch that has all of them."""
    spec = stage([True, True])
    runner = Runner(spec)
    runner.run(*pages(spec, "a", [("x", "a1"), ("y", "a2")]), barrier("a", 1, ms=5))
    held = pages(spec, "a", [("x", "a3"), ("z", "a4"), ("x", "a5")])
    runner.run(*held)
    (late,) = pages(spec, "b", [("w", "b1")])
    out = runner.run(late, barrier("b", 1, ms=5), barrier("a", 1, ms=5), barrier("b", 2, ms=6))
    report = report_of(out)
    (snapshot,) = (page for page in out if page.kind is PageKind.STATE)
    assert report["arrived"] == [["a", 1, 5], ["b", 1, 5], ["b", 2, 6]]
    assert report["skipped"] == []
    ((n, rows, size, keys, total),) = report["snapshots"]
    assert (n, rows, size, keys) == (1, 3, len(snapshot.payload), 3)
    assert total > 0
    assert (report["held_rows"], report["held_bytes"]) == (0, 0)
    report = report_of(runner.run(*pages(spec, "b", [("y", "b2")])))
    assert report["held_rows"] == 1
    assert report["held_bytes"] > 0
    assert report["arrived"] == report["snapshots"] == []


def test_a_report_names_what_an_input_never_brought():
    """Input b went on to 2 without 1, so 1 cannot be aligned; the abort of 3 is no news."""
    runner = Runner(stage([True, True]))
    out = runner.run(barrier("a", 1), barrier("b", 2), abort(3))
    assert report_of(out)["skipped"] == [1]


def test_the_reported_alignment_is_that_of_the_machine():
    """Dead ids, waiting barriers and the end are in it, snapshots in the same batch or not."""
    spec = stage([True, True])
    runner = Runner(spec)
    one, three = Barrier(1, 0, 0, 10), Barrier(3, 1, 1, 30)
    found = [barrier(name, *dataclasses.astuple(one)) for name in "ab"]
    found += [abort(2), barrier("a", *dataclasses.astuple(three)), *pages(spec, "b", [("x", "b")])]
    events = [BarrierArrived("a", one), BarrierArrived("b", one), AbortArrived(2)]
    due, _ = alignment.run(alignment.start("ab"), [*events, BarrierArrived("a", three)])
    out = runner.run(*found)
    assert [page.checkpoint_id for page in out if page.kind is PageKind.BARRIER] == [1]
    assert runner.align == due
    assert (runner.align.snapshot, runner.align.dead) == (1, {2})
    assert runner.align.inputs["a"].waiting == (three,)
    alignment_state.validate(runner.align)
    due, _ = alignment.run(due, [BarrierArrived("b", three), InputEnded("a"), InputEnded("b")])
    out = runner.run(barrier("b", *dataclasses.astuple(three)), end("a"), end("b"))
    assert [page.kind.name for page in out] == ["BARRIER", "END", "REPORT"]
    assert runner.align == due
    assert runner.align.ended
    assert runner.align.dead == set()


def test_every_key_group_reports_the_same_alignment():
    """Whatever rows it has, for the control rows are the same."""
    spec = stage([True, False])
    control = [barrier("a", 1), barrier("b", 1), abort(2), barrier("b", 3), end("b")]
    alignments = set()
    for rows in ([], pages(spec, "a", [("x", "a1")]), pages(spec, "b", [("x", "b1")], epoch=2)):
        found = [*rows, *control]
        for _ in range(3):
            random.Random(len(alignments)).shuffle(found)
            alignments.add(report_of(Runner(spec).run(*found))["alignment"])
    assert len(alignments) == 1


def test_pages_for_the_driver_pass_a_stage_of_a_chain_untouched():
    """Also where it has no key group of that number: those before it may have more."""
    spec = stage([False])
    handed_on = [
        Page(5, PageKind.STATE, "before", 1, rows=2, payload=b"state"),
        Page(5, PageKind.REPORT, "before", payload=b"report"),
    ]
    runner = Runner(spec, key_group=5)
    before = runner.stored
    assert runner.run(*handed_on) == handed_on
    assert runner.stored is before
    out = runner.run(*handed_on, *pages(spec, "a", [("x", "a1")], epoch=1), barrier("a", 1))
    assert out[:2] == handed_on
    assert tags_out(out) == [(1, "a1")]
    assert [(p.kind, p.input) for p in out if p.kind in {PageKind.STATE, PageKind.REPORT}][2:] == [
        (PageKind.STATE, "legs"),
        (PageKind.REPORT, "legs"),
    ]
    restore = [*handed_on, Page(5, PageKind.RESTORE, checkpoint_id=1)]
    batch = Batch(0, 0, alignment.start("a", 1))
    assert run_key_group(spec, 5, batch, restore, KeyGroupState())[0][:2] == handed_on
