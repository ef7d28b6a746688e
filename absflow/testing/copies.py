"""An author's functions as another process would have them: with globals of their own."""

from __future__ import annotations

from typing import Any

from pyspark import cloudpickle

from absflow.spark.worker.by_value import by_value

__all__ = ["Sent"]


class Sent:
    """Functions as they are now; each copy is as if a process had just been started.

    The module that defines a function is copied with it, as far as the function uses it: a list or
    a dict there is not the one that another copy has. What that module has imported is shared.
    """

    def __init__(self, functions: Any) -> None:
        """Keep them.

        Args:
            functions: functions or objects, in tuples and mappings; they can be sent to workers.
        """
        try:
            with by_value(functions):
                self._bytes: bytes = cloudpickle.dumps(functions)  # type: ignore[no-untyped-call]
        except Exception:
            # A global that one uses cannot be copied; a job sends only the names of such functions.
            self._bytes = cloudpickle.dumps(functions)  # type: ignore[no-untyped-call]

    def copy(self) -> Any:
        """The functions once more."""
        return cloudpickle.loads(self._bytes)
