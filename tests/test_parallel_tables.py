"""Embeddings of all nodes in parallelized models: trained as on one machine, rows by rank."""

import copy
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from awkward import awkward_case
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gnn_dist as gd
from gnn_dist.errors import ConfigError
from gnn_dist.nn.embedding import draw_rows
from gnn_dist.partition import Partition
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks

D = 4
CASES = ("empty part", "isolated nodes", "directed", "all on one")


class OfWeight(nn.Module):
    """Reads the table as a tensor, and its norm."""

    options: ClassVar = {}

    def __init__(self, num_nodes):
        super().__init__()
        self.emb = nn.Embedding(num_nodes, D, **self.options)
        self.conv, self.lin = pyg.SAGEConv(D, D), nn.Linear(D, 3)

    def forward(self, edge_index, node_id, left, right):
        x = self.conv(self.emb.weight, edge_index).tanh() * self.emb.weight.square().mean()
        return self.lin(x + self.emb.weight), None


class OfIds(OfWeight):
    """Asks for all nodes by id, and for pairs of any nodes."""

    def forward(self, edge_index, node_id, left, right):
        x = self.conv(self.emb(node_id), edge_index).tanh()
        return self.lin(x), self.emb(left) * self.emb(right)


class Sparse(OfIds):
    options: ClassVar = {"sparse": True}


class Padded(OfIds):
    options: ClassVar = {"padding_idx": 2}


class OfEdges(OfWeight):
    """Reads rows at both ends of edges, and pairs of any nodes by indexing."""

    def forward(self, edge_index, node_id, left, right):
        ends = self.emb(edge_index[0]) * self.emb(edge_index[1])
        x = torch.zeros_like(self.emb.weight).index_add(0, edge_index[1], ends)
        return self.lin(x.tanh() + self.emb(node_id)), self.emb.weight[left].square()


class OfPairs(OfIds):
    """Has no use for rows but those of pairs, so that an optimiser meets rows without gradient."""

    def forward(self, edge_index, node_id, left, right):
        return self.lin(self.emb(left)).sum(1), self.emb(right)


class SparsePairs(OfPairs):
    options: ClassVar = {"sparse": True}


MODELS = {m.__name__: m for m in (OfWeight, OfIds, Sparse, Padded, OfEdges, OfPairs, SparsePairs)}


def optimizers(kind, model):
    """Return optimisers; the table has one of its own where gradients are sparse."""
    table = [p for name, p in model.named_parameters() if "emb" in name]
    rest = [p for name, p in model.named_parameters() if "emb" not in name]
    make = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
        "sparse": lambda p: torch.optim.SparseAdam(p, lr=0.01),
        "row adam": lambda p: gd.RowAdam(p, lr=0.01),
        "row adagrad": lambda p: gd.RowAdagrad(p, lr=0.01),
    }
    return [make[kind](table), torch.optim.SGD(rest, lr=0.01)]


RUNS = [
    ("OfWeight", "sgd"),
    ("OfWeight", "adam"),
    ("OfIds", "adam"),
    ("Sparse", "sparse"),
    ("Padded", "sgd"),
    ("OfEdges", "adam"),
    ("OfPairs", "adam"),
    ("OfPairs", "row adam"),
    ("SparsePairs", "sparse"),
    ("SparsePairs", "row adam"),
    ("SparsePairs", "row adagrad"),
]


def make_model(name, num_nodes, seed=3):
    torch.manual_seed(seed)
    return MODELS[name](num_nodes).double()


def pairs_of(num_nodes, rank, world_size):
    """Return a rank's pairs of nodes: five of all in turn, none on some rank of three."""
    pairs = torch.from_numpy(np.random.default_rng(4).integers(0, num_nodes, (5, 2)))
    mine = pairs[rank::world_size] if world_size < 3 else pairs[rank * 3 : rank * 3 + 3]
    return mine.T.contiguous().unbind()


def target(node_id, width):
    table = np.random.default_rng(6).standard_normal((64, 8))
    return torch.from_numpy(table)[node_id, :width]


def loss_of(outs, node_id):
    total = 0.0
    for out in outs:
        if out is None:
            continue
        of_nodes = out.dim() == 2 and out.size(1) == 3
        wanted = target(node_id, 3) if of_nodes else 0.5
        total = total + (out - wanted).square().sum()
    return total


