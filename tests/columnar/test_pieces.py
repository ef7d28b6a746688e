"""Pages are cut by bytes: pieces of tables, and work on tables of many pieces."""

from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from arrow_cases import examples, rows_of
from hypothesis import given
from hypothesis import strategies as st
from stage_cases import KEYS, OUTPUT, ROWS, SNAPSHOT, STATE, Runner, barrier, rows_out, stage, table
from test_stage_schedules import MemoryFiles

from absflow.columnar import keys as keys_module
from absflow.columnar import pages as pages_module
from absflow.columnar import pieces as pieces_module
from absflow.columnar.aside import aside
from absflow.columnar.packing import FLUSH_PAGES, Packer, gathered
from absflow.columnar.pages import Page, PageKind, decode, encode, in_parts, pages_of
from absflow.columnar.piece_files import INLINE, check_pieces, read_pieces, write_pieces
from absflow.columnar.pieces import cut, encode_pieces, pieces, reordered, take
from absflow.columnar.process import Result
from absflow.columnar.restoring import Restoring
from absflow.columnar.state import KeyedState
from absflow.columnar.stored import KeyGroupState, load, store
from absflow.errors import PageCorruptError, PageSizeError

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.string()))])
TEXT = st.none() | st.integers(0, 300).map(lambda n: "x" * n)
TABLES = st.lists(
    st.lists(
        st.tuples(st.none() | st.integers(0, 9), TEXT, st.lists(TEXT, max_size=2)), max_size=8
    ),
    max_size=5,
).map(lambda lists: pa.concat_tables([SCHEMA.empty_table(), *(table(r, SCHEMA) for r in lists)]))


@examples(100)
@given(TABLES, st.integers(1, 2000))
def test_pieces_have_the_rows_in_order_and_no_more_bytes_than_they_may(whole, limit):
    """But for a row that is larger by itself."""
    for made in (
        [part for batch in whole.to_batches() for part in cut(batch, limit)],
        list(pieces(whole.to_batches(), limit)),
    ):
        assert [row for piece in made for row in rows_of(piece)] == rows_of(whole)
        assert all(piece.nbytes <= limit or piece.num_rows <= 1 for piece in made)


@examples(100)
@given(TABLES, st.integers(1, 3000), st.booleans())
def test_no_payload_is_larger_than_a_page_but_of_a_single_row(whole, limit, few):
    """Whatever Arrow adds to the values; and the rows are those that went in."""
    with patch.object(pieces_module, "_FEW", 4096 if few else 0):
        made = list(encode_pieces(whole, limit))
    back = [decode(payload, SCHEMA, "page") for _, payload in made]
    assert [row for rows in back for row in rows_of(rows)] == rows_of(whole)
    assert [rows for rows, _ in made] == [rows.num_rows for rows in back]
    assert all(len(payload) <= limit or rows <= 1 for rows, payload in made)


def test_small_pieces_are_put_together():
    """A thousand rows, each a batch of its own, are a few pieces."""
    batches = pa.table({"n": range(1000)}).to_batches(max_chunksize=1)
    assert [piece.num_rows for piece in pieces(batches, 4000)] == [500, 500]


@examples(100)
@given(st.data(), TABLES)
def test_rows_are_taken_from_chunks_as_from_a_whole_table(data, whole):
    """Any rows in any order, rows of nulls among them; also if the answer may not be one batch."""
    places = np.array(
        data.draw(st.lists(st.integers(-1, whole.num_rows - 1), max_size=20)), dtype=np.int64
    )
    one = whole.combine_chunks()
    due = rows_of(one.take(pa.array(places, mask=places < 0)))
    for limit in (1 << 30, 100):
        with patch.object(pieces_module, "_ONE", limit):
            assert rows_of(take(whole, places)) == due
            assert rows_of(reordered(whole, places)) == due


