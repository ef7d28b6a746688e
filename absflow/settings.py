"""Every setting of a job: name, default, what it may be, and one place that checks them all.

A setting is a Spark conf key ``spark.absflow.<name>``, so ``--conf``, ``--properties-file`` and the
session builder all work. Durations carry their unit (``500ms``, ``30s``, ``5min``, ``1h``), sizes
too (``64MiB``).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from absflow.errors import SettingsError
from absflow.protocol.recovery.attempts import RestoreTarget, parse_target
from absflow.protocol.restarts import RestartPolicy

__all__ = ["PREFIX", "SETTINGS", "Setting", "Settings", "describe"]

PREFIX = "spark.absflow."


def _duration_ms(text: str) -> int:
    units = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
    return _with_unit(text, units, "a duration such as 500ms, 30s, 5min or 1h")


def _positive_duration_ms(text: str) -> int:
    value = _duration_ms(text)
    if value == 0:
        raise ValueError("a duration above 0 such as 10s")
    return value


def _duration_or_never(text: str) -> int | None:
    try:
        return None if text.strip() == "never" else _positive_duration_ms(text)
    except ValueError as expected:
        raise ValueError(f"never, or {expected}") from None


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.strip() not in words:
            raise ValueError(" or ".join(words))
        return text.strip()

    return parse


def _size_bytes(text: str) -> int:
    units = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    return _with_unit(text, units, "a size such as 512KiB, 64MiB or 1GiB")


def _size_or_unlimited(text: str) -> int | None:
    try:
        return None if text.strip() == "unlimited" else _size_bytes(text)
    except ValueError as expected:
        raise ValueError(f"unlimited, or {expected}") from None


def _with_unit(text: str, units: Mapping[str, int], expected: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]+)", text.strip())
    if not match or match[2] not in units:
        raise ValueError(expected)
    return int(match[1]) * units[match[2]]


def _count(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d+", text.strip()) or not low <= int(text) <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return int(text)

    return parse


def _factor(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text.strip()) or float(text) < 1:
        raise ValueError("a number of at least 1 such as 1.5")
    return float(text)


def _flag(text: str) -> bool:
    if text.strip().lower() not in {"true", "false"}:
        raise ValueError("true or false")
    return text.strip().lower() == "true"


def _restore_target(text: str) -> RestoreTarget | None:
    return parse_target(text) if text.strip() else None


def _path(text: str) -> str:
    if not text.strip():
        raise ValueError("a path or URI that Spark can write to")
    return text.strip().rstrip("/") or "/"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        name: the key without ``spark.absflow.``.
        field: the attribute of :class:`Settings`.
        default: as text; None if it must be given.
        parse: turns text into the value; raises ValueError with what is expected.
        doc: one sentence for ``conf/absflow.conf`` and the docs.
        example: a value to show where the default is empty, which means that it is not set.
    """

    name: str
    field: str
    default: str | None
    parse: Callable[[str], Any]
    doc: str
    example: str = ""


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "storage.path",
        "storage_path",
        None,
        _path,
        "Storage root of the job: all its tables and working directories lie below it.",
    ),
    Setting(
        "key-groups",
        "key_groups",
        "128",
        _count(1, 32_768),
        "Key groups of every stage: the unit of state and of parallelism; fixed for an attempt.",
    ),
    Setting(
        "edges",
        "edges",
        "auto",
        _one_of("auto", "channel", "direct"),
        "auto: a stage without sink and the only stage that reads it, if that reads nothing else, "
        "run in one query; others hand their rows on in Delta tables. channel: all do. direct: as "
        "auto, and a job with an edge that cannot be direct is refused. Fixed for an attempt.",
    ),
    Setting(
        "checkpoint.interval",
        "checkpoint_interval_ms",
        "10s",
        _positive_duration_ms,
        "From one trigger to the next.",
    ),
    Setting(
        "checkpoint.timeout",
        "checkpoint_timeout_ms",
        "10min",
        _positive_duration_ms,
        "A checkpoint that is older is aborted (EXPIRED).",
    ),
    Setting(
        "checkpoint.mode",
        "checkpoint_mode",
        "aligned",
        _one_of("aligned", "unaligned"),
        "aligned: a stage waits for the barriers of all its inputs. unaligned: a checkpoint "
        "overtakes what is in flight, which becomes part of it. Savepoints are always aligned.",
    ),
    Setting(
        "checkpoint.aligned-timeout",
        "checkpoint_aligned_timeout_ms",
        "30s",
        _duration_or_never,
        "In mode aligned: a checkpoint that is older overtakes all the same; never: it does not.",
    ),
    Setting(
        "checkpoint.min-pause",
        "checkpoint_min_pause_ms",
        "0s",
        _duration_ms,
        "From a completed checkpoint to the next trigger, at least.",
    ),
    Setting(
        "checkpoint.max-concurrent",
        "checkpoint_max_concurrent",
        "1",
        _count(1, 64),
        "Checkpoints that may be pending at once.",
    ),
    Setting(
        "checkpoint.tolerable-failed",
        "checkpoint_tolerable_failed",
        "3",
        _count(0, 1_000_000),
        "Failed checkpoints in a row that are tolerated; one more fails the job.",
    ),
    Setting(
        "checkpoint.retained",
        "checkpoint_retained",
        "100",
        _count(1, 1_000_000),
        "Completed checkpoints that are kept; savepoints are kept besides, until they are deleted.",
    ),
    Setting(
        "lineage.max-sets",
        "lineage_max_sets",
        "20",
        _count(1, 10_000),
        "A checkpoint whose state of a stage is made of more sets than this gets one set instead.",
    ),
    Setting(
        "savepoint.timeout",
        "savepoint_timeout_ms",
        "1h",
        _positive_duration_ms,
        "A savepoint that is older is aborted (EXPIRED).",
    ),
    Setting(
        "savepoint.on-sigterm",
        "savepoint_on_sigterm",
        "false",
        _flag,
        "On SIGTERM the driver takes a savepoint and stops with it.",
    ),
    Setting(
        "alignment.max-held",
        "alignment_max_held_bytes",
        "256MiB",
        _size_bytes,
        "A checkpoint for which a stage holds more than this overtakes; a savepoint, or if "
        "checkpoint.aligned-timeout is never, it is aborted (HELD_TOO_MUCH).",
    ),
    Setting(
        "state.max-inline",
        "state_max_inline_bytes",
        "32KiB",
        _size_bytes,
        "State of a key group that is larger than this lies in files below the storage root, if "
        "that is a directory, and not in Spark's state store.",
    ),
    Setting(
        "channel.max-bytes-per-trigger",
        "channel_max_bytes_per_trigger",
        "64MiB",
        _size_bytes,
        "About how much of a channel one micro-batch of its consumer reads.",
    ),
    Setting(
        "channel.max-backlog",
        "channel_max_backlog_bytes",
        "unlimited",
        _size_or_unlimited,
        "A stage begins no micro-batch while a consumer has more than this of its channel unread, "
        "but for the batches that a pending checkpoint needs; unlimited: it never waits.",
    ),
    Setting(
        "trigger.interval",
        "trigger_interval_ms",
        "0s",
        _duration_ms,
        "Processing-time trigger of every stage; 0s starts a batch as soon as the last is done.",
    ),
    Setting(
        "restore.from",
        "restore_from",
        "",
        _restore_target,
        "Begin a new attempt with this checkpoint, at every start: latest, ID, or PATH#ID of "
        "another storage root. Not set: go on where the last driver stopped.",
        example="latest",
    ),
    Setting(
        "restore.allow-dropped-state",
        "restore_allow_dropped_state",
        "false",
        _flag,
        "Restore though the checkpoint has state of a stage that the job does not have.",
    ),
    Setting(
        "restore.plan",
        "restore_plan",
        "",
        str.strip,
        "A file of the driver's machine: write there (JSON) what a start would restore, change "
        "nothing, and end the program.",
        example="plan.json",
    ),
    Setting(
        "restart.attempts",
        "restart_attempts",
        "3",
        _count(0, 1_000_000),
        "How often in a row a stage's dead query is started again before the job fails.",
    ),
    Setting(
        "restart.initial-delay",
        "restart_initial_delay_ms",
        "1s",
        _duration_ms,
        "Wait before the first restart.",
    ),
    Setting(
        "restart.max-delay",
        "restart_max_delay_ms",
        "1min",
        _duration_ms,
        "Longest wait before a restart.",
    ),
    Setting(
        "restart.multiplier",
        "restart_multiplier",
        "2",
        _factor,
        "Each wait is this many times the last.",
    ),
    Setting(
        "restart.reset-after",
        "restart_reset_after_ms",
        "10min",
        _duration_ms,
        "A query that has run this long starts with the first wait again.",
    ),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The checked settings of one job; times in ms, sizes in bytes. See :data:`SETTINGS`."""

    storage_path: str
    key_groups: int
    edges: str
    checkpoint_interval_ms: int
    checkpoint_timeout_ms: int
    checkpoint_mode: str
    checkpoint_aligned_timeout_ms: int | None
    checkpoint_min_pause_ms: int
    checkpoint_max_concurrent: int
    checkpoint_tolerable_failed: int
    checkpoint_retained: int
    lineage_max_sets: int
    savepoint_timeout_ms: int
    savepoint_on_sigterm: bool
    alignment_max_held_bytes: int
    state_max_inline_bytes: int
    channel_max_bytes_per_trigger: int
    channel_max_backlog_bytes: int | None
    trigger_interval_ms: int
    restore_from: RestoreTarget | None
    restore_allow_dropped_state: bool
    restore_plan: str
    restart_attempts: int
    restart_initial_delay_ms: int
    restart_max_delay_ms: int
    restart_multiplier: float
    restart_reset_after_ms: int

    @property
    def overtakes_after_ms(self) -> int | None:
        """How long a checkpoint's barriers may take to align; None for as long as they need."""
        unaligned = self.checkpoint_mode == "unaligned"
        return 0 if unaligned else self.checkpoint_aligned_timeout_ms

    @property
    def restart_policy(self) -> RestartPolicy:
        """When what has died or failed is tried again."""
        return RestartPolicy(
            self.restart_attempts,
            self.restart_initial_delay_ms,
            self.restart_max_delay_ms,
            self.restart_multiplier,
            self.restart_reset_after_ms,
        )

    @classmethod
    def from_conf(cls, conf: Mapping[str, str]) -> Settings:
        """Read and check every ``spark.absflow.*`` key of a Spark conf.

        Raises:
            SettingsError: naming every key that is unknown, missing or malformed.

        >>> Settings.from_conf({"spark.absflow.storage.path": "/data/job"}).key_groups
        128
        """
        given = {k.removeprefix(PREFIX): v for k, v in conf.items() if k.startswith(PREFIX)}
        known = {setting.name for setting in SETTINGS}
        problems = [_unknown(name, known) for name in sorted(given.keys() - known)]
        values: dict[str, Any] = {}
        for setting in SETTINGS:
            text = given.get(setting.name, setting.default)
            if text is None:
                problems.append(f"{PREFIX}{setting.name} is not set; {setting.doc.lower()}")
                continue
            try:
                values[setting.field] = setting.parse(text)
            except ValueError as expected:
                problems.append(f"{PREFIX}{setting.name} is {text!r}, but must be {expected}")
        if problems:
            raise SettingsError("; ".join(problems))
        return cls(**values)


def _unknown(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    advice = f"did you mean {PREFIX}{close[0]}?" if close else "see conf/absflow.conf for all"
    return f"{PREFIX}{name} is not a setting; {advice}"


def describe() -> str:
    """The text of ``conf/absflow.conf``: every setting with its default and what it does."""
    lines = [
        "# Every setting of absflow with its default; a file for spark-submit --properties-file.",
        "# Durations: ms, s, min, h, d. Sizes: B, KiB, MiB, GiB.",
    ]
    for setting in SETTINGS:
        lines += ["", f"# {setting.doc}"]
        key = PREFIX + setting.name
        if setting.default is None:
            lines.append(f"# (no default: must be given)\n# {key:<48} /path/of/the/job")
        else:
            off = "" if setting.default else "# "
            lines.append(f"{off}{key:<{50 - len(off)}} {setting.default or setting.example}")
    return "\n".join(lines) + "\n"
