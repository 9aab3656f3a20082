"""Row movement, dropout and quantisation against PyTorch.

Bytes moved: what a candidate must read and write if nothing stays in cache. `copy_` moves as many
bytes between two plain buffers.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from harness import OURS, Case, Setup

from gnn_dist.ops.draws import DrawKey, bias_relu_dropout
from gnn_dist.ops.quantize import dequantize_rows, quantize_rows
from gnn_dist.ops.rows import gather_rows, gather_rows_into, scatter_add_rows

KEY = DrawKey(seed=1, step=2, site=3)


def cases(setup: Setup) -> Iterator[Case]:
    """Make the cases."""
    many, taken = (10_000, 2_000) if setup.quick else (1_000_000, 200_000)
    for width in (100, 128, 256):
        yield _gather(setup, many, taken, width)
    for width in (100, 256):
        yield _scatter(setup, many, taken, width)
    rows = 1024 if setup.quick else 131_072
    for dtype in (torch.float32, torch.bfloat16):
        yield _dropout(setup, rows, 256, dtype)
        yield _dropout_backward(setup, rows, 256, dtype)
    for bits in (8, 4, 1):
        yield _quantize(taken, 128, bits)


def _gather(setup: Setup, many: int, taken: int, width: int) -> Case:
    """Take random rows."""
    x, index = torch.randn(many, width), torch.randint(0, many, (taken,))
    out, plain = torch.zeros(taken, width), torch.randn(taken, width)
    candidates = {
        OURS: lambda: gather_rows(x, index),
        "gnn-dist into a buffer": lambda: gather_rows_into(out, x, index),
    }
    if setup.peers.torch:
        candidates |= {
            "index_select": lambda: x.index_select(0, index),
            "index_select out=": lambda: torch.index_select(x, 0, index, out=out),
            "copy_": lambda: out.copy_(plain),
        }
    return Case(f"gather_rows, {taken} of {many}, F = {width}", candidates, 2 * out.nbytes)


def _scatter(setup: Setup, many: int, taken: int, width: int) -> Case:
    """Add rows to others, as two neighbours send them: runs of ascending destinations."""
    out, rows = torch.zeros(many, width), torch.randn(taken, width)
    runs = [torch.randperm(many)[: taken // 2].sort().values for _ in range(2)]
    index = torch.cat(runs)
    candidates = {OURS: lambda: scatter_add_rows(out, index, rows)}
    if setup.peers.torch:
        candidates["index_add_"] = lambda: out.index_add_(0, index, rows)
    return Case(f"scatter_add_rows, {taken} to {many}, F = {width}", candidates, 3 * rows.nbytes)


def _dropout(setup: Setup, rows: int, width: int, dtype: torch.dtype) -> Case:
    """Apply ReLU and dropout 0.5."""
    x, ids = torch.randn(rows, width).to(dtype), torch.arange(rows)
    work = x.clone()
    candidates = {
        OURS: lambda: bias_relu_dropout(work, None, ids=ids, p=0.5, key=KEY, inplace=True),
        "gnn-dist, not in place": lambda: bias_relu_dropout(x, None, ids=ids, p=0.5, key=KEY),
    }
    if setup.peers.torch:
        candidates["torch"] = lambda: F.dropout(F.relu(x), 0.5)
    return Case(f"relu + dropout, {rows} x {width}, {str(dtype)[6:]}", candidates, 2 * x.nbytes)


def _dropout_backward(setup: Setup, rows: int, width: int, dtype: torch.dtype) -> Case:
    """Take the gradient of ReLU and dropout 0.5, through autograd."""
    x, ids = torch.randn(rows, width).to(dtype).requires_grad_(), torch.arange(rows)
    grad = torch.randn(rows, width).to(dtype)
    made = {OURS: bias_relu_dropout(x, None, ids=ids, p=0.5, key=KEY)}
    if setup.peers.torch:
        made["torch"] = F.dropout(F.relu(x), 0.5)
    candidates = {
        name: lambda out=out: torch.autograd.grad(out, x, grad, retain_graph=True)
        for name, out in made.items()
    }
    name = f"relu + dropout backward, {rows} x {width}, {str(dtype)[6:]}"
    return Case(name, candidates, 3 * x.nbytes)


def _quantize(rows: int, width: int, bits: int) -> Case:
    """Pack rows into few bits, and unpack them."""
    x, ids = torch.randn(rows, width), torch.arange(rows)
    packed = quantize_rows(x, ids, key=KEY, bits=bits)
    candidates = {
        OURS: lambda: quantize_rows(x, ids, key=KEY, bits=bits),
        "gnn-dist, unpacking": lambda: dequantize_rows(packed, num_cols=width, bits=bits),
    }
    moved = x.nbytes + packed.nbytes
    return Case(f"quantize_rows, {rows} x {width} to {bits} bits", candidates, moved)
