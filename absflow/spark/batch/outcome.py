"""What one stage did in one micro-batch: the REPORT pages of its key groups, put together.

No I/O: from the pages' payloads to one record.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from absflow.columnar.event_time import TimeReport, of_all_ranges
from absflow.columnar.spec import StageSpec
from absflow.errors import ProtocolViolation
from absflow.protocol import alignment_state
from absflow.protocol.alignment_state import Alignment

__all__ = [
    "BatchTimes",
    "StageOutcome",
    "channel_control_rows",
    "merge_reports",
    "split_reports",
]


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """The REPORT pages of one stage in one batch, put together over the key groups.

    Attributes:
        after: the alignment after the batch.
        arrived: input, checkpoint and trigger time of each barrier that came.
        skipped: checkpoints that will not be snapshotted, for a newer one came first.
        snapshots: by checkpoint the sums of :class:`absflow.columnar.stage.Snapshot`.
        held: rows and bytes held, by key group.
        expired_upto: by checkpoint, state that was touched last up to then had expired, in
            microseconds since 1970 (UTC); of a stage whose state does not expire there is none.
        early: by epoch, the rows that were processed though alignment would hold them.
    """

    after: Alignment
    arrived: tuple[tuple[str, int, int], ...]
    skipped: frozenset[int]
    snapshots: dict[int, tuple[int, int, int, int]]
    held: dict[int, tuple[int, int]]
    expired_upto: dict[int, int]
    early: dict[int, int]

    @property
    def changed(self) -> list[int]:
        """The checkpoints whose snapshots hold anything, rising."""
        return sorted(n for n, (rows, *_) in self.snapshots.items() if rows)

    def early_rows(self, checkpoint_id: int) -> int:
        """How many rows from behind a checkpoint were processed, and it is not snapshotted yet."""
        if checkpoint_id in self.snapshots:  # they came behind it
            return 0
        return sum(rows for epoch, rows in self.early.items() if epoch > checkpoint_id)


def channel_control_rows(spec: StageSpec, before: Alignment, outcome: StageOutcome) -> int:
    """How many of the rows that a batch has read from channels are barriers and ends.

    Args:
        spec: the stage that reads them.
        before: its alignment before the batch.
        outcome: of the batch.
    """
    channels = {given.name for given in spec.inputs if given.channel}
    barriers = sum(name in channels for name, *_ in outcome.arrived)
    after = outcome.after.inputs
    return barriers + sum(after[n].ended and not before.inputs[n].ended for n in channels)


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """Of one micro-batch.

    Attributes:
        started_ms: when it began, ms since 1970 (UTC).
        sync_ms: how long it took to hand over the snapshots and to save the alignment.
        commit_ms: how long its commits took.
    """

    started_ms: int
    sync_ms: int
    commit_ms: int


def split_reports(
    spec: StageSpec, reports: Sequence[tuple[int, str]]
) -> tuple[list[tuple[int, str]], TimeReport | None, bool]:
    """The reports of control rows, what the batch has come to in event time, and if timers are due.

    Args:
        spec: the stage.
        reports: key group and payload of its REPORT pages.

    Raises:
        ProtocolViolation: two key-group ranges have come to different times.
    """
    parsed = [(report, json.loads(report[1])) for report in reports]
    control = [report for report, said in parsed if "alignment" in said]
    found = [TimeReport.from_payload(text) for (_, text), said in parsed if "time" in said]
    left = any("timers_left" in said for _, said in parsed)
    if not found:
        return control, None, left
    times = {each.common.payload() for each in found}
    if len(times) > 1:
        raise ProtocolViolation(
            f"stage {spec.name!r}: its key-group ranges came to {len(times)} event times, but all "
            f"must meet the same watermarks; {sorted(times)[:2]}"
        )
    return control, of_all_ranges(found), left


def merge_reports(spec: StageSpec, reports: Sequence[tuple[int, str]]) -> StageOutcome:
    """Put the key groups' reports together.

    Args:
        spec: the stage.
        reports: key group and payload of its REPORT pages, one at least.

    Raises:
        ProtocolViolation: if two key groups came to different alignments: they saw different
            control rows, so their snapshots would not be one cut.
    """
    parsed = {key_group: json.loads(payload) for key_group, payload in reports}
    controlled = {g: r for g, r in parsed.items() if r["arrived"] or r["snapshots"]}
    texts = {r["alignment"] for r in parsed.values()}
    if len(texts) != 1 or (controlled and len(controlled) != spec.key_groups):
        raise ProtocolViolation(
            f"stage {spec.name!r}: {len(controlled)} of {spec.key_groups} key groups met the "
            f"batch's control rows and they came to {len(texts)} alignments, but all must meet the "
            f"same rows; states {sorted(texts)[:3]}"
        )
    snapshots: dict[int, list[int]] = {}
    expired_upto: dict[int, int] = {}
    for report in parsed.values():
        for checkpoint_id, *numbers, upto in report["snapshots"]:
            if upto is not None:
                expired_upto[checkpoint_id] = upto
            total = snapshots.setdefault(checkpoint_id, [0, 0, 0, 0])
            for place, number in enumerate(numbers):
                total[place] += number
    early: dict[int, int] = defaultdict(int)
    for epoch, rows in (each for report in parsed.values() for each in report["early"]):
        early[epoch] += rows
    arrived: list[tuple[str, int, int]] = next((r["arrived"] for r in controlled.values()), [])
    return StageOutcome(
        after=alignment_state.from_json(texts.pop()),
        arrived=tuple((name, number, ms) for name, number, ms in arrived),
        skipped=frozenset(n for r in parsed.values() for n in r["skipped"]),
        snapshots={n: (t[0], t[1], t[2], t[3]) for n, t in snapshots.items()},
        held={g: (r["held_rows"], r["held_bytes"]) for g, r in parsed.items()},
        expired_upto=expired_upto,
        early=dict(early),
    )
