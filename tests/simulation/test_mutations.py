"""The checkers can fail: each deliberate mistake in the protocol is caught within a few seeds."""

from dataclasses import replace

import pytest
from mutating import assert_caught

from absflow.protocol import alignment, alignment_state
from absflow.protocol.alignment import Ignore, Reason
from absflow.protocol.alignment_state import Barrier, InputState
from absflow.protocol.coordinator import completion, machine, pending, triggers
from absflow.protocol.coordinator.messages import CompletionWritten, StopJob
from absflow.protocol.coordinator.pending import Coordinator, Pending
from absflow.simulation import driver, query, stage, tables, world

SEEDS = range(400)


def recover_with(change):
    """``recover`` whose answer goes through ``change``."""
    real = machine.recover
    return lambda *args: change(*real(*args))


def trigger_with(change):
    """Triggers whose barrier goes through ``change``."""
    return lambda number, base, completed, ms: change(Barrier(number, base, completed, ms))


def never_to_stop(*args, stop=False, **more):
    """The coordinator forgets what its savepoint was for."""
    return Pending(*args, **more)


def forgets_what_is_pending(real):
    """A request that is shown again is taken for a new one."""

    def trigger(state, event):
        hidden = {n: replace(p, request="") for n, p in state.pending.items()}
        after, said = real(replace(state, pending=hidden), event)
        return replace(after, pending=after.pending | state.pending), said

    return trigger


def stop_at_once(real):
    """The job of a stop with savepoint stops when the savepoint is triggered."""

    def trigger(state, event):
        state, said = real(state, event)
        if event.stop and not state.stopped:
            state, said = replace(state, stopping=True, stopped=True), (*said, StopJob())
        return state, said

    return trigger


def stop_in_any_case(real):
    """A savepoint that was to stop the job does so though it failed."""

    def abort(state, checkpoint_id, *why):
        stop = state.pending[checkpoint_id].stop
        state, said = real(state, checkpoint_id, *why)
        return (replace(state, stopping=True) if stop else state), said

    return abort


def triggers_never_again(real):
    """The clock does not start again after a stop whose savepoint failed."""

    def abort(state, checkpoint_id, *why):
        stop = state.pending[checkpoint_id].stop
        state, said = real(state, checkpoint_id, *why)
        policy = replace(state.policy, max_concurrent=0) if stop else state.policy
        return replace(state, policy=policy), said

    return abort


def settle_without_skipping(real):
    """An id that one input never brings is awaited for ever."""

    def settle(state):
        heads = {i.waiting[0].checkpoint_id for i in state.inputs.values() if i.waiting}
        return (state, ()) if len(heads - state.dead) > 1 else real(state)

    return settle


def deaf_where_inputs_join(real):
    """Only stages with one input take notice of an abort."""

    def abort(state, event):
        deaf = len(state.inputs) > 1
        return Ignore(event, Reason.LATE) if deaf else real(state, event)

    return abort


def snapshot_without_tombstones(real):
    """Deletions are forgotten before they have reached any history."""

    def snapshot(work, *more):
        work.values = {k: e for k, e in work.values.items() if e.value is not None}
        real(work, *more)

    return snapshot


def put_that_forgets_too_early(work, key, value):
    """A key that came since the last checkpoint completed is taken for one that no snapshot has."""
    before = work.values.get(key)
    came = before is None or before.came
    if value is None and came:
        work.values.pop(key, None)
    else:
        work.values[key] = stage.Entry(value, work.epoch, came)


def forgetful_query(real):
    """Positions are kept in the memory of the query, so a query that dies forgets them."""

    def begin(self, scene, spec, *rest):
        real(self, scene, spec, *rest)
        files = scene.tables.stages[spec.name]
        files.memories[files.committed] = replace(files.memory, cuts={})

    return begin


def one_row_too_late(real):
    """The reference to a channel leaves out the first row that the stage had not read."""

    def snapshot(work, barrier, after):
        real(work, barrier, after)
        last = work.snapshots.pop()
        in_flight = {name: at + 1 for name, at in last.in_flight.items()}
        work.snapshots.append(replace(last, in_flight=in_flight))

    return snapshot


def blocks_though_overtaken(real):
    """Late barriers wait for the other inputs like any other."""

    def barrier(state, event):
        changed = real(replace(state, snapshot=0), event)
        if isinstance(changed, Ignore):
            return changed
        after, said = changed
        return replace(after, snapshot=state.snapshot), said

    return barrier


def may_always_overtake(state, pending):
    """Savepoints are overtaken like checkpoints."""
    return state.policy.aligned_timeout_ms is not None and not pending.overtaken


def append_always(self, version, items):
    """A replayed batch writes its rows again."""
    given = tuple(items)
    self.items.extend(given)
    return bool(given)


def gate_of_blocked_inputs(real):
    """An open input admits everything."""

    def gate(state, name):
        return real(state, name) if state.inputs[name].waiting else None

    return gate