def test_more_rows_than_one_batch_can_hold_are_taken_in_chunks():
    """Arrow's own take of them fails: "offset overflow while concatenating arrays"."""
    value = pa.array([b"x" * (1 << 20)] * 128, pa.binary())
    whole = pa.table({"v": pa.chunked_array([value] * 17), "n": range(17 * 128)})
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        whole.take(pa.array([0]))
    before = pa.total_allocated_bytes()
    taken = take(whole, np.array([2000, 3, -1]))
    assert taken["n"].to_pylist() == [2000, 3, None]
    assert take(whole, np.array([], dtype=np.int64)).num_rows == 0
    assert pa.total_allocated_bytes() - before < 10 << 20


def test_more_key_bytes_than_one_batch_can_hold_are_looked_up():
    """With 64-bit offsets; the limit of Arrow is lowered here."""
    some = pa.table({"k": pa.chunked_array([["a", "b"], ["c"], ["a"]])})
    with patch.object(keys_module, "_SMALL", 1):
        codes, unique = keys_module.factorize(some)
        found = keys_module.locate(some, unique)
    assert (codes.tolist(), unique["k"].to_pylist()) == ([0, 1, 2, 0], ["a", "b", "c"])
    assert found.tolist() == [0, 1, 2, 0]
    assert unique.schema == some.schema


def test_a_row_that_no_page_can_hold_is_refused_in_words():
    """With its size and its columns; Spark and Arrow end at 2 GB, the test at 1 kB."""
    rows = table([("a", "x" * 2000)], ROWS)
    with patch.object(pages_module, "_LARGEST", 1000):
        with pytest.raises(PageSizeError, match=r"a row has \d+ bytes in columns \['k', 'tag'\]"):
            list(encode_pieces(rows, 100))
        assert len(list(encode_pieces(table([("a", "x")], ROWS), 100))) == 1


def test_state_that_is_in_no_file_is_refused_when_it_is_too_large():
    """A range's state is one value of Spark's."""
    value = b"x" * (1 << 20)
    column = pa.chunked_array([pa.array([value] * 128, pa.binary())] * 17)
    words = r"2176 rows have .*, in files: lower spark\.absflow\.state\.max-inline"
    with pytest.raises(PageSizeError, match=words):
        encode(pa.table({"v": column}))


def test_rows_are_gathered_by_bytes_too():
    """A table is handed on before one more batch would make it too large."""
    batches = pa.table({"s": ["x" * 100] * 100}).to_batches(max_chunksize=1)
    tables = list(gathered(batches, rows=10**6, size=1000))
    assert sum(t.num_rows for t in tables) == 100
    assert len(tables) in range(10, 20)


def test_wide_rows_do_not_wait_for_a_number_of_rows():
    """A packer of pages of 1 kB has no more than some dozens of them in memory."""
    packer = Packer("a", ROWS, ("k",), 2, root=True, page_bytes=1000)
    taken = 0

    def source():
        nonlocal taken
        for number in range(1000):
            taken += 1
            yield table([(str(number), "x" * 300)], ROWS).to_batches()[0]

    first = next(packer.pack(source(), 0))
    assert taken <= FLUSH_PAGES * 1000 // 300
    assert all(len(page.payload) <= 1000 for page in pages_of(first))


def test_pages_are_sent_in_parts():
    """Each of about 32 pages of full size, in order, none lost."""
    made = [Page(n, PageKind.STATE, payload=b"x" * (n % 50)) for n in range(1000)]
    parts = list(in_parts(iter(made), 100))
    assert [page for part in parts for page in part] == made
    assert all(sum(len(p.payload) for p in part[:-1]) < 3200 for part in parts)
    assert len(parts) < 10


def body(rows, state, context):
    """The newest tag of a key is its state."""
    place = state.schema.get_field_index("seen")
    seen = [[tag] for tag in rows["tag"].to_pylist()]
    last = np.empty(state.num_rows, dtype=np.int64)
    last[context.key_of_row] = np.arange(rows.num_rows)
    new = pa.array(seen, STATE.field("seen").type).take(pa.array(last))
    state = state.set_column(place, "seen", new)
    return Result(output=rows.append_column("n", pa.nulls(rows.num_rows, pa.int64())), state=state)


