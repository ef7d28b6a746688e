"""The stages of the flights job, function by function, and how their results are shown."""

import datetime as dt
import io

import flights
import flights_oracle
import flights_stages
import pandas as pd
import pyarrow as pa
import pytest
from flights_cases import (
    LEGS,
    NOON,
    ROTATED,
    WEATHER,
    Stage,
    aircraft,
    airports,
    lists,
    weather,
)
from pyspark.sql import Row
from rich.console import Console

from absflow.errors import ProcessError
from absflow.protocol.load import Backlog, Load
from absflow.spark.control.progress import Progress, StageProgress

MINUTE = dt.timedelta(minutes=1)


def leg(leg_id: int = 1, sched: dt.datetime = NOON, **values) -> dict:
    """A leg as ``rotate`` gets it, on time if nothing else is said."""
    usual = {"carrier": "UA", "flight": 1, "tailnum": "N1", "origin": "EWR", "dest": "ORD"}
    delays = {"dep_delay": 0, "arr_delay": 0}
    hour = sched.replace(minute=0)
    return {"leg_id": leg_id, "sched": sched, "hour": hour, **usual, **delays, **values}


def rotated(leg_id: int = 1, hour: dt.datetime = NOON, **values) -> dict:
    """A leg as ``legs_at_airport`` gets it."""
    usual = {"tailnum": "N1", "origin": "EWR", "dep_delay": 0, "inherited": 0}
    return {"leg_id": leg_id, "hour": hour, **usual, **values}


def table(schema: pa.Schema, *rows: dict) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)


def inherited(stage: Stage, *legs: dict) -> dict[int, int]:
    output = stage.run(legs=[table(LEGS, *legs)])
    return dict(zip(output["leg_id"].to_pylist(), output["inherited"].to_pylist(), strict=True))


def conditions(output: pa.Table) -> dict[int, str]:
    return dict(zip(output["leg_id"].to_pylist(), output["condition"].to_pylist(), strict=True))


def test_weather_is_kept_as_long_as_it_may_be_needed(at_once):
    """The state holds the weather of the last 30 days before the newest leg, and no more."""
    for row in at_once[1].to_pylist():
        kept = [element["hour"] for element in row["hours"]]
        oldest = row["newest_leg"] - dt.timedelta(days=flights_stages.KEPT_DAYS)
        assert kept == sorted(kept)
        assert oldest <= kept[0] <= oldest + dt.timedelta(hours=3)
        assert kept[-1] == row["newest_weather"]


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize(
    ("before", "then", "minutes"),
    [
        ({"arr_delay": 30}, {"dep_delay": 50}, 30),
        ({"arr_delay": 30}, {"dep_delay": 20}, 20),
        ({"arr_delay": 30}, {"dep_delay": -5}, 0),
        ({"arr_delay": -30}, {"dep_delay": 20}, 0),
        ({"arr_delay": 30}, {"dep_delay": None, "arr_delay": None}, 0),
        ({"dep_delay": None, "arr_delay": None}, {"dep_delay": 20}, 0),
        ({"arr_delay": None}, {"dep_delay": 20}, 0),
        ({"arr_delay": 30}, {"dep_delay": 50, "sched": NOON + dt.timedelta(hours=24)}, 30),
        ({"arr_delay": 30}, {"dep_delay": 50, "sched": NOON + dt.timedelta(hours=24) + MINUTE}, 0),
        ({"arr_delay": 30}, {"dep_delay": 50, "tailnum": "N2"}, 0),
        ({"arr_delay": 30, "tailnum": None}, {"dep_delay": 50, "tailnum": None}, 0),
    ],
)
def test_inherited_delay(before, then, minutes, batches):
    """A leg inherits from its aircraft's leg before, within a micro-batch and across two."""
    stage = aircraft(key_groups=1)
    legs = [leg(1, **before), leg(2, **({"sched": NOON + 60 * MINUTE} | then))]
    seen: dict[int, int] = {}
    for rows in [legs] if batches == 1 else [legs[:1], legs[1:]]:
        seen |= inherited(stage, *rows)
    assert seen == {1: 0, 2: minutes}


