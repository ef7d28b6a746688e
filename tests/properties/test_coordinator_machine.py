"""The coordinator against a model, under any order of clocks, reports, failures and restarts."""

from collections import Counter

from coordinator_model import ROOTS, STAGES, Model
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from absflow.protocol import coordinator
from absflow.protocol.checkpoints import Fact, FactKind, FailureReason, StageReport
from absflow.protocol.coordinator import Coordinator
from absflow.protocol.messages import (
    CheckpointFailed,
    CompletionWritten,
    DiscardReport,
    FailJob,
    FinishJob,
    HistoryFound,
    InputExhausted,
    Policy,
    RootInput,
    StageReported,
    StopJob,
    StopRequested,
    Tick,
    Topology,
    TriggerWritten,
    WriteAbort,
    WriteBarrier,
    WriteCompletion,
    WriteEnd,
)

TOPOLOGY = Topology(STAGES, frozenset(RootInput(name, f"source {name}") for name in ROOTS))
NAMES = st.sampled_from(sorted(STAGES))
REASONS = st.sampled_from([r for r in FailureReason if r.counted or r is FailureReason.DECLINED])
# How far behind the newest id a message is: mostly it is about one of the last few.
BACK = st.integers(-1, 3)


def plain(action):
    """An action as the model says it."""
    match action:
        case WriteBarrier(barrier):
            return ("trigger", barrier.checkpoint_id, barrier.base_id)
        case WriteCompletion(manifest):
            return ("commit", manifest.checkpoint_id)
        case WriteAbort(barrier, reason):
            return ("abort", barrier.checkpoint_id, reason.code)
        case WriteEnd(root):
            return ("end", root.stage)
        case DiscardReport(checkpoint_id, stage, why):
            return ("discard", checkpoint_id, stage, why.value)
        case FailJob():
            return ("fail",)
        case FinishJob(checkpoint_id):
            return ("finish", checkpoint_id)
        case StopJob():
            return ("stopped",)


