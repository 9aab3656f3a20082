"""Minibatch training: the same curve for any number of ranks, and that of full-batch with one."""

import json

import numpy as np
import pytest
import torch
from awkward import AWKWARD, awkward_case
from torch_geometric.nn import GATv2Conv, SAGEConv

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


RUNS = [
    {"model": "sage", "layers": 3, "num_neighbors": "5,4,3", "batch_size": 32, "epochs": 3},
    {"model": "gcn", "num_neighbors": "3", "batch_size": 50, "epochs": 2, "bulk": 1},
    {"model": "gat", "num_neighbors": "4,2", "batch_size": 64, "epochs": 2, "prefetch": 0},
    {"model": "gin", "num_neighbors": "-1", "batch_size": 40, "epochs": 2, "drop_last": True},
    {"model": "sage", "aggr": "max", "num_neighbors": "2", "replace": True, "epochs": 2},
    {"model": "sage", "batch_norm": True, "num_neighbors": "4", "batch_size": 32, "epochs": 2},
]
SHARED = [{**run, "topology": "shared"} for run in RUNS]


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


@pytest.fixture
def one_rank(parts):
    [found] = run_ranks(curves, 1, parts, RUNS)
    return found


@pytest.mark.mpi
@pytest.mark.parametrize("world_size", [2, 4])
def test_the_curve_does_not_depend_on_the_number_of_ranks(world_size, parts, one_rank):
    for found in run_ranks(curves, world_size, parts, RUNS if world_size == 4 else SHARED):
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
@pytest.mark.parametrize("world_size", [pytest.param(1, marks=pytest.mark.slow), 2])
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


class Residual(torch.nn.Module):
    """A user's model: attention over edge weights, a skip connection, no dropout."""

    def __init__(self, width, classes):
        super().__init__()
        self.first = GATv2Conv(width, 6, edge_dim=1)
        self.second = SAGEConv(6, 6, aggr="max")
        self.skip = torch.nn.Linear(width, 6)
        self.out = torch.nn.Linear(6, classes)

    def forward(self, x, edge_index, edge_weight=None):
        weight = None if edge_weight is None else edge_weight.unsqueeze(1)
        rows = self.first(x, edge_index, weight).relu() + self.skip(x)
        return self.out(self.second(rows, edge_index))


def own_curves(world, folders, runs):
    found = []
    for folder in folders:
        shard = load_shard(folder, world)
        for options in runs:
            torch.manual_seed(0)
            model = Residual(shard.meta.num_features, shard.meta.num_classes)
            config = gd.TrainConfig(**{**COMMON, "epochs": 2, **options})
            trainer = gd.Trainer(config, shard, world, model=model)
            rows = [trainer.run_epoch() for _ in range(2)]
            found.append([row["loss"] for row in rows] + [rows[-1]["test_metric"]])
    return found


@pytest.mark.mpi
def test_a_users_model_learns_the_same_on_any_number_of_ranks(tmp_path):
    folders = []
    for name in ("edge-weighted", "directed", "self-loops"):
        case = awkward_case(name, 3)
        folders.append(tmp_path / name / "parts")
        write_partition(case.graph, case.partition, folders[-1])
    whole = {"num_neighbors": "-1", "batch_size": 999}
    runs = [{"num_neighbors": "2,3", "batch_size": 5}, whole, {"mode": "full"}]
    [expected] = run_ranks(own_curves, 1, folders, runs)
    for i in range(0, len(expected), 3):
        np.testing.assert_allclose(expected[i + 1], expected[i + 2], rtol=1e-9)
    for found in run_ranks(own_curves, 3, folders, runs):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_a_batch_looks_as_pygs_loader_makes_it(parts):
    world = gd.World.single()
    shard = load_shard(parts, world)
    loader = gd.NodeLoader(shard, world, [3, 2], batch_size=16, edges=True)
    batch = next(iter(loader))
    data = batch.to_pyg()
    assert data.batch_size == 16
    assert data.num_nodes == len(data.x) == len(data.n_id) == sum(data.num_sampled_nodes)
    assert data.num_edges == len(data.e_id) == sum(data.num_sampled_edges)
    assert data.num_sampled_nodes[0] == 16
    rows = {int(node): row for node, row in zip(shard.node_id, shard.x, strict=True)}
    for node, row in zip(data.n_id.tolist(), data.x, strict=True):
        assert torch.equal(row, rows[node])
    # Each edge leads from one depth to the one before, and is the edge that its number says.
    depth = torch.repeat_interleave(torch.tensor(data.num_sampled_nodes))
    src, dst = data.edge_index
    assert torch.equal(depth[src], depth[dst] + 1)
    ids = shard.structure.src_id
    assert torch.equal(data.n_id[src], ids[shard.structure.csr.indices.long()[data.e_id]])
    assert torch.equal(data.n_id[dst], ids[shard.structure.csr.rows[data.e_id]])


