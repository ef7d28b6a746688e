"""All settings: name, default, what each may be, and what it is for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from absflow.settings.values import (
    count,
    duration_ms,
    duration_or_never,
    factor,
    flag,
    one_of,
    page_bytes,
    path,
    positive_duration_ms,
    restore_target,
    size_bytes,
    size_or_unlimited,
)

__all__ = ["PREFIX", "SETTINGS", "Setting"]

PREFIX = "spark.absflow."


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
        path,
        "Storage root of the job: all its tables and working directories lie below it.",
    ),
    Setting(
        "key-groups",
        "key_groups",
        "128",
        count(1, 32_768),
        "Key groups of every stage: the unit of state and of parallelism; fixed for an attempt.",
    ),
    Setting(
        "edges",
        "edges",
        "auto",
        one_of("auto", "channel", "direct"),
        "auto: two stages run in one query if the second is the only reader of the first and reads "
        "nothing else, and the first has no sink; other edges are Delta tables. channel: all edges "
        "are tables. direct: as auto, but a job with an edge that cannot be direct is refused. "
        "Fixed for an attempt.",
    ),
    Setting(
        "checkpoint.interval",
        "checkpoint_interval_ms",
        "10s",
        positive_duration_ms,
        "From one trigger to the next.",
    ),
    Setting(
        "checkpoint.timeout",
        "checkpoint_timeout_ms",
        "10min",
        positive_duration_ms,
        "A checkpoint that is older is aborted (EXPIRED).",
    ),
    Setting(
        "checkpoint.mode",
        "checkpoint_mode",
        "aligned",
        one_of("aligned", "unaligned"),
        "aligned: a stage waits for the barriers of all its inputs. unaligned: a checkpoint "
        "overtakes what is in flight, which becomes part of it. Savepoints are always aligned.",
    ),
    Setting(
        "checkpoint.aligned-timeout",
        "checkpoint_aligned_timeout_ms",
        "30s",
        duration_or_never,
        "In mode aligned: a checkpoint that is older than this overtakes; never: none does.",
    ),
    Setting(
        "checkpoint.min-pause",
        "checkpoint_min_pause_ms",
        "0s",
        duration_ms,
        "From a completed checkpoint to the next trigger, at least.",
    ),
    Setting(
        "checkpoint.max-concurrent",
        "checkpoint_max_concurrent",
        "1",
        count(1, 64),
        "Checkpoints that may be pending at once.",
    ),
    Setting(
        "checkpoint.tolerable-failed",
        "checkpoint_tolerable_failed",
        "3",
        count(0, 1_000_000),
        "Failed checkpoints in a row that are tolerated; one more fails the job.",
    ),
    Setting(
        "checkpoint.retained",
        "checkpoint_retained",
        "100",
        count(1, 1_000_000),
        "How many completed checkpoints are kept. Savepoints do not count, and stay until deleted.",
    ),
    Setting(
        "lineage.max-sets",
        "lineage_max_sets",
        "20",
        count(1, 10_000),
        "The most sets that a stage's state is read from; of more, retention merges small ones.",
    ),
    Setting(
        "savepoint.timeout",
        "savepoint_timeout_ms",
        "1h",
        positive_duration_ms,
        "A savepoint that is older is aborted (EXPIRED).",
    ),
    Setting(
        "savepoint.on-sigterm",
        "savepoint_on_sigterm",
        "false",
        flag,
        "On SIGTERM the driver takes a savepoint and stops with it.",
    ),
    Setting(
        "alignment.max-held",
        "alignment_max_held_bytes",
        "256MiB",
        size_bytes,
        "If a stage holds more rows than this for a checkpoint, the checkpoint overtakes. A "
        "savepoint is aborted instead (HELD_TOO_MUCH), and so is any if "
        "checkpoint.aligned-timeout is never.",
    ),
    Setting(
        "state.max-inline",
        "state_max_inline_bytes",
        "32KiB",
        size_bytes,
        "A key group with more state than this has it in files below the storage root, if that is "
        "a directory; with less, in Spark's state store.",
    ),
    Setting(
        "page.max-bytes",
        "page_max_bytes",
        "1MiB",
        page_bytes,
        "Rows and state travel in pages of at most so many bytes; a larger row has a page of its "
        "own. Memory of a worker is a few dozen pages.",
    ),
    Setting(
        "channel.max-bytes-per-trigger",
        "channel_max_bytes_per_trigger",
        "64MiB",
        size_bytes,
        "About how much of a channel one micro-batch of its consumer reads.",
    ),
    Setting(
        "channel.max-backlog",
        "channel_max_backlog_bytes",
        "unlimited",
        size_or_unlimited,
        "A stage begins no micro-batch while a consumer has more than this of its channel unread, "
        "but for the batches that a pending checkpoint needs; unlimited: it never waits.",
    ),
    Setting(
        "trigger.interval",
        "trigger_interval_ms",
        "0s",
        duration_ms,
        "Processing-time trigger of every stage; 0s starts a batch as soon as the last is done.",
    ),
    Setting(
        "restore.from",
        "restore_from",
        "",
        restore_target,
        "Begin a new attempt with this checkpoint, at every start: latest, ID, or PATH#ID of "
        "another storage root. Not set: go on where the last driver stopped.",
        example="latest",
    ),
    Setting(
        "restore.allow-dropped-state",
        "restore_allow_dropped_state",
        "false",
        flag,
        "Allow a restore that drops the state of stages which the job no longer has.",
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
        count(0, 1_000_000),
        "How often in a row a stage's dead query is started again before the job fails.",
    ),
    Setting(
        "restart.initial-delay",
        "restart_initial_delay_ms",
        "1s",
        duration_ms,
        "Wait before the first restart.",
    ),
    Setting(
        "restart.max-delay",
        "restart_max_delay_ms",
        "1min",
        duration_ms,
        "Longest wait before a restart.",
    ),
    Setting(
        "restart.multiplier",
        "restart_multiplier",
        "2",
        factor,
        "Each wait is this many times the last.",
    ),
    Setting(
        "restart.reset-after",
        "restart_reset_after_ms",
        "10min",
        duration_ms,
        "After a run as long as this, a query's restarts are counted from the first again.",
    ),
)
