"""Snapshots on their way from a stage to its state history: files, and what the driver gets."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from absflow.columnar.digest import set_digests
from absflow.columnar.pages import Page, PageKind, page_batch
from absflow.columnar.spec import StageSpec
from absflow.columnar.state import snapshot_schema
from absflow.errors import StorageError
from absflow.spark.batch.worker_output import WorkerOutput
from absflow.spark.worker import snapshot_files
from absflow.spark.worker.output_rows import PageMessages, message_of
from absflow.spark.worker.snapshot_files import SnapshotFiles
from absflow.storage.delta.data_files import PlainTable
from absflow.storage.state_history import history_columns
from absflow.storage.stores.contract import Store
from absflow.storage.stores.mounted import MountedStore

KEYS, STATE = pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())])
INSIDE = snapshot_schema(KEYS, STATE)
METADATA = {"partitionColumns": ["set_id"], "configuration": {}, "schemaString": "{}"}


def files_in(folder: Path, store: Store | None = None) -> SnapshotFiles:
    """Those of the stage "left"."""
    columns, store = history_columns(KEYS, STATE), store or MountedStore()
    table = PlainTable(store, str(folder), {}, METADATA, columns, "snappy", "4.2.0")
    return SnapshotFiles(StageSpec("left", (), KEYS, STATE, pa.schema([]), {}, 8), table)


def changed(*rows: tuple[int, int, bool]) -> pa.RecordBatch:
    return pa.record_batch(list(map(list, zip(*rows, strict=True))), schema=INSIDE)


def written_of(files: SnapshotFiles, *given: tuple[int, int, pa.RecordBatch]) -> list[Page]:
    """The pages when it has taken these: key group, checkpoint, what has changed."""
    for each in given:
        files.take(*each)
    pages = list(files.pages())
    files.finish()
    return pages


def output_of(pages: list[Page]) -> WorkerOutput:
    return WorkerOutput(map(message_of, pages))


def in_files(folder: Path, output: WorkerOutput) -> dict[int, list[Any]]:
    """By checkpoint what the files have that were named."""
    found: dict[int, list[Any]] = {}
    for checkpoint_id, adds in output.adds["left"].items():
        for action in adds:
            table = pq.ParquetFile(folder / action["add"]["path"]).read()
            rows = table.select(["key_group", "op", "k", "n"]).to_pylist()
            found.setdefault(checkpoint_id, []).extend(tuple(row.values()) for row in rows)
    return found


def test_each_checkpoint_has_its_own_files(tmp_path: Path) -> None:
    """Named in a page for each, behind all that was taken."""
    written = written_of(
        files_in(tmp_path),
        (1, 3, changed((7, 70, False), (8, 0, True))),
        (2, 3, changed((9, 90, False))),
        (2, 4, changed((9, 91, False))),
    )
    assert [(p.kind, p.input, p.key_group, p.checkpoint_id, p.rows) for p in written] == [
        (PageKind.WRITTEN, "left", 1, 3, 3),
        (PageKind.WRITTEN, "left", 2, 4, 1),
    ]
    assert in_files(tmp_path, output_of(written)) == {
        3: [(1, "upsert", 7, 70), (1, "delete", 8, 0), (2, "upsert", 9, 90)],
        4: [(2, "upsert", 9, 91)],
    }


def test_a_stage_that_has_not_changed_writes_nothing(tmp_path: Path) -> None:
    """No file, and no page."""
    assert written_of(files_in(tmp_path)) == []
    assert written_of(files_in(tmp_path), (1, 3, changed((1, 1, False)).slice(0, 0))) == []
    assert not list(tmp_path.iterdir())


def test_no_more_than_so_much_is_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file for so many bytes; nothing twice, nothing lost."""
    given = [(number, 3, changed((number, number, False))) for number in range(5)]
    monkeypatch.setattr(snapshot_files, "_GATHERED", 2 * given[0][2].nbytes)
    files, there = files_in(tmp_path), []
    for each in given:
        files.take(*each)
        files.finish()
        there.append(len(list(tmp_path.rglob("*.parquet"))))
    assert there == [0, 1, 1, 2, 2]
    written = written_of(files)
    assert [page.rows for page in written] == [2, 2, 1]
    due = [(number, "upsert", number, number) for number in range(5)]
    assert in_files(tmp_path, output_of(written)) == {3: due}


def test_the_store_takes_files_while_the_next_ones_are_made(tmp_path: Path) -> None:
    """Until it has them all, the task is not done."""
    may = threading.Event()

    class Slow(MountedStore):
        def add(self, path: str, data: Any) -> None:
            assert may.wait(60)
            super().add(path, data)

    files = files_in(tmp_path, Slow())
    files.take(1, 3, changed((7, 70, False)))
    written = list(files.pages())
    assert not list(tmp_path.rglob("*.parquet"))
    may.set()
    files.finish()
    assert in_files(tmp_path, output_of(written)) == {3: [(1, "upsert", 7, 70)]}


def test_few_files_wait_for_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state larger than the memory is not all on its way: before a third goes, one is awaited."""
    monkeypatch.setattr(snapshot_files, "_GATHERED", 1)
    monkeypatch.setattr(snapshot_files, "_UPLOADS", 2)
    (tmp_path / "taken").write_text("a file where a directory is to be")
    files = files_in(tmp_path / "taken")
    for number in range(2):
        files.take(1, 3, changed((number, number, False)))
    with pytest.raises(StorageError, match="could not"):
        files.take(1, 3, changed((2, 2, False)))


def test_a_file_that_the_store_refuses_ends_the_task(tmp_path: Path) -> None:
    """By its error, for nothing was snapshotted."""
    (tmp_path / "taken").write_text("a file where a directory is to be")
    files = files_in(tmp_path / "taken")
    files.take(1, 3, changed((7, 70, False)))
    list(files.pages())
    with pytest.raises(StorageError, match="could not"):
        files.finish()


def test_a9_the_digest_of_a_set_is_that_of_the_rows_in_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By checkpoint, however many files there are; in what order does not count."""
    monkeypatch.setattr(snapshot_files, "_GATHERED", 1)
    given = [
        (1, 3, changed((7, 70, False))),
        (1, 4, changed((7, 71, False))),
        (2, 3, changed((8, 0, True))),
    ]
    output = output_of(written_of(files_in(tmp_path), *given))
    assert {n: d.rows for n, d in output.digests["left"].items()} == {3: 2, 4: 1}
    for n, digest in output.digests["left"].items():
        names = [action["add"]["path"] for action in output.adds["left"][n]]
        found = [pq.ParquetFile(tmp_path / name).read() for name in names[::-1]]
        rows = pa.concat_tables(found).append_column("set_id", [[n] * digest.rows])
        assert set_digests(rows) == [digest]


def test_the_driver_gets_reports_and_names_of_files(tmp_path: Path) -> None:
    """Of all stages, with what they say; beside a batch's rows as by a job of its own."""
    said = '{"alignment": "ä"}'
    report = Page(4, PageKind.REPORT, "tally", payload=said.encode())
    (written,) = written_of(files_in(tmp_path), (1, 3, changed((7, 70, False))))
    sent = PageMessages()
    for pages in ([Page(1, PageKind.DATA, payload=b"x"), report], [], [written]):
        sent.take(page_batch(pages))
    messages = [json.loads(text) for text in sent.messages()]
    assert messages == [message_of(page) for page in (report, written)]
    output = WorkerOutput(messages)
    assert output.reports == {"tally": [(4, said)]}
    assert in_files(tmp_path, output) == {3: [(1, "upsert", 7, 70)]}
