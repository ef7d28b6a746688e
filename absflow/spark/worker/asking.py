"""Questions to the workers before a job runs: what is there, and what they see."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from pyspark import RDD, SparkContext

__all__ = ["SilentWorkersError", "ask_workers", "looks"]

_Answer = TypeVar("_Answer")


class SilentWorkersError(Exception):
    """Workers did not answer; the text is the error's last line that is not of Java's stack."""


def looks(context: SparkContext) -> int:
    """How many are asked: as many as there are cores, so that no worker is missed."""
    return max(1, context.defaultParallelism)


def ask_workers(
    context: SparkContext,
    look: Callable[[Iterable[int]], Iterable[_Answer]],
    numbers: RDD[int] | None = None,
) -> list[_Answer]:
    """Run ``look`` on the workers, with a number for each look; all answers.

    Args:
        context: starts the job.
        look: a function within another one goes to the workers whole: absflow may not be there.
        numbers: where they come from, if not from the driver.

    Raises:
        SilentWorkersError: it could not be run.
    """
    count = looks(context)
    try:
        numbers = numbers or context.parallelize(range(count), count)
        return numbers.mapPartitions(look).collect()
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line and not line.startswith("\tat ")]
        raise SilentWorkersError(lines[-1] if lines else str(error)) from error
