"""Estimators: the numbers of a Trainer and of plain PyG, and scikit-learn's protocol."""

import copy
import inspect
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

import gnn_dist as gd
from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError, GnnDistError
from gnn_dist.interop import graph_to_pyg
from gnn_dist.testing import run_ranks

N = 48
ALL = np.arange(N)
FAST = {"hidden": 6, "dropout": 0.0, "epochs": 5, "precision": "fp64", "random_state": 3}


def graph(**changes):
    rng = np.random.default_rng(0)
    y, role = rng.integers(0, 3, N), rng.permutation(N) % 4
    fields = {
        "x": np.eye(3)[y] + rng.standard_normal((N, 3)),
        "y": y,
        "train_mask": role < 2,
        "val_mask": role == 2,
        "test_mask": role == 3,
    }
    ends = rng.integers(0, N, (2, 4 * N))
    return gd.graph_from_edges(*ends, num_nodes=N, symmetrize=True, **{**fields, **changes})


def targets(width=None):
    rng = np.random.default_rng(1)
    shape = (N,) if width is None else (N, width)
    return graph(y=rng.random(shape), regression=True)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Four parts: the second is empty, the last has no training node."""
    whole, folder = graph(), tmp_path_factory.mktemp("estimators")
    part = np.random.default_rng(1).choice([0, 2, 3], N, p=[0.6, 0.2, 0.2])
    part[(part == 3) & whole.train_mask] = 2
    made = {"classes": whole, "number": targets(), "numbers": targets(2)}
    made["labels"] = graph(y=np.random.default_rng(2).random((N, 3)) < 0.4)
    for name, each in made.items():
        gd.write_partition(each, gd.Partition(part, 4), folder / name)
    return folder


class Net(torch.nn.Module):
    """A model as it is written for one machine."""

    def __init__(self, width=3):
        super().__init__()
        self.inner = GraphSAGE(3, 6, 2, width)

    def forward(self, x, edge_index):
        return self.inner(x, edge_index)


def wide_net():
    return Net(2)


def trained_plainly(whole, loss, epochs, width=3):
    """Train a Net by hand; return its outputs and losses."""
    data = graph_to_pyg(whole)
    torch.manual_seed(FAST["random_state"])
    model = Net(width).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    losses = []
    for _ in range(epochs):
        out = model(data.x, data.edge_index)
        value = loss(out[data.train_mask], data.y[data.train_mask])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    with torch.no_grad():
        return model(data.x, data.edge_index), losses


def fitted(world, kind, options):
    made = getattr(gd, kind)(world=world, **{**FAST, **options}).fit()
    out = made.predict_proba() if kind == "DistNodeClassifier" else made.predict()
    local = made.predict(local=True)
    return out, made.predict(), made.score(), made.loss_curve_, made.node_ids_, local


@pytest.mark.mpi
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_classifier_equals_plain_pyg(world_size, parts):
    whole = graph()
    out, losses = trained_plainly(whole, F.cross_entropy, 5)
    options = {"model": Net, "parts": parts / "classes"}
    guess = out.argmax(1).numpy()
    right = (guess == whole.y)[whole.test_mask].mean()
    by_rank = run_ranks(fitted, world_size, "DistNodeClassifier", options)
    for proba, predicted, score, curve, ids, local in by_rank:
        np.testing.assert_allclose(proba, out.softmax(1), rtol=1e-9)
        np.testing.assert_array_equal(predicted, guess)
        np.testing.assert_array_equal(local, guess[ids])
        np.testing.assert_allclose(curve, losses, rtol=1e-9)
        assert score == pytest.approx(right)
    assert sorted(np.concatenate([rank[4] for rank in by_rank])) == ALL.tolist()


@pytest.mark.mpi
@pytest.mark.parametrize("loss", ["mse", "l1"])
def test_a_regressor_equals_plain_pyg(loss, parts):
    whole = targets(2)
    plain = {"mse": F.mse_loss, "l1": F.l1_loss}[loss]
    out, losses = trained_plainly(whole, plain, 5, width=2)
    options = {"model": wide_net, "parts": parts / "numbers", "loss": loss}
    y, guess = whole.y[whole.test_mask], out.numpy()[whole.test_mask]
    r2 = 1 - ((y - guess) ** 2).sum(0) / ((y - y.mean(0)) ** 2).sum(0)
    for predicted, _, score, curve, _, _ in run_ranks(fitted, 2, "DistNodeRegressor", options):
        np.testing.assert_allclose(predicted, out, rtol=1e-9)
        np.testing.assert_allclose(curve, losses, rtol=1e-9)
        assert score == pytest.approx(r2.mean(), rel=1e-9)


def trained(world, folder):
    """The same run by a Trainer."""
    config = gd.TrainConfig(model="gcn", hidden=6, dropout=0.5, epochs=5, precision="fp64", seed=3)
    trainer = gd.Trainer(config, gd.load_shard(folder, world), world)
    trainer.fit(keep=False)
    return trainer.predict().softmax(1).numpy(), trainer.shard.node_id.numpy()


def test_a_ready_model_equals_a_trainer_on_another_number_of_ranks(parts):
    [(proba, ids)] = run_ranks(trained, 1, parts / "classes")
    options = {"model": "gcn", "parts": parts / "classes", "dropout": 0.5}
    for found, *_ in run_ranks(fitted, 2, "DistNodeClassifier", options):
        np.testing.assert_allclose(found[ids], proba, rtol=1e-9)


def labelled(world, folder):
    made = gd.DistNodeClassifier(parts=folder, world=world, **FAST).fit()
    return made.predict(), made.predict_proba([5, 2]), made.score(ALL), made.classes_


def test_several_labels(parts):
    whole = np.random.default_rng(2).random((N, 3)) < 0.4
    for predicted, proba, score, classes in run_ranks(labelled, 2, parts / "labels"):
        assert (predicted.dtype, predicted.shape, classes.tolist()) == (bool, (N, 3), [0, 1, 2])
        np.testing.assert_array_equal(proba > 0.5, predicted[[5, 2]])
        hit = (predicted & whole).sum()
        assert score == pytest.approx(2 * hit / (predicted.sum() + whole.sum()))


def on_named_nodes(world, parts, train, names):
    made = gd.DistNodeClassifier(parts=parts, world=world, **FAST).fit(train, names)
    return made.predict(), made.score(train, names), made.classes_


@pytest.mark.mpi
def test_nodes_and_labels_of_ones_own(parts):
    """Named nodes in any order, classes that are words: the run of the graph's own."""
    whole = graph()
    train = np.random.default_rng(3).permutation(np.flatnonzero(whole.train_mask))
    words = np.array(["no", "so", "to"])
    expected, *_ = run_ranks(fitted, 1, "DistNodeClassifier", {"parts": parts / "classes"})[0][1:]
    args = parts / "classes", train, words[whole.y[train]]
    for predicted, score, classes in run_ranks(on_named_nodes, 2, *args):
        assert classes.tolist() == words.tolist()
        np.testing.assert_array_equal(predicted, words[expected])
        assert score == pytest.approx((expected[train] == whole.y[train]).mean())