def trained(model, kind, inputs, *, steps=3):
    made = optimizers(kind, getattr(model, "module", model))
    losses = []
    for _ in range(steps):
        model.zero_grad()
        loss = loss_of(model(*inputs), inputs[1])
        loss.backward()
        for optimizer in made:
            optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), made


def plain_run(graph, name, kind):
    model = make_model(name, graph.num_nodes)
    edges = torch.from_numpy(np.stack(graph.edges())).long()
    inputs = edges, torch.arange(graph.num_nodes), *pairs_of(graph.num_nodes, 0, 1)
    losses, _ = trained(model, kind, inputs)
    return losses, {name: value.detach() for name, value in model.state_dict().items()}


def inputs_on(shard, world):
    pairs = pairs_of(shard.meta.num_nodes, world.rank, world.world_size)
    return shard.edge_index, shard.node_id, *pairs


def parallel_runs(world, folders):
    found = {}
    for number, (case, folder) in enumerate(folders.items()):
        shard = gd.load_shard(folder, world)
        # Everything on the first graph, on others enough to keep the test short.
        for name, kind in RUNS if number == 0 else RUNS[number::3]:
            # Only rank 0's values count.
            model = make_model(name, shard.meta.num_nodes, seed=3 + world.rank)
            table = model.emb.weight
            model = gd.parallelize(model, shard, world)
            assert model.module.emb.weight is table
            assert table.shape == (shard.num_owned, D)
            losses, _ = trained(model, kind, inputs_on(shard, world))
            world.transport.all_reduce(losses).wait()
            state = model.state_dict()
            assert len(state["emb.weight"]) == (shard.meta.num_nodes if world.is_main else 0)
            found[case, name, kind] = losses, state
    return found


def write(case, folder):
    """Write four parts: one rank has them all, and not in the order of original ids."""
    _, graph, partition = awkward_case(case, 4)
    write_partition(graph, partition, folder)
    return graph


@pytest.mark.mpi
@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_training_equals_plain_pytorch(world_size, tmp_path):
    cases = CASES if world_size == 3 else CASES[world_size : world_size + 1]
    graphs = {case: write(case, tmp_path / case) for case in cases}
    folders = {case: str(tmp_path / case) for case in cases}
    [first, *_] = run_ranks(parallel_runs, world_size, folders, timeout_s=120.0)
    for (case, name, kind), (losses, state) in first.items():
        expected_losses, expected = plain_run(graphs[case], name, kind)
        what = f"{name} by {kind} on {case}"
        torch.testing.assert_close(losses, expected_losses, rtol=1e-10, atol=1e-10, msg=what)
        for key, value in expected.items():
            torch.testing.assert_close(
                state[key], value, rtol=1e-10, atol=1e-10, msg=f"{what}: {key}"
            )


def saved(world, folder, name, kind, path):
    shard = gd.load_shard(folder, world)
    model = gd.parallelize(make_model(name, shard.meta.num_nodes), shard, world)
    _, made = trained(model, kind, inputs_on(shard, world), steps=2)
    states = [model.optimizer_state_dict(optimizer) for optimizer in made]
    state = model.state_dict()
    if world.is_main:
        torch.save([state, states], path)


def resumed(world, folder, name, kind, path):
    shard = gd.load_shard(folder, world)
    model = gd.parallelize(make_model(name, shard.meta.num_nodes, seed=9), shard, world)
    made = optimizers(kind, model.module)
    state, states = torch.load(path)
    if not world.is_main:  # of tables, and of optimisers, rank 0's count
        state["emb.weight"], states = torch.zeros(0), [{}, {}]
    model.load_state_dict(state)
    for optimizer, kept in zip(made, states, strict=True):
        model.load_optimizer_state_dict(optimizer, kept)
    model.zero_grad()
    loss_of(model(*inputs_on(shard, world)), shard.node_id).backward()
    for optimizer in made:
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize(
    ("name", "kind"), [("OfIds", "adam"), ("SparsePairs", "sparse"), ("OfPairs", "row adam")]
)
def test_a_run_goes_on_with_another_number_of_ranks(name, kind, tmp_path):
    graph = write("isolated nodes", tmp_path / "parts")
    path, folder = str(tmp_path / "state.pt"), str(tmp_path / "parts")
    run_ranks(saved, 3, folder, name, kind, path)
    [state, _] = run_ranks(resumed, 2, folder, name, kind, path)
    _, expected = plain_run(graph, name, kind)
    for key, value in expected.items():
        torch.testing.assert_close(state[key], value, rtol=1e-10, atol=1e-10)
    make_model(name, graph.num_nodes).load_state_dict(state)  # into the plain model


