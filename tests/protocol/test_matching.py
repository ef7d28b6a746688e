"""How the stages of a graph get their state from a checkpoint of another graph."""

from dataclasses import replace

import pytest
from graph_cases import CHAIN, now, stage

from absflow.protocol.checkpoints import ChannelState, Manifest, StageManifest, StageReport
from absflow.protocol.event_time import EventTime
from absflow.protocol.recovery.matching import Declared, StageFit, fit, table_of
from absflow.protocol.source_time import SourceTime
from absflow.protocol.watermarks import InputTime, StageTime


def manifest(before, keys=5, lineage=(1, 3)):
    """A checkpoint of that graph: each of its stages has this many keys and this lineage."""
    reports = [
        StageReport(
            name,
            3,
            batch_id=9,
            keys_total=keys if described["key"] else 0,
            positions={n: f"{n} at 3" for n, _, root, _ in described["inputs"] if root},
        )
        for name, described in before.items()
    ]
    return Manifest(3, 1, 0, tuple(StageManifest(report, lineage) for report in reports))


def fitted(before, now, keys=5, **declared):
    return fit(manifest(before, keys), before, now, Declared(**declared))


def test_the_same_graph_fits():
    """Everything is taken as it is, and there is nothing to say."""
    matched = fitted(CHAIN, CHAIN)
    assert (matched.differences, matched.problems) == ((), ())
    assert matched.stages == (
        StageFit("left", "left", (1, 3), 5, key_groups=(4, 4)),
        StageFit("tally", "tally", (1, 3), 5, key_groups=(4, 4)),
    )
    assert matched.positions == {"a": "a at 3"}


def in_flight(graph, rows=3, before=CHAIN, **declared):
    """What a checkpoint of a chain with rows in flight to its second stage means for a graph."""
    taken = manifest(before)
    left, tally = taken.stages
    sender, receiver = before
    state = ChannelState(receiver, sender, 1, "-", 2, 0, (), rows, 100)
    taken = replace(taken, stages=(left, replace(tally, in_flight=(state,))))
    return fit(taken, before, graph, Declared(**declared)), state


def test_rows_in_flight_are_taken_along():
    """Also where the stages have other names now."""
    matched, state = in_flight(CHAIN)
    assert matched.problems == ()
    assert [s.in_flight for s in matched.stages] == [(), (("left", state),)]
    renamed = {"west": stage(), "sum": stage("g int64", inputs=("west",))}
    matched, state = in_flight(renamed, renamed={"west": "left", "sum": "tally"})
    assert matched.problems == ()
    assert matched.stages[1].in_flight == (("west", state),)
    # A checkpoint of after the renaming, with the code that still declares it.
    matched, state = in_flight(renamed, before=renamed, renamed={"west": "left", "sum": "tally"})
    assert matched.problems == ()
    assert matched.stages[1].in_flight == (("west", state),)


def test_event_time_of_an_input_is_that_of_its_stage_also_after_a_renaming():
    """The checkpoint has the name of now, and the code still declares the earlier one."""
    renamed = {"west": stage(), "sum": stage("g int64", inputs=("west",))}
    taken = manifest(renamed)
    west, total = taken.stages
    time = EventTime(StageTime({"west": InputTime(70)}))
    total = replace(total, report=replace(total.report, time=time))
    taken = replace(taken, stages=(west, total))
    declared = Declared({"west": "left", "sum": "tally"})
    assert fit(taken, renamed, renamed, declared).stages[1].time == time


def test_rows_in_flight_need_the_input_that_they_were_on_their_way_to():
    """With the same columns; what nothing is in flight to may change at will."""
    apart = {"left": CHAIN["left"], "tally": stage("g int64", inputs=("b parquet",))}
    matched, _ = in_flight(apart)
    assert "3 rows from 'left' were in flight" in matched.problems[0]
    assert "does not read any more" in matched.problems[0]
    wider = stage("g int64", inputs=("left",))
    wider["inputs"][0][1] = [["k", "string"], ["v", "int64"]]
    matched, _ = in_flight({"left": CHAIN["left"], "tally": wider})
    assert "k string, which it reads as k string, v int64 now" in matched.problems[0]
    assert "restore a savepoint or an aligned checkpoint" in matched.problems[0]


