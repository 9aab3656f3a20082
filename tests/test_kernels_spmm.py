"""The compiled aggregation operators against plain PyTorch."""

import pytest
import torch
from kernel_cases import (
    DTYPES,
    TOLERANCE,
    WIDTHS,
    instruction_set,
    instruction_sets,
    structure,
    threads,
)

from gnn_dist.ops.csr import CSR
from gnn_dist.ops.native import kernels
from gnn_dist.ops.reference import spmm as reference
from gnn_dist.ops.reference.structure import cut_columns, transpose_csr

pytestmark = pytest.mark.kernels

CASE = structure()


def wide(dtype):
    return torch.promote_types(dtype, torch.float32)


def factor_sets(csr, dtype, heads):
    weight = torch.rand(csr.nnz, dtype=wide(dtype))
    position = torch.randperm(csr.nnz).int()
    src, dst = (torch.rand(n, dtype=wide(dtype)) for n in (csr.num_cols, csr.num_rows))
    sets = [(), (weight,), (weight, position, src, dst), (None, None, src), (None, None, None, dst)]
    return [*sets, (torch.rand(csr.nnz, heads, dtype=wide(dtype)), position)]


@pytest.mark.parametrize("name", instruction_sets())
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_equal_the_reference(name, dtype):
    for width in WIDTHS:
        x = torch.randn(CASE.num_cols, width).to(dtype)
        heads = next(h for h in (5, 4, 3, 2, 1) if width % h == 0)
        for factors in factor_sets(CASE, dtype, heads):
            with instruction_set(name):
                out = kernels.spmm(CASE.indptr, CASE.indices, x, *factors)
            expected = reference.spmm(CASE.indptr, CASE.indices, x, *factors)
            size = reference.spmm(CASE.indptr, CASE.indices, x.abs(), *factors)
            assert out.dtype == dtype
            assert ((out - expected).abs() <= TOLERANCE[dtype] * size + 1e-7).all()


@pytest.mark.parametrize("name", instruction_sets())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("largest", [True, False])
def test_extremes_equal_the_reference_exactly(name, dtype, largest):
    for width in WIDTHS:
        x = (2 * torch.randn(CASE.num_cols, width)).round().to(dtype)  # many are equal
        shape = (CASE.num_rows, width)
        ours = (torch.full(shape, 1.0, dtype=dtype), torch.ones(shape, dtype=torch.int32))
        ours[1][::2] = 0  # nothing yet: the value does not count
        theirs = tuple(t.clone() for t in ours)
        for add in (True, False, True):
            args = (CASE.indptr, CASE.indices, x, largest, add)
            with instruction_set(name):
                kernels.spmm_extreme(*ours, *args)
            reference.spmm_extreme(*theirs, *args)
            assert torch.equal(ours[0], theirs[0])
            assert torch.equal(ours[1], theirs[1])
        second, own = torch.rand(CASE.num_cols, width).to(dtype), ours[0]
        rows = (CASE.indptr, CASE.indices, x, second, own)
        with instruction_set(name):
            out = kernels.spmm_where_equal(*rows)
        expected = reference.spmm_where_equal(*rows)
        assert ((out - expected).abs() <= TOLERANCE[dtype] * expected.abs() + 1e-7).all()


@pytest.mark.parametrize("name", instruction_sets())
@pytest.mark.parametrize("dtype", DTYPES)
def test_shares_equal_the_reference_exactly(name, dtype):
    for width in WIDTHS:
        grad = torch.randn(7, width + 3).to(dtype)[:, :width]  # rows that lie apart
        count = torch.randint(1, 9, (7, width), dtype=torch.int32)
        with instruction_set(name):
            out = kernels.spmm_share(grad, count)
        assert out.dtype == dtype
        assert torch.equal(out, reference.spmm_share(grad, count))


@pytest.mark.parametrize("name", instruction_sets())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("largest", [True, False])
def test_nans_and_infinities_reach_their_columns_alone(name, dtype, largest):
    infinity = float("inf")
    for width in WIDTHS:
        x = torch.randn(CASE.num_cols, width).to(dtype)
        for value in (float("nan"), infinity, -infinity, infinity):
            x[torch.rand(x.shape) < 0.05] = value
        args = (CASE.indptr, CASE.indices, x, largest)
        shape = (CASE.num_rows, width)
        ours = (torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=torch.int32))
        theirs = tuple(t.clone() for t in ours)
        for add in (False, True):
            with instruction_set(name):
                kernels.spmm_extreme(*ours, *args, add)
            reference.spmm_extreme(*theirs, *args, add)
            assert torch.equal(ours[0].isnan(), theirs[0].isnan())
            assert torch.equal(ours[0].nan_to_num(3.0), theirs[0].nan_to_num(3.0))
            number = ~ours[0].isnan()
            assert torch.equal(ours[1][number], theirs[1][number])
            assert (ours[1][~number] > 0).all()