def test_what_is_for_full_batches_is_refused():
    for options, message in [
        ({"prune": True}, "prune is for full batches"),
        ({"halo": "delayed"}, "halo=delayed is for full batches"),
        ({"cache": "much"}, "a size must be a number"),
    ]:
        with pytest.raises(ConfigError, match=message):
            gd.TrainConfig(mode="minibatch", **options)
    assert gd.TrainConfig(mode="minibatch", cache="1M").cache_bytes() == 1 << 20


LOCAL = {"num_neighbors": "4,3", "batch_size": 64, "epochs": 4, "eval_every": 0}
LOCAL_RUNS = [
    {**LOCAL, "sync": "local"},
    {**LOCAL, "sync": "local:every=2", "model": "gcn"},
    {**LOCAL, "sync": "local:every=3", "batch_norm": True, "aggr": "sum"},
]


@pytest.mark.mpi
def test_parts_learn_the_same_whoever_trains_them(parts):
    [expected] = run_ranks(curves, 1, parts, LOCAL_RUNS)
    for found in run_ranks(curves, 3, parts, LOCAL_RUNS):
        for (loss, state, row), (losses, parameters, _) in zip(found, expected, strict=True):
            np.testing.assert_allclose(loss, losses, rtol=1e-9)
            np.testing.assert_allclose(state, parameters, rtol=1e-7, atol=1e-9)
            assert row["halo_bytes"] == 0
            assert row["val_metric"] != row["val_metric"]  # never evaluated


def test_one_part_by_itself_is_a_run_of_one_rank(tmp_path):
    graph = gd.load_dataset("sbm:nodes=200,blocks=4,features=8")
    gd.write_partition(graph, gd.partition_graph(graph, 1, "contiguous"), tmp_path / "parts")
    runs = [{**LOCAL, "sync": "local:every=2"}, LOCAL]
    [[local, plain]] = run_ranks(curves, 1, tmp_path / "parts", runs)
    np.testing.assert_allclose(local[0], plain[0], rtol=1e-12)
    np.testing.assert_allclose(local[1], plain[1], rtol=1e-12)


def test_the_average_is_weighted_by_training_nodes(parts):
    """One epoch of all parts by hand."""
    world = gd.World.single()
    shard = load_shard(parts, world)
    config = gd.TrainConfig(**{**COMMON, **LOCAL, "sync": "local", "epochs": 1})
    trainer = gd.Trainer(config, shard, world)
    start = {k: v.clone() for k, v in trainer.model.state_dict().items()}
    models, weights = [], []
    steps, make, keep = trainer.steps, trainer.steps._loader_of, trainer.steps._states.keep

    def before(data, num_train):
        for name, value in steps.model.state_dict().items():
            assert torch.equal(value, start[name])  # every part starts from the same model
        assert not trainer.optimizer.state
        assert num_train == int(data.masks["train_mask"].sum())
        weights.append(num_train)
        return make(data, num_train)

    def after(part, model, optimizer):
        models.append({k: v.clone() for k, v in steps.model.state_dict().items()})
        keep(part, model, optimizer)

    steps._loader_of, steps._states.keep = before, after
    trainer.run_epoch()
    assert len(models) == 4
    for name, value in trainer.model.state_dict().items():
        mean = sum(w * m[name] for w, m in zip(weights, models, strict=True)) / sum(weights)
        np.testing.assert_allclose(value, mean, rtol=1e-12)


def test_a_resumed_run_of_parts_has_their_moments(parts, tmp_path):
    options = {**LOCAL, "sync": "local:every=3", "epochs": 4}
    run_ranks(fit, 2, parts, tmp_path / "whole", options)
    run_ranks(fit, 2, parts, tmp_path / "run", {**options, "epochs": 2})
    resumed = {**options, "resume": str(tmp_path / "run"), "out": ""}
    run_ranks(fit, 2, parts, "", resumed)
    np.testing.assert_allclose(
        losses_of(tmp_path / "run"), losses_of(tmp_path / "whole"), rtol=1e-9
    )


def spilled(world, folder, spill):
    shard = load_shard(folder, world, spill=spill)
    whole = load_shard(folder, world)
    assert torch.equal(shard.x, whole.x)
    config = gd.TrainConfig(**{**COMMON, **LOCAL, "precision": "fp32", "sync": "local"})
    return [
        [trainer.run_epoch()["loss"] for _ in range(2)]
        for trainer in (gd.Trainer(config, s, world) for s in (shard, whole))
    ]


