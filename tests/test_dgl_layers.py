"""Every convolution of DGL is exact on shards, against DGL on the whole graph, or refused."""

import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from awkward import AWKWARD, awkward_case

import gnn_dist as gd
from gnn_dist.errors import ConfigError
from gnn_dist.parallel.dgl_refusal import REFUSED_DGL
from gnn_dist.partition import Partition
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of DGL, which is older than its dependencies
    dgl = pytest.importorskip("dgl")

from dgl_cases import CASES, TYPES, Model  # after it is known that DGL is there

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*lambda_max.*"),
    pytest.mark.filterwarnings("ignore:.*single graph.*"),
    pytest.mark.filterwarnings("ignore:.*does not contain valid edges.*"),
]

QUICK = {2: "duplicate edges", 3: "empty part"}  # the first is directed and has loops


@contextmanager
def float64():
    """APPNPConv makes weights of the default dtype, and DGL does not mix dtypes."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def make_model(name):
    torch.manual_seed(5)
    return Model(name).double().eval()


def whole_graph(case):
    _, graph, partition = awkward_case(case, 3)
    return graph.replace(edge_id=np.arange(graph.num_edges)), partition


def inputs(graph, node_id, edge_id):
    """Values that belong to nodes and edges, wherever these are."""

    def drawn(ids, width, seed):
        many = max(graph.num_edges, graph.num_nodes) + 1
        return torch.from_numpy(np.random.default_rng(seed).random((many, width))[ids])

    weight = 0.1 + 0.9 * drawn(edge_id, 1, 1)[:, 0]
    kind = (drawn(edge_id, 1, 2)[:, 0] * TYPES).long()
    node_kind = (drawn(node_id, 1, 4)[:, 0] * 2).long()
    x, upstream = (drawn(node_id, width, seed) - 0.5 for width, seed in ((5, 5), (20, 6)))
    return x, (weight, kind, drawn(node_id, 3, 3), node_kind), upstream


def results(model, g, given):
    x, (weight, *extras), upstream = given
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    out = model(g, x, weight, *extras)
    (out * upstream[:, : out.size(1)]).sum().backward()
    return out.detach(), x.grad, weight.grad, [p.grad for p in model.parameters()]


def one_process(case, name):
    graph, _ = whole_graph(case)
    src, dst = (torch.from_numpy(np.asarray(ends)).long() for ends in graph.edges())
    g = dgl.graph((src, dst), num_nodes=graph.num_nodes)
    given = inputs(graph, np.arange(graph.num_nodes), np.arange(graph.num_edges))
    model = make_model(name)
    with float64():
        return results(model, g, given)


def usable(case, names):
    """Leave out what DGL itself fails at, or gets a wrong gradient of, without any message."""
    failing = ("AtomicConv", "maximum", "EdgeConv", "SAGEConv, pool", "dgl.ops")
    return [n for n in names if case != "no edges" or not any(word in n for word in failing)]


def on_ranks(world, folders, names):
    found = {}
    for case, folder in folders.items():
        shard = gd.load_shard(folder, world)
        g = gd.dgl_graph(shard, world)
        graph, _ = whole_graph(case)
        node_id, edge_id = shard.node_id.numpy(), shard.edge_data["edge_id"].numpy()
        given = inputs(graph, node_id, edge_id)
        for name in usable(case, names):
            model = gd.parallelize(make_model(name), shard, world).eval()
            try:
                with float64():
                    got = results(model, g, given)
            except Exception as error:
                error.add_note(f"{name} on {case}")
                raise
            found[case, name] = node_id, edge_id, *got
    return found


def joined(by_rank, key, ids, values):
    """Return rows of all ranks in the order of their ids."""
    rows = [rank[key][values] for rank in by_rank if rank[key][values] is not None]
    order = np.argsort(np.concatenate([rank[key][ids] for rank in by_rank]))
    return torch.cat(rows)[order] if rows else None


def check(world_size, cases, names, tmp_path):
    folders = {case: tmp_path / case for case in cases}
    for case, folder in folders.items():
        graph, partition = whole_graph(case)
        if world_size == 1:
            partition = Partition(np.zeros(graph.num_nodes, np.int64), 1)
        write_partition(graph, partition, folder)
    by_rank = run_ranks(on_ranks, world_size, folders, names, timeout_s=200.0)
    for case in cases:
        for name in usable(case, names):
            expected = one_process(case, name)
            got = [joined(by_rank, (case, name), ids, at) for ids, at in ((0, 2), (0, 3), (1, 4))]
            where = f"{name} on {case}, {world_size} ranks"
            for mine, plain in zip(got, expected[:3], strict=True):
                assert_same(mine, plain, where)
            for rank in by_rank:
                for mine, plain in zip(rank[case, name][5], expected[3], strict=True):
                    assert_same(mine, plain, where)


def assert_same(got, expected, where):
    assert (got is None) == (expected is None), where
    if expected is not None:
        torch.testing.assert_close(
            got, expected, rtol=1e-9, atol=1e-9, msg=lambda text: f"{where}: {text}"
        )


@pytest.mark.parametrize("world_size", QUICK)
def test_layers_are_exact(tmp_path, world_size):
    check(world_size, [QUICK[world_size]], tuple(CASES), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_layers_are_exact_on_all_graphs(tmp_path, world_size):
    check(world_size, AWKWARD, tuple(CASES), tmp_path)


def test_every_convolution_is_in_the_table():
    known = {name.partition(",")[0] for name in CASES} | set(REFUSED_DGL)
    known |= {"EdgeWeightNorm", "TWIRLSUnfoldingAndAttention"}  # parts of others
    assert (
        set(
            dgl.nn.pytorch.conv.__all__
            if hasattr(dgl.nn.pytorch.conv, "__all__")
            else [name for name in vars(dgl.nn.pytorch.conv) if name.endswith("Conv")]
        )
        <= known
    )
    assert len({name.partition(",")[0] for name in CASES}) >= 25


def shard_of(world, folder):
    shard = gd.load_shard(folder, world)
    return shard, gd.dgl_graph(shard, world)


@pytest.fixture
def folder(tmp_path):
    graph, partition = whole_graph("directed")
    write_partition(graph, partition, tmp_path / "parts")
    return tmp_path / "parts"


REFUSED = {
    "DenseGraphConv": (lambda: dgl.nn.DenseGraphConv(5, 4), "adjacency matrix of the whole graph"),
    "GatedGraphConv": (lambda: dgl.nn.GatedGraphConv(5, 6, 2, 3), "several types of edges"),
    "GlobalAttentionPooling": (
        lambda: dgl.nn.GlobalAttentionPooling(torch.nn.Linear(5, 1)),
        "reads out each graph of a batch",
    ),
    "HeteroGraphConv": (
        lambda: dgl.nn.HeteroGraphConv({"a": dgl.nn.GraphConv(5, 4)}),
        "several types",
    ),
    "KNNGraph": (lambda: dgl.nn.KNNGraph(3), "neighbours among all nodes"),
    "PNAConv": (lambda: dgl.nn.PNAConv(5, 4, ["mean"], ["identity"], 2.5), "number of nodes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_layers_that_would_not_be_exact_are_refused(name, folder):
    make, reason = REFUSED[name]
    world = gd.World.single()
    shard, _ = shard_of(world, folder)
    with pytest.raises(ConfigError, match=rf"layer 0 \({name}\): .*{reason}"):
        gd.parallelize(torch.nn.Sequential(make()), shard, world)


class Calls(torch.nn.Module):
    """Calls a function with a graph and rows."""

    def __init__(self, does):
        super().__init__()
        self.first, self.does = torch.nn.Linear(5, 5).double(), does

    def forward(self, g, x):
        return self.does(g, self.first(x))


def with_h(g, x, does):
    with g.local_scope():
        g.ndata["h"] = x
        return does(g)


def src_softmax(g, x):
    return dgl.ops.edge_softmax(g, dgl.ops.copy_u(g, x), norm_by="src")


def own_graph(g, x):
    """Messages on a graph that the model has made of its rank's nodes."""
    inside = dgl.graph(([0], [0]), num_nodes=g.num_nodes())
    return dgl.ops.copy_u_sum(inside, x)


