import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gnn_dist.partitioners.balance import Balance
from gnn_dist.partitioners.repair import deal_out, deal_to_lightest, fill_empty_parts


def test_dealing_fills_up_the_lightest_parts():
    parts = deal_to_lightest(np.array([5, 0, 9, 2]), np.ones(9, int), np.ones(4))
    # The level is 16 / 3: part 0 lacks a third of a node, part 2 is above it.
    assert parts.tolist() == [1, 1, 1, 1, 1, 1, 3, 3, 3]


def test_dealing_to_level_ground():
    parts = deal_to_lightest(np.zeros(4, int), np.ones(10, int), np.ones(4))
    assert np.bincount(parts).tolist() == [2, 3, 2, 3]


def test_dealing_by_shares():
    # Part 0 has 6 of a share of three, part 1 none of a share of one: the level is 15 / 4.
    parts = deal_to_lightest(np.array([6, 0]), np.ones(9, int), np.array([3.0, 1.0]))
    assert np.bincount(parts).tolist() == [5, 4]


def test_isolated_nodes_level_the_rarest_constraint_first():
    weights = np.stack([np.ones(12, int), np.arange(12) % 3 == 0], axis=1).astype(np.int64)
    balance = Balance(("nodes", "train"), weights, np.array([0.5, 0.5]), np.array([0.0, 0.0]))
    assignment = np.full(12, -1, np.int32)
    assignment[:3] = 0  # one of the four training nodes, and two others
    deal_out(assignment, balance)
    assert balance.loads(assignment).tolist() == [[6, 2], [6, 2]]


def test_nodes_that_weigh_nothing_are_dealt_in_turn():
    balance = Balance(("edges",), np.zeros((4, 1), int), np.array([0.5, 0.5]), np.zeros(1))
    assignment = np.full(4, -1, np.int32)
    deal_out(assignment, balance)
    assert assignment.tolist() == [0, 1, 0, 1]


def test_dealing_nothing():
    assert deal_to_lightest(np.array([3, 1]), np.zeros(0, int), np.ones(2)).tolist() == []


@given(
    st.lists(st.integers(0, 100), min_size=1, max_size=8),
    st.lists(st.integers(1, 20), min_size=1, max_size=50),
)
def test_every_part_ends_within_a_node_of_the_level(ground, weights):
    ground, weights = np.array(ground), np.array(weights)
    parts = deal_to_lightest(ground, weights, np.ones(len(ground)))
    after = ground + np.bincount(parts, weights, minlength=len(ground))
    low, high = 0.0, float(ground.max() + weights.sum())
    for _ in range(60):  # bisection for the level that takes exactly the weight there is
        level = (low + high) / 2
        takes_all = np.maximum(level - ground, 0).sum() >= weights.sum()
        low, high = (low, level) if takes_all else (level, high)
    expected = np.maximum(ground, level)
    assert np.abs(after - expected).max() <= weights.max() + 1e-6


def test_a_million_nodes_are_dealt_evenly():
    parts = deal_to_lightest(np.array([10, 0, 0]), np.ones(1_000_000, int), np.ones(3))
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


def test_what_weighs_in_the_rarest_constraint_is_dealt_first():
    train = np.arange(6) < 2
    weights = np.stack([np.ones(6, np.int64), train], axis=1)
    balance = Balance(("nodes", "train"), weights, np.array([0.5, 0.5]), np.zeros(2))
    assignment = np.full(6, -1, np.int32)
    deal_out(assignment, balance)
    assert np.bincount(assignment).tolist() == [3, 3]
    assert np.bincount(assignment[train]).tolist() == [1, 1]
