import pytest
import torch

from gnn_dist.ops.draws import DrawKey
from gnn_dist.ops.native import kernels
from gnn_dist.ops.quantize import (
    dequantize_rows,
    dequantize_rows_add,
    dequantize_rows_into,
    packed_width,
    quantize_rows,
    quantize_rows_into,
    steps_of,
)
from gnn_dist.ops.reference import quantize as reference

pytestmark = pytest.mark.kernels

KEY = DrawKey(seed=1, step=2, site=3)
BITS = [1, 2, 4, 8]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
WIDTHS = [0, 1, 2, 3, 7, 8, 9, 16, 31, 33, 100, 511, 512, 513, 1030]
LARGEST = torch.finfo(torch.float32).max


def rows(num_rows, width, *, dtype=torch.float32, seed=0):
    """Return rows of which some are constant, tiny, huge or not finite."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, width, generator=generator, dtype=torch.float64)
    if width and num_rows > 12:
        x[0] = 2.5
        x[1] = 0.0
        x[2, -1], x[3, 0], x[4, width // 2] = torch.nan, torch.inf, -torch.inf
        x[5] *= 1e-45  # the step underflows
        x[6] *= 3e-39
        x[7] = torch.linspace(-3e38, 3e38, width)  # the range overflows
        x[8] = -0.0
        x[9] = torch.linspace(0, LARGEST / 1.02, width)  # the highest level overflows
        x[10] = torch.linspace(-3e38, 3e37, width)
        x[11] = 1000 + x[11] * 1e-3  # the parameters are coarser than the row
    return x.to(dtype)


def same(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_both_ways_equal_the_reference(instruction_set, bits, dtype):
    ids = torch.randint(-(2**63), 2**63 - 1, (19,))
    index = torch.tensor([18, 0, 3, 3, 9, 7, 10, 11, 1, 5])
    for width in WIDTHS:
        x = rows(19, width, dtype=dtype)
        packed = kernels.quantize_rows(x, None, ids, KEY.value, bits)
        same(packed, reference.quantize_rows(x, None, ids, KEY.value, bits))
        assert packed.shape == (19, packed_width(width, bits))
        some = kernels.quantize_rows(x, index, ids[index], KEY.value, bits)
        same(some, packed[index])
        same(some, reference.quantize_rows(x, index, ids[index], KEY.value, bits))
        args = (packed, width, bits)
        same(kernels.dequantize_rows(*args, dtype), reference.dequantize_rows(*args, dtype))
        for add in (False, True):
            out = torch.randn(19, width).to(dtype)
            expected = out.clone()
            reference.dequantize_rows_into(expected, packed, bits, add)
            kernels.dequantize_rows_into(out, packed, bits, add)
            same(out, expected)


@pytest.mark.parametrize("bits", BITS)
def test_levels_lie_side_by_side_the_first_in_the_lowest_bits(bits):
    most = 2**bits - 1
    levels = torch.tensor([[0, most, most, 0, most, 0, 0, 0, most, most]])
    # The extremes of a row are its first and last level: nothing is left to chance.
    packed = quantize_rows(levels.float(), torch.tensor([5]), key=KEY, bits=bits)
    number = sum(int(v) << (bits * i) for i, v in enumerate(levels[0]))
    grid = torch.tensor([0.0, 1.0]).bfloat16().view(torch.uint8).tolist()
    assert packed[0].tolist() == [*grid, *number.to_bytes(packed_width(10, bits) - 4, "little")]
    same(dequantize_rows(packed, num_cols=10, bits=bits), levels.float())


def bfloat16_below(value):
    near = torch.tensor(value, dtype=torch.float64).bfloat16()
    while near.double() > value:
        near = torch.nextafter(near, torch.tensor(-torch.inf, dtype=torch.bfloat16))
    return near.double()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bits", BITS)
def test_levels_are_bfloat16_numbers_that_cover_the_row(bits, dtype):
    x = rows(400, 21, dtype=dtype)[[0, 1, 5, 6, 8, 10, 11, *range(12, 400)]]
    x = x[x.isfinite().all(1)]
    packed = quantize_rows(x, torch.arange(len(x)), key=KEY, bits=bits)
    low, step = packed[:, :4].clone().view(torch.bfloat16).double().unbind(1)
    same(steps_of(packed).double(), step)
    same(steps_of(packed[7:8]).double(), step[7:8])
    one = reference.dequantize_rows(packed[7:8], 21, bits, dtype)
    same(one, reference.dequantize_rows(packed, 21, bits, dtype)[7:8])
    x = x.double()
    reach = 2**bits - 1
    for row, lowest, one_step in zip(x, low, step, strict=True):
        assert lowest == bfloat16_below(row.min().item())
        top = lowest + reach * one_step
        assert top >= row.max() * (1 - 1e-7)  # float32 may lose the last of its digits
        shorter = torch.nextafter(one_step.bfloat16(), torch.tensor(0.0).bfloat16()).double()
        assert one_step == 0 or lowest + reach * shorter < row.max() * (1 + 1e-7)


@pytest.mark.parametrize("offset", [0.0, -77.7])
@pytest.mark.parametrize("bits", BITS)
def test_right_on_average_and_never_a_step_away(bits, offset):
    num_draws = 20_000
    row = torch.linspace(-1.03, 2.01, 13) + offset
    packed = quantize_rows(row.expand(num_draws, 13), torch.arange(num_draws), key=KEY, bits=bits)
    again = dequantize_rows(packed, num_cols=13, bits=bits, dtype=torch.float64)
    step = steps_of(packed)[0].item()
    assert (again - row.double()).abs().max() < step * 1.0001
    # The mean of a column has the standard deviation sqrt(t (1 - t)) * step / sqrt(num_draws).
    deviation = (again.mean(0) - row.double()).abs()
    assert deviation.max() < 5 * 0.5 * step / num_draws**0.5


def test_draws_follow_the_id_not_the_position():
    x, ids = torch.randn(6, 50), torch.tensor([9, 4, 9, 7, 1, 0])
    x[2] = x[0]
    packed = quantize_rows(x, ids, key=KEY, bits=2)
    same(packed[0], packed[2])
    order = torch.tensor([5, 3, 1])
    same(quantize_rows(x[order], ids[order], key=KEY, bits=2), packed[order])
    same(quantize_rows(x, ids[order], key=KEY, bits=2, index=order), packed[order])
    assert not torch.equal(quantize_rows(x, ids, key=DrawKey(1, 3, 3), bits=2), packed)


@pytest.mark.parametrize("bits", BITS)
def test_constant_rows_and_bad_rows(instruction_set, bits):
    x = rows(13, 21)
    packed = quantize_rows(x, torch.arange(13), key=KEY, bits=bits)
    again = dequantize_rows(packed, num_cols=21, bits=bits)
    assert again[0].tolist() == [2.5] * 21
    assert again[[1, 8]].abs().max() == 0.0
    for bad in (2, 3, 4, 7):
        assert bool(again[bad].isnan().all())
        assert not packed[bad, 4:].any()
    assert bool(again[[0, 1, 5, 6, *range(8, 13)]].isfinite().all())
    # What no bfloat16 is below, or no level is above, is out of reach.
    far = torch.tensor([[-LARGEST, -1e38], [-2e38, 1.39e38], [-3.38e38, -3e38], [3e38, 3.4e38]])
    again = dequantize_rows(
        quantize_rows(far, torch.arange(4), key=KEY, bits=bits), num_cols=2, bits=bits
    )
    assert again.isnan().all(1).tolist() == [True, True, False, False]
    assert bool(again[2:].isfinite().all())


@pytest.mark.parametrize("dtype", FLOATS)
def test_values_saturate_where_the_highest_level_lies_too_high(dtype):
    largest = min(torch.finfo(dtype).max, LARGEST)
    share = torch.linspace(0.1, 0.6, 200, dtype=torch.float64)
    x = (torch.stack([share, torch.full_like(share, 0.9995)], 1) * largest).to(dtype)
    packed = quantize_rows(x, torch.arange(200), key=KEY, bits=8)
    step = steps_of(packed).double()
    low = packed[:, :2].clone().view(torch.bfloat16)[:, 0].double()
    assert (low + 255 * step).max() > largest
    for sign in (1, -1):
        packed = quantize_rows(sign * x, torch.arange(200), key=KEY, bits=8)
        again = dequantize_rows(packed, num_cols=2, bits=8, dtype=dtype).double()
        usable = again.isfinite().all(1)
        assert bool(usable.all()) or (sign == -1 and dtype != torch.float16)
        error = (again - sign * x.double()).abs().amax(1)
        ulp = torch.finfo(dtype).eps * largest
        assert (error <= 1.01 * steps_of(packed).double() + ulp)[usable].all()


@pytest.mark.parametrize("bits", BITS)
def test_rows_that_lie_apart_trailing_shapes_and_no_rows(bits):
    wide, ids = torch.randn(12, 90), torch.arange(12)
    packed = quantize_rows(wide[:, 3:40], ids, key=KEY, bits=bits)
    same(packed, quantize_rows(wide[:, 3:40] + 0, ids, key=KEY, bits=bits))
    same(
        quantize_rows(wide.T[:12], ids, key=KEY, bits=bits),
        quantize_rows(wide.T[:12] + 0, ids, key=KEY, bits=bits),
    )
    by_head = quantize_rows(wide.view(12, 9, 10), ids, key=KEY, bits=bits)
    same(by_head, quantize_rows(wide, ids, key=KEY, bits=bits))
    out = torch.full((12, 9, 10), 0.5)
    assert dequantize_rows_into(out, by_head, bits=bits) is out
    same(out.flatten(1), dequantize_rows(by_head, num_cols=90, bits=bits))
    assert dequantize_rows_add(out, by_head, bits=bits) is out
    same(out.flatten(1), 2 * dequantize_rows(by_head, num_cols=90, bits=bits))
    # Into a part of a buffer, and from it.
    width = packed_width(37, bits)
    buffer = torch.zeros(14, width + 3, dtype=torch.uint8)
    at = buffer[1:13, 2 : 2 + width]
    assert quantize_rows_into(at, wide[:, 3:40], ids, key=KEY, bits=bits) is at
    same(at, packed)
    assert not buffer[:, :2].any()
    assert not buffer[0].any()
    same(
        dequantize_rows(at, num_cols=37, bits=bits), dequantize_rows(packed, num_cols=37, bits=bits)
    )
    packed = quantize_rows(torch.ones(0, 7), ids[:0], key=KEY, bits=bits)
    assert dequantize_rows(packed, num_cols=7, bits=bits).shape == (0, 7)
    assert quantize_rows(torch.ones(3, 0), ids[:3], key=KEY, bits=bits).tolist() == [[0] * 4] * 3


def test_bit_equal_for_any_number_of_threads(by_threads):
    x, ids = rows(3000, 70), torch.arange(3000)
    index = torch.randint(0, 3000, (3000,))

    def there_and_back():
        packed = quantize_rows(x, ids, key=KEY, bits=4, index=index)
        return dequantize_rows(packed, num_cols=70, bits=4)

    one, two, four = by_threads(there_and_back)
    same(one, two)
    same(one, four)


def test_arguments_that_do_not_fit():
    x, ids = torch.randn(4, 6), torch.arange(4)
    packed = quantize_rows(x, ids, key=KEY, bits=4)
    with pytest.raises(ValueError, match="bits must be 1, 2, 4 or 8, got 3"):
        quantize_rows(x, ids, key=KEY, bits=3)
    with pytest.raises(ValueError, match="ids must have one element per row"):
        quantize_rows(x, ids[:3], key=KEY, bits=4)
    with pytest.raises(ValueError, match="ids must have one element per row"):
        quantize_rows(x, ids, key=KEY, bits=4, index=ids[:3])
    with pytest.raises(ValueError, match="x must be float32, float64, bfloat16 or float16"):
        quantize_rows(x.long(), ids, key=KEY, bits=4)
    with pytest.raises(ValueError, match="index must be Long"):
        quantize_rows(x, ids, key=KEY, bits=4, index=ids.int())
    with pytest.raises(ValueError, match=r"out must be of shape \(4, 7\), got \(4, 6\)"):
        quantize_rows_into(torch.zeros(4, 6, dtype=torch.uint8), x, ids, key=KEY, bits=4)
    with pytest.raises(ValueError, match="out must be uint8"):
        quantize_rows_into(torch.zeros(4, 7), x, ids, key=KEY, bits=4)
    for bad in (-1, 4):
        with pytest.raises(IndexError, match=r"index must lie in \[0, 4\)"):
            quantize_rows(x, ids, key=KEY, bits=4, index=torch.tensor([0, 1, bad, 2]))
    with pytest.raises(ValueError, match=r"packed must be of shape \(4, 6\)"):
        dequantize_rows(packed, num_cols=6, bits=2)
    with pytest.raises(ValueError, match="packed must be uint8"):
        dequantize_rows(packed.int(), num_cols=6, bits=4)
    with pytest.raises(ValueError, match="num_cols must lie in"):
        dequantize_rows(packed, num_cols=-6, bits=4)
    with pytest.raises(ValueError, match=r"packed must be of shape \(3, 7\)"):
        dequantize_rows_add(torch.zeros(3, 6), packed, bits=4)


def test_operators_as_pytorch_sees_them():
    x, ids, index = torch.randn(4, 6), torch.arange(4), torch.tensor([3, 1])
    packed = quantize_rows(x, ids, key=KEY, bits=4)
    check = torch.library.opcheck
    check(kernels.quantize_rows.default, (x, None, ids, KEY.value, 4))
    check(kernels.quantize_rows.default, (x, index, ids[:2], KEY.value, 4))
    check(kernels.quantize_rows_into.default, (packed.clone(), x, None, ids, KEY.value, 4))
    check(kernels.dequantize_rows.default, (packed, 6, 4, torch.bfloat16))
    check(kernels.dequantize_rows_into.default, (x.clone(), packed, 4, True))
