"""Files of a Delta table that Python writes: when it may, and what it says of them."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damaging import flip_in_values

from absflow.errors import StorageError
from absflow.storage.delta import data_files
from absflow.storage.delta.data_files import PlainTable, is_plain, write
from absflow.storage.delta.data_rows import Within, batches_of
from absflow.storage.stores.mounted import MountedStore

NUMBERS = pa.schema([("n", pa.int64()), ("p", pa.int64())])
PLAIN = {"minReaderVersion": 1, "minWriterVersion": 2}


def described(schema: pa.Schema, by: list[str] | None = None, **properties: str) -> dict[str, Any]:
    """A ``metaData`` action of a table with these columns, all of them nullable longs to Delta."""
    fields = [
        {"name": name, "type": "long", "nullable": True, "metadata": {}} for name in schema.names
    ]
    return {
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": by or [],
        "configuration": properties,
    }


def written(
    table: pa.Table, metadata: Mapping[str, Any] | None = None
) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    """Each file's action, and what is in it."""
    files: dict[str, pa.Buffer] = {}
    metadata = metadata or described(table.schema)
    batches = table.to_batches()
    for action in write(batches, table.schema, metadata, "zstd", "4.2.0", files.__setitem__):
        add = action["add"]
        data = files[add["path"]]
        assert add["size"] == data.size
        assert add["dataChange"]
        yield add, pq.read_table(pa.BufferReader(data))


def bounds(values: list[Any], of: pa.DataType) -> tuple[Any, Any]:
    """What is said of a column: least and greatest; nothing twice if nothing is said."""
    ((add, _),) = written(pa.table({"v": pa.array(values, of)}))
    stats = json.loads(add["stats"])
    assert stats["numRecords"] == len(values)
    assert stats["nullCount"] == {"v": values.count(None)}
    return stats["minValues"].get("v"), stats["maxValues"].get("v")


def at(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("values", "of", "least", "most"),
    [
        ([3, None, -1], pa.int16(), -1, 3),
        ([2**62, 0], pa.int64(), 0, 2**62),
        ([0.5, None, -2.0], pa.float64(), -2.0, 0.5),
        (["b", "ä", None], pa.string(), "b", "ä"),
        ([dt.date(2024, 2, 29), dt.date(1969, 12, 31)], pa.date32(), "1969-12-31", "2024-02-29"),
        # A reader takes them for milliseconds: the least rounded down, the greatest up.
        (
            [at("2024-01-01T00:00:00.000001+00:00"), at("2024-01-01T00:00:00.000999+00:00")],
            pa.timestamp("us", tz="UTC"),
            "2024-01-01T00:00:00.000Z",
            "2024-01-01T00:00:00.001Z",
        ),
        (
            [at("1969-12-31T23:59:59.999999")],
            pa.timestamp("us"),
            "1969-12-31T23:59:59.999",
            "1970-01-01T00:00:00.000",
        ),
    ],
)
def test_the_bounds_of_a_column(values: list[Any], of: pa.DataType, least: Any, most: Any) -> None:
    assert bounds(values, of) == (least, most)


@pytest.mark.parametrize(
    ("values", "of"),
    [
        ([None, None], pa.int64()),
        ([1.0, float("nan")], pa.float64()),  # the greatest to Spark
        ([1.0, float("inf")], pa.float32()),  # no number of JSON
        (["a", "b" * 33], pa.string()),
        ([b"a"], pa.binary()),
        ([True], pa.bool_()),
        ([Decimal("1.5")], pa.decimal128(9, 2)),
        ([2**62], pa.timestamp("us", tz="UTC")),  # Python has no such date
        ([at("9999-12-31T23:59:59.999999")], pa.timestamp("us")),  # nor one behind it
    ],
)
def test_of_some_nothing_is_said(values: list[Any], of: pa.DataType) -> None:
    """Which a reader takes for anything."""
    assert bounds(values, of) == (None, None)


@pytest.mark.parametrize("nested", [False, True])
def test_parquets_own_bounds_are_not_of_columns_that_may_hold_nan(nested: bool) -> None:
    """Arrow leaves NaN out of them, and Spark looks for what is greater than 1 elsewhere."""
    numbers = pa.array([float("nan"), 0.5, None])
    table = pa.table({"a.b": [1, 2, 3], "d": pa.StructArray.from_arrays([numbers], ["x"])})
    table = table if nested else table.set_column(1, "d", numbers)
    files: dict[str, pa.Buffer] = {}
    metadata = described(table.schema)
    list(write(table.to_batches(), table.schema, metadata, "none", "4.2.0", files.__setitem__))
    (data,) = files.values()
    about = pq.ParquetFile(pa.BufferReader(data)).metadata
    assert about.metadata[b"org.apache.spark.version"] == b"4.2.0"
    whole, number = (about.row_group(0).column(place) for place in range(2))
    assert (whole.statistics.min, whole.statistics.max) == (1, 3)
    assert number.statistics is None or not number.statistics.has_min_max


