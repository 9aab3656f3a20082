"""Clones of a vertex-cut: what they agree on, what travels between them, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from awkward import AWKWARD, awkward_case
from torch import nn

from gnn_dist.edge_partition import EdgePartition
from gnn_dist.errors import ConfigError
from gnn_dist.graph import CSRFeatures, graph_from_edges
from gnn_dist.halo.aggregate import aggregate, all_sources
from gnn_dist.halo.block import Block
from gnn_dist.halo.clock import Clock
from gnn_dist.halo.exchange import ExchangeMaker, RoundTrip
from gnn_dist.halo.load import induced_shard, load_shard
from gnn_dist.halo.traffic import step_bytes
from gnn_dist.halo.transfers import exchange_rows, return_rows
from gnn_dist.nn.attention import GATConv
from gnn_dist.parallel.parallelize import parallelize
from gnn_dist.partitioners import partition_graph
from gnn_dist.profile.meter import Meter
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks
from gnn_dist.train.full_batch import TrainingSet
from gnn_dist.train.task import make_task

pytestmark = pytest.mark.mpi

LINKED = tuple(name for name in AWKWARD if name != "single node")  # three parts need three nodes
STEPS = 100


def folder_of(name, path, **changes):
    graph = awkward_case(name, 3).graph.replace(**changes)
    write_partition(graph, partition_graph(graph, 3, "libra"), path)
    return path


def local_ids(shard):
    return shard.structure.src_id


def total_of(values, plan, transport):
    """Add up rows (n + h, ...) over clones, and give each the total, in the plainest way."""
    owned = values[: plan.num_owned].clone()
    plan.add_boundary(owned, return_rows(values[plan.num_owned :], plan, transport))
    return torch.cat([owned, exchange_rows(owned, plan, transport)])


def by_hand():
    """Two parts share nodes 1 and 2; the loops of 1, of different weights, are in both of them.

    part 0    0->1 (1)    1->1 (2)    2->2 (3)      roots 0 1
    part 1    1->2 (5)    1->1 (7)    2->1 (11)     root 2
    """
    src, dst = [0, 1, 2, 1, 1, 2], [1, 1, 2, 2, 1, 1]
    weight = np.array([1.0, 2.0, 3.0, 5.0, 7.0, 11.0])
    graph = graph_from_edges(src, dst, num_nodes=3, x=np.eye(3), edge_weight=weight, name="hand")
    return graph, np.array([0, 0, 0, 1, 1, 1])[graph.edge_id]


def knows(world, folder):
    shard = load_shard(folder, world)
    structure = shard.structure
    csr, _ = structure.with_self_loops
    ids = local_ids(shard)
    edges = torch.stack([ids[csr.indices.long()], ids[csr.rows]], 1).tolist()
    return {
        "id": ids.tolist(),
        "in_edges": structure.num_in_edges.tolist(),
        "degree": structure.degree.tolist(),
        "mean": structure.mean_scale.tolist(),
        "loop_mean": structure.loop_mean_scale.tolist(),
        "looped": sorted(zip(edges, structure.loop_edge_weight.tolist(), strict=True)),
        "x": shard.x.argmax(1).tolist(),
        "symmetric": structure.symmetric,
    }


def test_clones_know_the_whole_graph(tmp_path):
    graph, parts = by_hand()
    write_partition(graph, EdgePartition(parts, [0, 0, 1], 2), tmp_path / "parts")
    zero, one = run_ranks(knows, 2, tmp_path / "parts")
    assert (zero["id"], one["id"]) == ([0, 1, 2], [2, 1])
    assert (zero["x"], one["x"]) == (zero["id"], one["id"])
    # Of node 1: 0->1, 2->1 and two loops, of which the last one given counts, with weight 7.
    of_node = {
        0: {"in_edges": 0, "degree": 1.0, "mean": 1.0, "loop_mean": 1.0},
        1: {"in_edges": 4, "degree": 19.0, "mean": 1 / 4, "loop_mean": 1 / 3},
        2: {"in_edges": 2, "degree": 8.0, "mean": 1 / 2, "loop_mean": 1 / 2},
    }
    for rank in (zero, one):
        for key in of_node[0]:
            assert rank[key] == [of_node[node][key] for node in rank["id"]], key
    # Each loop once, at the root.
    assert zero["looped"] == [([0, 0], 1.0), ([0, 1], 1.0), ([1, 1], 7.0)]
    assert one["looped"] == [([1, 2], 5.0), ([2, 1], 11.0), ([2, 2], 3.0)]


def sparse_rows(dense):
    indptr = np.concatenate([[0], (dense != 0).sum(1).cumsum()])
    columns = dense.nonzero()[1].astype(np.int32)
    return CSRFeatures(indptr, columns, dense[dense != 0], dense.shape[1])


def features_of_all(world, folder):
    shard = load_shard(folder, world)
    return local_ids(shard).tolist(), shard.x.tolist(), len(shard.y), shard.num_owned


@pytest.mark.parametrize("sparse", [False, True])
def test_clones_have_the_features_of_their_nodes(sparse, tmp_path):
    dense = awkward_case("directed", 3).graph.x
    dense = np.where(dense > 0.5, dense, 0.0)
    x = sparse_rows(dense) if sparse else dense
    for ids, rows, num_labels, num_owned in run_ranks(
        features_of_all, 3, folder_of("directed", tmp_path / "parts", x=x)
    ):
        np.testing.assert_array_equal(rows, dense[ids])
        assert num_labels == num_owned < len(ids)


def bytes_sent(world, folder):
    shard = load_shard(folder, world)
    meter = Meter()
    maker = ExchangeMaker(shard.plan, world.transport, "overlap", meter=meter)
    x = shard.x.clone().requires_grad_()
    out = aggregate(x, Block(shard.structure, maker.at(0)))
    forward = meter.halo_bytes
    out.sum().backward()
    assert meter.halo_bytes == step_bytes([(shard.plan, 5)], maker.policy, itemsize=8)
    return forward, meter.halo_bytes - forward, shard.num_halo


def test_sums_go_up_and_down_once_in_each_direction(tmp_path):
    sent = np.array(run_ranks(bytes_sent, 3, folder_of("random partition", tmp_path / "parts")))
    forward, backward, clones = sent.sum(0)
    assert forward == backward == 2 * clones * 5 * 8


class OneStepLate:
    """Returns what came in the step before; zeros at first. As a caching policy does."""

    def __init__(self, exchange):
        self.exchange, self.last = exchange, None

    def start(self, rows):
        now = self.exchange.start(rows).wait()
        before = torch.zeros_like(now) if self.last is None else self.last
        self.last = now.clone()
        self.ready = before
        return self

    def wait(self):
        return self.ready


def compose(world, folder):
    """What a clone has itself is of this step; the root's is one old; other clones' are two."""
    shard = load_shard(folder, world)
    plan, structure = shard.plan, shard.structure
    exact = ExchangeMaker(plan, world.transport, "overlap").at(0)
    trips = [
        RoundTrip(OneStepLate(trip.up), OneStepLate(trip.down))
        for trip in (exact.clones.values, exact.clones.gradients)
    ]
    late = replace(exact, clones=replace(exact.clones, values=trips[0], gradients=trips[1]))
    block, n = Block(structure, late), plan.num_owned
    mine = torch.zeros(structure.num_dst, 5, dtype=torch.float64)
    mine.index_add_(0, structure.csr.rows, shard.x[structure.csr.indices.long()])
    total = total_of(mine, plan, world.transport)
    root = torch.cat([mine[:n], exchange_rows(mine[:n].contiguous(), plan, world.transport)])
    for t in range(1, 5):
        x = (t * shard.x).requires_grad_()
        out = aggregate(x, block)
        one, two = max(t - 1, 0), max(t - 2, 0)
        at_root = t * mine + one * (total - mine)
        at_clone = t * mine + one * root + two * (total - mine - root)
        torch.testing.assert_close(out.detach(), torch.cat([at_root[:n], at_clone[n:]]))
        out.backward(torch.full_like(out, float(t)))
    # Gradients were late alike: x's are those of t, t - 1 and t - 2 at root, clone, other clones.
    count = total_of(torch.ones(structure.num_dst, 1, dtype=torch.float64), plan, world.transport)
    g = torch.cat([(t + one * (count - 1))[:n], (t + one + two * (count - 2))[n:]])
    expected = torch.zeros_like(x)
    expected.index_add_(0, structure.csr.indices.long(), g[structure.csr.rows].expand(-1, 5))
    torch.testing.assert_close(x.grad, expected)


@pytest.mark.parametrize("name", ["random partition", "star"])
def test_policies_that_keep_rows_compose(name, tmp_path):
    run_ranks(compose, 3, folder_of(name, tmp_path / "parts"))


def adjoint(world, folder, policy):
    """<A x, y> = <x, A' y> over all ranks, in every step; and A x is right on average."""
    shard = load_shard(folder, world)
    clock = Clock(3)
    maker = ExchangeMaker(shard.plan, world.transport, policy, clock=clock)
    block = Block(shard.structure, maker.at(0))
    x = shard.x[:, :1].clone().requires_grad_()
    y = torch.sin(local_ids(shard).double() * (world.rank + 1))[:, None]
    exact = aggregate(
        x.detach(),
        Block(shard.structure, ExchangeMaker(shard.plan, world.transport, "overlap").at(1)),
    )
    outs = []
    for step in range(STEPS):
        clock.begin(step)
        out = aggregate(x, block)
        (grad,) = torch.autograd.grad(out, x, y)
        sides = torch.stack([(out * y).sum(), (x * grad).sum()]).detach()
        world.transport.all_reduce(sides).wait()
        torch.testing.assert_close(sides[0], sides[1])
        outs.append(out.detach())
    mean, deviation = torch.stack(outs).mean(0), torch.stack(outs).std(0)
    assert ((mean - exact).abs() <= 5 * deviation / STEPS**0.5 + 1e-9).all()
    return float(deviation.max())


