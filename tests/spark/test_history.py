"""The history in Spark against storage roots whose answers are known, and against the CLI's."""

import sys
from pathlib import Path

import pytest

# The storage roots are those that the command line is tested with.
sys.path.append(str(Path(__file__).parents[1] / "cli"))

from shared_roots import CHECKPOINT_HISTORY, KEY_VALUES, aircraft, write_rich_root
from storage_roots import Checkpoint, complete, end_driver, restore, retire, write_root

import absflow
from absflow.cli.reader import Reader
from absflow.facts import reading

pytestmark = pytest.mark.spark

COMPLETED = [c.id for c in CHECKPOINT_HISTORY if c.kind == "COMPLETED"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_rich_root(tmp_path_factory.mktemp("history") / "it's (here) &")


@pytest.fixture(scope="module")
def history(spark, root):
    return absflow.history(spark, str(root.path))


@pytest.fixture(scope="module")
def views(spark, history):
    return history.create_views()


def rows_of(frame):
    """Rows as Arrow gives them, in an order of their own."""
    return in_order(frame.toArrow().to_pylist())


def in_order(rows):
    return sorted(rows, key=str)


def whole(stage, row):
    """A row of the model with every column."""
    return {name: row.get(name) for name in (*stage.keys.names, *stage.columns.names)}


def stateful(root):
    return [stage for stage in root.stages.values() if stage.keys.names]


# -- checkpoints ------------------------------------------------------------------------------


def test_checkpoints_has_every_one_with_its_status(history):
    """A barrier row without a terminal fact is a pending checkpoint; END rows are none."""
    rows = history.checkpoints().toArrow().to_pylist()
    assert [row["checkpoint_id"] for row in rows] == [c.id for c in CHECKPOINT_HISTORY]
    assert [row["status"] for row in rows] == [c.kind or "PENDING" for c in CHECKPOINT_HISTORY]
    assert [row["base_id"] for row in rows] == [c.base for c in CHECKPOINT_HISTORY]
    assert rows[6]["reason"] == "SNAPSHOT_FAILED"
    assert rows[6]["sentence"] == "a stage's state history could not be appended"
    assert rows[6]["cause"] == "stage aircraft: [Errno 28] disk full"
    assert rows[7]["sentence"] is None
    assert len(rows[7]["stages"]) == len(history.create_views()) // 2
    assert rows[8]["triggered_at"].isoformat() == "2026-01-02T09:01:30+00:00"
    assert (rows[8]["ended_at"], rows[8]["duration_ms"], rows[8]["stages"]) == (None, None, None)


def test_stages_has_every_report(history, root):
    """One row per completed checkpoint and stage; an ended stage repeats its last report."""
    rows = history.stages().toArrow().to_pylist()
    assert len(rows) == len(COMPLETED) * len(root.stages)
    only = history.stages(8).toArrow().to_pylist()
    assert only == [row for row in rows if row["checkpoint_id"] == 8]
    by_name = {row["stage"]: row for row in only}
    assert by_name["route-pairs"]["snapshot_id"] == 5
    assert by_name["aircraft"]["lineage"] == [6, 8]
    assert dict(by_name["legs"]["positions"]) == {"legs": '{"logOffset":3}'}


def test_checkpoints_are_those_of_the_job_as_it_is_now(spark, tmp_path):
    """Savepoints, attempts, what a restore abandoned and a lost driver left: as the CLI says."""
    root = write_root(tmp_path / "job", [aircraft()], CHECKPOINT_HISTORY)
    restore(root, 2, 4)
    complete(root, 10, attempt=2, type="SAVEPOINT")
    retire(root, 3)
    history = absflow.history(spark, str(root.path))
    end_driver(root, 3)
    rows = [row.asDict() for row in history.checkpoints().collect()]
    record = Reader(str(root.path)).history()
    names = ("checkpoint_id", "type", "status", "abandoned", "reason", "attempt")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (r.checkpoint_id, r.kind.value, r.status.value, r.abandoned, r.reason, r.attempt)
        for r in record.shown
    ]
    assert rows[8]["sentence"] == "the driver ended while it was pending"
    assert [row["checkpoint_id"] for row in rows if row["abandoned"]] == [5, 6, 7, 8, 9]
    assert rows[9]["type"] == "SAVEPOINT"
    history.create_views("now_")
    assert rows_of(spark.table("now_checkpoints")) == rows_of(history.checkpoints())
    assert rows_of(spark.table("now_checkpoint_stages")) == rows_of(history.stages())


