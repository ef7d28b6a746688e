"""The file that says what old facts come to (:mod:`absflow.protocol.known`).

It is no table, for nobody asks it anything else, and an older one does no harm. Retention writes it
now and then; it is put in place whole.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, astuple
from typing import Any, Protocol

from absflow.protocol.checkpoints import SetDigest
from absflow.protocol.known import Completion, Known
from absflow.protocol.lineage import Compacted
from absflow.storage.delta.log import log_file
from absflow.storage.layout import Layout

__all__ = ["read_summary", "text_of"]

_LOG = logging.getLogger(__name__)
_FORMAT = 1


class _Reads(Protocol):
    def read(self, path: str) -> str | None:
        """The text of a file; None if there is none."""


def text_of(summary: Known, version: int) -> str:
    """The file's text.

    Args:
        summary: what it says.
        version: of ``checkpoints``; all the facts that it is of are in it.
    """
    document = {
        "format": _FORMAT,
        "version": version,
        "upto": summary.upto,
        "completed": summary.done_before,
        "aborted": summary.aborted_before,
        "completions": [astuple(c) for _, c in sorted(summary.completions.items())],
        "deleted": sorted(summary.deleted),
        "compacted": [asdict(fact) for fact in summary.compacted],
    }
    return json.dumps(document, separators=(",", ":")) + "\n"


def read_summary(reader: _Reads, layout: Layout) -> Known:
    """What the file says; nothing if there is none, or none to be believed."""
    text = reader.read(layout.summary)
    if text is None:
        return Known()
    try:
        document = json.loads(text)
        if document["format"] == _FORMAT and _covers(reader, layout, document["version"]):
            return _summary_of(document)
    except (ValueError, KeyError, TypeError) as error:
        _LOG.warning("%s cannot be read, so all facts are: %r", layout.summary, error)
    else:
        _LOG.warning("%s is not of these facts, so all of them are read", layout.summary)
    return Known()


def _covers(reader: _Reads, layout: Layout, version: int) -> bool:
    """Whether the table is as new as the file: somebody may have put back an older one."""
    table = layout.checkpoints
    if reader.read(log_file(table, version)) is not None:
        return True
    hint = reader.read(f"{table}/_delta_log/_last_checkpoint")
    return hint is not None and int(json.loads(hint)["version"]) >= version


def _summary_of(document: dict[str, Any]) -> Known:
    compacted = map(_compacted, document["compacted"])
    completions = (Completion(*given) for given in document["completions"])
    return Known(
        upto=document["upto"],
        completions={c.checkpoint_id: c for c in completions},
        deleted=frozenset(document["deleted"]),
        compacted=tuple(compacted),
        done_before=document["completed"],
        aborted_before=document["aborted"],
        triggered=document["upto"],
    )


def _compacted(fact: dict[str, Any]) -> Compacted:
    digest = fact.get("digest")
    given = {"replaces": tuple(fact["replaces"]), "digest": digest and SetDigest(**digest)}
    return Compacted(**{**fact, **given})
