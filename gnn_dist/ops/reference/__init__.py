"""Every operator in plain PyTorch: the oracle of the tests, and what runs without a kernel.

Arguments are those of the operators in `csrc/`, raw tensors. Nothing here is differentiable.
"""

from gnn_dist.ops.reference import (
    attention,
    clustering,
    dot_attention,
    draws,
    edge_parts,
    edge_softmax,
    gat,
    gatv2,
    memory,
    quantize,
    rows,
    sampling,
    sddmm,
    spmm,
    streaming,
    structure,
)

__all__ = [
    "attention",
    "clustering",
    "dot_attention",
    "draws",
    "edge_parts",
    "edge_softmax",
    "gat",
    "gatv2",
    "memory",
    "quantize",
    "rows",
    "sampling",
    "sddmm",
    "spmm",
    "streaming",
    "structure",
]
