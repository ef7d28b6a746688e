"""``QUICK=1``, which ``make bench QUICK=1`` sets: fewer and shorter runs, to check, not to know.

Imports nothing, as peers have environments of their own.
"""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")
QUICK = os.environ.get("QUICK", "") not in ("", "0")


def usual(value: T, quick: T) -> T:
    """The first, or the second if this run is to be quick."""
    return quick if QUICK else value