class CoordinatorMachine(RuleBasedStateMachine):
    @initialize(
        timeout=st.sampled_from([25, 60, 1000]),
        pause=st.sampled_from([0, 15]),
        most=st.integers(1, 3),
        tolerated=st.sampled_from([0, 2, 99, 99]),
    )
    def begin(self, timeout, pause, most, tolerated):
        self.policy = Policy(10, timeout, pause, most, tolerated)
        self.settings = (10, timeout, pause, most, tolerated)
        self.state = Coordinator(TOPOLOGY, self.policy)
        self.model = Model(*self.settings)
        self.changed = {name: set() for name in STAGES}
        self.barriers, self.fates, self.said = {}, {}, []

    def tell(self, event, due):
        before = self.state
        self.state, actions = coordinator.step(before, event)
        coordinator.validate(self.state)
        assert Counter(map(plain, actions)) == Counter(due)
        for action in actions:
            self.note(action)

    def note(self, action):
        match action:
            case WriteBarrier(barrier):
                assert barrier.checkpoint_id not in self.barriers
                self.barriers[barrier.checkpoint_id] = barrier
            case WriteAbort(barrier):
                assert barrier.checkpoint_id not in self.fates
                self.fates[barrier.checkpoint_id] = "aborted"
            case WriteCompletion(manifest):
                self.lineages_add_up(manifest)

    def lineages_add_up(self, manifest):
        """Every change up to the stage's snapshot is in a set of its lineage, and no later one."""
        for part in manifest.stages:
            name, upto = part.report.stage, part.report.checkpoint_id
            covered = set()
            for set_id in part.lineage:
                base = self.barriers[set_id].base_id
                covered |= {n for n in self.changed[name] if base < n <= set_id}
            assert covered == {n for n in self.changed[name] if n <= upto}
            assert list(part.lineage) == sorted(set(part.lineage))

    def number(self, back):
        return max(self.state.next_id - 1 - back, 1)

    @rule(later=st.sampled_from([1, 5, 10, 10, 10, 30]), changed=st.sets(NAMES))
    def tick(self, later, changed):
        """Time goes on; where a checkpoint is triggered, some stages have changed before it."""
        now = self.model.now + later
        for name in changed:
            self.changed[name].add(self.state.next_id)
        self.tell(Tick(now), self.model.tick(now))

    @rule(back=BACK)
    def written(self, back):
        number = self.number(back)
        self.tell(TriggerWritten(number), self.model.written(number))

    @rule(back=BACK, names=st.lists(NAMES, min_size=1, max_size=3))
    def report(self, back, names):
        number = self.number(back)
        for name in names:
            base = self.barriers[number].base_id if number in self.barriers else 0
            rows = len([n for n in self.changed[name] if base < n <= number])
            event = StageReported(StageReport(name, number, 0, rows_changed=rows))
            self.tell(event, self.model.heard("reported", number, name))

    @rule(back=BACK, names=st.lists(NAMES, min_size=1, max_size=3))
    def find(self, back, names):
        number = self.number(back)
        for name in names:
            record = self.model.pending.get(number)
            if record is None or name not in record.awaited or name in record.reported:
                self.tell(HistoryFound(number, name), self.model.heard("found", number, name))

    @rule(back=BACK)
    def acknowledge(self, back):
        """The usual course: written, reported and found by all."""
        self.written(back)
        self.report(back, sorted(STAGES))
        self.find(back, sorted(STAGES))

    @precondition(lambda self: not self.state.stopping)
    @rule(changed=st.sets(NAMES))
    def complete(self, changed):
        """A whole checkpoint without a fault, if one is due."""
        self.tick(30, changed)
        self.acknowledge(0)
        self.commit_if_asked(landed=True)

    @rule(
        kind=st.sampled_from(["fail"] * 4 + ["exhaust"] * 2 + ["restart", "stop"]), data=st.data()
    )
    def mishap(self, kind, data):
        """Rare things in one rule, so that most of a history is made of checkpoints."""
        if kind == "fail":
            self.fail(data.draw(BACK), data.draw(REASONS))
        elif kind == "exhaust" and self.model.newest > 2:
            self.exhaust(data.draw(st.sampled_from(ROOTS)))
        elif kind == "restart":
            self.restart(data.draw(st.integers(0, 50)))
        elif kind == "stop" and self.model.newest > 5:
            self.tell(StopRequested(), self.model.settle(self.model.stop()))

    def fail(self, back, reason):
        number = self.number(back)
        due = self.model.failed(number, reason.code, reason.counted)
        self.tell(CheckpointFailed(number, reason, "cause"), due)

    @rule(landed=st.sampled_from([True, True, False]))
    def commit_if_asked(self, landed):
        number = next((n for n, r in self.model.pending.items() if r.committing), None)
        if number is None:
            return
        if landed:
            assert number not in self.fates
            self.fates[number] = "completed"
            due = self.model.committed(number, self.model.now)
            self.tell(CompletionWritten(number, self.model.now), due)
        else:
            due = self.model.failed(number, "FINALIZE_FAILED", True)
            self.tell(CheckpointFailed(number, FailureReason.FINALIZE_FAILED), due)

    def exhaust(self, root):
        event = InputExhausted(RootInput(root, f"source {root}"))
        self.tell(event, self.model.exhaust(root))

    def restart(self, later):
        """The driver dies and recovers from barriers, facts, manifest and END rows."""
        kinds = {"aborted": FactKind.ABORTED, "completed": FactKind.COMPLETED}
        facts = tuple(Fact(n, kinds[fate]) for n, fate in self.fates.items())
        lost = sorted(self.barriers.keys() - self.fates.keys())
        old = self.state
        self.state, actions = coordinator.recover(
            TOPOLOGY,
            self.policy,
            self.model.now + later,
            tuple(self.barriers.values()),
            facts,
            old.completed,
            old.ended,
        )
        assert [plain(a) for a in actions] == [("abort", n, "DRIVER_RESTART") for n in lost]
        assert self.state.next_id == old.next_id
        self.fates |= dict.fromkeys(lost, "aborted")
        self.forget(later)

    def forget(self, later):
        """What a model knows after a restart: the tables, and nothing else."""
        old, self.model = self.model, Model(*self.settings)
        self.model.newest, self.model.completed = old.newest, old.completed
        self.model.now = self.model.triggered_ms = old.now + later
        self.model.ended = old.ended
        self.model.exhausted = dict.fromkeys(old.ended, 0)

    @invariant()
    def every_id_has_one_place(self):
        pending = set(self.state.pending)
        assert pending == self.barriers.keys() - self.fates.keys()
        assert set(self.model.pending) == pending

    @invariant()
    def counts_agree(self):
        assert self.state.failures == self.model.failures
        assert self.state.completed_id == self.model.completed
        assert {r.stage for r in self.state.ended} == self.model.ended


TestCoordinatorMachine = CoordinatorMachine.TestCase
TestCoordinatorMachine.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, derandomize=True, database=None
)
TestCoordinatorMachine.__doc__ = "Any history of a job's checkpoints: as the model decides."
