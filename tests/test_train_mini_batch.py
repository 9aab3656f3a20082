"""Minibatch training: the same curve for any number of ranks, and that of full-batch with one."""

import json

import numpy as np
import pytest
import torch
from awkward import AWKWARD, awkward_case

import gnn_dist as gd
from gnn_dist.errors import ConfigError, GnnDistError
from gnn_dist.halo.load import load_shard
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks

COMMON = {"mode": "minibatch", "precision": "fp64", "tensorboard": False, "hidden": 8, "heads": 2}


@pytest.fixture
def parts(tmp_path):
    graph = gd.load_dataset("sbm:nodes=300,blocks=4,features=8")
    gd.write_partition(graph, gd.partition_graph(graph, 4, "random"), tmp_path / "parts")
    return tmp_path / "parts"


def curves(world, folder, runs):
    """For each run its losses, and the parameters at its end."""
    shard = load_shard(folder, world)
    found = []
    for options in runs:
        trainer = gd.Trainer(gd.TrainConfig(**{**COMMON, **options}), shard, world)
        rows = [trainer.run_epoch() for _ in range(trainer.config.epochs)]
        state = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
        found.append(([row["loss"] for row in rows], state.numpy(), rows[-1]))
    return found


RUNS = [
    {"model": "sage", "layers": 3, "num_neighbors": "5,4,3", "batch_size": 32, "epochs": 3},
    {"model": "gcn", "num_neighbors": "3", "batch_size": 50, "epochs": 2, "bulk": 1},
    {"model": "gat", "num_neighbors": "4,2", "batch_size": 64, "epochs": 2, "prefetch": 0},
    {"model": "gin", "num_neighbors": "-1", "batch_size": 40, "epochs": 2, "drop_last": True},
    {"model": "sage", "aggr": "max", "num_neighbors": "2", "replace": True, "epochs": 2},
    {"model": "sage", "batch_norm": True, "num_neighbors": "4", "batch_size": 32, "epochs": 2},
]


@pytest.fixture
def one_rank(parts):
    [found] = run_ranks(curves, 1, parts, RUNS)
    return found


@pytest.mark.mpi
@pytest.mark.parametrize("world_size", [2, 3])
def test_the_curve_does_not_depend_on_the_number_of_ranks(world_size, parts, one_rank):
    for found in run_ranks(curves, world_size, parts, RUNS):
        for run, (loss, state, row), (expected, parameters, _) in zip(
            RUNS, found, one_rank, strict=True
        ):
            np.testing.assert_allclose(loss, expected, rtol=1e-9, err_msg=str(run))
            np.testing.assert_allclose(state, parameters, rtol=1e-7, atol=1e-9, err_msg=str(run))
            assert row["halo_bytes"] > 0


def both_modes(world, folders):
    """Losses of minibatches that hold everything, and of full batches."""
    found = []
    for folder in folders:
        shard = load_shard(folder, world)
        for model in ("sage", "gcn", "gat", "gin"):
            options = {**COMMON, "model": model, "layers": 3, "num_neighbors": "-1", "epochs": 2}
            for mode in ("minibatch", "full"):
                config = gd.TrainConfig(**{**options, "mode": mode, "batch_size": 10_000})
                trainer = gd.Trainer(config, shard, world)
                found.append([trainer.run_epoch()["loss"] for _ in range(2)])
    return found


@pytest.mark.mpi
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_batch_of_everything_is_the_full_batch(world_size, tmp_path):
    """Whole neighbourhoods and all training nodes: dropout draws alike, so losses are equal."""
    folders = []
    for name in AWKWARD:
        case = awkward_case(name, 2)
        folders.append(tmp_path / name / "parts")
        write_partition(case.graph, case.partition, folders[-1])
    for losses in run_ranks(both_modes, world_size, folders):
        for i in range(0, len(losses), 2):
            message = f"{AWKWARD[i // 8]}, model {i % 8 // 2}"
            np.testing.assert_allclose(losses[i], losses[i + 1], rtol=1e-9, err_msg=message)


def fit(world, folder, out, options):
    config = gd.TrainConfig(**{**COMMON, "out": str(out), **options})
    gd.Trainer(config, load_shard(folder, world), world).fit()


