"""How far a run is, as a notebook or a terminal shows it."""

from __future__ import annotations

import importlib
import math
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from absflow.drawing import words
from absflow.drawing.html import escaped, facts, fragment, table
from absflow.protocol.event_time import to_datetime
from absflow.spark.control.progress import Progress, StageProgress

__all__ = ["ShownRun", "runs_cells", "watch"]

_STAGES = (
    "stage",
    "micro-batch",
    "rows read",
    "rows/s",
    "busy",
    "unread",
    "late",
    "watermark (UTC)",
)
_SINKS = ("sink", "has checkpoint", "waits", "failures")


def runs_cells() -> bool:
    """Whether somebody runs code piece by piece here: in a notebook, IPython, or at a prompt."""
    return _shell() is not None or hasattr(sys, "ps1")


def _shell() -> object | None:
    """IPython's shell, if there is one; nothing is imported for that."""
    ipython: Any = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run at a moment.

    Attributes:
        job: the job's name.
        root: its storage root.
        state: "runs", "ended" or "failed".
        said: why it has failed; "" if it has not.
        progress: how far it is.
        now_ms: the moment, by the wall clock.
    """

    job: str
    root: str
    state: str
    said: str
    progress: Progress
    now_ms: int

    def line(self) -> str:
        """One line for people."""
        parts = [f"job {self.job!r} {self.state}", self._checkpoint()]
        if self.progress.pending:
            parts.append(f"{len(self.progress.pending)} pending")
        if self.state == "runs" and self.progress.stages:
            name, stage = max(
                self.progress.stages.items(), key=lambda each: each[1].rows_per_second
            )
            parts.append(f"{words.count(round(stage.rows_per_second))} rows/s in {name!r}")
        return "; ".join(parts) + (f": {self.said}" if self.said else "")

    def html(self) -> str:
        """The same as HTML, with a line for each stage."""
        kind = {"runs": "pending", "failed": "aborted"}.get(self.state, "completed")
        head = (
            f'<p><b class="state"><i class="{kind}"></i>{escaped(self.state)}</b>'
            f"job {escaped(self.job)} on {escaped(self.root)}</p>"
        )
        progress = self.progress
        pairs = [
            ("newest checkpoint", self._checkpoint()),
            ("pending", ", ".join(map(str, progress.pending)) or "none"),
            ("completed in this run", words.count(progress.completed)),
        ]
        if self.said:
            pairs.append(("why", self.said))
        parts = [head, facts(pairs)]
        if progress.stages:
            rows = [_stage(name, stage) for name, stage in progress.stages.items()]
            parts.append(table(_STAGES, rows, (1, 2, 3, 4, 5, 6)))
        if progress.sinks:
            sinks = [
                (name, str(s.published or words.NONE), words.count(s.waiting), str(s.failures))
                for name, s in progress.sinks.items()
            ]
            parts.append(table(_SINKS, sinks, (1, 2, 3)))
        return fragment(*parts)

    def _checkpoint(self) -> str:
        progress = self.progress
        if not progress.checkpoint_id:
            return "no checkpoint yet"
        if progress.completed_at is None:
            return f"checkpoint {progress.checkpoint_id}, of an earlier run"
        now = to_datetime(self.now_ms * 1_000)
        assert now is not None
        age = max(now - progress.completed_at, timedelta())
        ago = words.duration(age / timedelta(milliseconds=1))
        return f"checkpoint {progress.checkpoint_id} completed {ago} ago"


def _stage(name: str, stage: StageProgress) -> tuple[str, ...]:
    unread = None if stage.load.backlogs is None else sum(b.rows for b in stage.load.backlogs)
    return (
        name,
        words.NONE if stage.batch_id < 0 else str(stage.batch_id),
        words.count(stage.total_rows),
        words.count(round(stage.rows_per_second)),
        f"{stage.load.busy:.0%}",
        words.NONE if unread is None else words.count(unread),
        words.count(stage.late_rows) if stage.late_rows else words.NONE,
        words.NONE if stage.watermark is None else words.time(stage.watermark),
    )


def watch(
    look: Callable[[], ShownRun], done: threading.Event, every_s: float, for_s: float | None
) -> None:
    """Show a run again and again, until it has ended or somebody interrupts.

    Args:
        look: how the run is now.
        done: set when it has ended.
        every_s: how often to look, in seconds.
        for_s: for so long at most; None for as long as it runs.
    """
    show = _line_after_line() if _shell() is None else _display()
    show(look())
    left_s = math.inf if for_s is None else for_s
    try:
        while left_s > 0 and not done.wait(min(every_s, left_s)):
            left_s -= every_s
            show(look())
    except KeyboardInterrupt:
        return  # whoever watches has seen enough
    show(look())


def _display() -> Callable[[ShownRun], None]:
    """One display of a notebook, which each call brings up to date."""
    handles: list[Any] = []

    def show(run: ShownRun) -> None:
        data = {"text/html": run.html(), "text/plain": run.line()}
        if handles:
            handles[0].update(data, raw=True)
        else:
            display = importlib.import_module("IPython.display").display
            handles.append(display(data, raw=True, display_id=True))

    return show


def _line_after_line() -> Callable[[ShownRun], None]:
    """A line for each call, if it is another one."""
    last = [""]

    def show(run: ShownRun) -> None:
        line = run.line()
        if line != last[0]:
            print(line, flush=True)
        last[0] = line

    return show
