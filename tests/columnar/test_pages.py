"""Pages: nothing is lost, doubled or reordered on the way, and no damage goes unseen."""

import itertools

import pyarrow as pa
import pytest
from arrow_cases import VALUE_TYPES, arrays, examples
from hypothesis import given
from hypothesis import strategies as st

from absflow.columnar.pages import (
    PAGE_SCHEMA,
    Page,
    PageKind,
    decode,
    encode,
    page_batch,
    pages_of,
)
from absflow.errors import PageCorruptError


@pytest.mark.parametrize("kind", VALUE_TYPES)
def test_a_page_holds_every_type(kind):
    """Any column comes back as it was, nulls, offsets, chunks and nesting included."""
    type_, values = VALUE_TYPES[kind]

    @examples(25)
    @given(arrays(type_, values))
    def check(drawn):
        plain, array = drawn
        schema = pa.schema([("v", type_)])
        back = decode(encode(pa.table([array], schema=schema)), schema, "page")
        back.validate(full=True)
        assert back.schema == schema
        assert back.column("v").equals(pa.array(plain, type=type_))

    check()


def test_a_page_is_only_as_long_as_its_slice():
    """A slice does not drag the rest of its table along."""
    table = pa.table({"k": [f"key {n}" for n in range(5000)], "l": [[n] for n in range(5000)]})
    small = table.slice(4000, 3)
    assert len(encode(small)) < 1000
    assert decode(encode(small), table.schema, "page").to_pylist() == small.to_pylist()
    (batch,) = small.to_batches()
    assert encode(batch) == encode(small)


def test_a_page_may_be_empty():
    """A table without rows, or even without chunks, is a page."""
    schema = pa.schema([("k", pa.string()), ("v", pa.list_(pa.int64()))])
    for table in (schema.empty_table(), pa.Table.from_batches([], schema=schema)):
        assert decode(encode(table), schema, "page").num_rows == 0


ROWS = pa.table(
    {
        "k": pa.array(["N14228", None, "N24211"]),
        "v": pa.array([1.5, 2.5, None]),
        "l": pa.array([[1], [], None], type=pa.list_(pa.int64())),
        "b": pa.array([True, None, False]),
    }
)


def corrupt(payload):
    with pytest.raises(PageCorruptError) as caught:
        decode(payload, ROWS.schema, "page of stage 'legs'")
    return str(caught.value)


def test_every_flipped_byte_is_seen():
    """Each byte, header and padding included, changed to each of ten other values."""
    payload = encode(ROWS)
    for at, flip in itertools.product(
        range(len(payload)), [*(1 << bit for bit in range(8)), 90, 255]
    ):
        damaged = bytearray(payload)
        damaged[at] ^= flip
        corrupt(bytes(damaged))


def test_every_truncation_is_seen():
    """A payload that ends early, at any byte, or late."""
    payload = encode(ROWS)
    for length in range(len(payload)):
        corrupt(payload[:length])
    corrupt(payload + b"\0")


def test_a_corrupt_page_is_named():
    """The message says which page, what was seen, what was due, and what to do."""
    payload = encode(ROWS)
    for damaged, seen in [
        (payload[:5], "only 5 bytes"),
        (b"AF\x02\x00" + payload[4:], r"header b'AF\x02\x00'"),
        (payload[:-1] + b"\x01", "checksum"),
    ]:
        message = corrupt(damaged)
        assert message.startswith("page of stage 'legs' is corrupt: ")
        assert seen in message
        assert "expected a page of format 1" in message
        assert "restore the job" in message


# -- pages as rows -------------------------------------------------------------------------------

LONGS = st.integers(0, 2**63 - 1)
PAGES = st.builds(
    Page,
    key_group=st.integers(0, 2**31 - 1),
    kind=st.sampled_from(PageKind),
    input=st.text(max_size=5),
    checkpoint_id=LONGS,
    base_id=LONGS,
    completed_id=LONGS,
    triggered_ms=LONGS,
    seq=LONGS,
    rows=LONGS,
    payload=st.binary(max_size=20),
)


@examples(50)
@given(st.lists(PAGES, max_size=5))
def test_pages_are_rows(pages):
    """A list of pages and a batch of PAGE_SCHEMA are the same thing."""
    batch = page_batch(pages)
    assert batch.schema == PAGE_SCHEMA
    assert pages_of(batch) == pages
    assert pages_of(pa.Table.from_batches([batch, batch])) == pages + pages
    assert [page.as_row() for page in pages] == [tuple(row.values()) for row in batch.to_pylist()]
