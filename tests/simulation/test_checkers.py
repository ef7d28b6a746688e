"""Each broken promise is noticed: the tables of a good run, tampered with."""

import doctest
from dataclasses import replace

import pytest

from absflow.protocol.alignment_state import Barrier
from absflow.protocol.checkpoints import Fact, FactKind, FailureReason, Kind
from absflow.protocol.coordinator.messages import Triggered
from absflow.simulation import checkers, narrate
from absflow.simulation.faults import Rates
from absflow.simulation.items import Sent
from absflow.simulation.job import GRAPHS
from absflow.simulation.tables import Request
from absflow.simulation.world import Result, run

GRAPH = next(graph for graph in GRAPHS if graph.name == "join")


@pytest.fixture
def tables():
    """What a run of the join left behind; each test has its own."""
    result = run(41, graph=GRAPH, rates=Rates())
    assert (result.finished, result.violations) == (True, ())
    assert len(result.tables.manifests) > 3
    return result.tables


def found(tables, finished=True):
    return "\n".join(checkers.check(GRAPH, tables, finished))


def channel_rows(tables, stage="c"):
    items = tables.channels[stage].items
    return items, [at for at, item in enumerate(items) if isinstance(item, Sent)]


def newest(tables):
    return tables.manifests[max(tables.manifests)]


def with_part(manifest, stage, change):
    """The manifest with one stage's part changed."""
    parts = tuple(change(p) if p.report.stage == stage else p for p in manifest.stages)
    return replace(manifest, stages=parts)


def test_good_tables_pass(tables):
    """The tables of a run without faults break no promise."""
    assert found(tables) == ""


def test_a_lost_row_is_noticed(tables):
    """A row that is missing in a channel is named with its path."""
    items, rows = channel_rows(tables)
    del items[rows[3]]
    assert "exactly once: row" in found(tables)


def test_a_lost_last_row_is_noticed(tables):
    """Also the last one, where a prefix alone would look good."""
    items, rows = channel_rows(tables)
    del items[rows[-1]]
    assert "rows of" in found(tables)


def test_a_row_that_came_twice_is_noticed(tables):
    """A duplicate in a channel is a row that was not due."""
    items, rows = channel_rows(tables)
    items.insert(rows[3], items[rows[3]])
    assert "exactly once: row" in found(tables)


def test_rows_out_of_order_are_noticed(tables):
    """Two rows of one path in the wrong order are two rows that were not due."""
    items, rows = channel_rows(tables, "a")
    items[rows[0]], items[rows[1]] = items[rows[1]], items[rows[0]]
    assert "exactly once: row 0" in found(tables)


def test_falling_epochs_are_noticed(tables):
    """A row may not claim to stand before a barrier that has gone before it."""
    items, rows = channel_rows(tables, "a")
    items[rows[-1]] = replace(items[rows[-1]], epoch=0)
    assert "epochs fall" in found(tables)


def test_a_row_on_the_wrong_side_of_a_barrier_is_noticed(tables):
    """The output before a barrier is what the rows before the cut give: not one row more."""
    items, rows = channel_rows(tables, "a")
    first = items[rows[0]]
    checkpoint_id = min(tables.manifests)
    at = next(at for at in rows if items[at].epoch > checkpoint_id)
    items[at] = replace(items[at], epoch=first.epoch)
    assert "stand before barrier" in found(tables)


def test_a_wrong_value_in_a_history_is_noticed(tables):
    """One number in one set is enough."""
    history = tables.histories["b"].sets
    set_id = newest(tables).stage("b").lineage[-1]
    key = next(iter(history[set_id]))
    history[set_id] = {**history[set_id], key: (1000, 1000)}
    assert f"{key} is (1000, 1000)" in found(tables)


def test_missing_tombstones_are_noticed(tables):
    """A deleted key that is still there in the sum of the increments is a wrong state."""
    for history in tables.histories.values():
        for set_id, changes in history.sets.items():
            history.sets[set_id] = {k: v for k, v in changes.items() if v is not None}
    assert "due None" in found(tables)


