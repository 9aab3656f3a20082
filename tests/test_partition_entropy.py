import json

import numpy as np
import pytest

import gnn_dist as gd
from gnn_dist.errors import PartitionError
from gnn_dist.partition_entropy import measure_label_entropy
from gnn_dist.shard.format import read_meta

MIXED = np.array([0, 1, 2, 3, 0, 0, 1, 1, 2, 2])
PARTS = np.array([0, 0, 0, 0, 1, 1, 1, 1, 3, 3])


def by_definition(y, assignment, part):
    """The sums of the paper, one label after the other."""
    inside = y[assignment == part]
    entropy = divergence = 0.0
    for label in range(int(y.max()) + 1):
        share, overall = (inside == label).mean(), (y == label).mean()
        if share:
            entropy -= share * np.log2(share)
            divergence += share * np.log2(share / overall)
    return entropy, divergence


def test_entropies_of_a_small_case():
    found = measure_label_entropy(MIXED, PARTS, 4)
    assert (found.basis, found.task) == ("labelled", "multiclass")
    assert found.num_labelled == [4, 4, 0, 2]
    assert found.entropy == [2.0, 1.0, None, 0.0]
    assert found.mean == pytest.approx((4 * 2 + 4 * 1) / 10)
    assert found.spread == pytest.approx(np.std([2.0, 1.0, 0.0]))
    assert found.divergence[2] is None


@pytest.mark.parametrize("seed", range(5))
def test_entropies_are_those_of_the_definition(seed):
    rng = np.random.default_rng(seed)
    y, assignment = rng.integers(0, 6, 200), rng.integers(0, 3, 200)
    found = measure_label_entropy(y, assignment, 3)
    for part in range(3):
        entropy, divergence = by_definition(y, assignment, part)
        assert found.entropy[part] == pytest.approx(entropy, abs=1e-12)
        assert found.divergence[part] == pytest.approx(divergence, abs=1e-12)
    # The mean plus the mean divergence is the entropy of the whole.
    weights = np.array(found.num_labelled) / 200
    assert found.mean + weights @ found.divergence == pytest.approx(found.whole)


def test_only_training_nodes_of_the_first_split_count():
    y = np.array([0, 1, 0, 1])
    masks = np.array([[True, True], [False, True], [True, True], [True, True]])
    found = measure_label_entropy(y, np.array([0, 0, 1, 1]), 2, train_mask=masks)
    assert found.basis == "train"
    assert found.num_labelled == [1, 2]
    assert found.entropy == [0.0, 1.0]


def test_nodes_without_a_label_do_not_count():
    found = measure_label_entropy(np.array([0, -1, 1, -1]), np.array([0, 0, 0, 1]), 2)
    assert found.num_labelled == [2, 0]
    assert found.entropy == [1.0, None]


def test_several_labels_are_averaged():
    y = np.array([[True, False], [False, False], [True, True], [True, True]])
    found = measure_label_entropy(y, np.array([0, 0, 1, 1]), 2)
    assert found.task == "multilabel"
    # Part 0: one label of one bit, one that nobody has.
    assert found.entropy == [0.5, 0.0]
    whole = (-(0.75 * np.log2(0.75) + 0.25 * np.log2(0.25)) + 1) / 2
    assert found.whole == pytest.approx(whole)
    assert found.divergence[1] == pytest.approx((np.log2(1 / 0.75) + 1) / 2)


@pytest.mark.parametrize(
    ("y", "mask"),
    [
        (np.array([-1, -1]), None),
        (np.zeros((2, 0), bool), None),
        (np.array([0, 1]), np.zeros(2, bool)),
    ],
    ids=["no label", "no class", "no training node"],
)
def test_nothing_to_count_is_none(y, mask):
    assert measure_label_entropy(y, np.zeros(2, int), 1, train_mask=mask) is None


def test_arrays_of_other_lengths_are_refused():
    with pytest.raises(PartitionError, match=r"equally many nodes, got \[3, 2\]"):
        measure_label_entropy(np.zeros(3, int), np.zeros(2, int), 1)


def test_folders_hold_it_where_there_are_labels(tmp_path):
    graph = gd.graph_from_edges([0, 1], [1, 0], num_nodes=3, y=np.array([0, 1, 1]))
    partition = gd.Partition(np.array([0, 0, 1]), 3)
    gd.write_partition(graph, partition, tmp_path / "parts")
    meta = read_meta(tmp_path / "parts")
    assert meta.quality["label_entropy"]["entropy"] == [1.0, 0.0, None]
    assert "NaN" not in json.dumps(meta.quality)
    bare = gd.graph_from_edges([0, 1], [1, 0], num_nodes=3)
    gd.write_partition(bare, partition, tmp_path / "bare")
    assert "label_entropy" not in read_meta(tmp_path / "bare").quality