def test_sampled_sums_are_right_on_average_and_their_gradients_the_adjoint(tmp_path):
    path = folder_of("random partition", tmp_path / "parts")
    assert max(run_ranks(adjoint, 3, path, "sampled:p=0.5", timeout_s=100.0)) > 0


def in_half(world, folder):
    """Rows of any shape and dtype; on the wire in 16 bits."""
    shard = load_shard(folder, world)
    found = {}
    for layer, dtype in enumerate((torch.float32, torch.bfloat16, torch.float16)):
        results = []
        for i, policy in enumerate(("overlap", "bf16")):
            maker = ExchangeMaker(shard.plan, world.transport, policy)
            block = Block(shard.structure, maker.at(2 * layer + i))
            x = torch.stack([shard.x, -shard.x], 1).to(dtype).detach().requires_grad_()
            out = aggregate(x, block, reduce="mean", onto=x.detach() * 0.5)
            out.sum().backward()
            assert out.dtype == x.grad.dtype == dtype
            assert out.shape == x.shape
            results.append(torch.cat([out.detach(), x.grad]).float())
        found[str(dtype)] = float((results[0] - results[1]).abs().max())
    return found


def test_rows_of_16_bits(tmp_path):
    for found in run_ranks(in_half, 3, folder_of("random partition", tmp_path / "parts")):
        assert 0.0 < found["torch.float32"] < 0.1
        assert max(found.values()) < 0.2


