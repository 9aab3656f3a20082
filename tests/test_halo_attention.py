"""Attention over transformed rows whose memory becomes that of their gradients."""

import pytest
import torch
from kernel_cases import structure, threads

from gnn_dist.errors import ConfigError, GraphError
from gnn_dist.halo.attention import gat_of_linear
from gnn_dist.halo.block import Block
from gnn_dist.ops.attention import AttentionDropout, gat_aggregate
from gnn_dist.ops.draws import DrawKey
from gnn_dist.ops.linear import PANEL_ROWS
from gnn_dist.shard.structure import Structure

pytestmark = pytest.mark.kernels

HEADS, WIDTH = 2, 3
COLUMNS = HEADS * WIDTH


def block_of(num_dst, num_src, hub=0):
    csr = structure(num_dst, num_src, hub=hub)
    return Block(Structure(csr, torch.arange(num_src), torch.ones(num_src)))


def inputs(num_rows, columns, dtype=torch.float64):
    """Return rows, a weight and two vectors of a head."""
    generator = torch.Generator().manual_seed(columns)
    shapes = ((num_rows, columns), (COLUMNS, columns), (HEADS, WIDTH), (HEADS, WIDTH))
    return [torch.randn(*shape, generator=generator, dtype=dtype) for shape in shapes]


def attend(block, x, weight, att_src, att_dst, dropout=None):
    return gat_of_linear(x, block, weight=weight, att_src=att_src, att_dst=att_dst, dropout=dropout)


def in_parts(block, x, weight, att_src, att_dst, dropout=None):
    csr = block.structure.csr.with_self_loops
    return gat_aggregate(csr, x @ weight.t(), att_src, att_dst, dropout=dropout)


def gradients(out, leaves, **options):
    scale = torch.linspace(-1.0, 2.0, out.numel()).view_as(out).to(out.dtype)
    return torch.autograd.grad((out * scale).sum(), leaves, **options)


@pytest.mark.parametrize("columns", [1, 4, COLUMNS, COLUMNS + 3])
@pytest.mark.parametrize("num_dst", [20, 2 * PANEL_ROWS + 5])
def test_gradients_are_those_of_the_parts(columns, num_dst):
    block = block_of(num_dst, num_dst + 7, hub=9000)
    ids = block.structure.src_id
    dropout = AttentionDropout(0.4, DrawKey(1, 2, 3), ids, ids[:num_dst])
    results = []
    for function in (attend, in_parts):
        leaves = [leaf.requires_grad_() for leaf in inputs(num_dst + 7, columns)]
        out = function(block, *leaves, dropout=dropout)
        results.append([out, *gradients(out, leaves)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_gradients_are_those_of_differences():
    block = block_of(5, 7, hub=9)
    leaves = [leaf.requires_grad_() for leaf in inputs(7, 4)]
    assert torch.autograd.gradcheck(lambda *a: attend(block, *a), leaves)


@pytest.mark.parametrize("frozen", range(4))
def test_what_is_frozen_changes_no_other_gradient(frozen):
    block = block_of(12, 15)
    leaves = [leaf.requires_grad_() for leaf in inputs(15, COLUMNS)]
    expected = list(gradients(attend(block, *leaves), leaves))
    del expected[frozen]
    leaves[frozen].requires_grad_(False)
    others = [leaf for leaf in leaves if leaf.requires_grad]
    for one, other in zip(gradients(attend(block, *leaves), others), expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("columns", "is_shared"), [(4, True), (COLUMNS, True), (7, False)])
def test_the_transformed_rows_give_their_memory_to_the_gradient(columns, is_shared):
    block = block_of(12, 15)
    leaves = [leaf.requires_grad_() for leaf in inputs(15, columns)]
    out = attend(block, *leaves)
    rows = out.grad_fn.saved_tensors[4]
    assert rows.shape == (15, COLUMNS)
    grad_x, *_ = gradients(out, leaves)
    assert (grad_x.data_ptr() == rows.data_ptr()) == is_shared


def test_a_graph_that_is_retained_has_the_same_gradients_again():
    block = block_of(12, 15)
    leaves = [leaf.requires_grad_() for leaf in inputs(15, COLUMNS)]
    out = attend(block, *leaves)
    first = gradients(out, leaves, retain_graph=True)
    copies = [grad.clone() for grad in first]
    second = gradients(out, leaves, retain_graph=True)
    third = gradients(out, leaves)
    for one, copy, two, three in zip(first, copies, second, third, strict=True):
        assert torch.equal(one, copy)
        assert torch.equal(one, two)
        assert torch.equal(one, three)


def test_inputs_may_not_change_before_the_backward():
    block = block_of(12, 15)
    x, *leaves = (leaf.requires_grad_() for leaf in inputs(15, 4))
    out = attend(block, x, *leaves)
    with torch.no_grad():
        x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(out, leaves)


def test_results_are_bit_equal_for_any_number_of_threads():
    block = block_of(3000, 3100, hub=30_000)
    results = []
    for number in (1, 2, 4):
        with threads(number):
            leaves = [leaf.requires_grad_() for leaf in inputs(3100, 4, torch.float32)]
            out = attend(block, *leaves)
            results.append([out, *gradients(out, leaves)])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_under_autocast_rows_are_short_and_gradients_are_not():
    block = block_of(12, 15)
    leaves = [leaf.requires_grad_() for leaf in inputs(15, COLUMNS, torch.float32)]
    with torch.autocast("cpu", torch.bfloat16):
        out = attend(block, *leaves)
    assert out.dtype == torch.bfloat16
    exact = gradients(in_parts(block, *leaves), leaves)
    for one, other in zip(gradients(out, leaves), exact, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).abs().max() < 0.05 * other.abs().max()


def test_rows_that_do_not_fit_are_refused():
    block = block_of(12, 15)
    x, *rest = inputs(14, 4)
    with pytest.raises(GraphError, match="x must have 15 rows for this block, got 14"):
        attend(block, x, *rest)
    with pytest.raises(ConfigError, match="rows must be floating-point numbers"):
        attend(block, torch.ones(15, 4, dtype=torch.int64), *rest)
