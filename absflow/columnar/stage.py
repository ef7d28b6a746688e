"""The key groups of a stage in one micro-batch: pages in, pages out, state to state.

This is the whole of a stage's work, without Spark: decode the pages, let the alignment machine
decide, run the user's function over whole tables, encode. What the pages travel on (a shuffle, a
channel, a direct edge) is not known here.

Key groups know nothing of each other. Those of a range come to one call of Spark, because each of
its calls costs as much as several small key groups.

Order of work. The control rows of the batch are given to the alignment machine first; they are the
same for every key group, so every key group comes to the same actions. For each snapshot n it then
processes every page with epoch <= n, snapshots, and forwards n; at last it processes what the
gates of its inputs let through and holds the rest. Pages are sorted by (epoch, input, seq) first,
for Spark keeps no order inside a micro-batch and a retried task may see another one.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from absflow.columnar.pages import (
    FOR_THE_DRIVER,
    ORDER_FIELDS,
    PAGE_SCHEMA,
    Page,
    PageKind,
    decode,
    encode,
    page_batch,
    pages_of,
)
from absflow.columnar.process import Call, call
from absflow.columnar.restore_packer import restored_state
from absflow.columnar.spec import StageSpec, input_names
from absflow.columnar.state import KeyedState, snapshot_schema
from absflow.columnar.stored import KeyGroupState, StateFiles, in_range, load, of_range, store
from absflow.errors import PageCorruptError
from absflow.protocol import alignment, alignment_state
from absflow.protocol.alignment import (
    AbortArrived,
    BarrierArrived,
    Discard,
    EndStage,
    InputEnded,
    OvertakeArrived,
    Reason,
    TakeSnapshot,
)
from absflow.protocol.alignment_state import Alignment, Barrier

__all__ = ["Batch", "Snapshot", "run_key_group", "run_range"]

_CONTROL = {PageKind.ABORT, PageKind.BARRIER, PageKind.END, PageKind.OVERTAKE}


@dataclass(frozen=True, slots=True)
class Batch:
    """The micro-batch, as every task of it knows it.

    Attributes:
        batch_id: Spark's number of the batch; a replay has the same.
        time_ms: the batch's time, ms since 1970 (UTC); a replay has the same.
        alignment: the stage's alignment before the batch.
    """

    batch_id: int
    time_ms: int
    alignment: Alignment


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one key group says of one snapshot, inside its REPORT page."""

    checkpoint_id: int
    rows_changed: int
    bytes_changed: int
    keys_total: int
    bytes_total: int


@dataclass(slots=True)
class _Work:
    """One key group's batch under way."""

    spec: StageSpec
    key_group: int
    batch: Batch
    stored: KeyGroupState
    pages: list[Page]
    align: Alignment
    files: StateFiles | None
    decoded: KeyedState | None = None
    changed_epoch: int = 0
    dirty: bool = False
    emitted: int = 0
    calls: int = 0
    out: list[Page] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)

    @property
    def state(self) -> KeyedState:
        """The keyed state, decoded when it is first needed."""
        if self.decoded is None:
            what = f"state of stage {self.spec.name!r}, key group {self.key_group}"
            spec = self.spec
            self.decoded = load(self.stored, spec.keys, spec.state, self.files, what)
        return self.decoded


def run_range(
    spec: StageSpec,
    batch: Batch,
    pages: Mapping[int, Sequence[Page]],
    stored: bytes,
    files: StateFiles | None = None,
) -> tuple[list[Page], bytes]:
    """Process one micro-batch of the key groups of a range, in their order.

    Args:
        spec: the stage.
        batch: the micro-batch.
        pages: the pages of each key group that has any.
        stored: what the range kept (:func:`~absflow.columnar.stored.of_range`); empty at first.
        files: where the files of a large state lie; None if all of it is kept inline.

    Returns:
        The pages that they emit, and what the range keeps: ``stored`` itself if nothing changed.

    Raises:
        PageCorruptError: a page, or what the range kept, does not decode.
        ProcessError: the user's function failed.
    """
    states = in_range(stored, f"state of stage {spec.name!r}") if stored else {}
    out: list[Page] = []
    changed = False
    for key_group in sorted(pages):
        before = states.get(key_group, KeyGroupState())
        emitted, kept = run_key_group(spec, key_group, batch, pages[key_group], before, files)
        out += emitted
        if kept is not before:
            states[key_group] = kept
            changed = True
    return out, of_range(states) if changed else stored