def test_checkpoints_are_shown_without_a_job_of_spark(spark, root):
    """It would wait for a core beside a job that keeps all of them busy."""
    spark.sparkContext.setJobGroup("looking", "no job of Spark")
    try:
        history = absflow.history(spark, str(root.path))
        history.checkpoints().show()
        assert history.stages(8).collect()
        assert spark.sparkContext.statusTracker().getJobIdsForGroup("looking") == []
        history.state("aircraft", 8).collect()
        assert spark.sparkContext.statusTracker().getJobIdsForGroup("looking") != []
    finally:
        spark.sparkContext._jsc.clearJobGroup()


def test_the_checkpoints_of_an_old_job_stay_where_they_are(spark, root, history, monkeypatch):
    """They are not read into the driver, and look the same."""
    few = rows_of(history.checkpoints()), rows_of(history.stages())
    monkeypatch.setattr(reading, "_FEW", len(CHECKPOINT_HISTORY) - 1)
    assert "LocalTableScan" not in physical(history.checkpoints())
    assert (rows_of(history.checkpoints()), rows_of(history.stages())) == few


# -- state ------------------------------------------------------------------------------------


def test_state_at_every_completed_checkpoint(history, root):
    """State of every stage is what it was, and the readers with and without a JVM agree."""
    reader = Reader(str(root.path))
    for stage in stateful(root):
        for n in (1, 3) if stage.name.startswith("by-") else COMPLETED:
            found = history.state(stage.name, n)
            assert found.columns == [*stage.keys.names, *stage.columns.names]
            expected = in_order(whole(stage, row) for row in root.state(stage.name, n))
            assert rows_of(found) == expected, (stage.name, n)
            assert in_order(reader.state(stage.name, n).rows.to_pylist()) == expected


def test_state_without_a_checkpoint_is_that_of_the_newest_completed(history, root):
    """Neither the pending 9 nor an aborted one is taken."""
    stage = root.stages["aircraft"]
    expected = in_order(whole(stage, row) for row in root.state("aircraft", 8))
    assert rows_of(history.state("aircraft")) == expected


def test_state_is_one_filter_and_one_window(history):
    """The plan prunes partitions by the lineage's ids, shuffles once and joins nothing."""
    plan = physical(history.state("aircraft", 4))
    assert "PartitionFilters: [set_id" in plan
    assert plan.count("Exchange") == 1
    assert "Join" not in plan


# -- changes ----------------------------------------------------------------------------------


def test_changes_are_those_between_completed_checkpoints(history, root):
    """No orphan, no repetition; a key that a full snapshot lacks was deleted."""
    for stage in stateful(root):
        expected = [
            {"checkpoint_id": n, "op": op, **dict(zip(stage.keys.names, key, strict=True))}
            | {name: (row or {}).get(name) for name in stage.columns.names}
            for n, op, key, row in root.changes(stage.name)
        ]
        assert rows_of(history.changes(stage.name)) == in_order(expected), stage.name


def test_changes_of_one_key_come_in_order(history):
    """N1 was changed at 3, back at 4, changed at 6 and deleted at 8; 2 and 7 were aborted."""
    rows = history.changes("aircraft", {"tailnum": "N1"}).collect()
    assert [(r.checkpoint_id, r.op, r.legs) for r in rows] == [
        (1, "upsert", 1),
        (3, "upsert", 3),
        (4, "upsert", 1),
        (6, "upsert", 9),
        (8, "delete", None),
    ]


def test_changes_see_a_deletion_that_left_no_tombstone(history):
    """N2 is in no set after 1; the full snapshot 6 does not have it."""
    rows = history.changes("aircraft", {"tailnum": "N2"}).collect()
    assert [(r.checkpoint_id, r.op) for r in rows] == [(1, "upsert"), (6, "delete")]


def test_changes_of_the_null_key(history):
    """None asks for the null key."""
    rows = history.changes("aircraft", {"tailnum": None}).collect()
    assert [(r.checkpoint_id, r.op, r.legs) for r in rows] == [
        (1, "upsert", 7),
        (4, "delete", None),
        (8, "upsert", 8),
    ]
    rows = history.changes("route-pairs", {"origin": "EWR", "day": None}).collect()
    assert [(r.checkpoint_id, r.op) for r in rows] == [(1, "upsert"), (3, "delete")]


