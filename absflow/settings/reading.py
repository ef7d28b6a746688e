"""The settings of a job, read from the Spark conf and checked in one place."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from absflow.errors import SettingsError
from absflow.protocol.recovery.attempts import RestoreTarget
from absflow.protocol.restarts import RestartPolicy
from absflow.settings.catalog import PREFIX, SETTINGS
from absflow.settings.session_keys import comment, session_lines

__all__ = ["Settings", "describe"]


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
    page_max_bytes: int
    channel_max_bytes_per_trigger: int
    channel_max_backlog_bytes: int | None
    trigger_interval_ms: int
    restore_from: RestoreTarget | None
    restore_allow_dropped_state: bool
    restore_clocks: str
    restore_plan: str
    restart_attempts: int
    restart_initial_delay_ms: int
    restart_max_delay_ms: int
    restart_multiplier: float
    restart_reset_after_ms: int
    log_format: str
    telemetry_prometheus_port: int | None
    telemetry_prometheus_host: str
    telemetry_otel: bool
    telemetry_spark_metrics: bool

    @property
    def overtakes_after_ms(self) -> int | None:
        """How long a checkpoint's barriers may take to align; None for as long as they need."""
        after = {"unaligned": 0, "at-least-once": None}
        return after.get(self.checkpoint_mode, self.checkpoint_aligned_timeout_ms)

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
                name, doc = PREFIX + setting.name, setting.doc
                problems.append(f"{name} is not set; give {name}=/path/of/the/job: {doc}")
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
        "# A file to start from: spark-submit --properties-file absflow.conf job.py",
        "",
        "# ---- What a job needs of Spark and Delta ----",
        "",
        *session_lines(local=False),
        "",
        "# ---- Every setting of absflow, with its default ----",
        "# Durations: ms, s, min, h, d. Sizes: B, KiB, MiB, GiB.",
    ]
    for setting in SETTINGS:
        lines += ["", *comment(setting.doc)]
        key = PREFIX + setting.name
        if setting.default is None:
            lines.append(f"# (no default: must be given)\n# {key:<48} /path/of/the/job")
        else:
            off = "" if setting.default else "# "
            lines.append(f"{off}{key:<{50 - len(off)}} {setting.default or setting.example}")
    return "\n".join(lines) + "\n"
