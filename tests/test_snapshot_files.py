"""Snapshots on their way from a stage to its state history: files, and what the driver gets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from absflow.columnar.digest import set_digests
from absflow.columnar.pages import Page, PageKind, encode, page_batch
from absflow.columnar.spec import StageSpec
from absflow.columnar.state import snapshot_schema
from absflow.spark.batch.worker_output import WorkerOutput
from absflow.spark.worker import snapshot_files
from absflow.spark.worker.output_rows import PageMessages, message_of
from absflow.spark.worker.snapshot_files import SnapshotFiles
from absflow.storage.delta.data_files import PlainTable
from absflow.storage.state_history import history_columns
from absflow.storage.stores.mounted import MountedStore

KEYS, STATE = pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())])
INSIDE = snapshot_schema(KEYS, STATE)
METADATA = {"partitionColumns": ["set_id"], "configuration": {}, "schemaString": "{}"}


def files_in(folder: Path) -> SnapshotFiles:
    """Those of the stage "left"."""
    columns = history_columns(KEYS, STATE)
    table = PlainTable(MountedStore(), str(folder), {}, METADATA, columns, "snappy", "4.2.0")
    return SnapshotFiles(StageSpec("left", (), KEYS, STATE, pa.schema([]), {}, 8), table)


def state(stage: str, key_group: int, checkpoint_id: int, *rows: tuple[int, int, bool]) -> Page:
    table = pa.table(list(map(list, zip(*rows, strict=True))), schema=INSIDE)
    return Page(key_group, PageKind.STATE, stage, checkpoint_id, payload=encode(table))


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
    """What else the stage emits passes in its order; so do the snapshots of another stage."""
    others = [
        Page(1, PageKind.DATA, "left", 3, payload=b"rows"),
        state("tally", 1, 3, (1, 1, False)),
        Page(1, PageKind.BARRIER, checkpoint_id=3),
        Page(2, PageKind.REPORT, "left", payload=b"{}"),
    ]
    pages = [
        others[0],
        state("left", 1, 3, (7, 70, False), (8, 0, True)),
        *others[1:3],
        state("left", 2, 3, (9, 90, False)),
        state("left", 2, 4, (9, 91, False)),
        others[3],
    ]
    out = list(files_in(tmp_path).instead(iter(pages)))
    written = [page for page in out if page.kind is PageKind.WRITTEN]
    assert [page for page in out if page not in written] == others
    assert [(page.input, page.checkpoint_id, page.rows) for page in written] == [
        ("left", 3, 3),
        ("left", 4, 1),
    ]
    assert in_files(tmp_path, output_of(written)) == {
        3: [(1, "upsert", 7, 70), (1, "delete", 8, 0), (2, "upsert", 9, 90)],
        4: [(2, "upsert", 9, 91)],
    }


def test_a_stage_that_has_not_changed_writes_nothing(tmp_path: Path) -> None:
    """No file, and no page more."""
    pages = [Page(1, PageKind.BARRIER, checkpoint_id=3)]
    assert list(files_in(tmp_path).instead(pages)) == pages
    assert not list(tmp_path.iterdir())


def test_no_more_than_so_much_is_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file for so many bytes of pages; nothing twice, nothing lost."""
    pages = [state("left", number, 3, (number, number, False)) for number in range(5)]
    monkeypatch.setattr(snapshot_files, "_GATHERED", 2 * len(pages[0].payload))
    taken: list[Page] = []

    def given() -> Iterator[Page]:
        for page in pages:
            taken.append(page)
            yield page

    out = [(len(taken), page) for page in files_in(tmp_path).instead(given())]
    assert [(count, page.kind) for count, page in out] == [(n, PageKind.WRITTEN) for n in (2, 4, 5)]
    due = [(number, "upsert", number, number) for number in range(5)]
    assert in_files(tmp_path, output_of([page for _, page in out])) == {3: due}


def test_a9_the_digest_of_a_set_is_that_of_the_rows_in_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By checkpoint, however many files there are; in what order does not count."""
    monkeypatch.setattr(snapshot_files, "_GATHERED", 1)
    pages = [
        state("left", 1, 3, (7, 70, False)),
        state("left", 1, 4, (7, 71, False)),
        state("left", 2, 3, (8, 0, True)),
    ]
    output = output_of(list(files_in(tmp_path).instead(pages)))
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
    (written,) = files_in(tmp_path).instead([state("left", 1, 3, (7, 70, False))])
    sent = PageMessages()
    for pages in ([Page(1, PageKind.DATA, payload=b"x"), report], [], [written]):
        sent.take(page_batch(pages))
    messages = [json.loads(text) for text in sent.messages()]
    assert messages == [message_of(page) for page in (report, written)]
    output = WorkerOutput(messages)
    assert output.reports == {"tally": [(4, said)]}
    assert in_files(tmp_path, output) == {3: [(1, "upsert", 7, 70)]}
