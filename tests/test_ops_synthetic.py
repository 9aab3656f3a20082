import numpy as np
import pytest
import torch

from gnn_dist.ops.native import kernels
from gnn_dist.ops.reference import synthetic as reference
from gnn_dist.ops.synthetic import BlockModelEdges, RecursiveMatrixEdges

pytestmark = pytest.mark.kernels

LIMITS = tuple(round(f * 2**32) for f in (0.57, 0.76, 0.95))


def whole(edges, chunk_edges=1 << 20):
    chunks = list(edges.read(chunk_edges))
    return np.concatenate([s for s, _ in chunks]), np.concatenate([d for _, d in chunks])


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(
    ("scale", "count"), [(0, 3), (1, 20), (2, 9), (7, 1), (13, 1001), (30, 77)]
)
def test_rmat_equals_its_reference(instruction_set, scale, count, mirrored):
    call = (scale, *LIMITS, -12345, 5, count, mirrored)
    for own, other in zip(kernels.rmat_edges(*call), reference.rmat_edges(*call), strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(("nodes", "blocks"), [(1, 1), (2, 2), (7, 3), (1000, 16), (2**31 - 1, 64)])
@pytest.mark.parametrize("inside", [0.0, 0.8])
def test_sbm_equals_its_reference(nodes, blocks, inside, mirrored):
    call = (nodes, blocks, round(inside * 2**63), 99, 3, 500, mirrored)
    for own, other in zip(kernels.sbm_edges(*call), reference.sbm_edges(*call), strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize(("nodes", "blocks"), [(1, 1), (7, 3), (1000, 16)])
def test_blocks_equal_their_reference(nodes, blocks):
    made = kernels.sbm_blocks(nodes, blocks, 99)
    assert torch.equal(made, reference.sbm_blocks(nodes, blocks, 99))
    sizes = made.bincount(minlength=blocks)
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("bits", range(11))
def test_the_shuffle_is_a_bijection(bits):
    ids = reference.shuffle_ids(torch.arange(1 << bits), bits, 4)
    assert ids.sort().values.tolist() == list(range(1 << bits))
    assert bits < 5 or (ids != torch.arange(1 << bits)).float().mean() > 0.8


@pytest.mark.parametrize(
    "edges",
    [
        RecursiveMatrixEdges(9, 5000, seed=3),
        RecursiveMatrixEdges(9, 2500, seed=3, mirrored=True),
        BlockModelEdges(300, 7, 5000, 0.75, seed=3),
        BlockModelEdges(300, 7, 2500, 0.75, seed=3, mirrored=True),
    ],
)
def test_any_chunks_and_threads(edges, by_threads):
    results = [whole(edges, size) for size in (1 << 20, 999, 2)] + by_threads(lambda: whole(edges))
    assert len(results[0][0]) == edges.num_edges == 5000
    for other in results[1:]:
        assert np.array_equal(results[0][0], other[0])
        assert np.array_equal(results[0][1], other[1])


def test_mirrored_edges_are_symmetric():
    src, dst = whole(RecursiveMatrixEdges(6, 40, mirrored=True))
    assert np.array_equal(src[::2], dst[1::2])
    assert np.array_equal(src[1::2], dst[::2])


def test_seeds_make_different_graphs():
    same = (
        whole(RecursiveMatrixEdges(12, 1000))[0] == whole(RecursiveMatrixEdges(12, 1000, seed=1))[0]
    )
    assert same.mean() < 0.05


def test_odds_are_those_of_the_quadrants():
    """Ranks of degrees undo the shuffle: with odds of 1 all edges are one and the same."""
    src, dst = whole(RecursiveMatrixEdges(8, 1000, odds=(1.0, 0.0, 0.0)))
    assert len(np.unique(src)) == len(np.unique(dst)) == 1
    src, dst = whole(RecursiveMatrixEdges(1, 100_000, odds=(0.5, 0.3, 0.05)))
    counts = np.sort(np.bincount(2 * src + dst, minlength=4)) / 100_000
    assert np.allclose(counts, [0.05, 0.15, 0.3, 0.5], atol=0.01)


def test_edges_stay_in_their_blocks_as_often_as_asked():
    edges = BlockModelEdges(1000, 8, 100_000, 0.75, seed=2)
    src, dst = whole(edges)
    label = edges.labels
    assert abs((label[src] == label[dst]).mean() - 0.75) < 0.01
    assert np.bincount(src, minlength=1000).min() > 50
    assert np.bincount(dst, minlength=1000).min() > 50


@pytest.mark.parametrize(
    ("operator", "call", "match"),
    [
        ("rmat_edges", (31, *LIMITS, 0, 0, 1, False), "scale"),
        ("rmat_edges", (-1, *LIMITS, 0, 0, 1, False), "scale"),
        ("rmat_edges", (3, 5, 4, 6, 0, 0, 1, False), "limits"),
        ("rmat_edges", (3, *LIMITS, 0, -1, 1, False), "first"),
        ("rmat_edges", (3, *LIMITS, 0, 0, -1, False), "count"),
        ("sbm_edges", (2**31, 1, 0, 0, 0, 1, False), "nodes"),
        ("sbm_edges", (5, 6, 0, 0, 0, 1, False), "blocks"),
        ("sbm_edges", (5, 2, -1, 0, 0, 1, False), "inside"),
        ("sbm_blocks", (0, 1, 0), "nodes"),
    ],
)
def test_bad_arguments_are_refused(operator, call, match):
    with pytest.raises(ValueError, match=match):
        getattr(kernels, operator)(*call)
