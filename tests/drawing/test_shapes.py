"""Where the shapes of pictures are."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from absflow.drawing.shapes import graph, line, side_by_side, strip, ticks

NUMBERS = st.integers(0, 10**12).map(float)


@given(NUMBERS)
def test_a_scale_reaches_over_all_and_has_few_steps(most):
    scale = ticks(most)
    assert scale[0] == 0
    assert scale[-1] >= most
    assert 2 <= len(scale) <= 8
    assert list(scale) == sorted(set(scale))


@given(st.lists(NUMBERS, max_size=300))
def test_bars_stand_side_by_side_within_the_strip(values):
    boxes = strip(values, 1000, 100)
    assert len(boxes) == len(values)
    for left, right in itertools.pairwise(boxes):
        assert left.x < right.x
    for box, value in zip(boxes, values, strict=True):
        assert -1e-9 <= box.y <= 100
        assert box.y + box.height == pytest.approx(100)
        assert box.height >= 3 or value == max(values)
        assert box.height == pytest.approx(100) or value < max(values) or not value


@given(st.lists(NUMBERS, min_size=1, max_size=6))
def test_phases_follow_each_other_to_one_scale(parts):
    named = {str(number): part for number, part in enumerate(parts)}
    boxes = side_by_side(named, sum(parts) * 2, 1000)
    at = 0.0
    for box in boxes:
        assert box.x >= at - 1e-6
        assert box.width > 0
        at = box.x + box.width
    assert at <= 500 + 1e-6


def test_a_line_has_gaps_where_nothing_is_known():
    found = line([0, 5, None, 10], 300, 100)
    assert found.points == ("0.0,100.0 100.0,50.0", "300.0,0.0 300.0,0.0")
    assert [value for value, _ in found.ticks] == [0, 5, 10]
    assert line([], 300, 100).points == ()


@given(st.data())
def test_each_box_of_a_graph_is_right_of_what_it_reads(data):
    """Of any acyclic graph; no two lie over each other."""
    names = [f"s{number}" for number in range(data.draw(st.integers(1, 9)))]
    inputs = {
        name: data.draw(st.lists(st.sampled_from(["a", "b", *names[:place]]), unique=True))
        for place, name in enumerate(names)
    }
    boxes, edges = graph(inputs, (100, 50), (40, 10))
    by_name = {box.name: box for box in boxes}
    assert {*names} <= {*by_name} <= {*names, "a", "b"}
    assert len({(box.x, box.y) for box in boxes}) == len(boxes)
    assert len(edges) == sum(map(len, inputs.values()))
    for edge in edges:
        source, target = by_name[edge.source], by_name[edge.target]
        assert source.x + source.width <= target.x
