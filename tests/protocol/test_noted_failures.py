"""A4: what of retention fails, over plans and drivers."""

from hypothesis import given
from hypothesis import strategies as st

from absflow.protocol.retention.failures import PLAN, after_plan, document, parse

TAGS = st.sampled_from(["compaction of stage a", "VACUUM of attempts", "VACUUM of checkpoints"])
PLANS = st.lists(st.sets(TAGS | st.just(PLAN)))


@given(PLANS)
def test_a4_a_failure_is_there_until_its_action_is_tried_again_and_does_not_fail(plans):
    """Its count is the length of the row of plans in which it failed, but for plans cut short."""
    failing = {}
    rows = {}
    for now, failed in enumerate(plans):
        failing = after_plan(failing, dict.fromkeys(failed, "no space left\non device"), now)
        rows = {
            what: (start, count)
            for what, (start, count) in rows.items()
            if what in failed or PLAN in failed
        }
        for what in failed:
            start, count = rows.get(what, (now, 0))
            rows[what] = (start, count + 1)
        assert {f.what: (f.since_ms, f.in_a_row) for f in failing.values()} == rows
        assert all(failing[what].at_ms == now for what in failed)
        assert all(failure.error == "no space left" for failure in failing.values())
        assert parse(document(failing)) == failing


def test_a4_a_file_that_does_not_parse_says_nothing():
    """Nobody loses anything by that: what fails is tried again whatever stands there."""
    for text in (None, "", "{", "5", "[5]", '{"a": 1}', '[{"what": "x"}]'):
        assert parse(text) == {}


def test_a4_what_is_noted_does_not_grow():
    """Of an error one line, cut off; of a subject the newest try."""
    failing = {}
    for now in range(100):
        failing = after_plan(failing, {"VACUUM of attempts": "x" * 10_000}, now)
    assert len(document(failing)) < 1000
