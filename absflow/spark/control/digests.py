"""Whether code is the same code: what a function, or an object, is made of, as a short text.

A notebook's cell that is run again makes its functions anew. They are the same if they have the
same code, constants, defaults and closures, use the same globals, and call functions of which that
is so; where they stand does not matter.
"""

from __future__ import annotations

import hashlib
import io
import types
from typing import Any

from pyspark import cloudpickle

from absflow.spark.worker.by_value import by_value

__all__ = ["digest_of"]

# Of a class: what differs each time that it is made, or says where it stands.
_NOT_OF_CODE = {
    "__dict__",
    "__weakref__",
    "__firstlineno__",
    "__static_attributes__",
    "_abc_impl",
    "__abstractmethods__",
}


def digest_of(value: object) -> str | None:
    """Equal for what is made of the same code; None if it cannot be looked into."""
    out = io.BytesIO()
    try:
        with by_value(value):
            _Stable(out).dump(value)  # type: ignore[no-untyped-call]
    except Exception:  # a class may raise what it likes when it is pickled
        return None
    return hashlib.sha256(out.getvalue()).hexdigest()


class _Stable(cloudpickle.CloudPickler):
    """Pickles code without its lines, and classes without the number that each new one has."""

    def reducer_override(self, obj: Any) -> Any:
        """As of :class:`pickle.Pickler`."""
        if isinstance(obj, types.CodeType):
            return _code, _parts(obj)
        if isinstance(obj, type) and not _by_reference(obj):
            made = {n: v for n, v in vars(obj).items() if n not in _NOT_OF_CODE}
            # The rest behind the name: methods may refer to their class.
            return _class, (obj.__qualname__,), (obj.__bases__, sorted(made.items()))
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


def _by_reference(obj: type) -> bool:
    found: bool = cloudpickle.cloudpickle._should_pickle_by_reference(obj)  # type: ignore[no-untyped-call]
    return found


def _parts(code: types.CodeType) -> tuple[object, ...]:
    return (
        code.co_code,
        code.co_consts,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags,
        code.co_name,
    )


def _code(*parts: object) -> object:
    """Stands for code; nothing that is pickled here is ever read."""
    return parts


def _class(*parts: object) -> object:
    """Stands for a class."""
    return parts
