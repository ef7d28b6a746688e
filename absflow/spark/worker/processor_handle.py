"""The ``StatefulProcessorHandle`` that a processor is given, and the state that it asks of it.

A handle stands at one key of a call; what the processor asks of a variable or of timers is of that
key. So the processor keeps the handle and its variables from ``init`` on, as with Spark, and none
is made per key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.types import StructType

from absflow.spark.worker.processor_timers import CallTimers
from absflow.spark.worker.processor_variables import Asked, Cells, Kind, Variable

__all__ = ["Handle"]

_Row: TypeAlias = "tuple[Any, ...]"
_Schema: TypeAlias = "StructType | str"
_NO_KEY = -1


class Handle(StatefulProcessorHandle):
    """What a processor asks for its state and timers, on a worker.

    Attributes:
        at: the number of the key that the processor is called for.
        timers: of the keys of the call; None if the processor has none.
    """

    def __init__(self, variables: Mapping[str, Variable], time_mode: str) -> None:
        """Of a processor that has not been initialised.

        Args:
            variables: what its ``init`` has asked for on the driver.
            time_mode: as declared with the stage.
        """
        self.at = _NO_KEY
        self.timers: CallTimers | None = None
        self._declared = variables
        self._time_mode = time_mode
        self._asked: dict[str, Cells] = {}
        self._strays: set[str] = set()
        self._initialising = True

    def initialised(self) -> Mapping[str, Cells]:
        """``init`` is over: the state of all that it has asked for.

        Raises:
            ValueError: that is not what it has asked for on the driver.
        """
        self._initialising = False
        if differing := sorted(self._strays | (self._declared.keys() - self._asked.keys())):
            raise ValueError(
                f"init has asked for the state {differing[0]!r} either here or when the stage was "
                "declared, but not in both; it must ask for the same everywhere"
            )
        return self._asked

    def getValueState(
        self, stateName: str, schema: _Schema, ttlDurationMs: int | None = None
    ) -> ValueState:
        """As Spark's."""
        self._ask(stateName, Kind.VALUE, "", schema, ttlDurationMs)
        return _Value(self, stateName)

    def getListState(
        self, stateName: str, schema: _Schema, ttlDurationMs: int | None = None
    ) -> ListState:
        """As Spark's."""
        self._ask(stateName, Kind.LIST, "", schema, ttlDurationMs)
        return _List(self, stateName)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: _Schema,
        valueSchema: _Schema,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        """As Spark's."""
        self._ask(stateName, Kind.MAP, userKeySchema, valueSchema, ttlDurationMs)
        return _Map(self, stateName)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """As Spark's."""
        self._timers("registerTimer").add(self.at, expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """As Spark's."""
        self._timers("deleteTimer").remove(self.at, expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        """As Spark's."""
        return iter(self._timers("listTimers").of(self.at))

    def deleteIfExists(self, stateName: str) -> None:
        """As Spark's: ``init`` does not want this state any more."""
        self._check_init("deleteIfExists")
        self._asked.pop(stateName, None)
        self._strays.discard(stateName)

    def leave(self) -> None:
        """The calls are over: there is no key until the next one."""
        self.at = _NO_KEY

    def cells(self, name: str) -> Cells:
        """The state of a variable, for the key that the processor is called for.

        Raises:
            PySparkRuntimeError: ``init`` has deleted it, as Spark says it.
            ValueError: no key is there.
        """
        if name not in self._asked:
            raise PySparkRuntimeError(
                f"Error checking value state exists: init has deleted the state {name!r}"
            )
        if self.at == _NO_KEY:
            raise ValueError(
                f"state {name!r} was used outside of a key's call; it is of a key, so use it in "
                "handleInputRows and handleExpiredTimer only"
            )
        return self._asked[name]

    def _ask(self, name: str, kind: Kind, key: _Schema, value: _Schema, ttl_ms: int | None) -> None:
        self._check_init(f"get{kind.value.capitalize()}State")
        variable = self.known(name, (kind, key, value, ttl_ms))
        if variable is None:
            self._strays.add(name)
        else:
            self._asked[name] = Cells(variable)

    def known(self, name: str, asked: Asked) -> Variable | None:
        """What the driver knows of a variable; nothing if ``init`` has deleted it there."""
        known = self._declared.get(name)
        if known is not None and known.asked != asked:
            raise ValueError(
                f"init has asked for the state {name!r} with {asked}, but with {known.asked} when "
                "the stage was declared; it must ask for the same everywhere"
            )
        return known

    def _check_init(self, called: str) -> None:
        if not self._initialising:
            raise ValueError(f"{called} was called outside of init; ask for all state there")

    def _timers(self, called: str) -> CallTimers:
        if self._time_mode == "none":
            raise ValueError(
                f"{called} was called, but the stage has no timers; declare stage(..., "
                'time_mode="ProcessingTime") or "EventTime"'
            )
        if self.timers is None or self.at == _NO_KEY:
            raise ValueError(
                f"{called} was called outside of a key's call; a timer is of a key, so use it in "
                "handleInputRows and handleExpiredTimer only"
            )
        return self.timers


class _Value(ValueState):
    """A value state, of the key at which the handle stands."""

    def __init__(self, handle: Handle, name: str) -> None:
        self._handle, self._name = handle, name

    def exists(self) -> bool:
        return self._handle.cells(self._name).cell(self._handle.at) is not None

    def get(self) -> _Row | None:
        cells = self._handle.cells(self._name)
        row = cells.cell(self._handle.at)
        return None if row is None else cells.value_of(row)

    def update(self, newValue: _Row) -> None:
        cells = self._handle.cells(self._name)
        cells.put(self._handle.at, cells.row_of(newValue))

    def clear(self) -> None:
        self._handle.cells(self._name).clear(self._handle.at)


class _List(ListState):
    """A list state, of the key at which the handle stands."""

    def __init__(self, handle: Handle, name: str) -> None:
        self._handle, self._name = handle, name

    def exists(self) -> bool:
        return self._handle.cells(self._name).cell(self._handle.at) is not None

    def get(self) -> Iterator[_Row]:
        cells = self._handle.cells(self._name)
        return iter([cells.value_of(row) for row in cells.cell(self._handle.at) or ()])

    def put(self, newState: list[_Row]) -> None:
        cells = self._handle.cells(self._name)
        cells.put(self._handle.at, [cells.row_of(value) for value in newState])

    def appendValue(self, newState: _Row) -> None:
        self.appendList([newState])

    def appendList(self, newState: list[_Row]) -> None:
        cells, at = self._handle.cells(self._name), self._handle.at
        rows = cells.cell(at) or []
        rows.extend([cells.row_of(value) for value in newState])
        cells.put(at, rows)

    def clear(self) -> None:
        self._handle.cells(self._name).clear(self._handle.at)


class _Map(MapState):
    """A map state, of the key at which the handle stands; entries in the order of their making."""

    def __init__(self, handle: Handle, name: str) -> None:
        self._handle, self._name = handle, name

    def _entries(self) -> dict[_Row, _Row]:
        return self._handle.cells(self._name).cell(self._handle.at) or {}

    def exists(self) -> bool:
        return bool(self._entries())

    def getValue(self, key: _Row) -> _Row | None:
        cells = self._handle.cells(self._name)
        row = self._entries().get(cells.key_of(key))
        # Of this call alone Spark makes a Row.
        return None if row is None else cells.named(*cells.value_of(row))

    def containsKey(self, key: _Row) -> bool:
        return self._handle.cells(self._name).key_of(key) in self._entries()

    def updateValue(self, key: _Row, value: _Row) -> None:
        cells, entries = self._handle.cells(self._name), self._entries()
        entries[cells.key_of(key)] = cells.row_of(value)
        cells.put(self._handle.at, entries)

    def iterator(self) -> Iterator[tuple[_Row, _Row]]:
        cells = self._handle.cells(self._name)
        return iter([(key, cells.value_of(row)) for key, row in self._entries().items()])

    def keys(self) -> Iterator[_Row]:
        return iter(list(self._entries()))

    def values(self) -> Iterator[_Row]:
        return iter([value for _, value in self.iterator()])

    def removeKey(self, key: _Row) -> None:
        cells, entries = self._handle.cells(self._name), self._entries()
        if entries.pop(cells.key_of(key), None) is not None:
            cells.put(self._handle.at, entries)

    def clear(self) -> None:
        self._handle.cells(self._name).clear(self._handle.at)
