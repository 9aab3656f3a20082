import pytest
import torch

from gnn_dist.ops.native import kernels
from gnn_dist.ops.reference import rows as reference
from gnn_dist.ops.rows import gather_rows, gather_rows_into, scatter_add_rows

pytestmark = pytest.mark.kernels

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
# Around every vector width and its halves, in elements of two, four and eight bytes.
WIDTHS = [0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 47, 64, 100, 257]


def floats(*shape, dtype=torch.float32, seed=0):
    """Return numbers of all sizes, among them what is not finite or subnormal."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator) * 10 ** torch.randn(*shape, generator=generator)
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 65519.0, 65520.0, 3e-6])
    flat = x.view(-1)
    flat[::11] = special.repeat(flat[::11].numel() // 8 + 1)[: flat[::11].numel()]
    return x.to(dtype)


def indices(size, num_rows, dtype=torch.int64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, num_rows, (size,), generator=generator).to(dtype)


def same(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("target", FLOATS)
def test_gather_equals_the_reference(instruction_set, dtype, target):
    for width in WIDTHS:
        x = floats(29, width, dtype=dtype)
        for index_dtype in (torch.int64, torch.int32):
            index = indices(71, 29, index_dtype)
            same(kernels.gather_rows(x, index, target), reference.gather_rows(x, index, target))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_gather_copies_any_dtype(instruction_set, dtype):
    for width in (1, 3, 8, 31, 65):
        x = torch.arange(29 * width).view(29, width).to(dtype)
        same(gather_rows(x, indices(71, 29)), x[indices(71, 29)])


def test_large_results_of_whole_cache_lines(instruction_set):
    # Written past the caches: 33 MiB, rows of 128 bytes.
    x, index = torch.arange(40 * 32.0).view(40, 32), indices(270_000, 40)
    out = torch.zeros(270_000, 48)
    assert torch.equal(gather_rows_into(out[:, :32], x, index), x[index])
    assert not out[:, 32:].any()
    with pytest.raises(IndexError):
        gather_rows(x, torch.full_like(index, 40))


def test_gather_keeps_trailing_dimensions():
    index = indices(9, 5)
    for shape in ((5,), (5, 2, 3), (5, 2, 0), (5, 1)):
        x = floats(*shape)
        same(gather_rows(x, index), x[index])


@pytest.mark.parametrize("size", [0, 1, 7])
def test_gather_without_rows_or_index(size):
    assert gather_rows(torch.ones(4, size), torch.empty(0, dtype=torch.int64)).shape == (0, size)
    assert gather_rows(torch.ones(0, size), torch.empty(0, dtype=torch.int32)).shape == (0, size)


def test_gather_from_and_into_rows_that_lie_apart():
    wide, index = floats(20, 50), indices(33, 20)
    for x in (wide[:, 3:40], wide[::2, 3:40], wide.T[:20, :19], wide[:1].expand(20, 50)):
        place = index % x.size(0)
        for dtype in (torch.float32, torch.bfloat16):
            out = torch.full((33, 80), 7.0, dtype=dtype)
            part = out[:, 5 : 5 + x.size(1)]
            assert gather_rows_into(part, x, place) is part
            same(part, x[place].to(dtype))
            out[:, 5 : 5 + x.size(1)] = 7.0
            assert bool((out == 7.0).all())


@pytest.mark.parametrize("bad", [-1, 20, 2**31 - 1, -(2**31), 2**40, -(2**63)])
@pytest.mark.parametrize("place", [0, 40, 99])
def test_indices_out_of_range(bad, place):
    x = torch.ones(20, 6)
    for dtype in (torch.int64, torch.int32):
        if not torch.iinfo(dtype).min <= bad <= torch.iinfo(dtype).max:
            continue
        index = torch.zeros(100, dtype=dtype)
        index[place] = bad
        with pytest.raises(IndexError, match=r"index must lie in \[0, 20\)"):
            gather_rows(x, index)
        with pytest.raises(IndexError, match="index must lie in"):
            gather_rows_into(torch.empty(100, 6, dtype=torch.float16), x, index)
        out = torch.zeros(20, 6)
        with pytest.raises(IndexError, match="index must lie in"):
            scatter_add_rows(out, index, torch.ones(100, 6))
        assert not out.any()


def test_shapes_and_dtypes_that_do_not_fit():
    x, index = torch.ones(4, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="index must be int64 or int32"):
        gather_rows(x, index.float())
    with pytest.raises(ValueError, match="index must be one-dimensional"):
        gather_rows_into(torch.ones(2, 3), x, index[:, None])
    with pytest.raises(ValueError, match=r"out must be of shape \(2, 3\), got \(3, 3\)"):
        gather_rows_into(torch.ones(3, 3), x, index)
    with pytest.raises(ValueError, match="float32, float64, bfloat16 or float16"):
        gather_rows(x, index, torch.int64)
    with pytest.raises(ValueError, match="rows must have the dtype of out"):
        scatter_add_rows(x, index, torch.ones(2, 3).half())
    with pytest.raises(ValueError, match=r"rows must be of shape \(2, 3\)"):
        scatter_add_rows(x, index, torch.ones(2, 4))
    with pytest.raises(ValueError, match="float32, float64, bfloat16 or float16"):
        scatter_add_rows(x.long(), index, torch.ones(2, 3).long())
    with pytest.raises(ValueError, match="out must have contiguous rows"):
        scatter_add_rows(torch.ones(3, 4).T, index, torch.ones(2, 3))


@pytest.mark.parametrize("dtype", FLOATS)
def test_scatter_equals_the_reference(instruction_set, dtype):
    for width in WIDTHS:
        rows = torch.randn(301, width).to(dtype)
        for index_dtype in (torch.int64, torch.int32):
            index = indices(301, 29, index_dtype)
            out = torch.randn(29, width).to(dtype)
            expected = out.clone()
            reference.scatter_add_rows(expected, index, rows)
            assert scatter_add_rows(out, index, rows) is out
            same(out, expected)


def destinations(kind, size, num_rows):
    return {
        "random": indices(size, num_rows),
        "runs": torch.cat([indices(size // 2, num_rows, seed=s).sort().values for s in (1, 2)]),
        "one": torch.full((size,), num_rows - 1),
        "first few": indices(size, 3),
    }[kind]


@pytest.mark.parametrize("kind", ["random", "runs", "one", "first few"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scatter_adds_in_order_for_any_number_of_threads(by_threads, kind, dtype):
    # Large enough for several threads, and numbers whose sum depends on the order.
    index = destinations(kind, 40_000, 1000)
    rows = floats(40_000, 9, dtype=dtype).nan_to_num_(1.0, 1e4, -1e4)
    one, two, four = by_threads(
        lambda: scatter_add_rows(torch.ones(1000, 9).to(dtype), index, rows)
    )
    same(one, two)
    same(one, four)
    expected = torch.ones(1000, 9)
    for k, row in enumerate(index.tolist()[:2000]):
        expected[row] += rows[k].float()
    few = scatter_add_rows(torch.ones(1000, 9).to(dtype), index[:2000], rows[:2000])
    same(few, expected.to(dtype))


def test_half_precision_adds_up_in_float32():
    # 4096 ones: bfloat16 alone would stop counting at 256.
    out = scatter_add_rows(
        torch.zeros(2, 3, dtype=torch.bfloat16),
        torch.zeros(4096, dtype=torch.int64),
        torch.ones(4096, 3, dtype=torch.bfloat16),
    )
    assert out.tolist() == [[4096.0] * 3, [0.0] * 3]


def test_gather_is_bit_equal_for_any_number_of_threads(by_threads):
    x, index = floats(500, 33), indices(50_000, 500)
    one, two, four = by_threads(lambda: gather_rows(x, index, torch.bfloat16))
    same(one, two)
    same(one, four)


def test_gradient_of_a_gather():
    index = torch.tensor([2, 0, 2, 2])
    x = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: gather_rows(x, index), x)
    # Half precision adds gradients up in float32.
    half = torch.zeros(1, 2, dtype=torch.bfloat16, requires_grad=True)
    gather_rows(half, torch.zeros(4096, dtype=torch.int64)).sum().backward()
    assert half.grad.tolist() == [[4096.0] * 2]
    assert half.grad.dtype == torch.bfloat16


def test_operators_as_pytorch_sees_them():
    x, index = torch.randn(5, 3), torch.tensor([4, 0, 4])
    torch.library.opcheck(kernels.gather_rows.default, (x, index, torch.bfloat16))
    torch.library.opcheck(kernels.gather_rows_into.default, (torch.empty(3, 3), x, index))
    torch.library.opcheck(kernels.scatter_add_rows.default, (x, index, torch.randn(3, 3)))
