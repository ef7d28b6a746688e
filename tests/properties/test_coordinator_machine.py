"""The coordinator against a model, under any order of clocks, reports, failures and restarts."""

from collections import Counter
from dataclasses import replace

from coordinator_model import ROOTS, STAGES, Model
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from absflow.protocol.checkpoints import Fact, FactKind, FailureReason, StageReport
from absflow.protocol.coordinator import machine, pending
from absflow.protocol.coordinator.messages import (
    CheckpointFailed,
    CompletionWritten,
    DiscardReport,
    FailJob,
    FinishJob,
    HeldTooMuch,
    HistoryFound,
    InputExhausted,
    Policy,
    RefuseRequest,
    RootInput,
    SavepointRequested,
    StageReported,
    StopJob,
    StopRequested,
    Tick,
    Topology,
    Triggered,
    TriggerWritten,
    WriteAbort,
    WriteBarrier,
    WriteCompletion,
    WriteEnd,
    WriteOvertake,
)
from absflow.protocol.coordinator.pending import Coordinator

TOPOLOGY = Topology(STAGES, frozenset(RootInput(name, f"source {name}") for name in ROOTS))
NAMES = st.sampled_from(sorted(STAGES))
REASONS = st.sampled_from([r for r in FailureReason if r.counted or r is FailureReason.DECLINED])
# How far behind the newest id a message is: mostly it is about one of the last few, or the oldest
# pending one.
OLDEST = 4
HOUR = 3_600_000
BACK = st.integers(-1, OLDEST)