FUNCTIONS = {
    "readout": (lambda g, x: with_h(g, x, lambda g: dgl.mean_nodes(g, "h")), "batch_num_nodes"),
    "softmax over out-edges": (src_softmax, "norm_by must be 'dst'"),
    "some edges": (
        lambda g, x: with_h(g, x, lambda g: g.apply_edges(lambda e: {"m": e.src["h"]}, [0])),
        "other ranks might have none",
    ),
    "another graph": (own_graph, "without the shard's graph"),
    "a method": (lambda g, x: g.sample_neighbors([0], 1), "sample_neighbors is not known"),
    "maximum along reversed edges": (
        lambda g, x: dgl.ops.copy_u_max(g.reverse(), x),
        "owners can only add",
    ),
    "rows of others": (lambda g, x: with_h(g, x.new_ones(3), lambda g: x), "a row for each of"),
    "draws by position": (
        lambda g, x: with_h(
            g, x, lambda g: g.apply_edges(lambda e: {"m": torch.randn_like(e.src["h"])})
        ),
        "draws by position",
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_that_would_not_be_exact_are_refused(name, folder):
    does, reason = FUNCTIONS[name]
    world = gd.World.single()
    shard, g = shard_of(world, folder)
    model = gd.parallelize(Calls(does), shard, world)
    with pytest.raises(ConfigError, match=reason):
        model(g, shard.x)
    assert model.module.does is does
    assert dgl.backend.pytorch.sparse.GSpMM.__name__ == "GSpMM", "DGL is as before"


def test_graphs_of_dgl_itself_are_refused(folder):
    world = gd.World.single()
    shard, g = shard_of(world, folder)
    model = gd.parallelize(dgl.nn.GraphConv(5, 4).double(), shard, world)
    with pytest.raises(ConfigError, match=r"pass gnn_dist\.dgl_graph"):
        model(dgl.graph(tuple(shard.edge_index)), shard.x)
    other = gd.load_shard(folder, world)
    with pytest.raises(ConfigError, match="of another shard"):
        model(gd.dgl_graph(other, world), shard.x)
    with pytest.raises(ConfigError, match="in the forward of a model"):
        g.update_all(dgl.function.copy_u("feat", "m"), dgl.function.sum("m", "h"))


class Trained(torch.nn.Module):
    """Dropout of nodes, of edges and of attention, and batch norm, as training has them."""

    def __init__(self, g=None):
        super().__init__()
        self.g = g
        self.first = dgl.nn.GATConv(
            5, 3, 2, feat_drop=0.3, attn_drop=0.4, allow_zero_in_degree=True
        )
        self.norm, self.last = torch.nn.BatchNorm1d(6), dgl.nn.SAGEConv(6, 3, "mean", feat_drop=0.2)
        self.spread = dgl.nn.APPNPConv(2, 0.2, edge_drop=0.3)

    def forward(self, x):
        h = self.norm(self.first(self.g, x).flatten(1)).relu()
        return self.spread(self.g, self.last(self.g, h))


def losses(world, folder, halo="overlap"):
    """Train a model that keeps its graph; the features are what the graph has."""
    with float64():
        return _losses(world, folder, halo)


def _losses(world, folder, halo):
    shard, g = shard_of(world, folder)
    torch.manual_seed(3)
    model = gd.parallelize(Trained(g), shard, world, halo=halo, seed=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    task = gd.make_task(shard, split=0, world=world)
    found = []
    for _ in range(4):
        logits = model(g.ndata["feat"])
        loss = gd.node_loss(logits, task.y, task.masks["train"], task.num_train)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_training_draws_the_same_for_any_number_of_ranks(folder):
    alone, several = (run_ranks(losses, size, folder, timeout_s=60.0) for size in (1, 3))
    np.testing.assert_allclose(np.sum(several, 0), np.sum(alone, 0), rtol=1e-9)
    assert np.ptp(alone) > 0.01


def test_graph_has_what_the_shard_has(folder):
    shard, g = shard_of(gd.World.single(), folder)
    graph, _ = whole_graph("directed")
    assert g.num_nodes() == g.number_of_dst_nodes() == graph.num_nodes
    assert g.num_edges() == graph.num_edges
    assert torch.equal(g.ndata["feat"], shard.x)
    assert torch.equal(g.ndata["label"], shard.y)
    assert torch.equal(g.ndata["train_mask"], shard.masks["train_mask"])
    src, dst, number = g.edges("all")
    assert torch.equal(torch.stack([src, dst]), shard.edge_index)
    assert torch.equal(number, torch.arange(graph.num_edges))
    assert torch.equal(g.out_degrees(), torch.bincount(src, minlength=graph.num_nodes))
    assert torch.equal(g.reverse().out_degrees(), g.in_degrees())
    looped = g.add_self_loop()
    assert torch.equal(looped.in_degrees(), g.in_degrees() + 1)
    assert torch.equal(looped.remove_self_loop().out_degrees(), g.out_degrees())
    with pytest.raises(ConfigError, match="one type of nodes"):
        g.num_nodes("paper")
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = g.colour
