"""Inner products of both ends of entries against plain PyTorch."""

import pytest
import torch
from kernel_cases import DTYPES, WIDTHS, instruction_set, instruction_sets, structure, threads

from gnn_dist.ops.native import kernels
from gnn_dist.ops.reference import sddmm as reference
from gnn_dist.ops.sddmm import sddmm

pytestmark = pytest.mark.kernels

CASE = structure(hub=9000)
TOLERANCE = {
    torch.float32: 1e-5,
    torch.float64: 1e-13,
    # Stored short, computed with in float32.
    torch.bfloat16: 1e-5,
    torch.float16: 1e-5,
}


def ends(csr, columns, dtype):
    rows = (csr.num_rows, csr.num_cols)
    return [torch.randn(number, columns, dtype=torch.float64).to(dtype) for number in rows]


@pytest.mark.parametrize("name", instruction_sets())
@pytest.mark.parametrize("dtype", DTYPES)
def test_sddmm_equals_the_reference(name, dtype):
    for number, width in enumerate(WIDTHS):
        heads = (1, 2, 3, 5, 8, 20)[number % 6]
        rows, columns = ends(CASE, heads * width, dtype)
        with instruction_set(name):
            out = kernels.sddmm(CASE.indptr, CASE.indices, rows, columns, heads)
        expected = reference.sddmm(CASE.indptr, CASE.indices, rows, columns, heads)
        size = reference.sddmm(CASE.indptr, CASE.indices, rows.abs(), columns.abs(), heads)
        assert out.dtype == expected.dtype
        assert ((out - expected).abs() <= TOLERANCE[dtype] * size).all()


def test_the_face_takes_any_shape():
    csr = structure(8, 5, hub=9)
    rows, columns = torch.randn(8, 3, 4, 2)[..., 0], torch.randn(5, 3, 4, 2)[..., 0]
    product = rows[csr.rows] * columns[csr.indices.long()]
    torch.testing.assert_close(sddmm(csr, rows, columns, heads=True), product.sum(-1))
    torch.testing.assert_close(sddmm(csr, rows, columns, heads=False), product.sum((1, 2)))
    flat = sddmm(csr, rows[:, 0], columns[:, 0], heads=True)
    torch.testing.assert_close(flat, product[:, 0])
    assert sddmm(csr, rows[:, 0, 0], columns[:, 0, 0], heads=False).shape == (csr.nnz,)


def test_sddmm_is_bit_equal_for_any_number_of_threads():
    rows, columns = ends(CASE, 24, torch.float32)
    results = []
    for number in (1, 2, 4):
        with threads(number):
            results.append(kernels.sddmm(CASE.indptr, CASE.indices, rows, columns, 3))
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_sddmm_refuses_what_does_not_fit():
    rows, columns = ends(CASE, 6, torch.float32)
    bad = CASE.indices.clone()
    bad[-1] = CASE.num_cols
    with pytest.raises(IndexError, match="indices must lie in"):
        kernels.sddmm(CASE.indptr, bad, rows, columns)
    with pytest.raises(ValueError, match="rows must be of shape"):
        kernels.sddmm(CASE.indptr, CASE.indices, rows[1:], columns)
    with pytest.raises(ValueError, match="rows must be Float, got Double"):
        kernels.sddmm(CASE.indptr, CASE.indices, rows.double(), columns)
    with pytest.raises(ValueError, match="the heads must divide"):
        kernels.sddmm(CASE.indptr, CASE.indices, rows, columns, 4)


def test_sddmm_traces():
    csr = structure(6, 8, hub=12)
    torch.library.opcheck(
        kernels.sddmm.default,
        (csr.indptr, csr.indices, *ends(csr, 6, torch.float32), 3),
        test_utils=("test_schema", "test_faketensor"),
    )
