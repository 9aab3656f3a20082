import pytest
import torch
from torch import nn

from gnn_dist.errors import ConfigError
from gnn_dist.nn.attention import GATConv
from gnn_dist.nn.dropout import Dropout, set_step
from gnn_dist.ops.csr import CSR
from gnn_dist.ops.draws import DrawKey
from gnn_dist.shard import structure as structure_module
from gnn_dist.shard.structure import Structure, degree_with_loop

IDS = torch.arange(200)
ONES = torch.ones(200, 16)


def test_each_dropout_of_a_model_is_a_site_of_its_own():
    model = nn.ModuleList([Dropout(0.5), nn.Linear(1, 1), Dropout(0.5), GATConv(2, 2, dropout=0.5)])
    set_step(model, seed=3, step=4)
    keys = [module.key for module in model.modules() if isinstance(module, Dropout)]
    assert keys == [DrawKey(3, 4, 256 * number) for number in range(3)]
    first, second = model[0](ONES, IDS), model[2](ONES, IDS)
    agreement = (first == second).float().mean()
    assert 0.4 < agreement < 0.6


def test_each_step_draws_anew_and_the_same_step_again_the_same():
    layer = Dropout(0.5)
    masks = []
    for step in (0, 1, 0):
        set_step(layer, seed=0, step=step)
        masks.append(layer(ONES, IDS))
    assert torch.equal(masks[0], masks[2])
    assert 0.4 < (masks[0] == masks[1]).float().mean() < 0.6


def test_a_module_that_is_used_twice_draws_twice():
    layer = Dropout(0.5)
    set_step(layer, seed=0, step=0)
    first, second = layer(ONES, IDS), layer(ONES, IDS)
    assert 0.4 < (first == second).float().mean() < 0.6
    set_step(layer, seed=0, step=0)
    assert torch.equal(layer(ONES, IDS), first)


def test_nothing_is_dropped_in_evaluation_or_at_zero():
    assert Dropout(0.5).eval()(ONES, IDS) is ONES
    assert Dropout(0.0)(ONES, IDS) is ONES


def test_drawing_without_a_step_is_refused():
    with pytest.raises(ConfigError, match="set_step"):
        Dropout(0.5)(ONES, IDS)


def test_draws_of_edges_tell_direction_and_copies_apart():
    # Node 0 reads 1 three times and itself; node 1 reads 0.
    csr = CSR(torch.tensor([0, 4, 5]), torch.tensor([0, 1, 1, 1, 0], dtype=torch.int32), 2)
    structure = Structure(csr, torch.tensor([40, 70]), degree_with_loop(csr, None))
    ids = structure.edge_draw_ids(csr)
    assert ids.unique().numel() == 5
    # The same edges stored elsewhere, with their ends swapped in local numbering.
    other = CSR(torch.tensor([0, 1, 5]), torch.tensor([1, 1, 0, 0, 0], dtype=torch.int32), 2)
    moved = Structure(other, torch.tensor([70, 40]), structure.degree).edge_draw_ids(other)
    assert moved.tolist() == [ids[4], ids[0], ids[1], ids[2], ids[3]]


@pytest.mark.parametrize("weighted", [False, True])
def test_degrees_are_counted_some_rows_at_a_time(weighted, monkeypatch):
    # Row 1 is longer than what is looked at together; rows 0 and 3 are empty.
    csr = CSR(torch.tensor([0, 0, 5, 7, 7, 8]), torch.tensor([0, 1, 1, 2, 5, 2, 3, 4]).int(), 6)
    weight = torch.arange(1.0, 9.0, dtype=torch.float64) if weighted else None
    expected = [1.0, 3.0 + 10.0, 6.0 + 7.0, 1.0, 8.0] if weighted else [1.0, 4.0, 2.0, 1.0, 1.0]
    for most in (1, 2, 3, 100):
        monkeypatch.setattr(structure_module, "ENTRIES_AT_ONCE", most)
        assert degree_with_loop(csr, weight).tolist() == expected
    assert weight is None or weight.tolist() == list(range(1, 9))


def test_gcn_scale_of_degrees_that_have_no_root_is_zero():
    # Node 1's only edge cancels its loop; node 0 has weight 3 coming in.
    csr = CSR(torch.tensor([0, 1, 2]), torch.tensor([1, 0], dtype=torch.int32), 2)
    weight = torch.tensor([3.0, -1.0], dtype=torch.float64)
    degree = degree_with_loop(csr, weight)
    assert degree.tolist() == [4.0, 0.0]
    structure = Structure(csr, torch.arange(2), degree, weight)
    assert structure.gcn_scale.tolist() == [0.5, 0.0]
