import pytest
import torch

from gnn_dist.ops import draws
from gnn_dist.ops.draws import (
    DrawKey,
    bias_relu_dropout,
    copy_numbers,
    dropout_by_id,
    edge_ids,
    keep_mask,
    uniform_by_id,
)
from gnn_dist.ops.native import kernels
from gnn_dist.ops.reference import draws as reference
from gnn_dist.ops.reference.words import mix

pytestmark = pytest.mark.kernels

KEY = DrawKey(seed=1, step=2, site=3)


def test_values_are_fixed():
    # SplitMix64 of 0 as published; a change of these numbers breaks the resumption of old runs.
    assert draws._mix_int(draws.GOLDEN) == 0xE220A8397B1DCDAF
    assert KEY.value == 7702586659592502839
    assert keep_mask(KEY, torch.tensor([0, 7]), 8, 0.5).int().tolist() == [
        [1, 1, 0, 0, 0, 1, 1, 1],
        [0, 0, 0, 0, 1, 1, 1, 0],
    ]
    assert uniform_by_id(KEY, torch.tensor([0, 7])).tolist() == [
        0.22259493776530825,
        0.8392998283883377,
    ]


def test_mix_of_tensors_equals_mix_of_integers():
    values = [0, 1, -1, 2**62, -(2**63), 123456789]
    mixed = mix(torch.tensor(values)).tolist()
    assert [m & draws.MASK64 for m in mixed] == [draws._mix_int(v & draws.MASK64) for v in values]


def test_draws_follow_the_id_not_the_position():
    ids = torch.tensor([5, 3, 9, 3])
    keep = keep_mask(KEY, ids, 33, 0.4)
    order = torch.tensor([2, 0, 1])
    assert torch.equal(keep_mask(KEY, ids[order], 33, 0.4), keep[order])
    assert torch.equal(keep[1], keep[3])
    # A narrower row draws the same for the columns it has.
    assert torch.equal(keep_mask(KEY, ids, 8, 0.4), keep[:, :8])


@pytest.mark.parametrize("other", [DrawKey(0, 2, 3), DrawKey(1, 3, 3), DrawKey(1, 2, 4)])
def test_seed_step_and_site_each_matter(other):
    ids = torch.arange(1000)
    same = (keep_mask(KEY, ids, 100, 0.5) == keep_mask(other, ids, 100, 0.5)).float().mean()
    assert abs(same - 0.5) < 0.01


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_fraction_and_independence(p):
    size = 1024
    keep = keep_mask(KEY, torch.arange(size), size, p).double()
    assert abs(keep.mean() - (1 - p)) < 0.005
    centred = (keep - keep.mean()) / keep.std()
    for correlation in (centred.T @ centred / size, centred @ centred.T / size):
        off_diagonal = correlation - torch.diag(correlation.diagonal())
        # The largest of half a million independent pairs stays below six standard deviations.
        assert off_diagonal.abs().max() < 6.0 / size**0.5


def test_uniform_fills_the_unit_interval():
    u = uniform_by_id(KEY, torch.arange(20000))
    counts = torch.histc(u, bins=20, min=0.0, max=1.0)
    assert u.min() >= 0.0
    assert u.max() < 1.0
    assert ((counts - 1000).abs() < 150).all()


def test_dropout_scales_what_it_keeps_and_so_does_the_gradient():
    x = torch.full((50, 6), 2.0, dtype=torch.float64, requires_grad=True)
    ids = torch.arange(50)
    out = dropout_by_id(x, ids, 0.25, KEY)
    keep = keep_mask(KEY, ids, 6, 0.25)
    torch.testing.assert_close(out, 2.0 / 0.75 * keep.double())
    out.sum().backward()
    torch.testing.assert_close(x.grad, keep.double() / 0.75)


def test_dropout_edge_cases():
    x, ids = torch.ones(3, 2, 2), torch.arange(3)
    assert dropout_by_id(x, ids, 0.0, KEY) is x
    assert dropout_by_id(x, ids, 1.0, KEY).abs().sum() == 0
    assert dropout_by_id(torch.ones(0, 4), ids[:0], 0.5, KEY).shape == (0, 4)
    assert dropout_by_id(torch.ones(3, 0), ids, 0.5, KEY).shape == (3, 0)
    flat = dropout_by_id(x.flatten(1), ids, 0.5, KEY)
    assert torch.equal(dropout_by_id(x, ids, 0.5, KEY).flatten(1), flat)
    assert dropout_by_id(torch.ones(3, dtype=torch.float16), ids, 0.5, KEY).dtype == torch.float16


