"""The tables of a job that has run for long, written in a minute.

A checkpoint every ten seconds of a job of several stages, of which the newest few are kept: the
facts as they lie there once absflow's own OPTIMIZE has put small files together (rows of one time
in a file), logs as retention leaves them, and what is kept of the state.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.pandas.types import from_arrow_schema

from absflow.facts.columns import ATTEMPTS, BARRIERS, CHECKPOINTS, OVERTAKES
from absflow.facts.summary import text_of
from absflow.protocol.checkpoints import SetDigest
from absflow.protocol.known import Completion, Known, readable_by
from absflow.protocol.lineage import Compacted
from absflow.storage.delta import data_files, tables

KEPT = 10
COMPACTED_EVERY = 10
# Commits in the logs just before they are trimmed again: a hundred behind the last checkpoint, and
# those of some minutes; retention writes facts, too.
LOGS = {"barriers": 150, "checkpoints": 250}
BEHIND = 80  # commits behind the last checkpoint of a log
ENTRIES = 60_000  # checkpoints in a file of facts
START_US = 1_767_348_000_000_000
EVERY_US = 10_000_000
_VERSIONS = [("absflow", "0.1.0"), ("delta-spark", "4.4.0"), ("pyspark", "4.2.0")]
_POSITION = (
    '{"sourceVersion":1,"reservoirId":"6f3e0c9a-0e0d-4f7e-9f43-2f4f4bd1d3b5",'
    '"reservoirVersion":%d,"index":-1,"isStartingVersion":false}'
)


def write(root: Path, count: int, stages: Sequence[str]) -> None:
    """The tables of facts of a job with so many checkpoints, all completed, and its state's."""
    _create(root / "attempts", ATTEMPTS)
    _create(root / "overtakes", OVERTAKES)
    _fill(root / "barriers", BARRIERS, count, 10 * ENTRIES, _barriers)

    def make(first: int, last: int) -> pa.Table:
        return _facts(first, last, stages)

    _fill(root / "checkpoints", CHECKPOINTS, count, ENTRIES, make)
    text = summary(count, stages)
    if text is not None:
        (root / "summary.json").write_text(text)
    kept = np.array([*_lineage(count), *range(max(1, count - KEPT), count + 1)], dtype=np.int64)
    for stage in stages:
        ids = np.unique(kept)
        rows = pa.table({"checkpoint_id": np.abs(ids), "k": ids, "v": ids, "set_id": ids})
        write_deltalake(root / "state" / stage, rows, partition_by=["set_id"])


def start(root: Path, graph: Mapping[str, Any]) -> None:
    """The facts of the job's one attempt, whose stages have read all barriers but the next ones."""
    control = [DeltaTable(root / name).version() for name in ("barriers", "overtakes")]
    write_deltalake(root / "attempts", _attempts(graph, control), mode="append")