def test_a_cancelled_leg_does_not_break_a_rotation():
    """The leg after a cancelled one inherits from the one before it."""
    cancelled = leg(2, NOON + MINUTE, dep_delay=None, arr_delay=None)
    after = leg(3, NOON + 2 * MINUTE, dep_delay=20, arr_delay=5)
    stage = aircraft()
    assert inherited(stage, leg(1, arr_delay=15), cancelled, after) == {1: 0, 2: 0, 3: 15}
    assert stage.state().to_pylist() == [
        {
            "tailnum": "N1",
            "legs": 2,
            "cancelled": 1,
            "delay_minutes": 20,
            "inherited_minutes": 15,
            "last_sched": NOON + 2 * MINUTE,
            "last_arr_delay": 5,
        }
    ]


@pytest.mark.parametrize(
    ("values", "condition"),
    [
        ({}, "clear"),
        ({"precip": 0.01, "temp": 32.0}, "snow"),
        ({"precip": 0.01, "temp": 32.5}, "rain"),
        ({"precip": 0.01, "temp": None, "visib": 1.0}, "rain"),
        ({"precip": None, "temp": 10.0}, "clear"),
        ({"visib": 2.9, "wind_speed": 30.0}, "fog"),
        ({"visib": 3.0}, "clear"),
        ({"visib": None, "wind_speed": 25.0}, "wind"),
        ({"wind_speed": 1048.0}, "clear"),
        ({"wind_speed": None}, "clear"),
        ({"temp": None, "precip": None, "visib": None, "wind_speed": None}, "unknown"),
    ],
)
def test_condition(values, condition):
    """What is measured decides; what is missing does not."""
    output = airports(root=True).run(
        aircraft=[table(ROTATED, rotated())], weather=[table(WEATHER, weather(**values))]
    )
    assert conditions(output) == {1: condition}


def test_a_leg_waits_for_its_hour_or_a_later_one():
    """Earlier weather, and weather elsewhere, resolve nothing; a missing hour is unknown."""
    stage, hour = airports(root=True), dt.timedelta(hours=1)
    legs = [rotated(1), rotated(2, NOON + hour), rotated(3, NOON + 2 * hour)]
    assert conditions(stage.run(aircraft=[table(ROTATED, *legs)])) == {}
    elsewhere = weather(NOON + 9 * hour, origin="JFK")
    assert conditions(stage.run(weather=[table(WEATHER, elsewhere)])) == {}
    rain = weather(NOON, precip=1.0)
    assert conditions(stage.run(weather=[table(WEATHER, rain)])) == {1: "rain"}
    fine = weather(NOON + 2 * hour)
    assert conditions(stage.run(weather=[table(WEATHER, fine)])) == {2: "unknown", 3: "clear"}


def test_the_first_row_of_an_hour_counts():
    """A repeated hour changes nothing, in the same micro-batch or a later one."""
    stage = airports(root=True)
    rain, fine = weather(precip=1.0), weather()
    stage.run(weather=[table(WEATHER, rain, fine)])
    stage.run(weather=[table(WEATHER, fine)])
    assert lists(stage.state(), "hours")["condition"].to_list() == ["rain"]
    assert conditions(stage.run(aircraft=[table(ROTATED, rotated())])) == {1: "rain"}


def test_weather_behind_newer_weather_is_passed_over():
    """All legs of its hour are unknown, also those that come after it: cuts make no difference."""
    stage = airports(root=True)
    stage.run(weather=[table(WEATHER, weather(NOON + 60 * MINUTE))])
    stage.run(weather=[table(WEATHER, weather(NOON, precip=1.0))])
    assert conditions(stage.run(aircraft=[table(ROTATED, rotated())])) == {1: "unknown"}


def test_a_leg_that_comes_too_late_is_an_error():
    """Rather than a guess at weather that may be forgotten."""
    stage = airports(root=True)
    stage.run(aircraft=[table(ROTATED, rotated(1))])
    late = NOON - dt.timedelta(days=30)
    stage.run(aircraft=[table(ROTATED, rotated(2, late))])
    with pytest.raises(ProcessError, match="leg 3 of 2013-06-01 11:00"):
        stage.run(aircraft=[table(ROTATED, rotated(3, late - dt.timedelta(hours=1)))])


