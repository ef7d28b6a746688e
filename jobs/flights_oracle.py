"""What the flights job must come to, worked out by plain pandas over all rows at once.

Nothing here is shared with the job's own functions, so that a mistake in them is not made twice.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from flights_data import files

__all__ = ["Expected", "ExpectedHours", "differences", "expected", "expected_hours"]

_EXAMPLES = 3
_HOUR = pd.Timedelta(hours=1)
_DELAY = pd.Timedelta(hours=6)


class Expected(NamedTuple):
    """The answer.

    Attributes:
        resolved: the rows of the sink, by ``leg_id``.
        aircraft: the state of stage ``aircraft``, by ``tailnum`` (one of them null).
        totals: the totals in the state of stage ``airports``, one row per origin and condition.
        waiting: the legs in that state that wait for weather, with their origin, by ``leg_id``.
    """

    resolved: pd.DataFrame
    aircraft: pd.DataFrame
    totals: pd.DataFrame
    waiting: pd.DataFrame


def expected(
    directory: str | Path,
    leg_files: int | None = None,
    weather_files: int | None = None,
    in_flight: Collection[int] = (),
) -> Expected:
    """What must come of the prepared data.

    Args:
        directory: where :func:`flights_data.prepare` wrote.
        leg_files: use the first so many files of legs; None for all. A checkpoint whose position in
            the source ``legs`` is behind file m has the state that the first m files make.
        weather_files: likewise.
        in_flight: ``leg_id`` of the legs that a checkpoint has overtaken between the two stages.
    """
    legs = _read(Path(directory) / "legs", leg_files, "leg_id")
    weather = _read(Path(directory) / "weather", weather_files, "hour")
    legs["inherited"] = _inherited(legs)
    measured = weather[["temp", "precip", "visib", "wind_speed"]]
    conditions = [_condition(*values) for values in measured.itertuples(index=False)]
    weather["condition"] = pd.Series(conditions, dtype=object)
    there = legs[~legs["leg_id"].isin(list(in_flight))]
    reached = there["origin"].map(weather.groupby("origin")["hour"].max())
    settled = there["hour"] <= reached  # False where the airport has no weather at all
    known = weather[["origin", "hour", "condition"]]
    resolved = there[settled].merge(
        known, on=["origin", "hour"], how="left", validate="many_to_one"
    )
    resolved["condition"] = resolved["condition"].fillna("unknown")
    columns = ["leg_id", "origin", "hour", "tailnum", "condition", "dep_delay", "inherited"]
    waiting = ["leg_id", "origin", "tailnum", "hour", "dep_delay", "inherited"]
    return Expected(
        resolved=resolved[columns],
        aircraft=_aircraft(legs),
        totals=_totals(resolved),
        waiting=there.loc[~settled, waiting].reset_index(drop=True),
    )


class ExpectedHours(NamedTuple):
    """The answer of stage ``hourly``.

    Attributes:
        hours: every hour of every airport, of the departures that were not late.
        late: the departures that were late, by ``leg_id``.
        watermark: how far event time has come; None if nothing was read.
    """

    hours: pd.DataFrame
    late: pd.DataFrame
    watermark: pd.Timestamp | None

    @property
    def open(self) -> pd.DataFrame:
        """The hours that are not over: the stage's state, until its source has ended."""
        if self.watermark is None:
            return self.hours
        return self.hours[self.hours["hour"] + _HOUR > self.watermark]


def expected_hours(directory: str | Path, leg_files: int | None = None) -> ExpectedHours:
    """What must come of the departures, if each file is a micro-batch.

    Late is what is more than the delay behind the newest departure of its airport in the files
    before.

    Args:
        directory: where :func:`flights_data.prepare` wrote.
        leg_files: use the first so many files of legs; None for all.
    """
    paths = files(Path(directory) / "legs")
    newest: dict[str, pd.Timestamp] = {}
    parts = [_departures(paths[0]).head(0).assign(late=False)]
    for path in paths[:leg_files]:
        rows = _departures(path)
        before = pd.to_datetime(rows["origin"].map(newest), utc=True)
        parts.append(rows.assign(late=rows["at"] < before - _DELAY))
        for origin, at in rows.groupby("origin")["at"].max().items():
            newest[str(origin)] = max(at, newest.get(str(origin), at))
    rows = pd.concat(parts, ignore_index=True)
    late = rows["late"].astype(bool)
    on_time = rows[~late].assign(
        departures=1, delayed=rows["dep_delay"] >= 15, minutes=rows["dep_delay"].clip(lower=0)
    )
    sums = on_time.groupby(["origin", "hour"], as_index=False)[["departures", "delayed", "minutes"]]
    reached = min(newest.values()) - _DELAY - pd.Timedelta(microseconds=1) if newest else None
    return ExpectedHours(sums.sum(), rows[late].drop(columns="late"), reached)


def differences(
    actual: pd.DataFrame, expected: pd.DataFrame, key: str | Sequence[str] = "leg_id"
) -> list[str]:
    """What is wrong with ``actual``, in words; nothing if the two hold equal rows.

    The order of rows and columns, and how a column of integers or times is stored, do not matter; a
    time without time zone is taken as UTC.

    Args:
        actual: rows of the job.
        expected: rows of the oracle.
        key: the columns that make a row unique.
    """
    names = [key] if isinstance(key, str) else list(key)
    if set(actual.columns) != set(expected.columns):
        return [f"columns are {sorted(actual.columns)}, expected {sorted(expected.columns)}"]
    actual, expected = _alike(actual, expected)
    found = []
    twice = actual.duplicated(names)
    found += _told("more than once", actual[twice], names)
    both = actual[~twice].merge(
        expected, on=names, how="outer", suffixes=("", " expected"), indicator="where"
    )
    found += _told("missing", both[both["where"] == "right_only"], names)
    found += _told("too many", both[both["where"] == "left_only"], names)
    both = both[both["where"] == "both"]
    for name in actual.columns.drop(names):
        seen, due = both[name], both[f"{name} expected"]
        wrong = both[~((seen == due).fillna(False) | (seen.isna() & due.isna()))]
        found += _told(f"with another {name}", wrong, [*names, name, f"{name} expected"])
    return found