def test_a_key_group_of_thousands_of_pieces_is_one_of_few():
    """Rows, snapshots and state are the same with pages of 1 kB and of 1 MB, batch by batch."""
    spec = stage([True], process=body)
    runners = {
        size: Runner(spec, files=MemoryFiles(100), page_bytes=size) for size in (1000, 1 << 20)
    }
    counts = dict.fromkeys(runners, 0)
    for number, keys in enumerate([range(1500), range(7), range(1400, 1600), range(900)]):
        rows = table([(str(k), f"{number}-{k}".ljust(600, "x")) for k in keys], ROWS)
        emitted = []
        for size, runner in runners.items():
            packer = Packer("a", ROWS, ("k",), 1, root=True, page_bytes=size)
            found = [p for b in packer.pack(rows.to_batches(), 0) for p in pages_of(b)]
            out = runner.run(*found, barrier("a", number + 1, base=number // 2))
            counts[size] += len(found) + len(out)
            assert all(len(page.payload) <= size or page.rows <= 1 for page in [*found, *out])
            changed = [p for p in out if p.kind is PageKind.STATE]
            snapshot = [row for p in changed for row in rows_of(decode(p.payload, SNAPSHOT, ""))]
            emitted.append((rows_out(out, OUTPUT), sorted(snapshot), runner.state))
        assert emitted[0] == emitted[1]
    assert counts[1000] > 4000
    assert counts[1 << 20] < 50


def test_a_file_of_state_is_in_pieces_of_a_size():
    """And is merged piece by piece."""
    files = MemoryFiles(0)
    state = KeyedState.empty(KEYS, STATE)
    kept = KeyGroupState()
    for epoch, keys in enumerate([range(3000), range(2000, 4000)]):
        unique = table([(str(k),) for k in keys], KEYS)
        touched = state.touched(unique)
        rows = table([(str(k), epoch, ["x" * 100]) for k in keys], touched.table.schema)
        state = state.changed(touched, rows, np.arange(len(keys)), epoch + 1)
        kept = store(state, kept, files, f"0-{epoch}", page_bytes=100)
        state = load(kept, KEYS, STATE, files, "state")
    base = read_pieces(files, kept.base, state.table.schema, "state")
    sizes = [batch.nbytes for batch in base.to_batches()]
    assert max(sizes) <= 1600
    assert len(sizes) > 300
    assert sorted(base["k"].to_pylist()) == sorted(str(k) for k in range(4000))
    assert kept.live_keys == 4000


def restore_pages(rows, deleted=(), place=0, page_bytes=500):
    """The RESTORE pages of some (key, n): a set, at a place of the lineage."""
    values = [(k, n, ["x" * 100], k in deleted) for k, n in rows]
    whole = table(values, SNAPSHOT)
    return [
        Page(3, PageKind.RESTORE, checkpoint_id=9, seq=place, rows=count, payload=payload)
        for count, payload in encode_pieces(whole, page_bytes)
    ]


@pytest.mark.parametrize("inline", [0, 10**9, None])
def test_a_key_group_is_restored_piece_by_piece(inline):
    """Thousands of pages in any order, of which no more than a piece is in memory; none is left."""
    files = INLINE if inline is None else MemoryFiles(inline)
    keys = [str(k) for k in range(2000)]
    found = restore_pages([(k, 1) for k in keys])
    found += restore_pages([(k, 2) for k in keys[::3]], deleted={*keys[::9]}, place=1)
    np.random.default_rng(1).shuffle(found)
    assert len(found) > 1000
    restoring = Restoring("legs", KEYS, STATE, 3, files, page_bytes=500)
    for page in found:
        restoring.add(page)
        assert files == INLINE or restoring.in_memory <= 16 * 500 + 500
    kept = restoring.store()
    state = load(kept, KEYS, STATE, files, "state")
    due = {k: 2 if k in keys[::3] else 1 for k in keys if k not in keys[::9]}
    rows = state.flat().table.to_pylist()
    assert {row["k"]: row["n"] for row in rows} == due
    assert (kept.live_keys, len(rows), kept.changed_epoch) == (len(due), len(due), 9)
    assert {row["_modified"] for row in rows} == {18}
    if files != INLINE:
        assert set(files.files) == {kept.base} - {""}


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_pages_put_aside_are_restored_as_those_that_carry_their_rows(share):
    """They carry nothing, their file is one that `absflow verify` reads, and they may be mixed."""
    files, plain = MemoryFiles(0), MemoryFiles(0)
    keys = [str(k) for k in range(2000)]
    found = restore_pages([(k, 1) for k in keys])
    found += restore_pages([(k, 2) for k in keys[::3]], deleted={*keys[::9]}, place=1)
    chance = np.random.default_rng(2)
    taken = chance.random(len(found)) < share
    mixed = [*aside([p for p, t in zip(found, taken, strict=True) if t], files)]
    assert {page.payload for page in mixed} == {b""}
    (name,) = files.files
    check_pieces(files.read(name)[0], name)
    assert files.read(name)[0].size > sum(len(p.payload) for p in found) * share * 0.9
    mixed += [page for page, t in zip(found, taken, strict=True) if not t]
    chance.shuffle(mixed)
    states = []
    for pages, there in ((found, plain), (mixed, files)):
        restoring = Restoring("legs", KEYS, STATE, 3, there, page_bytes=500)
        for page in pages:
            restoring.add(page)
            assert restoring.in_memory <= 16 * 500 + 500
        kept = restoring.store()
        rows = load(kept, KEYS, STATE, there, "state").flat().table.to_pylist()
        states.append(sorted(rows, key=lambda row: row["k"]))
        assert set(there.files) - {name} == {kept.base}
    assert states[0] == states[1]
    assert len(states[0]) == 2000 - len(keys[::9])


@pytest.mark.parametrize("state_of", [5, 4000])
def test_a_small_key_group_is_kept_inline_though_its_pages_were_put_aside(state_of):
    """Where its state lies is a matter of its own size, not of how it came."""
    files = MemoryFiles(10**9)
    pages = [*aside(restore_pages([(str(k), 1) for k in range(state_of)]), files)]
    restoring = Restoring("legs", KEYS, STATE, 3, files, page_bytes=500)
    for page in pages:
        restoring.add(page)
    kept = restoring.store()
    assert bool(kept.base) == (state_of == 4000)
    assert load(kept, KEYS, STATE, files, "state").flat().table.num_rows == state_of


def test_a_file_of_pages_that_was_cut_off_is_corrupt():
    """It is said, as of a page that was changed."""
    files = MemoryFiles(0)
    page = [*aside(restore_pages([(str(k), 1) for k in range(9)]), files)][-1]
    (name,) = files.files
    whole = files.files[name]
    for damaged in (whole[:-1], whole[:-1] + b"?"):
        files.files[name] = damaged
        with pytest.raises(PageCorruptError, match="is corrupt"):
            Restoring("legs", KEYS, STATE, 3, files).add(page)


def test_a_base_may_be_empty():
    """All keys of a key group are deleted, and there is nothing to merge."""
    files = MemoryFiles(0)
    state = KeyedState.empty(KEYS, STATE)
    touched = state.touched(table([("a",)], KEYS))
    row = table([("a", 1, [])], touched.table.schema)
    state = state.changed(touched, row, np.arange(1), 1)
    state = state.deleted(state.touched(table([("a",)], KEYS)), np.arange(1), 2)
    kept = store(state, KeyGroupState(), files, "0-0")
    read = load(kept, KEYS, STATE, files, "state")
    assert (read.base.num_rows, read.live, kept.live_keys) == (0, 0, 0)


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"absflow0" + whole[8:],
        lambda whole: b"",
        lambda whole: whole[:8] + b"AF" + whole[10:],
        lambda whole: whole[:-1],
        lambda whole: whole + b"x",
    ],
)
def test_a_damaged_file_of_state_is_refused(damage):
    """Of another format, empty, with a wrong length, or cut: with its name and what to do."""
    files = MemoryFiles(0)
    batches = table([("a", 1, [])], pa.schema([*KEYS, *STATE])).to_batches()
    name = write_pieces(files, "0-0-base", batches)
    files.files[name] = damage(files.files[name])
    with pytest.raises(PageCorruptError, match=f"state, {name} is corrupt.*restore the job"):
        read_pieces(files, name, batches[0].schema, "state")
