"""The key groups of a stage in one micro-batch: pages in, pages out, state to state.

This is the whole of a stage's work, without Spark: decode the pages, let the alignment machine
decide, run the user's function over whole tables, encode. What the pages travel on (a shuffle, a
channel, a direct edge) is not known here.

Key groups know nothing of each other. Those of a range come to one call of Spark, because each of
its calls costs as much as several small key groups.

Order of work. The control rows of the batch are given to the alignment machine first; they are the
same for every key group, so every key group comes to the same actions. For each snapshot n it then
processes every page with epoch <= n, admits the watermarks that stand behind these rows, fires the
timers that are due, snapshots, and forwards n; at last it does so with what the gates of its inputs
let through and holds the rest. Timers in processing time come last, outside of every cut. Pages are
sorted by (epoch, input, seq) first, for Spark keeps no order inside a micro-batch and a retried
task may see another one.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace

from absflow.columnar.batch import Batch, RangeWork, Snapshot
from absflow.columnar.event_time import BatchTime
from absflow.columnar.held import HeldPages
from absflow.columnar.pages import (
    FOR_THE_DRIVER,
    Page,
    PageKind,
)
from absflow.columnar.piece_files import INLINE, StateFiles
from absflow.columnar.pieces import PAGE_BYTES
from absflow.columnar.range_time import due_groups, most_of_each, said_of_time
from absflow.columnar.restoring import Restoring
from absflow.columnar.shared_files import SharedFiles
from absflow.columnar.spec import StageSpec, gates, input_names
from absflow.columnar.stored import KeyGroupState, in_range, of_range, retire, store
from absflow.columnar.work import Work
from absflow.protocol import alignment, alignment_state
from absflow.protocol.alignment import (
    AbortArrived,
    BarrierArrived,
    EndStage,
    InputEnded,
    OvertakeArrived,
    TakeSnapshot,
)
from absflow.protocol.alignment_state import Alignment, Barrier

__all__ = ["Batch", "Snapshot", "run_key_group", "run_range"]

_CONTROL = {PageKind.ABORT, PageKind.BARRIER, PageKind.END, PageKind.OVERTAKE}


def run_range(
    spec: StageSpec,
    batch: Batch,
    pages: Iterable[Page],
    stored: bytes,
    files: StateFiles = INLINE,
    page_bytes: int = PAGE_BYTES,
    folder: str = "range",
) -> Generator[Page, None, bytes]:
    """Process one micro-batch of the key groups of a range, in their order.

    Args:
        spec: the stage.
        batch: the micro-batch.
        pages: the pages of its key groups, in any order.
        stored: what the range kept (:func:`~absflow.columnar.stored.of_range`); empty at first.
        files: where the files of a large state lie.
        page_bytes: a page has at most so many bytes.
        folder: for the files that its key groups share; no other range has it.

    Yields:
        The pages that they emit, as they are made; one REPORT of a key group that was restored.

    Returns:
        What the range keeps: ``stored`` itself if nothing changed.

    Raises:
        PageCorruptError: a page, or what the range kept, does not decode.
        PageSizeError: a row, or what the range keeps, is larger than 2 GB.
        ProcessError: the user's function failed.
    """
    states = in_range(stored, f"state of stage {spec.name!r}") if stored else {}
    by_group, restored, marks, woken = _sorted(spec, pages, files, page_bytes)
    time = _time_of(spec, batch, marks, by_group)
    due = due_groups(spec, batch, states, time)
    together = RangeWork(most=most_of_each(spec, due))
    shared, at_first = SharedFiles(files, folder, batch.batch_id), dict(states)
    for key_group in sorted({*by_group, *restored, *due}):
        before = states.get(key_group, KeyGroupState())
        mine = by_group.pop(key_group, [])
        if key_group in restored:
            yield from (p for p in mine if p.kind in FOR_THE_DRIVER)
            kept = yield from _restored(spec, restored.pop(key_group), key_group)
        else:
            kept = yield from run_key_group(
                spec, key_group, batch, mine, before, shared, page_bytes, time, together
            )
        if kept is not before:
            states[key_group] = kept
    yield from said_of_time(spec, batch, time, due, together, woken=bool(woken))
    if woken:
        yield Page(woken[0].key_group, PageKind.WAKE, spec.name)
    if states == at_first:
        return stored
    return of_range(shared.close(at_first, states))


def _sorted(
    spec: StageSpec, pages: Iterable[Page], files: StateFiles, page_bytes: int
) -> tuple[dict[int, list[Page]], dict[int, Restoring], list[Page], list[Page]]:
    """The pages by key group, what restores one, what is said of event time, and what wakes it."""
    by_group: dict[int, list[Page]] = defaultdict(list)
    restored: dict[int, Restoring] = {}
    marks: list[Page] = []
    woken: list[Page] = []
    for page in pages:
        if page.kind is PageKind.RESTORE:
            group = page.key_group
            if group not in restored:
                restored[group] = Restoring(
                    spec.name, spec.keys, spec.state, group, files, page_bytes
                )
            restored[group].add(page)
        elif page.kind is PageKind.WATERMARK:
            marks.append(page)
        elif page.kind is PageKind.WAKE:
            woken.append(page)
        elif page.kind is not PageKind.FILL:
            by_group[page.key_group].append(page)
    return by_group, restored, marks, woken


def _time_of(
    spec: StageSpec, batch: Batch, marks: Sequence[Page], by_group: Mapping[int, Sequence[Page]]
) -> BatchTime | None:
    """Event time through the batch; None if it stands still: nothing comes of it or of barriers."""
    control = next((g for g, of in by_group.items() if any(p.kind in _CONTROL for p in of)), None)
    if batch.time is None or not (marks or control is not None):
        return None
    barriers = [] if control is None else by_group[control]
    epochs = {
        name: alignment_state.brought(batch.alignment, name) + 1 for name in batch.time.sources
    }
    control_pages = [page for page in barriers if page.kind in _CONTROL]
    return BatchTime(batch.time, batch.alignment.epoch, epochs, [*marks, *control_pages])


def run_key_group(
    spec: StageSpec,
    key_group: int,
    batch: Batch,
    pages: Sequence[Page],
    stored: KeyGroupState,
    files: StateFiles = INLINE,
    page_bytes: int = PAGE_BYTES,
    time: BatchTime | None = None,
    together: RangeWork | None = None,
) -> Generator[Page, None, KeyGroupState]:
    """Process one micro-batch of one key group.

    Args:
        spec: the stage.
        key_group: which key group.
        batch: the micro-batch.
        pages: the pages of all inputs, in any order.
        stored: what the key group kept.
        files: where the files of a large state lie.
        page_bytes: a page has at most so many bytes.
        time: event time through the batch; None if it stands still.
        together: what the key groups of its range have come to; None if it is alone.

    Yields:
        The pages that it emits: those for the driver that came from stages before it in the chain;
        DATA, STATE, BARRIER and END, then one REPORT if it met a control row or holds pages.

    Returns:
        What it keeps: ``stored`` itself if nothing changed.

    Raises:
        PageCorruptError, PageSizeError, ProcessError: as of :func:`run_range`.
    """
    yield from (_with_epoch(spec, p, batch.alignment) for p in pages if p.kind in FOR_THE_DRIVER)
    align, said, seen = _align(spec, batch.alignment, pages)
    rows = (_with_epoch(spec, p, batch.alignment) for p in pages if p.kind is PageKind.DATA)
    data = sorted(rows, key=lambda p: (spec.order(p.input), p.seq))
    what = f"held pages of stage {spec.name!r}, key group {key_group}"
    waiting = HeldPages(stored, data, files, what)
    work = Work(spec, key_group, batch, stored, waiting, batch.alignment, files, page_bytes)
    work.together = together or work.together
    steps = itertools.count(1)
    for action in said:
        if isinstance(action, TakeSnapshot):
            limit = action.barrier.checkpoint_id
            before = dict.fromkeys(input_names(spec), limit)
            yield from work.process(upto=before)
            reached = None if time is None else time.step(next(steps), before, limit)
            yield from work.advance(reached)
            yield from work.snapshot(action.barrier, reached)
    early, upto = _early(spec, align, waiting), gates(spec, align)
    yield from work.process(upto=upto)
    yield from work.advance(None if time is None else time.step(next(steps), upto))
    yield from work.end()
    if any(isinstance(action, EndStage) for action in said):
        yield Page(key_group, PageKind.END, checkpoint_id=align.epoch)
    if seen or work.pages or early:
        yield work.report(align, seen, said, early)
    return _keep(work)


def _early(spec: StageSpec, align: Alignment, waiting: HeldPages) -> dict[int, int]:
    """By epoch, the rows that are due though alignment would hold them."""
    if not spec.at_least_once:
        return {}
    aligned = {name: alignment_state.gate(align, name) for name in input_names(spec)}
    return waiting.rows_between(aligned, gates(spec, align))


def _restored(
    spec: StageSpec, restoring: Restoring, key_group: int
) -> Generator[Page, None, KeyGroupState]:
    """Begin with the state that was brought; RESTORE pages come alone, in a batch of their own."""
    kept = restoring.store()
    yield Page(key_group, PageKind.REPORT, spec.name, rows=kept.live_keys)
    return kept


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
    of_rows = page.kind in (PageKind.DATA, PageKind.LATE) and page.input in before.inputs
    if not of_rows or not spec.input(page.input).root:
        return page
    return replace(page, checkpoint_id=alignment_state.brought(before, page.input) + 1)


def _keep(work: Work) -> KeyGroupState:
    """What to store; the very value that was read if nothing changed, so that nothing is written.

    A snapshot that only dropped tombstones is written with the next change.
    """
    before, place = work.stored, f"{work.key_group}/{work.batch.batch_id}"
    work.forget_expired()
    kept = work.pages.keep(place, work.page_bytes)
    if kept is before and not work.dirty:
        return before
    kept = replace(kept, changed_epoch=work.changed_epoch)
    if work.dirty:
        upto = work.expired_upto
        kept = store(work.state, kept, work.files, place, work.page_bytes, upto)
    return retire(before, kept, work.files, place)
