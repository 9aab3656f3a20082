"""Training with stale halo rows: it learns, tells how stale they are, and resumes exactly."""

import json
import shutil

import numpy as np
import pytest
import torch
from torch_geometric.nn import GraphSAGE

import gnn_dist as gd
from gnn_dist.testing import run_ranks
from gnn_dist.train.checkpoint import LAST

OPTIONS = {
    "model": "gcn",
    "hidden": 8,
    "lr": 0.02,
    "precision": "fp64",
    "tensorboard": False,
    "epochs": 30,
    "eval_every": 10,
    "dropout": 0.0,
}
RANKS = 2


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    graph = gd.load_dataset("sbm:nodes=400,blocks=4,features=8")
    folder = tmp_path_factory.mktemp("sbm") / "parts"
    gd.write_partition(graph, gd.partition_graph(graph, 4, "random"), folder)
    return folder


def run(world, parts, out, options):
    config = gd.TrainConfig(**{**OPTIONS, "out": str(out), **options})
    trainer = gd.Trainer(config, gd.load_shard(parts, world), world)
    trainer.fit()
    assert not world.transport.in_flight
    state = {name: value.numpy() for name, value in trainer.model.state_dict().items()}
    return state, trainer.shard.node_id.numpy(), trainer.steps.predict().numpy()


def train(parts, out, ranks=RANKS, **options):
    """Return the rows of metrics.jsonl, and what each rank returned."""
    results = run_ranks(run, ranks, parts, out, options, timeout_s=120.0)
    return rows_of(out), results


