"""Unmodified PyTorch Geometric models on shards: outputs and all gradients as on one machine."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from awkward import AWKWARD, NUM_CLASSES, NUM_FEATURES, awkward_case
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

import gnn_dist as gd
from gnn_dist.errors import ConfigError
from gnn_dist.partition import Partition
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks

pytestmark = pytest.mark.mpi

K = 4


class GatedSum(pyg.MessagePassing):
    """A layer as users write it: both ends, an edge feature and a second node tensor."""

    def __init__(self, in_channels, out_channels):
        super().__init__(aggr="add")
        self.lin = nn.Linear(in_channels, out_channels)
        self.gate = nn.Linear(2 * out_channels, out_channels)

    def forward(self, x, edge_index, strength=None):
        x = self.lin(x)
        scale = x.square().mean(1, keepdim=True)
        return self.propagate(edge_index, x=x, scale=scale, strength=strength)

    def message(self, x_i, x_j, scale_j, strength):
        out = torch.sigmoid(self.gate(torch.cat([x_i, x_j], 1))) * x_j * scale_j
        return out if strength is None else out * strength[:, None]

    def update(self, aggregated, x):
        return aggregated


class OwnSum(GatedSum):
    """With dropout of node rows inside the layer, too."""

    def update(self, aggregated):
        return F.dropout(torch.tanh(aggregated), 0.2, self.training)


class EdgeScored(pyg.MessagePassing):
    """Scores from `edge_updater`, a maximum as aggregation, dropout inside the message."""

    def __init__(self, in_channels, out_channels):
        super().__init__(aggr="max")
        self.lin = nn.Linear(in_channels, out_channels)

    def forward(self, x, edge_index):
        x = self.lin(x)
        score = self.edge_updater(edge_index, x=x)
        return self.propagate(edge_index, x=x, score=score)

    def edge_update(self, x_j, x_i):
        return (x_j * x_i).sum(1, keepdim=True)

    def message(self, x_j, score):
        return F.dropout(x_j * score, 0.3, self.training)


class Net(nn.Module):
    """Two layers, batch norm, dropout as a module and as a function."""

    def __init__(self, first, second, width):
        super().__init__()
        self.first, self.second = first, second
        self.norm, self.dropout = nn.BatchNorm1d(width), nn.Dropout(0.4)
        self.out = nn.Linear(K, NUM_CLASSES)

    def forward(self, x, edge_index):
        x = F.dropout(x, p=0.2, training=self.training)
        x = self.norm(self.first(x, edge_index))
        F.dropout(x, 0.2, self.training, inplace=True)
        x = self.dropout(x.relu())
        return self.out(self.second(x, edge_index))


NETS = {
    "sage": lambda: Net(
        pyg.SAGEConv(NUM_FEATURES, 6), pyg.SAGEConv(6, K, aggr="max", project=True), 6
    ),
    "gat": lambda: Net(
        pyg.GATConv(NUM_FEATURES, 3, heads=2, dropout=0.3),
        pyg.GATConv(6, K, heads=2, concat=False, residual=True),
        6,
    ),
    "gatv2": lambda: Net(pyg.GATv2Conv(NUM_FEATURES, 3, heads=2), pyg.GATv2Conv(6, K), 6),
    "gin and graph": lambda: Net(
        pyg.GINConv(nn.Linear(NUM_FEATURES, 6)), pyg.GraphConv(6, K, aggr="mean"), 6
    ),
    "user-written": lambda: Net(OwnSum(NUM_FEATURES, 6), EdgeScored(6, K), 6),
}


def make_net(name):
    torch.manual_seed(11)
    return NETS[name]().double()


def one_step(world, folder, name):
    shard = gd.load_shard(folder, world)
    model = gd.parallelize(make_net(name), shard, world, seed=2, probe=False)
    x = shard.x.clone().requires_grad_()
    logits = model(x, shard.edge_index)
    mask = shard.masks["train_mask"]
    F.cross_entropy(logits[mask], shard.y[mask], reduction="sum").backward()
    gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
    state = torch.cat([value.flatten().double() for value in model.state_dict().values()])
    with torch.no_grad():
        plain = model.eval()(shard.x, shard.edge_index)
    tensors = (shard.node_id, logits.detach(), x.grad, plain, gradients, state)
    return [t.numpy() for t in tensors]


def all_steps(world, folders, names):
    return {
        (case, name): one_step(world, folder, name)
        for case, folder in folders.items()
        for name in names
    }


def by_original_id(results):
    order = np.argsort(np.concatenate([r[0] for r in results]))
    rows = [np.concatenate([r[i] for r in results])[order] for i in (1, 2, 3)]
    return [*rows, results[0][4], results[0][5]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("parts")
    whole, split = {}, {}
    for name in AWKWARD:
        _, graph, partition = awkward_case(name, 3)
        whole[name], split[name] = root / f"{name}-1", root / f"{name}-3"
        write_partition(graph, Partition([0] * graph.num_nodes, 1), whole[name])
        write_partition(graph, partition, split[name])
    return whole, split


@pytest.fixture(scope="module")
def expected(folders):
    [steps] = run_ranks(all_steps, 1, folders[0], list(NETS), timeout_s=100.0)
    return {key: by_original_id([step]) for key, step in steps.items()}


@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_ranks_compute_what_one_process_computes(world_size, folders, expected):
    by_rank = run_ranks(all_steps, world_size, folders[1], list(NETS), timeout_s=100.0)
    for key, reference in expected.items():
        got = by_original_id([steps[key] for steps in by_rank])
        for one, many in zip(reference, got, strict=True):
            np.testing.assert_allclose(many, one, rtol=1e-9, atol=1e-9, err_msg=str(key))


def plain_against_parallel(world, folder, name):
    """Without dropout, the parallelized model on one rank is the plain model."""
    shard = gd.load_shard(folder, world)
    plain, model = make_net(name), gd.parallelize(make_net(name), shard, world)
    for module in [*plain.modules(), *model.modules()]:
        module.dropout = (
            0.0
            if isinstance(getattr(module, "dropout", None), float)
            else getattr(module, "dropout", None)
        )
    plain.eval(), model.eval()
    torch.testing.assert_close(model(shard.x, shard.edge_index), plain(shard.x, shard.edge_index))
    plain.load_state_dict(model.state_dict())
    assert "propagate" not in vars(model.module.first)  # nothing is left behind in the model


@pytest.mark.parametrize("name", NETS)
def test_one_rank_is_the_plain_model(name, folders):
    run_ranks(plain_against_parallel, 1, folders[0]["directed"], name)


def the_lines_of_the_readme(world, folder):
    shard = gd.load_shard(folder, world)
    model = gd.parallelize(NETS["sage"]().double(), shard, world, halo="overlap")
    logits = model(shard.x, shard.edge_index)
    assert logits.shape == (shard.num_owned, NUM_CLASSES)
    return True


def test_the_lines_of_the_readme(folders):
    assert all(run_ranks(the_lines_of_the_readme, 2, folders[1]["random partition"]))


class Backwards(pyg.MessagePassing):
    def __init__(self, aggr="max"):
        super().__init__(aggr=aggr, flow="target_to_source")

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)


REFUSED = {
    "global attention": (
        lambda: pyg.GPSConv(NUM_FEATURES, pyg.SAGEConv(NUM_FEATURES, NUM_FEATURES)),
        "its attention is between all nodes",
    ),
    "a subclass": (
        lambda: type("Mine", (pyg.PANConv,), {})(NUM_FEATURES, K, 2),
        "multiplies adjacency matrices",
    ),
    "attention": (lambda: nn.MultiheadAttention(4, 2), "attention over rows"),
    "sparse": (lambda: nn.Embedding(5, 2, sparse=True), "sparse gradients"),
    "lazy": (lambda: pyg.SAGEConv(-1, K), "has no shape yet"),
    "pooling": (lambda: pyg.TopKPooling(NUM_FEATURES), "chooses among all nodes"),
    "size": (lambda: pyg.GraphSizeNorm(), "divides by the number of rows"),
    "order": (
        lambda: pyg.SAGEConv(5, K, aggr="lstm", aggr_kwargs={"in_channels": 5, "out_channels": 5}),
        "order of the messages",
    ),
}


def refused(world, folder, name):
    shard = gd.load_shard(folder, world)
    make, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message) as caught:
        gd.parallelize(nn.Sequential(nn.Linear(2, 2), make()), shard, world)
    assert name == "lazy" or "layer 1" in str(caught.value)


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_wrong_is_refused_by_name(name, folders):
    run_ranks(refused, 1, folders[0]["directed"], name)


def draws_by_position(world, folder):
    shard = gd.load_shard(folder, world)
    for function in (
        lambda x, e: F.alpha_dropout(x, 0.5, True),
        lambda x, e: F.dropout(x.mean(0), 0.5),
        lambda x, e: torch.dropout(x, 0.5, True),
        lambda x, e: x * torch.randn_like(x),
        lambda x, e: x + torch.empty_like(x).normal_(),
        lambda x, e: x[torch.randperm(len(x))],
        lambda x, e: torch.batch_norm(x, None, None, None, None, True, 0.1, 1e-5, False),
    ):
        model = gd.parallelize(_Calls(function), shard, world)
        with pytest.raises(ConfigError, match=r"depend|this rank only"):
            model(shard.x, shard.edge_index)


class _Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x, edge_index):
        return self.function(x, edge_index) * self.weight


def test_draws_by_position_are_refused(folders):
    run_ranks(draws_by_position, 1, folders[0]["directed"])


def accumulated(world, folder):
    """Gradients of two backwards add up, each summed over the ranks once."""
    shard = gd.load_shard(folder, world)
    model = gd.parallelize(make_net("sage"), shard, world).eval()
    for _ in range(2):
        model(shard.x, shard.edge_index).sum().backward()
    twice = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(shard.x, shard.edge_index).sum().backward()
    for once, both in zip(model.parameters(), twice, strict=True):
        torch.testing.assert_close(both, 2 * once.grad)
    model.zero_grad()
    # Two forwards, one backward.
    outs = [model(shard.x, shard.edge_index) for _ in range(2)]
    (outs[0] + outs[1]).sum().backward()
    for parameter, both in zip(model.parameters(), twice, strict=True):
        torch.testing.assert_close(parameter.grad, both)


def test_gradients_accumulate(folders):
    run_ranks(accumulated, 3, folders[1]["star"])


def frozen_then_trained(world, folder):
    """A parameter that is trained from later on is summed as well."""
    shard = gd.load_shard(folder, world)
    net = make_net("sage").requires_grad_(False)
    net.out.requires_grad_(True)
    model = gd.parallelize(net, shard, world).eval()
    model(shard.x, shard.edge_index).sum().backward()
    net.requires_grad_(True)
    net.zero_grad()
    model(shard.x, shard.edge_index).sum().backward()
    return [p.grad.numpy() for p in net.parameters()]


def test_parameters_that_are_unfrozen_are_summed(folders):
    [one] = run_ranks(frozen_then_trained, 1, folders[0]["star"])
    for many in run_ranks(frozen_then_trained, 3, folders[1]["star"]):
        for a, b in zip(one, many, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-9)


class Uneven(nn.Module):
    """A model of which rank 1 alone skips a parameter, and with a frozen and an unused one."""

    def __init__(self, skip):
        super().__init__()
        self.conv, self.gate = pyg.SAGEConv(NUM_FEATURES, K), nn.Linear(K, K)
        self.frozen, self.unused = nn.Linear(K, K).requires_grad_(False), nn.Linear(K, K)
        self.skip = skip

    def forward(self, x, edge_index):
        x = self.frozen(self.conv(x, edge_index))
        return x if self.skip else x * self.gate(x)


def uneven(world, folder):
    shard = gd.load_shard(folder, world)
    torch.manual_seed(0)
    plain = Uneven(skip=False).double()
    model = gd.parallelize(Uneven(skip=world.rank == 1).double(), shard, world)
    model.load_state_dict(plain.state_dict())
    model(shard.x, shard.edge_index).sum().backward()
    assert model.module.frozen.weight.grad is None
    assert model.module.unused.weight.grad is None  # as on one machine
    gate = model.module.gate.weight.grad.clone()
    world.transport.all_reduce(gate, "max").wait()
    assert torch.equal(gate, model.module.gate.weight.grad)  # equal on all ranks
    assert gate.any()


def test_a_parameter_that_one_rank_skips_does_not_hang_the_others(folders):
    run_ranks(uneven, 3, folders[1]["random partition"])


class Draws(nn.Module):
    """Returns what dropout leaves of ones, twice for nodes and, inside a layer, for edges."""

    def __init__(self):
        super().__init__()
        self.layer, self.weight = EdgeOnes(), nn.Parameter(torch.ones(1))

    def forward(self, x, edge_index):
        ones = torch.ones(len(x), 64, dtype=x.dtype) * self.weight
        first, second = F.dropout(ones, 0.5, self.training), nn.Dropout(0.5)(ones)
        self.layer(ones, edge_index)
        return first, second, self.layer.seen


class EdgeOnes(pyg.MessagePassing):
    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j):
        self.seen = F.dropout(torch.ones_like(x_j), 0.5, self.training)
        return x_j


def drawn(world, folder):
    shard = gd.load_shard(folder, world)
    model = gd.parallelize(Draws(), shard, world)
    ids, csr = shard.structure.src_id, shard.structure.csr
    ends = torch.stack([ids[csr.rows], ids[csr.indices.long()], csr.copy_number], 1)
    steps = [[t.detach().numpy() for t in model(shard.x, shard.edge_index)] for _ in range(2)]
    return shard.node_id.numpy(), ends.numpy(), steps


def agreement(a, b):
    return float((a == b).mean())


def test_draws_differ_by_place_and_step_and_follow_ids_and_copies(folders):
    [(ids, ends, steps)] = run_ranks(drawn, 1, folders[0]["duplicate edges"])
    (first, second, edges), (later, *_) = steps
    for other in (second, later):
        assert 0.35 < agreement(first, other) < 0.65
    same = (ends[1:, :2] == ends[:-1, :2]).all(1)  # an edge and its next copy
    assert same.sum() > 20
    assert 0.35 < agreement(edges[1:][same], edges[:-1][same]) < 0.65
    parts = run_ranks(drawn, 3, folders[1]["duplicate edges"])
    order = np.argsort(np.concatenate([p[0] for p in parts]))
    whole = np.argsort(ids)
    for step in range(2):
        for i in range(2):
            got = np.concatenate([p[2][step][i] for p in parts])[order]
            np.testing.assert_array_equal(got, steps[step][i][whole])
        got_ends = np.concatenate([p[1] for p in parts])
        got = np.concatenate([p[2][step][2] for p in parts])[np.lexsort(got_ends.T[::-1])]
        np.testing.assert_array_equal(got, steps[step][2][np.lexsort(ends.T[::-1])])


class Returns(nn.Module):
    """Runs a body over a layer that every case shares."""

    def __init__(self, body):
        super().__init__()
        self.conv, self.lin = pyg.SAGEConv(NUM_FEATURES, NUM_FEATURES), nn.Linear(NUM_FEATURES, 1)
        self.body = body

    def forward(self, x, edge_index):
        return self.body(self, x, edge_index)


def change_in_place(self, x, edge_index):
    hidden = self.lin(x) + x
    first = self.conv(hidden, edge_index)
    hidden.add_(1.0)
    return first + self.conv(hidden, edge_index)


def in_place(world, folder):
    shard = gd.load_shard(folder, world)
    torch.manual_seed(1)
    model = gd.parallelize(Returns(change_in_place).double(), shard, world).eval()
    return shard.node_id.numpy(), model(shard.x, shard.edge_index).detach().numpy()


def test_rows_that_change_in_place_are_exchanged_again(folders):
    [(ids, one)] = run_ranks(in_place, 1, folders[0]["directed"])
    parts = run_ranks(in_place, 3, folders[1]["directed"])
    order = np.argsort(np.concatenate([ids for ids, _ in parts]))
    got = np.concatenate([rows for _, rows in parts])[order]
    np.testing.assert_allclose(got, one[np.argsort(ids)], atol=1e-10)


def without_gradient(self, x, edge_index):
    with torch.no_grad():
        rows = self.conv(x, edge_index)
    src, dst = edge_index
    near = torch.zeros_like(x).index_add(0, dst, x[src])  # of features, which have none either
    return self.lin(rows) + near


def run_again(self, x, edge_index):
    return self.lin(checkpoint(self.conv, x, edge_index, use_reentrant=True))


def hidden_output(self, x, edge_index):
    return {self.lin(self.conv(x, edge_index)): 0}  # a key, where no tensor is looked for


def refused_when_run(world, folder):
    shard = gd.load_shard(folder, world)
    for body, message in (
        (run_again, "SAGEConv runs in a function with a backward of its own"),
        (hidden_output, "the model must return tensors"),
    ):
        model = gd.parallelize(Returns(body).double(), shard, world)
        with pytest.raises(ConfigError, match=message):
            model(shard.x, shard.edge_index)
        with torch.no_grad():
            model(shard.x, shard.edge_index)  # nothing to sum, nothing to refuse
    with pytest.raises(ConfigError, match="did you mean 'overlap'"):
        gd.parallelize(Returns(change_in_place), shard, world, halo="overlp")


def some_without_gradient(world, folder, halo):
    shard = gd.load_shard(folder, world)
    torch.manual_seed(3)
    model = gd.parallelize(Returns(without_gradient).double(), shard, world, halo=halo)
    out = [model(shard.x, shard.edge_index) for _ in range(2)][1]
    out.square().sum().backward()
    assert model.module.conv.lin_l.weight.grad is None
    return shard.node_id.numpy(), out.detach().numpy(), model.module.lin.weight.grad.numpy()


def test_a_part_may_run_without_gradients(folders):
    [(ids, one, grad)] = run_ranks(some_without_gradient, 1, folders[0]["directed"], "overlap")
    parts = run_ranks(some_without_gradient, 3, folders[1]["directed"], "bf16")
    order = np.argsort(np.concatenate([part[0] for part in parts]))
    got = np.concatenate([part[1] for part in parts])[order]
    np.testing.assert_allclose(got, one[np.argsort(ids)], atol=1e-10)
    np.testing.assert_allclose(parts[0][2], grad, atol=1e-10)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
def test_what_would_lose_gradients_is_refused(folders):
    run_ranks(refused_when_run, 2, folders[1]["directed"])


def twice_differentiated(world, folder):
    shard = gd.load_shard(folder, world)
    model = gd.parallelize(make_net("sage"), shard, world).eval()
    x = shard.x.clone().requires_grad_()
    [grad] = torch.autograd.grad(model(x, shard.edge_index).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.square().sum().backward()


def test_a_second_derivative_is_refused(folders):
    run_ranks(twice_differentiated, 2, folders[1]["random partition"])


class OfData(nn.Module):
    """Takes a `Data`, and keeps an edge list of the shard's own."""

    def __init__(self, kept):
        super().__init__()
        self.conv, self.other, self.kept = pyg.GCNConv(NUM_FEATURES, K), pyg.SAGEConv(K, K), kept

    def forward(self, data, ids):
        out = self.other(self.conv(data.x, data.edge_index), self.kept)
        return out - out.mean(0) + ids.double().mean()


