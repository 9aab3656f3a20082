"""Models that are wrong on purpose are refused by a rule or by the probe; right ones pass."""

import logging
import random
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from awkward import NUM_FEATURES, awkward_case
from torch import nn
from torch.utils.checkpoint import checkpoint

import gnn_dist as gd
from gnn_dist.errors import ConfigError
from gnn_dist.parallel.probe_graph import make_graph
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks, run_virtual

K = 4
TWO = "would not be exact on several ranks"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("probe") / "parts"
    _, graph, partition = awkward_case("random partition", 3)
    edge_id = np.arange(graph.num_edges)
    write_partition(graph.replace(edge_id=edge_id), partition, path)
    return path


class Net(nn.Module):
    """A step between two layers: a function of the model, rows of nodes and edges."""

    def __init__(self, step, inner=None):
        super().__init__()
        self.step, self.inner = step, inner
        self.first, self.second = pyg.SAGEConv(NUM_FEATURES, K), pyg.GraphConv(K, K)
        self.table = nn.Embedding(100, K)

    def forward(self, x, edge_index):
        x = self.first(x, edge_index).tanh()
        return self.second(self.step(self, x, edge_index), edge_index)


class RowMean(torch.autograd.Function):
    """A mean over rows whose backward no rule sees."""

    @staticmethod
    def forward(ctx, x):
        ctx.rows = len(x)
        return x.mean(0)

    @staticmethod
    def backward(ctx, grad):
        return grad.expand(ctx.rows, -1) / ctx.rows


class RowCount(torch.autograd.Function):
    """A backward that counts rows."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * len(grad) / 37


class ByTarget(pyg.MessagePassing):
    """A message that depends on the number of its target."""

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j, index):
        return x_j * (index % 3)[:, None]


class Counter(nn.Module):
    """Counts rows, and does not say so."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(()))

    def forward(self, x):
        self.rows += x.size(0)
        return x


class CountedMean(Counter):
    """Divides by all rows so far."""

    def forward(self, x):
        return super().forward(x) / self.rows


@torch.jit.script
def centred(x: torch.Tensor) -> torch.Tensor:
    """No rule sees this mean."""
    return x - x.mean(0)


def degrees(net, x, edge_index):
    degree = [0] * len(x)
    for target in edge_index[1].tolist():
        degree[target] += 1
    return x * torch.tensor(degree, dtype=x.dtype)[:, None]


# What the refusal says: of the probe, where it was seen first.
WRONG = {
    "autograd function": (lambda n, x, e: x - RowMean.apply(x), f"{TWO}.*gradient of first.lin_r"),
    "backward": (lambda n, x, e: RowCount.apply(x), f"{TWO}.*gradient of first.lin_r"),
    "number of rows": (lambda n, x, e: x / x.size(0) ** 0.5, f"{TWO}.*goes into layer second"),
    "number of edges": (lambda n, x, e: x * e.size(1), f"{TWO}.*goes into layer second"),
    "torchscript": (lambda n, x, e: centred(x), f"{TWO}.*goes into layer second .GraphConv. diff"),
    "numpy": (lambda n, x, e: x - torch.from_numpy(x.detach().numpy().mean(0)), "numpy of rows"),
    "positions": (lambda n, x, e: x + x[torch.arange(5)].sum(0), "by position"),
    "local ids": (lambda n, x, e: x + n.table(torch.arange(len(x))), f"{TWO}.*into layer table"),
    "place": (lambda n, x, e: x + torch.arange(len(x))[:, None] / 9, f"{TWO}.*into layer second"),
    "running sum": (lambda n, x, e: x.cumsum(0), "cumsum goes over the rows"),
    "pairs": (lambda n, x, e: (x @ x.t()).softmax(1) @ x, "pairs each of this rank's rows"),
    "sort": (lambda n, x, e: x.sort(0).values, "sort goes over the rows"),
    "nodes in turn": (lambda n, x, e: n.inner(x[None])[0][0], "rnn_tanh goes over the rows"),
    "list": (degrees, "tolist of rows"),
    "columns": (lambda n, x, e: F.group_norm(x.t()[None], 2)[0].t(), "this rank's rows alone"),
    "shift": (lambda n, x, e: x + torch.cat([x[1:], x[:1]]), "by position"),
    "numbers of targets": (
        lambda n, x, e: n.inner(x, e),
        f"{TWO}.*goes into layer inner.aggr_module",
    ),
    "counted rows": (lambda n, x, e: n.inner(x), f"{TWO}.*buffer inner.rows differs"),
    "counted mean": (lambda n, x, e: n.inner(x), f"{TWO}.*comes from layer inner .CountedMean. d"),
}
INNER = {
    "nodes in turn": lambda: nn.RNN(K, K, batch_first=True),
    "numbers of targets": ByTarget,
    "counted rows": Counter,
    "counted mean": CountedMean,
}


