"""What parts share in given proportions: one or several constraints, their targets and limits."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gnn_dist.errors import PartitionError, nearest
from gnn_dist.graph import MASK_NAMES
from gnn_dist.partitioners.options import check_number

__all__ = [
    "CONSTRAINTS",
    "DEFAULT_BALANCE",
    "Balance",
    "Counted",
    "check_shares",
    "column_files",
    "hub_notes",
    "make_balance",
    "parse_constraints",
    "read_column",
]

Array = NDArray[Any]

CONSTRAINTS = ("nodes", "edges", "train", "val", "test")
DEFAULT_BALANCE = "nodes,edges,train"
COLUMN_SUFFIX = ".npy"


class Counted(Protocol):
    """What can be balanced: a graph in memory or on disk."""

    @property
    def num_nodes(self) -> int:
        """N."""
        ...

    @property
    def in_degree(self) -> Array:
        """int64 (N,)."""
        ...


@dataclass(frozen=True, eq=False)
class Balance:
    """The constraints that a partition has to meet.

    Attributes:
        names: K names; a constraint that no node has any weight in is left out.
        weights: int64 (N, K), not negative: what each node adds to its part.
        targets: float64 (P,), the share of everything that each part is to have; sums to 1.
        imbalance: float64 (K,), how far above its target a part may lie: 0.05 is 5 per cent.
    """

    names: tuple[str, ...]
    weights: Array
    targets: Array
    imbalance: Array

    @property
    def num_parts(self) -> int:
        """P."""
        return len(self.targets)

    @cached_property
    def totals(self) -> Array:
        """int64 (K,), the weight of all nodes together."""
        totals: Array = self.weights.sum(axis=0)
        return totals

    @cached_property
    def limits(self) -> Array:
        """int64 (P, K), the most that each part may hold.

        A part may always be one node above its target: finer than the heaviest node nothing can
        be balanced.
        """
        target = self.targets[:, None] * self.totals
        heaviest = self.weights.max(axis=0, initial=0)
        # Rounding must not take a whole unit away from a limit that is an integer.
        most = np.maximum(target * (1 + self.imbalance), target + heaviest)
        limits: Array = np.floor(most + 1e-6).astype(np.int64)
        return limits

    def loads(self, assignment: Array) -> Array:
        """Return int64 (P, K), what each part holds under an assignment (N,)."""
        loads = np.zeros((self.num_parts, len(self.names)), np.int64)
        for k in range(len(self.names)):
            # Sums of doubles are exact below 2^53.
            column = np.bincount(assignment, self.weights[:, k], minlength=self.num_parts)
            loads[:, k] = column.astype(np.int64)
        return loads

    def is_met(self, assignment: Array) -> bool:
        """Return whether no part is above a limit."""
        return bool((self.loads(assignment) <= self.limits).all())

    def excess(self, assignment: Array) -> float:
        """Return how far the worst part is above its limit, relative to it; 0 if none is."""
        over = self.loads(assignment) / np.maximum(1, self.limits) - 1
        return max(0.0, float(over.max(initial=0)))

    def folded(self) -> Array:
        """Return int64 (N,), one positive weight for tools that know one constraint only.

        Each constraint counts by the share of its total that a node has, all alike.
        """
        num_nodes = len(self.weights)
        if len(self.names) == 1:
            first: Array = np.maximum(1, self.weights[:, 0])
            return first
        unit = 1000 * num_nodes / np.maximum(1, self.totals)  # a mean node weighs 1000 of each
        weights: Array = np.maximum(1, np.rint(self.weights @ unit)).astype(np.int64)
        return weights

    def take(self, nodes: Array) -> "Balance":
        """Return the balance of some nodes alone, with the same targets."""
        return Balance(self.names, self.weights[nodes], self.targets, self.imbalance)


def parse_constraints(balance: str, imbalance: float) -> list[tuple[str, float]]:
    """Return the name (or path) and the imbalance of each constraint.

    Raises:
        PartitionError: The text names no constraints, an unknown one, or one twice.
    """
    if not isinstance(balance, str):
        raise PartitionError(f"balance must be text such as {DEFAULT_BALANCE!r}, got {balance!r}")
    parsed = []
    for word in filter(None, (word.strip() for word in balance.split(","))):
        name, _, own = (
            word.rpartition(":") if _is_number(word.rpartition(":")[2]) else (word, "", "")
        )
        if name not in CONSTRAINTS and not name.endswith(COLUMN_SUFFIX):
            raise PartitionError(
                f"balance must name {', '.join(CONSTRAINTS)} or a {COLUMN_SUFFIX} file, got "
                f"{name!r}: {nearest(name, list(CONSTRAINTS))}"
            )
        parsed.append(
            (
                name,
                check_number(f"the imbalance of {name}", float(own), 0.0, 1000.0)
                if own
                else imbalance,
            )
        )
    names = [name for name, _ in parsed]
    if not names or len(set(names)) < len(names):
        raise PartitionError(f"balance must name each of its constraints once, got {balance!r}")
    return parsed


def make_balance(
    graph: Counted,
    num_parts: int,
    balance: str = DEFAULT_BALANCE,
    imbalance: float = 0.05,
    part_weights: tuple[float, ...] = (),
) -> Balance:
    """Return the constraints that a text describes, on a graph.

    Args:
        graph: A graph in memory or on disk.
        num_parts: P.
        balance: As `Balanced.balance` has it.
        imbalance: Of the constraints without one of their own.
        part_weights: P positive shares, or none for equal ones.

    Raises:
        PartitionError: A constraint or the number of shares does not fit the graph.
    """
    check_shares(part_weights, num_parts)
    shares = np.array(part_weights or [1.0] * num_parts, np.float64)
    kept, columns = [], []
    for name, tolerance in parse_constraints(balance, imbalance):
        column = _column(graph, name)
        if column is not None and column.any():
            kept.append((name, tolerance))
            columns.append(column)
    if not columns:  # an empty constraint balances nothing, and parts must not be empty
        kept, columns = [("nodes", imbalance)], [np.ones(graph.num_nodes, np.int64)]
    return Balance(
        names=tuple(name for name, _ in kept),
        weights=np.stack(columns, axis=1),
        targets=shares / shares.sum(),
        imbalance=np.array([tolerance for _, tolerance in kept], np.float64),
    )


def check_shares(part_weights: tuple[float, ...], num_parts: int) -> None:
    """Check that there is a share for each part, or none at all.

    Raises:
        PartitionError: There is another number of them.
    """
    if part_weights and len(part_weights) != num_parts:
        raise PartitionError(
            f"part_weights must have one share for each of {num_parts} parts, got "
            f"{len(part_weights)}"
        )


def column_files(balance: str) -> tuple[Path, ...]:
    """Return the files among the constraints.

    Example:
        >>> [str(path) for path in column_files("nodes,cost.npy:0.1")]
        ['cost.npy']
    """
    names = [name for name, _ in parse_constraints(balance, 0.0)]
    return tuple(Path(name) for name in names if name not in CONSTRAINTS)


def read_column(path: Path, num_nodes: int) -> Array:
    """Return int64 (N,), the weights in a file.

    Raises:
        PartitionError: The file is missing or damaged, or holds something else.
    """
    try:
        with path.open("rb") as file:
            # Of an .npz, np.load would return an archive.
            values: Array = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise PartitionError(
            f"cannot read the weights to balance from {path}, which must be an .npy file: {error}"
        ) from error
    if values.shape != (num_nodes,) or values.dtype.kind not in "iub":
        raise PartitionError(
            f"{path} must hold one integer for each of {num_nodes} nodes, got shape "
            f"{values.shape} of {values.dtype}"
        )
    column: Array = values.astype(np.int64)
    # Sums must stay exact, in doubles too.
    if (column < 0).any() or column.astype(np.float64).sum() >= 2.0**52:
        raise PartitionError(f"{path} must hold weights from 0 whose sum is below 2^52")
    return column


def hub_notes(balance: Balance) -> tuple[str, ...]:
    """Say so where one node alone has more in-edges than the smallest part's share of them."""
    if "edges" not in balance.names:
        return ()
    k = balance.names.index("edges")
    degree = balance.weights[:, k]
    hub = int(np.argmax(degree))
    if degree[hub] <= balance.targets.min() * balance.totals[k]:
        return ()
    return (
        f"node {hub} alone has {degree[hub]} of the {balance.totals[k]} in-edges, more than the "
        f"share of one of {balance.num_parts} parts, so the parts cannot be balanced by edges",
    )


def _column(graph: Counted, name: str) -> Array | None:
    """Return int64 (N,), or None for a mask that the graph does not have."""
    if name == "nodes":
        return np.ones(graph.num_nodes, np.int64)
    if name == "edges":
        degree: Array = graph.in_degree.astype(np.int64, copy=False)
        return degree
    if name in CONSTRAINTS:
        mask = getattr(graph, MASK_NAMES[CONSTRAINTS.index(name) - 2], None)
        if mask is None:
            return None
        return np.asarray(mask if mask.ndim == 1 else mask[:, 0]).astype(np.int64)
    return read_column(Path(name), graph.num_nodes)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