def of_data(world, folder, num_ids):
    shard = gd.load_shard(folder, world)
    torch.manual_seed(2)
    model = gd.parallelize(OfData(shard.edge_index).double(), shard, world, probe=False)
    data = Data(x=shard.x, edge_index=shard.edge_index)
    ids = torch.arange(num_ids)  # on one rank as many as it has nodes, and the same on all
    return shard.node_id.numpy(), model(data, ids).detach().numpy()


def test_data_objects_and_what_a_model_has_kept(folders):
    size = int(awkward_case("directed", 3).partition.sizes[0])
    [(ids, one)] = run_ranks(of_data, 1, folders[0]["directed"], size)
    parts = run_ranks(of_data, 3, folders[1]["directed"], size)
    assert len(parts[0][0]) == size != len(parts[1][0])
    order = np.argsort(np.concatenate([ids for ids, _ in parts]))
    got = np.concatenate([rows for _, rows in parts])[order]
    np.testing.assert_allclose(got, one[np.argsort(ids)], atol=1e-10)


def called_in_turn(world, folder):
    shard = gd.load_shard(folder, world)
    model = gd.parallelize(_Calls(lambda x, e: x), shard, world, probe=False)
    rows = torch.rand(shard.num_owned, 3)
    model(rows, shard.edge_index)
    with pytest.raises(ConfigError, match="had rows of nodes in an earlier call"):
        model(torch.rand(shard.num_owned + 2, 3), shard.edge_index)
    with pytest.raises(ConfigError, match=r"shard\.edge_index"):
        model(rows, EdgeIndex(shard.edge_index))


def test_arguments_that_change_are_refused(folders):
    run_ranks(called_in_turn, 2, folders[1]["random partition"])