def losses_of(out):
    return [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_a_resumed_run_goes_on_as_if_it_had_never_stopped(parts, tmp_path):
    options = {"num_neighbors": "3", "batch_size": 40}
    run_ranks(fit, 2, parts, tmp_path / "whole", {**options, "epochs": 4})
    run_ranks(fit, 2, parts, tmp_path / "run", {**options, "epochs": 2})
    resumed = {**options, "epochs": 4, "resume": str(tmp_path / "run"), "out": ""}
    run_ranks(fit, 3, parts, "", resumed)
    np.testing.assert_allclose(
        losses_of(tmp_path / "run"), losses_of(tmp_path / "whole"), rtol=1e-9
    )


def inductive(world, folder):
    config = gd.TrainConfig(
        **{**COMMON, "inductive": True, "num_neighbors": "-1", "batch_size": 999, "epochs": 2}
    )
    shard = load_shard(folder, world)
    full = gd.TrainConfig(**{**config.to_dict(), "mode": "full"})
    return [
        [trainer.run_epoch()["loss"] for _ in range(2)]
        for trainer in (gd.Trainer(config, shard, world), gd.Trainer(full, shard, world))
    ]


def test_inductive_batches_hold_training_nodes_alone(parts):
    for mini, full in run_ranks(inductive, 2, parts):
        np.testing.assert_allclose(mini, full, rtol=1e-9)


class Broken(Exception):
    pass


def failing(world, folder, where):
    """Rank 1 fails in its third call of a stage; the others must hear of it."""
    shard = load_shard(folder, world)
    trainer = gd.Trainer(
        gd.TrainConfig(**{**COMMON, "num_neighbors": "3", "batch_size": 10}), shard, world
    )
    loader, calls = trainer.steps.loader, []
    if world.rank == 1:
        owner = {"sample": loader._sampler, "locate": loader._store, "take": loader._store}[where]
        real = getattr(owner, where)

        def broken(*args):
            calls.append(args)
            if len(calls) > 3:
                raise Broken(f"in {where}")
            return real(*args)

        setattr(owner, where, broken)
    for _ in range(3):
        trainer.run_epoch()


@pytest.mark.parametrize("where", ["sample", "locate", "take"])
def test_an_exception_in_one_ranks_loader_ends_all_ranks(where, parts):
    with pytest.raises(GnnDistError, match=f"Broken: in {where}") as error:
        run_ranks(failing, 3, parts, where, timeout_s=60.0)
    assert "rank 1" in str(error.value)


def delayed(world, folder):
    """Random delays in every stage of every rank."""
    import random
    import time

    shard = load_shard(folder, world)
    trainer = gd.Trainer(
        gd.TrainConfig(**{**COMMON, "num_neighbors": "3", "batch_size": 20}), shard, world
    )
    loader, dice = trainer.steps.loader, random.Random(world.rank)

    def slow(function):
        def called(*args, **kwargs):
            time.sleep(dice.choice([0.0, 0.0, 0.01, 0.03]))
            return function(*args, **kwargs)

        return called

    loader._sampler.sample = slow(loader._sampler.sample)
    loader._store.locate = slow(loader._store.locate)
    loader._batch = slow(loader._batch)
    trainer.steps._loss = slow(trainer.steps._loss)
    return [trainer.run_epoch()["loss"] for _ in range(2)]


def test_delays_change_nothing(parts):
    first, *others = run_ranks(delayed, 3, parts, timeout_s=60.0)
    [(expected, _, _)] = run_ranks(
        curves, 1, parts, [{"num_neighbors": "3", "batch_size": 20, "epochs": 2}]
    )[0]
    np.testing.assert_allclose(first, expected, rtol=1e-9)
    assert others == [first, first]


def test_options_are_checked():
    for options, message in [
        ({"num_neighbors": "5,x"}, "numbers joined by commas"),
        ({"num_neighbors": "5,-2"}, "numbers joined by commas"),
        ({"num_neighbors": "5,4,3"}, "one number for each of 2 layers"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"bulk": 0}, "bulk must be at least 1"),
        ({"prefetch": -2}, "prefetch must be at least -1"),
    ]:
        with pytest.raises(ConfigError, match=message):
            gd.TrainConfig(mode="minibatch", **options)
    assert gd.TrainConfig(mode="minibatch", num_neighbors="7", layers=3).fanout() == (7, 7, 7)
