"""`aggregate` over owned and halo sources: every reduction and kind of weight, with gradients."""

import numpy as np
import pytest
import torch
from awkward import AWKWARD, MOSTLY_SLOW, awkward_case

from gnn_dist.halo.aggregate import aggregate, all_sources
from gnn_dist.halo.block import Block
from gnn_dist.halo.exchange import ExchangeMaker
from gnn_dist.halo.load import load_shard
from gnn_dist.ops.draws import edge_ids
from gnn_dist.partition import Partition
from gnn_dist.partitioners import partition_graph
from gnn_dist.profile.meter import HALO_WAIT, Meter
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks

pytestmark = pytest.mark.mpi

EXACT = ("overlap", "remat:buffer=700")  # two rows of each owner at a time
CASES = [
    *((reduce, "none", False) for reduce in ("sum", "mean", "max", "min")),
    ("sum", "edge", False),
    ("sum", "heads", False),
    ("mean", "edge", False),
    ("mean", "heads", True),
    ("sum", "edge", True),
    ("mean", "none", True),
    ("max", "none", True),
]


def edge_values(structure, csr, *trailing, by_copy=True):
    """Values that depend on the edge's ends and copy, and not on where it is stored."""
    src, dst = structure.src_id[csr.indices.long()], structure.src_id[csr.rows]
    # Copies on several ranks are counted on each.
    key = edge_ids(src, dst, csr.copy_number if by_copy else torch.zeros_like(src)) % 1009
    column = torch.arange(1, 1 + int(np.prod(trailing, initial=1)), dtype=torch.float64)
    return torch.sin(key.double()[:, None] * column).view(-1, *trailing)


def reduced(world, folder, policy, by_copy=True):
    """Return, for each case: output, gradient of x, gradient of the weight by edge."""
    shard = load_shard(folder, world)
    structure = shard.structure
    out = {}
    for layer, (reduce, kind, loops) in enumerate(CASES):
        exchange = ExchangeMaker(shard.plan, world.transport, policy).at(layer)
        block = Block(structure, exchange)
        csr = structure.with_self_loops.csr if loops else structure.csr
        x = torch.round(shard.x * 2) / 2  # many equal values, so that maxima tie
        x = torch.stack([x, x.flip(1)], 1).requires_grad_()  # (n, 2 heads, F)
        weight = None
        if kind != "none":
            shape = () if kind == "edge" else (2,)
            weight = edge_values(structure, csr, *shape, by_copy=by_copy).requires_grad_()
        result = aggregate(x, block, reduce=reduce, weight=weight, self_loops=loops)
        result = result[: shard.num_owned]
        scale = torch.cos(shard.node_id.double())[:, None, None] + torch.arange(5)
        (result * scale).sum().backward()
        edges = None
        if weight is not None:
            ends = torch.stack([structure.src_id[csr.indices.long()], structure.src_id[csr.rows]])
            edges = (ends.numpy(), csr.copy_number.numpy(), weight.grad.numpy())
        ids = structure.src_id[: len(x)].numpy()
        out[layer] = (shard.node_id.numpy(), (ids, result.detach().numpy(), x.grad.numpy()), edges)
    return out


def in_order(results, layer):
    """Return rows by original id, and weight gradients by (dst, src, copy).

    Gradients of clones of a node are added up.
    """
    order = np.argsort(np.concatenate([r[layer][0] for r in results]))
    ids, out, grads = (np.concatenate([r[layer][1][i] for r in results]) for i in range(3))
    grad = np.zeros_like(out)
    np.add.at(grad, ids, grads)
    rows = [out[order], grad]
    if results[0][layer][2] is None:
        return rows
    ends = np.concatenate([r[layer][2][0] for r in results], 1)
    copy, grad = (np.concatenate([r[layer][2][i] for r in results]) for i in (1, 2))
    return [*rows, grad[np.lexsort((copy, ends[0], ends[1]))]]


@pytest.mark.parametrize("name", MOSTLY_SLOW)
def test_every_reduction_equals_that_of_one_process(name, tmp_path):
    _, graph, partition = awkward_case(name, 3)
    write_partition(graph, Partition([0] * graph.num_nodes, 1), tmp_path / "one")
    write_partition(graph, partition, tmp_path / "three")
    one = run_ranks(reduced, 1, tmp_path / "one", "blocking")
    for policy in EXACT:
        three = run_ranks(reduced, 3, tmp_path / "three", policy)
        for layer, case in enumerate(CASES):
            for a, b in zip(in_order(one, layer), in_order(three, layer), strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-12, err_msg=f"{policy} {case}")


def reduced_all(world, folders):
    return {name: reduced(world, folder, "overlap", False) for name, folder in folders.items()}


