"""The graph as facts have it: its description, its fingerprint, and what may not change."""

from __future__ import annotations

import hashlib
import json

import pyarrow as pa

from absflow.columnar.expiry import Expiry
from absflow.errors import GraphError
from absflow.graph.nodes import Graph
from absflow.protocol.coordinator.messages import RootInput, Topology

__all__ = ["_text", "check_unchanged", "describe", "fingerprint", "topology"]


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


def check_unchanged(graph: Graph, before: dict[str, dict[str, object]]) -> None:
    """Refuse to go on with state that another graph has written.

    Args:
        graph: the graph of this start.
        before: what :func:`describe` said when the attempt was started.

    Raises:
        GraphError: naming every difference.
    """
    now = describe(graph)
    differences = [f"stage {name!r} is gone" for name in sorted(before.keys() - now.keys())]
    differences += [f"stage {name!r} is new" for name in sorted(now.keys() - before.keys())]
    for name in sorted(now.keys() & before.keys()):
        for part, value in now[name].items():
            if value == before[name].get(part):
                continue
            if part == "channel":
                how = "writes a channel now" if value else "writes no channel any more"
                differences.append(f"stage {name!r} {how} (by the graph or spark.absflow.edges)")
            else:
                differences.append(
                    f"{part} of stage {name!r} was {before[name].get(part)}, is {value}"
                )
    if differences:
        raise GraphError(
            "the job's graph is not the one whose state lies under this storage root: "
            + "; ".join(differences)
            + ". Restore from a checkpoint (spark.absflow.restore.from=latest), or go back to the "
            "old graph"
        )


def _expiry_text(expiry: Expiry) -> str:
    refresh = "read" if expiry.on_read else "write"
    return f"{expiry.after // 1_000} ms of {expiry.domain.value} time since the last {refresh}"


def _text(schema: pa.Schema) -> list[list[str]]:
    return [[field.name, str(field.type)] for field in schema]
