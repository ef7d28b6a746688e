"""Keyed state: a dict of keys that remembers what changed since a checkpoint."""

import numpy as np
import pyarrow as pa
import pytest
from arrow_cases import SLOW_IS_FINE, rows_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from test_stage_schedules import MemoryFiles

from absflow.columnar import stored
from absflow.columnar.state import (
    DELETED,
    MODIFIED,
    KeyedState,
    modified_in,
    snapshot_schema,
    state_schema,
)
from absflow.columnar.stored import KeyGroupState, load, store

COLUMNS = pa.schema(
    [
        pa.field("n", pa.int64()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field(
            "box", pa.list_(pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.bool_())]))
        ),
    ]
)
VALUES = st.tuples(
    st.none() | st.integers(-5, 5),
    st.none() | st.lists(st.none() | st.sampled_from(["a", "b"]), max_size=2),
    st.none()
    | st.lists(st.fixed_dictionaries({"x": st.integers(0, 3), "y": st.booleans()}), max_size=2),
)
NOTHING = (None, None, None)

ONE_KEY = pa.schema([("k", pa.string())])
THREE_KEYS = pa.schema([("k", pa.string()), ("d", pa.int32()), ("b", pa.bool_())])
ONE = st.tuples(st.sampled_from([None, "", "a", "b", "c", "d"]))
THREE = st.tuples(
    st.sampled_from([None, "a", "b"]), st.sampled_from([None, 0, 1]), st.sampled_from([None, True])
)


