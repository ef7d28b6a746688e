"""Whether the functions of a job can be sent to the workers, looked at before it starts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pyspark import cloudpickle

from absflow.columnar.whereabouts import line_of
from absflow.errors import GraphError

__all__ = ["check_sendable"]


def check_sendable(stage: str, functions: Mapping[str, Callable[..., Any]]) -> None:
    """See that Spark can pickle what a stage calls.

    Args:
        stage: the stage's name.
        functions: what it calls, by what that is in words.

    Raises:
        GraphError: it cannot; with the name of what the function holds, if one can be found.
    """
    for what, function in functions.items():
        error = _refusal(function)
        if error is None:
            continue
        held = next((n for n, value in _held(function).items() if _refusal(value)), None)
        because = "" if held is None else f", for it uses {held!r}"
        raise GraphError(
            f"stage {stage!r}, {what}, {line_of(function)}: this function cannot be sent to the "
            f"workers{because} ({type(error).__name__}: {error}); make what it needs within the "
            "function, or import it there from a module"
        ) from error


def _refusal(value: object) -> Exception | None:
    try:
        cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    except Exception as error:  # a class may raise what it likes when it is pickled
        return error
    return None


def _held(function: Callable[..., Any]) -> Mapping[str, object]:
    """What a function takes with it, by name."""
    given = inspect.unwrap(function)
    if inspect.isfunction(given):
        found = inspect.getclosurevars(given)
        return {**found.globals, **found.nonlocals}
    owner = getattr(given, "__self__", given)  # of a method its object
    return dict(getattr(owner, "__dict__", {}))