def test_so_does_every_reduction_over_clones(tmp_path):
    folders = {name: tmp_path / name for name in AWKWARD if name != "single node"}
    for name, folder in folders.items():
        graph = awkward_case(name, 3).graph
        write_partition(graph, partition_graph(graph, 3, "dbh"), folder)
    one, three = (run_ranks(reduced_all, ranks, folders, timeout_s=100.0) for ranks in (1, 3))
    for name in folders:
        for layer, case in enumerate(CASES):
            sides = (in_order([of[name] for of in by_rank], layer) for by_rank in (one, three))
            for a, b in zip(*sides, strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-12, err_msg=f"{name} {case}")


def checked(world, folder):
    """gradcheck on one rank: the gradients are those of the function, ties aside."""
    shard = load_shard(folder, world)
    exchange = ExchangeMaker(shard.plan, world.transport, "overlap").at(0)
    block = Block(shard.structure, exchange)
    x = shard.x.clone().requires_grad_()
    weight = edge_values(shard.structure, shard.structure.csr).requires_grad_()
    for reduce in ("sum", "mean"):
        assert torch.autograd.gradcheck(
            lambda x, w, reduce=reduce: aggregate(x, block, reduce=reduce, weight=w), (x, weight)
        )
    for reduce in ("max", "min"):
        assert torch.autograd.gradcheck(
            lambda x, reduce=reduce: aggregate(x, block, reduce=reduce), x
        )
    heads = torch.stack([x.detach(), -x.detach()], 1).requires_grad_()
    by_head = edge_values(shard.structure, shard.structure.csr, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: aggregate(x, block, weight=w), (heads, by_head))
    # What is added to may be a view, and of any trailing shape.
    for rows, wide in ((x, torch.cat([x, x])), (heads, torch.cat([heads, heads]))):
        base = wide.detach().requires_grad_()
        assert torch.autograd.gradcheck(
            lambda rows, base: aggregate(rows, block, onto=(base * 2)[: len(rows)]), (rows, base)
        )


@pytest.mark.parametrize("name", ["directed", "edge-weighted", "single node"])
def test_gradcheck(name, tmp_path):
    graph = awkward_case(name, 1).graph
    write_partition(graph, Partition([0] * graph.num_nodes, 1), tmp_path / "parts")
    run_ranks(checked, 1, tmp_path / "parts")


def both_ways(world, folder):
    """Halo rows are the owners' rows; their gradients are added up at the owners."""
    shard = load_shard(folder, world)
    meter = Meter()
    exchange = ExchangeMaker(shard.plan, world.transport, "overlap", meter=meter).at(5)
    x = shard.node_id.double()[:, None].requires_grad_()
    rows = all_sources(x, Block(shard.structure, exchange))
    assert rows[:, 0].tolist() == shard.structure.src_id.tolist()
    rows[shard.num_owned :].sum().backward()
    readers = torch.bincount(shard.plan.send_index, minlength=shard.num_owned)
    assert x.grad[:, 0].tolist() == readers.tolist()
    assert meter.halo_bytes == 8 * (shard.plan.num_boundary + shard.num_halo)
    assert meter.seconds(HALO_WAIT) > 0.0
    assert exchange.forward.state_dict() == exchange.reverse.state_dict() == {}


@pytest.mark.parametrize("name", ["star", "directed", "empty part"])
def test_rows_go_out_and_gradients_come_back(name, tmp_path):
    _, graph, partition = awkward_case(name, 3)
    write_partition(graph, partition, tmp_path / "parts")
    run_ranks(both_ways, 3, tmp_path / "parts")


def in_flight(world, folder):
    """Exchanges of several layers and directions travel together and arrive apart."""
    shard = load_shard(folder, world)
    exchanges = [
        ExchangeMaker(shard.plan, world.transport, "overlap").at(layer) for layer in range(3)
    ]
    ids = shard.node_id.double()[:, None]
    halo_ids = shard.structure.src_id[shard.num_owned :].double()[:, None]
    pending = [
        (exchange.forward.start(ids * (layer + 1)), exchange.reverse.start(halo_ids * -(layer + 1)))
        for layer, exchange in enumerate(exchanges)
    ]
    for layer in (2, 0, 1):
        forward, reverse = pending[layer]
        boundary = reverse.wait()  # waited for before what was started earlier
        assert torch.equal(forward.wait(), halo_ids * (layer + 1))
        assert torch.equal(boundary, ids[shard.plan.send_index] * -(layer + 1))


def test_layers_and_directions_do_not_mix(tmp_path):
    _, graph, partition = awkward_case("random partition", 3)
    write_partition(graph, partition, tmp_path / "parts")
    run_ranks(in_flight, 3, tmp_path / "parts")