def test_nan_reaches_the_result():
    csr = CSR(torch.tensor([0, 3, 5]), torch.tensor([0, 1, 2, 0, 2], dtype=torch.int32), 3)
    for dtype in DTYPES:
        x = torch.tensor([[1.0], [float("nan")], [3.0]], dtype=dtype)
        for largest, other in ((True, 3.0), (False, 1.0)):
            out, count = torch.empty(2, 1, dtype=dtype), torch.empty(2, 1, dtype=torch.int32)
            kernels.spmm_extreme(out, count, csr.indptr, csr.indices, x, largest, False)
            assert out[0].isnan().all()
            assert out[1].item() == other
        assert kernels.spmm(csr.indptr, csr.indices, x)[0].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_half_precision_number_is_read_and_written_as_it_is(dtype):
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    x = numbers.view(-1, 32)
    indptr, indices = torch.arange(len(x) + 1), torch.arange(len(x), dtype=torch.int32)
    for name in instruction_sets():
        for width in (32, 5):
            with instruction_set(name):
                out = kernels.spmm(indptr, indices, x[:, :width])
            expected = x[:, :width].float().to(dtype)
            assert torch.equal(out.isnan(), expected.isnan())
            assert torch.equal(out.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_as_pytorch_does(dtype):
    weight = torch.cat([torch.logspace(-9, 5, 4000), 1 + torch.arange(96) / 2**12])
    indptr = torch.arange(len(weight) + 1)
    indices = torch.zeros(len(weight), dtype=torch.int32)
    for width in (1, 32):
        x = torch.ones(1, width, dtype=dtype)
        for name in instruction_sets():
            with instruction_set(name):
                out = kernels.spmm(indptr, indices, x, weight)
            assert torch.equal(out, weight.to(dtype)[:, None].expand(-1, width))


def test_results_do_not_depend_on_the_number_of_threads():
    csr = structure(3000, 3000, hub=50_000, seed=1)
    x = torch.randn(csr.num_cols, 70)
    weight, position = torch.rand(csr.nnz), torch.randperm(csr.nnz).int()
    results = []
    for number in (1, 2, 4):
        with threads(number):
            sums = kernels.spmm(csr.indptr, csr.indices, x, weight, position)
            out, count = torch.empty_like(x), torch.empty_like(x, dtype=torch.int32)
            kernels.spmm_extreme(out, count, csr.indptr, csr.indices, x, True, False)
            share = kernels.spmm_share(sums, count.clamp(min=1))
            equal = kernels.spmm_where_equal(csr.indptr, csr.indices, x, share, out)
            turned = kernels.transpose_csr(csr.indptr, csr.indices, csr.num_cols)
            bounds = torch.tensor([0, 3, csr.num_cols])
            cut = kernels.cut_columns(csr.indptr, csr.indices, bounds, True)
        results.append((sums, out, count, share, equal, *turned, *cut))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("hub", [0, 9000])
def test_transpose_equals_sorting(hub):
    csr = structure(hub=hub, seed=2)
    ours = kernels.transpose_csr(csr.indptr, csr.indices, csr.num_cols)
    theirs = transpose_csr(csr.indptr, csr.indices, csr.num_cols)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype
        assert torch.equal(mine, other)


@pytest.mark.parametrize("positions", [True, False])
@pytest.mark.parametrize("inner", [[], [0], [5, 5, 17], [1, 2, 3, 12]])
def test_cut_columns_equals_sorting(inner, positions):
    csr = structure(hub=9000, seed=4)
    bounds = torch.tensor([0, *inner, csr.num_cols])
    ours = kernels.cut_columns(csr.indptr, csr.indices, bounds, positions)
    theirs = cut_columns(csr.indptr, csr.indices, bounds, positions)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype
        assert torch.equal(mine, other)


def tensors(indptr, indices, rows=3):
    return (
        torch.tensor(indptr, dtype=torch.int64),
        torch.tensor(indices, dtype=torch.int32),
        torch.ones(rows, 2),
    )


@pytest.mark.parametrize(
    ("indptr", "indices"),
    [
        ([0, 2], [0, 3]),
        ([0, 2], [0, -1]),
        ([0, 2], [0, 2**31 - 1]),
        ([0, 2, 1], [0]),
        ([0, 3, 2], [0, 1]),
        ([0, -1, 2], [0, 1]),
        ([0, 1], [0, 1]),
        ([1, 2], [0, 1]),
    ],
)
def test_bad_structures_are_index_errors(indptr, indices):
    indptr, indices, x = tensors(indptr, indices)
    out = torch.empty(len(indptr) - 1, 2)
    calls = (
        lambda: kernels.spmm(indptr, indices, x),
        lambda: kernels.spmm_add(out, indptr, indices, x),
        lambda: kernels.spmm_extreme(out, out.int(), indptr, indices, x, True, False),
        lambda: kernels.spmm_where_equal(indptr, indices, x, x, out),
        lambda: kernels.transpose_csr(indptr, indices, 3),
        lambda: kernels.cut_columns(indptr, indices, torch.tensor([0, 3]), False),
    )
    for call in calls:
        with pytest.raises(IndexError):
            call()


def test_a_bad_index_in_a_hub_is_found():
    csr = structure()
    csr.indices[csr.indptr[len(csr.counts) // 3] + 15_000] = csr.num_cols
    with pytest.raises(IndexError):
        kernels.spmm(csr.indptr, csr.indices, torch.ones(csr.num_cols, 2))


def test_wrong_arguments_are_value_errors():
    indptr, indices, x = tensors([0, 2], [0, 1])
    ones = torch.ones
    calls = (
        lambda: kernels.spmm(indptr.int(), indices, x),
        lambda: kernels.spmm(indptr, indices.long(), x),
        lambda: kernels.spmm(indptr[:0], indices, x),
        lambda: kernels.spmm(indptr, indices, x.long()),
        lambda: kernels.spmm(indptr, indices, x.view(-1)),
        lambda: kernels.spmm(indptr, indices, ones(2, 3).t()),
        lambda: kernels.spmm(indptr, indices, x, ones(3)),
        lambda: kernels.spmm(indptr, indices, x, ones(2).double()),
        lambda: kernels.spmm(indptr, indices, x, ones(2, 3)),
        lambda: kernels.spmm(indptr, indices, x, ones(2, 0)),
        lambda: kernels.spmm(indptr, indices, x, None, None, ones(4)),
        lambda: kernels.spmm(indptr, indices, x, None, None, None, ones(2)),
        lambda: kernels.spmm_add(ones(2, 2), indptr, indices, x),
        lambda: kernels.spmm_add(ones(1, 2).double(), indptr, indices, x),
        lambda: kernels.spmm_extreme(ones(1, 2), ones(1, 2), indptr, indices, x, True, False),
        lambda: kernels.spmm_share(x, ones(3, 2)),
        lambda: kernels.spmm_share(x, ones(2, 2).int()),
        lambda: kernels.spmm_share(x.long(), ones(3, 2).int()),
        lambda: kernels.spmm_where_equal(indptr, indices, x, x[:2], ones(1, 2)),
        lambda: kernels.spmm_where_equal(indptr, indices, x, x, ones(2, 2)),
        lambda: kernels.transpose_csr(indptr, indices, -1),
        lambda: kernels.cut_columns(indptr, indices, torch.tensor([0]), False),
        lambda: kernels.cut_columns(indptr, indices, torch.tensor([1, 2]), False),
        lambda: kernels.cut_columns(indptr, indices, torch.tensor([0, 3, 2]), False),
        lambda: kernels.cut_columns(indptr, indices, torch.tensor([0, 2]).int(), False),
        lambda: kernels.set_instruction_set("none"),
    )
    for call in calls:
        with pytest.raises(ValueError, match=r"."):
            call()
    with pytest.raises(IndexError):
        kernels.spmm(indptr, indices, x, ones(1), torch.tensor([0, 1], dtype=torch.int32))


def test_operators_are_registered_for_tracing():
    indptr, indices, x = tensors([0, 2, 3], [0, 1, 2])
    weight = torch.rand(3)
    checks = ("test_schema", "test_faketensor")
    for name, args in {
        "spmm": (indptr, indices, x, weight),
        "spmm_add": (torch.ones(2, 2), indptr, indices, x),
        "spmm_share": (x, torch.ones(3, 2, dtype=torch.int32)),
        "spmm_where_equal": (indptr, indices, x, x, torch.ones(2, 2)),
        "transpose_csr": (indptr, indices, 3),
        "cut_columns": (indptr, indices, torch.tensor([0, 1, 3]), True),
    }.items():
        torch.library.opcheck(getattr(kernels, name).default, args, test_utils=checks)
    count = torch.zeros(2, 2, dtype=torch.int32)
    args = (torch.ones(2, 2), count, indptr, indices, x, True, True)
    torch.library.opcheck(kernels.spmm_extreme.default, args, test_utils=checks)


def test_compiled_programs_hold_the_operator():
    csr = structure(hub=10)
    x = torch.randn(csr.num_cols, 8)

    def program(rows):
        return kernels.spmm(csr.indptr, csr.indices, rows.relu()) + 1.0

    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), program(x))
