"""What a model may do with rows of nodes and edges: exact over all ranks, or refused."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from awkward import NUM_FEATURES, awkward_case
from torch import nn
from torch_geometric import utils

import gnn_dist as gd
from gnn_dist.errors import ConfigError
from gnn_dist.partition import Partition
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks

pytestmark = pytest.mark.mpi

GRAPHS = ("random partition", "empty part", "directed")


def degrees_of_sources(x, e):
    return x * utils.degree(e[0], x.size(0), dtype=x.dtype)[:, None]


def random_walk(x, e):
    weight = 1 / utils.degree(e[0], len(x), dtype=x.dtype)[e[0]]
    return utils.scatter(weight[:, None] * x[e[0]], e[1], dim_size=len(x))


def laplacian(x, e):
    e, weight = utils.get_laplacian(e, normalization="sym", num_nodes=len(x), dtype=x.dtype)
    return utils.scatter(weight[:, None] * x[e[0]], e[1], dim_size=len(x))


def both_ways(x, e):
    back = e.flip(0)
    return torch.cat(
        [utils.scatter(x[row], col, dim_size=len(x), reduce="mean") for row, col in (e, back)], 1
    )


def attention_pool(x, e):
    gate = utils.softmax(x.sum(1), x.new_zeros(len(x), dtype=torch.long))
    return (gate[:, None] * x).sum(0)


def upper_edges(x, e):
    e = e[:, e[0] < e[1]]
    return utils.scatter(x[e[0]], e[1], dim_size=len(x))


def linear_attention(x, e):
    q, k = x.sigmoid(), x.square()
    return q @ (k.t() @ x) / (q @ k.sum(0))[:, None]


def edge_means(x, e):
    difference = (x[e[0]] - x[e[1]]).square()
    return x * difference.mean(0) + difference.sum()


def some_nodes(x, e):
    picked = (x[:, 0] > 0).nonzero().view(-1)
    out = torch.zeros_like(x)
    out[picked] = x[picked].cos()
    return out + x[x[:, 1] > 0].mean(0)


def seeded(make):
    torch.manual_seed(1)
    return make().double()


# (x (n, F), edges) -> rows of nodes, or what is equal on all ranks.
def changed_between(x, e):
    rows = x.sin()
    first = torch.zeros_like(x).index_add(0, e[1], rows[e[0]])
    rows.add_(1.0)
    return first + torch.zeros_like(x).index_add(0, e[1], rows[e[0]])


def counts(x, e):
    out = torch.bincount(e[0], minlength=len(x)) + 2 * torch.bincount(e[1], minlength=len(x))
    return x * out[:, None]


ROWS = {
    "counts of ends": counts,
    "rows changed in place": changed_between,
    "degrees of sources": degrees_of_sources,
    "random walk": random_walk,
    "laplacian": laplacian,
    "both ways": both_ways,
    "upper edges": upper_edges,
    "edge means": edge_means,
    "linear attention": linear_attention,
    "some nodes": some_nodes,
    "mean": lambda x, e: x - x.mean(0, keepdim=True),
    "deviation": lambda x, e: x / x.std(0, unbiased=False) + x.var(),
    "normalize": lambda x, e: F.normalize(x, dim=0) + F.normalize(x, dim=1),
    "maximum": lambda x, e: x / x.amax(0) + x.min(0).values,
    "einsum": lambda x, e: torch.einsum("nf,gf->ng", x, torch.einsum("nf,ng->fg", x, x)),
    "layers": lambda x, e: torch.stack([x, x * 2], 1).flatten(1),
    "jumping knowledge": lambda x, e: pyg.JumpingKnowledge("max")([x, x.tanh()]),
    "layer norm of the graph": lambda x, e: seeded(lambda: pyg.LayerNorm(NUM_FEATURES))(x),
    "layer norm of nodes": lambda x, e: seeded(lambda: pyg.LayerNorm(NUM_FEATURES, mode="node"))(x),
    "graph norm": lambda x, e: seeded(lambda: pyg.GraphNorm(NUM_FEATURES))(x),
    "pair norm": lambda x, e: pyg.PairNorm()(x),
    "instance norm": lambda x, e: seeded(lambda: pyg.InstanceNorm(NUM_FEATURES, affine=True))(x),
    "mean subtraction": lambda x, e: pyg.MeanSubtractionNorm()(x),
    "group norm": lambda x, e: seeded(lambda: pyg.DiffGroupNorm(NUM_FEATURES, 2))(x),
    "batch norm": lambda x, e: seeded(lambda: pyg.BatchNorm(NUM_FEATURES))(x),
    "more columns": lambda x, e: F.pad(x, (1, 2)),
    "put where picked": lambda x, e: x.index_put((x[:, 0] > 0,), x.new_zeros(5)),
    "number of nodes": lambda x, e: x * (int(e.max()) + 1 == len(x)),
}
POOLS = {
    "sum": lambda x, e: pyg.global_add_pool(x, None),
    "mean": lambda x, e: pyg.global_mean_pool(x, x.new_zeros(len(x), dtype=torch.long)),
    "maximum": lambda x, e: pyg.global_max_pool(x.relu(), None),
    "maximum of groups": lambda x, e: pyg.global_max_pool(x.relu(), (x[:, 0] > 0).long(), 2),
    "attention": attention_pool,
    "aggregation": lambda x, e: pyg.MultiAggregation(["mean", "std", "softmax"])(x),
    "norm": lambda x, e: x.norm() + torch.linalg.vector_norm(x, 1),
    "norm of zeros": lambda x, e: (x * torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0])).norm(dim=0),
    "variance": lambda x, e: x.var(0, correction=None) + x.var(0, correction=0),
    "any": lambda x, e: x.sum() * (x > 0.2).any() + (x > 9).all(),
}
REFUSED = {
    "first rows": (lambda x, e: x[:3], "by position"),
    "one row": (lambda x, e: x - x[0], "by position"),
    "a loss": (
        lambda x, e: x * torch.nn.functional.mse_loss(x, x + 1),
        "puts the rows of this rank's owned nodes together",
    ),
    "as many rows": (lambda x, e: x + x[x[:, 0] > -99.0], "beside some, picked by position"),
    "sort": (lambda x, e: x.sort(0).values, "goes over the rows"),
    "top": (lambda x, e: x.topk(2, 0).values, "goes over the rows"),
    "sum so far": (lambda x, e: x.cumsum(0), "goes over the rows"),
    "all pairs": (lambda x, e: x @ x.t(), "pairs each of this rank's rows"),
    "distances": (lambda x, e: torch.cdist(x, x), "pairs each of this rank's rows"),
    "softmax": (lambda x, e: x.softmax(0), "goes over the rows"),
    "moved": (lambda x, e: x.roll(1, 0), "moves the rows"),
    "lists": (lambda x, e: x * len(e[0].tolist()), "outside PyTorch"),
    "ids": (lambda x, e: x + e[0].sum(), "local ids"),
    "a table by local ids": (lambda x, e: x + torch.ones(99)[e[0]].sum(), "looks up local ids"),
    "rows by local ids": (
        lambda x, e: x + torch.ones(99, 1).index_select(0, e[1]).sum(),
        "looks up local ids",
    ),
    "entries by local ids": (
        lambda x, e: x + torch.ones(99).gather(0, e[0]).sum(),
        "looks up local ids",
    ),
    "a matrix of edges": (
        lambda x, e: torch.sparse_coo_tensor(e, torch.ones(e.size(1)), (len(x), len(x))) @ x,
        "makes a matrix of this rank's edges",
    ),
    "ids as numbers": (lambda x, e: x + e[1].float().mean(), "local ids"),
    "maximum at sources": (
        lambda x, e: utils.scatter(x[e[1]], e[0], dim_size=len(x), reduce="max"),
        "can only add",
    ),
    "made undirected": (lambda x, e: x * utils.to_undirected(e).size(1), "reversed edges"),
    "one by one": (lambda x, e: torch.stack([row for row in x]), "one by one|by position"),
    "special softmax": (lambda x, e: torch.special.softmax(x, 0), "goes over the rows"),
    "sum so far in place": (lambda x, e: x.clone().cumsum_(0), "goes over the rows"),
    "largest so far": (lambda x, e: x.cummax(0).values, "goes over the rows"),
    "sorted columns": (lambda x, e: torch.msort(x), "goes over the rows"),
    "norms of columns": (lambda x, e: torch.renorm(x, 2, 1, 0.5), "normalises over"),
    "weight norm": (lambda x, e: torch._weight_norm(x, torch.ones_like(x), 1), "normalises over"),
    "norm of a matrix": (lambda x, e: x / torch.linalg.norm(x, 1), "of a matrix"),
    "shifted": (lambda x, e: F.pad(x, (0, 0, 1, -1)), "shifts the rows"),
    "put": (lambda x, e: x.clone().put_(e[0][:1], x.new_zeros(1)), "by position"),
    "put rows": (lambda x, e: x.index_put((torch.tensor([0]),), x.new_zeros(5)), "by position"),
    "scattered": (lambda x, e: x.masked_scatter(x > 0, torch.rand(999).to(x)), "by position"),
    "window": (lambda x, e: F.conv1d(x.t()[None], x.new_ones(5, 5, 3), padding=1), "goes over"),
    "pool": (lambda x, e: F.max_pool1d(x.t()[None], 3, 1, 1), "goes over the rows"),
    "mean pool": (lambda x, e: F.avg_pool1d(x.t()[None], 3, 1, 1), "goes over the rows"),
    "frequencies": (lambda x, e: torch.fft.fft(x, dim=0).real, "by position"),
    "triangle": (lambda x, e: x.tril(), "by position"),
    "diagonal": (lambda x, e: torch.diag(x[:, 0]), "by position"),
    "turned": (lambda x, e: torch.rot90(x, 2), "moves the rows"),
    "outer product": (lambda x, e: torch.outer(x[:, 0], x[:, 1]), "pairs each"),
    "resized": (lambda x, e: x.detach().clone().resize_(2, 5), "by position"),
    "a virtual node": (lambda x, e: torch.cat([x, x.mean(0, keepdim=True)]), "beside those"),
}


class Net(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.lin = function, nn.Linear(NUM_FEATURES, NUM_FEATURES)

    def forward(self, x, edge_index):
        return self.function(self.lin(x), edge_index)


def make(function):
    torch.manual_seed(3)
    return Net(function).double()


def on_ranks(world, folders, pools):
    found = {}
    for graph, folder in folders.items():
        shard = gd.load_shard(folder, world)
        for name, function in (POOLS if pools else ROWS).items():
            model = gd.parallelize(make(function), shard, world)
            x = shard.x.clone().requires_grad_()
            try:
                out = model(x, shard.edge_index)
            except Exception as error:
                error.add_note(f"{name} on {graph}")
                raise
            # What is equal on all ranks counts once.
            weight = 1.0 / world.world_size if pools else 1.0
            (weight * out.square()).sum().backward()
            gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
            found[graph, name] = [t.detach() for t in (shard.node_id, out, x.grad, gradients)]
    return found


def plain(graph, function):
    model, x = make(function), torch.from_numpy(graph.x).requires_grad_()
    edge_index = torch.stack([torch.from_numpy(np.asarray(a)).long() for a in graph.edges()])
    out = model(x, edge_index)
    out.square().sum().backward()
    return out.detach(), x.grad, torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root, made = tmp_path_factory.mktemp("parts"), {}
    for name in GRAPHS:
        _, graph, partition = awkward_case(name, 3)
        made[name] = root / name
        write_partition(graph, partition, made[name])
    return made


@pytest.mark.parametrize("pools", [False, True])
@pytest.mark.parametrize("world_size", [1, 3])
def test_functions_are_of_all_ranks(world_size, pools, folders):
    by_rank = run_ranks(on_ranks, world_size, folders, pools, timeout_s=100.0)
    for graph in GRAPHS:
        for name, function in (POOLS if pools else ROWS).items():
            out, grad, gradients = plain(awkward_case(graph, 3).graph, function)
            results = [found[graph, name] for found in by_rank]
            order = np.argsort(np.concatenate([r[0] for r in results]))
            where = f"{name} on {graph}"
            if pools:
                for result in results:
                    close(result[1], out, where)
            else:
                close(torch.cat([r[1] for r in results])[order], out, where)
            close(torch.cat([r[2] for r in results])[order], grad, where)
            close(results[0][3], gradients, where)


def close(got, whole, where):
    torch.testing.assert_close(
        got, whole, rtol=1e-9, atol=1e-9, msg=lambda text: f"{where}: {text}"
    )


def refused(world, folder):
    shard = gd.load_shard(folder, world)
    for name, (function, reason) in REFUSED.items():
        model = gd.parallelize(make(function), shard, world)
        with pytest.raises(ConfigError, match=reason) as caught:
            pytest.fail(f"{name} gives {model(shard.x, shard.edge_index)}")
        assert "rank" in str(caught.value) or "partition" in str(caught.value)


def test_what_depends_on_the_partition_is_refused(folders):
    run_ranks(refused, 1, folders["random partition"])


def dropped(world, folder):
    """Draws of edges and nodes, in training."""
    shard = gd.load_shard(folder, world)

    def draws(x, e):
        kept, _ = utils.dropout_edge(e, p=0.4)
        out = utils.scatter(x[kept[0]], kept[1], dim_size=len(x))
        return torch.cat([out, torch.rand_like(x), torch.bernoulli(x.sigmoid())], 1)

    model = gd.parallelize(make(draws), shard, world, seed=4)
    first, second = (model(shard.x, shard.edge_index).detach() for _ in range(2))
    return shard.node_id, first, second


def test_edges_are_dropped_by_id(folders, tmp_path):
    graph = awkward_case("random partition", 3).graph
    write_partition(graph, Partition([0] * graph.num_nodes, 1), tmp_path / "one")
    [(_, first, second)] = run_ranks(dropped, 1, tmp_path / "one")
    assert not torch.equal(first, second)
    parts = run_ranks(dropped, 3, folders["random partition"])
    order = np.argsort(np.concatenate([p[0] for p in parts]))
    for i, whole in ((1, first), (2, second)):
        close(torch.cat([p[i] for p in parts])[order], whole, f"step {i}")


def set_at_sources(x, e):
    rows = x.clone()
    rows[e[0]] = 1.0
    return rows


def refused_apart(world, folder):
    shard = gd.load_shard(folder, world)
    model = gd.parallelize(make(set_at_sources), shard, world, probe=False)
    with pytest.raises(ConfigError, match="sets rows at the sources of edges"):
        model(shard.x, shard.edge_index)


def test_rows_of_other_ranks_are_not_set(folders):
    run_ranks(refused_apart, 3, folders["random partition"])


def two_draws(world, folder):
    shard = gd.load_shard(folder, world)
    drop = torch.nn.functional.dropout
    model = gd.parallelize(
        make(lambda x, e: torch.cat([drop(x.exp()), drop(x.exp())], 1)), shard, world
    )
    first, second = model(shard.x, shard.edge_index).chunk(2, 1)
    assert not torch.equal(first == 0, second == 0)


def test_draws_of_a_forward_differ(folders):
    run_ranks(two_draws, 1, folders["random partition"])