def test_edge_ids_tell_direction_and_copies_apart():
    src, dst, copy = (
        torch.tensor([1, 2, 1, 1]),
        torch.tensor([2, 1, 2, 3]),
        torch.tensor([0, 0, 1, 0]),
    )
    assert edge_ids(src, dst, copy).unique().numel() == 4


def test_copies_are_numbered_in_any_order():
    src, dst = torch.tensor([2, 0, 2, 1, 2, 0]), torch.tensor([1, 0, 1, 2, 1, 0])
    assert copy_numbers(src, dst, 3).tolist() == [0, 0, 1, 0, 2, 1]
    assert copy_numbers(src[:0], dst[:0], 3).tolist() == []


FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
WIDTHS = [0, 1, 2, 3, 7, 8, 15, 16, 31, 33, 47, 100]
THRESHOLDS = [0, 1, 2**30, 2**32 - 1, 2**32]


def any_ids(size):
    return torch.randint(-(2**63), 2**63 - 1, (size,))


def values(num_rows, width, dtype):
    x = torch.randn(num_rows, width)
    x.view(-1)[::13] = torch.nan
    x.view(-1)[::17] = torch.inf
    x.view(-1)[::19] = 0.0
    return x.to(dtype)


def same(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_draws_equal_the_reference(instruction_set):
    ids = any_ids(23)
    for width in WIDTHS:
        for threshold in THRESHOLDS:
            args = (ids, KEY.value, width, threshold)
            same(kernels.keep_mask(*args), reference.keep_mask(*args))
    same(kernels.uniform_by_id(ids, KEY.value), reference.uniform_by_id(ids, KEY.value))
    ends = (ids, ids.flip(0), ids.abs() % 5)
    same(kernels.edge_ids(*ends), reference.edge_ids(*ends))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("relu", [False, True])
def test_fused_dropout_equals_the_reference(instruction_set, dtype, relu):
    ids = any_ids(23)
    for width in WIDTHS:
        x, grad = values(23, width, dtype), values(23, width, dtype)
        for bias in (None, torch.randn(width).to(torch.promote_types(dtype, torch.float32))):
            for threshold in THRESHOLDS:
                args = (x, bias, ids, KEY.value, threshold, 1.7, relu)
                out = kernels.bias_relu_dropout(*args)
                same(out, reference.bias_relu_dropout(*args))
                here = x.clone()
                kernels.bias_relu_dropout_(here, *args[1:])
                same(here, out)
                back = (grad, out if relu else None, *args[2:6], False)
                same(kernels.relu_dropout_grad(*back)[0], reference.relu_dropout_grad(*back)[0])


def plain(x, bias, keep, p, relu):
    """Return what PyTorch computes: each step rounded, in this order."""
    x = x if bias is None else x + bias
    x = x.relu() if relu else x
    return (x * (1.0 / (1.0 - p))) * keep


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fused_dropout_is_bit_equal_to_its_steps(dtype, relu):
    x, ids, bias = values(40, 37, dtype), torch.arange(40), torch.randn(37, dtype=dtype)
    for p in (0.0, 0.3, 0.9):
        keep = keep_mask(KEY, ids, 37, p)
        for b in (None, bias):
            out = bias_relu_dropout(x, b, ids=ids, p=p, key=KEY, relu=relu)
            expected = plain(x, b, keep, p, relu)
            same(out, expected)
            if not relu:
                assert torch.equal(out.signbit(), expected.signbit())


def test_what_is_not_finite_stays_visible():
    x = torch.tensor([[torch.nan, torch.inf, -torch.inf, -1.0]]).expand(64, 4)
    ids = torch.arange(64)
    keep = keep_mask(KEY, ids, 4, 0.5)
    out = bias_relu_dropout(x, None, ids=ids, p=0.5, key=KEY)
    assert bool(out[:, 0].isnan().all())
    assert bool((out[:, 1] == torch.inf)[keep[:, 1]].all())
    assert bool(out[:, 1].isnan()[~keep[:, 1]].all())
    assert not out[:, 2:].any()
    assert bool(dropout_by_id(x, ids, 0.5, KEY)[:, :3].isfinite().logical_not().all())


@pytest.mark.parametrize("p", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("relu", [False, True])
def test_gradients_of_fused_dropout(p, relu):
    ids = torch.tensor([3, 3, 8])
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(3, 2, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    bias = torch.randn(2, 5, dtype=torch.float64, generator=generator, requires_grad=True)

    def call(x, bias):
        return bias_relu_dropout(x, bias, ids=ids, p=p, key=KEY, relu=relu)

    def in_place(x, bias):
        return bias_relu_dropout(x * 2.0, bias, ids=ids, p=p, key=KEY, relu=relu, inplace=True)

    assert torch.autograd.gradcheck(call, (x, bias))
    assert torch.autograd.gradcheck(in_place, (x, bias))
    if p < 1.0:
        keep = keep_mask(KEY, ids, 10, p).view(3, 2, 5)
        expected = plain(x, bias, keep, p, relu)
        mine = torch.autograd.grad(call(x, bias).square().sum(), (x, bias))
        theirs = torch.autograd.grad(expected.square().sum(), (x, bias))
        torch.testing.assert_close(mine, theirs)


def test_bias_of_another_dtype_gets_its_gradient_in_it():
    x = torch.randn(5, 3).bfloat16().requires_grad_()
    bias = torch.randn(3, requires_grad=True)
    bias_relu_dropout(x, bias, ids=torch.arange(5), p=0.0, key=KEY, relu=False).sum().backward()
    assert (x.grad.dtype, bias.grad.dtype) == (torch.bfloat16, torch.float32)
    assert bias.grad.tolist() == [5.0] * 3


def test_in_place_writes_where_it_is_told_and_refuses_leaves():
    x, ids = torch.randn(6, 9), torch.arange(6)
    expected = bias_relu_dropout(x, None, ids=ids, p=0.5, key=KEY)
    assert bias_relu_dropout(x, None, ids=ids, p=0.5, key=KEY, inplace=True) is x
    same(x, expected)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        bias_relu_dropout(x.requires_grad_(), None, ids=ids, p=0.5, key=KEY, inplace=True)


def test_gradient_of_a_bias_stays_accurate_over_many_rows():
    # One number added a million times: one float32 sum would be off by a hundredth.
    grad = torch.full((1_000_000, 3), 0.1)
    args = (grad, None, torch.empty(1_000_000, dtype=torch.int64), 0, 0, 1.0, True)
    _, total = kernels.relu_dropout_grad(*args)
    expected = grad[0, 0].double() * 1_000_000
    assert ((total.double() - expected).abs() / expected).max() < 1e-5


def test_dropout_is_bit_equal_for_any_number_of_threads(by_threads):
    x, ids, bias = torch.randn(2000, 33), any_ids(2000), torch.randn(33, requires_grad=True)

    def both():
        bias.grad = None
        out = bias_relu_dropout(x, bias, ids=ids, p=0.5, key=KEY)
        out.square().sum().backward()
        return out.detach(), bias.grad, keep_mask(KEY, ids, 33, 0.3), uniform_by_id(KEY, ids)

    one, *others = by_threads(both)
    for other in others:
        for a, b in zip(one, other, strict=True):
            same(a, b)


def test_rows_that_lie_apart():
    wide, ids = torch.randn(7, 60), any_ids(7)
    for x in (wide[:, 5:40], wide.T[:7], wide[:1].expand(7, 60)):
        same(dropout_by_id(x, ids, 0.5, KEY), dropout_by_id(x.clone(), ids, 0.5, KEY))
    same(uniform_by_id(KEY, ids[::2]), uniform_by_id(KEY, ids)[::2])


def test_arguments_that_do_not_fit():
    x, ids = torch.randn(4, 6), torch.arange(4)
    with pytest.raises(ValueError, match="ids must have one element per row"):
        dropout_by_id(x, ids[:3], 0.5, KEY)
    with pytest.raises(ValueError, match="ids must be Long"):
        dropout_by_id(x, ids.int(), 0.5, KEY)
    with pytest.raises(ValueError, match="x must be float32, float64, bfloat16 or float16"):
        dropout_by_id(x.long(), ids, 0.5, KEY)
    with pytest.raises(ValueError, match="bias must be contiguous with 6 elements"):
        bias_relu_dropout(x, torch.ones(5), ids=ids, p=0.5, key=KEY)
    with pytest.raises(ValueError, match=r"probability to drop must lie in \[0, 1\]"):
        keep_mask(KEY, ids, 3, 1.5)
    with pytest.raises(ValueError, match="must have one size"):
        edge_ids(ids, ids[:3], ids)


def test_operators_as_pytorch_sees_them():
    x, ids, bias = torch.randn(4, 6), torch.arange(4), torch.randn(6)
    args = (x, bias, ids, KEY.value, 2**31, 2.0, True)
    torch.library.opcheck(kernels.bias_relu_dropout.default, args)
    torch.library.opcheck(kernels.bias_relu_dropout_.default, args)
    grad = (x, torch.randn(4, 6), ids, KEY.value, 2**31, 2.0, True)
    torch.library.opcheck(kernels.relu_dropout_grad.default, grad)
    torch.library.opcheck(kernels.keep_mask.default, (ids, KEY.value, 5, 2**31))
    torch.library.opcheck(kernels.uniform_by_id.default, (ids, KEY.value))
    torch.library.opcheck(kernels.edge_ids.default, (ids, ids, ids))
