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
    port,
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
        doc: what it does, for ``conf/absflow.conf`` and the docs.
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
        "The storage root of the job, below which all of its tables and working directories lie.",
    ),
    Setting(
        "key-groups",
        "key_groups",
        "128",
        count(1, 32_768),
        "Into how many key groups every stage divides its keys. A key group is the unit of "
        "state and of parallelism. It changes only at a restore.",
    ),
    Setting(
        "edges",
        "edges",
        "auto",
        one_of("auto", "channel", "direct"),
        "How rows go from stage to stage. auto: within one query where that is possible, else "
        "through a Delta table (a channel). It is possible if the second stage reads nothing "
        "but the first, and nothing else reads the first, no sink either. channel: always "
        "through a table. direct: always within a query; a job in which that is not possible "
        "is refused. It changes only at a restore.",
    ),
    Setting(
        "checkpoint.interval",
        "checkpoint_interval_ms",
        "10s",
        positive_duration_ms,
        "The time from the start of one checkpoint to the start of the next.",
    ),
    Setting(
        "checkpoint.timeout",
        "checkpoint_timeout_ms",
        "10min",
        positive_duration_ms,
        "How long a checkpoint may take. One that takes longer is aborted, with the reason "
        "EXPIRED.",
    ),
    Setting(
        "checkpoint.mode",
        "checkpoint_mode",
        "aligned",
        one_of("aligned", "unaligned", "at-least-once"),
        "aligned: a stage waits until the barrier has come on all of its inputs. unaligned: a "
        "checkpoint overtakes the rows in flight, and they become part of it; savepoints are "
        "aligned. at-least-once: no stage waits, savepoints included; a restore may process rows "
        "twice.",
    ),
    Setting(
        "checkpoint.aligned-timeout",
        "checkpoint_aligned_timeout_ms",
        "30s",
        duration_or_never,
        "In mode aligned: a checkpoint that takes longer than this overtakes the rows in "
        "flight. never: it goes on waiting.",
    ),
    Setting(
        "checkpoint.min-pause",
        "checkpoint_min_pause_ms",
        "0s",
        duration_ms,
        "The least time between the end of a checkpoint and the start of the next.",
    ),
    Setting(
        "checkpoint.max-concurrent",
        "checkpoint_max_concurrent",
        "1",
        count(1, 64),
        "How many checkpoints may be under way at once.",
    ),
    Setting(
        "checkpoint.tolerable-failed",
        "checkpoint_tolerable_failed",
        "3",
        count(0, 1_000_000),
        "How many checkpoints in a row may fail. If one more fails, the job fails.",
    ),
    Setting(
        "checkpoint.retained",
        "checkpoint_retained",
        "100",
        count(1, 1_000_000),
        "How many completed checkpoints are kept; by default, one every 10 s, those of the last 17 "
        "minutes. Savepoints do not count; they stay until you delete them.",
    ),
    Setting(
        "lineage.max-sets",
        "lineage_max_sets",
        "20",
        count(1, 10_000),
        "From how many sets of rows the state of a stage may have to be read. Each checkpoint "
        "that changes the state adds one; if there are more than this, small ones are merged.",
    ),
    Setting(
        "savepoint.timeout",
        "savepoint_timeout_ms",
        "1h",
        positive_duration_ms,
        "How long a savepoint may take. One that takes longer is aborted, with the reason EXPIRED.",
    ),
    Setting(
        "savepoint.on-sigterm",
        "savepoint_on_sigterm",
        "false",
        flag,
        "Whether a driver that gets SIGTERM takes a savepoint before it stops.",
    ),
    Setting(
        "alignment.max-held",
        "alignment_max_held_bytes",
        "256MiB",
        size_bytes,
        "How much a stage may hold back of its other inputs while it waits for a barrier. A "
        "checkpoint that needs more overtakes. A savepoint is aborted instead, with the reason "
        "HELD_TOO_MUCH; so is every checkpoint if checkpoint.aligned-timeout is never.",
    ),
    Setting(
        "state.max-inline",
        "state_max_inline_bytes",
        "32KiB",
        size_bytes,
        "A key group with less state than this keeps it in Spark's state store. One with more "
        "keeps it in files below the storage root.",
    ),
    Setting(
        "page.max-bytes",
        "page_max_bytes",
        "1MiB",
        page_bytes,
        "Rows and state travel in pages of at most this size; a larger row has a page of its "
        "own. A Python worker needs memory for a few dozen pages.",
    ),
    Setting(
        "channel.max-bytes-per-trigger",
        "channel_max_bytes_per_trigger",
        "64MiB",
        size_bytes,
        "About how much of a channel a stage reads in one micro-batch.",
    ),
    Setting(
        "channel.max-backlog",
        "channel_max_backlog_bytes",
        "unlimited",
        size_or_unlimited,
        "How much of a stage's channel may be unread. While more is, the stage waits, and "
        "begins only the micro-batches that a checkpoint under way needs. unlimited: it never "
        "waits.",
    ),
    Setting(
        "trigger.interval",
        "trigger_interval_ms",
        "0s",
        duration_ms,
        "The time from the start of one micro-batch to the start of the next. 0s: the next "
        "begins as soon as the last is done.",
    ),
    Setting(
        "restore.from",
        "restore_from",
        "",
        restore_target,
        "Begin with this checkpoint, at every start: latest, a number, or PATH#NUMBER for one "
        "of another storage root. Not set: go on where the last driver stopped.",
        example="latest",
    ),
    Setting(
        "restore.allow-dropped-state",
        "restore_allow_dropped_state",
        "false",
        flag,
        "Whether a restore may drop the state of stages that the job does not have any more.",
    ),
    Setting(
        "restore.clocks",
        "restore_clocks",
        "keep",
        one_of("keep", "shift"),
        "What a restore does with what waits for processing time, timers and the ttl of state. "
        "keep: what was due meanwhile is due at once. shift: it goes on as if no time had passed.",
    ),
    Setting(
        "restore.plan",
        "restore_plan",
        "",
        str.strip,
        "Do not start. Write what a start would restore into this file on the driver's "
        "machine, as JSON, and end the program.",
        example="plan.json",
    ),
    Setting(
        "restart.attempts",
        "restart_attempts",
        "3",
        count(0, 1_000_000),
        "How many times in a row a query that dies is started again. If it dies once more, the "
        "job fails.",
    ),
    Setting(
        "restart.initial-delay",
        "restart_initial_delay_ms",
        "1s",
        duration_ms,
        "How long to wait before the first restart of a query.",
    ),
    Setting(
        "restart.max-delay",
        "restart_max_delay_ms",
        "1min",
        duration_ms,
        "The longest wait before a restart.",
    ),
    Setting(
        "restart.multiplier",
        "restart_multiplier",
        "2",
        factor,
        "How many times longer each wait is than the one before.",
    ),
    Setting(
        "restart.reset-after",
        "restart_reset_after_ms",
        "10min",
        duration_ms,
        "After a query has run for this long, its restarts are counted from the first again.",
    ),
    Setting(
        "log.format",
        "log_format",
        "text",
        one_of("text", "json"),
        "How the driver says what it does. text: in lines for people, by Python's logging as the "
        "program has set it up. json: each line is a JSON object on stderr.",
    ),
    Setting(
        "telemetry.prometheus-port",
        "telemetry_prometheus_port",
        "",
        port,
        "On which port the driver serves metrics for Prometheus, at /metrics; 0 for one that is "
        "free, which the log names. Not set: it does not. Needs absflow[prometheus].",
        example="9464",
    ),
    Setting(
        "telemetry.prometheus-host",
        "telemetry_prometheus_host",
        "127.0.0.1",
        str.strip,
        "The address on which it does. By default nobody but this machine reaches it; elsewhere "
        "nobody is asked for a password.",
    ),
    Setting(
        "telemetry.otel",
        "telemetry_otel",
        "false",
        flag,
        "Whether the driver sends metrics and traces to an OpenTelemetry collector. Which one, the "
        "OTEL_* environment variables say. Needs absflow[otel].",
    ),
    Setting(
        "telemetry.spark-metrics",
        "telemetry_spark_metrics",
        "false",
        flag,
        "Whether the job is a source of Spark's own metrics system, and so in each of its sinks.",
    ),
)