def test_a_missing_set_is_noticed(tables):
    """A lineage that names a set which is not in the history cannot be restored."""
    set_id = newest(tables).stage("b").lineage[0]
    del tables.histories["b"].sets[set_id]
    assert f"sets [{set_id}] are not in the history of b" in found(tables)


def test_a_shortened_lineage_is_noticed(tables):
    """The newest set of a lineage alone lacks the keys that only older ones have."""
    manifest = newest(tables)
    shorter = with_part(manifest, "c", lambda p: replace(p, lineage=p.lineage[-1:]))
    tables.manifests[manifest.checkpoint_id] = shorter
    assert "consistent cut" in found(tables)


def test_a_wrong_position_is_noticed(tables):
    """The state must be that of the recorded positions, not of some others."""
    checkpoint_id = min(tables.manifests)

    def moved(part):
        positions = {n: str(int(at) + 1) for n, at in part.report.positions.items()}
        return replace(part, report=replace(part.report, positions=positions))

    tables.manifests[checkpoint_id] = with_part(tables.manifests[checkpoint_id], "a", moved)
    assert f"checkpoint {checkpoint_id}, stage a" in found(tables)


def test_positions_that_go_back_are_noticed(tables):
    """A later checkpoint cannot stand before an earlier one."""
    manifest = newest(tables)

    def moved(part):
        return replace(part, report=replace(part.report, positions={"x": "0"}))

    tables.manifests[manifest.checkpoint_id] = with_part(manifest, "a", moved)
    assert "x goes from" in found(tables)


def test_a_missing_stage_is_noticed(tables):
    """A manifest without one of the stages is no checkpoint of the job."""
    manifest = newest(tables)
    tables.manifests[manifest.checkpoint_id] = replace(manifest, stages=manifest.stages[:2])
    assert "has stages ['a', 'b']" in found(tables)


def test_a_missing_last_checkpoint_is_noticed(tables):
    """A finished job's newest checkpoint holds every row."""
    for checkpoint_id in list(tables.manifests)[1:]:
        del tables.manifests[checkpoint_id]
    assert "does not hold every row" in found(tables)


def test_ids_that_do_not_rise_are_noticed(tables):
    """Neither triggers nor completions may come out of order."""
    tables.barriers.append(Triggered(Barrier(1)))
    tables.facts.append(Fact(min(tables.manifests), FactKind.COMPLETED))
    said = found(tables)
    assert "1 was triggered after" in said
    assert "1 goes on from 0" in said
    assert "completed after" in said


def test_a_completion_after_an_abort_is_noticed(tables):
    """The first terminal fact decides, so the other one must not exist."""
    tables.facts.insert(0, Fact(max(tables.manifests), FactKind.ABORTED))
    assert "was aborted before it completed" in found(tables)


def test_a_pending_checkpoint_at_the_end_is_noticed(tables):
    """Every trigger has come to a terminal fact when the job has ended."""
    rows = [row for row in tables.barriers if isinstance(row, Triggered)]
    triggered = rows[-1].barrier.checkpoint_id
    tables.barriers.append(Triggered(Barrier(triggered + 1)))
    assert f"checkpoint {triggered + 1} has come to no end" in found(tables)


def as_savepoint(tables, checkpoint_id, *, stop=False):
    """Have a completed checkpoint be the savepoint that somebody wished."""
    tables.requests.append(Request("request", stop))
    for at, row in enumerate(tables.barriers):
        if isinstance(row, Triggered) and row.barrier.checkpoint_id == checkpoint_id:
            tables.barriers[at] = replace(row, request="request")
    tables.facts = [
        replace(fact, request="request") if fact.checkpoint_id == checkpoint_id else fact
        for fact in tables.facts
    ]
    manifest = replace(tables.manifests[checkpoint_id], kind=Kind.SAVEPOINT, request="request")
    tables.manifests[checkpoint_id] = manifest


def test_a_good_savepoint_passes(tables):
    """The first checkpoint is full, so it may be one, also the one of the request."""
    as_savepoint(tables, min(tables.manifests))
    assert found(tables) == ""