def test_nested_columns_have_no_statistics() -> None:
    table = pa.table({"n": [1], "seen": pa.array([[1, None]]), "of": pa.array([{"a": 1}])})
    ((add, there),) = written(table)
    assert json.loads(add["stats"])["nullCount"] == {"n": 0}
    assert there.equals(table)


@pytest.mark.parametrize(("indexed", "columns"), [("0", []), ("1", ["n"]), ("-1", ["n", "p"])])
def test_as_many_columns_are_indexed_as_the_table_says(indexed: str, columns: list[str]) -> None:
    table = pa.table({"n": [1, 2], "p": [3, 4]})
    properties = {"delta.dataSkippingNumIndexedCols": indexed}
    ((add, _),) = written(table, described(NUMBERS, **properties))
    assert list(json.loads(add["stats"])["minValues"]) == columns
    assert json.loads(add["stats"])["numRecords"] == 2


def test_each_partition_has_its_own_file() -> None:
    """Also what has no value to be partitioned by."""
    table = pa.table({"n": [1, 2, 3, 4, 5], "p": [7, -1, None, 7, None]})
    found = list(written(table, described(NUMBERS, ["p"])))
    folders = [(add["path"].split("/")[0], add["partitionValues"]["p"]) for add, _ in found]
    contents = [there["n"].to_pylist() for _, there in found]
    assert dict(zip(folders, contents, strict=True)) == {
        ("p=7", "7"): [1, 4],
        ("p=-1", "-1"): [2],
        ("p=__HIVE_DEFAULT_PARTITION__", None): [3, 5],
    }


def test_a_partition_of_two_columns() -> None:
    table = pa.table({"n": [1, 2, 3, 4], "p": [1, None, 1, None], "q": [None, 2, 2, None]})
    found = list(written(table, described(table.schema, ["p", "q"])))
    values = {there["n"].to_pylist()[0]: add["partitionValues"] for add, there in found}
    assert values == {
        1: {"p": "1", "q": None},
        2: {"p": None, "q": "2"},
        3: {"p": "1", "q": "2"},
        4: {"p": None, "q": None},
    }


def test_a9_a_flipped_bit_in_a_value_is_not_read_as_another(tmp_path: Path) -> None:
    """Pages have checksums, and whoever looks at them sees it."""
    table = pa.table({"n": pa.array(range(1000)), "p": pa.array([1] * 1000)}, schema=NUMBERS)
    plain = PlainTable(
        MountedStore(), str(tmp_path), PLAIN, described(NUMBERS), NUMBERS, "none", "4.2.0"
    )
    (action,) = plain.write(table.to_batches())
    path = tmp_path / action["add"]["path"]
    assert pq.ParquetFile(path, page_checksum_verification=True).read() == table
    flip_in_values(path, "n")
    assert pq.ParquetFile(path).read() != table
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        pq.ParquetFile(path, page_checksum_verification=True).read()


def test_no_rows_no_file() -> None:
    assert list(written(NUMBERS.empty_table())) == []


