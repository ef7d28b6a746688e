"""The jobs are importable, as spark-submit makes the folder of the script that it runs."""

import datetime as dt
import sys
from pathlib import Path

import pyarrow as pa
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "jobs"))

import flights_data
import flights_oracle
from flights_cases import ROTATED, aircraft, airports, feed, read


@pytest.fixture(scope="module")
def winter(tmp_path_factory):
    """The legs of January to March behind ``rotate``, and the weather, in order."""
    directory = tmp_path_factory.mktemp("winter")
    flights_data.prepare(directory, until=dt.date(2013, 4, 1))
    output = aircraft(key_groups=4).run(legs=read(directory / "legs"))
    legs = output.select(ROTATED.names).sort_by("leg_id").combine_chunks()
    return directory, legs, pa.concat_tables(read(directory / "weather")).combine_chunks()


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