def run_key_group(
    spec: StageSpec,
    key_group: int,
    batch: Batch,
    pages: Sequence[Page],
    stored: KeyGroupState,
    files: StateFiles | None = None,
) -> tuple[list[Page], KeyGroupState]:
    """Process one micro-batch of one key group.

    Args:
        spec: the stage.
        key_group: which key group.
        batch: the micro-batch.
        pages: the pages of all inputs, in any order.
        stored: what the key group kept.
        files: where the files of a large state lie; None if all of it is kept inline.

    Returns:
        The pages that it emits (those for the driver that came from stages before it in the chain;
        DATA, STATE, BARRIER and END, then one REPORT if it met a control row, holds pages or was
        restored), and what it keeps: ``stored`` itself if nothing changed.

    Raises:
        PageCorruptError: a page does not decode.
        ProcessError: the user's function failed.
    """
    handed_on = [p for p in pages if p.kind in FOR_THE_DRIVER]
    restore = [p for p in pages if p.kind is PageKind.RESTORE]
    if restore:
        restored, kept = _restore(spec, key_group, restore, files)
        return [*handed_on, *restored], kept
    align, said, seen = _align(spec, batch.alignment, pages)
    data = [_with_epoch(spec, p, batch.alignment) for p in pages if p.kind is PageKind.DATA]
    data.sort(key=lambda p: (spec.order(p.input), p.seq))
    held = _held_pages(spec, key_group, stored)
    work = _Work(spec, key_group, batch, stored, held + data, batch.alignment, files)
    work.changed_epoch = stored.changed_epoch
    work.out = handed_on
    for action in said:
        if isinstance(action, TakeSnapshot):
            _process(work, upto=dict.fromkeys(input_names(spec), action.barrier.checkpoint_id))
            _snapshot(work, action.barrier)
    _process(work, upto={name: alignment_state.gate(align, name) for name in input_names(spec)})
    if any(isinstance(action, EndStage) for action in said):
        work.out.append(Page(key_group, PageKind.END, checkpoint_id=align.epoch))
    if seen or work.pages:
        work.out.append(_report(work, align, seen, said))
    return work.out, _keep(work, held_before=bool(held))


def _restore(
    spec: StageSpec, key_group: int, pages: Sequence[Page], files: StateFiles | None
) -> tuple[list[Page], KeyGroupState]:
    """Begin with the state that is brought; RESTORE pages come alone, in a batch of their own."""
    table, epoch = restored_state(spec.name, spec.keys, spec.state, key_group, pages)
    report = Page(key_group, PageKind.REPORT, spec.name, rows=table.num_rows)
    state = KeyedState(table, len(spec.keys))
    return [report], store(state, KeyGroupState(epoch), files, f"{key_group}/0")


def _align(
    spec: StageSpec, before: Alignment, pages: Sequence[Page]
) -> tuple[Alignment, tuple[alignment.Action, ...], list[Page]]:
    """Run the batch's control rows through the machine, in an order every key group agrees on."""
    control = [p for p in pages if p.kind in _CONTROL]
    events = alignment.in_order(map(_event, control), input_names(spec))
    state, said = alignment.run(before, events)
    return state, said, control


def _event(page: Page) -> alignment.Event:
    if page.kind is PageKind.ABORT:
        return AbortArrived(page.checkpoint_id)
    if page.kind is PageKind.END:
        return InputEnded(page.input)
    barrier = Barrier(page.checkpoint_id, page.base_id, page.completed_id, page.triggered_ms)
    if page.kind is PageKind.OVERTAKE:
        return OvertakeArrived(barrier)
    return BarrierArrived(page.input, barrier)


def _with_epoch(spec: StageSpec, page: Page, before: Alignment) -> Page:
    """Root rows carry no epoch: they stand behind the newest barrier their input has brought."""
    if not spec.input(page.input).root:
        return page
    return replace(page, checkpoint_id=alignment_state.brought(before, page.input) + 1)


def _held_pages(spec: StageSpec, key_group: int, stored: KeyGroupState) -> list[Page]:
    if not stored.held:
        return []
    what = f"held pages of stage {spec.name!r}, key group {key_group}"
    return pages_of(decode(stored.held, PAGE_SCHEMA, what))


def _process(work: _Work, upto: Mapping[str, int | None]) -> None:
    """Process the pages whose epoch the limit of their input admits; keep the others."""
    due: list[Page] = []
    rest: list[Page] = []
    for page in work.pages:
        limit = upto[page.input]
        (due if limit is None or page.checkpoint_id <= limit else rest).append(page)
    work.pages = rest
    # Stable: held pages come first, new ones by seq, which counts within one batch only.
    due.sort(key=lambda p: (p.checkpoint_id, work.spec.order(p.input)))
    for (_, name), run in itertools.groupby(due, key=lambda p: (p.checkpoint_id, p.input)):
        _process_rows(work, name, list(run))


