"""Softmax over entries, and inner products of their ends, against plain PyTorch."""

import pytest
import torch
from kernel_cases import DTYPES, instruction_set, instruction_sets, structure, threads

from gnn_dist.ops.csr import CSR
from gnn_dist.ops.native import kernels
from gnn_dist.ops.reference import edge_softmax as reference
from gnn_dist.ops.softmax import edge_softmax

pytestmark = pytest.mark.kernels

CASE = structure(hub=20_000)
HEADS = (1, 2, 3, 4, 5, 8, 16, 17, 70)
TOLERANCE = {
    torch.float32: 2e-6,
    torch.float64: 1e-14,
    torch.bfloat16: 1e-2,
    torch.float16: 2e-3,
}


@pytest.mark.parametrize("name", instruction_sets())
@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_equals_the_reference(name, dtype):
    for heads in HEADS:
        scores = (3 * torch.randn(CASE.nnz, heads)).to(dtype)
        grad = torch.randn(CASE.nnz, heads).to(dtype)
        with instruction_set(name):
            alpha = kernels.edge_softmax(CASE.indptr, scores)
            change = kernels.edge_softmax_grad(CASE.indptr, alpha, grad)
        # A hub's sums in float32 would make the reference the less exact one.
        exact = reference.edge_softmax(CASE.indptr, scores.double())
        expected = reference.edge_softmax_grad(CASE.indptr, alpha.double(), grad.double())
        assert alpha.dtype == change.dtype == dtype
        # The smallest float16 above zero is 6e-8.
        assert ((alpha - exact).abs() <= TOLERANCE[dtype] * exact + 1e-7).all()
        assert ((change - expected).abs() <= 5 * TOLERANCE[dtype] * alpha + 1e-7).all()


@pytest.mark.parametrize("name", instruction_sets())
def test_the_exponential_function_is_exact_enough(name):
    # Two entries a row, one of them at zero: the other's softmax is exp(x) / (1 + exp(x)).
    for dtype, lowest, bound in ((torch.float32, -85.0, 4e-7), (torch.float64, -700.0, 1e-15)):
        x = torch.linspace(lowest, 0.0, 20_001, dtype=dtype)
        scores = torch.stack([x, torch.zeros_like(x)], 1).view(-1, 1)
        with instruction_set(name):
            alpha = kernels.edge_softmax(torch.arange(len(x) + 1) * 2, scores)[::2, 0]
        exact = x.double().exp() / (1.0 + x.double().exp())
        error = (alpha.double() - exact).abs() / exact
        assert error.max() < (bound if dtype == torch.float32 else 2 * bound)


@pytest.mark.parametrize("name", instruction_sets())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("heads", [1, 3, 8])
def test_what_is_not_finite(name, dtype, heads):
    inf, nan = float("inf"), float("nan")
    rows = [[-inf, 1.0], [-inf, -inf], [inf, 0.0], [nan, 0.0], [], [-2e4, 2e4], [-95.0, 0.0]]
    counts = torch.tensor([len(row) for row in rows])
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    scores = (
        torch.tensor([x for row in rows for x in row], dtype=dtype)[:, None]
        .expand(-1, heads)
        .contiguous()
    )
    with instruction_set(name):
        alpha = kernels.edge_softmax(indptr, scores)
    expected = reference.edge_softmax(indptr, scores)
    torch.testing.assert_close(alpha, expected, equal_nan=True, rtol=1e-6, atol=1e-44)
    assert alpha[0, 0] == 0.0
    assert alpha[:, 0].isnan().tolist() == [False] * 2 + [True] * 6 + [False] * 4
    # The same behind a chunk, and in pieces.
    for many in (3000, 20_000):
        long = torch.full((many, heads), -inf, dtype=dtype)
        long[-1] = 3.0
        with instruction_set(name):
            alpha = kernels.edge_softmax(torch.tensor([0, many]), long)
        assert alpha.sum(0).tolist() == [1.0] * heads
        assert (alpha[-1] == 1.0).all()


def test_softmax_is_bit_equal_for_any_number_of_threads():
    scores, grad = torch.randn(2, CASE.nnz, 6)
    results = []
    for number in (1, 2, 4):
        with threads(number):
            alpha = kernels.edge_softmax(CASE.indptr, scores)
            results.append((alpha, kernels.edge_softmax_grad(CASE.indptr, alpha, grad)))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_softmax_is_differentiable():
    csr = structure(8, 5, hub=9)
    scores = torch.randn(csr.nnz, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: edge_softmax(csr, s), scores)
    # From an expression whose gradient is not contiguous.
    assert torch.autograd.gradcheck(lambda s: edge_softmax(csr, s.t().contiguous().t()), scores)


def test_softmax_of_nothing():
    csr = CSR(torch.zeros(4, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), 3)
    assert edge_softmax(csr, torch.zeros(0, 2)).shape == (0, 2)
    assert edge_softmax(structure(), torch.zeros(structure().nnz, 0)).shape[1] == 0


def test_softmax_refuses_what_does_not_fit():
    scores = torch.zeros(CASE.nnz, 2)
    with pytest.raises(IndexError, match="indptr must run from 0 to"):
        kernels.edge_softmax(CASE.indptr, scores[1:].contiguous())
    with pytest.raises(IndexError, match="must not fall"):
        kernels.edge_softmax(CASE.indptr.index_fill(0, torch.tensor([5]), CASE.nnz), scores)
    with pytest.raises(ValueError, match="must be contiguous"):
        kernels.edge_softmax(CASE.indptr, scores.t().contiguous().t())
    with pytest.raises(ValueError, match="scores must be float32"):
        kernels.edge_softmax(CASE.indptr, scores.int())
    with pytest.raises(ValueError, match="grad must be"):
        kernels.edge_softmax_grad(CASE.indptr, scores, scores.double())


def test_softmax_operators_trace():
    csr = structure(6, 8, hub=12)
    scores = torch.randn(csr.nnz, 2)
    utilities = ("test_schema", "test_faketensor")
    torch.library.opcheck(kernels.edge_softmax.default, (csr.indptr, scores), test_utils=utilities)
    torch.library.opcheck(
        kernels.edge_softmax_grad.default, (csr.indptr, scores, scores), test_utils=utilities
    )
