"""What is gathered from tables and directories that are no more than dictionaries."""

import json
from datetime import datetime, timezone

import pyarrow as pa
import pytest

from absflow.errors import NotFoundError
from absflow.facts.columns import ATTEMPTS, BARRIERS, CHECKPOINTS
from absflow.facts.inventory import gather
from absflow.facts.matching import expression
from absflow.protocol.retention.inventory import (
    Channel,
    DropChannels,
    DropPositions,
    DropWorkingDirectory,
    InFlight,
    Pending,
    RetentionPolicy,
    Sink,
)
from absflow.protocol.retention.plan import needed, plan
from absflow.storage.layout import Layout

ROOT = "/job"
LAYOUT = Layout(ROOT)


class Memory:
    """A storage root in memory; a file ends its path."""

    def __init__(self, tables, values, files):
        self.tables, self._values, self.files = tables, values, files

    def table(self, path, columns, matches=()):
        schema = {LAYOUT.attempts: ATTEMPTS, LAYOUT.barriers: BARRIERS}.get(path, CHECKPOINTS)
        table = pa.Table.from_pylist(self.tables[path], schema=schema)
        return (table.filter(expression(matches)) if matches else table).select(columns)

    def values(self, table, column):
        return frozenset(self._values[table, column])

    def sets(self, table):
        return {set_id: 10 * abs(set_id) for set_id in self._values[table, "set_id"]}

    def names(self, directory):
        inside = f"{directory}/"
        below = (f.removeprefix(inside) for f in self.files if f.startswith(inside))
        return sorted({name.split("/")[0] for name in below})

    def read(self, path):
        return self.files.get(path)


def described(channel, inputs, table):
    return {
        "inputs": inputs,
        "key": [["k", "int64"]],
        "state": [],
        "channel": channel,
        "table": table,
    }


def completed(n, attempt, batches, in_flight=None, **more):
    stages = [
        {"stage": s, "batch_id": b, "lineage": [n], "keys_total": 7}
        | {"in_flight": (in_flight or {}).get(s, [])}
        for s, b in batches.items()
    ]
    return {
        "kind": "COMPLETED",
        "type": "CHECKPOINT",
        "checkpoint_id": n,
        "attempt": attempt,
        "stages": stages,
        **more,
    }


def trigger(n, base, kind="CHECKPOINT", attempt=2):
    at = datetime.now(tz=timezone.utc)
    return {
        **{"checkpoint_id": n, "base_id": base, "completed_id": base, "kind": kind},
        **{"attempt": attempt, "triggered_at": at},
    }


def memory(commits=(5, 4), triggers=(), facts=(), note=None, direct=False):
    """Stages `a` to `b`; attempt 2 was restored from 3 of attempt 1, before 4 of attempt 1.

    With `direct` another stage in front of `a`, whose query runs both.
    """
    root, channel = [["x", [], True, "parquet"]], [["a", [], False, "delta"]]
    graphs = {
        n: {"a": described(True, root, table), "b": described(False, channel, "b")}
        for n, table in ((1, "a"), (2, "a.2"))
    }
    if direct:
        for graph in graphs.values():
            graph["a"] = described(True, [["first", [], False, ""]], graph["a"]["table"])
            graph["first"] = described(False, root, "first")
    attempts = [
        {
            "attempt": n,
            "incarnation": n,
            "kind": "STARTED",
            "details": json.dumps(graph),
            "restored_from": f"file:///job#{3}" if n == 2 else None,
        }
        for n, graph in graphs.items()
    ]
    ready = json.dumps({"published": {"out": 3}})
    attempts += [
        {"attempt": n, "incarnation": n, "kind": "READY", "details": ready} for n in graphs
    ]
    tables = {
        LAYOUT.attempts: attempts,
        LAYOUT.barriers: [trigger(4, 3, attempt=1), *triggers],
        LAYOUT.checkpoints: [
            completed(3, 1, {"a": 1, "b": 1}),
            completed(4, 1, {"a": 2, "b": 2}),
            *facts,
        ],
    }
    values = {
        (LAYOUT.state("a"), "set_id"): [3, 4],
        (LAYOUT.state("a.2"), "set_id"): [5],
        (LAYOUT.state("b"), "set_id"): [-3, 5],
        (LAYOUT.channel("a", 2), "_epoch"): [5, 6, 7],
    }
    done = zip(["first" if direct else "a", "b"], commits, strict=True)
    paths = [f"{LAYOUT.spark_checkpoint(stage, 2)}/commits/{n}" for stage, n in done]
    paths += [f"{LAYOUT.state(name)}/x" for name in ("a", "a.2", "b")]
    paths += [f"{LAYOUT.channel('a', n)}/x" for n in (1, 2)]
    paths += [f"{LAYOUT.work(1)}/x", f"{LAYOUT.positions_of(1)}/x", f"{LAYOUT.positions_of(2)}/x"]
    files = dict.fromkeys(paths, "")
    if note is not None:
        files[LAYOUT.published("out", 2)] = str(note)
    return Memory(tables, values, files)


