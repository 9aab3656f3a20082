"""Errors of numbers, metrics of the user's own and of torchmetrics: over all ranks, exactly."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.testing import run_ranks
from gnn_dist.train.losses import check_adds_up, node_loss
from gnn_dist.train.metrics import evaluate_metric, make_metric
from gnn_dist.train.progress import Progress
from gnn_dist.train.task import NodeTask

N = 30


def drawn(kind):
    """Return outputs and labels of all nodes."""
    rng = torch.Generator().manual_seed(0)
    outputs = torch.randn(N, 3, generator=rng, dtype=torch.float64)
    y = {
        "classes": torch.randint(0, 3, (N,), generator=rng),
        "labels": torch.rand(N, 3, generator=rng) < 0.4,
        # Far from zero, where differences of sums of squares would lose digits.
        "numbers": 1e6 + torch.randn(N, 3, generator=rng, dtype=torch.float64),
    }[kind]
    return (1e6 + outputs, y) if kind == "numbers" else (outputs, y)


def task_of(rows, y, metric):
    masks = {"test": rows % 3 > 0, "val": rows == 4, "train": rows > N}
    return NodeTask(y[rows], masks, 1, 3, metric=metric, node_id=rows)


def on_a_rank(world, metric, kind):
    """Rank 0 owns no node, and rank 1 more than the others; ids are not in order."""
    outputs, y = drawn(kind)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    cuts = [*[0, 0, 17, N][: world.world_size], N]
    rows = order[cuts[world.rank] : cuts[world.rank + 1]]
    task = task_of(rows, y, metric)
    return make_metric(task).scores(outputs[rows], task, world)


def several(world, asked):
    return [on_a_rank(world, metric, kind) for metric, kind in asked]


def rows_of_test():
    return torch.arange(N) % 3 > 0


@pytest.mark.mpi
@pytest.mark.parametrize("world_size", [1, 3])
def test_errors_are_those_of_all_rows_together(world_size):
    guess, y = (values[rows_of_test()].numpy() for values in drawn("numbers"))
    squared = ((guess - y) ** 2).sum(0)
    expected = {
        "mae": np.abs(guess - y).mean(),
        "rmse": np.sqrt(squared / len(y)).mean(),
        "r2": (1 - squared / ((y - y.mean(0)) ** 2).sum(0)).mean(),
    }
    asked = [(name, "numbers") for name in expected]
    for by_name in run_ranks(several, world_size, asked):
        for (name, value), scores in zip(expected.items(), by_name, strict=True):
            assert scores["test"] == pytest.approx(value, rel=1e-12)
            assert math.isnan(scores["train"])  # there is no node in it
            assert math.isnan(scores["val"]) is (name == "r2")  # there is one


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("mae", "mean_absolute_error"),
        ("rmse", "root_mean_squared_error"),
        ("r2", "r2_score"),
    ],
)
@pytest.mark.parametrize("case", ["some", "constant", "met"])
def test_errors_agree_with_scikit_learn(name, function, case):
    metrics = pytest.importorskip("sklearn.metrics")
    guess, y = drawn("numbers")
    if case != "some":
        y[:, 1] = 5.0
    if case == "met":
        guess[:, 1] = 5.0
    task = NodeTask(y, {"test": torch.ones(N, dtype=torch.bool)}, 1, 3)
    found = evaluate_metric(name, guess, task, World.single())["test"]
    assert found == pytest.approx(getattr(metrics, function)(y, guess), rel=1e-12)


def test_one_number_a_node_may_come_as_a_column():
    y = torch.tensor([1.0, 2.0, 4.0])
    task = NodeTask(y, {"test": torch.ones(3, dtype=torch.bool)}, 1, 1)
    for outputs in (torch.zeros(3), torch.zeros(3, 1)):
        assert evaluate_metric("mae", outputs, task, World.single())["test"] == pytest.approx(7 / 3)
        loss = node_loss(outputs, y, task.masks["test"], 3)
        assert float(loss) == pytest.approx(7.0)
    with pytest.raises(ConfigError, match=r"1 column\(s\).* shape \(3, 2\)"):
        node_loss(torch.zeros(3, 2), y, task.masks["test"], 3)


def disorder(outputs, y):
    """Depends on the order of rows, so that it tells whether that is by original id."""
    weight = torch.arange(1.0, len(y) + 1, dtype=torch.float64)
    return (outputs[:, 0] * weight).sum() + (y * weight).sum()


@pytest.mark.mpi
def test_a_function_gets_the_rows_of_all_ranks_by_original_id():
    chosen = rows_of_test()
    outputs, y = (values[chosen] for values in drawn("classes"))
    for scores in run_ranks(on_a_rank, 3, disorder, "classes"):
        assert scores["test"] == float(disorder(outputs, y))
        assert math.isnan(scores["train"])


def test_objects_of_torchmetrics():
    metrics = pytest.importorskip("torchmetrics")
    made = {
        "classes": metrics.classification.MulticlassAUROC(3),
        "labels": metrics.classification.MultilabelF1Score(3),
        "numbers": metrics.MeanSquaredError(),
    }
    by_rank = run_ranks(several, 3, [(metric, kind) for kind, metric in made.items()])
    for i, (kind, metric) in enumerate(made.items()):
        outputs, y = (values[rows_of_test()] for values in drawn(kind))
        task = NodeTask(y, {"test": torch.ones(len(y), dtype=torch.bool)}, 1, 3, metric=metric)
        name = {"classes": "roc_auc", "labels": "macro_f1", "numbers": "rmse"}[kind]
        if kind == "numbers":
            expected = float(F.mse_loss(outputs, y))
        else:
            expected = evaluate_metric(name, outputs, task, World.single())["test"]
        for scores in by_rank:
            assert scores[i]["test"] == pytest.approx(expected, rel=1e-6)
        assert metric.update_count == 0  # a copy was used
        resolved = make_metric(task)
        assert resolved.higher_is_better is (kind != "numbers")
        assert resolved.name == type(metric).__name__


def test_what_is_no_number_is_refused():
    outputs, y = drawn("classes")
    task = task_of(torch.arange(N), y, lambda outputs, y: outputs)
    with pytest.raises(ConfigError, match="must return one number, got Tensor"):
        make_metric(task).scores(outputs, task, World.single())


def test_less_may_be_better():
    progress = Progress()
    values = (3.0, 2.0, 2.0, 2.5, 1.0)
    best = [
        progress.update(i, {"val": v, "test": -v}, higher_is_better=False)
        for i, v in enumerate(values)
    ]
    assert best == [True, True, False, False, True]
    assert (progress.best_epoch, progress.best_val, progress.test_at_best) == (4, 1.0, -1.0)
    _, y = drawn("numbers")
    assert not make_metric(task_of(torch.arange(N), y, "rmse")).higher_is_better
    assert make_metric(task_of(torch.arange(N), y, "auto")).name == "r2"


def test_losses_of_numbers():
    outputs, y = drawn("numbers")
    mask = rows_of_test()
    for name, function in (("auto", F.mse_loss), ("mse", F.mse_loss), ("l1", F.l1_loss)):
        whole = function(outputs[mask], y[mask])
        parts = [
            node_loss(outputs[s], y[s], mask[s], int(mask.sum()), loss=name)
            for s in (slice(0, 11), slice(11, 11), slice(11, N))
        ]
        torch.testing.assert_close(sum(parts), whole)
    with pytest.raises(ConfigError, match="mse, l1 for regression labels, got 'bce'"):
        node_loss(outputs, y, mask, 1, loss="bce")


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda logits, y: 3.0, "got float"),
        (lambda logits, y: logits[:2].sum(1), "a row for each of 30 nodes"),
    ],
)
def test_a_loss_must_be_a_sum_or_rows(loss, message):
    outputs, y = drawn("classes")
    with pytest.raises(ConfigError, match=message):
        node_loss(outputs, y, torch.ones(N, dtype=torch.bool), N, loss=loss)


def test_a_mean_is_found_out_and_a_sum_is_not():
    outputs, y = drawn("classes")
    with pytest.raises(ConfigError, match="got a mean"):
        check_adds_up(F.cross_entropy, outputs, y)
    check_adds_up(F.cross_entropy, outputs[:0], y[:0])  # a rank without training nodes
    for loss in (
        lambda logits, y: F.cross_entropy(logits, y, reduction="sum"),
        lambda logits, y: F.cross_entropy(logits, y, reduction="none"),
        lambda logits, y: logits.sum() * 0,
    ):
        check_adds_up(loss, outputs, y)
