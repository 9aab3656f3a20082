"""Ranks of edges among negatives: exact values, and the same over several ranks."""

import pytest
import torch

import gnn_dist as gd
from gnn_dist.errors import ConfigError
from gnn_dist.testing import run_ranks

POS = torch.tensor([0.9, 0.5, 0.1, 0.5])
NEG = torch.tensor([[0.1, 0.2, 0.3], [0.6, 0.5, 0.4], [0.2, 0.3, 0.4], [0.7, 0.8, 0.1]])


def test_edges_with_negatives_of_their_own():
    # Ranks 1; 2.5, one higher and one equal; 4; 3.
    found = gd.link_metrics(POS, NEG, ks=(1, 2, 3))
    assert found == pytest.approx(
        {"mrr": (1 + 1 / 2.5 + 1 / 4 + 1 / 3) / 4, "hits@1": 0.25, "hits@2": 0.25, "hits@3": 0.75}
    )


def test_edges_with_shared_negatives():
    # The best three are 0.8, 0.7 and 0.6: ranks 1; 4; 5; 4.
    shared = torch.tensor([0.6, 0.1, 0.7, 0.8])
    found = gd.link_metrics({"y_pred_pos": POS, "y_pred_neg": shared}, ks=(1, 3, 4, 5))
    assert found == pytest.approx(
        {
            "mrr": (1 + 1 / 4 + 1 / 4.5 + 1 / 4) / 4,
            "hits@1": 0.25,
            "hits@3": 0.25,
            "hits@4": 0.75,  # above the fourth best, 0.1, and 0.1 is not
            "hits@5": 1.0,  # there are fewer
        }
    )


def test_as_the_open_graph_benchmark_counts():
    """Formulas of its evaluators, over random scores with ties."""
    generator = torch.Generator().manual_seed(0)
    pos = torch.randint(0, 30, (200,), generator=generator).float()
    neg = torch.randint(0, 20, (200, 40), generator=generator).float()
    optimistic = (neg > pos[:, None]).sum(1)
    pessimistic = (neg >= pos[:, None]).sum(1)
    rank = 0.5 * (optimistic + pessimistic).double() + 1
    found = gd.link_metrics(pos, neg)
    assert found["mrr"] == pytest.approx(float((1 / rank).mean()))
    for k in (1, 3, 10):
        assert found[f"hits@{k}"] == pytest.approx(float((rank <= k).double().mean()))
    shared = neg[:, 0]
    found = gd.link_metrics(pos, shared, ks=[20])
    kth = shared.topk(20).values[-1]
    assert found["hits@20"] == pytest.approx(float((pos > kth).double().mean()))


def over_ranks(world):
    """Rank 1 has no edges; shared negatives lie on several ranks."""
    mine = {0: slice(0, 3), 1: slice(0, 0), 2: slice(3, 4)}[world.rank]
    own = gd.link_metrics(POS[mine], NEG[mine], world=world)
    shared = NEG.flatten()[world.rank :: 3]
    failed = ""
    try:
        gd.link_metrics(POS[mine], NEG[: 1 if world.rank == 2 else 2], world=world)
    except ConfigError as error:
        failed = str(error)
    return own, gd.link_metrics(POS[mine], shared, ks=[2, 4], world=world), failed


def test_over_several_ranks():
    for own, shared, failed in run_ranks(over_ranks, 3):
        assert own == pytest.approx(gd.link_metrics(POS, NEG))
        assert shared == pytest.approx(gd.link_metrics(POS, NEG.flatten(), ks=[2, 4]))
        assert "row of negatives for each of" in failed


def test_scores_that_do_not_fit_are_refused():
    for pos, neg, message in [
        (POS, None, r"scores must be \(k,\)"),
        (NEG, NEG, r"scores must be \(k,\)"),
        (POS[:3], NEG, "row of negatives for each of 3 edges, got 4"),
        (POS / 0 * 0, NEG, "NaN"),
    ]:
        with pytest.raises(ConfigError, match=message):
            gd.link_metrics(pos, neg)
    with pytest.raises(ConfigError, match="numbers from 1 on"):
        gd.link_metrics(POS, NEG, ks=[0])
    assert all(value != value for value in gd.link_metrics(POS[:0], NEG[:0]).values())
