"""Every operator in plain PyTorch: the oracle of the tests, and what runs without a kernel.

Arguments are those of the operators in `csrc/`, raw tensors. Nothing here is differentiable.
"""

from gnn_dist.ops.reference import (
    draws,
    memory,
    quantize,
    rows,
    sampling,
    spmm,
    structure,
)

__all__ = ["draws", "memory", "quantize", "rows", "sampling", "spmm", "structure"]
