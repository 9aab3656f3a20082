"""Every operator in plain PyTorch: the oracle of the tests, and what runs without a kernel.

Arguments are those of the operators in `csrc/`, raw tensors. Nothing here is differentiable.
"""

from gnn_dist.ops.reference import (
    attention,
    dot_attention,
    draws,
    edge_softmax,
    edge_sort,
    gat,
    gatv2,
    localize,
    memory,
    quantize,
    rows,
    sampling,
    sddmm,
    spmm,
    structure,
    synthetic,
)

__all__ = [
    "attention",
    "dot_attention",
    "draws",
    "edge_softmax",
    "edge_sort",
    "gat",
    "gatv2",
    "localize",
    "memory",
    "quantize",
    "rows",
    "sampling",
    "sddmm",
    "spmm",
    "structure",
    "synthetic",
]
