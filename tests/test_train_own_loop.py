"""A loop of one's own, a model of one's own, and what a run tells its callbacks."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GraphConv, GraphSAGE

import gnn_dist as gd
from gnn_dist.errors import ConfigError
from gnn_dist.interop import graph_to_pyg
from gnn_dist.testing import run_ranks

N = 40
OPTIONS = {
    "hidden": 6,
    "tensorboard": False,
    "precision": "fp64",
    "epochs": 8,
    "eval_every": 3,
    "checkpoint_every": 5,
    "scheduler": "cosine",
    "seed": 4,
}


def graph():
    rng = np.random.default_rng(0)
    y, role = rng.integers(0, 3, N), rng.permutation(N) % 4
    ends = rng.integers(0, N, (2, 5 * N))
    return gd.graph_from_edges(
        *ends,
        num_nodes=N,
        x=np.eye(3)[y] + rng.standard_normal((N, 3)),
        y=y,
        train_mask=role < 2,
        val_mask=role == 2,
        test_mask=role == 3,
        edge_weight=rng.uniform(0.5, 1.5, 5 * N),
    )


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A directed, weighted graph in three parts, of which the second is empty."""
    folder = tmp_path_factory.mktemp("loop") / "parts"
    part = np.random.default_rng(1).choice([0, 2], N)
    gd.write_partition(graph(), gd.Partition(part, 3), folder)
    return folder


class Weighted(nn.Module):
    """Takes the graph's edge weights, by name; has batch norm, dropout and an unused parameter."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.first, self.second = GraphConv(3, 6), GraphConv(6, 3)
        self.norm, self.unused = nn.BatchNorm1d(6), nn.Linear(2, 2)
        self.dropout = dropout

    def forward(self, x, edge_index, edge_weight):
        x = self.norm(self.first(x, edge_index, edge_weight)).relu()
        x = F.dropout(x, self.dropout, self.training)
        return self.second(x, edge_index, edge_weight)


def weighted(dropout=0.0):
    torch.manual_seed(2)
    return Weighted(dropout).double()


class Told(gd.Callback):
    """Writes down what it is told."""

    def __init__(self):
        self.events = []

    def on_fit_start(self, trainer):
        self.events.append(("start", trainer.progress.epoch))

    def on_step_end(self, trainer, report):
        self.events.append(("step", trainer.progress.epoch))

    def on_evaluate_end(self, trainer, scores):
        self.events.append(("evaluate", sorted(scores)))

    def on_checkpoint(self, trainer, path):
        assert (path is not None) is trainer.world.is_main
        self.events.append(("checkpoint", path and path.name))

    def on_fit_end(self, trainer, summary):
        self.events.append(("end", summary["epochs"]))


def state_of(trainer):
    return {name: values.numpy() for name, values in trainer.model.state_dict().items()}


def make(world, parts, model=None, callbacks=(), **options):
    shard = gd.load_shard(parts, world)
    config = gd.TrainConfig(**{**OPTIONS, **options})
    return gd.Trainer(config, shard, world, model=model, callbacks=callbacks)


def fit(world, parts, own, options):
    trainer = make(world, parts, weighted(0.3) if own else None, **options)
    summary = trainer.fit()
    return state_of(trainer), summary


def by_hand(world, parts, own, options):
    """What `fit` does, step by step."""
    trainer = make(world, parts, weighted(0.3) if own else None, **options)
    trainer.save()
    while not trainer.finished:
        report = trainer.train_step()
        done = trainer.progress.epoch
        due = done % 3 == 0 or done == trainer.config.epochs
        row = trainer.record(report, trainer.evaluate() if due else None)
        assert row["epoch"] == done - 1
        if done % 5 == 0:
            trainer.save()
    trainer.save()
    trainer.close()
    return state_of(trainer), trainer.progress


def rows_of(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    times = ("epoch_s", "compute_s", "halo_wait_s", "grad_sync_s", "peak_rss_bytes", "halo")
    return [{k: v for k, v in row.items() if k not in times} for row in rows]


@pytest.mark.parametrize("own", [False, True], ids=["ready", "own"])
def test_a_loop_of_ones_own_is_fit(own, parts, tmp_path):
    fits = run_ranks(fit, 2, parts, own, {"out": str(tmp_path / "fit")})
    loops = run_ranks(by_hand, 2, parts, own, {"out": str(tmp_path / "loop")})
    for (state, summary), (same, progress) in zip(fits, loops, strict=True):
        for name, values in state.items():
            np.testing.assert_array_equal(values, same[name])
        assert progress.best_epoch == summary["best_epoch"]
    assert rows_of(tmp_path / "fit") == rows_of(tmp_path / "loop")
    assert rows_of(tmp_path / "fit")[1]["halo_bytes"] > 0
    for name in ("last.pt", "best.pt"):
        assert (tmp_path / "loop" / "checkpoint" / name).is_file()


def plain_run(epochs=8):
    data, model = graph_to_pyg(graph()), weighted()
    data.edge_weight = data.edge_weight.double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
    for _ in range(epochs):
        out = model(data.x, data.edge_index, data.edge_weight)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    return model


def own_run(world, parts):
    trainer = make(world, parts, weighted())
    summary = trainer.fit(keep=False)
    return state_of(trainer), trainer.evaluate(), summary["run_folder"]


@pytest.mark.mpi
@pytest.mark.parametrize("world_size", [1, 3])
def test_a_model_of_ones_own_equals_plain_pyg(world_size, parts, tmp_path, monkeypatch):
    """Parameters, batch norm's statistics, and what has no gradient and so must not decay."""
    monkeypatch.chdir(tmp_path)
    expected = plain_run()
    data = graph_to_pyg(graph())
    guess = expected.eval()(data.x, data.edge_index, data.edge_weight).argmax(1)
    right = float((guess == data.y)[data.test_mask].double().mean())
    for state, scores, folder in run_ranks(own_run, world_size, parts):
        for name, values in expected.state_dict().items():
            np.testing.assert_allclose(state[name], values, rtol=1e-9, atol=1e-12, err_msg=name)
        assert scores["test"] == pytest.approx(right)
        assert folder == ""
    assert list(tmp_path.iterdir()) == []


