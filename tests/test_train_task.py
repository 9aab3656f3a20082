import numpy as np
import pytest
import torch
import torch.nn.functional as F
from awkward import awkward_case

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.graph import Graph
from gnn_dist.halo.load import load_shard
from gnn_dist.partition import Partition
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks
from gnn_dist.train.task import choose_masks, make_task, node_loss


def shard_of(graph, folder):
    write_partition(graph, Partition(np.arange(graph.num_nodes) % 2, 2), folder)
    return load_shard(folder, World.single())


def points(num_nodes, **fields):
    """A graph without edges."""
    return Graph(np.zeros(num_nodes + 1, np.int64), np.zeros(0, np.int32), **fields)


def test_loss_is_the_sum_over_all_training_nodes():
    logits = torch.randn(6, 3, dtype=torch.float64)
    y, mask = torch.tensor([0, 1, 2, 0, -1, 1]), torch.tensor([1, 1, 0, 1, 0, 1]).bool()
    whole = F.cross_entropy(logits[mask], y[mask])
    torch.testing.assert_close(node_loss(logits, y, mask, 4), whole)
    parts = [node_loss(logits[s], y[s], mask[s], 4) for s in (slice(0, 1), slice(1, 6))]
    torch.testing.assert_close(sum(parts), whole)  # not the mean of local means


def test_loss_of_several_labels():
    logits = torch.randn(4, 3, dtype=torch.float64)
    y, mask = torch.rand(4, 3) < 0.5, torch.tensor([1, 0, 1, 1]).bool()
    expected = F.binary_cross_entropy_with_logits(logits[mask], y[mask].double())
    torch.testing.assert_close(node_loss(logits, y, mask, 3), expected)


def test_loss_of_a_rank_without_training_nodes_is_zero_with_gradient():
    for rows in (0, 3):
        logits = torch.randn(rows, 2, requires_grad=True)
        nobody = torch.zeros(rows, dtype=torch.bool)
        loss = node_loss(logits, torch.zeros(rows, dtype=torch.int64), nobody, 5)
        loss.backward()
        assert loss.item() == 0.0
        assert logits.grad.shape == (rows, 2)
        assert logits.grad.abs().sum() == 0.0


def test_official_splits(tmp_path):
    masks = np.arange(12).reshape(4, 3) % 4 == 0
    labels = np.array([0, 1, 0, 1])
    shard = shard_of(points(4, y=labels, train_mask=masks), tmp_path / "parts")
    for split in range(3):
        chosen = choose_masks(shard, split)
        assert chosen["train"].tolist() == masks[shard.node_id, split].tolist()
        assert not chosen["val"].any()  # there is no validation mask
    with pytest.raises(ConfigError, match=r"split must lie in 0\.\.2"):
        choose_masks(shard, 3)


def test_hash_split_is_seeded_by_its_number_and_knows_no_partition(tmp_path):
    y = np.arange(3000) % 3 - (np.arange(3000) % 7 == 0) * 10
    y[y < 0] = -1
    shard = shard_of(points(3000, y=y), tmp_path / "parts")
    chosen = choose_masks(shard, 0)
    sizes = {name: int(mask.sum()) for name, mask in chosen.items()}
    labelled = int((y >= 0).sum())
    assert sum(sizes.values()) == labelled
    assert not (chosen["train"] & chosen["val"]).any()
    for name, fraction in (("train", 0.5), ("val", 0.2), ("test", 0.3)):
        assert abs(sizes[name] / labelled - fraction) < 0.03
    assert shard.y[torch.stack(list(chosen.values())).any(0)].min() >= 0
    other = choose_masks(shard, 1)["train"]
    assert abs(float((other & chosen["train"]).sum()) / labelled - 0.25) < 0.03
    in_order = chosen["train"][shard.node_id.argsort()]
    write_partition(points(3000, y=y), Partition([0] * 3000, 1), tmp_path / "one")
    whole = load_shard(tmp_path / "one", World.single())
    assert torch.equal(choose_masks(whole, 0)["train"], in_order)


def counted(world, folder):
    return make_task(load_shard(folder, world), 0, world).num_train


@pytest.mark.mpi
def test_training_nodes_are_counted_over_all_ranks(tmp_path):
    _, graph, partition = awkward_case("part without train", 3)
    write_partition(graph, partition, tmp_path / "parts")
    assert run_ranks(counted, 3, tmp_path / "parts") == [int(graph.train_mask.sum())] * 3


def refused(world, folder, message):
    with pytest.raises(ConfigError, match=message):
        make_task(load_shard(folder, world), 0, world)


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "has no labels"),
        ({"y": np.zeros(4, int), "train_mask": np.zeros(4, bool)}, "has no training node"),
        ({"y": np.full(4, -1), "num_classes": 2}, "has no training node"),
    ],
)
def test_what_cannot_be_trained_is_refused_on_every_rank(fields, message, tmp_path):
    write_partition(points(4, **fields), Partition([0, 1, 0, 1], 2), tmp_path / "parts")
    run_ranks(refused, 2, tmp_path / "parts", message)
