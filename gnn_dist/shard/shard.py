"""A rank's data in memory."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gnn_dist.errors import ConfigError
from gnn_dist.ops.spmm import SparseRows
from gnn_dist.shard.format import Meta
from gnn_dist.shard.plan import HaloPlan
from gnn_dist.shard.structure import Structure

__all__ = ["Shard"]


@dataclass(frozen=True, eq=False)
class Shard:
    """What one rank owns, made of one part or of several consecutive ones.

    On a vertex-cut over several ranks owned nodes are roots, and halo nodes other clones: these
    have in-edges here too, so that models run over all local nodes.

    Attributes:
        structure: In-edges of the owned nodes, over local ids; of a vertex-cut, of all local nodes.
        plan: How halo rows travel.
        meta: The partition folder's `meta.json`.
        parts: The parts this shard is made of.
        global_id: int64 (n + h,), global ids: owned ascending, then halo ascending.
        features: (n, F) floating, `SparseRows`, or None; of a vertex-cut, (n + h, F).
        y: int64 (n,), -1 for none; bool (n, C); or for regression floating (n,) or (n, T), NaN
            for none. None without labels.
        masks: `train_mask`, `val_mask`, `test_mask`, bool (n,) or (n, S), as far as they exist.
        edge_data: `edge_id`, `edge_attr`, `edge_type`, (e, ...), as far as they exist.
    """

    structure: Structure
    plan: HaloPlan
    meta: Meta
    parts: range
    global_id: Tensor
    features: Tensor | SparseRows | None = None
    y: Tensor | None = None
    masks: dict[str, Tensor] = field(default_factory=dict)
    edge_data: dict[str, Tensor] = field(default_factory=dict)

    @property
    def num_owned(self) -> int:
        """n, owned nodes."""
        return self.plan.num_owned

    @property
    def num_halo(self) -> int:
        """h, remote nodes that owned nodes read from, or have a clone in common with."""
        return self.plan.num_halo

    @property
    def num_edges(self) -> int:
        """e, edges that are here."""
        return self.structure.csr.nnz

    @property
    def node_id(self) -> Tensor:
        """int64 (n,), original ids of the owned nodes."""
        return self.structure.src_id[: self.num_owned]

    @property
    def x(self) -> Tensor:
        """`features`, dense.

        Raises:
            ConfigError: The graph has no features.
        """
        features = self.required_features
        return features.dense if isinstance(features, SparseRows) else features

    @property
    def required_features(self) -> Tensor | SparseRows:
        """`features`, where their absence is an error."""
        if self.features is None:
            raise ConfigError(
                f"the dataset {self.meta.dataset!r} has no features, and a model needs them: "
                "put x beside the edges"
            )
        return self.features

    @cached_property
    def edge_index(self) -> Tensor:
        """int64 (2, e): row 0 sources, row 1 destinations; local ids, owned first."""
        return torch.stack([self.structure.csr.indices.long(), self.structure.csr.rows])

    @property
    def edge_weight(self) -> Tensor | None:
        """(e,), weights in the order of `edge_index`; None without."""
        return self.structure.edge_weight

    @property
    def train_mask(self) -> Tensor:
        """Bool (n,) or (n, S), the owned nodes to train on. See `required_mask`."""
        return self.required_mask("train_mask")

    @property
    def val_mask(self) -> Tensor:
        """Bool (n,) or (n, S), the owned nodes to validate on. See `required_mask`."""
        return self.required_mask("val_mask")

    @property
    def test_mask(self) -> Tensor:
        """Bool (n,) or (n, S), the owned nodes to test on. See `required_mask`."""
        return self.required_mask("test_mask")

    def required_mask(self, name: str) -> Tensor:
        """Return a mask of `masks`, where its absence is an error.

        Raises:
            ConfigError: The graph has no such mask.
        """
        if name not in self.masks:
            raise ConfigError(
                f"the dataset {self.meta.dataset!r} has no {name}: put {name}.npy beside the edges"
            )
        return self.masks[name]

    def to(self, device: torch.device | str) -> "Shard":
        """Return the shard on another device."""
        device = torch.device(device)
        return self.replace(
            structure=self.structure.to(device),
            plan=self.plan.to(device),
            global_id=self.global_id.to(device),
            features=None if self.features is None else self.features.to(device),
            y=None if self.y is None else self.y.to(device),
            masks={name: mask.to(device) for name, mask in self.masks.items()},
            edge_data={name: values.to(device) for name, values in self.edge_data.items()},
        )

    def with_dtype(self, dtype: torch.dtype) -> "Shard":
        """Return the shard with features and edge weights of another floating dtype.

        Edge weights have 32 bits at least: they are factors, of which sums are made.
        """
        structure = self.structure
        if structure.edge_weight is not None:
            wide = torch.promote_types(dtype, torch.float32)
            structure = replace(structure, edge_weight=structure.edge_weight.to(wide))
        features = None if self.features is None else self.features.to(dtype)
        return self.replace(structure=structure, features=features)

    def replace(self, **changes: Any) -> "Shard":  # noqa: ANN401 - any field
        """Return a copy with some fields changed."""
        return replace(self, **changes)