def killed(world, parts, out):
    """Leave the checkpoint of epoch 5 and go two epochs on."""
    trainer = make(world, parts, weighted(0.3), out=str(out))
    trainer.save()
    for _ in range(7):
        trainer.run_epoch()
    trainer.close()


def test_a_model_of_ones_own_resumes_mid_run_on_other_ranks(parts, tmp_path):
    [(expected, summary)] = run_ranks(fit, 1, parts, True, {"out": str(tmp_path / "whole")})
    cut = tmp_path / "cut"
    run_ranks(killed, 2, parts, cut)
    resumed = run_ranks(fit, 3, parts, True, {"out": str(cut), "resume": str(cut)})
    for state, same in resumed:
        for name, values in expected.items():
            np.testing.assert_allclose(state[name], values, rtol=1e-9, atol=1e-12, err_msg=name)
        assert same["best_epoch"] == summary["best_epoch"]
    assert [row["epoch"] for row in rows_of(cut)] == list(range(8))


class Tabled(nn.Module):
    """Has rows of its own for all nodes, beside their features."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(N, 2)
        self.conv = GraphConv(5, 3)

    def forward(self, x, edge_index):
        x = F.dropout(torch.cat([x, self.emb.weight], 1), 0.3, self.training)
        return self.conv(x, edge_index)


def fit_tabled(world, parts, options, epochs):
    """Train for some epochs; return what rank 0 holds of all nodes, and the loss of each epoch."""
    torch.manual_seed(2 + world.rank)  # rank 0's values count
    model, losses = Tabled().double(), Losses()
    trainer = make(world, parts, model, [losses], eval_every=1, **options)
    trainer.save()
    for _ in range(epochs):
        trainer.run_epoch()
    trainer.close()
    table = model.emb.weight
    assert len(table) == trainer.shard.num_owned
    moments = trainer.optimizer.state[table]["exp_avg_sq"].numpy()
    return trainer.shard.node_id.numpy(), table.detach().numpy(), moments, losses.values


class Losses(gd.Callback):
    def __init__(self):
        self.values = []

    def on_step_end(self, trainer, report):
        self.values.append(report.loss)


def joined(by_rank):
    order = np.argsort(np.concatenate([rank[0] for rank in by_rank]))
    return [np.concatenate([rank[i] for rank in by_rank])[order] for i in (1, 2)]


def test_tables_of_nodes_resume_on_other_ranks(parts, tmp_path):
    whole = run_ranks(fit_tabled, 1, parts, {"out": str(tmp_path / "whole")}, 8)
    cut = str(tmp_path / "cut")
    run_ranks(fit_tabled, 3, parts, {"out": cut}, 7)  # a checkpoint after five
    resumed = run_ranks(fit_tabled, 2, parts, {"out": cut, "resume": cut}, 3)
    for values, expected in zip(joined(resumed), joined(whole), strict=True):
        np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(resumed[0][3], whole[0][3][5:], rtol=1e-9)
    best = torch.load(tmp_path / "cut" / "checkpoint" / "best.pt", weights_only=True)
    Tabled().double().load_state_dict(best["model"])


def inductive(world, parts):
    trainer = make(world, parts, weighted(), inductive=True)
    trainer.fit(keep=False)
    return state_of(trainer)


def test_inductive_training_of_a_model_of_ones_own(parts):
    [one] = run_ranks(inductive, 1, parts)
    for state in run_ranks(inductive, 2, parts):
        for name, values in one.items():
            np.testing.assert_allclose(state[name], values, rtol=1e-9, atol=1e-12)
    plain = plain_run().state_dict()
    assert not np.allclose(one["first.lin_rel.weight"], plain["first.lin_rel.weight"])


def told(world, parts, out):
    callback = Told()
    make(world, parts, callbacks=[callback], out=str(out), epochs=4, eval_every=4).fit()
    return callback.events


@pytest.mark.mpi
def test_callbacks_are_told_in_order_on_every_rank(parts, tmp_path):
    for rank, events in enumerate(run_ranks(told, 2, parts, tmp_path / "run")):
        last, best = ("last.pt", "best.pt") if rank == 0 else (None, None)
        assert events == [
            ("checkpoint", last),
            ("start", 0),
            *(("step", epoch) for epoch in (1, 2, 3, 4)),
            ("checkpoint", best),
            ("evaluate", ["test", "train", "val"]),
            ("checkpoint", last),
            ("end", 4),
        ]


class StopOn(gd.Callback):
    """Wants the end on one rank alone."""

    def __init__(self, rank, epoch):
        self.rank, self.epoch = rank, epoch

    def on_step_end(self, trainer, report):
        if (trainer.world.rank, trainer.progress.epoch) == (self.rank, self.epoch):
            trainer.stop()


def stopped(world, parts):
    trainer = make(world, parts, callbacks=[StopOn(1, 3)])
    return trainer.fit(keep=False)["epochs"]


@pytest.mark.mpi
def test_one_rank_may_end_the_run_of_all(parts):
    assert run_ranks(stopped, 3, parts) == [3] * 3


def refused(world, parts, kind, options, message):
    shard = gd.load_shard(parts, world)
    model = {
        "parallelized": lambda: gd.parallelize(weighted(), shard, world),
        "empty": nn.Identity,
        "sound": weighted,
    }[kind]()
    with pytest.raises(ConfigError, match=message):
        make(world, parts, model, **options)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("parallelized", {}, "pass model.module"),
        ("empty", {}, "no parameter to train"),
        ("sound", {"prune": True}, "prune=True is for the ready models"),
        ("sound", {"precision": "bf16"}, "precision=bf16 is for the ready models"),
        ("sound", {"grad_encoding": "bf16"}, "grad_encoding=bf16 is for the ready models"),
    ],
)
def test_what_a_model_of_ones_own_cannot_do(kind, options, message, parts):
    run_ranks(refused, 1, parts, kind, options, message)


class Mean(nn.Module):
    """Gives one row for all nodes."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x, edge_index):
        return self.lin(x.mean(0, keepdim=True))


