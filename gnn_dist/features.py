"""Sparse node features."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.arrays import as_float, as_index, checked_indptr, csr_take
from gnn_dist.errors import GraphError

__all__ = ["CSRFeatures"]

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class CSRFeatures:
    """Sparse node features (bag of words) in CSR.

    Attributes:
        indptr: int64 (N + 1,), offsets of the rows.
        indices: int32 (nnz,), feature columns.
        data: Floating (nnz,), or None when every stored value is one.
        num_features: F, the number of columns.
    """

    indptr: Array
    indices: Array
    data: Array | None
    num_features: int

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "indptr", checked_indptr(self.indptr, len(self.indices), "x_indptr")
        )
        object.__setattr__(self, "indices", as_index(self.indices, self.num_features, "x_indices"))
        if self.data is not None:
            if self.data.shape != self.indices.shape:
                raise GraphError(
                    f"x_data must have one value per index, got {self.data.shape} values for "
                    f"{self.indices.shape} indices"
                )
            object.__setattr__(self, "data", as_float(self.data, "x_data"))

    @property
    def shape(self) -> tuple[int, int]:
        """(N, F)."""
        return len(self.indptr) - 1, self.num_features

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values; float32 where they are implied ones."""
        return np.dtype(np.float32) if self.data is None else self.data.dtype

    def take(self, rows: Array) -> "CSRFeatures":
        """Return the given rows, in the given order."""
        indptr, position = csr_take(self.indptr, rows)
        data = None if self.data is None else self.data[position]
        return CSRFeatures(indptr, self.indices[position], data, self.num_features)

    def to_dense(self) -> Array:
        """Return a dense (N, F) copy; repeated columns of a row add up."""
        dense = np.zeros(self.shape, self.dtype)
        rows = np.repeat(np.arange(self.shape[0]), np.diff(self.indptr))
        values = np.ones(len(self.indices), self.dtype) if self.data is None else self.data
        np.add.at(dense, (rows, self.indices), values)
        return dense
