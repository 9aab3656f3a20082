import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gnn_dist.partitioners.repair import deal_to_lightest, fill_empty_parts


def test_dealing_fills_up_the_lightest_parts():
    parts = deal_to_lightest(np.array([5, 0, 9, 2]), np.ones(9, int))
    # The level is 16 / 3: part 0 lacks a third of a node, part 2 is above it.
    assert parts.tolist() == [1, 1, 1, 1, 1, 1, 3, 3, 3]


def test_dealing_to_level_ground():
    assert np.bincount(deal_to_lightest(np.zeros(4, int), np.ones(10, int))).tolist() == [
        2,
        3,
        2,
        3,
    ]


def test_dealing_nothing():
    assert deal_to_lightest(np.array([3, 1]), np.zeros(0, int)).tolist() == []


@given(
    st.lists(st.integers(0, 100), min_size=1, max_size=8),
    st.lists(st.integers(1, 20), min_size=1, max_size=50),
)
def test_every_part_ends_within_a_node_of_the_level(ground, weights):
    ground, weights = np.array(ground), np.array(weights)
    parts = deal_to_lightest(ground, weights)
    after = ground + np.bincount(parts, weights, minlength=len(ground))
    low, high = 0.0, float(ground.max() + weights.sum())
    for _ in range(60):  # bisection for the level that takes exactly the weight there is
        level = (low + high) / 2
        takes_all = np.maximum(level - ground, 0).sum() >= weights.sum()
        low, high = (low, level) if takes_all else (level, high)
    expected = np.maximum(ground, level)
    assert np.abs(after - expected).max() <= weights.max() + 1e-6


def test_a_million_nodes_are_dealt_evenly():
    parts = deal_to_lightest(np.array([10, 0, 0]), np.ones(1_000_000, int))
    after = np.bincount(parts) + np.array([10, 0, 0])
    assert np.abs(after - 1_000_010 / 3).max() <= 1


def test_filling_takes_the_cheapest_nodes_of_the_largest_part():
    # Part 0 has nodes 0..5, part 1 has 6 and 7; parts 2 and 3 are empty. The mean is two nodes.
    assignment = np.array([0, 0, 0, 0, 0, 0, 1, 1], np.int32)
    cost = np.array([5, 0, 4, 1, 3, 2, 0, 0])
    mended, moved = fill_empty_parts(assignment, 4, cost)
    assert mended.tolist() == [0, 2, 0, 2, 3, 3, 1, 1]
    assert moved == 4
    assert assignment.tolist() == [0, 0, 0, 0, 0, 0, 1, 1]


def test_filling_takes_half_at_most():
    mended, moved = fill_empty_parts(np.array([0, 0, 0, 2, 2, 2, 3, 3]), 4, np.arange(8))
    assert mended.tolist() == [1, 0, 0, 2, 2, 2, 3, 3]
    assert moved == 1


def test_filling_leaves_full_assignments_alone():
    mended, moved = fill_empty_parts(np.array([1, 0, 1]), 2, np.zeros(3))
    assert mended.tolist() == [1, 0, 1]
    assert moved == 0


@given(st.integers(1, 12), st.data())
def test_filled_parts_are_never_empty(num_parts, data):
    count = data.draw(st.integers(num_parts, 40))
    parts = st.integers(0, data.draw(st.integers(0, num_parts - 1)))
    assignment = np.array(data.draw(st.lists(parts, min_size=count, max_size=count)), np.int32)
    mended, moved = fill_empty_parts(assignment, num_parts, np.arange(count) % 3)
    assert np.bincount(mended, minlength=num_parts).min() > 0
    assert np.count_nonzero(mended != assignment) == moved
    largest = np.bincount(assignment).max()
    assert np.bincount(mended).max() <= largest
