import pytest
import torch

from gnn_dist.ops import draws
from gnn_dist.ops.draws import (
    DrawKey,
    copy_numbers,
    dropout_by_id,
    edge_ids,
    keep_mask,
    uniform_by_id,
)
from gnn_dist.ops.reference.draws import mix

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
