"""What is said of a query that has died: the error in absflow's own words, and what helps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from absflow.errors import AbsflowError, ProcessError
from absflow.facts.explained import damage_in
from absflow.storage.root import StorageRoot

__all__ = ["QueryFailure", "failure_of"]

_START = "Nothing is lost: mend the cause and start the job again"
_SAME_FILE = "A start would read the same file again, a restore need not"
_RESTORE = (
    "A start would read the same again: restore the job from its newest checkpoint "
    "(absflow restore --from latest, spark.absflow.restore.from=latest)"
)
# What is kept between batches cannot be read: the pages and files of state, Spark's state store.
_UNREADABLE = ("absflow.errors.PageCorruptError", "CANNOT_LOAD_STATE_STORE", "STATE_STORE_")
_PROCESS = "absflow.errors.ProcessError: "
_GONE = "restore the job from its last checkpoint"


@dataclass(frozen=True, slots=True)
class QueryFailure:
    """A query that has died.

    Attributes:
        words: why.
        remedy: what helps.
        cause: what it came from, in absflow's words: the damaged file that it met, or the user's
            function that failed. None if Spark's own error says more.
    """

    words: str
    remedy: str
    cause: AbsflowError | None = None

    def at_end(self, gave_up: str) -> str:
        """What a job says that gave up for it; what is wrong with a user's function comes first."""
        if isinstance(self.cause, ProcessError):
            return f"{self.words}; {gave_up}"
        return f"{gave_up}. {self.remedy}. The last error: {self.words}"


def failure_of(root: StorageRoot, error: str) -> QueryFailure:
    """What is to be said of a query that died with an error of this text."""
    if (damage := damage_in(error, root.spark, root.layout)) is not None:
        return QueryFailure(str(damage), _SAME_FILE, damage)
    if "absflow.errors.DamagedError" in error:
        return QueryFailure(_own_words(error), _SAME_FILE)
    if (trace := _of_process(error)) is not None:
        return QueryFailure(trace[0], _START, ProcessError("\n".join(trace)))
    restore = _GONE in error or any(sign in error for sign in _UNREADABLE)
    return QueryFailure(_own_words(error), _RESTORE if restore else _START)


def _of_process(error: str) -> list[str] | None:
    """What a ProcessError says, and the user's part of its traceback; None if it is none."""
    lines = error.splitlines()
    for number, line in enumerate(lines):
        if line.startswith(_PROCESS):
            trace = takewhile(lambda line: line.startswith("  "), lines[number + 1 :])
            return [line.removeprefix(_PROCESS), *trace]
    return None


def _own_words(error: str) -> str:
    """Absflow's own words in the text of a dead query, else the text without stack traces."""
    lines = error.strip().splitlines()
    for line in lines:
        if line.startswith("absflow.errors."):
            return line.removeprefix("absflow.errors.")
    return "\n".join(line for line in lines if not line.startswith("\tat "))
