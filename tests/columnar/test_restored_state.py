"""State on its way back: any history of sets gives each key group the keys that live at its end."""

from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest
from arrow_cases import KEY_TYPES, VALUE_TYPES, examples, rows_of
from hypothesis import given
from hypothesis import strategies as st
from test_stage_schedules import MemoryFiles

from absflow.columnar.aside import payload_of
from absflow.columnar.keys import key_groups
from absflow.columnar.pages import PAGE_SCHEMA, Page, PageKind, pages_of
from absflow.columnar.restore_packer import StatePacker
from absflow.columnar.restoring import Restoring
from absflow.columnar.state import modified_in, state_schema
from absflow.columnar.timers import TIMER_COLUMNS, timer_fields
from absflow.errors import PageCorruptError, ProcessError, RestoreError

K = pa.schema([("k", pa.string())])
N = pa.schema([("n", pa.int64())])
LINEAGE = (2, 5, 9)


def packer(keys=K, state=N, groups=3, **more):
    fields = {"stage": "s", "checkpoint_id": 9, "lineage": LINEAGE, **more}
    return StatePacker(keys=keys, state=state, key_groups=groups, **fields)


def restored_state(stage, keys, state, group, pages):
    """The table that a key group gets of its pages, and the checkpoint it is of."""
    restoring = Restoring(stage, keys, state, group)
    for page in pages:
        restoring.add(page)
    table = pa.Table.from_batches(restoring.batches(), state_schema(keys, state))
    return table, restoring.epoch


def history(rows, keys=K, state=N):
    """Rows of a state history: (set, op, key columns..., state columns...)."""
    schema = pa.schema([("set_id", pa.int64()), ("op", pa.string()), *keys, *state])
    columns = zip(*rows, strict=True) if rows else [[] for _ in schema]
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema).to_batches()


def packed(by, *partitions):
    """The RESTORE pages of some partitions."""
    pages = []
    for batches in partitions:
        for batch in by.pack(batches):
            assert batch.schema == PAGE_SCHEMA
            pages += pages_of(batch)
    assert {p.kind for p in pages} <= {PageKind.RESTORE}
    return pages


def groups_of(by, pages):
    """What each key group is given."""
    return {
        group: restored_state(
            by.stage, by.keys, by.state, group, [p for p in pages if p.key_group == group]
        )
        for group in range(by.key_groups)
    }


def restored(by, *partitions):
    """All live keys with their state, checked to be where and as they must be."""
    rows = {}
    for group, (table, epoch) in groups_of(by, packed(by, *partitions)).items():
        table.validate(full=True)
        assert table.schema == state_schema(by.keys, by.state)
        width = len(by.keys)
        if table.num_rows:
            at = key_groups([table[name] for name in by.keys.names], by.key_groups)
            assert set(at.tolist()) == {group}
            assert epoch == by.checkpoint_id
        for row in rows_of(table):
            assert row[-2:] == (modified_in(by.checkpoint_id), False)
            assert row[:width] not in rows
            rows[row[:width]] = row[width:-2]
    return rows


# -- any history --------------------------------------------------------------------------------


@st.composite
def histories(draw, kinds):
    """Key schema, sets (op, key, value) that a stage could have written, and what lives in the end.

    A set has a key once; the value is (set, place), so that no two rows are alike.
    """
    pools = [
        draw(st.lists(st.none() | KEY_TYPES[kind][1], min_size=1, max_size=4, unique=True))
        for kind in kinds
    ]
    keys = pa.schema([(f"k{n}", KEY_TYPES[kind][0]) for n, kind in enumerate(kinds)])
    rows, alive = [], {}
    for set_id in LINEAGE:
        some = st.lists(st.tuples(*map(st.sampled_from, pools)), max_size=9, unique=True)
        for place, key in enumerate(draw(some)):
            op = draw(st.sampled_from(["upsert", "upsert", "delete"]))
            value = None if op == "delete" else 100 * set_id + place
            rows.append((set_id, op, *key, value))
            alive.pop(key, None)
            if op == "upsert":
                alive[key] = (value,)
    return keys, rows, alive


@examples(150)
@given(st.data())
def test_every_key_group_has_the_live_keys_of_the_last_set(data):
    """Of any key columns and number of key groups, in any partitions and order of pages."""
    kinds = data.draw(st.lists(st.sampled_from(sorted(KEY_TYPES)), min_size=1, max_size=3))
    keys, rows, alive = data.draw(histories(kinds))
    by = packer(keys, groups=data.draw(st.integers(1, 9)), flush_rows=data.draw(st.integers(1, 8)))
    shuffled = data.draw(st.permutations(rows))
    cut = data.draw(st.integers(0, len(rows)))
    partitions = [history(part, keys) for part in (shuffled[:cut], shuffled[cut:])]
    assert restored(by, *partitions) == alive
    pages = packed(by, *partitions)
    backwards = groups_of(by, pages[::-1])
    for group, (table, epoch) in groups_of(by, pages).items():
        assert (sorted(map(str, rows_of(table))), epoch) == (
            sorted(map(str, rows_of(backwards[group][0]))),
            backwards[group][1],
        )