def _process_rows(work: _Work, name: str, pages: list[Page]) -> None:
    spec, given = work.spec, work.spec.input(name)
    what = f"page of stage {spec.name!r}, input {name!r}, key group {work.key_group}"
    rows = pa.Table.from_batches([decode(p.payload, given.page_schema, what) for p in pages])
    if rows.num_rows != sum(p.rows for p in pages):
        raise PageCorruptError(
            f"{what} has {rows.num_rows} rows where {sum(p.rows for p in pages)} were packed; "
            "the batch is not committed"
        )
    if not given.root:
        rows = _in_order(rows).select(given.schema.names)
    if spec.process:
        result = call(
            spec.process[name],
            Call(
                stage=spec.name,
                input=name,
                key_group=work.key_group,
                epoch=work.align.epoch,
                batch_id=work.batch.batch_id,
                time_ms=work.batch.time_ms,
                number=work.calls,
                key=tuple(spec.keys.names),
                output=spec.output,
            ),
            rows,
            work.state,
        )
        output = result.output
        if result.state is not work.decoded:
            work.decoded = result.state
            work.changed_epoch = work.align.epoch
            work.dirty = True
    else:
        output = rows
    work.calls += 1
    if output is not None and output.num_rows:
        work.out.append(
            Page(
                work.key_group,
                PageKind.DATA,
                checkpoint_id=work.align.epoch,
                seq=work.emitted,
                rows=output.num_rows,
                payload=encode(output),
            )
        )
        work.emitted += output.num_rows


def _in_order(rows: pa.Table) -> pa.Table:
    """Rows of a channel in the order in which they were emitted."""
    seq, group = (rows[f.name].to_numpy() for f in ORDER_FIELDS)
    if np.all(seq[1:] > seq[:-1]):
        return rows
    return rows.take(pa.array(np.lexsort((group, seq))))


def _snapshot(work: _Work, barrier: Barrier) -> None:
    """Emit what changed since the base, then the barrier; the state is not decoded for nothing."""
    spec, stored = work.spec, work.stored
    rows_changed = bytes_changed = 0
    if work.changed_epoch > barrier.base_id:
        changes = work.state.changes(barrier.base_id)
        rows_changed = changes.num_rows
        if rows_changed:
            schema = snapshot_schema(spec.keys, spec.state)
            payload = encode(changes.select(schema.names).cast(schema))
            bytes_changed = len(payload)
            work.out.append(
                Page(
                    work.key_group,
                    PageKind.STATE,
                    spec.name,
                    checkpoint_id=barrier.checkpoint_id,
                    rows=rows_changed,
                    payload=payload,
                )
            )
        work.decoded = work.state.without_tombstones(barrier.completed_id)
    decoded = work.decoded
    work.snapshots.append(
        Snapshot(
            barrier.checkpoint_id,
            rows_changed,
            bytes_changed,
            keys_total=stored.live_keys if decoded is None else decoded.live,
            bytes_total=stored.size if decoded is None else decoded.size,
        )
    )
    work.out.append(
        Page(
            work.key_group,
            PageKind.BARRIER,
            checkpoint_id=barrier.checkpoint_id,
            base_id=barrier.base_id,
            completed_id=barrier.completed_id,
            triggered_ms=barrier.triggered_ms,
        )
    )
    work.align = Alignment(work.align.inputs, snapshot=barrier.checkpoint_id)


def _report(
    work: _Work, align: Alignment, seen: Sequence[Page], said: Sequence[alignment.Action]
) -> Page:
    """What the driver needs to know of the batch: one JSON object, the same keys in every one."""
    skipped = [a for a in said if isinstance(a, Discard) and a.reason is Reason.SKIPPED]
    barriers = [p for p in seen if p.kind in (PageKind.BARRIER, PageKind.OVERTAKE)]
    report = {
        "alignment": alignment_state.to_json(align),
        "arrived": sorted({(p.input, p.checkpoint_id, p.triggered_ms) for p in barriers}),
        "skipped": [action.checkpoint_id for action in skipped],
        "snapshots": [
            [s.checkpoint_id, s.rows_changed, s.bytes_changed, s.keys_total, s.bytes_total]
            for s in work.snapshots
        ],
        "held_rows": sum(p.rows for p in work.pages),
        "held_bytes": sum(len(p.payload) for p in work.pages),
    }
    payload = json.dumps(report).encode()
    return Page(work.key_group, PageKind.REPORT, work.spec.name, payload=payload)


def _keep(work: _Work, *, held_before: bool) -> KeyGroupState:
    """What to store; the very value that was read if nothing changed, so that nothing is written.

    A snapshot that only dropped tombstones is written with the next change.
    """
    if not (held_before or work.pages or work.dirty):
        return work.stored
    held = encode(page_batch(work.pages)) if work.pages else b""
    kept = replace(work.stored, changed_epoch=work.changed_epoch, held=held)
    if not work.dirty:
        return kept
    return store(work.state, kept, work.files, f"{work.key_group}/{work.batch.batch_id}")