def test_rows_in_flight_to_a_stage_that_is_gone():
    matched, _ = in_flight({"left": CHAIN["left"]})
    assert "3 rows were in flight to stage 'tally'" in matched.problems[0]
    matched, _ = in_flight({"left": CHAIN["left"]}, allow_dropped=True)
    assert matched.problems == ()


@pytest.mark.parametrize(
    ("graph", "declared", "difference"),
    [
        (now(left=stage(groups=9)), {}, "stage 'left': 4 key groups become 9"),
        (
            now(left=stage(state="n int64; m string")),
            {"defaults": {"left": ["m"]}},
            "stage 'left': state column 'm' (string) is added",
        ),
        (now(left=stage(state="")), {}, "stage 'left': state column 'n' is dropped"),
        (
            now(left=stage("x date", "y bool")),
            {"migrated": ["left"]},
            "stage 'left': its state is migrated by its own function",
        ),
        (
            now(more=stage()),
            {},
            "stage 'more' is new: it begins without state",
        ),
        (
            {"other": stage(), "tally": CHAIN["tally"]},
            {"renamed": {"other": "left"}},
            "stage 'left' is now 'other'",
        ),
        (
            now(left=stage(inputs=("a parquet", "b kafka"))),
            {},
            "source 'b' is new: it begins where its options say",
        ),
        (
            now(left=stage(inputs=())),
            {},
            "source 'a' is no longer read",
        ),
        (
            now(left=stage(inputs=("b parquet",))),
            {"renamed": {"b": "a"}},
            "source 'a' is now 'b'",
        ),
        ({"left": CHAIN["left"]}, {"allow_dropped": True}, "stage 'tally' is gone: 5 keys"),
    ],
)
def test_a_difference_is_named_and_no_problem(graph, declared, difference):
    """What absflow can do by itself, or what the author has declared."""
    matched = fitted(CHAIN, graph, **declared)
    assert (matched.differences, matched.problems) == ((difference,), ())


@pytest.mark.parametrize(
    ("graph", "declared", "words"),
    [
        (now(left=stage("k binary")), {}, ["stage 'left'", "k string", "k binary", "migrate="]),
        (
            now(left=stage("k string; day date")),
            {},
            ["was k string, is k string, day date", "migrate="],
        ),
        (
            now(left=stage(state="n int64; m string")),
            {},
            ["stage 'left'", "'m' is new and has no default", "defaults={'m': ...}"],
        ),
        (
            now(left=stage(state="n int64; m string")),
            {"defaults": {"tally": ["m"], "left": ["n"]}},
            ["'m' is new and has no default"],
        ),
        (now(left=stage(state="n int32")), {}, ["'n' was int64, is int32", "migration"]),
        (
            {"left": CHAIN["left"]},
            {},
            ["5 keys of stage 'tally'", "renamed_from=", "allow-dropped-state"],
        ),
        (
            now(more=stage()),
            {"renamed": {"more": "lost"}},
            ["'more' is declared as renamed from 'lost'", "['left', 'tally']"],
        ),
        (
            now(more=stage()),
            {"renamed": {"more": "left"}},
            ["stages 'left' and 'more' both take the state of 'left'"],
        ),
        (
            now(left=stage(inputs=("a kafka",))),
            {},
            ["source 'a' was parquet, is kafka", "another name"],
        ),
        (
            now(left=stage(inputs=("b parquet",))),
            {},
            ["'a' is no longer read", "'b' is new", "renamed_from='a'", "allow-dropped-state"],
        ),
        (
            now(left=stage(inputs=("a parquet", "b parquet"))),
            {"renamed": {"b": "a"}},
            ["sources 'a' and 'b' both go on from 'a'"],
        ),
        (
            now(left=stage(inputs=("a parquet", "b parquet"))),
            {"renamed": {"b": "lost"}},
            ["source 'b' is declared as renamed from 'lost'", "['a']"],
        ),
    ],
)
def test_a_problem_is_named_with_what_to_do(graph, declared, words):
    """One problem each, which says what was seen and what would help."""
    (problem,) = fitted(CHAIN, graph, **declared).problems
    assert [word for word in words if word not in problem] == []


