"""How mixed the labels of each part are: the entropy of its training labels."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.errors import PartitionError

__all__ = ["LabelEntropy", "measure_label_entropy"]

Array = NDArray[Any]


@dataclass(frozen=True)
class LabelEntropy:
    """Entropies of labels, in bits. Lists have one entry per part, None where it has no label.

    Attributes:
        basis: Whose labels: those of `train` nodes, or of all `labelled` ones without a mask.
        task: `multiclass`: the entropy of the distribution over classes. `multilabel`: each label
            is a yes or no of its own, and the entropies (divergences) of all labels are averaged.
        num_labelled: Nodes counted in each part.
        entropy: H of each part's labels.
        divergence: Kullback-Leibler divergence of each part's labels from those of all parts.
        mean: Mean entropy, each part weighted by its nodes.
        spread: Standard deviation of `entropy` over the parts that have labels.
        whole: Entropy of all parts' labels together; what random parts come near to.
    """

    basis: str
    task: str
    num_labelled: list[int]
    entropy: list[float | None]
    divergence: list[float | None]
    mean: float
    spread: float
    whole: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def measure_label_entropy(
    y: Array, assignment: Array, num_parts: int, *, train_mask: Array | None = None
) -> LabelEntropy | None:
    """Measure how mixed the training labels of each part are.

    Low entropies mean that a part sees few classes: good for a model that each rank makes its own,
    bad for minibatches drawn from one part alone. A spread means that ranks learn from different
    mixtures.

    Source: Deshmukh et al., "Entropy Aware Training for Fast and Accurate Distributed GNN"
    (arXiv 2311.02399): q_pc = n_pc / n_p, H_p = -sum_c q_pc log2 q_pc, mean = sum_p n_p H_p / n.
    Divergence and the form for several labels a node are ours. O(N + P C) memory,
    O(N log N) time.

    Args:
        y: Labels: int (N,) with -1 for none, or bool (N, C).
        assignment: Integer (N,), the part of each node.
        num_parts: P.
        train_mask: bool (N,) or (N, S), of which the first split counts; None: all labels count.

    Returns:
        The entropies, or None where no node counts.

    Raises:
        PartitionError: The arrays are not of equally many nodes.

    Example:
        >>> import numpy as np
        >>> found = measure_label_entropy(np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1]), 2)
        >>> found.entropy, found.mean, found.spread
        ([0.0, 1.0], 0.5, 0.5)
    """
    lengths = [len(values) for values in (y, assignment, train_mask) if values is not None]
    if len(set(lengths)) > 1:
        raise PartitionError(
            f"labels, parts and mask must be of equally many nodes, got {lengths} of them"
        )
    nodes = np.flatnonzero(_counted(y, train_mask))
    sizes = np.bincount(assignment[nodes], minlength=num_parts)
    if not len(nodes) or not y.shape[-1]:
        return None
    yes = _label_counts(y, nodes[np.argsort(assignment[nodes], kind="stable")], sizes)
    shares = _distributions(yes, sizes, multilabel=y.ndim == 2)
    whole = _distributions(yes.sum(0)[None], sizes.sum()[None], multilabel=y.ndim == 2)
    entropy, divergence = _bits(shares, shares), _bits(shares, whole) - _bits(shares, shares)
    present = sizes > 0
    return LabelEntropy(
        basis="labelled" if train_mask is None else "train",
        task="multiclass" if y.ndim == 1 else "multilabel",
        num_labelled=sizes.tolist(),
        entropy=_or_none(entropy, present),
        divergence=_or_none(np.maximum(divergence, 0.0), present),
        mean=float(np.average(entropy[present], weights=sizes[present])),
        spread=float(entropy[present].std()),
        whole=float(_bits(whole, whole)[0]),
    )


def _counted(y: Array, train_mask: Array | None) -> Array:
    labelled = y >= 0 if y.ndim == 1 else np.ones(len(y), bool)
    if train_mask is None:
        return labelled
    mask = train_mask if train_mask.ndim == 1 else train_mask[:, 0]
    return labelled & mask


def _label_counts(y: Array, nodes: Array, sizes: Array) -> Array:
    """Return int64 (P, C): nodes of each part that have each label; `nodes` by part."""
    num_classes = int(y[nodes].max()) + 1 if y.ndim == 1 else y.shape[1]
    counts = np.zeros((len(sizes), num_classes), np.int64)
    stops = np.cumsum(sizes)
    for part, (start, stop) in enumerate(zip(stops - sizes, stops, strict=True)):
        labels = y[nodes[start:stop]]
        if y.ndim == 1:
            counts[part] = np.bincount(labels, minlength=num_classes)
        else:
            counts[part] = labels.sum(0)
    return counts


def _distributions(counts: Array, sizes: Array, *, multilabel: bool) -> Array:
    """Return float64 (P, K, C): K distributions over C outcomes each."""
    shares = counts / np.maximum(sizes, 1)[:, None]
    if multilabel:
        return np.stack([shares, 1 - shares], axis=-1)
    return shares[:, None, :]


def _bits(shares: Array, code: Array) -> Array:
    """Return float64 (P,): -sum of shares log2 code, the mean over distributions."""
    with np.errstate(divide="ignore"):
        length = -np.log2(np.broadcast_to(code, shares.shape))
    # An outcome that never happens costs nothing, however long its code.
    cost = np.where(shares > 0, shares * np.where(shares > 0, length, 0.0), 0.0)
    return np.asarray(cost.sum(-1).mean(-1)) + 0.0


def _or_none(values: Array, present: Array) -> list[float | None]:
    return [float(v) if there else None for v, there in zip(values, present, strict=True)]
