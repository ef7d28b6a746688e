"""What a written savepoint holds, and where its state goes."""

import pytest

from absflow.protocol.checkpoints import Kind, Manifest, StageManifest, StageReport
from absflow.protocol.recovery.savepoint_writer import compose, describe, table_for


def part(name, keys=5):
    report = StageReport(
        name, 4, 9, {f"{name}-in": "7"}, rows_changed=2, keys_total=keys, held_rows=3, sync_ms=8
    )
    return StageManifest(report, (1, 4))


BASE = Manifest(4, 1, 1000, (part("a"), part("b")), Kind.CHECKPOINT)


def test_what_is_not_given_is_kept_as_it_was():
    """The report is of the base, and so is the lineage: nothing is copied."""
    made = compose(6, 2000, BASE, {"a": 3}, {})
    assert made.stage("b") is BASE.stage("b")
    assert [s.report.stage for s in made.stages] == ["a", "b"]
    assert (made.checkpoint_id, made.base_id, made.derived_from) == (6, 0, 4)
    assert (made.kind, made.triggered_ms, made.request) == (Kind.SAVEPOINT, 2000, "")


def test_what_is_given_is_one_full_set_at_the_positions_of_the_base():
    """Nothing of how the base came about is said of it."""
    report = StageReport("a", 6, 9, {"a-in": "7"}, rows_changed=3, keys_total=3)
    assert compose(6, 2000, BASE, {"a": 3}, {}).stage("a") == StageManifest(report, (6,))


def test_no_keys_are_no_set():
    """As of a snapshot without a change."""
    report = StageReport("a", 6, 9, {"a-in": "7"})
    assert compose(6, 2000, BASE, {"a": 0}, {}).stage("a") == StageManifest(report, ())


def test_what_is_made_from_nothing_has_no_positions():
    """So every source begins where its options say."""
    made = compose(1, 2000, None, {"a": 0, "b": 2}, {})
    assert made.derived_from == 0
    assert made.stages == (
        StageManifest(StageReport("a", 1, 0), ()),
        StageManifest(StageReport("b", 1, 0, rows_changed=2, keys_total=2), (1,)),
    )


def test_what_is_made_from_nothing_may_be_given_positions():
    """Those of another program whose state it is; of other sources there are none."""
    made = compose(1, 2000, None, {"a": 0, "b": 2}, {}, {"b": {"clicks": "7"}})
    assert [dict(stage.report.positions) for stage in made.stages] == [{}, {"clicks": "7"}]


def stage(state="int64", inputs=("x",), table=None, groups=4):
    described = {"inputs": list(inputs), "key": [["k", "string"]], "state": [["n", state]]}
    described |= {"output": [], "key-groups": groups, "channel": False}
    return described if table is None else {**described, "table": table}


def test_stages_are_described_as_the_savepoint_holds_them():
    """Given ones have the columns of now, but what they have read; others are as they were."""
    base = {"a": stage("int32", table="a"), "b": stage(inputs=["a"], table="b.2")}
    given = {"a": stage(inputs=["x", "y"], groups=7), "new": stage(inputs=["z"])}
    assert describe(base, given, {"a": "a.s6", "new": "new"}) == {
        "a": stage(inputs=["x"], groups=7, table="a.s6"),
        "b": base["b"],
        "new": stage(inputs=[], table="new"),
    }


@pytest.mark.parametrize(
    ("known", "table"),
    [
        ([], "a"),
        ([{}, {"b": stage(table="b")}], "a"),
        ([{"a": stage(table="a.2")}, {"a": stage(table="a")}], "a.2"),
        ([{"a": stage("int32", table="a.2")}, {"a": stage(table="a")}], "a"),
        ([{"a": stage("int32", table="a")}], "a.s6"),
        ([{"b": stage(table="a")}], "a.s6"),
    ],
    ids=["new", "new stage", "the base's", "an older one", "other columns", "another's"],
)
def test_a_set_goes_to_a_table_of_its_columns(known, table):
    """One that there is, for sets have ids of their own; else one that no stage has used."""
    assert table_for("a", stage(), known, 6) == table