def make_wrong(name):
    torch.manual_seed(3)
    return Net(WRONG[name][0], INNER[name]() if name in INNER else None)


def refused(world, folder, name):
    shard = gd.load_shard(folder, world)
    model = gd.parallelize(make_wrong(name), shard, world)
    with pytest.raises(ConfigError, match=WRONG[name][1]):
        model(shard.x.float(), shard.edge_index)
    assert model.step == 0  # nothing has been done


@pytest.mark.parametrize("name", WRONG)
def test_wrong_models_are_refused(name, folder):
    run_virtual(refused, 1, folder, name)


@pytest.mark.parametrize("world_size", [2, 3])
def test_all_ranks_refuse_alike(world_size, folder):
    run_ranks(refused_in_turn, world_size, folder)


def refused_in_turn(world, folder):
    for name in ("torchscript", "sort", "counted mean"):
        refused(world, folder, name)
    world.transport.barrier()


class Readout(nn.Module):
    """What is read out of all nodes is added to each."""

    def __init__(self):
        super().__init__()
        self.first, self.pool = pyg.GCNConv(NUM_FEATURES, K), pyg.MeanAggregation()

    def forward(self, x, edge_index):
        x = self.first(x, edge_index)
        return x + self.pool(x, torch.zeros(len(x), dtype=torch.long), dim_size=1)[0] + x.amax(0)


class Several(nn.Module):
    """Kinds of nodes and edges in; rows of nodes, of edges with loops, and a number out."""

    def __init__(self):
        super().__init__()
        self.kinds, self.bonds = nn.Embedding(3, K), nn.Embedding(5, K)
        self.conv = pyg.GATConv(K, K, heads=2, edge_dim=K, add_self_loops=False)

    def forward(self, graph, *, weights):
        x = self.kinds(graph["kind"])
        bonds = self.bonds(graph["bond"]) * weights[:, None]
        out, (ends, alpha) = self.conv(x, graph["edge_index"], bonds, return_attention_weights=True)
        return {"out": out, "ends": ends, "alpha": alpha, "loss": out.square().mean()}


