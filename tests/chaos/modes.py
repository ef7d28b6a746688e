"""How the barriers of a round of the kill loop travel."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CHECKPOINT_MODES"]

# How the barriers of a round travel, and how much of a channel a batch reads: little, so that there
# is something to overtake.
CHECKPOINT_MODES: Mapping[str, Mapping[str, str]] = {
    "aligned": {"checkpoint.aligned-timeout": "never"},
    "unaligned": {"checkpoint.mode": "unaligned", "channel.max-bytes-per-trigger": "16KiB"},
    "aligned, then unaligned": {
        "checkpoint.aligned-timeout": "2s",
        "channel.max-bytes-per-trigger": "16KiB",
    },
    "unaligned, direct": {
        "checkpoint.mode": "unaligned",
        "channel.max-bytes-per-trigger": "16KiB",
        "edges": "auto",
    },
}