def induced(world, folder):
    shard = load_shard(folder, world)
    sub = induced_shard(shard, shard.masks["train_mask"], world.transport)
    ids = local_ids(sub)
    edges = torch.stack([ids[sub.structure.csr.indices.long()], ids[sub.structure.csr.rows]], 1)
    assert len(sub.features) == len(ids) == sub.structure.num_dst
    assert sub.plan.clones
    maker = ExchangeMaker(sub.plan, world.transport, "overlap")
    sums = aggregate(sub.x, Block(sub.structure, maker.at(0)))
    return ids.tolist(), edges.tolist(), sub.structure.degree.numpy(), sums.numpy()


def induced_all(world, folders):
    return {name: induced(world, folder) for name, folder in folders.items()}


def test_the_subgraph_of_training_nodes(tmp_path):
    folders = {name: folder_of(name, tmp_path / name) for name in LINKED}
    by_rank = run_ranks(induced_all, 3, folders, timeout_s=100.0)
    for name in folders:
        graph = awkward_case(name, 3).graph
        src, dst = graph.edges()
        kept = graph.train_mask[src] & graph.train_mask[dst]
        edges = [edge for of in by_rank for edge in of[name][1]]
        assert (
            sorted(edges)
            == np.stack([src, dst], 1)[kept][np.lexsort((dst[kept], src[kept]))].tolist()
        )
        weight = np.ones(len(src)) if graph.edge_weight is None else graph.edge_weight
        loops = kept & (src == dst)
        degree = np.ones(graph.num_nodes)
        degree[dst[loops]] = weight[loops]
        np.add.at(degree, dst[kept & ~loops], weight[kept & ~loops])
        sums = np.zeros_like(graph.x)
        np.add.at(sums, dst[kept], graph.x[src[kept]])
        for of in by_rank:
            ids, _, degree_there, sums_there = of[name]
            np.testing.assert_allclose(degree_there, degree[ids], err_msg=name)
            np.testing.assert_allclose(sums_there, sums[ids], atol=1e-12, err_msg=name)


def refused(world, folder):
    shard = load_shard(folder, world)
    maker = ExchangeMaker(shard.plan, world.transport, "bf16")
    block = Block(shard.structure, maker.at(0))
    x = shard.x.clone()
    with pytest.raises(ConfigError, match="must be exact: use --halo overlap"):
        aggregate(x, block, reduce="max")
    with pytest.raises(ConfigError, match="several ranks, which can only add up"):
        all_sources(x, block)
    with pytest.raises(ConfigError, match="attention does not sum halo rows"):
        GATConv(5, 3).double()(x, block)
    with pytest.raises(ConfigError, match="PyTorch Geometric may do more than sum rows"):
        parallelize(nn.Linear(2, 2), shard, world)
    with pytest.raises(ConfigError, match=r"overlap\+relay.* leave relay out"):
        ExchangeMaker(shard.plan, world.transport, "relay")
    with pytest.raises(ConfigError, match="partial sums travel in their place"):
        ExchangeMaker(shard.plan, world.transport, "remat")
    with pytest.raises(ConfigError, match="prune needs all in-edges of a node on one rank"):
        TrainingSet(shard, make_task(shard, 0, world), prune=True)


def test_what_needs_all_in_edges_on_one_rank_is_refused(tmp_path):
    run_ranks(refused, 2, folder_of("random partition", tmp_path / "parts"))