def test_a_savepoint_that_needs_other_sets_is_noticed(tables):
    """The newest checkpoint is an increment: it could not be kept without the others."""
    as_savepoint(tables, max(tables.manifests))
    assert f"savepoint {max(tables.manifests)} does not stand alone" in found(tables)


def test_a_savepoint_that_was_subsumed_is_noticed(tables):
    """It gives way to no other."""
    as_savepoint(tables, min(tables.manifests))
    fact = Fact(min(tables.manifests), FactKind.ABORTED, FailureReason.SUBSUMED, "request")
    tables.facts = [fact, *tables.facts[1:]]
    assert f"savepoint {fact.checkpoint_id} was subsumed" in found(tables)


def test_a_request_without_an_answer_is_noticed(tables):
    """Somebody would wait for ever."""
    tables.requests.append(Request("request", stop=False))
    assert found(tables) == "request has no answer"


def test_a_request_with_two_answers_is_noticed(tables):
    """Completed and refused."""
    as_savepoint(tables, min(tables.manifests))
    tables.refusals.append("request")
    assert found(tables) == "request has 2 answers"


def test_an_answer_to_another_request_is_noticed(tables):
    """The fact must carry what the trigger was asked by."""
    as_savepoint(tables, min(tables.manifests))
    tables.requests.append(Request("other", stop=False))
    tables.facts[0] = replace(tables.facts[0], request="other")
    assert "answers 'other', not what was asked" in found(tables)


def test_a_job_that_goes_on_after_the_savepoint_of_a_stop_is_noticed(tables):
    """Later checkpoints completed in the same run."""
    as_savepoint(tables, min(tables.manifests), stop=True)
    assert "the job went on after savepoint 1" in found(tables)


def test_a_job_that_stops_without_a_reason_is_noticed(tables):
    """Nobody wanted it, nothing failed, and rows are left."""
    (only,) = tables.runs
    assert only.why == "every row is read"
    only.why = ""
    assert found(tables) == "the job stopped without a reason"


def test_a_different_replay_is_noticed(tables):
    """A batch that is replayed must bring the rows it brought before."""
    channel = tables.channels["a"]
    version = max(channel.writes)
    assert not channel.append(version, ())
    assert "was replayed with other rows" in found(tables)


def test_a_world_without_an_end_is_stuck(tables):
    """Not coming to an end is a violation by itself."""
    assert "stuck" in found(tables, finished=False)


def test_a_failure_can_be_played_again(tables):
    """The message of a violation has the seed, the promise, and how it came to it."""
    story = tuple(f"event {n}" for n in range(100))
    result = Result(77, GRAPH, True, story, {}, ("consistent cut: broken",), tables)
    said = result.explain(lines=3).splitlines()
    assert said[0] == "seed 77: wrong is"
    assert said[1].strip() == "consistent cut: broken"
    assert said[-3:] == ["event 97", "event 98", "event 99"]


def test_the_story_has_one_aligned_line_per_event():
    """Time, who, what and checkpoint stand in columns, so that the eye finds them."""
    assert doctest.testmod(narrate).failed == 0
    story = run(41, graph=GRAPH, rates=Rates()).story
    assert all(line[:7].strip().isdigit() and line[7:9] == "  " for line in story)
    times = [int(line[:7]) for line in story]
    assert times == sorted(times)
    assert any("driver     completes" in line for line in story)


def overtaken(tables):
    """A checkpoint with rows in flight, and the channel they are in."""
    return next(
        (manifest, stage, name)
        for manifest in tables.manifests.values()
        for (stage, name), rows in tables.in_flight(manifest).items()
        if rows
    )


@pytest.mark.parametrize("moved", [1, -1])
def test_a_reference_that_begins_elsewhere_is_noticed(tables, moved):
    """One row that is in flight is left out, or one that was processed is taken in again."""
    manifest, stage, name = overtaken(tables)

    def change(part):
        in_flight = {**part.report.in_flight}
        in_flight[name] = str(int(in_flight[name]) + moved)
        return replace(part, report=replace(part.report, in_flight=in_flight))

    tables.manifests[manifest.checkpoint_id] = with_part(manifest, stage, change)
    assert "consistent cut" in found(tables)
