"""A checkpoint as a notebook shows it: facts, the timeline of its stages, and what each has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from absflow.drawing.html import escaped, facts, fragment, headed, table
from absflow.drawing.pictures import TIMELINE, timeline_picture
from absflow.drawing.shapes import side_by_side
from absflow.drawing.words import NONE, PHASES, count, duration, size

__all__ = ["ShownStage", "checkpoint_html", "timeline_table"]

_STAGES = (
    "stage",
    "keys changed",
    "keys",
    "bytes changed",
    "state",
    "in flight",
    "late rows",
    "watermark (UTC)",
    "sets",
)


@dataclass(frozen=True, slots=True)
class ShownStage:
    """What is shown of a stage in a checkpoint.

    Attributes:
        stage: its name.
        own: it took part; else it had ended, and an older report is repeated.
        phases: how long each was, in ms, as :data:`~absflow.drawing.words.PHASES`.
        rows_changed: upserts and tombstones in its snapshot.
        keys_total: its live keys.
        bytes_changed: of these rows.
        bytes_total: of all its state.
        in_flight: rows on their way to it.
        late_rows: rows that came late.
        watermark: a text; "" if it has none.
        sets: how many sets make up its state.
        positions: where its root inputs stood.
    """

    stage: str
    own: bool
    phases: Mapping[str, int]
    rows_changed: int
    keys_total: int
    bytes_changed: int
    bytes_total: int
    in_flight: int
    late_rows: int
    watermark: str
    sets: int
    positions: Mapping[str, str] = field(default_factory=dict)


def checkpoint_html(
    title: str,
    pairs: Sequence[tuple[str, str]],
    stages: Sequence[ShownStage],
    duration_ms: int | None,
) -> str:
    """A checkpoint as HTML.

    Args:
        title: what people call it.
        pairs: names and values.
        stages: its stages; empty unless it is completed.
        duration_ms: how long it took; None if that is not known.
    """
    parts = [headed(title), facts(pairs)]
    if own := [stage for stage in stages if stage.own]:
        parts.append(headed("Where its time went", timeline_table(own, duration_ms)))
    if stages:
        rows = [_cells(stage) for stage in stages]
        parts.append(headed("Its stages", table(_STAGES, rows, (1, 2, 3, 4, 5, 6, 8))))
    positions = [
        (name, stage.stage, position)
        for stage in stages
        for name, position in stage.positions.items()
    ]
    if positions:
        parts.append(headed("Where it had read to", table(("source", "stage", "at"), positions)))
    return fragment(*parts)


def timeline_table(
    stages: Sequence[ShownStage], duration_ms: int | None, named: bool = False
) -> str:
    """A row for each stage: its phases from the trigger on, to one scale.

    Args:
        stages: those that took part.
        duration_ms: of the checkpoint; None if that is not known.
        named: the stage that nothing took longer than is called the critical path.
    """
    totals = [sum(stage.phases.values()) for stage in stages]
    whole = max([duration_ms or 0, *totals, 1])
    head = "".join(
        f'<th scope="col" class="number">{escaped(name)}</th>' for name in PHASES.values()
    )
    rows = []
    for stage, total in zip(stages, totals, strict=True):
        texts = {name: duration(ms) for name, ms in stage.phases.items()}
        boxes = side_by_side(stage.phases, whole, TIMELINE)
        cells = "".join(
            f'<td class="number"><i class="{name}"></i>{text}</td>' for name, text in texts.items()
        )
        critical = total == max(totals)
        kind = ' class="critical"' if critical else ""
        name = escaped(stage.stage)
        name += " <small>critical path</small>" if named and critical else ""
        rows.append(
            f'<tr{kind}><th scope="row">{name}</th>'
            f'<td class="picture">{timeline_picture(boxes, texts)}</td>{cells}'
            f'<td class="number">{duration(total)}</td></tr>'
        )
    return (
        '<div class="wide" tabindex="0" role="group" aria-label="timeline">'
        '<table class="timeline"><thead><tr><th scope="col">stage</th>'
        f'<th scope="col">from the trigger on</th>{head}<th scope="col" class="number">all</th>'
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cells(stage: ShownStage) -> tuple[str, ...]:
    def some(number: int) -> str:
        return count(number) if number else NONE

    return (
        stage.stage if stage.own else f"{stage.stage} (ended)",
        count(stage.rows_changed) if stage.own else NONE,
        count(stage.keys_total),
        size(stage.bytes_changed) if stage.own else NONE,
        size(stage.bytes_total),
        some(stage.in_flight),
        some(stage.late_rows),
        stage.watermark or NONE,
        some(stage.sets),
    )