@pytest.mark.parametrize("kind", VALUE_TYPES)
def test_state_of_every_type_comes_back(kind):
    """A value is what it was, whatever its type; so is null."""
    type_, values = VALUE_TYPES[kind]
    state = pa.schema([("v", type_)])

    @examples(15)
    @given(st.lists(st.none() | values, max_size=6))
    def check(drawn):
        rows = [(2, "upsert", str(n), value) for n, value in enumerate(drawn)]
        expected = pa.array(drawn, type_).to_pylist()
        given = restored(packer(state=state), history(rows, state=state))
        assert given == {(str(n),): (value,) for n, value in enumerate(expected)}

    check()


def test_the_order_is_that_of_the_lineage_not_of_the_numbers():
    """A compacted set may have a higher number than the ones that are laid on it."""
    rows = [(12, "upsert", "a", 1), (7, "upsert", "a", 2), (12, "upsert", "b", 3)]
    assert restored(packer(lineage=(12, 7)), history(rows)) == {("a",): (2,), ("b",): (3,)}
    assert restored(packer(lineage=(7, 12)), history(rows)) == {("a",): (1,), ("b",): (3,)}


def test_a_key_group_without_pages_is_empty():
    """So is one that gets the page without rows which wakes every stage, and a forwarding stage."""
    wakes = Page(0, PageKind.RESTORE, checkpoint_id=9)
    for keys, state in ((K, N), (pa.schema([]), pa.schema([]))):
        for pages in ([], [wakes]):
            table, _ = restored_state("s", keys, state, 0, pages)
            assert (table.num_rows, table.schema) == (0, state_schema(keys, state))
    assert packed(packer(), history([])) == []


# -- another form of state ----------------------------------------------------------------------


def test_a_new_column_has_its_default_in_every_row():
    """None is a default too."""
    state = pa.schema(
        [*N, ("label", pa.string()), ("none", pa.date32()), ("l", pa.list_(pa.int8()))]
    )
    by = packer(state=state, defaults={"label": "new", "none": None, "l": [1]})
    rows = [(2, "upsert", "a", 1), (5, "upsert", "b", 2), (9, "delete", "a", None)]
    assert restored(by, history(rows)) == {("b",): (2, "new", None, [1])}


def test_a_dropped_column_is_gone_and_an_order_is_that_of_now():
    """Columns are found by their names."""
    then = pa.schema([("m", pa.string()), *N, ("old", pa.int8())])
    by = packer(state=pa.schema([*N, ("m", pa.string())]))
    assert restored(by, history([(2, "upsert", "a", "x", 1, 7)], state=then)) == {("a",): (1, "x")}


@pytest.mark.parametrize(
    ("old", "new", "value", "expected"),
    [
        (pa.int8(), pa.int64(), -128, -128),
        (pa.int32(), pa.float64(), 2**31 - 1, float(2**31 - 1)),
        (pa.int16(), pa.float32(), -(2**15), float(-(2**15))),
        (pa.float32(), pa.float64(), 0.5, 0.5),
        (pa.decimal128(4, 2), pa.decimal128(9, 4), Decimal("-12.34"), Decimal("-12.3400")),
    ],
)
def test_a_widened_column_keeps_every_value(old, new, value, expected):
    """What :mod:`absflow.protocol.recovery.attempts` calls wider can be cast."""
    by = packer(state=pa.schema([("n", new)]))
    rows = [(2, "upsert", "a", value), (2, "upsert", "b", None)]
    then = history(rows, state=pa.schema([("n", old)]))
    assert restored(by, then) == {("a",): (expected,), ("b",): (None,)}


# -- migrations ---------------------------------------------------------------------------------

UPPER = pa.schema([("big", pa.large_string())])


def upper(table):
    """Old key and state in: another key column, another type, columns in any order."""
    assert table.column_names == ["k", "n"]
    return pa.table({"text": pa.array(map(str, table["n"].to_pylist())), "big": table["k"]})


def test_a_migration_makes_the_state_of_now():
    """It gets key and state columns only; what it returns is cast and hashed as now."""
    by = packer(UPPER, pa.schema([("text", pa.string())]), migrate=upper, flush_rows=2)
    rows = [(2, "upsert", "a", 1), (5, "upsert", "b", 2), (9, "upsert", "c", 3)]
    assert restored(by, history(rows)) == {("a",): ("1",), ("b",): ("2",), ("c",): ("3",)}