def local(**options):
    options = {"parts": graph(), "world": World.single(), **FAST, **options}
    return gd.DistNodeClassifier(**options)


def test_a_graph_or_pyg_data_in_place_of_a_folder(parts):
    expected = local().fit().predict_proba()
    for data in (graph_to_pyg(graph()), str(parts / "classes")):
        found = local(parts=data).fit().predict_proba()
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    with pytest.raises(ConfigError, match="partition folder, a Graph or"):
        local(parts=3).fit()


def from_graph(world):
    return gd.DistNodeClassifier(parts=graph(), world=world, **FAST).fit().predict_proba()


@pytest.mark.mpi
def test_ranks_share_what_rank_0_partitions():
    expected = local().fit().predict_proba()
    for found in run_ranks(from_graph, 2):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_a_refit_starts_anew_and_a_seed_decides():
    for model in ("sage", Net, Net()):
        made = local(model=model)
        first = made.fit().predict_proba()
        assert made.n_iter_ == 5
        np.testing.assert_array_equal(made.fit().predict_proba(), first)
    first = local(random_state=np.random.RandomState(5)).fit().predict_proba()
    np.testing.assert_array_equal(
        local(random_state=np.random.RandomState(5)).fit().predict_proba(), first
    )
    assert not np.array_equal(local(random_state=None).fit().predict_proba(), first)