def from_plain(world, folder, path):
    """A plain model's checkpoint, with its optimiser's, on ranks."""
    shard = gd.load_shard(folder, world)
    model = gd.parallelize(make_model("OfIds", shard.meta.num_nodes, seed=9), shard, world)
    made = optimizers("adam", model.module)
    state, kept = torch.load(path)
    model.load_state_dict(state)
    model.load_optimizer_state_dict(made[0], kept)
    assert torch.equal(model.module.emb.weight, state["emb.weight"][shard.node_id])
    moments = made[0].state[model.module.emb.weight]["exp_avg"]
    assert torch.equal(moments, kept["state"][0]["exp_avg"][shard.node_id])
    for wrong in ({"emb.weight": torch.zeros(3, D)}, {"emb.weight": torch.zeros(30)}):
        with pytest.raises(ConfigError, match=r"emb\.weight must have a row for each node"):
            model.load_state_dict(wrong if world.is_main else state)
    with pytest.raises(RuntimeError, match=r"Missing key.*emb\.weight"):
        model.load_state_dict({key: v for key, v in state.items() if key != "emb.weight"})


@pytest.mark.mpi
def test_a_plain_checkpoint_loads(tmp_path):
    graph = write("directed", tmp_path / "parts")
    model = make_model("OfIds", graph.num_nodes)
    edges = torch.from_numpy(np.stack(graph.edges())).long()
    inputs = edges, torch.arange(graph.num_nodes), *pairs_of(graph.num_nodes, 0, 1)
    _, made = trained(model, "adam", inputs)
    path = str(tmp_path / "state.pt")
    torch.save([model.state_dict(), made[0].state_dict()], path)
    run_ranks(from_plain, 2, str(tmp_path / "parts"), path)


NORMS = (2.0, 1.0, float("inf"))


def clipped(world, folder):
    shard = gd.load_shard(folder, world)
    found = []
    for name in ("OfIds", "Sparse"):
        model = gd.parallelize(make_model(name, shard.meta.num_nodes), shard, world)
        for norm_type in NORMS:
            model.zero_grad()
            loss_of(model(*inputs_on(shard, world)), shard.node_id).backward()
            norm = model.clip_grad_norm_(0.7, norm_type)
            found.append((norm_type, float(norm), float(model.clip_grad_norm_(0.7, norm_type))))
    with pytest.raises(ConfigError, match="norm_type must be above 0"):
        model.clip_grad_norm_(0.7, 0.0)
    return found


@pytest.mark.mpi
def test_the_norm_of_gradients_is_that_of_all_ranks(tmp_path):
    graph = write("empty part", tmp_path / "parts")
    plain = make_model("OfIds", graph.num_nodes)
    edges = torch.from_numpy(np.stack(graph.edges())).long()
    inputs = edges, torch.arange(graph.num_nodes), *pairs_of(graph.num_nodes, 0, 1)
    expected = {}
    for norm_type in NORMS:
        plain.zero_grad()
        loss_of(plain(*inputs), inputs[1]).backward()
        norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.7, norm_type)
        expected[norm_type] = float(norm)
    for found in run_ranks(clipped, 3, str(tmp_path / "parts")):
        assert len(found) == 6
        for norm_type, norm, again in found:
            assert norm == pytest.approx(expected[norm_type], rel=1e-10)
            assert again == pytest.approx(0.7, rel=1e-5)


class AllNodes(nn.Module):
    """Says "all nodes" in one of the ways that models do."""

    def __init__(self, num_nodes, way):
        super().__init__()
        self.emb, self.num_nodes, self.way = nn.Embedding(num_nodes, D), num_nodes, way
        self.conv = pyg.SAGEConv(D, 3)
        self.register_buffer("ids", torch.arange(num_nodes))

    def forward(self, edge_index, given):
        ids = {
            "given": given,
            "buffer": self.ids,
            "arange": torch.arange(self.num_nodes),
            "of rows": torch.arange(self.emb.weight.size(0)),
        }[self.way]
        return self.conv(self.emb(ids), edge_index)


