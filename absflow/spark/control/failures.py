"""What is said of a query that has died: the error in absflow's own words, and what helps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import dropwhile, pairwise, takewhile

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from absflow.columnar.whereabouts import is_users
from absflow.errors import AbsflowError, JobFailedError, ProcessError, ResultError
from absflow.facts.explained import damage_in
from absflow.storage.root import StorageRoot

__all__ = ["QueryFailure", "failure_of", "shortened", "without_stack"]

_START = "Nothing is lost: mend the cause and start the job again"
_SAME_FILE = "A start would read the same file again, a restore need not"
_RESTORE = (
    "A start would read the same again: restore the job from its newest checkpoint "
    "(absflow restore --from latest, spark.absflow.restore.from=latest)"
)
# What is kept between batches cannot be read: the pages and files of state, Spark's state store.
_UNREADABLE = ("absflow.errors.PageCorruptError", "CANNOT_LOAD_STATE_STORE", "STATE_STORE_")
_OF_PROCESS = {f"absflow.errors.{kind.__name__}: ": kind for kind in (ProcessError, ResultError)}
_OWN = "absflow.errors."
_TRACE = "Traceback (most recent call last):"
_FRAME = re.compile(r'  File "(.+)", line (\d+), in ')
_GONE = "restore the job from its last checkpoint"


@dataclass(frozen=True, slots=True)
class QueryFailure:
    """A query that has died.

    Attributes:
        words: why.
        remedy: what helps.
        cause: what it came from, in absflow's words: the damaged file that it met, or the user's
            function that failed. None if that is an error of Java, whose stack says little.
    """

    words: str
    remedy: str
    cause: AbsflowError | None = None

    @property
    def is_final(self) -> bool:
        """Whether the same rows would end the query again, so that no restart helps."""
        return isinstance(self.cause, ResultError)

    def at_end(self, job: str, how: str) -> str:
        """What a job says that gave up for it; what is wrong with a user's function comes first.

        Args:
            job: its name.
            how: what has become of the query.
        """
        if self.is_final:
            return f"job {job!r} gave up: {self.words}. The same rows would give the same again"
        if isinstance(self.cause, ProcessError):
            return f"job {job!r} gave up: {self.words}; {how}"
        return f"job {job!r} gave up: {how}. {self.remedy}. The last error: {self.words}"


def failure_of(root: StorageRoot, error: str) -> QueryFailure:
    """What is to be said of a query that died with an error of this text."""
    if (damage := damage_in(error, root.spark, root.layout)) is not None:
        return QueryFailure(str(damage), _SAME_FILE, damage)
    if "absflow.errors.DamagedError" in error:
        return QueryFailure(_own_words(error), _SAME_FILE)
    if (process := _of_process(error)) is not None:
        return QueryFailure(str(process).partition("\n")[0], _START, process)
    if _GONE in error or any(sign in error for sign in _UNREADABLE):
        return QueryFailure(_own_words(error), _RESTORE)
    if _TRACE in error and _OWN not in error:
        return _of_python(error)
    return QueryFailure(_own_words(error), _START)


def shortened(failure: JobFailedError) -> JobFailedError:
    """The failure without errors of Java in its chain: their stacks are screens long.

    What they say is in the messages of what was raised because of them.
    """
    error: BaseException = failure
    while cause := error.__cause__ or (None if error.__suppress_context__ else error.__context__):
        if isinstance(cause, Py4JError | PySparkException):
            error.__cause__ = None  # so Python prints no context either
            break
        error = cause
    return failure


def without_stack(text: str) -> str:
    """The text of an error without the lines of Java's stack."""
    lines = (line for line in text.strip().splitlines() if not line.startswith(("\tat ", "\t...")))
    return "\n".join(line for line in lines if line.strip() not in {"", "Driver stacktrace:"})


def _of_process(error: str) -> ProcessError | None:
    """The error of a user's function in the text, with the user's part of its traceback."""
    lines = error.splitlines()
    for number, line in enumerate(lines):
        for sign, kind in _OF_PROCESS.items():
            if line.startswith(sign):
                trace = takewhile(lambda line: line.startswith("  "), lines[number + 1 :])
                return kind("\n".join([line.removeprefix(sign), *trace]))
    return None


def _of_python(error: str) -> QueryFailure:
    """Of an exception of Python on the driver, as in the function of a sink: the user's part."""
    trace = error.rpartition(_TRACE)[2].strip("\n").splitlines()
    said = takewhile(str.strip, dropwhile(lambda line: line.startswith("  "), trace))
    words = " ".join(line.strip() for line in said)
    begins = [number for number, line in enumerate(trace) if _FRAME.match(line)]
    frames: list[tuple[re.Match[str], list[str]]] = []
    for begin, end in pairwise([*begins, sum(line.startswith("  ") for line in trace)]):
        if (frame := _FRAME.match(trace[begin])) is not None and is_users(frame[1]):
            frames.append((frame, trace[begin:end]))
    if not frames:
        return QueryFailure(words, _START)
    cause = AbsflowError("\n".join([words, *(line for _, lines in frames for line in lines)]))
    return QueryFailure(f"{frames[-1][0][1]}:{frames[-1][0][2]}: {words}", _START, cause)


def _own_words(error: str) -> str:
    """Absflow's own words in the text of a dead query, else the text without stack traces."""
    for line in error.strip().splitlines():
        if line.startswith(_OWN):
            return line.removeprefix(_OWN)
    return without_stack(error)
