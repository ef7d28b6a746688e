"""All that the page says, read from a storage root."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from absflow.cli import cells
from absflow.cli.options import retention_policy
from absflow.cli.reader import Reader
from absflow.cli.reasons import grouped
from absflow.cli.report.model import AttemptLine, Page
from absflow.cli.report.page import page_of

__all__ = ["SHOWN", "read_page"]

SHOWN = 300


def read_page(reader: Reader, limit: int, properties_file: Path | None = None) -> Page:
    """Read what the page says.

    Args:
        reader: of the job's storage root.
        limit: how many checkpoints it shows.
        properties_file: may say what retention keeps.

    Raises:
        NotFoundError: no job has ever started under the root.
    """
    policy = retention_policy(properties_file)
    status = reader.status()
    return page_of(
        status,
        reader.history(limit),
        reader.inputs(),
        [*_attempts(reader)],
        _sizes(reader),
        grouped(reader.retention(policy).reasons),
        datetime.now(timezone.utc),
    )


def _attempts(reader: Reader) -> Iterator[AttemptLine]:
    started = reader.started()
    for attempt in reader.attempts():
        at = started.get(attempt.attempt)
        yield AttemptLine(
            attempt.attempt,
            cells.time(at) if at is not None else "",
            str(attempt.origin) if attempt.origin else "",
            {},
        )


def _sizes(reader: Reader) -> list[tuple[str, int, int]]:
    """Each table below the root: its path there, and the files and bytes that its log names."""
    layout, storage = reader.layout, reader.storage
    tables = [*layout.facts]
    tables += [layout.state(name) for name in storage.names(layout.states)]
    tables += [layout.late(name) for name in storage.names(layout.lates)]
    for stage in storage.names(layout.channels):
        folder = f"{layout.channels}/{stage}"
        tables += [f"{folder}/{name}" for name in storage.names(folder)]
    there = (each for each in tables if storage.names(f"{each}/_delta_log"))
    return [(each.removeprefix(f"{layout.root}/"), *storage.size(each)) for each in there]
