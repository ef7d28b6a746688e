"""What a job has left in its Delta tables, read without a JVM and without absflow's own reader."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from anomalies import Commit
from deltalake import DeltaTable

__all__ = [
    "alive",
    "commits",
    "completed",
    "facts",
    "files_read",
    "in_flight",
    "late_rows",
    "stage_of",
    "state_at",
    "state_history",
    "triggered",
    "watermark",
]


def commits(table: Path) -> list[Commit]:
    """The commits whose rows are in the table now, by version.

    A file that was removed and put back (RESTORE) belongs to the commit that wrote it.
    """
    made: dict[str, tuple[int, int, dict[str, Any]]] = {}
    active: set[str] = set()
    for path in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        info = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
        note = _note(info.get("userMetadata"))
        for action in actions:
            if "add" in action:
                file = action["add"]["path"]
                made.setdefault(file, (int(path.stem), info["timestamp"], note))
                active.add(file)
            elif "remove" in action:
                active.discard(action["remove"]["path"])
    by_version: dict[int, list[str]] = {}
    for file in sorted(active):
        by_version.setdefault(made[file][0], []).append(file)
    result = []
    for version, files in sorted(by_version.items()):
        rows = pd.concat([_file(table / unquote(f)) for f in files])
        result.append(Commit(version, made[files[0]][1], made[files[0]][2], rows))
    return result


def _file(path: Path) -> pd.DataFrame:
    """The rows of a data file; Spark writes its times (UTC) in a form that knows no time zone."""
    rows = pq.read_table(path).to_pandas()
    for name in rows.select_dtypes("datetime"):
        rows[name] = rows[name].dt.tz_localize("UTC")
    return rows


def _note(text: str | None) -> dict[str, Any]:
    note = json.loads(text) if text and text.startswith("{") else {}
    return note if isinstance(note, dict) else {}


def _rows(table: Path) -> list[dict[str, Any]]:
    return list(DeltaTable(str(table)).to_pyarrow_table().to_pylist())


def facts(storage: Path) -> list[dict[str, Any]]:
    """The rows of ``checkpoints`` by id; none if the job has not come so far."""
    if not any((storage / "checkpoints" / "_delta_log").glob("*.json")):
        return []
    return sorted(_rows(storage / "checkpoints"), key=lambda row: row["checkpoint_id"])


def completed(storage: Path) -> list[dict[str, Any]]:
    """The COMPLETED ones that retention has left, with their lineages as it has shortened them."""
    known = facts(storage)
    deleted = {fact["checkpoint_id"] for fact in known if fact["kind"] == "DELETED"}
    left = [f for f in known if f["kind"] == "COMPLETED" and f["checkpoint_id"] not in deleted]
    compacted = [fact for fact in known if fact["kind"] == "COMPACTED"]
    for compaction in sorted(compacted, key=lambda row: row["ended_at"]):
        stages = (s for fact in left for s in fact["stages"] if s["stage"] == compaction["stage"])
        for stage in stages:
            lineage, gone = stage["lineage"], compaction["replaces"]
            if set(gone) <= set(lineage):
                first = lineage.index(gone[0])
                assert lineage[first : first + len(gone)] == gone, (lineage, compaction)
                lineage[first : first + len(gone)] = [compaction["set_id"]]
    return left


def triggered(storage: Path) -> list[int]:
    """The ids in ``barriers`` in the order in which they were triggered."""
    rows = [row for row in _rows(storage / "barriers") if row["kind"] != "END"]
    return [row["checkpoint_id"] for row in sorted(rows, key=lambda row: row["triggered_at"])]


def stage_of(fact: Mapping[str, Any], stage: str) -> dict[str, Any]:
    """A stage's part of a manifest."""
    return next(s for s in fact["stages"] if s["stage"] == stage)


def watermark(fact: Mapping[str, Any], stage: str) -> pd.Timestamp | None:
    """How far event time had come in a stage."""
    said = stage_of(fact, stage)["watermark"]
    return None if said is None else pd.Timestamp(said)


def files_read(fact: Mapping[str, Any], stage: str, source: str) -> int:
    """How many files of ``source`` a manifest's position stands behind (one file a batch)."""
    position = dict(stage_of(fact, stage)["positions"])[source]
    return 0 if position == "-" else json.loads(position)["logOffset"] + 1


def in_flight(storage: Path, fact: Mapping[str, Any], stage: str, key: str) -> dict[str, list[Any]]:
    """The rows that a checkpoint has overtaken on their way to a stage: a column, by channel.

    Raises:
        AssertionError: they are not as many as the manifest says.
    """
    found = {}
    for state in stage_of(fact, stage)["in_flight"]:
        channel = storage / "channels" / state["input"] / f"attempt={state['attempt']}"
        named = {unquote(path) for path in state["files"]}
        files = pa.table(DeltaTable(str(channel)).get_add_actions(flatten=True)).to_pylist()
        mine = []
        for file in files:
            if file["partition._epoch"] <= fact["checkpoint_id"]:
                path = unquote(file["path"])
                rows = pq.ParquetFile(channel / path).read().to_pandas()
                data = rows[rows["_kind"] == "DATA"]
                mine.append(data[(data["_seq"] >= state["from_seq"]) | (path in named)])
        found[state["input"]] = [value for rows in mine for value in rows[key]]
        assert len(found[state["input"]]) == state["rows"], state
    return found


def late_rows(storage: Path, source: str) -> pd.DataFrame:
    """The rows of a source that came late, but for those of what a restore has left behind.

    Such a table is not put back, and what is read again is late again.
    """
    rows = pd.DataFrame(_rows(storage / "late" / source))
    started = [row for row in _rows(storage / "attempts") if row["kind"] == "STARTED"]
    begun = {row["attempt"]: row["restored_from"] for row in started}
    taken = {f["checkpoint_id"]: f["attempt"] for f in facts(storage) if f["kind"] == "COMPLETED"}
    attempt, upto = max(begun), float("inf")
    holds = {attempt: upto}
    while begun[attempt] is not None:
        upto = int(begun[attempt].rpartition("#")[2])
        attempt = taken[upto]
        holds[attempt] = upto
    return rows[rows["_epoch"] <= rows["_attempt"].map(holds).fillna(-1)]


def state_at(history: pd.DataFrame, fact: Mapping[str, Any], stage: str, key: str) -> pd.DataFrame:
    """A stage's state at a checkpoint: the newest change of each key along the lineage."""
    rows = history[history["set_id"].isin(stage_of(fact, stage)["lineage"])]
    newest = rows.sort_values("checkpoint_id").groupby(key, dropna=False).tail(1)
    own = ["set_id", "checkpoint_id", "key_group", "op"]
    return newest[newest["op"] == "upsert"].drop(columns=own)


def alive(state: pd.DataFrame, fact: Mapping[str, Any], stage: str) -> pd.DataFrame:
    """Those rows of a state that expires which had not at the checkpoint."""
    upto = stage_of(fact, stage)["expired_upto"]
    return state if upto is None else state[state["_touched"] > pd.Timestamp(upto)]


def state_history(storage: Path, stage: str) -> pd.DataFrame:
    """All rows of a stage's state history."""
    return DeltaTable(str(storage / "state" / stage)).to_pyarrow_table().to_pandas()
