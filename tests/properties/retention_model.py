"""A job as retention sees it, and a storage that can be killed between any two writes.

The model keeps what every checkpoint *was* when it completed, and which rows every channel was
given, so that reading can be compared with remembering.
"""

import copy
import math
from dataclasses import dataclass, field

from absflow.protocol.lineage import begin_of, extend_lineage, lineage_of
from absflow.protocol.retention.inventory import (
    Channel,
    Compact,
    Completed,
    DeleteEpochs,
    DeleteManifest,
    DeleteSets,
    DropChannels,
    DropPositions,
    DropWorkingDirectory,
    InFlight,
    Inventory,
    Pending,
    Sink,
)
from absflow.protocol.retention.plan import plan

# The channel of `left` is read by stage `right`, that of `right` by a sink.
STAGES = ("left", "right")


@dataclass
class Trigger:
    """A pending or aborted checkpoint: what its stages snapshotted."""

    base: int
    savepoint: bool
    changes: dict
    state: dict
    in_flight: tuple = ()
    landed: bool = False


@dataclass
class World:
    policy: object
    savepoints_are_bases: bool = False
    knows_compactions: bool = True  # the coordinator, when it writes a manifest
    knows_rows: bool = True  # the logs

    # Tables and directories.
    attempts: dict = field(default_factory=lambda: {1: 0})
    ready: bool = True
    completed: list = field(default_factory=list)
    savepoints: set = field(default_factory=set)
    deleted: set = field(default_factory=set)
    compacted: list = field(default_factory=list)
    ended: int = 0
    sets: dict = field(default_factory=lambda: {stage: {} for stage in STAGES})
    channels: dict = field(default_factory=dict)  # (stage, attempt) -> {epoch: rows}
    published: set = field(default_factory=set)  # (attempt, epoch) that the sink ever showed
    working: set = field(default_factory=lambda: {1})
    positions: set = field(default_factory=lambda: {1})

    # What a running job knows.
    next_id: int = 1
    epoch: int = 1
    pending: dict = field(default_factory=dict)
    aborted: dict = field(default_factory=dict)
    state: dict = field(default_factory=lambda: {stage: {} for stage in STAGES})
    modified: dict = field(default_factory=lambda: {stage: {} for stage in STAGES})
    committed: int = 0  # up to which epoch `right` has read `left`

    # What is only remembered, to be compared with.
    expected: dict = field(default_factory=dict)
    given: dict = field(default_factory=dict)  # (stage, attempt) -> {epoch: rows}

    def __post_init__(self):
        self.open_channels()

    # -- the job ------------------------------------------------------------------------------

    @property
    def attempt(self):
        return max(self.attempts)

    @property
    def line(self):
        own = [c.checkpoint_id for c in self.completed if c.attempt == self.attempt]
        return [n for n in [self.attempts[self.attempt], *own] if n]

    def base(self, below=math.inf):
        """The coordinator's newest completed checkpoint below this one; 0 if there is none."""
        restored = self.attempts[self.attempt]
        return max(
            (
                n
                for n in self.line
                if n == restored or self.savepoints_are_bases or n not in self.savepoints
                if n < below
            ),
            default=0,
        )

    def work(self, stage, key, value):
        """A key changes (None: is deleted), and a row goes down the channel."""
        if value is None and key not in self.state[stage]:
            return
        self.state[stage].pop(key, None)
        if value is not None:
            self.state[stage][key] = value
        self.modified[stage][key] = self.epoch
        for rows in (self.channels, self.given):
            rows[stage, self.attempt].setdefault(self.epoch, []).append((key, value))

    def consume(self):
        """Stage `right` commits all that lies before the newest barrier."""
        self.committed = self.epoch - 1

    def trigger(self, savepoint=False, unaligned=False):
        """Barrier and snapshots of the next checkpoint; nothing is durable yet."""
        n, base = self.next_id, 0 if savepoint else self.base()
        changes = {
            stage: {
                key: self.state[stage].get(key)
                for key, epoch in self.modified[stage].items()
                if epoch > base and (base or key in self.state[stage])
            }
            for stage in STAGES
        }
        trigger = Trigger(base, savepoint, changes, copy.deepcopy(self.state))
        if unaligned and not savepoint:
            trigger.in_flight = (InFlight("left", self.attempt, self.committed + 1),)
        self.pending[n] = trigger
        self.next_id, self.epoch = n + 1, n + 1

    def land(self, n):
        """The background appends the sets; maybe after the checkpoint was aborted."""
        trigger = self.pending.get(n) or self.aborted[n]
        trigger.landed = True
        for stage, changes in trigger.changes.items():
            if changes:
                self.sets[stage][n] = dict(changes)

    def complete(self, n):
        if not self.pending[n].landed:
            self.land(n)
        trigger = self.pending.pop(n)
        if not trigger.in_flight:
            self.committed = max(self.committed, n)
        base = self.base(below=n)
        before = next((c.lineages for c in self.completed if c.checkpoint_id == base), {})
        known = self.compacted if self.knows_compactions else ()
        lineages = {
            stage: extend_lineage(
                lineage_of(stage, before.get(stage, ()), known),
                n,
                trigger.base,
                len(trigger.changes[stage]),
            )
            for stage in STAGES
        }
        keys = {stage: len(state) for stage, state in trigger.state.items()}
        self.completed.append(Completed(n, self.attempt, lineages, trigger.in_flight, keys))
        self.expected[n] = trigger.state
        self.ended = max(self.ended, n)
        if trigger.savepoint:
            self.savepoints.add(n)
        else:
            for older in [m for m, t in self.pending.items() if m < n and not t.savepoint]:
                self.abort(older)

    def abort(self, n):
        self.aborted[n] = self.pending.pop(n)
        self.ended = max(self.ended, n)

    def publish(self):
        """The sink publishes the next checkpoint of the current path, from the channels."""
        path = self.path()
        published = max((e for a, e in self.published if e <= path.get(a, 0)), default=0)
        n = min((n for n in self.path_checkpoints() if n > published), default=0)
        self.check_publishable(n)
        self.published |= {(a, e) for a, last in path.items() for e in range(min(n, last) + 1)}

    def restore(self, n):
        """A new attempt, from checkpoint n (0: from nothing) up to the point before READY."""
        for pending in list(self.pending):
            self.abort(pending)
        self.attempts[self.attempt + 1] = n
        self.ready = False
        self.working.add(self.attempt)
        self.positions.add(self.attempt)
        self.open_channels()
        self.state = self.read(n) if n else {stage: {} for stage in STAGES}
        self.modified = {stage: dict.fromkeys(s, n) for stage, s in self.state.items()}
        self.epoch, self.committed = n + 1, n

    def open_channels(self):
        for stage in STAGES:
            self.channels[stage, self.attempt] = {}
            self.given[stage, self.attempt] = {}

    # -- looking ------------------------------------------------------------------------------

    def path(self, n=None):
        """Attempts that checkpoint n (None: the job) descends from, and where each was left."""
        attempt_of = {c.checkpoint_id: c.attempt for c in self.completed}
        path, last = {}, self.next_id if n is None else n
        attempt = self.attempt if n is None else attempt_of.get(n)
        while attempt:
            path[attempt] = last
            last = self.attempts[attempt]
            attempt = attempt_of.get(last)
        return path

    def path_checkpoints(self):
        path = self.path()
        ids = {c.checkpoint_id: path.get(c.attempt, 0) for c in self.completed}
        return sorted(n for n, last in ids.items() if n <= last)

    def readable(self):
        """What anybody may ask for."""
        return [c.checkpoint_id for c in self.completed if c.checkpoint_id not in self.deleted]

    def read(self, n):
        """State at checkpoint n as a reader finds it: the last change of each key."""
        (found,) = [c for c in self.completed if c.checkpoint_id == n]
        return {
            stage: self.add_up(stage, lineage_of(stage, found.lineages[stage], self.compacted))
            for stage in STAGES
        }

    def add_up(self, stage, lineage, tombstones=False):
        state = {}
        for set_id in lineage:
            assert set_id in self.sets[stage], f"set {set_id} of {lineage} is lost"
            state |= self.sets[stage][set_id]
        return {key: value for key, value in state.items() if tombstones or value is not None}

    def rows_in_flight(self, n, channels):
        """The rows that checkpoint n holds by reference, in these channels."""
        (found,) = [c for c in self.completed if c.checkpoint_id == n]
        return [
            row
            for ref in found.in_flight
            for epoch in range(ref.epoch, n + 1)
            for row in channels.get((ref.stage, ref.attempt), {}).get(epoch, [])
        ]

    def check(self):
        """Every checkpoint that is not deleted is what it was when it completed."""
        for n in self.readable():
            assert self.read(n) == self.expected[n], f"checkpoint {n} changed"
            there, given = (self.rows_in_flight(n, c) for c in (self.channels, self.given))
            assert there == given, f"rows in flight of checkpoint {n} are lost"
            self.check_publishable(n)
            assert self.attempt_of(n) in self.positions, f"checkpoint {n} cannot be restored"

    def attempt_of(self, n):
        return next(c.attempt for c in self.completed if c.checkpoint_id == n)

    def check_publishable(self, n):
        """Each row up to checkpoint n has been published or is there to be."""
        for attempt, last in self.path(n).items():
            there, given = (c.get(("right", attempt), {}) for c in (self.channels, self.given))
            for epoch in (e for e in given if e <= last and (attempt, e) not in self.published):
                assert there.get(epoch) == given[epoch], f"epoch {epoch} of {attempt} is lost"

    # -- storage ------------------------------------------------------------------------------

    def inventory(self):
        return Inventory(
            attempts=dict(self.attempts),
            ready=self.ready,
            completed=tuple(self.completed),
            savepoints=frozenset(self.savepoints),
            deleted=frozenset(self.deleted),
            compacted=tuple(self.compacted),
            pending=tuple(Pending(n, t.base, t.in_flight) for n, t in self.pending.items()),
            ended_id=self.ended,
            sets={stage: frozenset(rows) for stage, rows in self.rows().items()},
            rows=self.rows() if self.knows_rows else {},
            channels=tuple(
                Channel(stage, attempt, frozenset(rows), self.committed_of(stage))
                for (stage, attempt), rows in self.channels.items()
            ),
            sinks=(Sink("out", "right", self.published_of_attempts()),),
            working=frozenset(self.working),
            positions=frozenset(self.positions),
        )

    def rows(self):
        """Rows of each set by stage; a set without any has no file, so a log does not know it."""
        return {
            stage: {set_id: len(rows) for set_id, rows in sets.items() if rows}
            for stage, sets in self.sets.items()
        }

    def published_of_attempts(self):
        newest = {}
        for c in sorted(self.completed, key=lambda c: c.checkpoint_id):
            if (c.attempt, c.checkpoint_id) in self.published:
                newest[c.attempt] = c.checkpoint_id
        return newest

    def committed_of(self, stage):
        return self.committed if stage == "left" else self.epoch - 1

    def writes(self, action):
        """The writes of one action; a kill may come between any two."""
        match action:
            case DeleteManifest(n):
                yield lambda: self.retire(n)
            case Compact(fact):
                yield lambda: self.write_set(fact)
                yield lambda: self.compacted.append(fact)
            case DeleteSets(stage, set_ids):
                for set_id in set_ids:
                    yield lambda s=set_id: self.sets[stage].pop(s)
            case DeleteEpochs(stage, attempt, upto):
                rows = self.channels[stage, attempt]
                for epoch in [e for e in rows if e <= upto]:
                    yield lambda e=epoch: rows.pop(e)
            case DropChannels(attempt):
                for channel in [c for c in self.channels if c[1] == attempt]:
                    yield lambda c=channel: self.channels.pop(c)
            case DropWorkingDirectory(attempt):
                yield lambda: self.working.remove(attempt)
            case DropPositions(attempt):
                yield lambda: self.positions.remove(attempt)

    def retire(self, n):
        """Retention deletes checkpoint n; what must never happen to some."""
        periodic = sorted(set(self.readable()) - self.savepoints)
        assert n in periodic[: -self.policy.retained], f"{n} is no periodic one, or too new"
        assert n not in {self.base(), max(self.line)}, f"the job goes on from {n}"
        self.deleted.add(n)

    def write_set(self, fact):
        written = self.add_up(fact.stage, fact.replaces, begin_of(fact.set_id) > 0)
        assert self.sets[fact.stage].setdefault(fact.set_id, written) == written

    def clean(self, writes=None):
        """Plan and carry out; only this many writes, if given. What is still to be done."""
        todo = [
            write for action in plan(self.inventory(), self.policy) for write in self.writes(action)
        ]
        for write in todo[:writes]:
            write()
            self.check()
        return [] if writes is None else todo[writes:]


