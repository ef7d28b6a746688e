"""What a ``StatefulProcessor`` asks for in ``init``, seen on the driver before anything runs.

So the author need not declare its state, and what is wrong with it is refused when the stage is
declared. Spark does the same in a process of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TypeAlias

from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import ArrayType, MapType, StructType

from absflow.columnar.clocks import UPDATED
from absflow.errors import GraphError
from absflow.spark.worker.processor_handle import Handle
from absflow.spark.worker.processor_variables import Asked, Kind, Variable

__all__ = ["TIME_MODES", "asked_variables"]

# Spark's, by how it compares them.
TIME_MODES = {mode.lower(): mode for mode in ("None", "ProcessingTime", "EventTime")}

# What a schema is of, and what was given -> the columns.
Parse: TypeAlias = "Callable[[str, str | StructType], StructType]"


def asked_variables(
    stage: str, processor: StatefulProcessor, time_mode: str, parse: Parse
) -> Mapping[str, Variable]:
    """The variables that a processor asks for, in their order.

    ``init`` is called on a copy, for it may keep what it gets in the processor.

    Args:
        stage: the stage's name.
        processor: as its author has made it; it can be pickled.
        time_mode: one of :data:`TIME_MODES`.
        parse: makes columns of a schema, or raises a GraphError.

    Raises:
        GraphError: ``init`` raised, or asked for what cannot be.
    """
    # To pickle it instead would change the class of the original, if that is of __main__.
    copied = copy.copy(processor)
    seen = _Seen(stage, time_mode, parse)
    try:
        copied.init(seen)
        found = {name: cells.variable for name, cells in seen.initialised().items()}
        copied.close()
    except GraphError:
        raise
    except Exception as error:
        raise GraphError(
            f"stage {stage!r}: init of {type(processor).__name__} raised {type(error).__name__}: "
            f"{error}; it is called when the stage is declared, to see what state it asks for"
        ) from error
    return found


class _Seen(Handle):
    """A handle without keys, which notes what it is asked for."""

    def __init__(self, stage: str, time_mode: str, parse: Parse) -> None:
        super().__init__({}, time_mode)
        self._stage = stage
        self._parse = parse

    def known(self, name: str, asked: Asked) -> Variable:
        """The variable, seen to be one."""
        kind, key, value, ttl_ms = asked
        what = f"{kind.value} state {name!r}"
        if name in self._asked:
            raise GraphError(
                f"stage {self._stage!r}: init asks twice for the state {name!r}; each variable has "
                "a name of its own"
            )
        columns = self._columns(what, value)
        keys = self._columns(f"the key of {what}", key) if kind is Kind.MAP else StructType()
        for field in keys.fields:
            if isinstance(field.dataType, ArrayType | MapType):
                raise GraphError(
                    f"stage {self._stage!r}: the key of {what} has {field.name!r}, which is "
                    f"{field.dataType.simpleString()}; keys of a map are made of single values"
                )
        return Variable(name, kind, columns, keys, self._ttl(what, columns, ttl_ms), asked)

    def _columns(self, what: str, schema: StructType | str) -> StructType:
        columns = self._parse(what, schema)
        if not len(columns):
            raise GraphError(f"stage {self._stage!r}: {what} has no column; give it one")
        return columns

    def _ttl(self, what: str, columns: StructType, ttl_ms: int | None) -> int:
        if not ttl_ms:
            return 0
        if not isinstance(ttl_ms, int) or ttl_ms < 0:
            raise GraphError(
                f"stage {self._stage!r}: {what} has the time to live {ttl_ms!r}, but ms are "
                "expected, more than 0; None for ever"
            )
        if self._time_mode != "processingtime":
            raise GraphError(
                f"stage {self._stage!r}: {what} has a time to live, which is of processing time; "
                f'declare stage(..., time_mode="ProcessingTime"), not '
                f"{TIME_MODES[self._time_mode]!r}"
            )
        if UPDATED in columns.names:
            raise GraphError(
                f"stage {self._stage!r}: {what} has a column {UPDATED!r}, which absflow keeps "
                "beside values with a time to live; rename it"
            )
        return ttl_ms
