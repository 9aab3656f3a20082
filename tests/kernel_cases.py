"""What the tests of compiled operators share: awkward structures, instruction sets, threads."""

from contextlib import contextmanager

import torch

from gnn_dist.ops.csr import CSR
from gnn_dist.ops.native import kernels

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Around the widths of vectors and of panels, and what classes and features really number.
WIDTHS = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 47, 64, 100, 128, 130, 300)
# Relative to the sum of absolute values: rounding of the result, and of a hub's running sum.
TOLERANCE = {
    torch.float32: 1e-4,
    torch.float64: 1e-12,
    torch.bfloat16: 1e-2,
    torch.float16: 2e-3,
}


def instruction_sets():
    """Return the sets that this CPU has, the plainest first."""
    before, found = kernels.instruction_set(), []
    for name in ("baseline", "avx2", "avx512"):
        try:
            kernels.set_instruction_set(name)
        except ValueError:
            continue
        found.append(name)
    kernels.set_instruction_set(before)
    return found


@contextmanager
def instruction_set(name):
    before = kernels.instruction_set()
    kernels.set_instruction_set(name)
    try:
        yield
    finally:
        kernels.set_instruction_set(before)


@contextmanager
def threads(number):
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def structure(num_rows=40, num_cols=30, *, hub=20_000, seed=0):
    """Rows of 0 to 8 entries, an empty one in front and at the end, and a hub cut in pieces."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 9, (num_rows,), generator=generator)
    counts[[0, -1]] = 0
    counts[num_rows // 3] = hub
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    indices = torch.randint(0, num_cols, (int(indptr[-1]),), generator=generator)
    return CSR(indptr, indices.int(), num_cols)
