"""The graph as facts have it: its description, its fingerprint, and what may not change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from absflow.columnar.expiry import Expiry
from absflow.errors import GraphError
from absflow.graph.nodes import Graph
from absflow.protocol.coordinator.messages import RootInput, Topology
from absflow.protocol.recovery.columns import columns_changed

__all__ = ["_text", "check_unchanged", "describe", "differences", "fingerprint", "topology"]

_COLUMNS = {"key": "key column", "state": "state column", "output": "output column"}


def topology(graph: Graph) -> Topology:
    """The graph as the coordinator needs it."""
    roots = {
        RootInput(stage, given.name): given.bounded
        for stage, spec in graph.stages.items()
        for given in spec.inputs
        if given.root
    }
    return Topology(dict(graph.upstream), frozenset(roots), bounded=all(roots.values()))


def describe(graph: Graph) -> dict[str, dict[str, object]]:
    """What of each stage must stay while an attempt goes on: names, edges, types, key groups."""
    return {
        name: {
            "inputs": [[i.name, _text(i.schema), i.root, i.format] for i in spec.inputs],
            "key": _text(spec.keys),
            "state": _text(spec.state),
            "output": _text(spec.output),
            "key-groups": spec.key_groups,
            "channel": graph.has_channel(name),
            **({"event-time": [i.name for i in spec.inputs if i.timed]} if spec.timed else {}),
            **({"ttl": _expiry_text(spec.expiry)} if spec.expiry is not None else {}),
        }
        for name, spec in graph.stages.items()
    }


def fingerprint(graph: Graph) -> str:
    """A hash of :func:`describe`."""
    text = json.dumps(describe(graph), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(
    before: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """How two graphs differ, each as :func:`describe` has it, in words."""
    found = [f"stage {name!r} is gone" for name in sorted(before.keys() - now.keys())]
    found += [f"stage {name!r} is new" for name in sorted(now.keys() - before.keys())]
    for name in sorted(now.keys() & before.keys()):
        found += [f"stage {name!r}: {what}" for what in _changed(before[name], now[name])]
    return found


def check_unchanged(
    graph: Graph,
    before: dict[str, dict[str, object]],
    has_checkpoint: Callable[[], bool] = lambda: True,
) -> None:
    """Refuse to go on with state that another graph has written.

    Args:
        graph: the graph of this start.
        before: what :func:`describe` said when the attempt was started.
        has_checkpoint: whether there is a checkpoint to restore from; asked if the graph differs.

    Raises:
        GraphError: naming every difference.
    """
    found = differences(before, describe(graph))
    if found:
        advice = (
            "Restore from a checkpoint (spark.absflow.restore.from=latest), or go back to the old "
            "graph"
            if has_checkpoint()
            else "There is no checkpoint to restore from. Go back to the old graph; or, to begin "
            "anew, delete the storage root and the tables of the job's sinks"
        )
        raise GraphError(
            "the job's graph is not the one whose state lies under this storage root:\n  "
            + "\n  ".join(found)
            + f"\n{advice}"
        )


def _expiry_text(expiry: Expiry) -> str:
    refresh = "read" if expiry.on_read else "write"
    return f"{expiry.after // 1_000} ms of {expiry.domain.value} time since the last {refresh}"


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """How a stage differs, in words: each column by itself."""
    for part, value in {"event-time": None, "ttl": None, **now}.items():
        was = before.get(part)
        if value == was:
            continue
        if part in _COLUMNS:
            changed = list(columns_changed(_COLUMNS[part], was or (), value))
            yield from changed or [f"its {_COLUMNS[part]}s stand in another order"]
        elif part == "inputs":
            yield from _inputs_changed(was or (), value)
        elif part == "event-time":
            yield f"its inputs with event time were {was or 'none'}, are {value or 'none'}"
        elif part == "ttl":
            yield f"its state expired after {was or 'never'}, now after {value or 'never'}"
        elif part == "channel":
            how = "writes a channel now" if value else "writes no channel any more"
            yield f"it {how} (by the graph or spark.absflow.edges)"
        else:
            yield f"its {part} was {was}, is {value}"


def _inputs_changed(before: Sequence[Sequence[Any]], now: Sequence[Sequence[Any]]) -> Iterator[str]:
    old, new = ({name: rest for name, *rest in inputs} for inputs in (before, now))
    yield from (f"input {name!r} is added" for name in new if name not in old)
    yield from (f"input {name!r} is dropped" for name in old if name not in new)
    both = [name for name in new if name in old]
    if len(both) == len(old) == len(new) and list(old) != list(new):
        yield "its inputs stand in another order"
    for name in both:
        (columns, *kind), (columns_now, *kind_now) = old[name], new[name]
        if columns != columns_now:
            changed = list(columns_changed("column", columns, columns_now))
            for what in changed or ["its columns stand in another order"]:
                yield f"input {name!r}: {what}"
        if kind != kind_now:
            yield f"input {name!r} was {_kind(*kind)}, is {_kind(*kind_now)}"


def _kind(root: bool, format_: str) -> str:
    return f"a source of {format_}" if root else "the output of a stage"


def _text(schema: pa.Schema) -> list[list[str]]:
    return [[field.name, str(field.type)] for field in schema]