class Elementwise(torch.autograd.Function):
    """A right function of the model's own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]


class KeepsDtype(nn.Module):
    """Works in the dtype of its parameters alone."""

    def __init__(self):
        super().__init__()
        self.lin, self.conv = nn.Linear(NUM_FEATURES, K), pyg.GraphConv(K, K)

    def forward(self, x, edge_index):
        return self.conv(self.lin(x.float()), edge_index)


def along_columns(net, x, edge_index):
    return net.inner(x[:, :, None])[0][:, -1]


def norm_and_dropout(net, x, edge_index):
    return F.dropout(net.inner(x).relu(), 0.4, net.training)


def checkpointed(net, x, edge_index):
    return x - checkpoint(lambda x: x.mean(0).exp(), x, use_reentrant=False)


RIGHT = {
    "gcn": lambda: pyg.GCN(NUM_FEATURES, 6, 2, K, dropout=0.3),
    "cached": lambda: pyg.GCN(NUM_FEATURES, 6, 2, K, cached=True),
    "gat": lambda: pyg.GAT(NUM_FEATURES, 6, 2, K, heads=2, dropout=0.4, v2=True),
    "jumping knowledge": lambda: pyg.GraphSAGE(NUM_FEATURES, 6, 3, K, jk="lstm", norm="batch"),
    "batch norm": lambda: Net(norm_and_dropout, nn.BatchNorm1d(K)),
    "sequences": lambda: Net(along_columns, nn.GRU(1, K, batch_first=True)),
    "readout": Readout,
    "autograd function": lambda: Net(lambda n, x, e: Elementwise.apply(x)),
    "own dtype": KeepsDtype,
    "checkpoint": lambda: Net(checkpointed),
}


def numpy_state():
    return np.random.get_state()[1].tolist()  # noqa: NPY002 - what models may draw by


def passes(world, folder, name):
    shard = gd.load_shard(folder, world)
    torch.manual_seed(3)
    model = gd.parallelize(RIGHT[name](), shard, world)
    states = torch.get_rng_state(), random.getstate(), numpy_state()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    x = shard.x.float().requires_grad_()
    model._probe.check(model.module, *marked(model, x, shard.edge_index))
    after = torch.get_rng_state(), random.getstate(), numpy_state()
    assert torch.equal(states[0], after[0])
    assert states[1:] == after[1:]
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
    assert all(p.grad is None for p in model.parameters())
    for training in (True, False, True):
        model.train(training)(x, shard.edge_index).sum().backward()
    with torch.inference_mode():
        model.eval()(shard.x.float(), shard.edge_index)
    assert len(model._probe._known) == 3  # training, evaluation, evaluation without gradients


def marked(model, *args):
    model._arguments.mark(args, {})
    return args, {}


@pytest.mark.parametrize("name", RIGHT)
def test_right_models_pass_and_nothing_is_left_behind(name, folder, caplog):
    run_virtual(passes, 1, folder, name)
    assert caplog.records == []


def test_right_models_pass_on_ranks(folder):
    run_ranks(all_pass, 3, folder)


def all_pass(world, folder):
    for name in ("batch norm", "readout", "gcn"):
        passes(world, folder, name)


def several(world, folder):
    shard = gd.load_shard(folder, world)
    edge_id = shard.edge_data["edge_id"]
    graph = {"kind": shard.node_id % 3, "bond": edge_id % 5, "edge_index": shard.edge_index}
    weights = (1.0 + edge_id).requires_grad_()
    out = gd.parallelize(Several(), shard, world)(graph, weights=weights)
    assert out["out"].shape == (shard.num_owned, 2 * K)


def test_arguments_of_all_kinds(folder, caplog):
    run_virtual(several, 2, folder)
    assert caplog.records == []


@torch.jit.script
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rand(1)


class Particular(nn.Module):
    """Wants its own graph, or draws as nobody can follow."""

    def __init__(self, what):
        super().__init__()
        self.what, self.conv = what, pyg.GraphConv(NUM_FEATURES, K)
        self.lock = threading.Lock() if what == "lock" else None

    def forward(self, x, edge_index):
        if self.what == "size":
            assert x.size(0) == 30, "this model is for 30 nodes"
        elif self.what == "python":
            x = x * random.choice([1.0, 1.0])
        elif self.what == "torchscript":
            x = scaled(x)
        elif self.what == "parts":
            assert x.size(0) != 43, "this model is not for 43 nodes"
        return self.conv(x, edge_index)


def let_through(world, folder, what, probe):
    shard = gd.load_shard(folder, world)
    model = gd.parallelize(Particular(what), shard, world, probe=probe)
    return model(shard.x.float(), shard.edge_index).shape


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("size", "AssertionError: this model is for 30 nodes"),
        ("python", "it draws where that is not seen"),
        ("torchscript", "it draws where that is not seen"),
        ("parts", "in two parts it fails: AssertionError: this model is not for 43 nodes"),
        ("lock", "TypeError: cannot pickle '_thread.lock' object"),
    ],
)
def test_what_cannot_be_checked_passes_with_a_warning(what, message, folder, caplog):
    assert run_virtual(let_through, 1, folder, what, True) == [(30, K)]
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert message in record.getMessage()


def test_a_large_model_is_not_copied(folder, caplog, monkeypatch):
    monkeypatch.setattr("gnn_dist.parallel.probe.MOST_BYTES", 100)
    assert run_virtual(let_through, 1, folder, "", True) == [(30, K)]
    assert "a copy of it would take 0.0 GB" in caplog.text


def without_probe(world, folder):
    shard = gd.load_shard(folder, world)
    model = gd.parallelize(make_wrong("torchscript"), shard, world, probe=False)
    return model(shard.x.float(), shard.edge_index).shape


def test_the_probe_can_be_turned_off(folder):
    assert run_virtual(without_probe, 1, folder) == [(30, K)]


class Steps(nn.Module):
    """Takes as many sums over all rows as there are rows."""

    def __init__(self):
        super().__init__()
        self.conv = pyg.GraphConv(NUM_FEATURES, K)

    def forward(self, x, edge_index):
        for _ in range(x.size(0)):
            x = x - x.mean(0)
        return self.conv(x, edge_index)


def endless(world, folder):
    shard = gd.load_shard(folder, world)
    model = gd.parallelize(Steps(), shard, world)
    with pytest.raises(ConfigError, match="the ranks of this model would wait for each other"):
        model(shard.x.float(), shard.edge_index)


def test_a_model_whose_ranks_would_hang_is_refused(folder):
    run_virtual(endless, 1, folder)


@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.parametrize("taken", [set(), {43, 31, 74, 343}, set(range(20, 400, 3))])
def test_the_graph_is_awkward_and_its_sizes_are_free(taken, isolated):
    graph, partition = make_graph(taken, isolated=isolated)
    src, dst = graph.edges()
    part = np.asarray(partition.assignment)
    assert (graph.in_degree == 0).any() == isolated
    assert (src == dst).sum() >= 5
    assert len(np.unique(src * graph.num_nodes + dst)) < graph.num_edges
    assert not graph.is_symmetric
    assert (part[src] != part[dst]).sum() > 50
    nodes, edges = np.bincount(part), np.bincount(part[dst])
    sizes = {graph.num_nodes, graph.num_edges, *nodes.tolist(), *edges.tolist()}
    assert len(sizes) == 6
    assert not sizes & taken
    assert (np.diff(part) != 0).sum() > 20  # interleaved


def on_the_edge(world, folder):
    shard = gd.load_shard(folder, world)
    runs = iter(range(100))

    def step(net, x, edge_index):
        # Whole, plain and two parts are four runs; only the first four are wrong.
        return x * (x.size(0) if next(runs) < 4 else 1.0)

    model = gd.parallelize(Net(step), shard, world)
    assert model(shard.x.float(), shard.edge_index).shape == (30, K)
    return next(runs)


def test_what_differs_once_is_taken_for_rounding(folder):
    assert run_virtual(on_the_edge, 1, folder) == [9]  # two probes of four, and the real one


def with_an_empty_rank(world, folder):
    shard = gd.load_shard(folder, world)
    model = gd.parallelize(Several(), shard, world)
    edge_id = shard.edge_data["edge_id"]
    graph = {"kind": shard.node_id % 3, "bond": edge_id % 5, "edge_index": shard.edge_index}
    model(graph, weights=1.0 + edge_id)
    wrong = gd.parallelize(make_wrong("torchscript"), shard, world)
    with pytest.raises(ConfigError, match=TWO):
        wrong(shard.x.float(), shard.edge_index)
    return shard.num_owned


def test_a_rank_without_nodes_knows_what_the_others_pass(tmp_path, caplog):
    _, graph, partition = awkward_case("all on one", 3)
    edge_id = np.arange(graph.num_edges)
    write_partition(graph.replace(edge_id=edge_id), partition, tmp_path / "parts")
    assert run_virtual(with_an_empty_rank, 3, tmp_path / "parts")[0] == 0
    assert caplog.records == []
