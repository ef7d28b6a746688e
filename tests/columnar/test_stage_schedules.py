"""A stage over generated schedules of rows and control rows, against an oracle."""

import dataclasses
import itertools
from dataclasses import dataclass, field
from unittest.mock import patch

import pyarrow as pa
from arrow_cases import examples
from hypothesis import event, given
from hypothesis import strategies as st
from stage_cases import (
    SNAPSHOT,
    Runner,
    barrier,
    end,
    pages,
    report_of,
    rows_out,
    run,
    stage,
    step,
)

from absflow.columnar import stored as stored_module
from absflow.columnar.keys import key_groups
from absflow.columnar.pages import Page, PageKind, decode
from absflow.columnar.piece_files import INLINE, file_of, part_of
from absflow.columnar.pieces import PAGE_BYTES
from absflow.columnar.stage import Batch, run_key_group
from absflow.columnar.state import DELETED
from absflow.protocol.alignment_state import Barrier


def overtake(barrier):
    return Page(0, PageKind.OVERTAKE, "", *dataclasses.astuple(barrier))


@dataclass
class MemoryFiles:
    """Files of state, each as it was written; to write the same again is fine."""

    max_inline: int
    files: dict[str, bytes] = field(default_factory=dict)

    def read(self, name):
        return part_of(pa.py_buffer(self.files[file_of(name)]), name), True

    def write(self, place, parts, name):
        payload = b"".join(map(bytes, parts))
        assert self.files.setdefault(name(), payload) == payload
        return name()

    def delete(self, name):
        self.files.pop(name, None)

    def names(self, folder):
        inside = (name.partition("/") for name in self.files)
        return [rest for first, _, rest in inside if first == folder]

    def finish(self):
        """Nothing is on its way."""


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
    st.just(INLINE) | st.builds(MemoryFiles, st.sampled_from([0, 150, 300])),
    st.sampled_from([4, 0]),
    st.sampled_from([PAGE_BYTES, 700, 1]),
    st.randoms(use_true_random=False),
)
def test_every_schedule_gives_the_cut_of_the_oracle(
    world, partitions, files, parts, page_bytes, shuffle
):
    """Output, snapshots and state are those of a stage that takes one row at a time.

    And they are the same, byte for byte, whatever order the pages of a batch come in, and when a
    batch is run again; also if state lies in files, of which only those of this batch and of the
    one before are there, whether a base is soon or never merged, and however small the pages are.
    """
    with patch.object(stored_module, "_PARTS", parts):
        check_schedule(world, partitions, files, page_bytes, shuffle)


def check_schedule(world, partitions, files, page_bytes, shuffle):
    """One schedule."""
    spec = stage(world.roots)
    runner, oracle = Runner(spec, files=files, page_bytes=page_bytes), Oracle(world)
    snapshots, said = {}, []
    for batch in range(world.batches):
        found = renumbered(pages_in(world, spec, batch, partitions))
        before = Batch(batch, 1000 * batch, runner.align), runner.stored
        out = runner.run(*found)
        for _ in range(2):
            shuffle.shuffle(found)
            again = run(run_key_group(spec, 0, before[0], found, before[1], files, page_bytes))
            assert again == (out, runner.stored)
        if files != INLINE:
            kept = runner.stored
            assert {*kept.files, *kept.stale.split()} == set(files.files)
            event("no base" if not kept.base else "recent rows" if kept.recent else "a base")
        assert rows_out(out) == oracle.run(batch)
        assert runner.state == oracle.state
        for page in out:
            assert page.rows <= 1 or len(page.payload) <= page_bytes
            if page.kind is PageKind.STATE:
                rows = decode(page.payload, SNAPSHOT, "snapshot").to_pylist()
                assert len(rows) == page.rows
                base_id = world.barriers[page.checkpoint_id - 1].base_id
                snapshots.setdefault(page.checkpoint_id, (base_id, []))[1].extend(rows)
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
        assert bool(runner.stored.held_counts) == bool(oracle.waiting)
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
