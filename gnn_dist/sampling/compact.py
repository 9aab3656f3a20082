"""Features kept in fewer bits than batches need: half as much memory and traffic, or a quarter."""

from typing import Literal

import torch
from torch import Tensor

from gnn_dist.errors import ConfigError
from gnn_dist.sampling.store import FeatureStore, Fetched

__all__ = ["Storage", "features_in", "stored"]

Storage = Literal["same", "fp16", "bf16", "int8"]
HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}
ROWS_AT_ONCE = 1 << 16
MOST = 127.0


def stored(x: Tensor, storage: Storage) -> dict[str, Tensor]:
    """Return the tables that hold features.

    Args:
        x: (n, F), floating.
        storage: `same`, as they are; `fp16` or `bf16`, rounded; `int8`, 256 steps between the
            largest value of each row and its negative.

    Raises:
        ConfigError: A value is not finite, or too large for fp16.
    """
    if storage == "same":
        return {"x": x}
    if storage in HALF:
        half = x.to(HALF[storage])
        _check_finite(half, storage)
        return {"x": half}
    scale = torch.empty(len(x), dtype=torch.float32)
    steps = torch.empty(x.shape, dtype=torch.int8)
    for begin in range(0, len(x), ROWS_AT_ONCE):
        rows = x[begin : begin + ROWS_AT_ONCE].float()
        largest = rows.abs().amax(1) if rows.size(1) else rows.new_zeros(len(rows))
        _check_finite(largest, storage)
        scale[begin : begin + ROWS_AT_ONCE] = largest / MOST
        step = torch.where(largest > 0, largest / MOST, 1.0).unsqueeze(1)
        steps[begin : begin + ROWS_AT_ONCE] = (rows / step).round().to(torch.int8)
    return {"x": steps, "x_scale": scale}


def features_in(store: FeatureStore, found: Fetched, dtype: torch.dtype) -> Tensor | None:
    """Return a batch's features (k, F) as this dtype; None if the store has none."""
    if "x" not in store.tables:
        return None
    if "x_scale" not in store.tables:
        return store.take(found, "x", dtype)
    return store.take(found, "x").to(dtype) * store.take(found, "x_scale", dtype).unsqueeze(1)


def _check_finite(values: Tensor, storage: str) -> None:
    if not bool(values.isfinite().all()):
        raise ConfigError(
            f"features stored as {storage} must be finite there, and some are not, or are too "
            "large for it: store them as they are (same)"
        )
