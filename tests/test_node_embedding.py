"""`NodeEmbedding`: rows with their owners, read and saved by original id; row-wise optimisers."""

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from awkward import awkward_case
from torch import nn

import gnn_dist as gd
from gnn_dist.errors import ConfigError
from gnn_dist.halo import node_rows
from gnn_dist.halo.load import induced_shard
from gnn_dist.nn.embedding import draw_rows
from gnn_dist.nn.row_optim import touched_rows
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks

D = 3
CASES = ("random partition", "empty part", "all on one", "single node")


def write(case, folder):
    _, graph, partition = awkward_case(case, 3)
    write_partition(graph, partition, folder)
    return graph


def ids_of(num_nodes, rank):
    """Return what a rank asks for: as a vector, a matrix, or nothing."""
    shape = [(7,), (4, 2), (0,)][rank]
    return torch.from_numpy(np.random.default_rng(rank).integers(0, num_nodes, shape))


def used(world, folders):
    found = {}
    for case, folder in folders.items():
        shard = gd.load_shard(folder, world)
        n = shard.meta.num_nodes
        whole = draw_rows(torch.arange(n), D, seed=2, dtype=torch.float64)
        plain = nn.Embedding(n, D, dtype=torch.float64)
        plain.load_state_dict({"weight": whole})
        for sparse in (False, True):
            table = gd.NodeEmbedding(shard, world, D, seed=2, sparse=sparse)
            assert torch.equal(table.weight, whole[shard.node_id])
            loss, expected = 0.0, 0.0
            for turn in (0, 1, 0):  # ids that were asked for last, and others
                ranks = [(rank + turn) % 3 for rank in range(3)]
                rows = table(ids_of(n, ranks[world.rank]))
                assert torch.equal(rows, plain(ids_of(n, ranks[world.rank])))
                loss = loss + rows.square().sum()
                if world.world_size == 1:
                    ranks = ranks[:1]
                expected = expected + sum(plain(ids_of(n, r)).square().sum() for r in ranks)
            loss = loss + table().pow(3).sum()
            expected = expected + plain.weight.pow(3).sum()
            loss.backward()
            plain.zero_grad()
            expected.backward()
            assert table.weight.grad.is_sparse == sparse
            grad = table.weight.grad.to_dense()
            torch.testing.assert_close(grad, plain.weight.grad[shard.node_id])
        found[case] = table.weight.detach()
    return found


@pytest.mark.mpi
@pytest.mark.parametrize("world_size", [1, 3])
def test_rows_and_gradients_are_those_of_a_plain_embedding(world_size, tmp_path):
    folders = {}
    for case in CASES:
        folders[case] = str(tmp_path / case)
        write(case, folders[case])
    run_ranks(used, world_size, folders)


def saved(world, folder, path):
    shard = gd.load_shard(folder, world)
    node_rows.CHUNK_BYTES = 100  # in this process alone: four rows travel at once
    table = gd.NodeEmbedding(shard, world, D, dtype=torch.float32)
    n = shard.meta.num_nodes
    out = None
    if world.is_main:
        out = torch.from_numpy(np.lib.format.open_memmap(path, "w+", np.float32, (n, D)))
    state = table.full_state_dict(out)
    assert len(state["weight"]) == (n if world.is_main else 0)
    assert not world.is_main or state["weight"] is out
    with torch.no_grad():
        table.weight.zero_()
    # Values of another dtype, from rank 0 alone.
    given = {"weight": 2.0 * state["weight"].double()} if world.is_main else {}
    table.load_full_state_dict(given)
    whole = draw_rows(torch.arange(n), D, dtype=torch.float32)
    assert torch.equal(table.weight, 2.0 * whole[shard.node_id])
    for wrong in ({}, {"weight": torch.zeros(n, D + 1)}):
        with pytest.raises(ConfigError, match="weight must have a row for each node"):
            table.load_full_state_dict(wrong)


def test_a_table_is_saved_by_original_id_and_loads_into_a_plain_one(tmp_path):
    graph = write("empty part", tmp_path / "parts")
    path = str(tmp_path / "table.npy")
    run_ranks(saved, 3, str(tmp_path / "parts"), path)
    plain = nn.Embedding(graph.num_nodes, D)
    plain.load_state_dict({"weight": torch.from_numpy(np.load(path))})
    assert torch.equal(plain.weight, draw_rows(torch.arange(graph.num_nodes), D))