def gathered(**given):
    return gather(memory(**given), LAYOUT, {"out": "a"}).inventory


def test_sets_and_directories_are_what_lies_there():
    """A stage's sets are those of all its tables, whichever attempt wrote them."""
    there = gathered()
    assert there.sets == {"a": {3, 4, 5}, "b": {-3, 5}}
    assert there.rows == {"a": {3: 30, 4: 40, 5: 50}, "b": {-3: 30, 5: 50}}
    assert there.completed[0].keys == {"a": 7, "b": 7}
    assert (there.attempts, there.ready) == ({1: 0, 2: 3}, True)
    assert (there.working, there.positions) == ({1, 2}, {1, 2})


def test_what_a_failed_restore_has_left_is_nobodys():
    """The attempt before is the current one, so retention spares its things and takes the rest."""
    made = memory(facts=[completed(5, 2, {"a": 4, "b": 3})])
    started = {"attempt": 3, "incarnation": 3, "restored_from": f"{ROOT}#5"}
    graph = made.tables[LAYOUT.attempts][1]["details"].replace("a.2", "a.3")
    made.tables[LAYOUT.attempts] += [
        {**started, "kind": "STARTED", "details": graph},
        {**started, "kind": "FAILED", "details": "{}"},
    ]
    left = (LAYOUT.work(3), LAYOUT.positions_of(3), LAYOUT.channel("a", 3))
    made.files |= dict.fromkeys((f"{path}/x" for path in left), "")
    found = gather(made, LAYOUT, {"out": "a"})
    assert found.stages.newest["a"].table == "a.2"
    there = found.inventory
    assert (there.attempt, there.attempts, there.ready) == (2, {1: 0, 2: 3}, True)
    assert there.channels[1].committed == 5
    actions = plan(there, RetentionPolicy(retained=3))
    assert DropWorkingDirectory(3) in actions
    assert DropPositions(3) in actions
    assert DropChannels(3) in actions
    assert DropWorkingDirectory(2) not in actions


def test_an_epoch_is_behind_a_stage_once_its_batch_is_committed():
    """Of reader and writer both; another attempt's batch numbers say nothing."""
    facts = [completed(5, 2, {"a": 4, "b": 3}), completed(6, 2, {"a": 5, "b": 5})]
    assert gathered(facts=facts).channels == (
        Channel("a", 1),
        Channel("a", 2, frozenset({5, 6, 7}), committed=5),
    )
    assert gathered(facts=facts, commits=(5, 5)).channels[1].committed == 6
    assert gathered(facts=facts, commits=(3, 9)).channels[1].committed == 0
    assert gathered(commits=(9, 9)).channels[1].committed == 0
    written = completed(8, 2, {"a": 0, "b": 0}, derived_from=5, incarnation=9)
    assert gathered(facts=[*facts, written]).channels[1].committed == 5


def test_the_batches_of_a_chain_are_committed_under_its_first_stage():
    """So what lies in the channel of its last is behind that query, once it is."""
    facts = [completed(n, 2, {"first": n, "a": n, "b": n}) for n in (5, 6)]
    for commits, committed in [((5, 5), 5), ((6, 6), 6), ((4, 9), 0)]:
        there = gathered(facts=facts, commits=commits, direct=True)
        assert there.channels[1] == Channel("a", 2, frozenset({5, 6, 7}), committed)