@pytest.mark.parametrize("name", sorted(KEY_VALUES))
def test_changes_of_a_key_of_any_type(history, name):
    """A Python value of the column's type finds its key."""
    rows = history.changes(f"by-{name}", {"k": KEY_VALUES[name][1]}).collect()
    assert [(r.checkpoint_id, r.n) for r in rows] == [(1, 1), (3, 4)]


def test_a_key_is_looked_for_where_the_rows_are_read(history):
    """The filter on the key reaches the scan of the state history, below both windows."""
    plan = physical(history.changes("aircraft", {"tailnum": "N1"}))
    assert "EqualNullSafe(tailnum,N1)" in plan
    assert "dynamicpruning" in plan


# -- difference -------------------------------------------------------------------------------


def test_difference_of_any_two_checkpoints(history, root):
    """Added, removed and changed keys with both sides; maps are compared by their entries."""
    for stage in (root.stages["aircraft"], root.stages["route-pairs"], root.stages["values"]):
        for a, b in [(1, 3), (3, 4), (4, 5), (6, 1), (8, 8)]:
            before, after = stage.state(a), stage.state(b)
            expected = []
            for key in {**before, **after}:
                was, now = (
                    {n: side[key].get(n) for n in stage.columns.names} if key in side else None
                    for side in (before, after)
                )
                if was != now:
                    op = "added" if was is None else "removed" if now is None else "changed"
                    names = dict(zip(stage.keys.names, key, strict=True))
                    expected.append({"op": op, **names, "before": was, "after": now})
            found = rows_of(history.difference(stage.name, a, b))
            assert found == in_order(expected), (stage.name, a, b)


def test_difference_joins_by_key(history):
    """Null-safe equality of keys is still an equality to join by, not a loop over all pairs."""
    assert "NestedLoop" not in physical(history.difference("route-pairs", 1, 5))


# -- views ------------------------------------------------------------------------------------


def test_the_views_are_named_after_the_stages(views):
    """A stage without state has none, and - becomes _."""
    assert views[:2] == ["checkpoints", "checkpoint_stages"]
    assert {"aircraft_state", "aircraft_changes", "route_pairs_state"} <= set(views)
    assert not [name for name in views if name.startswith("legs")]


def test_the_views_tell_what_the_methods_do(spark, history, root, views):
    """checkpoints, checkpoint_stages, <stage>_state at each checkpoint, <stage>_changes."""
    assert rows_of(spark.table("checkpoints")) == rows_of(history.checkpoints())
    assert rows_of(spark.table("checkpoint_stages")) == rows_of(history.stages())
    for stage in (root.stages["aircraft"], root.stages["route-pairs"], root.stages["by-bytes"]):
        view = stage.name.replace("-", "_")
        expected = [
            {"at_checkpoint": n, **whole(stage, row)}
            for n in COMPLETED
            for row in root.state(stage.name, n)
        ]
        assert rows_of(spark.table(f"{view}_state")) == in_order(expected)
        assert rows_of(spark.table(f"{view}_changes")) == rows_of(history.changes(stage.name))


def test_a_filter_on_at_checkpoint_comes_before_join_and_window(spark, views):
    """It reaches the scan of `checkpoints`; what is left of the lineage prunes the sets."""
    frame = spark.sql("SELECT * FROM aircraft_state WHERE at_checkpoint = 4 AND tailnum = 'N1'")
    assert [(r.at_checkpoint, r.legs) for r in frame.collect()] == [(4, 1)]
    plan = frame._jdf.queryExecution().optimizedPlan().toString()
    join, window = plan.index("Join Inner"), plan.index("Window [")
    assert window < join < plan.index("checkpoint_id#") < plan.index("= 4)")
    assert "= 4)" not in plan[:join]
    assert "EqualTo(checkpoint_id,4)" in physical(frame)
    assert "dynamicpruning" in physical(frame)
    assert "EqualTo(tailnum,N1)" in physical(frame)


def test_views_follow_the_tables(spark, tmp_path):
    """A checkpoint that completes after the views were created is in them."""
    root = write_root(tmp_path / "job", [aircraft()], CHECKPOINT_HISTORY[:3])
    absflow.history(spark, str(root.path)).create_views("later_")
    query = "SELECT max(at_checkpoint) AS newest FROM later_aircraft_state"
    assert spark.sql(query).first().newest == 3
    later = write_root(tmp_path / "later", [aircraft()], CHECKPOINT_HISTORY[:4])
    for table in ("checkpoints", "state/aircraft"):
        frame = spark.read.format("delta").load(str(later.path / table))
        column = "set_id" if "/" in table else "checkpoint_id"
        new = frame.where(f"{column} = 4")
        new.write.format("delta").mode("append").save(str(root.path / table))
    assert spark.sql(query).first().newest == 4


