"""What a worker does with STATE and REPORT pages on the way: files, and what the driver gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from absflow.columnar.digest import set_digests
from absflow.columnar.pages import Page, PageKind, encode, page_batch
from absflow.columnar.state import snapshot_schema
from absflow.spark.batch.worker_output import WorkerOutput
from absflow.spark.worker import snapshot_files
from absflow.spark.worker.snapshot_files import SnapshotFiles
from absflow.storage.delta.data_files import PlainTable
from absflow.storage.state_history import history_columns
from absflow.storage.stores.mounted import MountedStore

KEYS, STATE = pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())])
INSIDE = snapshot_schema(KEYS, STATE)
METADATA = {"partitionColumns": ["set_id"], "configuration": {}, "schemaString": "{}"}


def history(folder: Path) -> tuple[PlainTable, pa.Schema]:
    columns = history_columns(KEYS, STATE)
    return PlainTable(MountedStore(), str(folder), {}, METADATA, columns, "snappy", "4.2.0"), INSIDE


def state(stage: str, key_group: int, checkpoint_id: int, *rows: tuple[int, int, bool]) -> Page:
    table = pa.table(list(map(list, zip(*rows, strict=True))), schema=INSIDE)
    return Page(key_group, PageKind.STATE, stage, checkpoint_id, payload=encode(table))


def messages_of(files: SnapshotFiles) -> list[dict[str, Any]]:
    return [json.loads(text) for text in files.messages()]


def in_files(folder: Path, messages: list[dict[str, Any]]) -> dict[tuple[str, int], list[Any]]:
    """By stage and checkpoint what the files have that were named."""
    found: dict[tuple[str, int], list[Any]] = {}
    for each in messages:
        if "digest" in each:
            continue
        stage, checkpoint_id, action = each["state"]
        table = pq.ParquetFile(folder / stage / action["add"]["path"]).read()
        rows = table.select(["key_group", "op", "k", "n"]).to_pylist()
        found.setdefault((stage, checkpoint_id), []).extend(tuple(row.values()) for row in rows)
    return found


def test_each_stage_and_checkpoint_has_its_own_files(tmp_path: Path) -> None:
    """Of several batches of pages, among others; those of a stage without a table are left."""
    files = SnapshotFiles({name: history(tmp_path / name) for name in ("left", "tally")})
    files.take(
        page_batch(
            [
                Page(1, PageKind.DATA, "left", 3, payload=b"not for us"),
                state("left", 1, 3, (7, 70, False), (8, 0, True)),
                state("tally", 1, 3, (1, 1, False)),
                state("other", 1, 3, (1, 1, False)),
            ]
        )
    )
    more = [state("left", 2, 3, (9, 90, False)), state("left", 2, 4, (9, 91, False))]
    files.take(page_batch(more))
    found = in_files(tmp_path, messages_of(files))
    assert found == {
        ("left", 3): [(1, "upsert", 7, 70), (1, "delete", 8, 0), (2, "upsert", 9, 90)],
        ("left", 4): [(2, "upsert", 9, 91)],
        ("tally", 3): [(1, "upsert", 1, 1)],
    }
    assert not (tmp_path / "other").exists()


def test_reports_are_told(tmp_path: Path) -> None:
    """Of all stages, with what they say."""
    files = SnapshotFiles({"left": history(tmp_path / "left")})
    said = '{"alignment": "ä"}'
    files.take(page_batch([Page(4, PageKind.REPORT, "tally", payload=said.encode())]))
    files.take(page_batch([]))
    assert messages_of(files) == [{"report": ["tally", 4, said]}]


def test_no_more_than_so_much_is_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file for so many bytes of pages; nothing twice, nothing lost."""
    pages = [state("left", number, 3, (number, number, False)) for number in range(5)]
    monkeypatch.setattr(snapshot_files, "_GATHERED", 2 * len(pages[0].payload))
    files = SnapshotFiles({"left": history(tmp_path / "left")})
    for page in pages:
        files.take(page_batch([page]))
    messages = messages_of(files)
    assert len(messages) == 6
    due = [(number, "upsert", number, number) for number in range(5)]
    assert in_files(tmp_path, messages) == {("left", 3): due}


def test_a9_the_digest_of_a_set_is_that_of_the_rows_in_its_files(tmp_path: Path) -> None:
    """By stage and checkpoint, however many files there are; in what order does not count."""
    files = SnapshotFiles({"left": history(tmp_path / "left")})
    files.take(
        page_batch([state("left", 1, 3, (7, 70, False)), state("left", 1, 4, (7, 71, False))])
    )
    files._write()
    files.take(page_batch([state("left", 2, 3, (8, 0, True))]))
    output = WorkerOutput({}, files.messages())
    assert {n: d.rows for n, d in output.digests["left"].items()} == {3: 2, 4: 1}
    for n, digest in output.digests["left"].items():
        names = [action["add"]["path"] for action in output.adds["left"][n]]
        found = [pq.ParquetFile(tmp_path / "left" / name).read() for name in names[::-1]]
        rows = pa.concat_tables(found).append_column("set_id", [[n] * digest.rows])
        assert set_digests(rows) == [digest]