def test_a_renamed_source_goes_on_where_it_was():
    """With its event time; what it is called after the renaming is no earlier name."""
    graph = now(left=stage(inputs=("b parquet",)))
    matched = fitted(CHAIN, graph, renamed={"b": "a"})
    assert (matched.positions, matched.sources) == ({"b": "a at 3"}, {"b": "a"})
    again = fitted(graph, graph, renamed={"b": "a"})
    assert (again.differences, again.problems) == ((), ())
    assert again.positions == {"b": "b at 3"}
    taken = manifest(CHAIN)
    left, tally = taken.stages
    source = SourceTime(0, {"0": 70})
    time = EventTime(StageTime({"a": InputTime(70)}), {"a": source}, {"a": {"0": 9}})
    left = replace(left, report=replace(left.report, time=time))
    taken = replace(taken, stages=(left, tally))
    found = fit(taken, CHAIN, graph, Declared({"b": "a"})).stages[0].time
    assert found is not None
    assert found == EventTime(StageTime({"b": InputTime(70)}), {"b": source}, {"b": {"0": 9}})


def test_a_source_in_the_place_of_another_begins_where_its_options_say():
    """If the author has said that it is no renaming."""
    graph = now(left=stage(inputs=("b parquet",)))
    matched = fitted(CHAIN, graph, allow_dropped=True)
    assert (matched.positions, matched.problems) == ({}, ())


def test_all_problems_are_named_at_once():
    """Nobody mends three things in three starts."""
    graph = {"left": stage("k binary", "n int32; m date", inputs=("a kafka",))}
    assert len(fitted(CHAIN, graph).problems) == 5


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("int8", "int16"),
        ("int8", "double"),
        ("int16", "float"),
        ("int32", "int64"),
        ("int32", "double"),
        ("float", "double"),
        ("decimal128(12, 2)", "decimal128(13, 2)"),
        ("decimal128(12, 2)", "decimal128(14, 4)"),
    ],
)
def test_a_wider_type_holds_every_value(old, new):
    """It is a difference one way, and a problem the other."""
    narrow, wide = (now(left=stage(state=f"n {t}")) for t in (old, new))
    matched = fitted(narrow, wide)
    assert matched.problems == ()
    assert matched.differences == (
        f"stage 'left': state column 'n' is widened from {old} to {new}",
    )
    assert matched.stages[0].changed
    assert len(fitted(wide, narrow).problems) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("int64", "double"),
        ("int32", "float"),
        ("int32", "string"),
        ("int32", "decimal128(38, 0)"),
        ("decimal128(12, 2)", "decimal128(13, 4)"),
        ("decimal128(12, 2)", "decimal128(13, 1)"),
        ("timestamp[us]", "timestamp[us, tz=UTC]"),
        ("list<element: int32>", "list<element: int64>"),
    ],
)
def test_what_could_lose_a_value_is_refused(old, new):
    """Also if most values would pass."""
    before, after = (now(left=stage(state=f"n {t}")) for t in (old, new))
    (problem,) = fitted(before, after).problems
    assert f"was {old}, is {new}" in problem