def _read(folder: Path, count: int | None, order: str) -> pd.DataFrame:
    paths = files(folder)
    # No files at all still have columns.
    parts = [pd.read_parquet(path) for path in paths[:count]]
    frame = pd.concat(parts) if parts else pd.read_parquet(paths[0]).head(0)
    for name in ("dep_delay", "arr_delay"):
        if name in frame:
            frame[name] = frame[name].astype("Int64")
    return frame.sort_values(order, kind="stable", ignore_index=True)


def _departures(path: Path) -> pd.DataFrame:
    """The departures of a file, with the times and hours in which they left."""
    legs = pd.read_parquet(path, columns=["leg_id", "origin", "sched", "dep_delay"])
    legs = legs[legs["dep_delay"].notna()].astype({"dep_delay": "int64"})
    at = legs["sched"] + pd.to_timedelta(legs["dep_delay"], unit="min")
    return legs.drop(columns="sched").assign(at=at, hour=at.dt.floor("1h"))


def _inherited(legs: pd.DataFrame) -> pd.Series:
    rotation = legs[legs["tailnum"].notna() & legs["dep_delay"].notna()]
    before = rotation.groupby("tailnum")[["sched", "arr_delay"]].shift()
    handed_on = before["arr_delay"].fillna(0).clip(lower=0)
    left_late = rotation["dep_delay"].clip(lower=0)
    minutes = handed_on.mask(handed_on > left_late, left_late)
    recent = rotation["sched"] - before["sched"] <= pd.Timedelta(hours=24)
    return minutes.where(recent, 0).reindex(legs.index, fill_value=0).astype("int64")


def _condition(temp: float, precip: float, visib: float, wind_speed: float) -> str:
    if pd.isna([temp, precip, visib, wind_speed]).all():
        return "unknown"
    if precip > 0:
        return "snow" if temp <= 32 else "rain"
    if visib < 3:
        return "fog"
    return "wind" if 25 <= wind_speed <= 200 else "clear"


def _aircraft(legs: pd.DataFrame) -> pd.DataFrame:
    flown = legs["dep_delay"].notna()
    frame = pd.DataFrame(
        {
            "tailnum": legs["tailnum"],
            "legs": flown.astype("int64"),
            "cancelled": (~flown).astype("int64"),
            "delay_minutes": legs["dep_delay"].fillna(0).clip(lower=0).astype("int64"),
            "inherited_minutes": legs["inherited"],
        }
    )
    state = frame.groupby("tailnum", dropna=False).sum()
    last = legs[flown & legs["tailnum"].notna()].drop_duplicates("tailnum", keep="last")
    last = last.set_index("tailnum")[["sched", "arr_delay"]].add_prefix("last_")
    return state.join(last).reset_index()


def _totals(resolved: pd.DataFrame) -> pd.DataFrame:
    flown = resolved["dep_delay"].notna()
    frame = resolved[["origin", "condition"]].assign(
        legs=1,
        cancelled=np.where(flown, 0, 1),
        delay=resolved["dep_delay"].fillna(0).clip(lower=0).astype("int64"),
        inherited=resolved["inherited"],
    )
    return frame.groupby(["origin", "condition"], as_index=False).sum()


def _alike(first: pd.DataFrame, second: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The same rows, with columns of equal types; ``first`` says in which order."""
    pairs = [(first[name], second[name]) for name in first.columns]
    types = [_type([c for c in pair if c.notna().any()]) for pair in pairs]
    frames = []
    for columns in zip(*pairs, strict=True):
        typed = [_as(c, type_) for c, type_ in zip(columns, types, strict=True)]
        frames.append(pd.concat(typed, axis="columns").reset_index(drop=True))
    return frames[0], frames[1]


def _type(columns: list[pd.Series]) -> str:
    if columns and all(pd.api.types.is_datetime64_any_dtype(c) for c in columns):
        return "time"
    if columns and all(pd.api.types.is_numeric_dtype(c) for c in columns):
        return "Int64" if all((c.dropna() % 1 == 0).all() for c in columns) else "Float64"
    return "string"


def _as(column: pd.Series, type_: str) -> pd.Series:
    if type_ == "time":
        return pd.to_datetime(column, utc=True).dt.as_unit("us")
    return column.astype(type_)


def _told(what: str, rows: pd.DataFrame, columns: list[str]) -> list[str]:
    if rows.empty:
        return []
    titles = ["expected" if name.endswith(" expected") else name for name in columns]
    examples = [
        ", ".join(f"{name} {value}" for name, value in zip(titles, row, strict=True))
        for row in rows[columns].head(_EXAMPLES).itertuples(index=False, name=None)
    ]
    more = "; ..." if len(rows) > _EXAMPLES else ""
    count = "1 row" if len(rows) == 1 else f"{len(rows):,} rows"
    return [f"{count} {what}: {'; '.join(examples)}{more}"]