def all_nodes(world, folder):
    shard = gd.load_shard(folder, world)
    outs = []
    for way in ("given", "buffer", "arange", "of rows"):
        torch.manual_seed(1)
        model = gd.parallelize(AllNodes(shard.meta.num_nodes, way).double(), shard, world)
        outs.append(model(shard.edge_index, shard.node_id).detach())
    assert all(torch.equal(out, outs[0]) for out in outs)
    for outside in (
        model.module.emb,
        *([copy.deepcopy(model.module.emb)] * (shard.num_owned < shard.meta.num_nodes)),
    ):
        with pytest.raises(ConfigError, match="inside the parallelized model's forward"):
            outside(torch.tensor([0]))
    return shard.node_id, outs[0]


@pytest.mark.mpi
def test_ways_to_say_all_nodes(tmp_path):
    graph = write("directed", tmp_path / "parts")
    torch.manual_seed(1)
    edges = torch.from_numpy(np.stack(graph.edges())).long()
    plain = AllNodes(graph.num_nodes, "arange").double()(edges, None)
    for world_size in (1, 3):
        for ids, out in run_ranks(all_nodes, world_size, str(tmp_path / "parts")):
            torch.testing.assert_close(out, plain[ids].detach(), rtol=1e-10, atol=1e-10)


def wrong_ids(world, folder):
    shard = gd.load_shard(folder, world)
    num_nodes = shard.meta.num_nodes
    model = gd.parallelize(make_model("OfIds", num_nodes), shard, world)
    for bad in (num_nodes, -1):
        ids = torch.tensor([0, bad if world.rank == 1 else 1, 1])
        with pytest.raises(ConfigError, match=f"0\\.\\.{num_nodes - 1}, got {bad} on rank 1"):
            model(shard.edge_index, shard.node_id, ids, ids)
    with pytest.raises(ConfigError, match="int64 or int32, got"):
        model(shard.edge_index, shard.node_id, ids.double(), ids)
    model(
        shard.edge_index, shard.node_id, ids.clamp(min=0), ids.clamp(min=0)
    )  # the ranks are still in step


@pytest.mark.mpi
def test_ids_of_no_node_are_named_on_every_rank(tmp_path):
    write("directed", tmp_path / "parts")
    run_ranks(wrong_ids, 2, str(tmp_path / "parts"))


class Tied(nn.Module):
    def __init__(self, num_nodes):
        super().__init__()
        self.emb, self.out = nn.Embedding(num_nodes, D), nn.Linear(D, num_nodes)
        self.out.weight = self.emb.weight


def refused(world, folder, other):
    shard, second = gd.load_shard(folder, world), gd.load_shard(other, world)
    n = shard.meta.num_nodes
    for model, message in (
        (nn.ModuleDict({"a": nn.Embedding(n, 2, max_norm=1.0)}), "embedding a: max_norm"),
        (nn.Embedding(n, 2, scale_grad_by_freq=True), "embedding model: scale_grad_by_freq"),
        (Tied(n), "out.weight is the same parameter"),
        (nn.Embedding(n + 1, 2, sparse=True), "sparse gradients"),  # of something else
        (nn.Embedding(n, 2 + world.rank), "all ranks must make the same model"),
    ):
        with pytest.raises(ConfigError, match=message):
            gd.parallelize(model, shard, world)
    model = make_model("OfWeight", n)
    gd.parallelize(model, shard, world)
    again = gd.parallelize(model, shard, world)  # its rows are here already
    assert again.module.emb.weight.shape == (shard.num_owned, D)
    with pytest.raises(ConfigError, match=r"emb.weight holds the rows of another shard"):
        gd.parallelize(model, second, world)


@pytest.mark.mpi
def test_what_would_be_wrong_is_refused(tmp_path):
    graph = write("directed", tmp_path / "a")
    turned = Partition((np.arange(graph.num_nodes) % 3 == 0).astype(np.int32), 2)
    write_partition(graph, turned, tmp_path / "b")
    run_ranks(refused, 2, str(tmp_path / "a"), str(tmp_path / "b"))