def settle(world):
    """Nothing is pending, everything is read and published, and clean-up has run."""
    world.ready = True
    for n in list(world.pending):
        world.abort(n)
    world.consume()
    for _ in world.completed:
        world.publish()
    world.clean()
    world.check()


def assert_same_end(one, other):
    """The storages of both hold the same."""
    assert one.inventory() == other.inventory()
    assert one.sets == other.sets
    assert one.channels == other.channels


def assert_bounded(world):
    """What a settled world stores is bounded by what it keeps, not by its age."""
    kept = len(world.readable())
    asked_for = len(world.savepoints - world.deleted)
    deleted_base = 2  # what the job goes on from stays, whoever deleted it
    assert kept <= world.policy.retained + asked_for + deleted_base
    for stage in STAGES:
        assert len(world.rows()[stage]) <= world.policy.tiers.max_sets * (kept + deleted_base)
    in_flight = {
        ref.attempt
        for c in world.completed
        if c.checkpoint_id in {*world.readable(), *world.line}
        for ref in c.in_flight
    }
    unpublished = {
        attempt
        for n in {*world.readable(), *world.line}
        for attempt, last in world.path(n).items()
        if (attempt, last) not in world.published
    }
    assert {attempt for _, attempt in world.channels} <= {world.attempt} | in_flight | unpublished
    assert world.working == {world.attempt}
    restorable = {*world.readable(), *world.line}
    takers = {c.attempt for c in world.completed if c.checkpoint_id in restorable}
    assert world.positions <= takers | {world.attempt}