def test_fit_changes_neither_parameters_nor_the_module():
    module = Net()
    before = [p.clone() for p in module.parameters()]
    made = local(model=module)
    params = made.get_params()
    made.fit()
    assert made.get_params() == params
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


def test_parameters_by_name():
    made = local()
    assert set(made.get_params()) == set(inspect.signature(gd.DistNodeClassifier).parameters)
    assert made.set_params(lr=0.5, hidden=-1) is made  # checked by fit alone
    assert (made.lr, made.get_params()["hidden"]) == (0.5, -1)
    with pytest.raises(ConfigError, match="hidden must be at least 1"):
        made.fit()
    with pytest.raises(ConfigError, match="has no parameter 'hiden': did you mean 'hidden'"):
        made.set_params(hiden=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adma"}, "optimizer must be one of adam"),
        ({"loss": "mse"}, "loss must be auto or one of cross_entropy"),
        ({"metric": "rmse"}, "rmse is for numbers"),
        ({"model": Net, "precision": "bf16"}, "for the ready models"),
        ({"parts": targets()}, "use DistNodeRegressor"),
        ({"model": wide_net}, "must return 3 numbers for each node"),
        ({"callbacks": [print]}, "callbacks must be a list"),
        ({"callbacks": gd.Callback()}, "callbacks must be a list"),
    ],
)
def test_what_cannot_work_is_refused_by_fit(options, message):
    with pytest.raises(ConfigError, match=message):
        local(**options).fit()


@pytest.mark.parametrize(
    ("nodes", "y", "message"),
    [
        ([0, N], None, f"must lie in 0..{N - 1}, got {N}"),
        ([3, 5, 3], None, "must not repeat, got 3"),
        ([0, 1], [1], "a row for each of 2 nodes"),
        (None, [1], "y must come with nodes"),
        ([], None, "at least one node"),
        ([0.5], None, "must be original ids"),
        ([0, 1], [1.0, float("nan")], "must not be NaN"),
        ([0, 1], [None, "a"], "of one kind"),
    ],
)
def test_wrong_nodes_are_refused(nodes, y, message):
    with pytest.raises(ConfigError, match=message):
        local().fit(nodes, y)


def test_before_fit_and_with_strange_labels():
    with pytest.raises(ConfigError, match="not fitted"):
        local().predict()
    made = local().fit([0, 1, 2, 3], ["a", "b", "a", "b"])
    with pytest.raises(ConfigError, match="got c, which fit has not seen"):
        made.score([5], ["c"])
    with pytest.raises(ConfigError, match="labels of its own"):
        made.score([5])


def test_the_best_parameters_can_be_kept():
    class Scores(gd.Callback):
        def __init__(self):
            self.val = []

        def on_evaluate_end(self, trainer, scores):
            self.val.append(scores["val"])

    scores = Scores()
    options = {"epochs": 30, "lr": 0.2, "callbacks": [scores]}
    made = local(keep_best=True, **options).fit()
    best = max(scores.val)
    assert scores.val[-1] < best  # else this shows nothing
    assert made.score(graph().val_mask) == best


def test_errors_are_negated_as_scores():
    made = gd.DistNodeRegressor(parts=targets(), world=World.single(), metric="mae", **FAST).fit()
    whole = targets()
    error = np.abs(made.predict() - whole.y)[whole.test_mask].mean()
    assert made.score() == pytest.approx(-error)


