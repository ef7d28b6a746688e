"""Records of checkpoints: lineage, derived status, the list of failures; and the doctests."""

import doctest
import importlib
import pkgutil
from itertools import permutations, product

import pytest

import absflow.protocol
from absflow.protocol.checkpoints import (
    Fact,
    FactKind,
    FailureReason,
    Manifest,
    StageManifest,
    StageReport,
    Status,
    status_of,
)
from absflow.protocol.lineage import extend_lineage

MODULES = [
    m.name
    for m in pkgutil.walk_packages(absflow.protocol.__path__, "absflow.protocol.")
    if not m.ispkg
]


# What reads rows of facts has examples, too.
WITH_EXAMPLES = [*MODULES, "absflow.facts.records", "absflow.facts.stages"]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_in_docstrings_are_true(name):
    """Every example in the docstrings of the protocol and of facts gives what it says."""
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_there_are_examples():
    """The doctest run is not empty, so the test above can fail."""
    tests = [doctest.DocTestFinder().find(importlib.import_module(name)) for name in MODULES]
    assert sum(len(t.examples) for found in tests for t in found) > 3


@pytest.mark.parametrize("name", MODULES)
def test_public_names_exist_once(name):
    """``__all__`` of each module of the protocol names what is there, without repetition."""
    module = importlib.import_module(name)
    assert len(module.__all__) == len(set(module.__all__))
    assert all(hasattr(module, public) for public in module.__all__)


def test_a_trigger_without_a_fact_is_pending():
    """Status is derived: no terminal fact means pending, whatever happened to other ids."""
    facts = [Fact(1, FactKind.COMPLETED), Fact(3, FactKind.ABORTED, FailureReason.EXPIRED)]
    assert [status_of(n, facts) for n in (1, 2, 3)] == [
        Status.COMPLETED,
        Status.PENDING,
        Status.ABORTED,
    ]


def test_the_first_terminal_fact_wins():
    """A checkpoint that completed stays completed when an abort is written after it."""
    completed, aborted = Fact(1, FactKind.COMPLETED), Fact(1, FactKind.ABORTED)
    assert status_of(1, [completed, aborted]) is Status.COMPLETED
    assert status_of(1, [aborted, completed]) is Status.ABORTED


def test_a_deletion_is_the_last_word():
    """Compaction changes no status, a deletion does, in whatever order facts are read."""
    kinds = (FactKind.COMPLETED, FactKind.COMPACTED, FactKind.DELETED)
    for facts in permutations(Fact(1, kind) for kind in kinds):
        assert status_of(1, facts) is Status.DELETED
        assert status_of(1, [f for f in facts if f.kind != kinds[2]]) is Status.COMPLETED


def test_counted_failures_are_those_of_flink():
    """What happened to the checkpoint itself counts; what the job did to it does not."""
    assert {r.code for r in FailureReason if r.counted} == {
        "EXPIRED",  # CHECKPOINT_EXPIRED
        "TRIGGER_FAILED",  # IO_EXCEPTION before the tasks knew
        "SNAPSHOT_FAILED",  # CHECKPOINT_ASYNC_EXCEPTION
        "FINALIZE_FAILED",  # FINALIZE_CHECKPOINT_FAILURE
        "HELD_TOO_MUCH",  # ours: Flink blocks the sender instead of holding rows
    }


def test_each_failure_has_a_code_and_a_sentence():
    """Codes are unique and equal the member's name, for they are written into tables."""
    assert all(r.code == r.name and r.sentence for r in FailureReason)
    assert len({r.sentence for r in FailureReason}) == len(FailureReason)


def test_a_manifest_knows_its_stages():
    """A stage is found by name; one that is not in the checkpoint is None."""
    part = StageManifest(StageReport("a", 3, batch_id=7), (1, 3))
    manifest = Manifest(3, 1, 0, (part,))
    assert manifest.stage("a") is part
    assert manifest.stage("b") is None


def apply(state, changes):
    merged = {**state, **changes}
    return {k: v for k, v in merged.items() if v is not None}


@pytest.mark.parametrize("changed", list(product([False, True], repeat=4)))
@pytest.mark.parametrize("completed", list(product([False, True], repeat=3)))
def test_lineage_adds_up_to_the_state(changed, completed):
    """Whichever of the earlier checkpoints completed, the lineage of the last one is its state.

    Four checkpoints in flight at once: each increment is relative to the newest checkpoint that
    was complete when it was triggered, here 0 or, for 3 and 4, the first one.
    """
    history, lineage, state, epochs = {}, (), {}, {}
    for n in range(1, 5):
        if changed[n - 1]:
            state = {**state, "key": n, f"key {n}": n, f"key {n - 1}": None}
            epochs |= {"key": n, f"key {n}": n, f"key {n - 1}": n}
        base = 1 if n > 2 and completed[0] else 0
        changes = {k: v for k, v in state.items() if epochs[k] > base}
        if changes:
            history[n] = changes
        if n == 4 or completed[n - 1]:
            lineage = extend_lineage(lineage, n, base, len(changes))
            restored = {}
            for set_id in lineage:
                restored = apply(restored, history[set_id])
            assert restored == apply({}, state)
