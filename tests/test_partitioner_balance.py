"""Constraints: what they weigh, what a part may hold, how they are written."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnn_dist.errors import PartitionError
from gnn_dist.graph import graph_from_edges
from gnn_dist.partitioners.balance import Balance, hub_notes, make_balance, parse_constraints


@pytest.fixture
def graph():
    # In-degrees 3, 0, 1, 0; nodes 0 and 3 are trained on.
    masks = np.array([[True, False, False, True], [False, True, False, False]])
    return graph_from_edges(
        [1, 2, 3, 0],
        [0, 0, 0, 2],
        num_nodes=4,
        y=np.zeros(4, int),
        train_mask=masks[0],
        val_mask=masks[1],
        test_mask=~masks.any(axis=0),
    )


def test_weights_are_counts(graph):
    balance = make_balance(graph, 2, "nodes,edges,train,val,test")
    assert balance.names == ("nodes", "edges", "train", "val", "test")
    assert balance.weights.tolist() == [
        [1, 3, 1, 0, 0],
        [1, 0, 0, 1, 0],
        [1, 1, 0, 0, 1],
        [1, 0, 1, 0, 0],
    ]
    assert balance.totals.tolist() == [4, 4, 2, 1, 1]


def test_limits_are_the_share_with_the_imbalance_or_one_node_more(graph):
    balance = make_balance(graph, 2, "nodes:0.5,edges:1.5", part_weights=(3.0, 1.0))
    # Shares of nodes 3 and 1; of edges 3 and 1, where the heaviest node has 3.
    assert balance.limits.tolist() == [[4, 7], [2, 4]]
    assert make_balance(graph, 2, "nodes", 0.0).limits.tolist() == [[3], [3]]


def test_loads_and_excess(graph):
    balance = make_balance(graph, 2, "nodes:0,edges:0")
    assignment = np.array([0, 0, 0, 0], np.int32)
    assert balance.loads(assignment).tolist() == [[4, 4], [0, 0]]
    assert not balance.is_met(assignment)
    assert balance.excess(assignment) == pytest.approx(1 / 3)  # 4 nodes where 3 may be
    assert balance.is_met(np.array([0, 1, 1, 0]))
    assert balance.excess(np.array([0, 1, 1, 0])) == 0


def test_masks_and_edges_that_are_not_there_are_left_out():
    bare = graph_from_edges([], [], num_nodes=3)
    assert make_balance(bare, 2, "edges,train,nodes").names == ("nodes",)
    assert make_balance(bare, 2, "edges").names == ("nodes",)  # something must be balanced


def test_the_first_of_several_splits_counts():
    masks = np.array([[True, False], [True, True], [False, True]])
    graph = graph_from_edges(
        [0], [1], num_nodes=3, y=[0, 1, 0], train_mask=masks, val_mask=~masks, test_mask=~masks
    )
    assert make_balance(graph, 2, "train").weights[:, 0].tolist() == [1, 1, 0]


def test_folding_counts_every_constraint_alike():
    weights = np.array([[1, 0], [1, 4], [1, 0], [1, 4]])
    balance = Balance(("nodes", "edges"), weights, np.array([0.5, 0.5]), np.zeros(2))
    assert balance.folded().tolist() == [1000, 3000, 1000, 3000]
    assert balance.take(np.array([1, 2])).folded().tolist() == [3000, 1000]
    one = Balance(("edges",), weights[:, 1:], balance.targets, np.zeros(1))
    assert one.folded().tolist() == [1, 4, 1, 4]  # no node weighs nothing


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("nodes", [("nodes", 0.05)]),
        (" nodes , edges:0.2 ", [("nodes", 0.05), ("edges", 0.2)]),
        ("a/b:c.npy,train:0", [("a/b:c.npy", 0.05), ("train", 0.0)]),
        ("cost.npy:1e-1", [("cost.npy", 0.1)]),
    ],
)
def test_constraints_are_parsed(text, parsed):
    assert parse_constraints(text, 0.05) == parsed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must name each of its constraints once"),
        ("nodes,nodes", "must name each of its constraints once"),
        ("edgse", "got 'edgse': did you mean 'edges'"),
        ("nodes:inf", "the imbalance of nodes must be a number"),
        (3, "balance must be text"),
    ],
)
def test_other_text_is_refused(text, message):
    with pytest.raises(PartitionError, match=message):
        parse_constraints(text, 0.05)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.ones(3, int), "must hold one integer for each of 4 nodes"),
        (np.ones(4), "must hold one integer for each of 4 nodes"),
        (np.array([1, 2, -1, 0]), "weights from 0 whose sum is below"),
        (np.full(4, 2**62), "weights from 0 whose sum is below"),
    ],
)
def test_bad_columns_are_refused(tmp_path, graph, values, message):
    np.save(tmp_path / "w.npy", values)
    with pytest.raises(PartitionError, match=message):
        make_balance(graph, 2, str(tmp_path / "w.npy"))


def test_a_missing_column_is_refused(graph):
    with pytest.raises(PartitionError, match="cannot read the weights to balance from nowhere"):
        make_balance(graph, 2, "nowhere.npy")


@pytest.mark.parametrize("kind", ["empty", "npz", "pickle"])
def test_a_file_that_is_no_array_is_refused(tmp_path, graph, kind):
    path = tmp_path / "w.npy"
    with path.open("wb") as file:
        if kind == "npz":
            np.savez(file, np.ones(4, int))
        elif kind == "pickle":
            np.save(file, np.array([{}] * 4))
    with pytest.raises(PartitionError, match="cannot read the weights to balance from"):
        make_balance(graph, 2, str(path))


def test_shares_must_fit_the_parts(graph):
    with pytest.raises(PartitionError, match="one share for each of 2 parts, got 3"):
        make_balance(graph, 2, "nodes", part_weights=(1.0, 1.0, 1.0))


def test_a_hub_is_noted(graph):
    notes = hub_notes(make_balance(graph, 2, "edges"))
    assert notes[0].startswith("node 0 alone has 3 of the 4 in-edges, more than the share of one")
    assert hub_notes(make_balance(graph, 2, "nodes")) == ()


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.integers(1, 6), st.data())
def test_dealing_heaviest_first_always_fits(column, num_parts, data):
    # The limit of one node above the share can be met whatever the weights: fill parts in turn.
    weights = np.array(column)[:, None]
    shares = np.array(
        data.draw(st.lists(st.integers(1, 9), min_size=num_parts, max_size=num_parts))
    )
    balance = Balance(("w",), weights, shares / shares.sum(), np.zeros(1))
    loads, limits = np.zeros(num_parts, int), balance.limits[:, 0]
    for weight in sorted(column, reverse=True):
        loads[np.argmin(loads / shares)] += weight
    assert (loads <= limits).all()