MUTATIONS = {
    "the gate is ignored": (
        [(alignment_state, "gate", lambda state, name: None)],
        "consistent cut",
    ),
    "an open input lets rows from behind a coming barrier pass": (
        [(alignment_state, "gate", gate_of_blocked_inputs(alignment_state.gate))],
        "consistent cut",
    ),
    "a snapshot does not wait for the other inputs": (
        [
            (InputState, "live", property(lambda self: bool(self.waiting))),
            (alignment_state, "validate", lambda state: None),
        ],
        "has rows in flight",
    ),
    "a join neither notices aborts nor gives up what one input never brings": (
        [
            (alignment, "_settle", settle_without_skipping(alignment._settle)),
            (alignment, "_abort", deaf_where_inputs_join(alignment._abort)),
            (alignment_state, "validate", lambda state: None),
        ],
        "stuck",
    ),
    "a lineage forgets its base": (
        [(completion, "extend_lineage", lambda old, n, base, rows: (n,) if rows else ())],
        "consistent cut",
    ),
    "an empty snapshot forgets its lineage": (
        [
            (
                completion,
                "extend_lineage",
                lambda old, n, base, rows: (*old, n) if base and rows else (n,) if rows else (),
            )
        ],
        "consistent cut",
    ),
    "completion does not wait for the history": (
        [(Pending, "complete", property(lambda self: self.awaited <= self.reports.keys()))],
        "are not in the history",
    ),
    "completion does not wait for every stage": (
        [(Pending, "complete", property(lambda self: bool(self.found)))],
        "has stages",
    ),
    "increments are relative to a checkpoint that may yet fail": (
        [(triggers, "Barrier", trigger_with(lambda b: replace(b, base_id=b.checkpoint_id - 1)))],
        "consistent cut",
    ),
    "tombstones go as soon as the next trigger": (
        [(stage, "_snapshot", snapshot_without_tombstones(stage._snapshot))],
        "consistent cut",
    ),
    "a key that a snapshot has leaves no tombstone": (
        [(stage, "_put", put_that_forgets_too_early)],
        "consistent cut",
    ),
    "ids of a dead driver are used again": (
        [
            (
                machine,
                "recover",
                recover_with(lambda state, said: (replace(state, next_id=1), said)),
            ),
            (pending, "validate", lambda state: None),
        ],
        "ids do not rise",
    ),
    "a restart does not abort what was pending": (
        [(machine, "recover", recover_with(lambda state, said: (state, ())))],
        "stuck",
    ),
    "a position is read at the snapshot and not at the barrier": (
        [(stage, "_note_cuts", lambda work: None)],
        "consistent cut",
    ),
    "positions die with the query": (
        [(query.Query, "__init__", forgetful_query(query.Query.__init__))],
        "consistent cut",
    ),
    "a replayed batch writes its rows again": (
        [(tables.Channel, "append", append_always)],
        "exactly once",
    ),
    "a stage that has ended is awaited": (
        [(triggers, "live_stages", lambda topology, ended: frozenset(topology.upstream))],
        "stuck",
    ),
    "a savepoint is an increment": (
        [
            (triggers, "Barrier", trigger_with(lambda b: replace(b, base_id=b.completed_id))),
            (pending, "validate", lambda state: None),
        ],
        "does not stand alone",
    ),
    "a savepoint is subsumed": (
        [
            (
                machine,
                "subsumed",
                lambda state, number: [n for n in sorted(state.pending) if n < number],
            )
        ],
        "was subsumed",
    ),
    "a savepoint that is late becomes the base": (
        [
            (
                machine,
                "advance",
                lambda state, manifest, ms: replace(state, completed=manifest, completed_ms=ms),
            )
        ],
        "goes on from",
    ),
    "the job stops before its savepoint has completed": (
        [(machine, "trigger_savepoint", stop_at_once(machine.trigger_savepoint))],
        "stopped without a reason",
    ),
    "the job stops though its savepoint failed": (
        [(machine, "_abort", stop_in_any_case(machine._abort))],
        "stopped without a reason",
    ),
    "the clock stays off when the savepoint of a stop has failed": (
        [
            (machine, "_abort", triggers_never_again(machine._abort)),
            (pending, "validate", lambda state: None),
        ],
        "stuck",
    ),
    "the job goes on though the savepoint of its stop has completed": (
        [(triggers, "Pending", never_to_stop)],
        "went on after savepoint",
    ),
    "the clock goes on triggering while a stop waits for its savepoint": (
        [
            (Coordinator, "leaving", False),
        ],
        "a job that is to stop triggers nothing more",
    ),
    "a restart forgets who asked": (
        [
            (
                machine,
                "recover",
                recover_with(lambda state, said: (state, [replace(a, request="") for a in said])),
            )
        ],
        "not what was asked",
    ),
    "a refusal is said to nobody": (
        [(triggers, "RefuseRequest", lambda request, why: StopJob())],
        "stuck",
    ),
    "what is in flight is forgotten": (
        [(alignment_state, "in_flight", lambda state, name, number: False)],
        "consistent cut",
    ),
    "what is in flight is taken from one row too late": (
        [(stage, "_snapshot", one_row_too_late(stage._snapshot))],
        "consistent cut",
    ),
    "a barrier that was overtaken blocks its input": (
        [
            (alignment, "_barrier", blocks_though_overtaken(alignment._barrier)),
            (alignment_state, "validate", lambda state: None),
        ],
        "epochs fall",
    ),
    "a savepoint is overtaken": (
        [
            (machine, "_may_overtake", may_always_overtake),
            (pending, "validate", lambda state: None),
        ],
        "has rows in flight",
    ),
    "a job finishes though rows are in flight": (
        [(driver, "CompletionWritten", lambda number, ms, rows: CompletionWritten(number, ms))],
        "does not hold every row",
    ),
    "a request is triggered again while it is pending": (
        [
            (
                machine,
                "trigger_savepoint",
                forgets_what_is_pending(machine.trigger_savepoint),
            ),
            (pending, "validate", lambda state: None),
        ],
        "answers",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_is_caught(name, monkeypatch):
    """With this mistake some world breaks a promise, and the checkers say which."""
    assert_caught(monkeypatch, MUTATIONS[name], SEEDS, lambda n: world.run(n).violations, name)
