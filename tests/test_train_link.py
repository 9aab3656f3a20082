"""Learning from edges: the same curve and the same scores for any number of ranks."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import gnn_dist as gd
from gnn_dist.errors import ConfigError, GnnDistError
from gnn_dist.nn.models import ModelShape, build_model
from gnn_dist.testing import run_ranks
from gnn_dist.train.link import triplet_loss

NEGATIVES = [
    ("binary", {"exclude": "batch"}),
    (gd.NegativeSampling("triplet", 3, "degree", strict=True), {"exclude": "all"}),
    (gd.NegativeSampling("binary", 2, "in_batch", strict=True), {"drop_last": True, "ahead": 0}),
    (None, {"edge_label": "classes"}),
]


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    graph = gd.load_dataset("sbm:nodes=120,blocks=4,features=8")
    graph = graph.replace(x=graph.x.astype(np.float64))
    folder = tmp_path_factory.mktemp("link") / "parts"
    gd.write_partition(graph, gd.partition_graph(graph, 4, "random"), folder)
    gd.write_partition(graph, gd.partition_graph(graph, 1, "contiguous"), folder.with_name("whole"))
    return folder


def make_model(world, classes=1):
    """Dropout and batch norm, whose draws and statistics depend on no partition."""
    torch.manual_seed(0)
    shape = ModelShape(8, 12, 10, dropout=0.3, batch_norm=True)
    decoder = gd.LinkMLP(10, 8, out_channels=classes, directed=classes > 1)
    return gd.LinkModel(build_model("sage", shape, world.transport), decoder).double()


def curves(world, folder):
    """For each way: losses, parameters, and metrics of the held-out edges."""
    shard = gd.load_shard(folder, world)
    split = gd.split_edges(shard, world, val=0.2, test=0.1)
    held_out = gd.LinkEvaluation(
        shard, world, split.val, how=gd.NegativeSampling("triplet", 9, strict=True), seed=2
    )
    found = []
    for how, options in NEGATIVES:
        options = dict(options)
        pairs = None
        if "edge_label" in options:
            pairs, classes = split.train, 3
            options["edge_label"] = (pairs[0] + 2 * pairs[1]) % 3
        elif options.get("exclude") == "all":
            pairs, classes = split.train[:, split.train.sum(0) % 5 == 0], 1
        else:
            classes = 1
        loader = gd.LinkLoader(
            split.shard,
            world,
            [4, 3],
            batch_size=150,
            edge_label_index=pairs,
            neg_sampling=how,
            seed=1,
            **options,
        )
        model = make_model(world, classes)
        steps = gd.LinkSteps(model, loader, torch.optim.Adam(model.parameters(), lr=0.01), world)
        losses = [steps.epoch(number) for number in range(2)]
        state = torch.cat([p.detach().flatten() for p in model.parameters()])
        scores = {}
        if classes == 1:
            rows = gd.node_rows(model.encoder, split.shard, world)
            scores = held_out(rows, model.decoder)
        found.append((losses, state.numpy(), scores))
    return found


@pytest.fixture(scope="module")
def one_rank(parts):
    """On another partition."""
    [found] = run_ranks(curves, 1, parts.with_name("whole"), timeout_s=60.0)
    return found


@pytest.mark.mpi
@pytest.mark.parametrize("world_size", [2, 3])
def test_the_curve_does_not_depend_on_the_number_of_ranks(world_size, parts, one_rank):
    for found in run_ranks(curves, world_size, parts, timeout_s=60.0):
        for (loss, state, scores), (expected, parameters, alone) in zip(
            found, one_rank, strict=True
        ):
            np.testing.assert_allclose(loss, expected, rtol=1e-9)
            np.testing.assert_allclose(state, parameters, rtol=1e-6, atol=1e-8)
            assert scores == pytest.approx(alone, rel=1e-9)


def ring(num_nodes, reach):
    """Nodes on a circle, tied to those near them; features say where a node is, with noise."""
    node = np.arange(num_nodes)
    steps = np.arange(1, reach + 1)
    src, dst = np.repeat(node, reach), (node[:, None] + steps).ravel() % num_nodes
    angle = 2 * np.pi * node[:, None] / num_nodes * np.arange(1, 5)
    x = np.concatenate([np.cos(angle), np.sin(angle)], 1)
    x += 0.5 * np.random.default_rng(0).standard_normal(x.shape)
    return gd.graph_from_edges(src, dst, num_nodes=num_nodes, x=x, symmetrize=True)


def test_a_model_learns_to_tell_edges(tmp_path):
    graph = ring(200, 4)
    gd.write_partition(graph, gd.partition_graph(graph, 1, "contiguous"), tmp_path / "parts")
    world = gd.World.single()
    shard = gd.load_shard(tmp_path / "parts", world)
    split = gd.split_edges(shard, world)
    loader = gd.LinkLoader(split.shard, world, [5, 5], batch_size=100, seed=1)
    torch.manual_seed(0)
    encoder = build_model("sage", ModelShape(8, 16, 16))
    model = gd.LinkModel(encoder, gd.DotProduct()).double()
    steps = gd.LinkSteps(model, loader, torch.optim.Adam(model.parameters(), lr=0.02), world)
    held_out = gd.LinkEvaluation(shard, world, split.test)
    metrics, losses = [], []
    for number in range(6):
        metrics.append(held_out(gd.node_rows(encoder, split.shard, world), model.decoder))
        losses.append(steps.epoch(number))
    assert losses[-1] < 0.9 * losses[0]
    assert metrics[-1]["mrr"] > 1.4 * metrics[0]["mrr"], metrics


def scored(world, folder):
    """Scores of all ranks by edge, and what they are by definition."""
    shard = gd.load_shard(folder, world)
    pairs = torch.tensor([[3, 5, 9], [70, 2, 5]])[:, : 3 if world.rank == 0 else 0]
    how = gd.NegativeSampling("triplet", 5)
    held_out = gd.LinkEvaluation(shard, world, pairs, how=how)
    rows = shard.node_id[:, None].double()
    pos, neg = held_out.scores(rows, gd.DotProduct(), at_once=5)
    assert torch.equal(neg, pos[:, None] * 0 + neg)
    return pos.tolist(), (neg / held_out.edges.src_id[:, None]).tolist()


def test_scores_are_those_of_the_pairs(parts):
    negatives = []
    for size in (1, 3):
        found = run_ranks(scored, size, parts)
        assert sorted(p for pos, _ in found for p in pos) == [10.0, 45.0, 210.0]
        negatives.append(sorted(row for _, neg in found for row in neg))
    assert negatives[0] == negatives[1]
    assert all(node == int(node) and 0 <= node < 120 for row in negatives[0] for node in row)


def test_losses_are_shares_that_add_up():
    scores, label = torch.randn(7, dtype=torch.float64), torch.tensor([1, 0, 1, 1, 0, 0, 1])
    shares = [gd.edge_loss(scores[part], label[part], 7) for part in (slice(3), slice(3, 7))]
    whole = F.binary_cross_entropy_with_logits(scores, label.double())
    torch.testing.assert_close(sum(shares), whole)
    classes = torch.randn(7, 3, dtype=torch.float64)
    torch.testing.assert_close(gd.edge_loss(classes, label, 7), F.cross_entropy(classes, label))
    several = torch.rand(7, 3) > 0.5
    torch.testing.assert_close(
        gd.edge_loss(classes, several, 7),
        F.binary_cross_entropy_with_logits(classes, several.double()),
    )
    neg = torch.randn(7, 2, dtype=torch.float64)
    mask = torch.ones(7, 2, dtype=torch.bool)
    mask[2, 1] = False
    expected = -F.logsigmoid(scores[:, None] - neg)[mask].mean()
    torch.testing.assert_close(triplet_loss(scores, neg, 13, mask), expected)
    none = triplet_loss(scores[:0], neg[:0], 0)
    assert float(none) == 0.0


def test_decoders():
    src, dst = torch.randn(4, 6), torch.randn(4, 6)
    torch.testing.assert_close(gd.DotProduct()(src, dst), torch.einsum("kd,kd->k", src, dst))
    undirected = gd.LinkMLP(6, 5, layers=3)
    torch.testing.assert_close(undirected(src, dst), undirected(dst, src))
    directed = gd.LinkMLP(6, 5, directed=True, out_channels=2)
    assert directed(src, dst).shape == (4, 2)
    assert not torch.allclose(directed(src, dst), directed(dst, src))
    each = directed(src[:, None], dst[None])
    assert each.shape == (4, 4, 2)
    torch.testing.assert_close(each[1, 2], directed(src[1:2], dst[2:3])[0])
    with pytest.raises(ConfigError, match="layers must be at least 1"):
        gd.LinkMLP(6, 5, layers=0)


def diverging(world, folder):
    shard = gd.load_shard(folder, world)
    loader = gd.LinkLoader(shard, world, [2, 2], batch_size=50)
    model = make_model(world)
    if world.rank == 1:
        with torch.no_grad():
            model.decoder.lins[0].weight.fill_(torch.inf)
    gd.LinkSteps(model, loader, torch.optim.SGD(model.parameters(), lr=0.1), world).epoch(0)


def test_a_loss_that_is_not_finite_ends_all_ranks(parts):
    with pytest.raises(GnnDistError, match=r"loss became (nan|inf) in epoch 0"):
        run_ranks(diverging, 2, parts)


def test_what_cannot_be_learned_is_refused(tmp_path):
    graph = gd.graph_from_edges([0, 1, 2], [1, 2, 0], num_nodes=3)
    gd.write_partition(graph, gd.partition_graph(graph, 1, "contiguous"), tmp_path / "parts")
    world = gd.World.single()
    shard = gd.load_shard(tmp_path / "parts", world)
    model = make_model(world)
    [batch] = gd.LinkLoader(shard, world, [2, 2], batch_size=3)
    with pytest.raises(ConfigError, match="needs features"):
        gd.link_loss(model, batch)
    with_x = graph.replace(x=np.ones((3, 8)))
    gd.write_partition(with_x, gd.partition_graph(graph, 1, "contiguous"), tmp_path / "with")
    shard = gd.load_shard(tmp_path / "with", world)
    [batch] = gd.LinkLoader(shard, world, [2, 2], batch_size=3, neg_sampling=None)
    with pytest.raises(ConfigError, match="needs edge_label"):
        gd.link_loss(model, batch)
    for options in ({"val": -0.1}, {"val": 0.5, "test": 0.5}):
        with pytest.raises(ConfigError, match="leave some for training"):
            gd.split_edges(shard, world, **options)
    with pytest.raises(ConfigError, match="an evaluation has no batches"):
        gd.LinkEvaluation(
            shard, world, torch.zeros(2, 1).long(), how=gd.NegativeSampling(method="in_batch")
        )


def cut(world, folder):
    shard = gd.load_shard(folder, world)
    heard = []
    for make in (
        lambda: gd.split_edges(shard, world),
        lambda: gd.LinkLoader(shard, world, [2], batch_size=3),
    ):
        with pytest.raises(ConfigError, match="vertex-cut") as error:
            make()
        heard.append(str(error.value))
    return heard


def test_a_partition_that_cuts_nodes_is_refused(tmp_path):
    graph = gd.load_dataset("sbm:nodes=40,blocks=2,features=4")
    gd.write_partition(graph, gd.partition_graph(graph, 2, "dbh"), tmp_path / "parts")
    assert len(run_ranks(cut, 2, tmp_path / "parts")) == 2


def narrow(world, folder, dtype):
    """The loss of an epoch, and a metric."""
    shard = gd.load_shard(folder, world).with_dtype(dtype)
    torch.manual_seed(0)
    model = gd.LinkModel(build_model("sage", ModelShape(8, 8, 8)), gd.DotProduct())
    loader = gd.LinkLoader(shard, world, [3, 3], batch_size=400)
    steps = gd.LinkSteps(model, loader, torch.optim.Adam(model.parameters(), lr=0.01), world)
    loss = steps.epoch(0)
    rows = gd.node_rows(model.encoder, shard, world)
    assert rows.dtype == torch.float32
    pairs = shard.node_id[shard.edge_index[:, shard.edge_index[0] < shard.num_owned]]
    return loss, gd.LinkEvaluation(shard, world, pairs)(rows, model.decoder)["mrr"]


def test_rows_in_sixteen_bits(parts):
    expected = narrow(gd.World.single(), parts, torch.float32)
    for loss, mrr in run_ranks(narrow, 2, parts, torch.bfloat16):
        assert loss == pytest.approx(expected[0], rel=0.02)
        assert loss != expected[0]
        assert mrr == pytest.approx(expected[1], rel=0.3)
