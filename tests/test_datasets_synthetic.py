import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_dist.datasets import load_dataset
from gnn_dist.datasets.rmat import Rmat
from gnn_dist.datasets.sbm import Sbm
from gnn_dist.errors import DatasetError

SBM_DIGEST = "df028615536a5a26"
RMAT_DIGEST = "a1418311f7341b18"


def structure_digest(graph):
    joined = np.concatenate([graph.indptr, graph.indices.astype(np.int64), graph.y])
    return hashlib.sha256(joined.astype("<i8").tobytes()).hexdigest()[:16]


def is_simple(graph):
    src, dst = graph.edges()
    pairs = src.astype(np.int64) * graph.num_nodes + dst
    return bool((src != dst).all()) and len(np.unique(pairs)) == len(pairs)


def test_grid_by_hand():
    # 0 1 2
    # 3 4 5
    graph = load_dataset("grid:rows=2,cols=3")
    rows = [
        graph.indices[a:b].tolist() for a, b in np.stack([graph.indptr[:-1], graph.indptr[1:]], 1)
    ]
    assert rows == [[1, 3], [0, 2, 4], [1, 5], [0, 4], [1, 3, 5], [2, 4]]
    assert graph.x.tolist() == [[0, 0], [0, 0.5], [0, 1], [1, 0], [1, 0.5], [1, 1]]
    assert graph.x.dtype == np.float32
    assert graph.y.tolist() == [0, 0, 1, 2, 2, 3]


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (1, 5), (5, 1), (4, 4)])
def test_grid_matches_its_listing(rows, cols):
    graph = load_dataset(f"grid:rows={rows},cols={cols}")
    assert graph.num_edges == 2 * (rows * (cols - 1) + cols * (rows - 1))
    assert graph.num_classes == 4
    assert graph.is_symmetric


@settings(max_examples=25, deadline=None)
@given(
    nodes=st.integers(1, 60),
    blocks=st.integers(2, 5),
    degree_in=st.sampled_from([0.0, 1.5, 6.0]),
    degree_out=st.sampled_from([0.0, 2.0]),
    seed=st.integers(0, 3),
)
def test_sbm_is_simple_symmetric_and_balanced(nodes, blocks, degree_in, degree_out, seed):
    blocks = min(blocks, nodes)
    degree_out = degree_out if blocks > 1 else 0.0
    source = Sbm(nodes, blocks, degree_in, degree_out, features=3)
    graph = source.load(None, seed=seed, directed=False)
    assert graph.num_nodes == nodes
    assert graph.x.shape == (nodes, 3)
    assert graph.train_mask is None
    assert np.ptp(np.bincount(graph.y, minlength=blocks)) <= 1
    assert graph.is_symmetric
    assert is_simple(graph)
    src, dst = graph.edges()
    if degree_out == 0:
        assert (graph.y[src] == graph.y[dst]).all()
    if degree_in == 0:
        assert (graph.y[src] != graph.y[dst]).all()


def test_sbm_has_the_degrees_asked_for():
    graph = load_dataset("sbm:nodes=4000,blocks=4,degree_in=6,degree_out=3")
    src, dst = graph.edges()
    inside = graph.y[src] == graph.y[dst]
    assert inside.sum() / 4000 == pytest.approx(6, rel=0.02)
    assert (~inside).sum() / 4000 == pytest.approx(3, rel=0.02)


def test_sbm_features_are_class_means_plus_noise():
    clean = load_dataset("sbm:nodes=40,blocks=4,noise=0,features=5")
    assert len(np.unique(clean.x, axis=0)) == 4
    assert (clean.x[clean.y == 1] == clean.x[clean.y == 1][0]).all()
    noisy = load_dataset("sbm:nodes=40,blocks=4,noise=2,features=5")
    assert np.std(noisy.x - clean.x) == pytest.approx(2, rel=0.2)


def test_seed_fixes_every_number():
    # These digests are the contract: results on synthetic graphs stay comparable over releases.
    assert structure_digest(load_dataset("sbm:nodes=500", seed=1)) == SBM_DIGEST
    assert structure_digest(load_dataset("rmat:scale=8", seed=1)) == RMAT_DIGEST
    first, second = load_dataset("sbm:nodes=500"), load_dataset("sbm:nodes=500", seed=1)
    assert (first.x == load_dataset("sbm:nodes=500").x).all()
    assert structure_digest(first) != structure_digest(second)


@settings(max_examples=15, deadline=None)
@given(scale=st.integers(0, 7), degree=st.sampled_from([0.0, 0.5, 4.0]), symmetric=st.booleans())
def test_rmat_is_simple(scale, degree, symmetric):
    source = Rmat(scale, degree, features=2, classes=3, symmetric=symmetric)
    graph = source.load(None, seed=0, directed=False)
    assert graph.num_nodes == 2**scale
    assert graph.num_classes == 3
    assert is_simple(graph)
    assert graph.is_symmetric or not symmetric


def test_rmat_quadrants():
    # With all weight on one quadrant every edge is a self-loop of node 0 or of the last node.
    for quadrant in ("a=1,b=0,c=0", "a=0,b=0,c=0"):
        assert load_dataset(f"rmat:scale=5,{quadrant}").num_edges == 0
    # With all weight off the diagonal each edge joins a node and its complement: one pair of
    # opposite ends when one quadrant has it all.
    one_pair = load_dataset("rmat:scale=5,a=0,b=1,c=0", directed=True)
    assert one_pair.num_edges == 1
    assert not one_pair.is_symmetric


def test_rmat_b_leads_from_low_to_high():
    # b sends edges from the low half to the high half, c back; shuffled ids keep the direction's
    # degree pattern: with b alone node "0" only sends and the last node only receives.
    graph = load_dataset("rmat:scale=1,degree=50,a=0,b=1,c=0,symmetric=false")
    src, dst = graph.edges()
    back = load_dataset("rmat:scale=1,degree=50,a=0,b=0,c=1,symmetric=false").edges()
    assert (src.tolist(), dst.tolist()) == (back[1].tolist(), back[0].tolist())


def test_rmat_degrees_are_skewed_and_unrelated_to_ids():
    graph = load_dataset("rmat:scale=11")
    degree = graph.in_degree
    assert degree.max() > 10 * degree.mean()
    half = len(degree) // 2
    assert 0.8 < degree[:half].sum() / degree[half:].sum() < 1.25


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sbm:nodes=0", r"'nodes' of sbm must be an integer in 1\.\."),
        ("sbm:nodes=3,blocks=4", "'blocks' of sbm must be at most nodes=3, got 4"),
        ("sbm:blocks=1", "'degree_out' of sbm must be 0 with one block, got 2"),
        ("rmat:scale=31", r"'scale' of rmat must be an integer in 0\.\.30, got 31"),
        ("rmat:a=0.9,b=0.2", "'a', 'b' and 'c' of rmat must add up to at most 1"),
        ("grid:rows=1000000,cols=3000", r"grid must have fewer than 2\^31 nodes"),
    ],
)
def test_bad_options(name, message):
    with pytest.raises(DatasetError, match=message):
        load_dataset(name)


def test_rmat_allows_odds_that_add_up_to_one_but_for_rounding():
    assert 0.33 + 0.56 + 0.11 > 1
    assert load_dataset("rmat:scale=3,a=0.33,b=0.56,c=0.11").num_nodes == 8
