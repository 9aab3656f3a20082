"""Models that are wrong on purpose are refused by a rule or by the probe; right ones pass."""

import random
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from awkward import NUM_FEATURES, awkward_case
from torch import nn

import gnn_dist as gd
from gnn_dist.errors import ConfigError
from gnn_dist.parallel.probe_graph import make_graph
from gnn_dist.partition import Partition
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks, run_virtual

K = 4


class Wrong(nn.Module):
    """A model whose one step between two layers is a function of rows and edges."""

    def __init__(self, step):
        super().__init__()
        self.step = step
        self.first, self.second = pyg.SAGEConv(NUM_FEATURES, K), pyg.GraphConv(K, K)
        self.table = nn.Embedding(100, K)

    def forward(self, x, edge_index):
        x = self.first(x, edge_index).tanh()
        return self.second(self.step(self, x, edge_index), edge_index)


class RowMean(torch.autograd.Function):
    """A mean over rows that no rule sees."""

    @staticmethod
    def forward(ctx, x):
        ctx.rows = len(x)
        return x.mean(0)

    @staticmethod
    def backward(ctx, grad):
        return grad.expand(ctx.rows, -1) / ctx.rows


class WrongGradient(torch.autograd.Function):
    """Right forward, and a backward that counts rows."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * len(grad) / 37


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(0)


def by_position(model, x, edge_index):
    return x + x[torch.arange(5)].sum(0)


def counted_in_python(model, x, edge_index):
    degree = [0] * len(x)
    for target in edge_index[1].tolist():
        degree[target] += 1
    return x * torch.tensor(degree, dtype=x.dtype)[:, None]


class ByTarget(pyg.MessagePassing):
    """A message that depends on the number of its target."""

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j, index):
        return x_j * (index % 3)[:, None]


class Counter(nn.Module):
    """Counts rows as it goes along."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(()))

    def forward(self, x):
        self.rows += x.size(0)
        return x


def group_norm_of_columns(model, x, edge_index):
    return F.group_norm(x.t()[None], 2)[0].t()


WRONG = {
    "autograd function": lambda m, x, e: x - RowMean.apply(x),
    "number of rows": lambda m, x, e: x / x.size(0) ** 0.5,
    "number of edges": lambda m, x, e: x * e.size(1),
    "torchscript": lambda m, x, e: scripted(x),
    "numpy": lambda m, x, e: x - torch.from_numpy(x.detach().numpy().mean(0)),
    "list": lambda m, x, e: x * sum(x[:, 0].tolist()),
    "positions": by_position,
    "local ids": lambda m, x, e: x + m.table(torch.arange(x.size(0))),
    "position code": lambda m, x, e: x + torch.arange(x.size(0))[:, None] / 50,
    "running sum": lambda m, x, e: x.cumsum(0),
    "pairs": lambda m, x, e: (x @ x.t()).softmax(1) @ x,
    "sort": lambda m, x, e: x.sort(0).values,
    "degrees": counted_in_python,
    "columns": group_norm_of_columns,
    "shift": lambda m, x, e: x + torch.cat([x[1:], x[:1]]),
    "ids as numbers": lambda m, x, e: x * (e[1].float().mean() + 1),
    "gradient": lambda m, x, e: WrongGradient.apply(x),
}


def make_wrong(name):
    torch.manual_seed(3)
    if name == "message":
        return nn.Sequential()
    return Wrong(WRONG[name])


def load(world, folder):
    shard = gd.load_shard(folder, world)
    return shard, shard.x.float()


def refusal(world, folder, model):
    shard, x = load(world, folder)
    model = gd.parallelize(model, shard, world)
    with pytest.raises(ConfigError) as caught:
        model(x, shard.edge_index)
    return str(caught.value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("probe") / "parts"
    _, graph, partition = awkward_case("random partition", 2)
    write_partition(graph, partition, path)
    return path


# By the probe; what it says of where.
BY_PROBE = {
    "autograd function": "goes into layer second",
    "number of rows": "goes into layer second",
    "number of edges": "goes into layer second",
    "torchscript": "goes into layer second",
    "local ids": "layer table|layer second",
    "position code": "goes into layer second",
    "gradient": "gradient of first",
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_models_are_refused(name, folder):
    [message] = run_virtual(refusal, 1, folder, make_wrong(name))
    print(name, "::", message)
    if name in BY_PROBE:
        import re
        assert re.search(BY_PROBE[name], message), message
