"""The stages of the flights job: what an aircraft hands on, what the weather does, and each hour.

Stage ``aircraft`` (key ``tailnum``) follows each aircraft from leg to leg. A leg that leaves late
*inherits* delay if the leg before came in late: as many minutes as it left late, but no more than
the leg before was late.

Stage ``airports`` (key ``origin``) gives each leg the weather of its hour and adds up by condition.
A leg is *resolved* once weather of its hour or of a later one has been seen at its airport, and
waits in the state until then. Which legs and weather rows meet in one micro-batch is chance; what
comes out must not depend on it. It does not, as long as each input comes in time order: legs up to
:data:`KEPT_DAYS` late, weather exactly.

Stage ``hourly`` (key ``origin``, ``hour``) counts what leaves each airport, by the hour in which it
really leaves. An hour is over, and emitted, when the watermark has come to its end.

Each function gets all rows and all touched keys of a key group at once and works on whole columns
(NumPy arrays of 64-bit integers, times in microseconds). Rows are added up in integers only, so
that results can be compared exactly.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from absflow import Context, Result

__all__ = [
    "AIRCRAFT_OUTPUT",
    "AIRCRAFT_STATE",
    "AIRPORTS_OUTPUT",
    "AIRPORTS_STATE",
    "CONDITIONS",
    "HOURLY_OUTPUT",
    "HOURLY_STATE",
    "KEPT_DAYS",
    "count_departures",
    "end_hour",
    "legs_at_airport",
    "rotate",
    "weather_at_airport",
]

AIRCRAFT_STATE = (
    "legs long, cancelled long, delay_minutes long, inherited_minutes long, "
    "last_sched timestamp, last_arr_delay int"
)
AIRCRAFT_OUTPUT = (
    "leg_id long, tailnum string, origin string, hour timestamp, dep_delay int, inherited int"
)
AIRPORTS_STATE = (
    "newest_leg timestamp, newest_weather timestamp, "
    "totals array<struct<condition: string, legs: long, cancelled: long, delay: long, "
    "inherited: long>>, "
    "hours array<struct<hour: timestamp, condition: string>>, "
    "waiting array<struct<leg_id: long, tailnum: string, hour: timestamp, dep_delay: int, "
    "inherited: int>>"
)
AIRPORTS_OUTPUT = (
    "leg_id long, origin string, hour timestamp, tailnum string, condition string, dep_delay int, "
    "inherited int"
)
HOURLY_STATE = "departures long, delayed long, minutes long"
HOURLY_OUTPUT = "origin string, hour timestamp, departures long, delayed long, minutes long"

CONDITIONS = ("clear", "fog", "rain", "snow", "unknown", "wind")
KEPT_DAYS = 30

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_HOUR = 3_600_000_000
_DAY = 24 * _HOUR
_ON_TIME = 15  # minutes: as the aviation authorities count it
_NEVER = -(2**62)  # in the place of a null time: before every other, and safe to subtract
_HIGHEST_WIND = 200.0  # mph; the one higher reading of the year (1048) is a fault
_TIME = pa.timestamp("us", tz="UTC")
_WEATHER_SEEN = pa.struct({"hour": _TIME, "condition": pa.string()})
_LEG = pa.struct(
    {
        "leg_id": pa.int64(),
        "tailnum": pa.string(),
        "hour": _TIME,
        "dep_delay": pa.int32(),
        "inherited": pa.int32(),
    }
)


def rotate(rows: pa.Table, state: pa.Table, context: Context) -> Result:
    """Process function of stage ``aircraft``: how much of its delay each leg inherited.

    The leg before counts if it was flown by the same aircraft and was to leave at most 24 hours
    earlier. A cancelled leg (no departure delay) is no part of a rotation; neither is a leg without
    tail number. Nothing is inherited from a leg that never arrived where it was bound for.
    """
    key = context.key_of_row
    delay, flown = _ints(rows["dep_delay"])
    arrival, landed = _ints(rows["arr_delay"])
    sched, _ = _ints(rows["sched"])
    leg_id, _ = _ints(rows["leg_id"])
    left_late, came_late = np.maximum(delay, 0), np.maximum(arrival, 0)
    last_sched, _ = _ints(state["last_sched"], null=_NEVER)
    last_arrival, last_landed = _ints(state["last_arr_delay"])

    # Flown legs, aircraft by aircraft in time order. Spark may have read a batch's files in any.
    order = np.lexsort((leg_id, key))
    in_rotation = flown & rows["tailnum"].is_valid().to_numpy()
    order = order[in_rotation[order]]
    aircraft = key[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = aircraft[1:] != aircraft[:-1]
    before = np.concatenate((order[-1:], order[:-1]))
    before_sched = np.where(first, last_sched[aircraft], sched[before])
    before_late = np.where(first, np.maximum(last_arrival, 0)[aircraft], came_late[before])
    inherited = np.zeros(len(key), dtype=np.int64)
    inherited[order] = np.where(
        sched[order] - before_sched <= _DAY, np.minimum(before_late, left_late[order]), 0
    )

    last = np.concatenate((first[1:], first[:1]))  # the next leg is another aircraft's first
    owner, ends = aircraft[last], order[last]
    last_sched[owner], last_arrival[owner] = sched[ends], arrival[ends]
    last_landed[owner] = landed[ends]
    sums = {
        "legs": _added(state["legs"], key, flown),
        "cancelled": _added(state["cancelled"], key, ~flown),
        "delay_minutes": _added(state["delay_minutes"], key, left_late),
        "inherited_minutes": _added(state["inherited_minutes"], key, inherited),
    }
    output = rows.select(["leg_id", "tailnum", "origin", "hour", "dep_delay"])
    return Result(
        # In time order, in whatever order Spark has read a batch's files.
        output=output.append_column("inherited", pa.array(inherited)).sort_by("leg_id"),
        state=pa.Table.from_arrays(
            [
                state["tailnum"],
                *sums.values(),
                _times(last_sched),
                pa.array(last_arrival, mask=~last_landed),
            ],
            names=["tailnum", *sums, "last_sched", "last_arr_delay"],
        ),
    )


def legs_at_airport(rows: pa.Table, state: pa.Table, context: Context) -> Result:
    """Process function of stage ``airports`` for the legs that come from stage ``aircraft``.

    Raises:
        ValueError: a leg is so late that the weather of its hour may be forgotten.
    """
    hour, _ = _ints(rows["hour"])
    newest, _ = _ints(state["newest_leg"], null=_NEVER)
    late = newest[context.key_of_row] - hour
    if late.max() > KEPT_DAYS * _DAY:
        worst = rows.slice(int(late.argmax()), 1).to_pylist()[0]
        raise ValueError(
            f"leg {worst['leg_id']} of {worst['hour']} comes {late.max() // _DAY} days behind a "
            f"later one, but the weather is kept for {KEPT_DAYS}; let the legs come in time order"
        )
    legs = rows.select([field.name for field in _LEG])
    return _advance(state, _owned(legs, context.key_of_row), _nothing(_WEATHER_SEEN))


def weather_at_airport(rows: pa.Table, state: pa.Table, context: Context) -> Result:
    """Process function of stage ``airports`` for the weather.

    Of several rows of one hour the first counts. A row that is not newer than what was seen is
    passed over: legs of its hour have been resolved.
    """
    key = context.key_of_row
    hour, _ = _ints(rows["hour"])
    newest, _ = _ints(state["newest_weather"], null=_NEVER)
    _, first = np.unique(_code(key, hour), return_index=True)
    fresh = first[hour[first] > newest[key[first]]]
    columns = [rows["hour"], pa.array(_condition(rows))]
    seen = pa.Table.from_arrays(columns, names=["hour", "condition"])
    return _advance(state, _nothing(_LEG), _owned(seen, key).take(pa.array(fresh)))


def count_departures(rows: pa.Table, state: pa.Table, context: Context) -> Result:
    """Process function of stage ``hourly``; each hour has a timer at its end."""
    key = context.key_of_row
    delay, _ = _ints(rows["dep_delay"])
    hour, _ = _ints(state["hour"])
    sums = {
        "departures": _added(state["departures"], key, np.ones_like(delay)),
        "delayed": _added(state["delayed"], key, delay >= _ON_TIME),
        "minutes": _added(state["minutes"], key, np.maximum(delay, 0)),
    }
    keys = {"origin": state["origin"], "hour": state["hour"]}
    return Result(
        state=pa.table({**keys, **sums}),
        timers=pa.table({**keys, "time": _times(hour + _HOUR)}),
    )


def end_hour(timers: pa.Table, state: pa.Table, context: Context) -> Result:
    """Timer function of stage ``hourly``: hours that are over are emitted and forgotten."""
    return Result(output=state, delete=np.ones(state.num_rows, dtype=bool))


def _advance(state: pa.Table, legs: pa.Table, weather: pa.Table) -> Result:
    """Resolve what can be resolved after new legs, or new weather, have come.

    Args:
        state: k airports.
        legs: new legs, with the ``owner`` of each: the row of ``state`` that it belongs to.
        weather: new hours and their conditions, likewise; none of them older than a known one.
    """
    legs = pa.concat_tables([_unnest(state["waiting"], _LEG), legs])
    weather = pa.concat_tables([_unnest(state["hours"], _WEATHER_SEEN), weather])
    at, leg_hour = _ints(legs["owner"])[0], _ints(legs["hour"])[0]
    above, hour = _ints(weather["owner"])[0], _ints(weather["hour"])[0]
    newest_leg, _ = _ints(state["newest_leg"], null=_NEVER)
    newest_weather, _ = _ints(state["newest_weather"], null=_NEVER)
    np.maximum.at(newest_leg, at, leg_hour)
    np.maximum.at(newest_weather, above, hour)

    settled = leg_hour <= newest_weather[at]
    resolved = legs.filter(pa.array(settled))
    condition = _look_up(_code(at, leg_hour)[settled], _code(above, hour), weather["condition"])
    kept = hour >= newest_leg[above] - KEPT_DAYS * _DAY
    totals = _add_up(state["totals"], resolved, condition)
    origin = state["origin"].take(resolved["owner"])
    output = resolved.drop_columns("owner")
    return Result(
        output=output.append_column("origin", origin).append_column("condition", condition),
        state=pa.table(
            {
                "origin": state["origin"],
                "newest_leg": _times(newest_leg),
                "newest_weather": _times(newest_weather),
                "totals": totals,
                "hours": _nest(weather.filter(pa.array(kept)), "hour", state.num_rows),
                "waiting": _nest(legs.filter(pa.array(~settled)), "leg_id", state.num_rows),
            }
        ),
    )


def _condition(rows: pa.Table) -> npt.NDArray[np.str_]:
    """What the weather was like. A value that is missing says nothing; nothing known: unknown."""
    names = ("temp", "precip", "visib", "wind_speed")
    values = np.stack([rows[name].to_numpy().astype(np.float64) for name in names])
    temp, precip, visib, wind = values
    return np.select(
        [
            np.isnan(values).all(axis=0),
            (precip > 0) & (temp <= 32),
            precip > 0,
            visib < 3,
            (wind >= 25) & (wind <= _HIGHEST_WIND),
        ],
        ["unknown", "snow", "rain", "fog", "wind"],
        default="clear",
    )


def _look_up(wanted: Ints, known: Ints, values: pa.ChunkedArray) -> pa.ChunkedArray:
    """For each wanted code the value of the equal known one, else ``unknown``."""
    order = np.argsort(known)
    place = np.searchsorted(known, wanted, sorter=order)
    inside = place < len(known)
    found = order[np.where(inside, place, 0)] if len(known) else np.zeros_like(place)
    missing = ~inside
    missing[inside] = known[found[inside]] != wanted[inside]
    return pc.fill_null(values.take(pa.array(found, mask=missing)), "unknown")


def _add_up(before: pa.ChunkedArray, resolved: pa.Table, condition: pa.ChunkedArray) -> pa.Array:
    """The totals of each airport and condition, with ``resolved`` added."""
    names = ("legs", "cancelled", "delay", "inherited")
    type_ = before.type.value_type
    old = _unnest(before, type_)
    rank = pa.array(CONDITIONS)
    sums = np.zeros((len(names), len(before), len(CONDITIONS)), dtype=np.int64)
    old_at = (_ints(old["owner"])[0], _ints(pc.index_in(old["condition"], rank))[0])
    new_at = (_ints(resolved["owner"])[0], _ints(pc.index_in(condition, rank))[0])
    delay, flown = _ints(resolved["dep_delay"])
    inherited, _ = _ints(resolved["inherited"])
    new = (np.ones_like(delay), ~flown, np.maximum(delay, 0), inherited)
    for total, name, values in zip(sums, names, new, strict=True):
        total[old_at] = _ints(old[name])[0]
        np.add.at(total, new_at, values)
    owner, which = np.nonzero(sums[0])
    columns = [rank.take(pa.array(which)), *(pa.array(total[owner, which]) for total in sums)]
    rows = pa.Table.from_arrays(columns, names=["condition", *names])
    return _nest(_owned(rows, owner), "condition", len(before))


def _ints(column: pa.ChunkedArray | pa.Array, null: int = 0) -> tuple[Ints, Flags]:
    """A copy of the values as 64-bit integers with ``null`` for nulls, and which are not null."""
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    count, data = len(column), column.buffers()[1] or b""
    # Arrow's own way takes twice as long, which counts: there are many small calls.
    width = column.type.bit_width // 8
    values = np.frombuffer(data, dtype=f"i{width}", count=count, offset=column.offset * width)
    values = values.astype(np.int64)
    if not column.null_count:
        return values, np.ones(count, dtype=bool)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    values[~valid] = null
    return values, valid


def _times(values: Ints) -> pa.Array:
    return pa.array(values, mask=values == _NEVER).view(_TIME)


def _added(column: pa.ChunkedArray, key: Ints, amounts: npt.NDArray[np.generic]) -> pa.Array:
    """The sums of all keys after ``amounts`` were added to those of their keys."""
    sums, _ = _ints(column)
    np.add.at(sums, key, amounts)
    return pa.array(sums)


def _code(owner: Ints, hour: Ints) -> Ints:
    """One number per airport and hour, in the order of both."""
    return (owner << 32) + hour // _HOUR


def _owned(rows: pa.Table, owner: Ints) -> pa.Table:
    return rows.append_column("owner", pa.array(owner, type=pa.int64()))


def _nothing(type_: pa.StructType) -> pa.Table:
    return pa.schema([*type_, pa.field("owner", pa.int64())]).empty_table()


def _unnest(column: pa.ChunkedArray, type_: pa.StructType) -> pa.Table:
    """The elements of a list column, with the row that each comes from as ``owner``."""
    lists = column.combine_chunks()
    owner = pc.list_parent_indices(lists).cast(pa.int64())
    fields = [*lists.flatten().flatten(), owner]
    return pa.Table.from_arrays(fields, schema=_nothing(type_).schema)


def _nest(rows: pa.Table, by: str, count: int) -> pa.Array:
    """The inverse of :func:`_unnest`: ``count`` lists, each sorted by the column ``by``."""
    rows = rows.sort_by([("owner", "ascending"), (by, "ascending")]).combine_chunks()
    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(np.bincount(rows["owner"].to_numpy(), minlength=count), out=offsets[1:])
    rows = rows.drop_columns("owner")
    arrays = [
        column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        for column in rows.columns
    ]
    elements = pa.StructArray.from_arrays(arrays, fields=list(rows.schema))
    return pa.ListArray.from_arrays(pa.array(offsets), elements)
