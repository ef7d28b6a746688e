"""Event time of a simulated stage in its state, where a real one has it in the manifest.

It is as durable there, and changes with the same snapshots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from absflow.protocol.source_time import SourceTime
from absflow.protocol.watermarks import InputTime, StageTime, WatermarkStatus
from absflow.simulation.job import DELAY, StageSpec, partitions

__all__ = ["time_of", "timed"]

_Value = tuple[int, int]
_TIME, _STATUSES, _FAR = "time ", tuple(WatermarkStatus), 1 << 40


def timed(time: StageTime, sources: Mapping[str, SourceTime]) -> Iterator[tuple[str, _Value]]:
    """Event time as entries of the state; inverse of :func:`time_of`."""
    yield f"{_TIME}stage", _encoded(time.value, time.status)
    yield f"{_TIME}output", _encoded(time.output, time.status)
    for name, given in time.inputs.items():
        yield f"{_TIME}input {name}", _encoded(given.value, given.status)
    for name, source in sources.items():
        for partition, newest in source.newest.items():
            yield f"{_TIME}partition {name} {partition}", _encoded(newest, WatermarkStatus.ACTIVE)


def time_of(
    spec: StageSpec, values: Mapping[str, _Value]
) -> tuple[StageTime, dict[str, SourceTime], dict[str, _Value]]:
    """The event time of a stage, that of its root inputs, and the rest of its state."""
    rest = {name: value for name, value in values.items() if not name.startswith(_TIME)}
    inputs = {
        name: InputTime(*_decoded(values.get(f"{_TIME}input {name}"))) for name in spec.inputs
    }
    sources = {
        name: SourceTime(
            DELAY,
            {p: _decoded(values.get(f"{_TIME}partition {name} {p}"))[0] for p in partitions(name)},
        )
        for name in spec.roots
    }
    value, output = (_decoded(values.get(f"{_TIME}{name}"))[0] for name in ("stage", "output"))
    return StageTime(inputs, value, output), sources, rest


def _encoded(value: int | None, status: WatermarkStatus) -> _Value:
    # A value of a key that is (0, 0) would be none.
    return (-_FAR if value is None else value, _STATUSES.index(status) + 1)


def _decoded(value: _Value | None) -> tuple[int | None, WatermarkStatus]:
    number, status = value or (-_FAR, 1)
    return None if number == -_FAR else number, _STATUSES[status - 1]