def test_an_epoch_is_not_behind_a_reader_that_was_overtaken():
    """What checkpoint 6 has in flight is read later; and it names it for retention."""
    rows = {"input": "a", "attempt": 2, "epoch": 5}
    overtaken = completed(6, 2, {"a": 5, "b": 4}, in_flight={"b": [rows]})
    there = gathered(facts=[completed(5, 2, {"a": 4, "b": 3}), overtaken])
    assert there.channels[1].committed == 5
    assert there.completed[-1].in_flight == (InFlight("a", 2, 5),)
    aligned = completed(7, 2, {"a": 5, "b": 4})
    assert gathered(facts=[overtaken, aligned]).channels[1].committed == 7


def test_what_is_pending_and_what_is_too_new_to_tell():
    """A fact of an id that was triggered after the triggers were read ends nothing."""
    triggers = [trigger(5, 3), trigger(6, 3), {"kind": "END", "attempt": 2}]
    facts = [{"checkpoint_id": 5, "kind": "ABORTED"}, {"checkpoint_id": 9, "kind": "ABORTED"}]
    there = gathered(triggers=triggers, facts=facts)
    assert there.pending == (Pending(6, 3),)
    assert there.ended_id == 6


def test_deleted_and_compacted_facts_and_savepoints():
    """A deleted one is known only if the job goes on from it; a compaction if it may be read."""
    facts = [
        completed(5, 2, {"a": 1}, type="SAVEPOINT"),
        {"kind": "DELETED", "checkpoint_id": 3},
        {"kind": "DELETED", "checkpoint_id": 4},
        {"kind": "ABORTED", "type": "SAVEPOINT", "checkpoint_id": 8},
        {
            "kind": "COMPACTED",
            "checkpoint_id": 3,
            "stage": "b",
            "set_id": -3,
            "replaces": [3],
        },
        {"kind": "COMPACTED", "checkpoint_id": 5, "stage": "b", "set_id": -4, "replaces": [3, 4]},
    ]
    there = gathered(facts=facts)
    assert (there.deleted, there.savepoints) == ({3}, {5})
    assert [c.set_id for c in there.compacted] == [-3]
    assert {c.checkpoint_id: dict(c.lineages) for c in there.completed} == {
        3: {"a": (3,), "b": (3,)},
        5: {"a": (5,)},
    }


def test_a_written_savepoint_is_nothing_that_the_job_goes_on_from():
    """So what it does go on from is read, even deleted, though the other is newer."""
    facts = [
        completed(5, 2, {"a": 1}, type="SAVEPOINT"),
        {"kind": "DELETED", "checkpoint_id": 5},
        completed(8, 2, {"a": 0, "b": 0}, type="SAVEPOINT", derived_from=5),
    ]
    there = gathered(facts=facts)
    assert (there.written, there.savepoints) == ({8}, {5, 8})
    assert {c.checkpoint_id: dict(c.lineages) for c in there.completed}[5] == {"a": (5,)}
    assert needed(there).keys() == {3, 5}


def test_a_root_without_an_attempt_is_refused():
    """It holds a written savepoint at most, and a job begins with that."""
    root = memory()
    root.tables[LAYOUT.attempts] = []
    with pytest.raises(NotFoundError, match="no attempt of a job was ever started under '/job'"):
        gather(root, LAYOUT, {})


def test_what_a_sink_holds():
    """Its note, else what it held when the attempt began, by the attempt that took that."""
    assert gathered().sinks == (Sink("out", "a", {1: 3}),)
    facts = [completed(5, 2, {"a": 1})]
    assert gathered(facts=facts, note=5).sinks == (Sink("out", "a", {2: 5}),)
    assert gathered(note=77).sinks == (Sink("out", "a", {}),)


def test_a_checkpoint_is_read_as_its_attempt_wrote_it():
    """The stage's table of then, not of now."""
    found = gather(memory(), LAYOUT, {})
    assert found.columns("a", 3).table == "a"
    assert found.stages.newest["a"].table == "a.2"