def kept_as_they_are(world, folder):
    """Frozen tables, copies, tables never made, an optimiser made before."""
    shard = gd.load_shard(folder, world)
    n = shard.meta.num_nodes
    frozen = make_model("OfIds", n)
    frozen.emb.requires_grad_(False)
    model = gd.parallelize(frozen, shard, world)
    before = frozen.emb.weight.clone()
    trained(model, "adam", inputs_on(shard, world))
    assert torch.equal(frozen.emb.weight, before)
    assert frozen.emb.weight.grad is None

    assert torch.equal(copy.deepcopy(frozen).emb.weight, before)  # rows of this rank

    net = make_model("OfIds", n)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = gd.parallelize(net, shard, world)
    before = net.emb.weight.detach().clone()
    loss_of(model(*inputs_on(shard, world)), shard.node_id).backward()
    optimizer.step()
    assert shard.num_owned == 0 or not torch.equal(net.emb.weight, before)

    with torch.device("meta"):
        net = nn.ModuleList([nn.Embedding(n, D, dtype=torch.float64) for _ in range(2)])
    gd.parallelize(net, shard, world, seed=5)
    for number, module in enumerate(net):
        drawn = draw_rows(torch.arange(n), D, seed=5, table=number, dtype=torch.float64)
        assert torch.equal(module.weight, drawn[shard.node_id])


@pytest.mark.mpi
def test_what_a_user_relies_on_stays(tmp_path):
    write("empty part", tmp_path / "parts")
    run_ranks(kept_as_they_are, 3, str(tmp_path / "parts"))


def skipped(world, folder):
    """Rank 1's loss has no use for the table; its rows take part all the same, as zeros."""
    shard = gd.load_shard(folder, world)
    for name in ("OfIds", "Sparse"):
        model = gd.parallelize(make_model(name, shard.meta.num_nodes), shard, world)
        table, lin = model.module.emb, model.module.lin
        model.module.forward = lambda ids, table=table, lin=lin: (table(ids), lin.weight.sum())
        rows, other = model(shard.node_id)
        (rows.sum() if world.rank != 1 else other).backward()
        grad = table.weight.grad
        assert grad.is_sparse == (name == "Sparse")
        expected = torch.full_like(table.weight, float(world.rank != 1))
        assert torch.equal(grad.to_dense(), expected.detach())
        assert torch.equal(lin.weight.grad, torch.ones_like(lin.weight))
        assert model.module.conv.lin_l.weight.grad is None
        model(shard.node_id)[0].sum().backward()  # added to what is there
        assert table.weight.grad.is_sparse == (name == "Sparse")
        assert torch.equal(table.weight.grad.to_dense(), expected + 1.0)
        if name == "Sparse":
            torch.optim.SparseAdam([table.weight]).step()


@pytest.mark.mpi
def test_a_rank_without_use_for_the_table_has_zeros(tmp_path):
    write("directed", tmp_path / "parts")
    run_ranks(skipped, 2, str(tmp_path / "parts"))


class Largest(TorchDispatchMode):
    """Keeps the size of the largest floating tensor that is made."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                values = leaf._values() if leaf.is_sparse else leaf
                self.numel = max(self.numel, values.numel())
        return out


def largest(world, folder, name, kind):
    shard = gd.load_shard(folder, world)
    model = gd.parallelize(make_model(name, shard.meta.num_nodes), shard, world)
    ids = torch.arange(0, shard.meta.num_nodes, 40)
    inputs = shard.edge_index, shard.node_id, ids, ids.flip(0)
    made = optimizers(kind, model.module)
    with Largest() as seen:
        for _ in range(2):
            model.zero_grad()
            outs = model(*inputs)
            sum(out.square().sum() for out in outs if out is not None).backward()
            for optimizer in made:
                optimizer.step()
    return seen.numel, shard.num_owned, shard.num_halo


@pytest.mark.mpi
@pytest.mark.parametrize(("name", "kind"), [("OfIds", "adam"), ("Sparse", "sparse")])
def test_no_rank_ever_holds_the_table_in_training(name, kind, tmp_path):
    graph = gd.load_dataset("grid:rows=40,cols=40")
    stripes = Partition((np.arange(graph.num_nodes) // 534).astype(np.int32), 3)
    write_partition(graph, stripes, tmp_path / "parts")
    for most, num_owned, num_halo in run_ranks(largest, 3, str(tmp_path / "parts"), name, kind):
        assert num_owned * D <= most <= (num_owned + num_halo) * D < graph.num_nodes * D / 2