def test_differences_are_told_in_words():
    """Missing, superfluous, repeated and changed rows are shown with examples."""
    due = pd.DataFrame({"leg_id": [1, 2, 3, 4, 5, 6], "delay": [1, 2, 3, None, 5, 6]})
    seen = pd.DataFrame({"leg_id": [9, 4, 3, 2, 2], "delay": [0, None, 7, 2, 2]})
    assert flights_oracle.differences(seen, due) == [
        "1 row more than once: leg_id 2",
        "3 rows missing: leg_id 1; leg_id 5; leg_id 6",
        "1 row too many: leg_id 9",
        "1 row with another delay: leg_id 3, delay 7, expected 3",
    ]
    assert flights_oracle.differences(due.iloc[::-1], due.astype("Int64")) == []
    assert flights_oracle.differences(due.rename(columns={"delay": "d"}), due) == [
        "columns are ['d', 'leg_id'], expected ['delay', 'leg_id']"
    ]


def test_times_are_compared_as_utc():
    """How a time is stored does not matter, its value does; a null equals a null only."""
    times = pd.DataFrame({"leg_id": [1, 2], "at": pd.to_datetime([NOON, None])})
    naive, abroad = times["at"].dt.tz_localize(None), times["at"].dt.tz_convert("Asia/Tokyo")
    assert flights_oracle.differences(times.assign(at=naive), times) == []
    assert flights_oracle.differences(times.assign(at=abroad.dt.as_unit("ms")), times) == []
    wrong = flights_oracle.differences(times.assign(at=NOON), times)
    assert [line.split(":")[0] for line in wrong] == ["1 row with another at"]


def test_no_rows_are_compared_too():
    """An empty frame has lost its types, a column of nulls as well; neither is a difference."""
    rows = pd.DataFrame({"leg_id": [1], "at": [NOON], "delay": [None], "tailnum": [None]})
    nulls = rows.astype({"delay": "Int64", "tailnum": "string"})
    assert flights_oracle.differences(rows.head(0).astype(object), rows.head(0)) == []
    assert flights_oracle.differences(rows, nulls) == []
    expected = ["1 row missing: leg_id 1"]
    assert flights_oracle.differences(rows.head(0).astype(object), rows) == expected


class FakeRun:
    """A run that ends at the third look."""

    def __init__(self):
        self.looks = 0

    def await_termination(self, timeout):
        self.looks += 1
        return self.looks > 2

    def progress(self):
        load = Load(busy=0.625, backlogs=(Backlog("legs", rows=1_200), Backlog("weather", rows=3)))
        stages = {"aircraft": StageProgress(6, 57_344, 8_191.6, load), "airports": StageProgress()}
        return Progress(checkpoint_id=4, completed=3, pending=(5,), stages=stages)


def test_progress_is_one_line():
    """Without a terminal each look is a line of its own, and the last one stays."""
    shown = io.StringIO()
    flights.follow(FakeRun(), Console(file=shown, highlight=False, width=40))
    line = (
        "checkpoint 4 (3 completed) | aircraft: batch 6, 57,344 rows, 8,192/s, busy 62%, "
        "1,203 rows behind | airports: batch 0, 0 rows, 0/s, busy 0%"
    )
    assert shown.getvalue().splitlines() == [line] * 3


def test_checkpoints_are_shown_with_the_sums_of_their_stages():
    """A completed checkpoint has figures; an aborted one its reason, a pending one neither."""
    summed = Row("keys_total", "rows_changed", "bytes_changed", "held_rows")
    row = Row("checkpoint_id", "status", "reason", "triggered_at", "duration_ms", "stages")
    stages = [summed(4_000, 900, 70_000, None), summed(3, 3, 5_000, 20)]
    table = flights.checkpoint_table(
        [
            row(1, "COMPLETED", None, NOON, 1_500, stages),
            row(2, "ABORTED", "EXPIRED", NOON, 600_000, None),
            row(3, "PENDING", None, NOON, None, None),
        ]
    )
    cells = [list(column.cells) for column in table.columns]
    assert list(zip(*cells, strict=True)) == [
        ("1", "COMPLETED", "12:00:00", "1,500", "4,003", "903", "75,000", "20"),
        ("2", "ABORTED EXPIRED", "12:00:00", "600,000", "0", "0", "0", "0"),
        ("3", "PENDING", "12:00:00", "-", "0", "0", "0", "0"),
    ]
    shown = io.StringIO()
    Console(file=shown, width=80).print(table)
    assert "\u2026" not in shown.getvalue()  # nothing is cut off on a narrow screen
