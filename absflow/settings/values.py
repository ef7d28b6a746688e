"""The texts of settings to values; a ValueError says what is expected."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from absflow.protocol.recovery.attempts import RestoreTarget, parse_target

__all__ = [
    "count",
    "duration_ms",
    "duration_or_never",
    "factor",
    "flag",
    "one_of",
    "page_bytes",
    "path",
    "port",
    "positive_duration_ms",
    "restore_target",
    "size_bytes",
    "size_or_unlimited",
]


def duration_ms(text: str) -> int:
    """A duration in ms."""
    units = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
    return _with_unit(text, units, "a duration such as 500ms, 30s, 5min or 1h")


def positive_duration_ms(text: str) -> int:
    """A duration above 0 in ms."""
    value = duration_ms(text)
    if value == 0:
        raise ValueError("a duration above 0 such as 10s")
    return value


def duration_or_never(text: str) -> int | None:
    """A duration above 0 in ms; None for ``never``."""
    try:
        return None if text.strip() == "never" else positive_duration_ms(text)
    except ValueError as expected:
        raise ValueError(f"never, or {expected}") from None


def one_of(*words: str) -> Callable[[str], str]:
    """Reads one of these words."""

    def parse(text: str) -> str:
        if text.strip() not in words:
            raise ValueError(" or ".join(words))
        return text.strip()

    return parse


def size_bytes(text: str) -> int:
    """A size in bytes."""
    units = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    return _with_unit(text, units, "a size such as 512KiB, 64MiB or 1GiB")


def page_bytes(text: str) -> int:
    """A size in bytes that Spark and Arrow carry many of at once."""
    expected = "a size from 1KiB to 64MiB"
    try:
        size = size_bytes(text)
    except ValueError:
        raise ValueError(expected) from None
    if not 1 << 10 <= size <= 64 << 20:
        raise ValueError(expected)
    return size


def size_or_unlimited(text: str) -> int | None:
    """A size in bytes; None for ``unlimited``."""
    try:
        return None if text.strip() == "unlimited" else size_bytes(text)
    except ValueError as expected:
        raise ValueError(f"unlimited, or {expected}") from None


def _with_unit(text: str, units: Mapping[str, int], expected: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]+)", text.strip())
    if not match or match[2] not in units:
        raise ValueError(expected)
    return int(match[1]) * units[match[2]]


def count(low: int, high: int) -> Callable[[str], int]:
    """Reads a whole number from ``low`` to ``high``."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"\d+", text.strip()) or not low <= int(text) <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return int(text)

    return parse


def port(text: str) -> int | None:
    """A port; None if it is empty."""
    return count(0, 65_535)(text) if text.strip() else None


def factor(text: str) -> float:
    """A number of at least 1."""
    if not re.fullmatch(r"\d+(\.\d+)?", text.strip()) or float(text) < 1:
        raise ValueError("a number of at least 1 such as 1.5")
    return float(text)


def flag(text: str) -> bool:
    """True or false."""
    if text.strip().lower() not in {"true", "false"}:
        raise ValueError("true or false")
    return text.strip().lower() == "true"


def restore_target(text: str) -> RestoreTarget | None:
    """What ``restore.from`` names; None if it is empty."""
    return parse_target(text) if text.strip() else None


def path(text: str) -> str:
    """A path or URI, without a slash at its end."""
    if not text.strip():
        raise ValueError("a path or URI that Spark can write to")
    return text.strip().rstrip("/") or "/"