def table(rows, schema):
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(c, type=f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def changes_of(state, base):
    """In any number of batches, as one table."""
    names = [name for name in state.table.column_names if name != MODIFIED]
    schema = state.table.select(names).schema
    return pa.Table.from_batches(state.changes(base), schema)


class StateMachine(RuleBasedStateMachine):
    """KeyedState beside a dict of (values, epoch, deleted, came).

    A key has come in the epoch in which it had no row before. `snapshots` are what the checkpoints
    hold: the base and the rows of each, and beside them the live keys that must come out when the
    increments are summed up again. Those that do not complete are aborted, and nobody's base.
    """

    keys = ONE_KEY
    key = ONE

    def __init__(self):
        super().__init__()
        self.state = KeyedState.empty(self.keys, COLUMNS)
        self.model = {}
        self.files, self.kept, self.batches = MemoryFiles(0), None, 0
        self.snapshots = {}
        self.live_at = {0: {}}
        self.completed = 0
        self.epoch = 1

    @initialize(data=st.data())
    def some_keys(self, data):
        """Half of the runs begin with keys, or short runs would hardly reach old ones."""
        for key in data.draw(st.lists(self.key, unique=True, max_size=4)):
            self.put([key], [0], [data.draw(VALUES)])

    @property
    def based(self):
        """The keys of the base, which it has until it is merged."""
        return {*self.keys_of(self.state.base)}

    @property
    def live(self):
        return {k: values for k, (values, _, deleted, _) in self.model.items() if not deleted}

    def came(self, key):
        """Whether the key is in no snapshot, not even in one that was aborted."""
        _, epoch, _, came = self.model.get(key, (NOTHING, self.epoch, False, True))
        return came and epoch == self.epoch

    def touch(self, keys):
        unique = table(keys, self.keys)
        touched = self.state.touched(unique)
        assert touched.table.schema == pa.schema([*self.keys, *COLUMNS])
        assert rows_of(touched.table) == [(*k, *self.live.get(k, NOTHING)) for k in keys]
        recent, base = self.keys_of(self.state.table), self.keys_of(self.state.base)
        assert touched.at.tolist() == [recent.index(k) if k in recent else -1 for k in keys]
        assert touched.below.tolist() == [
            base.index(k) if k in base and k not in recent else -1 for k in keys
        ]
        assert touched.new.tolist() == [k not in self.live for k in keys]
        return touched

    def keys_of(self, table):
        return [] if table is None else rows_of(table.select(self.keys.names))

    def by_key(self, table):
        """No key twice."""
        rows = rows_of(table)
        found = {row[: len(self.keys)]: row[len(self.keys) :] for row in rows}
        assert len(found) == len(rows)
        return found

    def put(self, keys, which, values):
        touched = self.touch(keys)
        rows = [(*keys[at], *new) for at, new in zip(which, values, strict=True)]
        self.state = self.state.changed(
            touched,
            table(rows, touched.table.schema),
            np.array(which, dtype=np.int64),
            self.epoch,
        )
        for at, new in zip(which, values, strict=True):
            self.model[keys[at]] = (new, self.epoch, False, self.came(keys[at]))

    @rule(data=st.data())
    def change(self, data):
        """Give some of the touched keys new rows, in any order."""
        keys = data.draw(st.lists(self.key, unique=True, max_size=5))
        which = data.draw(st.lists(st.sampled_from(range(len(keys))), unique=True)) if keys else []
        self.put(keys, which, [data.draw(VALUES) for _ in which])

    @rule(data=st.data())
    def delete(self, data):
        """Delete some of the touched keys, there or not."""
        keys = data.draw(st.lists(self.key, unique=True, max_size=4))
        which = [at for at in range(len(keys)) if data.draw(st.booleans())]
        before, touched = self.state, self.touch(keys)
        self.state = self.state.deleted(touched, np.array(which, dtype=np.int64), self.epoch)
        gone = [keys[at] for at in which if keys[at] in self.live]
        for key in gone:
            if self.came(key):
                del self.model[key]
            else:
                self.model[key] = (NOTHING, self.epoch, True, False)
        assert gone or self.state is before

    @rule(full=st.booleans())
    def snapshot(self, full):
        """Write the changes since a completed checkpoint, and forget what it holds."""
        base = 0 if full else self.completed
        changes = changes_of(self.state, base)
        assert changes.schema == snapshot_schema(self.keys, COLUMNS)
        assert self.by_key(changes) == {
            k: (*values, deleted)
            for k, (values, epoch, deleted, _) in self.model.items()
            if epoch > base and not (deleted and base == 0)
        }
        self.snapshots[self.epoch] = (base, rows_of(changes))
        self.live_at[self.epoch] = self.live
        before = self.state
        self.state = self.state.without_tombstones(self.completed)
        dropped = [
            key
            for key, (_, epoch, gone, _) in self.model.items()
            if gone and epoch <= self.completed and key not in self.based
        ]
        for key in dropped:
            del self.model[key]
        assert dropped or self.state is before
        self.epoch += 1

    @rule()
    def merge(self):
        """Put all live rows into a base; the tombstones stay above it."""
        schema = state_schema(self.keys, COLUMNS)
        self.kept = None
        self.state = self.state.merged(pa.Table.from_batches(self.state.live_batches(), schema))
        assert self.based == set(self.live)
        assert len(self.keys_of(self.state.table)) == len(self.model) - len(self.live)

    @rule()
    def flatten(self):
        """Have one level only."""
        self.state, self.kept = self.state.flat(), None

    @rule()
    def keep_in_files(self):
        """Let it lie in files until the next micro-batch, the base in the one that it had."""
        state, before = self.state, self.kept
        if before is None:
            state, before = state.flat(), KeyGroupState()
        self.batches += 1
        self.kept = store(state, before, self.files, f"0/{self.batches}")
        self.state = load(self.kept, self.keys, COLUMNS, self.files, "state")

    @precondition(lambda self: self.completed)
    @rule()
    def restore(self):
        """Go on from the completed checkpoint; later ones are of another branch."""
        n, live, self.kept = self.completed, self.live_at[self.completed], None
        self.snapshots = {m: kept for m, kept in self.snapshots.items() if m <= n}
        rows = [(*key, *values, modified_in(n), False) for key, values in live.items()]
        self.state = KeyedState(table(rows, state_schema(self.keys, COLUMNS)), len(self.keys))
        self.model = {key: (values, n, False, False) for key, values in live.items()}

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data())
    def complete(self, data):
        """The coordinator completes one of the checkpoints; those before it will never be bases."""
        pending = [n for n in self.snapshots if n > self.completed]
        if pending:
            self.completed = data.draw(st.sampled_from(pending))

    @invariant()
    def holds_what_the_dict_holds(self):
        assert self.state.table.schema == state_schema(self.keys, COLUMNS)
        due = {
            k: (*values, modified_in(epoch, came=came), gone)
            for k, (values, epoch, gone, came) in self.model.items()
        }
        assert self.by_key(self.state.flat().table) == due
        assert self.state.live == len(self.live)

    @invariant()
    def lineages_add_up(self):
        for n in self.snapshots:
            assert self.summed(n) == self.live_at[n]

    @invariant()
    def an_increment_may_be_laid_on_a_later_checkpoint_than_its_base(self):
        """As completion does it: whichever of those before it have completed meanwhile."""
        for n, (base, _) in self.snapshots.items():
            for m in self.snapshots if base else ():
                if base < m < n:
                    assert self.laid_on(self.live_at[m], n) == self.live_at[n]

    def summed(self, n):
        """The state at `n`: the increments along its lineage, the last row of each key counting."""
        return self.laid_on(self.summed(self.snapshots[n][0]), n) if n else {}

    def laid_on(self, state, n):
        """The state after the rows of a snapshot."""
        keys, (_, rows), state = len(self.keys), self.snapshots[n], dict(state)
        for row in rows:
            state.pop(row[:keys], None)
            if not row[-1]:
                state[row[:keys]] = row[keys:-1]
        return state


class ThreeKeysMachine(StateMachine):
    keys = THREE_KEYS
    key = THREE


@pytest.mark.parametrize("parts", [4, 0])
@pytest.mark.parametrize("machine", [StateMachine, ThreeKeysMachine])
def test_state_is_a_dict_with_a_history(machine, parts, monkeypatch):
    """Any changes, deletions and checkpoints: the same as a dict, and increments add up to it.

    With 0 parts no base is ever replaced, so the recent rows come to lie in many segments.
    """
    monkeypatch.setattr(stored, "_PARTS", parts)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=20,
            suppress_health_check=SLOW_IS_FINE,
        ),
    )


