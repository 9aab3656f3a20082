import math

import numpy as np
import pytest
import torch

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.profile.meter import HaloCount
from gnn_dist.testing import run_ranks
from gnn_dist.train.halo_report import halo_rows, halo_table
from gnn_dist.train.metrics import evaluate_metric, metric_name, roc_auc
from gnn_dist.train.task import NodeTask

NAN = float("nan")


def test_exchanges_of_all_ranks_in_a_row():
    """Bytes are of all ranks; seconds, late ones too, of the rank that waited longest."""
    counts = [
        {(1, "reverse"): HaloCount(1, 10, 2, 0.5, 0.4)},
        {(1, "reverse"): HaloCount(1, 30, 1, 2.0, 0.1), (0, "up"): HaloCount(1)},
    ]
    lanes, _ = halo_table({}, range(2))
    by_rank = torch.stack([halo_table(of_rank, range(2))[1] for of_rank in counts])
    quiet, busy = halo_rows(lanes, by_rank, with_late=True)
    assert (quiet["layer"], quiet["direction"], quiet["bytes"]) == (0, "up", 0)
    assert busy == {
        **{"layer": 1, "direction": "reverse", "bytes": 40, "messages": 3},
        **{"wait_s": 2.0, "late_s": 0.1},
    }
    assert halo_rows(lanes, by_rank, with_late=False)[1]["late_s"] is None


def single(logits, y, mask=None, classes=3):
    masks = {"test": torch.ones(len(y), dtype=torch.bool) if mask is None else torch.tensor(mask)}
    return torch.tensor(logits), NodeTask(torch.tensor(y), masks, 1, classes)


# Guesses 0, 0, 1, 1 for truths 0, 1, 1, 1; class 2 neither occurs nor is guessed.
CASE = single([[2.0, 1, 0], [2, 1, 0], [0, 3, 1], [0, 3, 1]], [0, 1, 1, 1])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accuracy", 3 / 4),
        ("micro_f1", 3 / 4),
        ("macro_f1", (2 / 3 + 4 / 5) / 2),  # of classes 0 and 1
    ],
)
def test_one_label_a_node(name, value):
    assert evaluate_metric(name, *CASE, World.single()) == {"test": pytest.approx(value)}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("micro_f1", 2 * 2 / (2 * 2 + 1 + 1)),
        ("macro_f1", (1.0 + 2 / 4 + 0.0) / 3),  # the third label never occurs and counts as 0
    ],
)
def test_several_labels_a_node(name, value):
    logits = [[1.0, 1, -1], [-1, 1, -1], [-1, -1, -1]]
    y = [[True, True, False], [False, False, False], [False, True, False]]
    logits, task = single(logits, y)
    assert evaluate_metric(name, logits, task, World.single()) == {"test": pytest.approx(value)}


@pytest.mark.parametrize("name", ["accuracy", "micro_f1", "macro_f1", "roc_auc"])
def test_a_split_without_nodes_has_no_metric(name):
    logits, task = single([[1.0, 0], [0, 1]], [0, 1], [False, False], 2)
    assert math.isnan(evaluate_metric(name, logits, task, World.single())["test"])


@pytest.mark.parametrize(
    ("scores", "y", "area"),
    [
        ([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], 0.75),
        ([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1], 1.0),
        ([0.9, 0.8, 0.2, 0.1], [0, 0, 1, 1], 0.0),
        ([0.5, 0.5, 0.5, 0.5], [0, 0, 1, 1], 0.5),
        ([0.5, 0.5], [1, 1], NAN),
    ],
)
def test_roc_auc_of_two_classes(scores, y, area):
    scores = np.array(scores)
    assert roc_auc(np.stack([1 - scores, scores], 1), np.array(y)) == pytest.approx(
        area, nan_ok=True
    )


def test_roc_auc_of_more_classes_and_labels_averages_those_defined():
    scores = np.array([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.8, 0.1, 0.1]])
    # Class 0 against the rest: 0.7 and 0.8 above 0.3: 1. Class 1: 0.6 above the rest: 1.
    assert roc_auc(scores, np.array([0, 1, 0])) == 1.0
    labels = np.array([[True, True, False], [False, False, False], [False, True, False]])
    # Label 0: 0.7 against 0.3, 0.8: one half. Label 1: 0.2, 0.1 against 0.6: 0. Label 2: undefined.
    assert roc_auc(scores, labels) == pytest.approx(0.25)


def spread(world, name, logits, y):
    """Rank 0 holds no node; the others share the nodes."""
    rows = range(world.rank - 1, len(y), world.world_size - 1) if world.rank else []
    rows = torch.tensor(list(rows), dtype=torch.int64)
    masks = {"even": rows % 2 == 0, "all": rows >= 0}
    task = NodeTask(y[rows], masks, 1, logits.size(1))
    return evaluate_metric(name, logits[rows], task, world)


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["accuracy", "macro_f1", "roc_auc"])
@pytest.mark.parametrize("labels", ["one", "several"])
def test_ranks_agree_with_one_process(name, labels):
    if (name, labels) == ("accuracy", "several"):
        name = "micro_f1"
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 3, generator=generator)
    y = torch.randint(0, 3, (40,), generator=generator)
    if labels == "several":
        y = torch.rand(40, 3, generator=generator) < 0.4
    masks = {"even": torch.arange(40) % 2 == 0, "all": torch.ones(40, dtype=torch.bool)}
    expected = evaluate_metric(name, logits, NodeTask(y, masks, 1, 3), World.single())
    for scores in run_ranks(spread, 3, name, logits, y):
        assert scores == pytest.approx(expected)


def test_auto_and_what_does_not_exist():
    one, several = CASE[1], single([[1.0]], [[True]])[1]
    assert metric_name("auto", one) == "accuracy"
    assert metric_name("auto", several) == "micro_f1"
    assert metric_name("roc_auc", several) == "roc_auc"
    with pytest.raises(ConfigError, match="accuracy is for one label a node"):
        metric_name("accuracy", several)