class Recommender(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.table, self.conv = table, pyg.LGConv()

    def forward(self, edge_index, liked):
        return self.conv(self.table(), edge_index), self.table(liked)


def in_a_model(world, folder):
    shard = gd.load_shard(folder, world)
    table = gd.NodeEmbedding(shard, world, D, dtype=torch.float64)
    model = gd.parallelize(Recommender(table), shard, world)
    optimizer = gd.RowAdam(model.parameters(), lr=0.1)
    for _ in range(2):
        model.zero_grad()
        nodes, liked = model(shard.edge_index, torch.tensor([1, 5, 1]) + world.rank)
        (nodes.square().sum() + liked.sum()).backward()
        optimizer.step()
    with pytest.raises(ConfigError, match="takes original ids"):
        gd.parallelize(OfEnds(table), shard, world)(shard.edge_index)
    return model.state_dict()


class OfEnds(Recommender):
    def forward(self, edge_index):
        return self.table(edge_index[0])


@pytest.mark.mpi
def test_in_a_parallelized_model(tmp_path):
    graph = write("random partition", tmp_path / "parts")
    table = nn.Embedding(graph.num_nodes, D, dtype=torch.float64)
    table.weight.data = draw_rows(torch.arange(graph.num_nodes), D, dtype=torch.float64)
    optimizer = gd.RowAdam(table.parameters(), lr=0.1)
    edges = torch.from_numpy(np.stack(graph.edges())).long()
    for _ in range(2):
        table.zero_grad()
        liked = torch.cat([torch.tensor([1, 5, 1]) + rank for rank in range(3)])
        (pyg.LGConv()(table.weight, edges).square().sum() + table(liked).sum()).backward()
        optimizer.step()
    [state, *_] = run_ranks(in_a_model, 3, str(tmp_path / "parts"))
    torch.testing.assert_close(state["table.weight"], table.weight.detach(), rtol=1e-10, atol=1e-10)


def refused(world, folder, cut):
    shard = gd.load_shard(folder, world)
    part = induced_shard(shard, shard.node_id < 5, world.transport)
    with pytest.raises(ConfigError, match="on no rank"):
        gd.NodeEmbedding(part, world, D)
    with pytest.raises(ConfigError, match="on a vertex-cut"):
        gd.NodeEmbedding(gd.load_shard(cut, world), world, D)
    with pytest.raises(ConfigError, match="dim must be at least 1, got 0"):
        gd.NodeEmbedding(shard, world, 0)
    table = gd.NodeEmbedding(shard, world, D)
    with pytest.raises(ConfigError, match=r"must lie in 0\.\.29, got 30 on rank 0"):
        table(torch.tensor([3, 30] if world.rank == 0 else [], dtype=torch.int64))
    # Low ids are asked for most: no rank answers for many more of them than others.
    _, ptr = table.owners._by_directory(torch.arange(12))
    return np.diff(ptr).tolist()


@pytest.mark.mpi
def test_what_cannot_work_is_refused_and_questions_are_spread(tmp_path):
    graph = write("random partition", tmp_path / "parts")
    cut = gd.partition_graph(graph, 2, "hdrf")
    write_partition(graph, cut, tmp_path / "cut")
    assert run_ranks(refused, 2, str(tmp_path / "parts"), str(tmp_path / "cut")) == [[6, 6]] * 2


def test_first_values_are_normal_and_differ():
    ids = torch.arange(4000)
    rows = draw_rows(ids, 5, std=0.5, dtype=torch.float64)
    assert rows.mean(0).abs().max() < 0.05
    assert (rows.std(0) - 0.5).abs().max() < 0.03
    assert (rows.T.corrcoef() - torch.eye(5)).abs().max() < 0.06
    assert (rows.abs() > 1.0).double().mean() == pytest.approx(0.0455, abs=0.01)
    some = torch.tensor([17, 3])
    assert torch.equal(draw_rows(some, 2, std=0.5, dtype=torch.float64), rows[some, :2])
    for other in (draw_rows(ids, 5, seed=1), draw_rows(ids, 5, table=1)):
        assert not torch.isclose(other.double(), 2.0 * rows).any(1).all()


def steps(optimizer_of, grads, *, sparse):
    table = nn.Parameter(torch.ones(4, 2, dtype=torch.float64))
    optimizer = optimizer_of([table])
    for grad in grads:
        table.grad = grad.to_sparse(1) if sparse else grad.clone()
        optimizer.step()
    return table.detach()


@pytest.mark.parametrize("sparse", [False, True])
def test_row_adam_is_adam_on_each_row(sparse):
    torch.manual_seed(0)
    grads = torch.randn(4, 4, 2, dtype=torch.float64)
    grads[:2, 1] = 0.0  # row 1 comes late, row 2 not at all
    grads[:, 2] = 0.0
    options = {"lr": 0.1, "betas": (0.8, 0.9), "weight_decay": 0.2}
    got = steps(lambda p: gd.RowAdam(p, **options), grads, sparse=sparse)
    for row, taken in ((0, grads), (1, grads[2:]), (3, grads)):
        expected = steps(lambda p: torch.optim.Adam(p, **options), taken, sparse=False)
        torch.testing.assert_close(got[row], expected[row], rtol=1e-12, atol=1e-12)
    assert torch.equal(got[2], torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("sparse", [False, True])
def test_row_adagrad_keeps_one_number_for_a_row(sparse):
    grads = torch.tensor([[[3.0, 1.0], [0, 0]], [[1.0, 1.0], [0, 2.0]]], dtype=torch.float64)
    table = nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))
    optimizer = gd.RowAdagrad([table], lr=1.0, eps=0.0)
    for grad in grads:
        table.grad = grad.to_sparse(1) if sparse else grad.clone()
        optimizer.step()
    first = torch.tensor([3.0, 1.0]) / 5**0.5 + torch.tensor([1.0, 1.0]) / 6**0.5
    second = torch.tensor([0.0, 2.0]) / 2**0.5
    torch.testing.assert_close(table.detach(), -torch.stack([first, second]).double())
    assert optimizer.state[table]["sum"].tolist() == [6.0, 2.0]


def test_rows_that_are_touched():
    grad = torch.zeros(4, 2)
    grad[1, 1], grad[3, 0] = float("nan"), 2.0
    assert touched_rows(grad)[0].tolist() == [1, 3]
    twice = torch.sparse_coo_tensor(
        [[3, 0, 3]], [[1.0], [0.0], [1.0]], (4, 1), check_invariants=True
    )
    rows, values = touched_rows(twice)
    assert (rows.tolist(), values.tolist()) == ([3], [[2.0]])


def test_options_out_of_range_are_refused():
    table = [nn.Parameter(torch.zeros(1))]
    with pytest.raises(ConfigError, match="lr must not be below 0, got -1"):
        gd.RowAdagrad(table, lr=-1.0)
    with pytest.raises(ConfigError, match=r"betas must lie in \[0, 1\)"):
        gd.RowAdam(table, betas=(0.9, 1.0))
