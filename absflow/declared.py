"""What a stage declares, read: its functions, by their form, and its columns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType, _parse_datatype_string

from absflow.columnar.forms import RowFunction, can_take
from absflow.columnar.process import Process
from absflow.columnar.restore_packer import Migration
from absflow.columnar.timers import TIMEOUT_FIELDS
from absflow.errors import GraphError
from absflow.graph.nodes import StageNode, Upgrade
from absflow.spark.worker.group_state import timeout_defaults
from absflow.spark.worker.per_key import KeyFunction

__all__ = [
    "AnyProcess",
    "called",
    "declared_columns",
    "declared_upgrade",
    "process_functions",
    "timer_function",
]

AnyProcess: TypeAlias = "Process | RowFunction | KeyFunction"

# What a process function may be called with, by its form.
_ARGUMENTS = {
    "arrow": ["rows, state, context"],
    "pandas": ["rows, state, context"],
    "per-key": ["key, frames, state", "key, frames, state, context"],
    "per-row": ["state, row", "state, row, context"],
}


def timer_function(stage: str, on_timer: AnyProcess, form: str) -> AnyProcess:
    """The function for timers, seen to be one."""
    if form not in ("arrow", "pandas"):
        raise GraphError(
            f"stage {stage!r}: its functions are of form {form!r}, which sets no timers; with "
            'on_timer the form must be "arrow" or "pandas"'
        )
    if not callable(on_timer) or not can_take(on_timer, 3):
        raise GraphError(
            f"stage {stage!r}: on_timer must be a function that is called with (rows, state, "
            f"context), not {on_timer!r}"
        )
    return on_timer


def called(node: StageNode) -> dict[str, Callable[..., Any]]:
    """The functions of a stage that run on workers, by what they are in words."""
    functions: dict[str, Callable[..., Any]] = {
        f"input {given!r}": function for given, function in node.process.items()
    }
    if node.on_timer is not None:
        functions["on_timer"] = node.on_timer
    if node.upgrade.migrate is not None:
        functions["migrate"] = node.upgrade.migrate
    return functions


def process_functions(
    stage: str,
    inputs: tuple[str, ...],
    process: AnyProcess | Mapping[str, AnyProcess],
    form: str,
) -> Mapping[str, AnyProcess]:
    """The process function of each input."""
    functions = process if isinstance(process, Mapping) else dict.fromkeys(inputs, process)
    if not isinstance(process, Mapping) and len(inputs) > 1:
        raise GraphError(
            f"stage {stage!r} has {len(inputs)} inputs and one process function; give a mapping "
            f"with one for each of {list(inputs)}"
        )
    for name, function in functions.items():
        if not callable(function):
            raise GraphError(
                f"stage {stage!r}: the process function of {name!r} is a "
                f"{type(function).__name__}, which cannot be called"
            )
        ways = _ARGUMENTS[form]
        if not any(can_take(function, len(way.split(", "))) for way in ways):
            raise GraphError(
                f"stage {stage!r}: the process function of {name!r} is "
                f"{getattr(function, '__name__', type(function).__name__)}"
                f"{inspect.signature(function)}, but one of form {form!r} is called with "
                f"({') or ('.join(ways)}); say which form it has, stage(..., form=...): "
                f"{', '.join(map(repr, _ARGUMENTS))}"
            )
    return functions


def declared_upgrade(
    renamed_from: str | None,
    defaults: Mapping[str, object] | None,
    migrate: Migration | None,
    timeout: str,
) -> Upgrade:
    """How a stage is restored from an earlier form of itself, also from one without timeouts."""
    return Upgrade(renamed_from, timeout_defaults(timeout) | dict(defaults or {}), migrate)


def declared_columns(
    stage: str, what: str, declared: str | StructType, *, times_out: bool = False
) -> pa.Schema:
    """The columns of DDL or of Spark's own type; with those of timeouts if keys time out.

    Raises:
        GraphError: it is no DDL.
    """
    if isinstance(declared, str):
        try:
            parsed = _parse_datatype_string(declared)
        except PySparkException as error:
            raise GraphError(
                f"stage {stage!r}: {what} {declared!r} is not Spark DDL such as "
                f"'legs long, delay double' ({error.getMessage().splitlines()[0]})"
            ) from error
        declared = parsed if isinstance(parsed, StructType) else StructType().add("value", parsed)
    schema = to_arrow_schema(declared, timezone="UTC")
    return pa.schema([*schema, *TIMEOUT_FIELDS]) if times_out else schema
