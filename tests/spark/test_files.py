"""Small files, put in place whole, whatever file system they are on."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from absflow.errors import StorageError
from absflow.storage.files import Files

pytestmark = pytest.mark.spark


@pytest.fixture(params=["local", "any"])
def files(
    request: pytest.FixtureRequest, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Files:
    """Local files as such, and as those of any file system that Hadoop knows."""
    files = Files(spark)
    if request.param == "any":
        through_hadoop(files, monkeypatch)
    return files


def through_hadoop(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files as of a file system that only Hadoop knows."""
    monkeypatch.setattr(files, "_at", lambda path: (files._hadoop, path))


def test_a_file_is_there_whole_or_not_at_all(files: Files, tmp_path: Path) -> None:
    """Written again, it is replaced; nothing else is left beside it."""
    path = f"file:{tmp_path}/new/folder/note"
    assert files.read(path) is None
    assert not files.exists(path)
    for text in ("one", "the other, lönger\n", ""):
        files.write(path, text)
        assert files.read(path) == text
    assert files.exists(path)
    assert files.names(f"file:{tmp_path}/new/folder") == ["note"]
    files.delete(path)
    files.delete(path)
    assert files.names(f"file:{tmp_path}/new/folder") == []
    assert files.names(f"file:{tmp_path}/nowhere") == []


def test_a_directory_goes_only_if_it_is_empty(files: Files, tmp_path: Path) -> None:
    """One with a file in it is refused, and stays as it is."""
    folder = f"file:{tmp_path}/folder"
    files.delete_empty_folder(folder)
    files.write(f"{folder}/note", "kept")
    with pytest.raises(StorageError, match="could not delete"):
        files.delete_empty_folder(folder)
    assert files.read(f"{folder}/note") == "kept"
    files.delete(f"{folder}/note")
    files.delete_empty_folder(folder)
    assert not files.exists(folder)


def test_what_a_kill_leaves_of_a_write_is_not_seen(files: Files, tmp_path: Path) -> None:
    """Written aside, and never put in place: not a file of the directory, and in nobody's way."""
    path = f"file:{tmp_path}/folder/note"
    files.make_directory(f"file:{tmp_path}/folder")
    for name in (".note.tmp", f".note.{'0' * 32}.tmp"):
        (tmp_path / "folder" / name).write_text("half of it")
    assert files.names(f"file:{tmp_path}/folder") == []
    assert files.read(path) is None
    files.write(path, "all of it")
    assert files.names(f"file:{tmp_path}/folder") == ["note"]
    assert files.read(path) == "all of it"


def test_a_local_file_can_be_read_whatever_lies_beside_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hadoop puts a file with a checksum beside its own, and reads none that does not fit."""
    path = f"file:{tmp_path}/note"
    hadoops = Files(spark)
    through_hadoop(hadoops, monkeypatch)
    hadoops.write(path, "with a checksum")
    checksum = tmp_path / ".note.crc"
    assert checksum.exists()
    Files(spark).write(path, "another")
    assert not checksum.exists()
    assert hadoops.read(path) == "another"
    hadoops.write(path, "with a checksum")
    Files(spark).delete(path)
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_is_found(files: Files, tmp_path: Path) -> None:
    """One by one or by a listing of their directory, whatever their names; also of none."""
    folder = f"file:{tmp_path}/a b=1%2C,{{x}}"
    names = [f"part {n},,{{}}, ä=%20" for n in range(40)]
    for name in names[::2]:
        files.write(f"{folder}/{name}", "")
    assert files.names(folder) == sorted(names[::2])
    paths = [f"{folder}/{name}" for name in names]
    assert files.missing(paths) == paths[1::2]
    assert files.missing(paths[:5]) == paths[1:5:2]
    elsewhere = [f"file:{tmp_path}/nowhere/{n}" for n in range(40)]
    assert files.missing([*elsewhere, *paths[:3]]) == [*elsewhere, paths[1]]
    assert files.missing([]) == []


def test_what_cannot_be_written_is_told(files: Files, tmp_path: Path) -> None:
    """With the path, and what to do."""
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StorageError, match=r"could not write 'file:.*/file/note'.*must name a place"
    ):
        files.write(f"file:{tmp_path}/file/note", "")
