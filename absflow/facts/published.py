"""What an attempt has noted of its on-checkpoint sinks."""

from __future__ import annotations

from absflow.storage.files import Files
from absflow.storage.layout import Layout

__all__ = ["published_by"]


def published_by(files: Files, layout: Layout, attempt: int, sink: str) -> int | None:
    """The newest checkpoint that ``attempt`` noted as published; None if it noted none."""
    text = files.read(layout.published(sink, attempt))
    return None if text is None else int(text)