def test_a_file_has_no_more_than_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some more than that: whole batches, in their order."""
    monkeypatch.setattr(data_files, "_FILE_BYTES", 300)
    batches = [pa.record_batch({"n": [place] * 10, "p": [0] * 10}) for place in range(5)]
    found = [there for _, there in written(pa.Table.from_batches(batches))]
    assert [there.num_rows for there in found] == [20, 20, 10]
    assert pa.concat_tables(found)["n"].to_pylist() == [n for n in range(5) for _ in range(10)]


@pytest.mark.parametrize(
    "protocol",
    [
        PLAIN,
        {**PLAIN, "minWriterVersion": 1},
        {**PLAIN, "minWriterVersion": 7, "writerFeatures": ["appendOnly", "invariants"]},
        {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["timestampNtz"]},
    ],
)
def test_a_plain_table(protocol: dict[str, Any]) -> None:
    often = {"delta.checkpointInterval": "100"}
    assert is_plain(NUMBERS, protocol, described(NUMBERS, ["p"], **often))


@pytest.mark.parametrize(
    "protocol",
    [
        {**PLAIN, "minWriterVersion": 3},
        {**PLAIN, "minWriterVersion": 7, "writerFeatures": ["checkConstraints"]},
        {**PLAIN, "minWriterVersion": 7, "writerFeatures": ["appendOnly", "columnMapping"]},
        {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["catalogManaged"]},
        {**PLAIN, "minWriterVersion": 8, "writerFeatures": []},
    ],
)
def test_a_table_with_another_feature_is_left_to_delta(protocol: dict[str, Any]) -> None:
    assert not is_plain(NUMBERS, protocol, described(NUMBERS))


def test_a_table_with_another_property_is_left_to_delta() -> None:
    properties = {"delta.parquet.compression.codec": "zstd"}
    assert not is_plain(NUMBERS, PLAIN, described(NUMBERS, **properties))


@pytest.mark.parametrize(
    "of",
    [
        {"nullable": False},
        {"metadata": {"delta.invariants": "{}"}},
        {
            "type": {
                "type": "array",
                "elementType": {"type": "struct", "fields": [{"nullable": False}]},
            }
        },
    ],
)
def test_a_table_with_a_rule_for_a_column_is_left_to_delta(of: dict[str, Any]) -> None:
    field = {"name": "n", "type": "long", "nullable": True, "metadata": {}, **of}
    text = json.dumps({"type": "struct", "fields": [field]})
    assert not is_plain(NUMBERS, PLAIN, {**described(NUMBERS), "schemaString": text})


@pytest.mark.parametrize(
    "of",
    [
        pa.null(),
        pa.duration("us"),
        pa.timestamp("ns"),
        pa.timestamp("us", tz="Europe/Berlin"),
        pa.large_string(),
        pa.uint8(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.list_(pa.struct([("a", pa.duration("us"))])),
    ],
)
def test_a_type_that_spark_reads_otherwise_is_left_to_delta(of: pa.DataType) -> None:
    schema = pa.schema([("n", of)])
    assert not is_plain(schema, PLAIN, described(schema))


def test_only_partitions_of_longs_are_written() -> None:
    schema = pa.schema([("n", pa.int64()), ("p", pa.string())])
    assert is_plain(schema, PLAIN, described(schema))
    assert not is_plain(schema, PLAIN, described(schema, ["p"]))


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%20b", "50%", "a:b", 'a"b', "a|b", "größe"])
def test_a_partition_whose_name_a_path_would_not_keep_is_left_to_delta(name: str) -> None:
    schema = pa.schema([("n", pa.int64()), (name, pa.int64())])
    assert is_plain(schema, PLAIN, described(schema))
    assert not is_plain(schema, PLAIN, described(schema, [name]))


def test_rows_may_lack_columns_of_the_table_but_no_partition() -> None:
    """A reader finds null in what a file has not; a partition's value must be named."""
    fewer = NUMBERS.remove(NUMBERS.get_field_index("p"))
    assert is_plain(fewer, PLAIN, described(NUMBERS))
    assert not is_plain(fewer, PLAIN, described(NUMBERS, ["p"]))


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    path, store = f"{tmp_path}/table/p=1/file", MountedStore()
    store.add(path, pa.py_buffer(b"first"))
    with pytest.raises(StorageError, match=r"could not write .*p=1/file.*every executor"):
        store.add(path, pa.py_buffer(b"second"))
    assert (tmp_path / "table" / "p=1" / "file").read_bytes() == b"first"
    with pytest.raises(StorageError, match="could not write"):
        store.add(f"{path}/other", pa.py_buffer(b""))


def test_a_dictionary_only_where_values_come_again() -> None:
    """Of a key's column it would take time and room; nested columns have one each."""
    table = pa.table({"k": range(3_000), "op": ["upsert"] * 3_000, "n": [None, 1, 2] * 1_000})
    assert with_dictionary(table) == {"op", "n"}
    nested = table.append_column("l", pa.array([[1]] * 3_000))
    assert with_dictionary(nested) == {"k", "op", "n", "l.list.element"}


def with_dictionary(table: pa.Table) -> set[str]:
    """The columns of its file that have one."""
    files: dict[str, pa.Buffer] = {}
    metadata = described(table.schema)
    list(write(table.to_batches(), table.schema, metadata, "zstd", "4.2.0", files.__setitem__))
    (data,) = files.values()
    group = pq.read_metadata(pa.BufferReader(data)).row_group(0)
    columns = map(group.column, range(group.num_columns))
    return {each.path_in_schema for each in columns if each.has_dictionary_page}


def test_row_groups_that_have_none_of_the_rows_are_left_out() -> None:
    """Those that do not say what they have are read, and so are those with a null."""
    numbers: list[Any] = [0, 0, 1, 2, None, 9, 3, 3, 4]
    rows = pa.table({"other": range(9), "n": pa.array(numbers, pa.int32())})
    for said in (["n"], False):
        file = io.BytesIO()
        pq.write_table(rows, file, row_group_size=2, write_statistics=said)
        for least, most in ((0, 0), (1, 2), (3, 3), (4, 8), (-5, -1), (0, 9)):
            found = batches_of(file.getvalue(), rows.schema, Within("n", least, most))
            read = pa.Table.from_batches(found, rows.schema).to_pylist()
            due = [
                row
                for at in range(0, 9, 2)
                for row in rows.slice(at, 2).to_pylist()
                if not said
                or None in numbers[at : at + 2]
                or (min(numbers[at : at + 2]) <= most and least <= max(numbers[at : at + 2]))
            ]
            assert read == due
        whole = batches_of(file.getvalue(), rows.schema, Within("not there", 0, 0))
        assert pa.Table.from_batches(whole, rows.schema).equals(rows)
