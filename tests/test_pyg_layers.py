"""Every convolution of PyTorch Geometric is exact on shards, or refused with the reason."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_geometric.nn.conv as pyg_conv
from awkward import AWKWARD, awkward_case
from pyg_cases import CASES, MODELS, RELATIONS, Model

import gnn_dist as gd
from gnn_dist.parallel.refusal import REFUSED_CONVS
from gnn_dist.partition import Partition
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks

# Where plain PyTorch Geometric fails, or takes the largest id that has an edge for the last one.
APART = {
    ("EGConv, several", "no edges"),
    ("EGConv, several", "isolated nodes"),
    ("SAGEConv, sorted", "no edges"),
    ("models.EdgeCNN", "single node"),
}
QUICK = ("empty part", "duplicate edges")


def make_model(name):
    torch.manual_seed(5)
    return Model(CASES[name]).double()


def inputs(graph, node_id, edge_id):
    """Values that belong to nodes and edges, wherever these are."""

    def drawn(ids, width, seed):
        table = np.random.default_rng(seed).random(
            (int(max(graph.num_edges, graph.num_nodes)) + 1, width)
        )
        return torch.from_numpy(table[ids])

    weight = 0.1 + 0.9 * drawn(edge_id, 1, 1)[:, 0]
    kind = (drawn(edge_id, 1, 2)[:, 0] * RELATIONS).long()
    return weight, kind, drawn(node_id, 3, 3)


def graph_of(case):
    _, graph, partition = awkward_case(case, 4)
    return graph.replace(edge_id=np.arange(graph.num_edges)), partition


def results(model, x, edge_index, extras, upstream):
    x = x.clone().requires_grad_()
    weight = extras[0].clone().requires_grad_()
    out = model(x, edge_index, weight, *extras[1:])
    (out * upstream[:, : out.size(1)]).sum().backward()
    return out.detach(), x.grad, weight.grad


def one_process(case, name):
    graph, _ = graph_of(case)
    model = make_model(name).eval()
    x = torch.from_numpy(graph.x)
    src, dst = graph.edges() if hasattr(graph, "edges") else (None, None)
    edge_index = torch.stack([torch.from_numpy(np.asarray(a)).long() for a in (src, dst)])
    extras = inputs(graph, np.arange(graph.num_nodes), np.arange(graph.num_edges))
    upstream = torch.from_numpy(np.random.default_rng(7).standard_normal((graph.num_nodes, 64)))
    out, grad, _ = results(model, x, edge_index, extras, upstream)
    parameters = [p.grad for p in model.parameters()]
    return out, grad, parameters


def on_ranks(world, folders, names):
    found = {}
    for case, folder in folders.items():
        shard = gd.load_shard(folder, world)
        graph, _ = graph_of(case)
        node_id = shard.node_id.numpy()
        extras = inputs(graph, node_id, shard.edge_data["edge_id"].numpy())
        upstream = torch.from_numpy(np.random.default_rng(7).standard_normal((graph.num_nodes, 64)))
        for name in names:
            # This table says more than the probe would.
            model = gd.parallelize(make_model(name), shard, world, probe=False).eval()
            try:
                out, grad, _ = results(model, shard.x, shard.edge_index, extras, upstream[node_id])
            except Exception as error:
                error.add_note(f"{name} on {case}")
                raise
            parameters = [p.grad for p in model.parameters()]
            found[case, name] = node_id, out, grad, parameters
    return found


@pytest.fixture(scope="module")
def expected():
    """What plain PyTorch Geometric computes, made once for each graph and layer."""
    made = {}

    def get(case, name):
        if (case, name) not in made:
            made[case, name] = one_process(case, name)
        return made[case, name]

    return get


def check(world_size, cases, tmp_path, expected):
    folders = {}
    for case in cases:
        graph, partition = graph_of(case)
        if world_size == 1:
            partition = Partition([0] * graph.num_nodes, 1)
        folders[case] = tmp_path / case
        write_partition(graph, partition, folders[case])
    by_rank = run_ranks(on_ranks, world_size, folders, list(CASES), timeout_s=300.0)
    for case in cases:
        for name in CASES:
            if (name, case) in APART:
                continue
            out, grad, parameters = expected(case, name)
            order = np.argsort(np.concatenate([r[case, name][0] for r in by_rank]))
            for i, whole in ((1, out), (2, grad)):
                got = torch.cat([r[case, name][i] for r in by_rank])[order]
                close(got, whole, f"{name} on {case}")
            for rank in by_rank:
                for got, whole in zip(rank[case, name][3], parameters, strict=True):
                    assert (got is None) == (whole is None), (name, case)
                    if whole is not None:
                        close(got, whole, f"{name} on {case}")


def close(got, whole, where):
    torch.testing.assert_close(
        got, whole, rtol=1e-9, atol=1e-9, msg=lambda text: f"{where}: {text}"
    )


def test_layers_compute_what_one_process_computes(tmp_path, expected):
    check(3, QUICK, tmp_path, expected)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_awkward_graph(world_size, tmp_path, expected):
    check(world_size, AWKWARD, tmp_path, expected)


def layers():
    """Names of the layers' classes in the table."""
    return {name.partition(",")[0] for name in CASES if name not in MODELS}


def test_every_convolution_is_in_the_table():
    assert set(pyg_conv.__all__) == layers() | set(REFUSED_CONVS) | {"MessagePassing"}
    assert len(layers()) >= 45


def test_the_table_in_the_documents():
    text = Path("docs/models.md").read_text()
    exact = [f"`{name}`" for name in sorted(layers())]
    assert f"{len(exact)} are exact: {', '.join(exact)}." in " ".join(text.split())
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE)
    assert rows == sorted(REFUSED_CONVS.items())
