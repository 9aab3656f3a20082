"""Linear maps with reused memory, and the pool that gives it."""

import pytest
import torch
import torch.nn.functional as F

from gnn_dist.ops.linear import linear, linear_onto, linear_pair
from gnn_dist.ops.native import kernels

MEBI = 1 << 20


def leaves(*shapes, dtype=torch.float64):
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_linear_maps_and_their_gradients(rows):
    x, first, second, bias = leaves((rows, 5), (4, 5), (3, 5), 3)
    torch.testing.assert_close(linear(x, second, bias), F.linear(x, second, bias))
    torch.testing.assert_close(linear(x, first), F.linear(x, first))
    left, right = linear_pair(x, first, second, bias)
    torch.testing.assert_close(left, F.linear(x, first))
    torch.testing.assert_close(right, F.linear(x, second, bias))
    if rows:
        check = torch.autograd.gradcheck
        assert check(linear, (x, second, bias))
        assert check(linear_pair, (x, first, second, bias))
        assert check(lambda *args: linear_onto(linear(*args), x, first[:3]), (x, second, bias))


def test_only_what_is_needed_has_a_gradient():
    x, weight, bias = leaves((6, 5), (4, 5), 4)
    linear(x.detach(), weight, bias).sum().backward()
    assert x.grad is None
    expected = torch.autograd.grad(F.linear(x, weight, bias).sum(), (weight, bias))
    torch.testing.assert_close((weight.grad, bias.grad), expected)


def test_autocast_computes_in_bfloat16_and_keeps_gradients_in_float32():
    x, weight, bias = leaves((6, 5), (4, 5), 4, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = linear(x, weight, bias), F.linear(x, weight, bias)
        onto = linear_onto(linear(x, weight), x, weight)
    assert ours.dtype == onto.dtype == torch.bfloat16
    torch.testing.assert_close(ours, theirs, atol=0.05, rtol=0.05)
    torch.testing.assert_close(onto, 2 * linear(x.bfloat16(), weight), atol=0.05, rtol=0.05)
    ours.float().sum().backward()
    assert weight.grad.dtype == bias.grad.dtype == torch.float32
    expected = x.detach().sum(0).expand(4, 5)
    torch.testing.assert_close(weight.grad, expected, atol=0.05, rtol=0.05)


def test_the_pool_gives_a_freed_buffer_again_and_a_held_one_never():
    kernels.release_pool()
    like = torch.empty(0)
    first = kernels.empty_rows(like, 1024, 1024)
    place = first.data_ptr()
    view = first[5:].t()  # holds the memory, too
    del first
    second = kernels.empty_rows(like, 1024, 1024)
    assert second.data_ptr() != place
    del view
    third = kernels.empty_rows(like, 1000, 1024)  # a little smaller fits as well
    assert third.data_ptr() == place
    del second, third
    assert kernels.release_pool() == 8 * MEBI
    assert kernels.release_pool() == 0


def test_the_pool_keeps_at_most_a_quarter_more_than_was_ever_in_use():
    kernels.release_pool()
    for megabytes in (4, 8, 16, 32, 64):
        kernels.empty_rows(torch.empty(0), megabytes, MEBI // 4).fill_(1)
    assert kernels.release_pool() <= 80 * MEBI


def test_small_and_empty_matrices():
    like = torch.empty(0, dtype=torch.bfloat16)
    for rows, width in ((0, 5), (5, 0), (3, 4)):
        made = kernels.empty_rows(like, rows, width)
        assert made.shape == (rows, width)
        assert made.dtype == torch.bfloat16
    with pytest.raises(ValueError, match="must not be negative"):
        kernels.empty_rows(like, -1, 2)
