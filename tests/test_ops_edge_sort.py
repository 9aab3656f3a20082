import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_dist.graph import graph_from_edges
from gnn_dist.ops.edge_sort import EdgePacking, tensor_of
from gnn_dist.ops.native import kernels
from gnn_dist.ops.reference import edge_sort as reference

pytestmark = pytest.mark.kernels


def random_edges(num_nodes, num_edges, seed=0, dtype=np.int64):
    rng = np.random.default_rng(seed)
    return rng.integers(0, num_nodes, (2, num_edges)).astype(dtype)


def spill(packing, *chunks):
    """Return the file and the table that chunks of edges make."""
    parts = [packing.pack(*chunk) for chunk in chunks]
    start, table = 0, []
    for part in parts:
        table.append(part.bucket_ptr + start)
        start += len(part.packed)
    return np.concatenate([part.packed for part in parts]), np.stack(table)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("num_nodes", "shift"), [(1, 0), (9, 0), (100, 3), (1000, 9), (1000, 12)])
def test_packing_equals_its_reference(num_nodes, shift, dtype):
    src, dst = torch.randint(0, num_nodes, (2, 700)).to(dtype)
    for own, other in zip(
        kernels.pack_edges(src, dst, num_nodes, shift),
        reference.pack_edges(src, dst, num_nodes, shift),
        strict=True,
    ):
        assert torch.equal(own, other)


@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize(("num_nodes", "shift"), [(1, 0), (3, 0), (50, 3), (50, 6), (3000, 8)])
def test_sorting_equals_its_reference(num_nodes, shift, unique):
    packing = EdgePacking(num_nodes, shift)
    packed, table = spill(packing, random_edges(num_nodes, 900), random_edges(num_nodes, 500, 1))
    for first, last in [(0, num_nodes), (0, 0), (num_nodes // 3, num_nodes // 2 + 1)]:
        args = torch.tensor(packed), torch.tensor(table), num_nodes, shift, first, last
        for own, other in zip(
            kernels.sort_packed(*args, unique), reference.sort_packed(*args, unique), strict=True
        ):
            assert own.dtype == other.dtype
            assert torch.equal(own, other)
        assert torch.equal(kernels.count_packed(*args), reference.count_packed(*args))


def test_a_graph_comes_out():
    edges = random_edges(300, 5000)
    edges[1, :2000] = 7  # a hub, sorted digit by digit
    graph = graph_from_edges(*edges, num_nodes=300)
    packing = EdgePacking(300, 4)
    indptr, indices = packing.sort(*spill(packing, edges[:, :3000], edges[:, 3000:]), range(300))
    assert np.array_equal(indptr, graph.indptr)
    assert np.array_equal(indices, graph.indices)
    assert indices.dtype == graph.indices.dtype


def test_ids_beyond_int32():
    first = 2**31 + 3
    packing = EdgePacking(2**31 + 100, 22)
    src, dst = np.array([2**31 + 90, 5, 2**31 + 89]), np.array([first, first + 1, first])
    packed, table = spill(packing, (src, dst))
    indptr, indices = packing.sort(packed, table, range(first, first + 2))
    assert indptr.tolist() == [0, 2, 3]
    assert indices.tolist() == [2**31 + 89, 2**31 + 90, 5]
    assert indices.dtype == np.int64
    # The largest that there may be.
    top = EdgePacking(2**36, 28)
    packed, table = spill(top, (np.array([2**36 - 1]), np.array([2**36 - 1])))
    assert top.sort(packed, table, range(2**36 - 1, 2**36))[1].tolist() == [2**36 - 1]


def test_any_number_of_threads(by_threads):
    src, dst = map(torch.tensor, random_edges(5000, 700_000))
    for results in zip(*by_threads(lambda: kernels.pack_edges(src, dst, 5000, 5)), strict=True):
        assert all(torch.equal(results[0], other) for other in results[1:])
    packed, ptr, _ = kernels.pack_edges(src, dst, 5000, 5)
    call = (packed, ptr[None], 5000, 5, 0, 5000, False)
    for results in zip(*by_threads(lambda: kernels.sort_packed(*call)), strict=True):
        assert all(torch.equal(results[0], other) for other in results[1:])


@settings(deadline=None, max_examples=50)
@given(
    st.integers(1, 40).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=60),
        )
    ),
    st.integers(0, 6),
    st.booleans(),
)
def test_skew_tells_symmetry(case, shift, mirror):
    num_nodes, pairs = case
    if mirror:
        pairs = pairs + [(v, u) for u, v in pairs]
    src, dst = np.array(pairs, np.int64).reshape(-1, 2).T
    edges = EdgePacking(num_nodes, shift).pack(src, dst)
    graph = graph_from_edges(src, dst, num_nodes=num_nodes)
    assert (edges.skew == 0) == graph.is_symmetric
    assert edges.num_self_loops == int((src == dst).sum())


def test_skews_add_up():
    src, dst = random_edges(50, 300)
    packing = EdgePacking(50, 2)
    there, back = packing.pack(src, dst), packing.pack(dst, src)
    assert there.skew != 0
    assert (there.skew + back.skew) % 2**128 == 0


@pytest.mark.parametrize(("u", "v"), [(-1, 0), (0, 4), (4, 0), (0, -1)])
def test_ends_that_are_no_nodes_are_refused(u, v):
    with pytest.raises(IndexError, match=rf"{u} -> {v}"):
        EdgePacking(4, 1).pack(np.array([u]), np.array([v]))


def test_damage_is_refused():
    packing = EdgePacking(8, 1)
    packed, table = spill(packing, random_edges(8, 20))
    with pytest.raises(IndexError, match="extents"):
        packing.sort(packed[:10], table, range(8))
    with pytest.raises(IndexError, match="extents"):
        packing.sort(packed, table - 1, range(8))
    with pytest.raises(IndexError, match="rows"):
        packing.sort(packed, table, range(9))
    with pytest.raises(ValueError, match="columns"):
        packing.sort(packed, table[:, 1:].copy(), range(8))
    with pytest.raises(ValueError, match="shift"):
        EdgePacking(2**36, 29).pack(packed, packed)
    with pytest.raises(ValueError, match=r"2\^36"):
        EdgePacking(2**37, 0).pack(packed, packed)
    with pytest.raises(ValueError, match="equal length"):
        packing.pack(packed, packed[1:])
    ten = EdgePacking(10, 4)
    with pytest.raises(IndexError, match="ends"):
        ten.sort(np.array([15 << 4]), np.array([[0, 1]]), range(10))


def test_a_read_only_array_is_not_copied(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(5))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert tensor_of(mapped).data_ptr() == mapped.ctypes.data