def one_row(world, parts):
    with pytest.raises(ConfigError, match="a row for each of"):
        make(world, parts, Mean()).train_step()


def test_a_model_must_give_a_row_for_each_node(parts):
    run_ranks(one_row, 2, parts)


def own_loss(world, parts, loss):
    shard = gd.load_shard(parts, world)
    task = gd.make_task(shard, 0, world, loss=loss, metric=top2)
    torch.manual_seed(1)
    model = GraphSAGE(3, 6, 2, 3)
    trainer = gd.Trainer(gd.TrainConfig(**OPTIONS), shard, world, model=model, task=task)
    trainer.fit(keep=False)
    return state_of(trainer), trainer.evaluate(), trainer.metric


def as_rows(logits, y):
    return F.cross_entropy(logits, y, reduction="none")


def as_sum(logits, y):
    return F.cross_entropy(logits, y, reduction="sum")


def as_table(logits, y):
    """Three columns that are averaged."""
    return as_rows(logits, y)[:, None].expand(-1, 3)


def as_mean(logits, y):
    return F.cross_entropy(logits, y)


def top2(outputs, y):
    return (outputs.topk(2).indices == y[:, None]).any(1).double().mean()


@pytest.mark.mpi
@pytest.mark.parametrize("loss", [as_rows, as_sum, as_table, nn.CrossEntropyLoss(reduction="sum")])
def test_a_loss_and_a_metric_of_ones_own(loss, parts):
    [(expected, _, _)] = run_ranks(own_loss, 1, parts, "cross_entropy")
    results = run_ranks(own_loss, 2, parts, loss)
    for state, scores, name in results:
        assert name == "top2"
        assert scores == results[0][1]
        assert scores["train"] > scores["test"]
        for key, values in expected.items():
            np.testing.assert_allclose(state[key], values, rtol=1e-9, atol=1e-12)


def mean_is_refused(world, parts, loss):
    with pytest.raises(ConfigError, match=r"got a mean|reduction='mean'"):
        own_loss(world, parts, loss)


@pytest.mark.parametrize("loss", [as_mean, nn.CrossEntropyLoss()])
def test_a_mean_is_no_loss_on_any_rank(loss, parts):
    run_ranks(mean_is_refused, 2, parts, loss)
