import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnn_dist.ops.csr import CSR
from gnn_dist.ops.sddmm import sddmm
from gnn_dist.ops.softmax import edge_softmax
from gnn_dist.ops.spmm import (
    Factors,
    SparseRows,
    spmm_extreme,
    spmm_share,
    spmm_sum,
    spmm_where_equal,
)


@st.composite
def structures(draw):
    rows, cols = draw(st.integers(0, 6)), draw(st.integers(1, 6))
    counts = draw(st.lists(st.integers(0, 4), min_size=rows, max_size=rows))
    nnz = sum(counts)
    columns = draw(st.lists(st.integers(0, cols - 1), min_size=nnz, max_size=nnz))
    indptr = torch.tensor([0, *counts]).cumsum(0)
    return CSR(indptr, torch.tensor(columns, dtype=torch.int32), cols)


def rows_for(csr, *trailing, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(csr.num_cols, *trailing, dtype=torch.float64, generator=generator)


def loop_sum(csr, x, weight):
    out = torch.zeros(csr.num_rows, *x.shape[1:], dtype=x.dtype)
    for entry, (row, column) in enumerate(
        zip(csr.rows.tolist(), csr.indices.tolist(), strict=True)
    ):
        scale = weight[entry] if weight is not None else torch.tensor(1.0, dtype=x.dtype)
        out[row] += scale.view(-1, *(1,) * (x.dim() - 1 - scale.dim())).squeeze(0) * x[column]
    return out


@given(structures(), st.sampled_from(["none", "edge", "heads"]), st.integers(0, 3))
def test_spmm_sum_equals_a_loop(csr, kind, width):
    x = rows_for(csr, 2, width)
    weight = {
        "none": None,
        "edge": torch.rand(csr.nnz, dtype=torch.float64),
        "heads": torch.rand(csr.nnz, 2, dtype=torch.float64),
    }[kind]
    torch.testing.assert_close(spmm_sum(csr, x, Factors(weight)), loop_sum(csr, x, weight))


@given(structures(), st.integers(0, 3))
def test_factors_multiply_and_out_is_added_into(csr, width):
    x = rows_for(csr, width)
    weight = torch.rand(csr.nnz + 2, dtype=torch.float64)
    position = torch.randperm(csr.nnz + 2)[: csr.nnz]
    src, dst = (torch.rand(n, dtype=torch.float64) for n in (csr.num_cols, csr.num_rows))
    expected = loop_sum(csr, x * src[:, None], weight[position]) * dst[:, None]
    for narrow in (position, position.int()):
        factors = Factors(weight, narrow, src, dst)
        torch.testing.assert_close(spmm_sum(csr, x, factors), expected)
    base = torch.randn(csr.num_rows, 2 * width, dtype=torch.float64)
    out = base.clone()[:, width:]  # rows that lie apart
    assert spmm_sum(csr, x, factors, out=out) is out
    torch.testing.assert_close(out, base[:, width:] + expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_accumulates_in_float32(dtype):
    # 4096 ones: bfloat16 alone would stop counting at 256, float16 at 2048.
    csr = CSR(torch.tensor([0, 4096]), torch.zeros(4096, dtype=torch.int32), 1)
    out = spmm_sum(csr, torch.ones(1, 3, dtype=dtype))
    assert out.dtype == dtype
    assert out.tolist() == [[4096.0] * 3]


@given(structures(), st.sampled_from(["max", "min"]), st.integers(0, 6))
def test_spmm_extreme_equals_a_loop_in_one_part_or_two(csr, reduce, cut):
    x = rows_for(csr, 3).round()  # so that some are equal
    low, high = csr.split_columns(min(cut, csr.num_cols))
    split = spmm_extreme(low.csr, x[: low.csr.num_cols], reduce)
    split = spmm_extreme(high.csr, x[low.csr.num_cols :], reduce, onto=split)
    for out, count in (spmm_extreme(csr, x, reduce), split):
        for row in range(csr.num_rows):
            columns = csr.indices[csr.indptr[row] : csr.indptr[row + 1]].long()
            if len(columns) == 0:
                assert not out[row].any()
                assert not count[row].any()
            else:
                assert torch.equal(out[row], getattr(x[columns], f"a{reduce}")(0))
                assert torch.equal(count[row], (x[columns] == out[row]).sum(0).int())


def test_equal_sources_share_the_gradient():
    csr = CSR(torch.tensor([0, 3]), torch.tensor([0, 1, 2], dtype=torch.int32), 3)
    x = torch.tensor([[2.0], [2.0], [1.0]])
    out, count = spmm_extreme(csr, x, "max")
    assert count.tolist() == [[2]]
    share = spmm_share(torch.tensor([[6.0]]), count)
    grad = spmm_where_equal(csr.transpose.csr, out, share, x)
    assert grad.tolist() == [[3.0], [3.0], [0.0]]


@given(structures())
def test_sddmm(csr):
    rows = torch.randn(csr.num_rows, 2, 3, dtype=torch.float64)
    columns = rows_for(csr, 2, 3)
    by_head = (rows[csr.rows] * columns[csr.indices.long()]).sum(-1)
    torch.testing.assert_close(sddmm(csr, rows, columns, heads=True), by_head)
    torch.testing.assert_close(sddmm(csr, rows, columns, heads=False), by_head.sum(-1))


@given(structures())
def test_edge_softmax_adds_up_to_one(csr):
    scores = 50.0 * torch.randn(csr.nnz, 2, dtype=torch.float64)
    alpha = edge_softmax(csr, scores)
    total = torch.zeros(csr.num_rows, 2, dtype=torch.float64).index_add_(0, csr.rows, alpha)
    expected = (csr.counts > 0).double()[:, None].expand(-1, 2)
    torch.testing.assert_close(total, expected)


def test_edge_softmax_values_and_gradient():
    csr = CSR(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 0], dtype=torch.int32), 2)
    scores = torch.tensor([[0.0], [1.0], [1000.0]], dtype=torch.float64, requires_grad=True)
    expected = [1 / (1 + torch.e), torch.e / (1 + torch.e), 1.0]
    assert edge_softmax(csr, scores).squeeze(1).tolist() == pytest.approx(expected)
    assert torch.autograd.gradcheck(lambda s: edge_softmax(csr, s), scores)


def test_sparse_rows_multiply_and_become_dense():
    csr = CSR(torch.tensor([0, 2, 2, 4]), torch.tensor([0, 2, 1, 1], dtype=torch.int32), 3)
    rows = SparseRows(csr, torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64))
    assert rows.dense.tolist() == [[1, 0, 2], [0, 0, 0], [0, 7, 0]]
    assert rows.shape == (3, 3)
    weight = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(rows.mm(weight), rows.dense @ weight)
    assert torch.autograd.gradcheck(rows.mm, weight)
    assert rows.to(torch.float32).dense.dtype == torch.float32