def test_features_in_files_are_the_same(parts, tmp_path):
    for in_files, in_memory in run_ranks(spilled, 2, parts, tmp_path):
        assert in_files == in_memory
    assert [p.name for p in tmp_path.iterdir()] == ["parts"]


def test_parts_refuse_a_loss_that_is_a_mean(parts):
    world = gd.World.single()
    shard = load_shard(parts, world)
    task = gd.make_task(shard, 0, world, loss=torch.nn.functional.cross_entropy)
    config = gd.TrainConfig(**{**COMMON, **LOCAL, "sync": "local", "epochs": 1})
    with pytest.raises(ConfigError, match="must be a sum over nodes"):
        gd.Trainer(config, shard, world, task=task).run_epoch()


def test_local_sgd_is_said_right():
    for options, message in [
        ({"mode": "minibatch", "sync": "local:every=0"}, "sync must be step, local or local:every"),
        ({"mode": "minibatch", "sync": "always"}, "sync must be step, local or local:every"),
        ({"sync": "local"}, "sync=local is for minibatches"),
    ]:
        with pytest.raises(ConfigError, match=message):
            gd.TrainConfig(**options)
    assert gd.TrainConfig(mode="minibatch", sync="local").average_every() == 1


def leaving_early(world, folder):
    """Leave the loop after a few batches, on ranks whose threads are not equally far ahead."""
    import time

    shard = load_shard(folder, world)
    loader = gd.NodeLoader(shard, world, [3, 2], batch_size=8, seed=1, bulk=1, ahead=4)
    seen = []
    for stop in (3, 1, None):
        for number, batch in enumerate(loader):
            seen.append((batch.step, sorted(batch.n_id.tolist())))
            if number == stop:
                time.sleep(0.1 * world.rank)  # the others' threads run ahead meanwhile
                break
    return seen


@pytest.mark.mpi
def test_all_ranks_may_leave_an_epoch_early(parts):
    [expected] = run_ranks(leaving_early, 1, parts)
    results = run_ranks(leaving_early, 3, parts)
    steps = [step for step, _ in expected]
    assert steps[:6] == [0, 1, 2, 3, 38, 39]
    for i, (step, nodes) in enumerate(expected):
        assert [result[i][0] for result in results] == [step] * 3
        assert sorted(set().union(*(result[i][1] for result in results))) == nodes


def test_a_batch_as_blocks_of_dgl(parts):
    dgl_nn = pytest.importorskip("dgl.nn", exc_type=ImportError)
    world = gd.World.single()
    shard = load_shard(parts, world).with_dtype(torch.float64)
    batch = next(iter(gd.NodeLoader(shard, world, [3, 2], batch_size=16)))
    blocks = batch.to_dgl()
    assert [b.num_src_nodes() for b in blocks] == [b.structure.num_src for b in batch.blocks]
    layers = [dgl_nn.SAGEConv(8, 5, "mean").double(), dgl_nn.SAGEConv(5, 4, "mean").double()]
    rows = blocks[0].srcdata["x"]
    for layer, block in zip(layers, blocks, strict=True):
        rows = layer(block, rows)
    ours = batch.x
    for layer, block in zip(layers, batch.blocks, strict=True):
        reduced = gd.aggregate(ours, block, reduce="mean")
        ours = layer.fc_self(ours[: block.num_dst]) + layer.fc_neigh(reduced)
    np.testing.assert_allclose(rows.detach(), ours.detach(), rtol=1e-10)
    assert torch.equal(blocks[-1].dstdata["y"], batch.y)


def stored_features(world, folder):
    """Features of a batch under each storage, and how many bytes of them were fetched."""
    shard = load_shard(folder, world)
    found = []
    for storage in ("same", "fp16", "bf16", "int8"):
        loader = gd.NodeLoader(
            shard, world, [3], batch_size=64, storage=storage, sums=False, shares=False
        )
        batch = next(batches := iter(loader))
        list(batches)
        counts = loader.counts
        found.append((batch.x.numpy(), counts.fetched_bytes / max(1, counts.fetched_rows) - 8))
    return found


def test_features_may_be_stored_in_fewer_bits(parts):
    for result in run_ranks(stored_features, 2, parts):
        (exact, width), *others = result
        assert width == 4 * 8
        largest = np.abs(exact).max(1, keepdims=True)
        for (rows, fewer), error, expected in zip(
            others, (2**-11, 2**-8, 0.51 / 127), (2 * 8, 2 * 8, 8 + 4), strict=True
        ):
            assert rows.dtype == np.float32
            assert (np.abs(rows - exact) <= error * largest + 1e-12).all()
            assert fewer == expected
