"""Learning from edges: losses that add up over ranks, epochs over batches, exact evaluation."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError, GnnDistError
from gnn_dist.nn.conv import Rows
from gnn_dist.nn.dropout import set_step
from gnn_dist.nn.link import LinkModel
from gnn_dist.nn.models import GNN
from gnn_dist.ops.sampling import relabel
from gnn_dist.sampling.directory import NodeDirectory
from gnn_dist.sampling.edges import EdgeRows, EdgeShare
from gnn_dist.sampling.find import EdgeFinder
from gnn_dist.sampling.link_loader import LinkBatch, LinkLoader
from gnn_dist.sampling.negatives import NegativeSampler, NegativeSampling
from gnn_dist.sampling.store import FeatureStore
from gnn_dist.sampling.supervision import given_edges
from gnn_dist.sampling.topology import topology_of
from gnn_dist.shard.shard import Shard
from gnn_dist.train.gradients import GradientSync
from gnn_dist.train.link_metrics import link_metrics
from gnn_dist.train.losses import node_loss
from gnn_dist.train.ready import exact_blocks

__all__ = ["LinkEvaluation", "LinkSteps", "edge_loss", "link_loss", "node_rows", "triplet_loss"]

EVALUATION_CHANNEL = 6


def edge_loss(scores: Tensor, label: Tensor, count: int) -> Tensor:
    """Return this rank's share of a loss of edges: the sum over its edges / those of all ranks.

    Args:
        scores: (m,), of which the binary cross entropy is taken; or (m, C), of classes.
        label: (m,), 0 and 1, for (m,) scores; int64 (m,), classes, or bool (m, C), labels,
            otherwise.
        count: Edges, and negatives, of all ranks.

    Raises:
        ConfigError: The labels do not fit the scores.
    """
    if scores.dim() == 1 and label.dim() == 1:
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        total = F.binary_cross_entropy_with_logits(wide, label.to(wide.dtype), reduction="sum")
        return total / count
    every = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
    return node_loss(scores, label, every, count)


def triplet_loss(pos: Tensor, neg: Tensor, count: int, mask: Tensor | None = None) -> Tensor:
    """Return this rank's share of the Bayesian personalised ranking loss.

        sum over its negatives of -log sigmoid(pos - neg)  /  negatives of all ranks

    Args:
        pos: (k,), scores of edges.
        neg: (k, amount), scores of their negatives.
        count: Negatives of all ranks.
        mask: bool (k, amount), which negatives count; None for all.

    Source: "BPR: Bayesian Personalized Ranking from Implicit Feedback" (Rendle et al.), arXiv
    1205.2618, section 4.1.
    """
    wide = torch.promote_types(pos.dtype, torch.float32)
    each = F.softplus(neg.to(wide) - pos.to(wide)[:, None])
    if mask is not None:
        each = each.masked_fill(~mask, 0.0)
    return each.sum() / max(count, 1)


def link_loss(model: LinkModel, batch: LinkBatch) -> Tensor:
    """Collective, if the encoder is. Return this rank's share of a batch's loss.

    Raises:
        ConfigError: The graph has no features, or the batch has nothing to compare scores with.
    """
    if batch.x is None:
        raise ConfigError("training needs features, and the graph has none")
    with _autocast(batch.x, batch.x.device):
        return _loss_of(model, batch.x, batch)


def _loss_of(model: LinkModel, x: Tensor, batch: LinkBatch) -> Tensor:
    """Collective, if the encoder is. Return this rank's share of a batch's loss."""
    if batch.edge_label_index is not None:
        if batch.edge_label is None:
            raise ConfigError("training without negatives needs edge_label")
        src, dst = batch.edge_label_index
        [scores] = model(x, batch.blocks, [(src, dst)])
        return edge_loss(scores, batch.edge_label, batch.size + batch.num_negatives)
    src, dst, other = batch.src_index, batch.dst_pos_index, batch.dst_neg_index
    if src is None or dst is None or other is None:
        raise ConfigError("a batch must have edge_label_index, or src_index and its destinations")
    pos, neg = model(x, batch.blocks, [(src, dst), (src[:, None], other)])
    return triplet_loss(pos, neg, batch.num_negatives, batch.neg_mask)


class LinkSteps:
    """Trains a model on batches of edges.

    Args:
        model: Equal on all ranks.
        loader: Makes the batches.
        optimizer: Of the model's parameters.
        world: The ranks.
        seed: Of dropout.
    """

    def __init__(
        self,
        model: LinkModel,
        loader: LinkLoader,
        optimizer: Optimizer,
        world: World,
        *,
        seed: int = 0,
    ) -> None:
        self.model, self.loader, self.optimizer, self.seed = model, loader, optimizer, seed
        self.gradients = GradientSync(model, world.transport)

    def epoch(self, number: int) -> float:
        """Collective. Update the parameters for each batch; return the loss of all edges.

        Raises:
            GnnDistError: On every rank, if the loss is not finite.
            ConfigError: The graph has no features, or edges no labels.
        """
        self.model.train()
        total, edges = 0.0, 0
        for batch in self.loader.batches(number):
            set_step(self.model, seed=self.seed, step=batch.step)
            loss = link_loss(self.model, batch)
            self.gradients.begin(loss.detach())
            loss.backward()  # type: ignore[no-untyped-call]
            mean = self.gradients.finish()
            if not math.isfinite(mean):
                raise GnnDistError(f"the loss became {mean} in epoch {number}: lower the rate")
            self.optimizer.step()
            total += mean * batch.size
            edges += batch.size
        return total / edges


@torch.no_grad()
def node_rows(encoder: GNN, shard: Shard, world: World) -> Tensor:
    """Collective. Return a model's rows (n, d) of the owned nodes, exactly, without dropout.

    In 32 bits at least, whatever the features are in.

    Args:
        encoder: Takes `(x, blocks)`.
        shard: Along whose edges messages go.
        world: The ranks.
    """
    was_training = encoder.training
    encoder.eval()
    blocks = exact_blocks(shard, world.transport, layers=encoder.num_blocks)
    features = shard.required_features
    with _autocast(features, world.device):
        rows: Tensor = encoder(features, blocks)
    encoder.train(was_training)
    return rows.to(torch.promote_types(rows.dtype, torch.float32))


def _autocast(x: Rows, device: torch.device) -> torch.autocast:
    """Return what has products in bfloat16 where rows are."""
    return torch.autocast(device.type, torch.bfloat16, enabled=x.dtype == torch.bfloat16)


class LinkEvaluation:
    """Collective. Edges with negatives of their own, the same in each evaluation and on any ranks.

    Args:
        shard: The shard with all edges of the graph: what negatives must not be.
        world: The ranks.
        pairs: int64 (2, k), original ids of sources and destinations, each on one rank.
        how: The negatives.
        seed: Of their draws.

    Raises:
        ConfigError: On every rank: ids of no node, or a partition that cuts nodes.

    Attributes:
        edges: Those into nodes that this rank owns.
        negatives: int64 (k, amount), numbers of their negatives' destinations.
        mask: bool (k, amount), which of them are no edges; None where nobody looked.
    """

    def __init__(
        self,
        shard: Shard,
        world: World,
        pairs: Tensor,
        *,
        how: NegativeSampling | None = None,
        seed: int = 0,
    ) -> None:
        # Messages of its own: nothing else that the ranks send can come between.
        self._world, self._transport = world, world.split(0).transport
        transport = self._transport
        how = how or NegativeSampling("triplet", 100)
        if how.method == "in_batch":
            raise ConfigError("an evaluation has no batches: draw its negatives from all nodes")
        topology = topology_of(shard, transport)
        directory = NodeDirectory(topology, transport)
        self.edges: EdgeRows = given_edges(
            pairs,
            None,
            topology=topology,
            directory=directory,
            world=world,
            transport=transport,
        )
        sampler = NegativeSampler(
            how,
            seed,
            directory=directory,
            finder=EdgeFinder(topology, shard.structure.src_id, transport),
            transport=transport,
        )
        share = EdgeShare(self.edges, torch.arange(len(self.edges)), len(self.edges))
        [drawn] = sampler.draw([share], [0], [])
        self.negatives, self.mask = drawn.dst, drawn.mask
        self._rank_ptr = topology.rank_ptr

    @torch.no_grad()
    def scores(
        self, rows: Tensor, decoder: nn.Module, *, at_once: int = 1 << 16
    ) -> tuple[Tensor, Tensor]:
        """Collective. Return scores (k,) of the edges and (k, amount) of their negatives.

        Args:
            rows: (n, d), of owned nodes.
            decoder: Takes rows of sources and of destinations.
            at_once: Pairs whose rows are fetched together.

        Returns:
            In the order of `edges`. A negative that is an edge has minus infinity: it counts for
            nothing.
        """
        store = FeatureStore(
            {"rows": rows}, self._rank_ptr, self._transport, channel=EVALUATION_CHANNEL
        )
        was_training = decoder.training
        decoder.eval()
        pos, neg = [rows.new_empty(0)], [rows.new_empty(0, self.negatives.size(1))]
        for part in self._parts(max(1, at_once // self.negatives.size(1))):
            src, dst, other = self.edges.src[part], self.edges.dst[part], self.negatives[part]
            ids, local = relabel(dst[:0], torch.cat([src, dst, other.flatten()]))
            [found] = store.locate([ids])
            here = store.take(found, "rows")[local.long()]
            a, b, c = here[: len(src)], here[len(src) : 2 * len(src)], here[2 * len(src) :]
            pos.append(decoder(a, b))
            neg.append(decoder(a[:, None], c.view(*other.shape, here.size(1))))
        decoder.train(was_training)
        scores = torch.cat(neg)
        if self.mask is not None:
            scores = scores.masked_fill(~self.mask, -torch.inf)
        return torch.cat(pos), scores

    def __call__(
        self, rows: Tensor, decoder: nn.Module, *, ks: Sequence[int] = (1, 3, 10)
    ) -> dict[str, float]:
        """Collective. Return `mrr` and `hits@K`, see `link_metrics`."""
        return link_metrics(*self.scores(rows, decoder), ks=ks, world=self._world)

    def _parts(self, size: int) -> Iterator[slice]:
        """Collective. Yield parts of the edges, as many on every rank; there may be empty ones."""
        count = torch.tensor([-(-len(self.edges) // size)])
        self._transport.all_reduce(count, "max").wait()
        for begin, end in pairwise(range(0, (int(count) + 1) * size, size)):
            yield slice(begin, end)
