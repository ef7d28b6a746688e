"""The log of a file source is cut at an offset, whatever of it has been compacted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from absflow import StorageError
from absflow.spark.sources.file_log import FileEntry, build, parse

# Spark's own text, of a folder with a blank and an ä in its name.
TEXT = (
    'v1\n{"path":"file:///a%20b/%C3%A4.parquet","timestamp":1000000000,"batchId":0}'
    '\n{"path":"file:///a%20b/c.parquet","timestamp":1000001000,"batchId":0}'
)
ENTRIES = [
    FileEntry("file:///a%20b/%C3%A4.parquet", 1_000_000_000, 0),
    FileEntry("file:///a%20b/c.parquet", 1_000_001_000, 0),
]


def log(batches: int, files: int = 1) -> list[FileEntry]:
    """Entries of ``files`` files at each of the first offsets."""
    return [FileEntry(f"file:/{b}-{f}", b, b) for b in range(batches) for f in range(files)]


def test_spark_s_text_is_read_and_written() -> None:
    """Both ways, byte for byte."""
    assert parse(TEXT) == ENTRIES
    assert build(ENTRIES, 0, 10) == {"0": TEXT}


def test_a_log_is_raw_behind_its_last_compaction() -> None:
    """Every third offset is a compaction; before the last one nothing is needed."""
    assert set(build(log(20), 1, 3)) == {"0", "1"}
    assert set(build(log(20), 2, 3)) == {"2.compact"}
    files = build(log(20), 7, 3)
    assert set(files) == {"5.compact", "6", "7"}
    assert parse(files["5.compact"]) == log(6)
    assert parse(files["7"]) == log(8)[7:]


def test_a_source_that_read_nothing_has_no_log() -> None:
    """Offset -1."""
    assert build(log(3), -1, 10) == {}


@given(
    batches=st.integers(1, 40),
    cut=st.integers(0, 39),
    intervals=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    files=st.integers(1, 3),
    random=st.randoms(),
)
def test_a_cut_log_holds_each_file_up_to_the_cut_once(
    batches: int, cut: int, intervals: tuple[int, int], files: int, random: object
) -> None:
    """Also cut from a log that repeats itself, as one does between compaction and deletion."""
    upto = min(cut, batches - 1)
    whole = log(batches, files)
    before = build(whole, batches - 1, intervals[0])
    texts = [*before.values(), *build(whole, upto, intervals[0]).values()]
    random.shuffle(texts)  # type: ignore[attr-defined]
    entries = [entry for text in texts for entry in parse(text)]
    cut_log = build(entries, upto, intervals[1])
    kept = [entry for text in cut_log.values() for entry in parse(text)]
    assert sorted(kept, key=lambda e: e.batch_id) == log(upto + 1, files)


def test_a_log_with_a_gap_is_refused() -> None:
    """It would make Spark read files again or fail later."""
    entries = [entry for entry in log(9) if entry.batch_id != 4]
    with pytest.raises(StorageError, match="no files at offset 4, expected some at each one up to"):
        build(entries, 6, 3)
    with pytest.raises(StorageError, match="no files at offset 9"):
        build(log(9), 9, 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "begins with ''"),
        ("v2\n", "begins with 'v2'"),
        (TEXT[:-20], "does not parse"),
        ('v1\n{"path":"a","batchId":0}', "does not parse"),
        ("v1\n[]", "does not parse"),
    ],
)
def test_other_text_is_refused(text: str, words: str) -> None:
    """Another version, a file that was cut, another form."""
    with pytest.raises(StorageError, match=words):
        parse(text)
