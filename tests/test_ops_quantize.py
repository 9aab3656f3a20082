import pytest
import torch

from gnn_dist.ops.draws import DrawKey
from gnn_dist.ops.native import kernels
from gnn_dist.ops.quantize import (
    dequantize_rows,
    dequantize_rows_add,
    packed_width,
    quantize_rows,
)
from gnn_dist.ops.reference import quantize as reference

pytestmark = pytest.mark.kernels

KEY = DrawKey(seed=1, step=2, site=3)
BITS = [1, 2, 4, 8]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
WIDTHS = [0, 1, 2, 3, 7, 8, 9, 16, 31, 33, 100, 511, 512, 513, 1030]


def rows(num_rows, width, *, dtype=torch.float32, seed=0):
    """Return rows of which some are constant, tiny, huge or not finite."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, width, generator=generator, dtype=torch.float64)
    if width and num_rows > 8:
        x[0] = 2.5
        x[1] = 0.0
        x[2, -1], x[3, 0], x[4, width // 2] = torch.nan, torch.inf, -torch.inf
        x[5] *= 1e-45  # the step underflows
        x[6] *= 3e-39
        x[7] = torch.linspace(-3e38, 3e38, width)  # the range overflows
    return x.to(dtype)


def same(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_both_ways_equal_the_reference(instruction_set, bits, dtype):
    ids = torch.randint(-(2**63), 2**63 - 1, (19,))
    for width in WIDTHS:
        x = rows(19, width, dtype=dtype)
        packed, params = kernels.quantize_rows(x, ids, KEY.value, bits)
        expected = reference.quantize_rows(x, ids, KEY.value, bits)
        same(packed, expected[0])
        same(params, expected[1])
        assert packed.shape == (19, packed_width(width, bits))
        args = (packed, params, width, bits)
        same(kernels.dequantize_rows(*args, dtype), reference.dequantize_rows(*args, dtype))
        out = torch.randn(19, width).to(dtype)
        expected = out.clone()
        reference.dequantize_rows_add(expected, packed, params, bits)
        assert dequantize_rows_add(out, packed, params, bits=bits) is out
        same(out, expected)


@pytest.mark.parametrize("bits", BITS)
def test_levels_lie_side_by_side_the_first_in_the_lowest_bits(bits):
    most = 2**bits - 1
    levels = torch.tensor([[0, most, most, 0, most, 0, 0, 0, most, most]])
    # The extremes of a row are its first and last level: nothing is left to chance.
    packed, params = quantize_rows(levels.float(), torch.tensor([5]), KEY, bits)
    number = sum(int(v) << (bits * i) for i, v in enumerate(levels[0]))
    assert packed[0].tolist() == list(number.to_bytes(packed_width(10, bits), "little"))
    assert params.tolist() == [[0.0, 1.0]]
    same(dequantize_rows(packed, params, num_cols=10, bits=bits), levels.float())


@pytest.mark.parametrize("bits", BITS)
def test_right_on_average_and_never_a_step_away(bits):
    num_draws = 20_000
    row = torch.linspace(-1, 2, 13)
    x = row.expand(num_draws, 13)
    packed, params = quantize_rows(x, torch.arange(num_draws), KEY, bits)
    again = dequantize_rows(packed, params, num_cols=13, bits=bits, dtype=torch.float64)
    step = 3.0 / (2**bits - 1)
    assert (again - x).abs().max() < step * 1.0001
    # The mean of a column has the standard deviation sqrt(t (1 - t)) * step / sqrt(num_draws).
    deviation = (again.mean(0) - row.double()).abs()
    assert deviation.max() < 5 * 0.5 * step / num_draws**0.5
    assert again[:, 0].unique().tolist() == [-1.0]
    assert again[:, -1].unique().tolist() == pytest.approx([2.0])


def test_draws_follow_the_id_not_the_position():
    x, ids = torch.randn(6, 50), torch.tensor([9, 4, 9, 7, 1, 0])
    x[2] = x[0]
    packed, _ = quantize_rows(x, ids, KEY, 2)
    same(packed[0], packed[2])
    order = torch.tensor([5, 3, 1])
    same(quantize_rows(x[order], ids[order], KEY, 2)[0], packed[order])
    other = quantize_rows(x, ids, DrawKey(1, 3, 3), 2)[0]
    assert not torch.equal(other, packed)


@pytest.mark.parametrize("bits", BITS)
def test_constant_rows_are_exact_and_bad_rows_are_nan(instruction_set, bits):
    x = rows(9, 21)
    packed, params = quantize_rows(x, torch.arange(9), KEY, bits)
    again = dequantize_rows(packed, params, num_cols=21, bits=bits)
    assert again[0].tolist() == [2.5] * 21
    assert again[1].tolist() == [0.0] * 21
    for bad in (2, 3, 4, 7):
        assert bool(again[bad].isnan().all())
        assert not packed[bad].any()
    assert bool(again[[0, 1, 5, 6, 8]].isfinite().all())


def test_rows_that_lie_apart_and_no_rows():
    wide, ids = torch.randn(12, 90), torch.arange(12)
    same(
        quantize_rows(wide[:, 3:40], ids, KEY, 4)[0],
        quantize_rows(wide[:, 3:40] + 0, ids, KEY, 4)[0],
    )
    same(quantize_rows(wide.T[:12], ids, KEY, 4)[0], quantize_rows(wide.T[:12] + 0, ids, KEY, 4)[0])
    packed, params = quantize_rows(torch.ones(0, 7), ids[:0], KEY, 4)
    assert dequantize_rows(packed, params, num_cols=7, bits=4).shape == (0, 7)


def test_bit_equal_for_any_number_of_threads(by_threads):
    x, ids = rows(3000, 70), torch.arange(3000)

    def there_and_back():
        packed, params = quantize_rows(x, ids, KEY, 4)
        return dequantize_rows(packed, params, num_cols=70, bits=4)

    one, two, four = by_threads(there_and_back)
    same(one, two)
    same(one, four)


def test_arguments_that_do_not_fit():
    x, ids = torch.randn(4, 6), torch.arange(4)
    packed, params = quantize_rows(x, ids, KEY, 4)
    with pytest.raises(ValueError, match="bits must be 1, 2, 4 or 8, got 3"):
        quantize_rows(x, ids, KEY, 3)
    with pytest.raises(ValueError, match="ids must have one element per row"):
        quantize_rows(x, ids[:3], KEY, 4)
    with pytest.raises(ValueError, match="x must be float32, float64, bfloat16 or float16"):
        quantize_rows(x.long(), ids, KEY, 4)
    with pytest.raises(ValueError, match=r"packed must be contiguous of shape \(4, 2\)"):
        dequantize_rows(packed, params, num_cols=6, bits=2)
    with pytest.raises(ValueError, match=r"params must be contiguous of shape \(4, 2\)"):
        dequantize_rows(packed, params[:3], num_cols=6, bits=4)
    with pytest.raises(ValueError, match="num_cols must lie in"):
        dequantize_rows(packed, params, num_cols=-6, bits=4)
    with pytest.raises(ValueError, match="packed must be"):
        dequantize_rows_add(torch.zeros(3, 6), packed, params, bits=4)


def test_operators_as_pytorch_sees_them():
    x, ids = torch.randn(4, 6), torch.arange(4)
    packed, params = quantize_rows(x, ids, KEY, 4)
    torch.library.opcheck(kernels.quantize_rows.default, (x, ids, KEY.value, 4))
    torch.library.opcheck(kernels.dequantize_rows.default, (packed, params, 6, 4, torch.bfloat16))
    torch.library.opcheck(kernels.dequantize_rows_add.default, (x.clone(), packed, params, 4))