# -- the same, one fact at a time ----------------------------------------------------------------


def put(state, epoch, **values):
    touched = state.touched(pa.table({"k": list(values)}, schema=ONE_KEY))
    rows = [(key, n, None, None) for key, n in values.items()]
    return state.changed(touched, table(rows, touched.table.schema), np.arange(len(values)), epoch)


def drop(state, epoch, *keys):
    touched = state.touched(pa.table({"k": list(keys)}, schema=ONE_KEY))
    return state.deleted(touched, np.arange(len(keys)), epoch)


def seen(rows):
    return {row["k"]: None if row[DELETED] else row["n"] for row in rows.to_pylist()}


EMPTY = KeyedState.empty(ONE_KEY, COLUMNS)


def test_an_epoch_lies_behind_its_base():
    """A snapshot holds epochs above its base only; the base itself has the others."""
    state = put(put(EMPTY, 1, a=1, b=2), 2, b=3)
    assert [seen(changes_of(state, base)) for base in (0, 1, 2)] == [{"a": 1, "b": 3}, {"b": 3}, {}]


def test_a_deletion_is_told_until_a_checkpoint_holds_it():
    """A tombstone is in each increment from before it, and goes with a completed checkpoint."""
    state = drop(put(EMPTY, 1, a=1, b=2), 3, "a")
    assert state.live == 1
    assert seen(changes_of(state, 2)) == {"a": None}
    assert state.without_tombstones(2) is state
    assert seen(state.without_tombstones(3).table) == {"b": 2}


def test_a_full_snapshot_needs_no_tombstones():
    """It starts from nothing, so there is nothing to delete."""
    assert seen(changes_of(drop(put(EMPTY, 1, a=1, b=2), 3, "a"), 0)) == {"b": 2}


def test_a_key_comes_back():
    """Deleted and created again, a key is new to its function and changed to its checkpoint."""
    state = drop(put(EMPTY, 1, a=1), 2, "a")
    touched = state.touched(pa.table({"k": ["a"]}))
    assert (touched.at.tolist(), touched.new.tolist()) == ([0], [True])
    assert touched.table["n"].to_pylist() == [None]
    state = put(state, 3, a=7)
    assert seen(changes_of(state, 1)) == {"a": 7}
    assert (state.live, state.table[MODIFIED].to_pylist()) == (1, [modified_in(3)])


@pytest.mark.parametrize("merged", [False, True])
def test_trap_19_a_key_that_comes_and_goes_between_two_snapshots_leaves_nothing(merged):
    """As a window that opens and closes; it does not matter whether its row got into the base."""
    state = put(put(EMPTY, 1, a=1), 2, b=1)
    if merged:
        schema = state_schema(ONE_KEY, COLUMNS)
        state = state.merged(pa.Table.from_batches(state.live_batches(), schema))
    state = drop(put(state, 2, b=2), 2, "b")
    assert (seen(changes_of(state, 1)), seen(changes_of(state, 0))) == ({}, {"a": 1})
    assert seen(state.flat().table) == {"a": 1}
    assert seen(changes_of(drop(put(state, 2, b=3), 2, "b"), 1)) == {}
    assert seen(changes_of(put(state, 3, b=4), 1)) == {"b": 4}


def test_a_key_that_an_aborted_snapshot_has_leaves_a_tombstone():
    """It may complete yet, and the next one be laid on it though its base is older."""
    state = put(put(EMPTY, 1, a=1), 2, b=1)
    assert seen(changes_of(state, 1)) == {"b": 1}
    assert seen(changes_of(drop(state, 3, "b"), 1)) == {"b": None}
    assert seen(changes_of(drop(put(state, 3, b=2), 3, "b"), 1)) == {"b": None}


def test_deleting_what_is_not_there_changes_nothing():
    """Neither a key that never was nor one that is gone leaves a tombstone."""
    assert drop(EMPTY, 1, "a") is EMPTY
    state = drop(put(EMPTY, 1, a=1), 2, "a")
    assert drop(state, 3, "a") is state


def test_no_change_is_no_new_state():
    """So that whoever holds the state can see that nothing is to be written."""
    touched = EMPTY.touched(pa.table({"k": ["a"]}))
    nothing = touched.table.slice(0, 0)
    assert EMPTY.changed(touched, nothing, np.array([], dtype=np.int64), 1) is EMPTY


def test_a_state_is_never_changed_in_place():
    """A state from before a change still is what it was: a failed batch leaves no trace."""
    before = put(EMPTY, 1, a=1, b=2)
    rows = rows_of(before.table)
    drop(put(before, 2, a=5, c=6), 2, "b")
    assert rows_of(before.table) == rows


def test_no_keys_are_touched_by_no_rows():
    """An empty list of keys is fine, on an empty and on a filled state."""
    for state in (EMPTY, put(EMPTY, 1, a=1)):
        touched = state.touched(ONE_KEY.empty_table())
        assert (touched.table.num_rows, len(touched.at), len(touched.new)) == (0, 0, 0)
