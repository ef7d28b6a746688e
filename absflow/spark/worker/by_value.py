"""Functions pickled with the code of their module, where Spark sends its name alone."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

from pyspark import cloudpickle

from absflow.columnar.whereabouts import is_users

__all__ = ["by_value", "own_module"]

# What is of __main__ is pickled so anyway.
_NOT_OWN = ("absflow", "pyspark", "__main__", "builtins")


def own_module(function: object) -> ModuleType | None:
    """The module that defines a function, or the class of an object; None if it is no user's."""
    if inspect.isfunction(function) or inspect.isbuiltin(function):
        name: Any = getattr(inspect.unwrap(function), "__module__", None)
    else:
        owner = getattr(function, "__self__", getattr(function, "func", function))
        if owner is not function:
            return own_module(owner)
        name = type(function).__module__
    if not isinstance(name, str) or name.split(".")[0] in _NOT_OWN:
        return None
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    return module if file and is_users(file) else None


@contextmanager
def by_value(functions: Any) -> Iterator[None]:
    """Within the block, these functions are pickled with what they use of their modules.

    Args:
        functions: functions or objects, in tuples, lists and mappings.
    """
    known = cloudpickle.cloudpickle.list_registry_pickle_by_value()  # type: ignore[no-untyped-call]
    own = {module for each in _each(functions) if (module := own_module(each)) is not None}
    with ExitStack() as after:
        for module in own:
            if module.__name__ not in known:
                cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
                after.callback(cloudpickle.unregister_pickle_by_value, module)
        yield


def _each(functions: Any) -> Iterator[object]:
    if isinstance(functions, tuple | list):
        for each in functions:
            yield from _each(each)
    elif isinstance(functions, Mapping):
        yield from _each(list(functions.values()))
    elif functions is not None:
        yield functions
