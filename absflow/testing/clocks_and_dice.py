"""Clocks and random numbers that a function asks for by itself, found in its code.

Two runs within a second do not show that a function depends on the day. So its code is looked at,
and that of the functions of its own module that it calls.
"""

from __future__ import annotations

import datetime
import dis
import inspect
import os
import random
import secrets
import time
import uuid
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import pandas as pd

from absflow.spark.worker.by_value import own_module

__all__ = ["asked_for"]

_DATES = (datetime.datetime, datetime.date, pd.Timestamp)
_NOW = {"now", "utcnow", "today"}
_SET = {"seed", "set_state", "get_state", "setstate", "getstate"}
_OTHERS = (time.time, time.time_ns, os.urandom, uuid.uuid1, uuid.uuid4)
# What begins with a name of these is loaded from there; the rest of a chain are attributes.
_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME"}
_CLOSED = {"LOAD_DEREF", "LOAD_CLASSDEREF"}
_ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD"}
_MISSING = object()


def asked_for(function: object) -> list[str]:
    """What it asks for, each with its place, as ``time.time (job.py:14)``; empty if nothing."""
    found: dict[str, None] = {}
    seen: set[CodeType] = set()
    for each in _functions(function):
        _look(each, seen, found)
    return list(found)


def _functions(function: object) -> Iterator[FunctionType]:
    """The plain functions of which something that is called is made."""
    if isinstance(function, tuple | list):
        for each in function:
            yield from _functions(each)
        return
    if isinstance(function, dict):
        yield from _functions(list(function.values()))
        return
    given = inspect.unwrap(function) if callable(function) else function
    given = getattr(given, "__func__", getattr(given, "func", given))
    if isinstance(given, FunctionType):
        yield given
        return
    if given is not None:  # an object with methods
        for _, method in inspect.getmembers(type(given), inspect.isfunction):
            if method.__module__ == type(given).__module__:
                yield method


def _look(function: FunctionType, seen: set[CodeType], found: dict[str, None]) -> None:
    for code in _codes(function.__code__):
        if code in seen:
            continue
        seen.add(code)
        for line, names, value in _loaded(function, code):
            if _is_clock_or_dice(names, value):
                place = f"{os.path.basename(code.co_filename)}:{line}"
                found[f"{'.'.join(names)} ({place})"] = None
            elif isinstance(value, FunctionType) and _is_own(value, function):
                _look(value, seen, found)


def _is_own(function: FunctionType, caller: FunctionType) -> bool:
    """Whether it is of whoever has written the caller, and of no library."""
    return function.__module__ == caller.__module__ or own_module(function) is not None


def _codes(code: CodeType) -> Iterator[CodeType]:
    """That of a function, and of those inside it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _loaded(
    function: FunctionType, code: CodeType
) -> Iterator[tuple[int, tuple[str, ...], object]]:
    """Each name with attributes that is loaded: its line, the names, what it is now."""
    closed = _closed(function)
    names: tuple[str, ...] = ()
    value: Any = _MISSING
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = _line(instruction, line)
        kind, name = instruction.opname, instruction.argval
        if kind in _GLOBAL or kind in _CLOSED:
            if value is not _MISSING:
                yield line, names, value
            scope = closed if kind in _CLOSED else function.__globals__
            names, value = (name,), scope.get(name, _MISSING)
        elif kind in _ATTRIBUTE and value is not _MISSING:
            yield line, names, value
            names, value = (*names, name), _attribute(value, name)
        else:
            if value is not _MISSING:
                yield line, names, value
            names, value = (), _MISSING


def _closed(function: FunctionType) -> dict[str, object]:
    """What it has from the functions around it."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    found = {}
    for name, cell in cells:
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not there yet
            continue
    return found


def _line(instruction: dis.Instruction, before: int) -> int:
    """Python 3.13 has it elsewhere than those before."""
    line = getattr(instruction, "line_number", _MISSING)
    if line is _MISSING:
        line = instruction.starts_line
    return line if isinstance(line, int) and not isinstance(line, bool) else before


def _attribute(value: object, name: str) -> object:
    """Of modules and classes only: of others it might be computed."""
    if isinstance(value, ModuleType | type):
        return getattr(value, name, _MISSING)
    return _MISSING


def _is_clock_or_dice(names: tuple[str, ...], value: object) -> bool:
    if any(value is each for each in _OTHERS):
        return True
    owner = getattr(value, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, _DATES):
        return names[-1] in _NOW
    if isinstance(owner, random.Random | np.random.RandomState):
        return names[-1] not in _SET
    return callable(value) and getattr(value, "__module__", None) == secrets.__name__
