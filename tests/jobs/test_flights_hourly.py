"""The hours of the flights job without Spark: event time, late departures, and their oracle."""

import datetime as dt

import flights_data
import flights_oracle
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flights_cases import NOON, Hourly, departures, read

from absflow.columnar.pages import TIME_TYPE

HOURS = ["origin", "hour"]


@pytest.fixture(scope="module")
def weeks(tmp_path_factory):
    """A file for each day of January, so that there are many of which some rows are late."""
    directory = tmp_path_factory.mktemp("weeks")
    flights_data.prepare(directory, days=1, until=dt.date(2013, 2, 1))
    return directory


def assert_equal(found: pa.Table, due: pd.DataFrame, key: list[str]) -> None:
    assert flights_oracle.differences(found.to_pandas(), due, key) == []


def test_every_prefix_equals_plain_pandas(weeks):
    """The hours that are over, those that are open, and what was late, after each file."""
    stage, over, late = Hourly(), [], []
    for number, file in enumerate(read(weeks / "legs"), start=1):
        hours, behind = stage.run(departures(file))
        over.append(hours)
        late.append(behind)
        due = flights_oracle.expected_hours(weeks, number)
        assert due.watermark == pd.Timestamp(stage.time.stage.value, unit="us", tz="UTC")
        assert_equal(stage.state(), due.open, HOURS)
        assert_equal(pa.concat_tables(late), due.late, ["leg_id"])
        assert_equal(pa.concat_tables(over), due.hours.drop(due.open.index), HOURS)
    assert 0 < len(due.open) < 100 < len(due.hours)
    assert len(due.late) > 20


def test_the_end_of_the_source_ends_every_hour(weeks):
    """And each is emitted once."""
    stage = Hourly(key_groups=3)
    files = [departures(file) for file in read(weeks / "legs")]
    over = [stage.run(file, ended=file is files[-1])[0] for file in files]
    assert stage.state().num_rows == 0
    assert_equal(pa.concat_tables(over), flights_oracle.expected_hours(weeks).hours, HOURS)


def test_an_hour_is_that_of_the_departure_and_late_is_late(tmp_path):
    """Counted by hand: a quarter of an hour is a delay, a minute less is none."""
    legs = {
        1: [("EWR", 0, 15), ("EWR", 30, 29), ("EWR", 50, 14), ("EWR", 50, -1), ("JFK", 0, 600)],
        2: [("EWR", -297, 0), ("EWR", -296, 0), ("JFK", -290, 0), ("JFK", 300, None)],
    }
    (tmp_path / "legs").mkdir()
    for file, rows in legs.items():
        table = {
            "leg_id": pa.array([10 * file + number for number in range(len(rows))]),
            "origin": pa.array([origin for origin, _, _ in rows]),
            "sched": pa.array([NOON + dt.timedelta(minutes=at) for _, at, _ in rows], TIME_TYPE),
            "dep_delay": pa.array([delay for _, _, delay in rows], pa.int32()),
        }
        pq.write_table(pa.table(table), tmp_path / "legs" / f"{file}.parquet")
    answer = flights_oracle.expected_hours(tmp_path)
    assert [
        (row.origin, row.hour.hour, row.departures, row.delayed, row.minutes)
        for row in answer.hours.itertuples()
    ] == [("EWR", 7, 1, 0, 0), ("EWR", 12, 3, 2, 44), ("EWR", 13, 1, 0, 14), ("JFK", 22, 1, 1, 600)]
    # In the second file EWR may be 6 h behind 13:04, JFK behind 22:00.
    assert answer.late["leg_id"].tolist() == [20, 22]
    assert answer.watermark == NOON + dt.timedelta(minutes=64 - 360, microseconds=-1)
    stage = Hourly(key_groups=1)
    results = [
        stage.run(departures(file), number == 1)
        for number, file in enumerate(read(tmp_path / "legs"))
    ]
    hours, late = (pa.concat_tables(parts) for parts in zip(*results, strict=True))
    assert_equal(hours, answer.hours, HOURS)
    assert_equal(late, answer.late, ["leg_id"])