def test_columns_in_another_order_are_a_change():
    """The table of the state history has them in the old one."""
    before, after = (now(left=stage(state=s)) for s in ("n int64; m date", "m date; n int64"))
    matched = fitted(before, after)
    assert matched.differences == ("stage 'left': its state columns stand in another order",)
    assert matched.problems == ()
    assert matched.stages[0].changed


@pytest.mark.parametrize("migrated", [[], ["left"]])
def test_output_columns_that_differ_are_named(migrated):
    """They are no problem here, and the state is taken as it is; their order does not count."""
    before = {"left": stage(output="a int64; b string; c date")}
    graph = {"left": stage(output="c date; d bool; a string")}
    matched = fitted(before, graph, migrated=migrated)
    assert matched.differences == (
        "stage 'left': output column 'd' (bool) is added",
        "stage 'left': output column 'a' was int64, is string",
        "stage 'left': output column 'b' is dropped",
    )
    assert matched.problems == ()
    assert not matched.stages[0].changed


def test_a_renamed_stage_can_change_too():
    """Each difference names both; keys come from the old name."""
    graph = {"other": stage(state="n int64; m date", groups=7), "tally": CHAIN["tally"]}
    matched = fitted(
        CHAIN, graph, renamed={"other": "left"}, defaults={"other": ["m"]}, allow_dropped=False
    )
    assert matched.differences == (
        "stage 'left' is now 'other'",
        "stage 'other' (was 'left'): 4 key groups become 7",
        "stage 'other' (was 'left'): state column 'm' (date) is added",
    )
    assert matched.problems == ()
    assert matched.stages[0] == StageFit("other", "left", (1, 3), 5, True, key_groups=(4, 7))


def test_two_stages_can_change_names():
    """What is declared goes before what a stage is called."""
    before = {"left": stage(), "right": stage("k date")}
    matched = fitted(
        before,
        {"left": stage("k date"), "right": stage()},
        renamed={"left": "right", "right": "left"},
    )
    assert matched.problems == ()
    assert [(s.stage, s.source) for s in matched.stages] == [("left", "right"), ("right", "left")]
    assert all(s.changed for s in matched.stages)  # or each would write on in the other's table


def test_a_checkpoint_of_after_the_renaming_fits_as_well():
    """The declaration may stay: the next restore finds the stage under the name it has."""
    graph = {"other": stage(), "tally": CHAIN["tally"]}
    matched = fitted(graph, graph, renamed={"other": "left"})
    assert (matched.differences, matched.problems) == ((), ())
    assert matched.stages[0].source == "other"


def test_a_migration_is_left_alone_where_nothing_has_changed():
    """The next restore, of a checkpoint of the new form, does not migrate again."""
    matched = fitted(CHAIN, CHAIN, migrated=["left", "tally"])
    assert not any(s.migrate or s.changed for s in matched.stages)


def test_a_dropped_stage_without_keys_is_no_loss():
    """A forwarding stage comes and goes with the number of a source's readers."""
    before = {"a": stage("", "", inputs=("a parquet",)), "left": stage(inputs=("a",))}
    matched = fitted(before, {"left": stage(inputs=("a parquet",))})
    assert matched.problems == ()
    assert matched.differences == ("stage 'a' is gone",)
    assert matched.positions == {"a": "a at 3"}


@pytest.mark.parametrize(
    ("matched", "used", "table"),
    [
        (None, set(), "s"),
        (None, {"s"}, "s.3"),
        (StageFit("s", "s"), {"s", "s.2"}, "s.2"),
        (StageFit("s", "s", changed=True), {"s", "s.2"}, "s.3"),
        (StageFit("s", "r", changed=True), {"r"}, "s"),
        (StageFit("s", None), {"s"}, "s.3"),
        (StageFit("s", None), set(), "s"),
    ],
)
def test_state_of_another_form_goes_to_a_table_of_its_own(matched, used, table):
    """A table that an earlier attempt wrote is taken up only for state of its very form."""
    assert table_of("s", 3, matched, {"s": "s.2", "r": "r"}, used) == table