def rows_of(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def losses(rows):
    return np.array([row["loss"] for row in rows])


def halo_files(out):
    return sorted(path.name for path in (out / "checkpoint").glob("halo-*"))


def predict_alone(world, parts, out, state):
    config = gd.TrainConfig(**{**OPTIONS, "out": str(out)})
    trainer = gd.Trainer(config, gd.load_shard(parts, world), world)
    trainer.model.load_state_dict({name: torch.from_numpy(v) for name, v in state.items()})
    return trainer.shard.node_id.numpy(), trainer.steps.predict().numpy()


@pytest.fixture(scope="module")
def exact(parts, tmp_path_factory):
    out = tmp_path_factory.mktemp("exact") / "run"
    rows, _ = train(parts, out)
    assert halo_files(out) == []
    assert "staleness" not in rows[0]
    return rows


@pytest.mark.parametrize(
    ("policy", "share", "tolerance"),
    [("delayed:r=2,bins=3", 1 / 3, 0.1), ("pipelined", 1, 0.05), ("ssp:s=1", 1, 0.05)],
)
def test_stale_training_comes_close_to_exact(policy, share, tolerance, parts, exact, tmp_path):
    rows, results = train(parts, tmp_path / "run", halo=policy)
    np.testing.assert_allclose(losses(rows)[:5], losses(exact)[:5], rtol=1e-9)
    difference = abs(losses(rows) / losses(exact) - 1)
    assert difference[6:].max() > 1e-6 or policy.startswith("ssp")
    assert difference.max() < tolerance
    sent = sum(row["halo_bytes"] for row in rows[5:23])
    assert sent == pytest.approx(share * sum(row["halo_bytes"] for row in exact[5:23]))
    assert rows[0]["staleness"] is None
    staleness = [row["staleness"] for row in rows[10:]]
    if policy.startswith("ssp"):  # in some steps nothing new may have come
        staleness = [value for value in staleness if value is not None]
    assert all(0 < value < 1 for value in staleness)
    assert halo_files(tmp_path / "run") == ["halo-0000.pt", "halo-0001.pt"]
    # Evaluation is exact: one process with the same parameters computes the same.
    [(ids, logits)] = run_ranks(predict_alone, 1, parts, tmp_path / "1", results[0][0])
    expected = logits[np.argsort(ids)]
    for _, mine, found in results:
        np.testing.assert_allclose(found, expected[mine], rtol=0, atol=1e-10)


def test_local_training_sends_nothing_after_the_features(parts, exact, tmp_path):
    rows, _ = train(parts, tmp_path / "run", halo="local")
    assert [row["halo_bytes"] for row in rows[1:]] == [0] * 29
    assert losses(rows)[-1] != pytest.approx(losses(exact)[-1], rel=1e-6)
    assert halo_files(tmp_path / "run") == []


STALE = {"halo": "delayed:r=3,bins=2,warmup=3", "dropout": 0.3}


@pytest.fixture(scope="module")
def whole(parts, tmp_path_factory):
    """A run of 20 epochs in one go."""
    rows, _ = train(parts, tmp_path_factory.mktemp("whole") / "run", epochs=20, **STALE)
    return rows


@pytest.fixture
def cut(parts, tmp_path, first_part):
    """The folder of a run like `whole` that has stopped after 11 epochs."""
    shutil.copytree(first_part, tmp_path / "cut")
    return tmp_path / "cut"


@pytest.fixture(scope="module")
def first_part(parts, tmp_path_factory):
    out = tmp_path_factory.mktemp("first") / "run"
    train(parts, out, epochs=11, **STALE)
    return out


def test_a_resumed_run_goes_on_exactly(parts, whole, cut):
    rows, _ = train(parts, cut, epochs=20, resume=str(cut), **STALE)
    assert_same(rows, whole)


def test_so_does_one_that_sends_the_largest_gradients_alone(parts, tmp_path):
    options = {"grad_encoding": "topk", "grad_share": 0.05}
    rows, _ = train(parts, tmp_path / "whole", epochs=12, **options)
    train(parts, tmp_path / "cut", epochs=6, **options)
    assert len(halo_files(tmp_path / "cut")) == 2
    more, _ = train(parts, tmp_path / "cut", epochs=12, resume=str(tmp_path / "cut"), **options)
    assert_same(more, rows)


def test_so_does_one_of_attention_on_pruned_layers(parts, tmp_path):
    options = {**STALE, "model": "gat", "heads": 2, "prune": True, "layers": 3}
    whole, _ = train(parts, tmp_path / "whole", epochs=12, **options)
    train(parts, tmp_path / "cut", epochs=7, **options)
    rows, _ = train(parts, tmp_path / "cut", epochs=12, resume=str(tmp_path / "cut"), **options)
    assert_same(rows, whole)


def assert_same(rows, whole):
    np.testing.assert_allclose(losses(rows), losses(whole), rtol=1e-9)
    assert [row["halo_bytes"] for row in rows[-3:]] == [row["halo_bytes"] for row in whole[-3:]]


def spoil(kind, run):
    if kind == "missing":
        (run / "checkpoint" / "halo-0001.pt").unlink()
    if kind == "damaged":
        (run / "checkpoint" / "halo-0001.pt").write_bytes(b"PK nothing")
    if kind == "older":
        values = torch.load(run / "checkpoint" / "halo-0000.pt", weights_only=True)
        torch.save({**values, "epoch": 10}, run / "checkpoint" / "halo-0000.pt")


@pytest.mark.parametrize("kind", ["missing", "damaged", "older", "another number of ranks"])
def test_without_a_rank_s_file_all_ranks_warm_up_again(kind, parts, whole, cut):
    spoil(kind, cut)
    ranks = 3 if kind.startswith("another") else RANKS
    rows, _ = train(parts, cut, ranks=ranks, epochs=20, resume=str(cut), **STALE)
    # Another loss than with stale rows, and three epochs in which all rows travel.
    assert abs(losses(rows)[11] / losses(whole)[11] - 1) > 1e-6
    sent = [row["halo_bytes"] for row in rows[11:]]
    assert sent[1] == sent[2] > 1.5 * max(sent[3:])
    if ranks == RANKS:
        assert sent[1] == whole[1]["halo_bytes"]
    assert halo_files(cut) == [f"halo-{rank:04d}.pt" for rank in range(ranks)]
    assert_same(rows[:11], whole[:11])


def staleness_of_values(world, parts):
    config = gd.TrainConfig(**{**OPTIONS, "halo": "pipelined:warmup=1"})
    trainer = gd.Trainer(config, gd.load_shard(parts, world), world)
    reports = [trainer.steps.step(trainer.optimizer, epoch) for epoch in range(3)]
    trainer.steps.drain()
    changes = {}
    for (direction, *_), value in trainer.steps.meter.change.items():
        changes[direction] = max(float(value), changes.get(direction, 0.0))
    assert set(changes) == {"forward", "reverse"}
    assert reports[-1].staleness == changes["forward"] != changes["reverse"]


def test_staleness_is_of_values_and_not_of_their_gradients(parts):
    run_ranks(staleness_of_values, RANKS, parts)


def unseen_folder(world, parts, out):
    """Rank 1 does not see the run folder; rank 0 cannot write its file."""
    config = gd.TrainConfig(**{**OPTIONS, "out": str(out), "halo": "pipelined", "epochs": 8})
    trainer = gd.Trainer(config, gd.load_shard(parts, world), world)
    open_files = trainer._halo_files.open

    def opened(run):
        open_files(run)
        if world.rank == 1:
            trainer._halo_files._run = out / "elsewhere"
        else:
            (out / "checkpoint" / "halo-0000.pt").mkdir(parents=True)

    trainer._halo_files.open = opened
    summary = trainer.fit()
    assert not world.transport.in_flight
    return summary["epochs"]


def test_a_rank_that_cannot_write_its_file_does_not_fail_the_run(parts, tmp_path):
    out = tmp_path / "run"
    assert run_ranks(unseen_folder, RANKS, parts, out, timeout_s=60.0) == [8, 8]
    assert halo_files(out) == ["halo-0000.pt"]
    (out / "checkpoint" / "halo-0000.pt").rmdir()
    rows, _ = train(parts, out, epochs=10, resume=str(out), halo="pipelined")
    assert len(rows) == 10


def overdue(world, parts, out):
    """First rank 1 finds that a checkpoint is overdue, then rank 0."""
    options = {**OPTIONS, "out": str(out), "halo": "pipelined", "checkpoint_every": 1000}
    trainer = gd.Trainer(gd.TrainConfig(**options), gd.load_shard(parts, world), world)
    trainer._open_folder()
    path = out / "checkpoint" / f"halo-{world.rank:04d}.pt"
    stamps = []
    for epoch in range(4):
        if (epoch, world.rank) in ((1, 1), (2, 0)):
            trainer._saved_at -= 1e6
        trainer.run_epoch()
        stamps.append(torch.load(path, weights_only=True)["epoch"] if path.exists() else None)
    trainer.steps.drain()
    trainer.close()
    return stamps


def test_all_ranks_save_when_rank_0_finds_it_time(parts, tmp_path):
    assert run_ranks(overdue, RANKS, parts, tmp_path / "run") == [[None, None, 3, 3]] * RANKS


@pytest.mark.mpi
def test_a_policy_of_another_kind_may_follow(parts, tmp_path):
    """A run that was stale may go on exactly, and then stale again."""
    out = tmp_path / "run"
    for epochs, halo in ((6, "pipelined"), (9, "overlap"), (12, "pipelined")):
        resume = {"resume": str(out)} if epochs > 6 else {}
        run_ranks(run, RANKS, parts, out, {"epochs": epochs, "halo": halo, **resume})
    if (out / "checkpoint" / LAST).exists():  # under mpirun on rank 0 alone
        assert [row["epoch"] for row in rows_of(out)] == list(range(12))


def trained_by_hand(world, parts, halo):
    """Train PyTorch Geometric's own model for some steps."""
    shard = gd.load_shard(parts, world)
    torch.manual_seed(0)
    plain = GraphSAGE(8, 8, 2, 4).double()
    model = gd.parallelize(plain, shard, world, halo=halo)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    x, edge_index, mask = shard.x.double(), shard.edge_index, shard.node_id % 2 == 0
    count = torch.tensor(float(mask.sum()))
    world.transport.all_reduce(count).wait()
    curve = []
    for _ in range(40):
        model.train()
        optimizer.zero_grad()
        out = model(x, edge_index)[mask]
        loss = torch.nn.functional.cross_entropy(out, shard.y[mask], reduction="sum") / count
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        world.transport.all_reduce(total).wait()
        curve.append(float(total))
    model.drain()
    model.eval()
    with torch.no_grad():
        logits = model(x, edge_index).numpy()
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    return curve, state, shard.node_id.numpy(), logits


def evaluated_alone(world, parts, state):
    shard = gd.load_shard(parts, world)
    model = GraphSAGE(8, 8, 2, 4).double().eval()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    with torch.no_grad():
        return shard.node_id.numpy(), model(shard.x.double(), shard.edge_index).numpy()


@pytest.mark.mpi
def test_a_model_of_pytorch_geometric_trains_on_stale_rows(parts):
    exact = run_ranks(trained_by_hand, RANKS, parts, "overlap", timeout_s=60.0)
    stale = run_ranks(trained_by_hand, RANKS, parts, "pipelined:smooth=0.5", timeout_s=60.0)
    curve, expected = np.array(stale[0][0]), np.array(exact[0][0])
    np.testing.assert_allclose(curve[:5], expected[:5], rtol=1e-9)
    assert curve[-1] < 0.5 * curve[0]
    assert 1e-9 < abs(curve - expected).max() < 0.1
    [(ids, logits)] = run_ranks(evaluated_alone, 1, parts, stale[0][1])
    for _, _, mine, found in stale:
        np.testing.assert_allclose(found, logits[np.argsort(ids)][mine], rtol=0, atol=1e-10)
