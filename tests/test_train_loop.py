"""Whole runs: the same curve on any number of ranks, resumed or not, and what is left on disk."""

import json
import os

import numpy as np
import pytest
import torch
import yaml

import gnn_dist as gd
from gnn_dist.comm.detect import detect_launch
from gnn_dist.errors import ConfigError, GnnDistError
from gnn_dist.shard.format import read_meta
from gnn_dist.testing import run_ranks
from gnn_dist.train.checkpoint import BEST, LAST, read_checkpoint
from gnn_dist.train.trainer import Progress, load_model

# Under mpirun there are as many ranks as it started.
WORLD_SIZES = (2, 3) if detect_launch(os.environ).is_mpi else (2, 3, 4)
FAST = {"hidden": 8, "tensorboard": False, "precision": "fp64", "epochs": 12, "lr": 0.02}


def blobs(num_nodes=60, seed=0, **changes):
    """Three classes, noisy features, edges mostly inside a class, masks for all."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, num_nodes)
    src = rng.integers(0, num_nodes, 8 * num_nodes)
    dst = rng.integers(0, num_nodes, 8 * num_nodes)
    keep = (y[src] == y[dst]) | (rng.random(len(src)) < 0.2)
    role = rng.permutation(num_nodes) % 4
    fields = {
        "x": np.eye(3)[y] + rng.standard_normal((num_nodes, 3)),
        "y": y,
        "train_mask": role < 2,
        "val_mask": role == 2,
        "test_mask": role == 3,
        "name": "blobs",
    }
    return gd.graph_from_edges(
        src[keep], dst[keep], num_nodes=num_nodes, symmetrize=True, **{**fields, **changes}
    )


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """The graph in four parts, of which one is empty and one has no training node."""
    graph = blobs()
    assignment = np.random.default_rng(1).integers(0, 3, graph.num_nodes)
    assignment[(assignment == 2) & graph.train_mask] = 0
    assignment[assignment == 2] = 3
    folder = tmp_path_factory.mktemp("blobs") / "parts"
    gd.write_partition(graph, gd.Partition(assignment, 4), folder)
    return folder


def run(world, folder, out, options):
    config = gd.TrainConfig(**{**FAST, "out": str(out), **options})
    shard = gd.load_shard(folder, world)
    trainer = gd.Trainer(config, shard, world)
    summary = trainer.fit()
    state = {k: v.numpy() for k, v in trainer.model.state_dict().items()}
    return summary, state, rows_of(out) if world.is_main else None


def rows_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def rows_and_state(parts, out, world_size, **options):
    """Run; return the rows of metrics.jsonl, which only rank 0 can read under mpirun."""
    results = run_ranks(run, world_size, parts, out, options)
    for _, state, _ in results[1:]:
        for key, value in state.items():
            np.testing.assert_array_equal(value, results[0][1][key])  # ranks never drift apart
    return results[0][2]


def curve(parts, out, world_size, **options):
    return [row["loss"] for row in rows_and_state(parts, out, world_size, **options)]


@pytest.mark.mpi
@pytest.mark.parametrize(
    "options",
    [
        {"model": "sage", "batch_norm": True, "scheduler": "cosine"},
        {"model": "gat", "heads": 2, "optimizer": "adamw"},
        {"model": "gcn", "inductive": True, "optimizer": "sgd"},
        {"model": "gin", "layers": 3, "scheduler": "step", "scheduler_step": 4},
    ],
    ids=lambda options: options["model"],
)
def test_any_number_of_ranks_has_the_same_loss_curve(options, parts, tmp_path):
    one = curve(parts, tmp_path / "1", 1, **options)
    for world_size in WORLD_SIZES:
        many = curve(parts, tmp_path / str(world_size), world_size, **options)
        np.testing.assert_allclose(many, one, rtol=1e-9, atol=0)
    assert one[-1] < one[0]


@pytest.mark.mpi
def test_single_precision_curves_agree_for_sixty_epochs(parts, tmp_path):
    options = {"precision": "fp32", "epochs": 60, "eval_every": 20}
    one = curve(parts, tmp_path / "1", 1, **options)
    three = curve(parts, tmp_path / "3", 3, **options)
    np.testing.assert_allclose(three, one, rtol=1e-5, atol=0)


@pytest.mark.mpi
def test_a_rerun_is_identical_and_another_seed_is_not(parts, tmp_path):
    first = curve(parts, tmp_path / "a", 2)
    assert curve(parts, tmp_path / "b", 2) == first
    assert curve(parts, tmp_path / "c", 2, seed=1) != first


@pytest.mark.parametrize("scheduler", ["constant", "cosine"])
def test_a_resumed_run_continues_the_curve_on_another_number_of_ranks(scheduler, parts, tmp_path):
    options = {"scheduler": scheduler, "checkpoint_every": 5}
    whole = curve(parts, tmp_path / "whole", 1, **options)
    curve(parts, tmp_path / "cut", 2, **options)
    # As if it had been killed in epoch 7: the last checkpoint is of epoch 5.
    cut = tmp_path / "cut"
    lines = (cut / "metrics.jsonl").read_text().splitlines(keepends=True)
    (cut / "metrics.jsonl").write_text("".join(lines[:7]) + lines[7][:20])
    run_ranks(keep_checkpoint_of_epoch, 1, parts, tmp_path / "five", cut, options)
    resumed = curve(parts, cut, 3, resume=str(cut), **options)
    np.testing.assert_allclose(resumed, whole, rtol=1e-9, atol=0)
    assert [row["epoch"] for row in rows_of(cut)] == list(range(12))
    summaries = [
        json.loads((run / "summary.json").read_text()) for run in (tmp_path / "whole", cut)
    ]
    for key in ("best_epoch", "val_metric_at_best", "test_metric_at_best", "epochs"):
        assert summaries[0][key] == summaries[1][key]


def keep_checkpoint_of_epoch(world, parts, out, target, options):
    """Put the checkpoint that a run of 12 epochs has after epoch 5 in place of the last one."""
    config = gd.TrainConfig(**{**FAST, "out": str(out), **options})
    trainer = gd.Trainer(config, gd.load_shard(parts, world), world)
    trainer.save()
    for _ in range(5):
        trainer.run_epoch()
    trainer.close()
    checkpoint = (out / "checkpoint" / LAST).read_bytes()
    (target / "checkpoint" / LAST).write_bytes(checkpoint)


def test_the_run_folder_holds_what_others_read(parts, tmp_path):
    out = tmp_path / "run"
    [(summary, _, _), _] = run_ranks(run, 2, parts, out, {"tensorboard": True, "eval_every": 5})
    assert sorted(p.name for p in out.iterdir() if "tfevents" not in p.name) == [
        "checkpoint",
        "config.yaml",
        "metrics.jsonl",
        "summary.json",
    ]
    assert list(out.glob("events.out.tfevents*"))
    assert yaml.safe_load((out / "config.yaml").read_text())["hidden"] == 8
    written = json.loads((out / "summary.json").read_text())
    assert written == summary
    assert written["world_size"] == 2
    assert written["metric_name"] == "accuracy"
    assert written["partition"]["num_parts"] == 4
    rows = rows_of(out)
    assert set(rows[0]) == {
        *("epoch", "loss", "train_metric", "val_metric", "test_metric", "epoch_s", "compute_s"),
        *("halo_wait_s", "batch_wait_s", "grad_sync_s", "halo_bytes", "halo_messages"),
        *("peak_rss_bytes", "halo"),
    }
    assert [row["epoch"] for row in rows if row["val_metric"] is not None] == [4, 9, 11]
    best = max(
        (row for row in rows if row["val_metric"] is not None), key=lambda r: r["val_metric"]
    )
    assert written["best_epoch"] == best["epoch"]
    assert written["test_metric_at_best"] == best["test_metric"]


def test_halo_bytes_are_those_that_the_plan_predicts(parts, tmp_path):
    out = tmp_path / "run"
    run_ranks(run, 3, parts, out, {"model": "gcn", "layers": 3, "epochs": 2})
    boundary = sum(run_ranks(boundary_rows, 3, parts))
    # Widths exchanged, there and back: 8 and 3 classes. Features travel once, in the first epoch.
    first, second = (row["halo_bytes"] for row in rows_of(out))
    assert second == boundary * 8 * 2 * (8 + 3)
    assert first == second + boundary * 8 * read_meta(parts).num_features


def test_halo_columns_by_layer_add_up(parts, tmp_path):
    out = tmp_path / "run"
    run_ranks(run, 3, parts, out, {"model": "gcn", "epochs": 2, "profile_skew": True})
    first, second = rows_of(out)  # each after an evaluation, which does not count
    for row in (first, second):
        lanes = {(lane["layer"], lane["direction"]): lane for lane in row["halo"]}
        assert set(lanes) == {(0, "forward"), (1, "forward"), (1, "reverse")} - (
            set() if row is first else {(0, "forward")}
        )
        for name in ("bytes", "messages"):
            assert sum(lane[name] for lane in lanes.values()) == row[f"halo_{name}"] > 0
        assert all(0.0 <= lane["late_s"] <= lane["wait_s"] for lane in lanes.values())
    assert second["halo"][0]["bytes"] == second["halo"][1]["bytes"]


def boundary_rows(world, folder):
    plan = gd.load_shard(folder, world).plan
    assert plan.num_halo >= 0
    return (plan.num_boundary + plan.num_halo) / 2


def scores_of_best(world, folder, out):
    shard = gd.load_shard(folder, world)
    trainer = gd.Trainer(gd.TrainConfig(**{**FAST, "hidden": 16}), shard, world)
    best = read_checkpoint(out, world, BEST)
    load_model(trainer.model, best, shard, world)
    return best.epoch, trainer.evaluate()


def test_training_learns_and_the_best_model_is_kept(parts, tmp_path):
    out = tmp_path / "run"
    options = {"epochs": 100, "eval_every": 3, "hidden": 16}
    [(summary, _, _)] = run_ranks(run, 1, parts, out, options)
    assert summary["test_metric_at_best"] > 0.6  # a guess is right for a third
    [(epoch, scores)] = run_ranks(scores_of_best, 1, parts, out)
    assert epoch == summary["best_epoch"] + 1 > 10
    assert scores["test"] == summary["test_metric_at_best"]
    assert scores["val"] == summary["val_metric_at_best"]


def test_patience_stops_a_run(parts, tmp_path):
    out = tmp_path / "run"
    run_ranks(run, 2, parts, out, {"epochs": 300, "patience": 5, "lr": 0.05})
    rows = rows_of(out)
    best = int(np.argmax([row["val_metric"] for row in rows]))
    assert len(rows) == best + 1 + 5
    assert json.loads((out / "summary.json").read_text())["best_epoch"] == best


def test_resuming_a_run_that_patience_stopped_adds_nothing(parts, tmp_path):
    out = tmp_path / "run"
    options = {"epochs": 300, "patience": 3, "lr": 0.05}
    rows = rows_and_state(parts, out, 1, **options)
    assert rows_and_state(parts, out, 2, resume=str(out), **options) == rows


def learning_rates(world, folder, scheduler):
    config = gd.TrainConfig(**{**FAST, "scheduler": scheduler, "scheduler_step": 4, "lr": 1.0})
    trainer = gd.Trainer(config, gd.load_shard(folder, world), world)
    rates = []
    for _ in range(12):
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        trainer.run_epoch()
    return rates


@pytest.mark.parametrize(
    ("scheduler", "rates"),
    [
        ("constant", [1.0] * 12),
        ("step", [1.0] * 4 + [0.5] * 4 + [0.25] * 4),
        ("linear", [1 - epoch / 12 for epoch in range(12)]),
        ("cosine", [(1 + np.cos(np.pi * epoch / 12)) / 2 for epoch in range(12)]),
    ],
)
def test_learning_rates_follow_their_scheduler(scheduler, rates, parts):
    assert run_ranks(learning_rates, 1, parts, scheduler)[0] == pytest.approx(rates)


def test_progress_without_validation_nodes_keeps_the_last():
    progress, nan = Progress(), float("nan")
    assert progress.update(0, {"val": nan, "test": 0.5})
    assert progress.update(1, {"val": nan, "test": 0.4})
    assert (progress.best_epoch, progress.test_at_best) == (1, 0.4)
    progress = Progress()
    assert [progress.update(i, {"val": v, "test": v}) for i, v in enumerate((0.5, 0.5, 0.6))] == [
        True,
        False,
        True,
    ]


def trained_on(world, folder, out):
    config = gd.TrainConfig(**{**FAST, "model": "gcn", "inductive": True, "out": str(out)})
    trainer = gd.Trainer(config, gd.load_shard(folder, world), world)
    training = trainer.steps.training
    return int(training.shard.num_owned), bool(training.task.masks["train"].all())


@pytest.mark.mpi
def test_inductive_training_sees_training_nodes_only(parts, tmp_path):
    sizes = run_ranks(trained_on, 3, parts, tmp_path)
    assert sum(size for size, _ in sizes) == int(blobs().train_mask.sum())
    assert all(only for _, only in sizes)


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_features_of_any_float_dtype(dtype, tmp_path):
    graph = blobs()
    graph = graph.replace(x=graph.x.astype(dtype))
    gd.write_partition(graph, gd.Partition(np.arange(60) % 2, 2), tmp_path / "parts")
    losses = curve(tmp_path / "parts", tmp_path / "run", 2, precision="fp32")
    assert losses[-1] < losses[0]


@pytest.mark.mpi
@pytest.mark.parametrize("metric", ["roc_auc", "macro_f1", "micro_f1"])
def test_several_labels_a_node(metric, tmp_path):
    graph = blobs()
    labels = np.eye(3, dtype=bool)[graph.y] | (np.random.default_rng(2).random((60, 3)) < 0.1)
    graph = graph.replace(y=labels)
    gd.write_partition(graph, gd.Partition(np.arange(60) % 3, 3), tmp_path / "parts")
    one = curve(tmp_path / "parts", tmp_path / "1", 1, metric=metric, epochs=40)
    rows = rows_and_state(tmp_path / "parts", tmp_path / "3", 3, metric=metric, epochs=40)
    np.testing.assert_allclose([row["loss"] for row in rows], one, rtol=1e-9)
    assert rows[-1]["train_metric"] > 0.6


def wrong_run(world, folder, out, options, kind, message):
    with pytest.raises(kind, match=message):
        run(world, folder, out, options)


@pytest.mark.mpi
def test_a_loss_that_is_not_finite_stops_every_rank(parts, tmp_path):
    options = {"optimizer": "sgd", "lr": 1e200, "epochs": 30}
    run_ranks(wrong_run, 2, parts, tmp_path / "run", options, GnnDistError, "lower --lr")


def test_a_run_folder_in_use_is_refused_on_every_rank(parts, tmp_path):
    run_ranks(run, 1, parts, tmp_path / "run", {"epochs": 1})
    run_ranks(wrong_run, 2, parts, tmp_path / "run", {}, ConfigError, "holds a run already")


@pytest.mark.parametrize("damage", ["missing", "truncated", "code"])
def test_a_damaged_checkpoint_is_refused_on_every_rank(damage, parts, tmp_path):
    out = tmp_path / "run"
    run_ranks(run, 1, parts, out, {"epochs": 1})
    path = out / "checkpoint" / LAST
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:200])
    else:
        torch.save({"model": print}, path)  # a pickle that names a function is never loaded
    message = "cannot be read" if damage == "missing" else "is damaged"
    options = {"resume": str(out)}
    run_ranks(wrong_run, 2, parts, out, options, ConfigError, message)


def test_a_checkpoint_of_another_graph_or_model_is_refused(parts, tmp_path):
    out = tmp_path / "run"
    run_ranks(run, 1, parts, out, {"epochs": 1})
    gd.write_partition(blobs(seed=9), gd.Partition([0] * 60, 1), tmp_path / "other")
    options = {"resume": str(out)}
    run_ranks(wrong_run, 1, tmp_path / "other", out, options, ConfigError, "another graph")
    for change, message in (
        ({"hidden": 9}, "must keep hidden=8, got 9"),
        ({"lr": 0.5}, "must keep lr=0.02, got 0.5"),
        ({"optimizer": "sgd"}, "must keep optimizer=adam, got sgd"),
    ):
        run_ranks(wrong_run, 1, parts, out, {**options, **change}, ConfigError, message)


def read_back(world, run_folder):
    return read_checkpoint(run_folder, world).epoch


def test_every_rank_gets_the_checkpoint(parts, tmp_path):
    run_ranks(run, 1, parts, tmp_path / "run", {"epochs": 3})
    assert run_ranks(read_back, 3, tmp_path / "run") == [3, 3, 3]
