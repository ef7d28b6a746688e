"""The restart strategy of a stage's query: exponential, bounded, and forgiving after quiet time."""

import pytest

from absflow.protocol.restarts import RestartPolicy, Restarts, on_failure

POLICY = RestartPolicy(
    attempts=4, initial_ms=100, max_ms=350, multiplier=1.5, reset_after_ms=10_000
)


def delays(*lives_ms, policy=POLICY):
    """The delay after each life of these lengths; None once it is given up."""
    state, now_ms, found = Restarts(), 0, []
    for life_ms in lives_ms:
        state, delay = on_failure(policy, state, now_ms, now_ms + life_ms)
        found.append(delay)
        now_ms += life_ms + (delay or 0)
    return found


def test_delays_grow_up_to_the_greatest():
    """Each death in a row is followed by a longer wait, up to the limit."""
    assert delays(1, 1, 1, 1) == [100, 150, 225, 337]
    assert delays(1, 1, 1, policy=RestartPolicy(9, 100, 120, 2, 10_000)) == [100, 120, 120]


def test_too_many_deaths_in_a_row_are_given_up():
    """After the last attempt there is no delay any more, however often it is asked."""
    assert delays(*[1] * 6) == [100, 150, 225, 337, None, None]


@pytest.mark.parametrize(("life_ms", "third"), [(9_999, 225), (10_000, 100)])
def test_a_long_life_clears_the_slate(life_ms, third):
    """A query that ran for the whole quiet time starts again with the first delay."""
    assert delays(1, 1, life_ms)[2] == third


def test_a_long_life_earns_new_attempts():
    """The bound is on deaths in a row, not on deaths."""
    assert None not in delays(*[1, 10_000] * 20)