def test_scikit_learn_takes_them():
    base = pytest.importorskip("sklearn.base")
    selection = pytest.importorskip("sklearn.model_selection")
    validation = pytest.importorskip("sklearn.utils.validation")
    made = local()
    copy = base.clone(made)
    assert copy is not made
    assert copy.get_params() == made.get_params()
    assert base.is_classifier(made)
    assert base.is_regressor(gd.DistNodeRegressor())
    with pytest.raises(ValueError, match="not fitted"):
        validation.check_is_fitted(made)
    validation.check_is_fitted(made.fit())
    assert not hasattr(base.clone(made), "model_")
    search = selection.GridSearchCV(made, {"lr": [1e-9, 0.05]}, cv=2)
    search.fit(ALL, graph().y)
    assert search.best_params_ == {"lr": 0.05}
    expected = made.set_params(lr=0.05).fit(ALL, graph().y).score(ALL, graph().y)
    assert search.score(ALL, graph().y) == pytest.approx(expected)


def in_a_file(fitted):
    return pickle.loads(pickle.dumps(fitted))


@pytest.mark.parametrize(
    "options", [{}, {"model": Net}, {"model": Net(), "keep_best": True}, {"batch_norm": True}]
)
def test_a_fitted_estimator_is_saved_and_loaded(options, parts):
    clf = local(parts=parts / "classes", callbacks=[gd.Callback()], **options)
    assert not in_a_file(clf).__sklearn_is_fitted__()
    proba, score = clf.fit().predict_proba(), clf.score()
    clf.set_params(hidden=9, lr=1.0)  # which is for the next fit
    loaded = in_a_file(in_a_file(clf))  # the second time without having been used
    assert vars(loaded).keys().isdisjoint({"trainer_", "model_", "world_"})
    np.testing.assert_array_equal(loaded.predict_proba(), proba)
    assert loaded.score() == copy.deepcopy(clf).score() == score
    assert (loaded.n_iter_, loaded.lr) == (clf.n_iter_, 1.0)
    assert loaded.model_ is loaded.trainer_.model
    assert in_a_file(loaded).score() == score
    assert not hasattr(loaded.__sklearn_clone__(), "model_")


def test_a_saved_estimator_holds_what_fit_was_given_and_no_graph(parts, tmp_path):
    names, folder = np.array(["a", "b", "c"])[graph().y], tmp_path / "moved"
    clf = local(parts=tmp_path / "parts")
    gd.write_partition(graph(), gd.partition_graph(graph(), 2, "best"), clf.parts)
    clf.fit(ALL[:30], names[:30])
    data = pickle.dumps(clf)
    expected = clf.predict(), clf.score(ALL[30:], names[30:])
    clf.parts.rename(folder)
    loaded = pickle.loads(data)
    with pytest.raises(GnnDistError, match="does not exist"):
        loaded.predict()
    with pytest.raises(ConfigError, match="another graph"):
        loaded.set_params(parts=parts / "labels").predict()
    loaded.set_params(parts=folder)
    np.testing.assert_array_equal(loaded.predict(), expected[0])
    assert loaded.score(ALL[30:], names[30:]) == expected[1]


def saved_on(world, parts, kind, path):
    made = getattr(gd, kind)(model=with_table, parts=parts, world=world, **FAST).fit()
    data = pickle.dumps(made)
    if world.is_main:
        path.write_bytes(data)
    return made.predict_proba()


def loaded_on(world, path):
    made = pickle.loads(path.read_bytes())
    made.set_params(world=world)
    return made.predict_proba(), made.node_ids_, made.predict(local=True)


class TableNet(Net):
    """With rows of its own for all nodes."""

    def __init__(self, device=None):
        super().__init__()
        self.emb = torch.nn.Embedding(N, 3, device=device)

    def forward(self, x, edge_index):
        return self.inner(x + self.emb.weight, edge_index)


def with_table():
    return TableNet()


def test_a_table_need_not_be_made():
    whole = [local(model=lambda: TableNet("meta")).fit().predict_proba() for _ in range(2)]
    np.testing.assert_array_equal(*whole)


def test_it_is_loaded_on_other_ranks_with_its_tables(parts, tmp_path):
    path = tmp_path / "saved"
    [proba, *_] = run_ranks(saved_on, 2, parts / "classes", "DistNodeClassifier", path)
    for same, ids, mine in run_ranks(loaded_on, 3, path):
        np.testing.assert_allclose(same, proba, rtol=1e-9)
        np.testing.assert_array_equal(mine, proba.argmax(1)[ids])
