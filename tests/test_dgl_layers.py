"""Every convolution of DGL is exact on shards, against DGL on the whole graph, or refused."""

import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from awkward import awkward_case

import gnn_dist as gd
from gnn_dist.errors import ConfigError
from gnn_dist.partition import Partition
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of DGL, which is older than its dependencies
    dgl = pytest.importorskip("dgl")

from dgl_cases import CASES, TYPES, Model  # noqa: E402 - after it is known that DGL is there

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.filterwarnings("ignore:.*lambda_max.*"),
    pytest.mark.filterwarnings("ignore:.*single graph.*"),
]

QUICK = ("directed", "empty part", "self-loops", "duplicate edges", "isolated nodes")
SLOW = ("single node", "no edges", "star", "all on one", "random partition", "no halo")


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
    with float64():
        return results(make_model(name), g, given)


def on_ranks(world, folders, names):
    found = {}
    for case, folder in folders.items():
        shard = gd.load_shard(folder, world)
        g = gd.dgl_graph(shard, world)
        graph, _ = whole_graph(case)
        node_id, edge_id = shard.node_id.numpy(), shard.edge_data["edge_id"].numpy()
        given = inputs(graph, node_id, edge_id)
        for name in names:
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
        for name in names:
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


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_layers_are_exact(tmp_path, world_size):
    check(world_size, QUICK, tuple(CASES), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 3])
def test_layers_are_exact_on_more_graphs(tmp_path, world_size):
    check(world_size, SLOW, tuple(CASES), tmp_path)
