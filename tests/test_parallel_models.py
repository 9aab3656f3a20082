"""Whole models as users port them, on ranks of which one has no nodes or as many edges as nodes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from awkward import NUM_FEATURES, awkward_case
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.utils import dropout_edge, scatter

import gnn_dist as gd
from gnn_dist.errors import ConfigError
from gnn_dist.testing import run_ranks

pytestmark = pytest.mark.mpi

K = 6
CASES = ("empty part", "isolated nodes")


class Again(nn.Module):
    """Its layers run again in the backward, and so does what they need of other ranks."""

    def __init__(self):
        super().__init__()
        self.first = pyg.GATConv(NUM_FEATURES, 3, heads=2, dropout=0.2)
        self.second = pyg.GINConv(nn.Sequential(nn.Linear(K, K), nn.Tanh(), nn.Linear(K, K)))
        self.norm = pyg.GraphNorm(K)
        self.out = pyg.SAGEConv(K, 3)

    def block(self, x, edge_index):
        x = self.norm(self.second(x, edge_index))
        x = F.dropout(x - x.mean(0).sin(), 0.3, self.training)
        row, col = edge_index
        near = scatter(x[row].sin(), col, 0, len(x), "sum")
        return near + checkpoint(self.inner, x, edge_index, use_reentrant=False)

    def inner(self, x, edge_index):
        return self.second(F.dropout(x, 0.5, self.training), edge_index).tanh()

    def forward(self, x, edge_index):
        x = F.dropout(x, 0.1, self.training)
        x = checkpoint(self.first, x, edge_index, use_reentrant=False).relu()
        x = checkpoint(self.block, x, edge_index, use_reentrant=False)
        return self.out(F.dropout(x, 0.2, self.training), edge_index)


class OneGraph(nn.Module):
    """Says that all nodes are of one graph, by whole numbers of its own."""

    def __init__(self):
        super().__init__()
        self.conv = pyg.GCNConv(NUM_FEATURES, K)
        self.norms = nn.ModuleList([pyg.GraphNorm(K), pyg.InstanceNorm(K), pyg.LayerNorm(K)])
        self.common, self.out = nn.Parameter(torch.ones(1, K)), nn.Linear(K, 3)
        self.virtual = nn.Embedding(1, K)  # of a node that all are linked with

    def forward(self, x, edge_index):
        ways = [torch.zeros(len(x), dtype=torch.long), edge_index.new_zeros(x.size(0))]
        batch = ways[1]
        x = self.conv(x, edge_index) + self.common.expand(int(batch.max()) + 1, -1)[batch]
        x = x + self.virtual(torch.zeros(1, dtype=torch.long)).sum(0)
        for norm, batch in zip(self.norms, [*ways, ways[0]], strict=True):
            x = norm(x, batch)
        return self.out(x + pyg.global_add_pool(x, batch)[batch] * pyg.global_max_pool(x, batch))


class Dropped(nn.Module):
    """Drops edges, and has a norm that asks whether there is more than one row."""

    def __init__(self):
        super().__init__()
        self.first = pyg.GCNConv(NUM_FEATURES, K)
        self.norm = pyg.BatchNorm(K, allow_single_element=True)
        self.second = pyg.GATConv(K, 3)

    def forward(self, x, edge_index):
        edge_index, _ = dropout_edge(edge_index, p=0.4, training=self.training)
        return self.second(self.norm(self.first(x, edge_index)), edge_index)


class Compiled(nn.Module):
    """Two ways to compile a layer; both run as written here."""

    def __init__(self):
        super().__init__()
        self.first = torch.compile(pyg.SAGEConv(NUM_FEATURES, K), backend=never)
        self.second = pyg.GCNConv(K, 3)
        self.second.compile(backend=never)

    def forward(self, x, edge_index):
        x = self.first(x, edge_index)
        return self.second((x - x.mean(0)).relu(), edge_index)


def never(graph, example_inputs):
    raise AssertionError("compiled, so that no function is seen")


MODELS = {"again": Again, "one graph": OneGraph, "dropped": Dropped, "compiled": Compiled}
REFUSED = {
    "LINKX": (lambda: pyg.LINKX(24, NUM_FEATURES, K, 3, 2), "a row for each node"),
    "CorrectAndSmooth": (lambda: pyg.CorrectAndSmooth(1, 0.5, 1, 0.5), "sum of a mask"),
}


def one_step(shard, model):
    x = shard.x.clone().requires_grad_()
    out = model(x, shard.edge_index)
    rows = shard.node_id[:, None].double().cos()
    (out.square().sum() + (out * rows).sum()).backward()
    gradients = [p.grad.numpy() for p in model.parameters()]
    return shard.node_id.numpy(), out.detach().numpy(), x.grad.numpy(), gradients


def all_steps(world, folders, *, plain=False, training=True):
    results = {}
    for case, folder in folders.items():
        shard = gd.load_shard(folder, world)
        for name, make in MODELS.items():
            if plain and name == "compiled":
                continue
            torch.manual_seed(1)
            model = make().double().train(training)
            followed = model if plain else gd.parallelize(model, shard, world, seed=3)
            results[case, name, training] = one_step(shard, followed)
    return results


def on_ranks(world, cut, whole):
    """Return what this rank has, and on rank 0 what one process has."""
    own = {**all_steps(world, cut), **all_steps(world, cut, training=False)}
    if not world.is_main:
        return own, {}
    one = gd.World.single()
    return own, {**all_steps(one, whole), **all_steps(one, whole, plain=True, training=False)}


def in_small_parts(graph):
    """One part has as many edges as nodes, one has a single node."""
    degree = graph.in_degree
    part = np.zeros(graph.num_nodes, np.int64)
    part[[np.flatnonzero(degree == 2)[0], np.flatnonzero(degree == 0)[0]]] = 1
    part[np.flatnonzero(degree == 4)[0]] = 2
    return gd.Partition(part, 3)


def test_whole_models_are_exact(tmp_path):
    cut, whole = {}, {}
    for case in CASES:
        _, graph, partition = awkward_case(case, 3)
        if case == "isolated nodes":
            partition = in_small_parts(graph)
        cut[case], whole[case] = tmp_path / f"cut {case}", tmp_path / f"whole {case}"
        gd.write_partition(graph, partition, cut[case])
        gd.write_partition(graph, gd.Partition(np.zeros(graph.num_nodes, np.int64), 1), whole[case])
    results = run_ranks(on_ranks, 3, cut, whole)
    by_rank, expected = [own for own, _ in results], results[0][1]
    assert len(expected) == len(CASES) * (2 * len(MODELS) - 1)
    for key, (ids, *rows, gradients) in expected.items():
        found = [rank[key] for rank in by_rank]
        order = np.argsort(np.concatenate([rank[0] for rank in found]))
        for i, values in enumerate(rows, 1):
            mine = np.concatenate([rank[i] for rank in found])[order]
            np.testing.assert_allclose(
                mine, values[np.argsort(ids)], rtol=1e-9, atol=1e-9, err_msg=str(key)
            )
        for mine, values in zip(found[0][3], gradients, strict=True):
            np.testing.assert_allclose(mine, values, rtol=1e-9, atol=1e-9, err_msg=str(key))


def checkpointed(world, folder, halo):
    shard = gd.load_shard(folder, world)
    model = gd.parallelize(Again().double(), shard, world, halo=halo)
    with pytest.raises(ConfigError, match=r"first.*other rows: use an exact policy"):
        model(shard.x, shard.edge_index)
    model.eval()(shard.x, shard.edge_index)


def test_what_runs_again_needs_an_exact_policy(tmp_path):
    _, graph, partition = awkward_case("isolated nodes", 2)
    gd.write_partition(graph, partition, tmp_path / "parts")
    run_ranks(checkpointed, 2, tmp_path / "parts", "delayed")


@pytest.mark.parametrize("name", REFUSED)
def test_ready_models_that_count_or_number_nodes_are_refused(name):
    make, reason = REFUSED[name]
    with pytest.raises(ConfigError, match=reason):
        gd.parallelize(make(), None, None)


def test_what_runs_again_draws_the_same(tmp_path, monkeypatch):
    _, graph, partition = awkward_case("isolated nodes", 1)
    gd.write_partition(graph, partition, tmp_path / "parts")
    world = gd.World.single()
    shard, found = gd.load_shard(tmp_path / "parts", world), []
    for once in (False, True):
        if once:
            monkeypatch.setitem(globals(), "checkpoint", lambda f, *args, **_: f(*args))
        torch.manual_seed(1)
        found.append(one_step(shard, gd.parallelize(Again().double(), shard, world, seed=3)))
    for again, plain in zip(found[0][3], found[1][3], strict=True):
        np.testing.assert_allclose(again, plain, rtol=1e-9, atol=1e-9)