def test_a_migration_may_drop_keys():
    """No row, no key; a part without any makes no page."""
    by = packer(migrate=lambda table: table.slice(0, 0))
    assert packed(by, history([(2, "upsert", "a", 1)])) == []


def returns(value):
    return lambda table: value


@pytest.mark.parametrize(
    ("migrate", "words"),
    [
        (lambda table: table["absent"], ["1 keys", "['k', 'n']", "absent"]),
        (returns(None), ["returned NoneType", "['k', 'n']"]),
        (returns(pa.table({"k": ["a"]})), ["returned ['k']", "['k', 'n']"]),
        (returns(pa.table({"k": ["a"], "n": [1], "x": [2]})), ["returned ['k', 'n', 'x']"]),
        (returns(pa.table([["a"], [1], [2]], ["k", "n", "n"])), ["returned ['k', 'n', 'n']"]),
        (returns(pa.table({"k": ["a"], "n": ["one"]})), ["'n'", "string", "int64"]),
        (returns(pa.table({"k": ["a"], "n": [0.5]})), ["'n'", "double", "int64"]),
    ],
)
def test_a_migration_that_fails_says_so(migrate, words):
    """It raises, or returns what the stage has not declared: stage and what was seen are named."""
    with pytest.raises(ProcessError) as failed:
        packed(packer(migrate=migrate), history([(2, "upsert", "a", 1)]))
    said = ["the migration of stage 's'", "nothing was restored", *words]
    assert [word for word in said if word not in str(failed.value)] == []


@pytest.mark.parametrize("flush_rows", [1, 100])
def test_a_migration_must_not_make_one_key_of_two(flush_rows):
    """Neither in one part of the state nor in two; the key is named."""
    same = packer(
        migrate=lambda t: t.set_column(0, "k", pa.array(["z"] * t.num_rows)), flush_rows=flush_rows
    )
    pages = packed(same, history([(2, "upsert", "a", 1), (2, "upsert", "b", 2)]))
    with pytest.raises(RestoreError) as refused:
        groups_of(same, pages)
    assert all(word in str(refused.value) for word in ("stage 's'", "{'k': 'z'}", "two rows"))


# -- damage -------------------------------------------------------------------------------------


def test_a_damaged_page_is_named():
    """No flipped bit and no lost end passes for state."""
    by = packer(groups=1)
    (page,) = packed(by, history([(2, "upsert", "a", 1), (2, "upsert", "b", 2)]))
    for at in range(len(page.payload)):
        flipped = bytearray(page.payload)
        flipped[at] ^= 1 << at % 8
        if at == 3:  # the spare byte
            continue
        with pytest.raises(PageCorruptError, match="restore page of stage 's', key group 0"):
            restored_state("s", K, N, 0, [replace(page, payload=bytes(flipped))])
    with pytest.raises(PageCorruptError):
        restored_state("s", K, N, 0, [replace(page, payload=page.payload[:-1])])


@pytest.mark.parametrize(("rows", "files_made"), [(10, 0), (1000, 1)])
def test_what_makes_many_pages_is_put_aside(rows, files_made):
    """Then pages carry no rows, but all else; what is small travels in its pages."""
    files = MemoryFiles(0)
    sets = history([(2, "upsert", f"k{n}", n) for n in range(rows)])
    carried = packed(packer(page_bytes=1000), sets)
    placed = packed(packer(page_bytes=1000, files=files), sets)
    assert len(files.files) == files_made
    assert [replace(p, input="", payload=b"") for p in placed] == [
        replace(p, payload=b"") for p in carried
    ]
    assert {bool(p.input) for p in placed} == {bool(files_made)}
    assert [bytes(payload_of(p, files, "page")) for p in placed] == [p.payload for p in carried]


def test_timers_of_a_migrated_key_are_gone_unless_the_migration_hands_them_on():
    """It need not know of absflow's own columns."""
    timed = pa.schema([*N, *timer_fields()])
    timer = [{"time": 7, "name": ""}]
    rows = history([(2, "upsert", "a", 1, timer, None)], state=timed)
    defaults = dict.fromkeys(TIMER_COLUMNS)

    def migrated(migrate):
        by = packer(K, timed, groups=1, migrate=migrate, defaults=defaults)
        table, _ = restored_state("s", K, timed, 0, packed(by, rows))
        return table["_event_timers"].to_pylist()

    assert migrated(lambda table: table.select(["k", "n"])) == [None]
    ((kept,),) = migrated(lambda table: table)
    assert (kept["time"].microsecond, kept["name"]) == (7, "")
