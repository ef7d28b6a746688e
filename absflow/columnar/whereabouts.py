"""Where in the user's own files something is: a function, and the line at which it raised."""

from __future__ import annotations

import inspect
import sysconfig
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["is_users", "line_of", "line_of_error", "trace_of"]

_PACKAGE = Path(__file__).parents[1]


def line_of(function: Callable[..., Any]) -> str:
    """``function NAME at file:line``, where it begins; what it is, if it has no code of Python."""
    given = inspect.unwrap(function)
    for candidate in (given, getattr(given, "func", None), type(given).__call__):
        code = getattr(candidate, "__code__", None)
        if code is not None:
            name = str(getattr(candidate, "__qualname__", code.co_name)).rpartition("<locals>.")[2]
            return f"function {name} at {code.co_filename}:{code.co_firstlineno}"
    return repr(given)


def line_of_error(error: BaseException, function: Callable[..., Any]) -> str:
    """``file:line`` of the last of the user's own lines on the way to an error.

    Args:
        error: what was raised.
        function: what was called; where it begins is said if none of its lines is on the way.
    """
    frames = _outside(error)
    own = [frame for frame in frames if not _is_library(frame.filename)] or frames[:1]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else line_of(function)


def trace_of(error: BaseException) -> str:
    """The traceback below absflow's own frames."""
    return "".join(traceback.format_list(_outside(error))).rstrip()


def is_users(file: str) -> bool:
    """Whether a file of Python is the user's own: neither absflow's nor of a library."""
    return _PACKAGE not in Path(file).parents and not _is_library(file)


def _outside(error: BaseException) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if _PACKAGE not in Path(frame.filename).parents]


def _is_library(file: str) -> bool:
    path = Path(file)
    # What Cython has compiled names its file by a path within its package.
    return path.suffix in {".pyx", ".pxi"} or not _library().isdisjoint(path.parents)


@cache
def _library() -> frozenset[Path]:
    """Where Python and installed packages lie."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return frozenset(Path(sysconfig.get_path(name)) for name in names)