def test_a_query_over_several_views_is_of_one_moment(spark, tmp_path):
    """Also if they were looked up before and behind a commit: as the tables are when it runs."""
    root = write_root(tmp_path / "job", [aircraft()], CHECKPOINT_HISTORY[:3])
    absflow.history(spark, str(root.path)).create_views("moment_")
    newest = "max(checkpoint_id) AS {}"
    one = spark.table("moment_checkpoints").where("status = 'COMPLETED'")
    one = one.selectExpr(newest.format("a"))
    complete(root, 4)
    other = spark.table("moment_checkpoint_stages").selectExpr(newest.format("b"))
    row = one.crossJoin(other).first()
    assert (row.a, row.b) == (4, 4)


# -- where the root may lie, and errors -------------------------------------------------------


def test_the_root_may_be_relative(spark, root, monkeypatch, tmp_path):
    """As in conf/flights.conf: relative to where the driver was started."""
    driver = Path(spark._jvm.java.lang.System.getProperty("user.dir"))
    relative = Path(*[".."] * (len(driver.parts) - 1), *root.path.parts[1:])
    assert absflow.history(spark, str(relative)).state("aircraft", 1).count() == 3


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda h: h.state("planes"), "there is no stage 'planes'; the job has 'legs', 'aircraft'"),
        (lambda h: h.changes("legs"), "stage 'legs' forwards a source and keeps no state"),
        (
            lambda h: h.state("aircraft", 2),
            "checkpoint 2 was aborted (EXPIRED: not every stage reported within "
            "its timeout); completed are 6 from 1 to 8",
        ),
        (lambda h: h.difference("aircraft", 1, 9), "checkpoint 9 is pending; completed are 6"),
        (lambda h: h.stages(10), "checkpoint 10 was never triggered; completed are 6"),
        (lambda h: h.changes("aircraft", {"tail": 1}), "'tail' is no key column; stage 'aircraft'"),
        (
            lambda h: h.changes("route-pairs", {"day": None}),
            "the key lacks 'origin'; stage 'route-pairs' has the key columns 'origin', 'day'",
        ),
    ],
)
def test_what_is_not_there_is_said_with_what_is(history, ask, said):
    """Every lookup that fails is a NotFoundError that names what exists."""
    with pytest.raises(absflow.NotFoundError) as error:
        ask(history)
    assert str(error.value).startswith(said)


def test_a_stage_that_a_checkpoint_does_not_have(spark, tmp_path):
    """A stage of the graph that was not in the checkpoint yet is named with those that were."""
    root = write_root(tmp_path / "job", [aircraft()], [Checkpoint(1)])
    grown = write_root(tmp_path / "grown", [aircraft(), aircraft_too()], [Checkpoint(1)])
    (root.path / "attempts").rename(root.path / "attempts-before")
    (grown.path / "attempts").rename(root.path / "attempts")
    history = absflow.history(spark, str(root.path))
    said = "checkpoint 1 holds nothing of stage 'too'; it has 'aircraft'"
    with pytest.raises(absflow.NotFoundError, match=said):
        history.state("too")
    with pytest.raises(absflow.NotFoundError, match=said):
        Reader(str(root.path)).state("too", None)


def aircraft_too():
    stage = aircraft()
    return type(stage)("too", stage.keys, stage.columns, stage.states)


def test_another_directory_is_no_storage_root(spark, tmp_path):
    """Neither an empty nor an absent one."""
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(absflow.NotFoundError, match=r"a job \(or its job is just starting"):
            absflow.history(spark, str(path))


def test_no_checkpoint_yet(spark, tmp_path):
    """A job that has just started has an empty history, and no state."""
    root = write_root(tmp_path / "job", [aircraft()], [Checkpoint(1, kind=None)])
    history = absflow.history(spark, str(root.path))
    assert [r.status for r in history.checkpoints().collect()] == ["PENDING"]
    assert history.changes("aircraft").count() == 0
    with pytest.raises(absflow.NotFoundError, match="there is no completed checkpoint; 1 were"):
        history.state("aircraft")


def physical(frame):
    """The plan as it will be run."""
    return frame._jdf.queryExecution().executedPlan().toString()
