from itertools import pairwise

import numpy as np
import pytest
import torch
from awkward import AWKWARD, awkward_case

from gnn_dist.ops.localize import HaloMarks, RowBlock
from gnn_dist.ops.native import kernels
from gnn_dist.ops.reference import localize as reference

pytestmark = pytest.mark.kernels


def arguments(name, num_parts, dtype=torch.int32):
    graph, partition = awkward_case(name, num_parts)[1:]
    node_ptr = torch.tensor(partition.book.node_ptr)
    tensors = (graph.indptr, graph.indices, partition.assignment, partition.global_id)
    indptr, indices, part, global_id = map(torch.tensor, tensors)
    return indptr, indices.to(dtype), part, global_id, node_ptr


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize(("num_parts", "first", "size"), [(1, 0, 1), (3, 1, 2), (4, 0, 4)])
def test_operators_equal_their_references(name, num_parts, first, size):
    indptr, indices, part, global_id, node_ptr = arguments(name, num_parts)
    words = (len(global_id) + 63) // 64
    marks = [torch.zeros(size, words, dtype=torch.int64) for _ in range(2)]
    rows = torch.arange(len(part))[(part >= first) & (part < first + size)].flip(0)
    for made, ops in zip(marks, (kernels, reference), strict=True):
        ops.mark_halo(made, indptr, indices, part, global_id, node_ptr, first)
    assert torch.equal(*marks)
    assert torch.equal(kernels.marked_ids(marks[0][0]), reference.marked_ids(marks[0][0]))
    ranks = kernels.rank_marks(marks[0])
    assert torch.equal(ranks, reference.rank_marks(marks[0]))
    call = (indptr, indices, rows, part, global_id, node_ptr, first, marks[0], ranks)
    for own, other in zip(kernels.localize(*call), reference.localize(*call), strict=True):
        assert torch.equal(own, other)
        assert own.dtype == other.dtype


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_any_number_of_threads(by_threads, dtype):
    generator = torch.Generator().manual_seed(0)
    part = torch.randint(0, 3, (9000,), generator=generator, dtype=torch.int32)
    order = torch.argsort(part, stable=True)
    global_id = torch.argsort(order)
    node_ptr = torch.tensor([0, *part.bincount().cumsum(0).tolist()])
    indptr = torch.arange(9001) * 20
    indices = torch.randint(0, 9000, (180_000,), generator=generator).to(dtype)

    def work():
        marks = torch.zeros(3, 141, dtype=torch.int64)
        kernels.mark_halo(marks, indptr, indices, part, global_id, node_ptr, 0)
        ranks = kernels.rank_marks(marks)
        call = (indptr, indices, order, part, global_id, node_ptr, 0, marks, ranks)
        return marks, *kernels.localize(*call)

    for results in zip(*by_threads(work), strict=True):
        assert all(torch.equal(results[0], other) for other in results[1:])


def test_blocks_may_begin_anywhere():
    graph, partition = awkward_case("self-loops", 3)[1:]
    found = []
    for cuts in ([0, 20], [0, 7, 8, 20]):
        marks = HaloMarks(partition.global_id, partition.book.node_ptr, range(3))
        blocks = [
            RowBlock(
                graph.indptr[a : b + 1],
                graph.indices[graph.indptr[a] : graph.indptr[b]],
                partition.assignment[a:b],
            )
            for a, b in pairwise(cuts)
        ]
        for block in blocks:
            marks.mark(block)
        local = [marks.localize(b, np.arange(len(b.part))) for b in blocks]
        found.append((np.concatenate([x for x, _ in local]), sum(cut for _, cut in local)))
    assert np.array_equal(found[0][0], found[1][0])
    assert np.array_equal(found[0][1], found[1][1])


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"indices": np.array([0, 9, 1])}, IndexError, "got 9"),
        ({"indices": np.array([0, -1, 1])}, IndexError, "got -1"),
        ({"indptr": np.array([0, 2, 1, 3])}, IndexError, "fall"),
        ({"indptr": np.array([0, 2, 2, 4])}, IndexError, "fall"),
        ({"part": np.zeros(2, np.int32)}, ValueError, "one element per row"),
        ({"part": np.zeros(3, np.int64)}, ValueError, "part must be Int"),
        ({"global_id": np.array([0, 7, 1])}, IndexError, "global ids"),
        ({"node_ptr": np.array([0, 4, 3])}, IndexError, "fall"),
        ({"node_ptr": np.array([0, 1, 2])}, IndexError, "node_ptr"),
        ({"parts": range(1, 3)}, IndexError, "group's parts"),
    ],
)
def test_damage_is_refused(change, error, match):
    values = {
        "indptr": np.array([0, 2, 2, 3]),
        "indices": np.array([0, 2, 1]),
        "part": np.array([0, 0, 1], np.int32),
        "global_id": np.array([1, 0, 2]),
        "node_ptr": np.array([0, 2, 3]),
        "parts": range(2),
        **change,
    }
    block = RowBlock(values["indptr"], values["indices"], values["part"])
    marks = HaloMarks(values["global_id"], values["node_ptr"], values["parts"])
    with pytest.raises(error, match=match):
        marks.mark(block)


def test_rows_of_other_parts_are_refused():
    block = RowBlock(np.array([0, 1]), np.array([0]), np.array([1], np.int32))
    marks = HaloMarks(np.array([0]), np.array([0, 0, 1]), range(1))
    with pytest.raises(IndexError, match="group's parts"):
        marks.localize(block, np.array([0]))
    with pytest.raises(IndexError, match="rows"):
        marks.localize(block, np.array([1]))
