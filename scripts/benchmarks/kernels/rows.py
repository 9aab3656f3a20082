"""Row movement, dropout and quantisation against PyTorch, with a plain copy as the ceiling.

    python scripts/benchmarks/kernels/rows.py [--threads 2] [--rounds 9] [--only gather]

Candidates of a case take turns, so that whatever else the machine does hits all of them. Times are
medians and minima; GB/s counts the bytes that a candidate has to read and write.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from gnn_dist.ops.draws import DrawKey, bias_relu_dropout, dropout_by_id
from gnn_dist.ops.native import kernels
from gnn_dist.ops.quantize import dequantize_rows, quantize_rows
from gnn_dist.ops.rows import gather_rows, gather_rows_into, scatter_add_rows

KEY = DrawKey(seed=1, step=2, site=3)
NUM_ROWS, NUM_TAKEN = 1_000_000, 200_000
HIDDEN = (131_072, 256)


@dataclass(frozen=True)
class Case:
    """One line of the table.

    Attributes:
        name: What is done to what.
        moved_bytes: Read and written by a candidate that does no more than it must.
        candidates: Name to a function without arguments; the first one is ours.
    """

    name: str
    moved_bytes: int
    candidates: dict[str, Callable[[], object]]


def gather_case(width: int) -> Case:
    """Take 200,000 random rows of a million, float32."""
    x, index = torch.randn(NUM_ROWS, width), torch.randint(0, NUM_ROWS, (NUM_TAKEN,))
    out, plain = torch.zeros(NUM_TAKEN, width), torch.randn(NUM_TAKEN, width)
    half = torch.zeros(NUM_TAKEN, width, dtype=torch.bfloat16)
    return Case(
        f"gather {width} float32",
        2 * out.nbytes,
        {
            "gather_rows_into": lambda: gather_rows_into(out, x, index),
            "gather_rows": lambda: gather_rows(x, index),
            "gather_rows_into bf16": lambda: gather_rows_into(half, x, index),
            "index_select": lambda: x.index_select(0, index),
            "index_select out=": lambda: torch.index_select(x, 0, index, out=out),
            "copy_": lambda: out.copy_(plain),
        },
    )


def scatter_case(width: int) -> Case:
    """Add 200,000 rows to a million, two runs of ascending destinations, float32."""
    out, rows = torch.zeros(NUM_ROWS, width), torch.randn(NUM_TAKEN, width)
    runs = [torch.randperm(NUM_ROWS)[: NUM_TAKEN // 2].sort().values for _ in range(2)]
    index = torch.cat(runs)
    return Case(
        f"scatter_add {width} float32",
        3 * rows.nbytes,
        {
            "scatter_add_rows": lambda: scatter_add_rows(out, index, rows),
            "index_add_": lambda: out.index_add_(0, index, rows),
        },
    )


def dropout_case(dtype: torch.dtype) -> Case:
    """Bias, ReLU and dropout 0.5 of 131072 x 256, forward."""
    x, bias, ids = torch.randn(HIDDEN).to(dtype), torch.randn(HIDDEN[1]), torch.arange(HIDDEN[0])
    work = x.clone()
    return Case(
        f"relu + dropout 131072 x 256 {str(dtype).removeprefix('torch.')}",
        2 * x.nbytes,
        {
            "in place": lambda: bias_relu_dropout(
                work, None, ids=ids, p=0.5, key=KEY, inplace=True
            ),
            "out of place": lambda: bias_relu_dropout(x, None, ids=ids, p=0.5, key=KEY),
            "out of place, bias": lambda: bias_relu_dropout(x, bias, ids=ids, p=0.5, key=KEY),
            "dropout_by_id": lambda: dropout_by_id(x, ids, 0.5, KEY),
            "torch": lambda: F.dropout(F.relu(x), 0.5),
            "copy_": lambda: work.copy_(x),
        },
    )


def dropout_backward_case(dtype: torch.dtype) -> Case:
    """Gradients of bias, ReLU and dropout 0.5 of 131072 x 256."""
    x, ids = torch.randn(HIDDEN).to(dtype), torch.arange(HIDDEN[0])
    kept, grad = bias_relu_dropout(x, None, ids=ids, p=0.5, key=KEY), torch.randn(HIDDEN).to(dtype)
    mask = kept > 0
    threshold = 2**31
    return Case(
        f"relu + dropout backward {str(dtype).removeprefix('torch.')}",
        3 * x.nbytes,
        {
            "fused, bias": lambda: kernels.relu_dropout_grad(
                grad, kept, ids, KEY.value, threshold, 2.0, True
            ),
            "fused": lambda: kernels.relu_dropout_grad(
                grad, kept, ids, KEY.value, threshold, 2.0, False
            ),
            "mask drawn again": lambda: kernels.relu_dropout_grad(
                grad, None, ids, KEY.value, threshold, 2.0, False
            ),
            "torch": lambda: (grad * mask * 2.0).mul_(kept > 0).sum(0),
        },
    )


def quantize_case(bits: int) -> Case:
    """Pack 200,000 x 128 float32 and unpack them."""
    x, ids = torch.randn(NUM_TAKEN, 128), torch.arange(NUM_TAKEN)
    packed, params = quantize_rows(x, ids, KEY, bits)
    return Case(
        f"quantize 200000 x 128 to {bits} bits",
        x.nbytes + packed.nbytes,
        {
            "quantize_rows": lambda: quantize_rows(x, ids, KEY, bits),
            "dequantize_rows": lambda: dequantize_rows(packed, params, num_cols=128, bits=bits),
        },
    )


def cases(only: str = "") -> list[Callable[[], Case]]:
    """Return makers of all cases whose function's name begins with `only`."""
    makers: list[tuple[Callable[..., Case], object]] = [
        *((gather_case, width) for width in (100, 128, 256)),
        *((scatter_case, width) for width in (100, 256)),
        *((dropout_case, dtype) for dtype in (torch.float32, torch.bfloat16)),
        *((dropout_backward_case, dtype) for dtype in (torch.float32, torch.bfloat16)),
        *((quantize_case, bits) for bits in (8, 1)),
    ]
    return [lambda f=f, a=a: f(a) for f, a in makers if f.__name__.startswith(only)]  # type: ignore[misc]


def measure(case: Case, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each candidate, round by round; the first round is left out."""
    taken: dict[str, list[float]] = {name: [] for name in case.candidates}
    for _ in range(rounds + 1):
        for name, candidate in case.candidates.items():
            start = time.perf_counter()
            candidate()
            taken[name].append(time.perf_counter() - start)
    return {name: times[1:] for name, times in taken.items()}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="beginning of the cases' names")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print("| case | candidate | median ms | minimum ms | GB/s |\n|---|---|---|---|---|")
    for make in cases(options.only):
        case = make()
        for name, times in measure(case, options.rounds).items():
            median, least = statistics.median(times), min(times)
            print(
                f"| {case.name} | {name} | {1e3 * median:.1f} | {1e3 * least:.1f} "
                f"| {case.moved_bytes / median / 1e9:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