def summary(count: int, stages: Sequence[str]) -> str | None:
    """What retention has written last, 500 checkpoints ago; None if the job is younger."""
    upto = count - 500
    if upto <= 0:
        return None
    kept = range(upto - KEPT + 1, upto + 1)
    points = range(max(0, upto - 50) // COMPACTED_EVERY * COMPACTED_EVERY, upto, COMPACTED_EVERY)
    facts = [
        Compacted(n, stage, -n, tuple(_replaced(n)), SetDigest(-n, 1, _one_digest(-n, place)))
        for n in points
        for place, stage in enumerate(stages)
        if n
    ]
    lineages = [(stage, _lineage(n)) for n in kept for stage in stages]
    known = Known(
        upto=upto,
        completions={n: Completion(n, 1, 1) for n in kept},
        compacted=readable_by(lineages, facts),
        done_before=upto,
        triggered=upto,
    )
    return text_of(known, 0)


_Make = Callable[[int, int], pa.Table]


def _create(table: Path, schema: pa.Schema) -> None:
    """As absflow creates it."""
    log = table / "_delta_log"
    log.mkdir(parents=True)
    metadata = {
        **{"id": str(uuid.uuid4()), "format": {"provider": "parquet", "options": {}}},
        **{"schemaString": from_arrow_schema(schema).json(), "partitionColumns": []},
        **{"configuration": tables.JOB_PROPERTIES, "createdTime": START_US // 1000},
    }
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    _commit(log, 0, [{"protocol": protocol}, {"metaData": metadata}])


def _fill(table: Path, schema: pa.Schema, count: int, entries: int, make: _Make) -> None:
    """Big files, and behind them a commit for each of the newest checkpoints."""
    late, kept = min(BEHIND, count // 2), LOGS[table.name]
    old = count - late
    _create(table, schema)
    adds: list[Mapping[str, Any]] = []
    for first in range(1, old + 1, entries):
        adds += _written(table, make(first, min(old, first + entries - 1)), schema)
    log = table / "_delta_log"
    _commit(log, 1, adds)
    logged = max(2, min(kept, count) - late)
    DeltaTable(table).create_checkpoint()
    shutil.move(log / f"{1:020d}.checkpoint.parquet", log / f"{logged:020d}.checkpoint.parquet")
    for version in range(2, logged + 1):
        _commit(log, version, [])
    hint = {"version": logged, "size": len(adds) + 2}
    (log / "_last_checkpoint").write_text(json.dumps(hint))
    for number, entry in enumerate(range(old + 1, count + 1), logged + 1):
        _commit(log, number, list(_written(table, make(entry, entry), schema)))


def _written(table: Path, rows: pa.Table, schema: pa.Schema) -> Iterator[dict[str, Any]]:
    def create(name: str, data: pa.Buffer) -> None:
        (table / name).write_bytes(data.to_pybytes())

    metadata: dict[str, Any] = {"configuration": {}, "partitionColumns": []}
    for batch in rows.cast(schema).combine_chunks().to_batches():
        yield from data_files.write([batch], schema, metadata, "snappy", "4.2.0", create)


def _commit(log: Path, version: int, adds: Sequence[Mapping[str, Any]]) -> None:
    info = {"timestamp": START_US // 1000 + version, "operation": "WRITE"}
    note = json.dumps({"incarnation": 1, "driver": "d"})
    actions: list[Mapping[str, Any]] = [{"commitInfo": {**info, "userMetadata": note}}]
    actions += [{"txn": {"appId": "facts/driver", "version": (1 << 32) + version}}, *adds]
    text = "\n".join(json.dumps(action) for action in actions)
    (log / f"{version:020d}.json").write_text(text + "\n")


def _attempts(graph: Mapping[str, Any], control: Sequence[int]) -> pa.Table:
    ready = {"control": control, "full": False, "sinks": {}, "published": {}, "on_checkpoint": {}}
    fact = {"attempt": 1, "incarnation": 1, "fingerprint": "f", "at": START_US}
    rows = [
        {**fact, "kind": "STARTED", "details": json.dumps(graph)},
        {**fact, "kind": "READY", "details": json.dumps(ready)},
    ]
    return pa.Table.from_pylist(rows, schema=ATTEMPTS)


def _times(ids: np.ndarray, later_us: int = 0) -> pa.Array:
    return pa.array(START_US + EVERY_US * ids + later_us).cast(pa.timestamp("us", tz="UTC"))


def _filled(schema: pa.Schema, length: int, given: Mapping[str, Any]) -> pa.Table:
    """These columns, and nulls in the others."""
    return pa.Table.from_arrays(
        [
            _typed(given[field.name], field.type)
            if field.name in given
            else pa.nulls(length, field.type)
            for field in schema
        ],
        schema=schema,
    )


def _barriers(first: int, last: int) -> pa.Table:
    ids = np.arange(first, last + 1)
    given: dict[str, Any] = {
        "checkpoint_id": ids,
        "base_id": ids - 1,
        "completed_id": ids - 1,
    }
    given |= {"attempt": np.ones_like(ids), "kind": ["CHECKPOINT"] * len(ids)}
    return _filled(BARRIERS, len(ids), {**given, "triggered_at": _times(ids)})


def _facts(first: int, last: int, stages: Sequence[str]) -> pa.Table:
    """What is committed while these checkpoints are taken."""
    ids = np.arange(first, last + 1)
    own = {"attempt": np.ones_like(ids), "incarnation": np.ones_like(ids)}
    ended = _times(ids, 900_000)
    done = {
        **own,
        **{
            "checkpoint_id": ids,
            "kind": ["COMPLETED"] * len(ids),
            "type": ["CHECKPOINT"] * len(ids),
        },
        **{"base_id": ids - 1, "triggered_at": _times(ids), "ended_at": ended},
        **{"duration_ms": 600 + ids * 7919 % 900, "fingerprint": ["f" * 32] * len(ids)},
        "versions": pa.array([_VERSIONS], CHECKPOINTS.field("versions").type).take(ids * 0),
        "stages": _manifests(ids, stages),
    }
    gone = ids[ids > KEPT] - KEPT
    deleted: dict[str, Any] = {name: values[: len(gone)] for name, values in own.items()}
    deleted |= {"checkpoint_id": gone, "kind": ["DELETED"] * len(gone)}
    points = ids[ids % COMPACTED_EVERY == 0]
    each = np.repeat(points, len(stages))
    of_point = np.repeat(np.arange(len(points)), len(stages))
    replaced = pa.array([_replaced(int(n)) for n in points], CHECKPOINTS.field("replaces").type)
    compacted = {
        **{"checkpoint_id": each, "kind": ["COMPACTED"] * len(each)},
        **{"attempt": np.ones_like(each), "incarnation": np.ones_like(each), "set_id": -each},
        "stage": list(stages) * len(points),
        "replaces": replaced.take(of_point),
        "set_rows": np.ones_like(each),
        "set_digest": _digest(-each, np.tile(np.arange(len(stages)), len(points))),
    }
    return pa.concat_tables(
        [
            _filled(CHECKPOINTS, len(ids), done),
            _filled(CHECKPOINTS, len(gone), deleted),
            _filled(CHECKPOINTS, len(each), compacted),
        ]
    )


def _replaced(n: int) -> list[int]:
    """The lineage of a checkpoint that is compacted."""
    before = n - COMPACTED_EVERY
    return [*([-before] if before else []), *range(before + 1, n + 1)]


def _lineage(n: int) -> list[int]:
    """As its manifest has it: with the compactions that were there when it completed."""
    before = (n - 1) // COMPACTED_EVERY * COMPACTED_EVERY
    return [*([-before] if before else []), *range(before + 1, n + 1)]


def _manifests(ids: np.ndarray, stages: Sequence[str]) -> pa.Array:
    """Ten numbers, a lineage and a position for each stage."""
    stage_type = CHECKPOINTS.field("stages").type.value_type
    wide, length = len(stages), len(ids) * len(stages)
    of_id = np.repeat(np.arange(len(ids)), wide)
    noise = np.random.default_rng(int(ids[0])).integers(0, 2000, (len(_MEASURED), length))
    # The first stage has a position, the others have none.
    positions = [*([("rows", _POSITION % n)] for n in ids.tolist()), []]
    place = np.where(np.arange(length) % wide == 0, of_id, len(ids))
    lineage = _one_of([_lineage(n) for n in ids.tolist()], stage_type, "lineage", of_id)
    columns: dict[str, Any] = {
        "stage": pa.array(stages).take(np.tile(np.arange(wide), len(ids))),
        "checkpoint_id": ids[of_id],
        "batch_id": ids[of_id] * 3,
        "lineage": lineage,
        "sets": _digests(lineage, wide, stage_type),
        "positions": _one_of(positions, stage_type, "positions", place),
        "in_flight": _one_of([[]], stage_type, "in_flight", of_id * 0),
        "busy": noise[0] / 2000,
        "backpressured": noise[1] / 2000,
        **dict(zip(_MEASURED, noise, strict=True)),
        **dict.fromkeys(_ZERO, np.zeros_like(of_id)),
    }
    fields = [
        _typed(columns[f.name], f.type) if f.name in columns else pa.nulls(length, f.type)
        for f in stage_type
    ]
    flat = pa.StructArray.from_arrays(fields, fields=list(stage_type))
    offsets = pa.array(np.arange(len(ids) + 1) * wide, pa.int32())
    return pa.ListArray.from_arrays(offsets, flat, type=CHECKPOINTS.field("stages").type)


def _digests(lineages: pa.Array, wide: int, of: pa.StructType) -> pa.Array:
    """Of each set of each lineage; it is the same in every manifest that names the set."""
    sizes = np.diff(lineages.offsets.to_numpy())
    set_ids = lineages.flatten().to_numpy()
    digests = _digest(set_ids, np.repeat(np.arange(len(lineages)) % wide, sizes))
    set_type = of.field("sets").type
    arrays = [pa.array(each) for each in (set_ids, np.ones_like(set_ids), digests)]
    flat = pa.StructArray.from_arrays(arrays, fields=list(set_type.value_type))
    return pa.ListArray.from_arrays(lineages.offsets, flat, type=set_type)


def _digest(set_ids: np.ndarray, stages: np.ndarray) -> np.ndarray:
    """64 bits that look like any others."""
    mixed = (set_ids.astype(np.uint64) + stages.astype(np.uint64) * np.uint64(1 << 40)) * np.uint64(
        0x9E3779B97F4A7C15
    )
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return (mixed ^ (mixed >> np.uint64(32))).view(np.int64)


def _one_digest(set_id: int, stage: int) -> int:
    return int(_digest(np.array([set_id]), np.array([stage]))[0])


def _one_of(values: Sequence[Any], of: pa.StructType, name: str, place: np.ndarray) -> pa.Array:
    return pa.array(values, of.field(name).type).take(pa.array(place))


def _typed(values: Any, of: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, of)


_MEASURED = (
    *("rows_changed", "bytes_changed", "keys_total", "bytes_total", "rows_out"),
    *("alignment_ms", "sync_ms", "commit_ms"),
)


# Of a checkpoint whose barriers nothing has held up.
_ZERO = ("held_rows", "held_bytes", "start_delay_ms", "async_ms")


def sizes(root: Path) -> str:
    """Bytes and files of the tables of facts."""
    found = []
    for name in ("barriers", "checkpoints"):
        files = list((root / name).glob("*.parquet"))
        size = sum(f.stat().st_size for f in files) / 1e6
        rows = sum(pq.read_metadata(f).num_rows for f in files)
        logs = len(list((root / name / "_delta_log").iterdir()))
        found.append(f"{name}: {rows:,} rows, {size:,.0f} MB, {len(files)} files, log of {logs:,}")
    return "; ".join(found)