def plain(action):
    """An action as the model says it."""
    match action:
        case WriteBarrier(barrier):
            return ("trigger", barrier.checkpoint_id, barrier.base_id, action.request)
        case WriteCompletion(manifest):
            return ("commit", manifest.checkpoint_id, manifest.request)
        case WriteAbort(barrier, reason):
            return ("abort", barrier.checkpoint_id, reason.code, action.request)
        case WriteOvertake(barrier):
            return ("overtake", barrier.checkpoint_id)
        case RefuseRequest(request):
            return ("refuse", request)
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
        most=st.integers(1, 4),
        tolerated=st.sampled_from([0, 2, 99, 99]),
        patience=st.sampled_from([40, 5000, 5000]),
        aligned=st.sampled_from([None, None, 0, 20]),
    )
    def begin(self, **drawn):
        self.settings = (
            10,
            *(drawn[n] for n in ("timeout", "pause", "most", "tolerated", "patience", "aligned")),
        )
        self.policy = Policy(*self.settings)
        self.state = Coordinator(TOPOLOGY, self.policy)
        self.model = Model(*self.settings)
        self.changed = {name: set() for name in STAGES}
        self.barriers, self.fates, self.manifests = {}, {}, {}
        self.asked, self.answers = [], Counter()
        # What this attempt was restored from, and the newest id of all before it.
        self.floor = self.before = 0
        self.jumped = 0

    def post(self, event, due):
        before = self.state
        self.state, actions = machine.step(before, event)
        pending.validate(self.state)
        assert Counter(map(plain, actions)) == Counter(due)
        for action in actions:
            self.note(action)

    def note(self, action):
        match action:
            case WriteBarrier(barrier, kind, request):
                assert barrier.checkpoint_id not in self.barriers
                assert barrier.triggered_ms == self.wall_ms
                self.barriers[barrier.checkpoint_id] = Triggered(barrier, kind, request)
            case WriteAbort(barrier):
                assert barrier.checkpoint_id not in self.fates
                self.fates[barrier.checkpoint_id] = "aborted"
                self.answers[action.request] += 1
            case RefuseRequest(request):
                self.answers[request] += 1
            case WriteCompletion(manifest):
                self.manifests[manifest.checkpoint_id] = manifest
                self.lineages_add_up(manifest)

    def lineages_add_up(self, manifest):
        """Every change up to the stage's snapshot is in a set of its lineage, and no later one."""
        for part in manifest.stages:
            name, upto = part.report.stage, part.report.checkpoint_id
            covered = set()
            for set_id in part.lineage:
                base = self.barriers[set_id].barrier.base_id
                covered |= {n for n in self.changed[name] if base < n <= set_id}
            assert covered == {n for n in self.changed[name] if n <= upto}
            assert list(part.lineage) == sorted(set(part.lineage))

    def number(self, back):
        if back == OLDEST and self.state.pending:
            return min(self.state.pending)
        return max(self.state.next_id - 1 - back, 1)

    @property
    def wall_ms(self):
        """The wall clock, of which the model knows nothing."""
        return self.model.now + self.jumped

    @rule(jump=st.sampled_from([-HOUR, HOUR]))
    def set_the_clock(self, jump):
        self.jumped += jump

    @rule(later=st.sampled_from([1, 5, 10, 10, 10, 30]), changed=st.sets(NAMES))
    def tick(self, later, changed):
        """Time goes on; where a checkpoint is triggered, some stages have changed before it."""
        now = self.model.now + later
        for name in changed:
            self.changed[name].add(self.state.next_id)
        due = self.model.tick(now)
        self.post(Tick(now, self.wall_ms), due)

    @rule(back=BACK)
    def written(self, back):
        number = self.number(back)
        self.post(TriggerWritten(number), self.model.written(number))

    @rule(back=BACK, names=st.lists(NAMES, min_size=1, max_size=3))
    def report(self, back, names):
        number = self.number(back)
        for name in names:
            base = self.barriers[number].barrier.base_id if number in self.barriers else 0
            rows = len([n for n in self.changed[name] if base < n <= number])
            event = StageReported(StageReport(name, number, 0, rows_changed=rows))
            self.post(event, self.model.received("reported", number, name))

    @rule(back=BACK, names=st.lists(NAMES, min_size=1, max_size=3))
    def find(self, back, names):
        number = self.number(back)
        for name in names:
            record = self.model.pending.get(number)
            if record is None or name not in record.awaited or name in record.reported:
                self.post(HistoryFound(number, name), self.model.received("found", number, name))

    @rule(back=BACK)
    def acknowledge(self, back):
        """The usual course: written, reported and found by all."""
        self.written(back)
        self.report(back, sorted(STAGES))
        self.find(back, sorted(STAGES))

    @precondition(lambda self: not self.state.stopping)
    @rule(changed=st.sets(NAMES), asked=st.sampled_from([False, False, True]))
    def complete(self, changed, asked):
        """A whole checkpoint without a fault, if one is due; it may leave a savepoint behind."""
        if asked:
            self.ask(0, stop=False)
        self.tick(30, changed)
        self.acknowledge(0)
        self.commit_if_asked(landed=True)

    @rule(back=st.sampled_from([0, 0, 0, 1, 2]), stop=st.sampled_from([False] * 7 + [True]))
    def ask(self, back, stop):
        """A new request, or an old one again: a driver asks until it has seen the answer."""
        if not 0 < back <= len(self.asked):
            self.asked.append(f"request {len(self.asked)}")
            back = 1
        request = self.asked[-back]
        if not self.answers[request]:
            event = SavepointRequested(request, self.model.now, self.wall_ms, stop)
            self.post(event, self.model.ask(request, stop))

    @rule(
        kind=st.sampled_from(
            ["fail"] * 4 + ["exhaust"] * 2 + ["restart", "restart", "restore", "fork", "stop"]
        ),
        data=st.data(),
    )
    def mishap(self, kind, data):
        """Rare things in one rule, so that most of a history is made of checkpoints."""
        if kind == "fail":
            self.fail(data.draw(BACK), data.draw(REASONS))
        elif kind == "exhaust" and self.model.newest > 2:
            self.exhaust(data.draw(st.sampled_from(ROOTS)))
        elif kind in ("restart", "restore", "fork"):
            completed = [n for n, fate in self.fates.items() if fate == "completed"]
            if kind == "restart":
                self.restart(self.state.completed)
            elif completed:
                self.restore(self.manifests[data.draw(st.sampled_from(completed))], kind)
        elif kind == "stop" and self.model.newest > 5:
            self.post(StopRequested(), self.model.settle(self.model.stop()))

    def fail(self, back, reason):
        number = self.number(back)
        due = self.model.failed(number, reason.code, reason.counted)
        self.post(CheckpointFailed(number, reason, "cause"), due)

    @rule(back=BACK)
    def hold_too_much(self, back):
        number = self.number(back)
        self.post(HeldTooMuch(number), self.model.held(number))

    @rule(landed=st.sampled_from([True, True, False]), flying=st.sampled_from([0, 5]))
    def commit_if_asked(self, landed, flying=0):
        number = next((n for n, r in self.model.pending.items() if r.committing), None)
        if number is None:
            return
        if landed:
            assert number not in self.fates
            self.fates[number] = "completed"
            self.answers[self.manifests[number].request] += 1
            flying *= self.model.pending[number].overtaken
            due = self.model.committed(number, self.model.now, flying)
            self.post(CompletionWritten(number, self.model.now, flying), due)
        else:
            due = self.model.failed(number, "FINALIZE_FAILED", True)
            self.post(CheckpointFailed(number, FailureReason.FINALIZE_FAILED), due)

    def exhaust(self, root):
        event = InputExhausted(RootInput(root, f"source {root}"))
        self.post(event, self.model.exhaust(root))

    def restore(self, manifest, kind):
        """A new attempt: what came behind the manifest has not happened; a fork starts full."""
        for name in STAGES:
            part = manifest.stage(name)
            upto = part.report.checkpoint_id if part else 0
            self.changed[name] = {n for n in self.changed[name] if n <= upto}
        self.floor, self.before = manifest.checkpoint_id, self.state.next_id - 1
        self.model.ended = set()
        self.model.completed = manifest.checkpoint_id if kind == "restore" else 0
        self.state = replace(self.state, ended=frozenset())
        self.restart(manifest if kind == "restore" else None)

    def restart(self, completed):
        """The driver dies and recovers from triggers, facts, manifest and END rows."""
        kinds = {"aborted": FactKind.ABORTED, "completed": FactKind.COMPLETED}
        facts = tuple(Fact(n, kinds[fate]) for n, fate in self.fates.items())
        lost = sorted(self.barriers.keys() - self.fates.keys())
        old = self.state
        self.state, actions = machine.recover(
            TOPOLOGY,
            self.policy,
            self.model.now,
            tuple(replace(t, ours=n > self.before) for n, t in self.barriers.items()),
            facts,
            completed,
            old.ended,
            self.floor,
        )
        requests = [self.barriers[n].request for n in lost]
        due = [("abort", n, "DRIVER_RESTART", r) for n, r in zip(lost, requests, strict=True)]
        assert [plain(a) for a in actions] == due
        assert [a.release for a in actions] == [n > self.before for n in lost]
        assert self.state.next_id == old.next_id
        self.fates |= dict.fromkeys(lost, "aborted")
        self.answers.update(requests)
        self.forget()

    def forget(self):
        """What a model knows after a restart: the tables, and nothing else."""
        old, self.model = self.model, Model(*self.settings)
        self.model.newest, self.model.completed = old.newest, old.completed
        self.model.now = self.model.triggered_ms = old.now
        self.model.ended = old.ended
        self.model.exhausted = dict.fromkeys(old.ended, 0)

    @invariant()
    def every_id_has_one_place(self):
        pending = set(self.state.pending)
        assert pending == self.barriers.keys() - self.fates.keys()
        assert set(self.model.pending) == pending

    @invariant()
    def every_request_has_one_answer(self):
        """Or is pending; never both, and never two."""
        pending = Counter(p.request for p in self.state.pending.values() if p.request)
        for request in self.asked:
            assert self.answers[request] + pending[request] == 1

    @invariant()
    def counts_agree(self):
        assert self.state.failures == self.model.failures
        assert self.state.completed_id == self.model.completed
        assert {r.stage for r in self.state.ended} == self.model.ended


TestCoordinatorMachine = CoordinatorMachine.TestCase
TestCoordinatorMachine.settings = settings(
    max_examples=200, stateful_step_count=50, derandomize=True, database=None
)
TestCoordinatorMachine.__doc__ = "Any history of a job's checkpoints: as the model decides."
