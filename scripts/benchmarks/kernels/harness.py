"""What a case is, how its candidates are timed side by side, and the table of results.

A module of cases has one function `cases(setup: Setup) -> Iterator[Case]`, and a line in
`main.SUITES`. It is a generator, so that the tensors of one case are gone before the next is made.
"""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import perf_counter

import torch
from graphs import Graph, rmat_graph
from peers import Peers

OURS = "gnn-dist"


@dataclass(frozen=True)
class Setup:
    """What cases are made from.

    Attributes:
        peers: Whom to compare with.
        scale: The graph has 2^scale nodes, 16 edges each.
        cache: Folder for graphs.
        quick: Small and few: to see that everything runs.
    """

    peers: Peers
    scale: int
    cache: Path
    quick: bool = False

    @cached_property
    def graph(self) -> Graph:
        """The graph of most cases."""
        return self.rmat(self.scale, 16)

    def rmat(self, scale: int, degree: int) -> Graph:
        """Return a graph of another size."""
        return rmat_graph(scale, degree, self.cache)


@dataclass(frozen=True)
class Case:
    """One row group of the table.

    Attributes:
        name: Operation and sizes.
        candidates: By name; ours is called `OURS`. A call does the work once. A call that returns a
            number did that many units of work: candidates are then compared by units a second.
        bytes_moved: Bytes that one call moves by the model that its module states; 0: no figure.
        flops: Floating point operations of one call; 0: no figure.
        unit: What a returned number counts.
    """

    name: str
    candidates: dict[str, Callable[[], object]]
    bytes_moved: float = 0.0
    flops: float = 0.0
    unit: str = ""


@dataclass(frozen=True)
class Result:
    """Times of one candidate.

    Attributes:
        seconds: Of each repetition.
        units: Units of work of each repetition, or ones.
    """

    seconds: list[float]
    units: list[float]

    @property
    def median_s(self) -> float:
        """Median seconds of a call."""
        return statistics.median(self.seconds)

    @property
    def quartiles_s(self) -> tuple[float, float]:
        """First and third quartile of the seconds."""
        if len(self.seconds) == 1:
            return self.seconds[0], self.seconds[0]
        first, _, third = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return first, third

    @property
    def rate(self) -> float:
        """Units of work a second."""
        return statistics.median(self.units) / self.median_s


def measure(case: Case, reps: int) -> dict[str, Result]:
    """Time all candidates in turns, after one call of each that does not count."""
    results = {name: Result([], []) for name in case.candidates}
    for call in case.candidates.values():
        call()
    for _ in range(reps):
        for name, call in case.candidates.items():
            start = perf_counter()
            done = call()
            results[name].seconds.append(perf_counter() - start)
            results[name].units.append(float(done) if isinstance(done, int | float) else 1.0)
    return results


@dataclass(frozen=True)
class Machine:
    """What this machine can do at most.

    Attributes:
        copy: Bytes a second, read and written, of a copy much larger than any cache.
        gemm: float32 operations a second of a large matrix product.
        gemm_bf16: The same in bfloat16.
    """

    copy: float
    gemm: float
    gemm_bf16: float

    def describe(self) -> str:
        """Say it in a line."""
        return (
            f"copy {self.copy / 1e9:.1f} GB/s (read + written), "
            f"GEMM {self.gemm / 1e9:.0f} GFLOP/s float32, {self.gemm_bf16 / 1e9:.0f} bfloat16"
        )


def measure_machine(quick: bool) -> Machine:
    """Measure a copy and matrix products with PyTorch's threads."""
    size, side = (1 << 22, 256) if quick else (1 << 27, 3072)
    source = torch.ones(size)
    target = torch.empty_like(source)
    matrix = torch.randn(side, side)
    half = matrix.bfloat16()
    case = Case(
        "machine",
        {
            "copy": lambda: target.copy_(source) is None or 8 * size,
            "gemm": lambda: (matrix @ matrix) is None or 2 * side**3,
            "gemm_bf16": lambda: (half @ half) is None or 2 * side**3,
        },
    )
    rates = {name: result.rate for name, result in measure(case, 2 if quick else 7).items()}
    return Machine(**rates)


COLUMNS = (
    *("case", "candidate", "ms", "quartiles", "work/s", "gnn-dist is faster by"),
    *("moves", "of copy", "of GEMM"),
)
HEADER = "\n".join([f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"])


def table_rows(case: Case, results: dict[str, Result], machine: Machine) -> Iterator[str]:
    """Write a Markdown row for each candidate."""
    ours = results.get(OURS)
    for name, result in results.items():
        first, third = result.quartiles_s
        faster = f"{ours.rate / result.rate:.2f}x" if ours and name != OURS else ""
        cells = [
            case.name,
            name,
            f"{1e3 * result.median_s:.1f}",
            f"{1e3 * first:.1f} .. {1e3 * third:.1f}",
            f"{result.rate / 1e6:.1f} M {case.unit}" if case.unit else "",
            faster,
        ]
        moved, done = case.bytes_moved / result.median_s, case.flops / result.median_s
        cells += [f"{moved / 1e9:.1f} GB/s", f"{moved / machine.copy:.0%}"] if moved else ["", ""]
        cells += [f"{done / machine.gemm:.0%}"] if done else [""]
        yield f"| {' | '.join(cells)} |"
