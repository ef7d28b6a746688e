"""Storage roots written with deltalake alone, from the states that their tables must show.

A test says what state each stage had at every id, aborted and pending ones included; the sets,
lineages and manifests follow from that as the job's own do: a set holds every key that was touched
since its base, a full one (base 0) every live key and no tombstone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

from absflow.columnar.digest import set_digests
from absflow.facts.columns import ATTEMPTS, BARRIERS, CHECKPOINTS, OVERTAKES
from absflow.protocol.checkpoints import SetDigest
from absflow.protocol.lineage import Compacted, extend_lineage
from absflow.storage.state_history import history_columns

START = datetime(2026, 1, 2, 9, 0, tzinfo=timezone.utc)
VERSIONS = [("absflow", "0.1.0"), ("pyspark", "4.2.0"), ("delta-spark", "4.4.0")]
_STAGE = CHECKPOINTS.field("stages").type.value_type

Row = dict[str, Any]
State = dict[tuple[Any, ...], Row]


@dataclass(frozen=True)
class Checkpoint:
    """A triggered checkpoint; without ``kind`` it is pending."""

    id: int
    base: int = 0
    kind: str | None = "COMPLETED"
    reason: str | None = None
    cause: str | None = None


@dataclass(frozen=True)
class Stage:
    """A stage and its states by checkpoint id; where none is given, it is as it was before.

    Attributes:
        ended: its last checkpoint; later ones repeat that one's report.
        unwritten: checkpoints whose set was never appended.
        in_flight: rows on their way to it, by checkpoint, as its manifest has them.
    """

    name: str
    keys: pa.Schema
    columns: pa.Schema
    states: Mapping[int, list[Row]] = field(default_factory=dict)
    positions: Mapping[str, str] = field(default_factory=dict)
    ended: int | None = None
    unwritten: frozenset[int] = frozenset()
    in_flight: Mapping[int, list[Row]] = field(default_factory=dict)

    def state(self, n: int) -> State:
        """State by key at ``n``."""
        at = max((i for i in self.states if i <= n), default=None)
        rows = [] if at is None else self.states[at]
        return {tuple(row[k] for k in self.keys.names): row for row in rows}

    def set(self, n: int, base: int) -> list[Row]:
        """The rows of the set of ``n``."""
        new = self.state(n)
        if base == 0:
            return [self._row(n, "upsert", row) for row in new.values()]
        touched: dict[tuple[Any, ...], None] = {}
        for i in range(base + 1, n + 1):
            before, after = self.state(i - 1), self.state(i)
            touched |= {k: None for k in {**before, **after} if before.get(k) != after.get(k)}
        return [
            self._row(n, "upsert", new[k])
            if k in new
            else self._row(n, "delete", dict(zip(self.keys.names, k, strict=True)))
            for k in touched
        ]

    def _row(self, n: int, op: str, row: Row) -> Row:
        return {"set_id": n, "checkpoint_id": n, "key_group": 0, "op": op, **row}


@dataclass(frozen=True)
class Root:
    """What was written, for tests to compare with."""

    path: Path
    stages: Mapping[str, Stage]
    checkpoints: tuple[Checkpoint, ...]

    @property
    def completed(self) -> list[int]:
        """Ids of the completed ones."""
        return [c.id for c in self.checkpoints if c.kind == "COMPLETED"]

    def state(self, stage: str, n: int) -> list[Row]:
        """The rows that a reader must find."""
        return list(self.stages[stage].state(n).values())

    def changes(self, stage: str) -> list[tuple[int, str, tuple[Any, ...], Row | None]]:
        """(checkpoint, op, key, state) of every change between completed checkpoints."""
        found = []
        before: State = {}
        for n in self.completed:
            after = self.stages[stage].state(n)
            for key in {**before, **after}:
                if before.get(key) != after.get(key):
                    op = "upsert" if key in after else "delete"
                    found.append((n, op, key, after.get(key)))
            before = after
        return found


def write_root(
    path: Path,
    stages: Iterable[Stage],
    checkpoints: Iterable[Checkpoint],
    attempt: int = 1,
    sinks: Mapping[str, str] | None = None,
) -> Root:
    """Write all tables of a job; ``sinks`` are the stages of those that publish, by name."""
    root = Root(path, {s.name: s for s in stages}, tuple(checkpoints))
    _write(path / "attempts", ATTEMPTS, _attempts(root, attempt, sinks or {}))
    _write(path / "barriers", BARRIERS, _barriers(root, attempt))
    _write(path / "overtakes", OVERTAKES, [])
    sets = {name: _sets(root, stage) for name, stage in root.stages.items()}
    for name, stage in root.stages.items():
        schema = history_columns(stage.keys, stage.columns)
        target = path / "state" / name
        _write(target, schema, [], partition_by=["set_id"])
        for rows in sets[name].values():
            _write(target, schema, rows)
    _write(path / "checkpoints", CHECKPOINTS, _facts(root, attempt, sets))
    return root


def _attempts(root: Root, attempt: int, sinks: Mapping[str, str]) -> list[Row]:
    def text(schema: pa.Schema) -> list[list[str]]:
        return [[f.name, str(f.type)] for f in schema]

    details = {
        s.name: {
            "inputs": [],
            "key": text(s.keys),
            "state": text(s.columns),
            "output": [],
            "table": s.name,
        }
        for s in root.stages.values()
    }
    ready = {"published": dict.fromkeys(sinks, 0), "on_checkpoint": dict(sinks)}
    fact = {"attempt": attempt, "incarnation": 1, "at": START, "fingerprint": "f"}
    return [
        {**fact, "kind": "STARTED", "details": json.dumps(details)},
        {**fact, "kind": "READY", "details": json.dumps(ready)},
        {**fact, "kind": "DRIVER", "incarnation": 2},
    ]


def _barriers(root: Root, attempt: int) -> list[Row]:
    rows: list[Row] = [
        {
            "attempt": attempt,
            "checkpoint_id": c.id,
            "base_id": c.base,
            "completed_id": c.base,
            "kind": "CHECKPOINT",
            "triggered_at": _triggered(c.id),
        }
        for c in root.checkpoints
    ]
    end = {"attempt": attempt, "kind": "END", "stage": "legs", "input": "legs"}
    return [*rows, {**end, "triggered_at": START}]


def _sets(root: Root, stage: Stage) -> dict[int, list[Row]]:
    sets = {}
    for c in root.checkpoints:
        if c.id not in stage.unwritten and (stage.ended is None or c.id <= stage.ended):
            rows = stage.set(c.id, c.base)
            if rows:
                sets[c.id] = rows
    return sets


def _facts(root: Root, attempt: int, sets: Mapping[str, Mapping[int, list[Row]]]) -> list[Row]:
    facts = []
    manifest: dict[str, Row] = {}
    for c in root.checkpoints:
        if c.kind is None:
            continue
        if c.kind == "COMPLETED":
            for number, stage in enumerate(root.stages.values()):
                if stage.ended is None or c.id <= stage.ended:
                    rows = sets[stage.name].get(c.id, [])
                    before = tuple(manifest.get(stage.name, {}).get("lineage", ()))
                    lineage = extend_lineage(before, c.id, c.base, len(rows))
                    row = _report(c, number, stage, len(rows), lineage)
                    row["sets"] = [_digest(stage, sets[stage.name][n]) for n in lineage]
                    manifest[stage.name] = row
        facts.append(
            {
                "checkpoint_id": c.id,
                "kind": c.kind,
                "reason": c.reason,
                "cause": c.cause,
                "attempt": attempt,
                "incarnation": 1,
                "base_id": c.base,
                "triggered_at": _triggered(c.id),
                "ended_at": _triggered(c.id) + timedelta(milliseconds=1500 * c.id),
                "duration_ms": 1500 * c.id,
                "stages": list(manifest.values()) if c.kind == "COMPLETED" else None,
                "fingerprint": "f",
                "versions": VERSIONS,
            }
        )
    return facts


def _digest(stage: Stage, rows: list[Row]) -> Row:
    """The digest of a set with these rows."""
    table = pa.Table.from_pylist(rows, history_columns(stage.keys, stage.columns))
    (digest,) = set_digests(table)
    return asdict(digest)


def retire(root: Root, checkpoint_id: int) -> None:
    """Delete a completed checkpoint, as retention does; its sets stay."""
    _add_fact(root, {"checkpoint_id": checkpoint_id, "kind": "DELETED"})


def end_driver(root: Root, incarnation: int = 2) -> None:
    """Let the newest driver say that it has ended."""
    fact = {"attempt": 1, "incarnation": incarnation, "at": START, "kind": "ENDED"}
    _write(root.path / "attempts", ATTEMPTS, [fact])


def restore(root: Root, attempt: int, checkpoint_id: int) -> None:
    """Begin an attempt from a checkpoint, as a restore does."""
    table = DeltaTable(root.path / "attempts").to_pyarrow_table()
    facts = [row for row in table.to_pylist() if row["kind"] in {"STARTED", "READY"}]
    driver = max(table["incarnation"].to_pylist()) + 1
    origin = f"file:{root.path}#{checkpoint_id}"
    new = {"attempt": attempt, "incarnation": driver, "restored_from": origin}
    _write(root.path / "attempts", ATTEMPTS, [{**row, **new} for row in facts[:2]])


def change_columns(
    root: Root, stages: Iterable[Stage], checkpoints: Sequence[Checkpoint], attempt: int = 2
) -> None:
    """Let a job go on from its newest checkpoint with stages of other columns, in other tables."""
    after = write_root(root.path.with_name("after"), stages, checkpoints, attempt)
    origin = f"file:{root.path}#{checkpoints[0].id - 1}"
    for name, schema in (
        ("attempts", ATTEMPTS),
        ("barriers", BARRIERS),
        ("checkpoints", CHECKPOINTS),
    ):
        rows = DeltaTable(after.path / name).to_pyarrow_table().to_pylist()
        for row in rows if name == "attempts" else []:
            row["incarnation"] += 2
            if row["kind"] == "STARTED":
                described = json.loads(row["details"])
                for stage, columns in described.items():
                    columns["table"] = f"{stage}.{attempt}"
                row |= {"restored_from": origin, "details": json.dumps(described)}
        _write(root.path / name, schema, rows)
    for stage in after.stages:
        (after.path / "state" / stage).rename(root.path / "state" / f"{stage}.{attempt}")


def fail_restore(root: Root, attempt: int, checkpoint_id: int) -> None:
    """Begin an attempt from a checkpoint, and say that this has failed."""
    restore(root, attempt, checkpoint_id)
    table = DeltaTable(root.path / "attempts")
    table.delete(f"attempt = {attempt} AND kind = 'READY'")
    fact = {"attempt": attempt, "incarnation": 3, "at": START, "kind": "FAILED"}
    _write(root.path / "attempts", ATTEMPTS, [fact])


def complete(root: Root, checkpoint_id: int, **fact: Any) -> None:
    """Let a checkpoint complete, with the stages of the one that completed last."""
    done = DeltaTable(root.path / "checkpoints").to_pyarrow_table().to_pylist()
    newest = max((r for r in done if r["kind"] == "COMPLETED"), key=lambda r: r["checkpoint_id"])
    _write(
        root.path / "checkpoints",
        CHECKPOINTS,
        [{**newest, "checkpoint_id": checkpoint_id, "base_id": 0, "type": None, **fact}],
    )


def requests(root: Root) -> list[Row]:
    """What was asked for."""
    try:
        return list(DeltaTable(root.path / "requests").to_pyarrow_table().to_pylist())
    except TableNotFoundError:
        return []


def answer(root: Root, timeout_s: float, **fact: Any) -> Row:
    """Wait for a request, and answer it as a driver does; the request."""
    until = time.monotonic() + timeout_s
    while not (rows := requests(root)):
        assert time.monotonic() < until, "nobody has asked for anything"
        time.sleep(0.05)
    newest = max(rows, key=lambda row: row["requested_at"])
    _add_fact(root, {"request": newest["request"], **fact})
    return dict(newest)


def compact(root: Root, stage: str, checkpoint_id: int, replaces: list[int]) -> None:
    """Put one set in the place of these, and take them away, as retention does."""
    given = root.stages[stage]
    rows = [
        {**given._row(-checkpoint_id, "upsert", row), "checkpoint_id": checkpoint_id}
        for row in given.state(checkpoint_id).values()
    ]
    target = root.path / "state" / stage
    _write(target, history_columns(given.keys, given.columns), rows)
    ids = ", ".join(map(str, replaces))
    DeltaTable(str(target)).delete(f"set_id IN ({ids})")
    digest = SetDigest(**_digest(given, rows))
    add_compacted(root, Compacted(checkpoint_id, stage, -checkpoint_id, tuple(replaces), digest))


def add_compacted(root: Root, fact: Compacted) -> None:
    """Say that this set was made."""
    named = {"stage": fact.stage, "set_id": fact.set_id, "replaces": list(fact.replaces)}
    if fact.digest is not None:
        named |= {"set_rows": fact.digest.rows, "set_digest": fact.digest.digest}
    _add_fact(root, {"checkpoint_id": fact.checkpoint_id, "kind": "COMPACTED", **named})


def _add_fact(root: Root, fact: Row) -> None:
    common = {"attempt": 1, "incarnation": 1, "ended_at": START}
    _write(root.path / "checkpoints", CHECKPOINTS, [{**common, **fact}])


def _report(c: Checkpoint, number: int, stage: Stage, changed: int, lineage: Iterable[int]) -> Row:
    held = 12 if number == 1 else 0
    row = {
        "stage": stage.name,
        "checkpoint_id": c.id,
        "batch_id": 10 * c.id + number,
        "lineage": list(lineage),
        "positions": list(stage.positions.items()),
        "in_flight": stage.in_flight.get(c.id, []),
        "rows_changed": changed,
        "bytes_changed": 1000 * changed,
        "keys_total": len(stage.state(c.id)),
        "bytes_total": 1_250_000 * len(stage.state(c.id)),
        "rows_out": 7,
        "held_rows": held,
        "held_bytes": 100 * held,
        "start_delay_ms": 300 + 200 * number,
        "alignment_ms": 400 * (number == 1),
        "sync_ms": 50,
        "async_ms": 90 * c.id,
        "commit_ms": 120 * c.id,
        "busy": 0.25 + 0.5 * number if c.id != 4 else None,
        "backpressured": 0.0 if number else 0.125,
        "backlogs": [] if number else None,
        "watermark": None,
        "late_rows": 0,
        "late_emitted": 0,
        "early_rows": None,
        "event_time": None,
        "expired_upto": None,
    }
    if stage.name == "aircraft":
        unread = {"input": "legs", "commits": 31, "rows": 4_500, "bytes": 270_000, "age_ms": 9_300}
        row["backlogs"] = [unread]
    assert row.keys() | {"sets"} == {f.name for f in _STAGE}
    return row


def _triggered(n: int) -> datetime:
    return START + timedelta(seconds=10 * n)


def _write(path: Path, schema: pa.Schema, rows: list[Row], **options: Any) -> None:
    table = pa.Table.from_pylist(rows, schema=schema)
    write_deltalake(str(path), table, mode="append", **options)
