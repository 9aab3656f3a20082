"""Words for what a row is on the wire."""

import math
from dataclasses import dataclass, field

from gnn_dist.errors import ConfigError
from gnn_dist.halo.term import Term

__all__ = ["Adaptive", "Bfloat16", "Float16", "HalfRows", "Quantized"]


@dataclass(frozen=True)
class HalfRows(Term):
    """Rows travel in 16 bits an element; what is computed of them is not."""

    stage = "encode"

    def row_bytes(self, num_cols: int, itemsize: int, *, gradients: bool) -> int:
        """Return the bytes of a row of floating-point numbers on the wire."""
        del gradients
        return num_cols * min(itemsize, 2)


@dataclass(frozen=True)
class Bfloat16(HalfRows):
    """Rows travel in bfloat16: the range of float32, 8 bits of precision."""

    name = "bf16"


@dataclass(frozen=True)
class Float16(HalfRows):
    """Rows travel in float16: 11 bits of precision, numbers up to 65504."""

    name = "fp16"


def _read_flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"true or false, got {text!r}")
    return text == "true"


def _packed_bytes(num_cols: int, bits: int) -> int:
    """Return the bytes of a quantised row, with 4 of parameters."""
    return 4 + (num_cols * bits + 7) // 8


@dataclass(frozen=True)
class Quantized(Term):
    """Rows travel in few bits an element, rounded at random so that they are right on average.

    Source: "AdaQP: Adaptive Message Quantization and Parallelization for Distributed Full-graph
    GNN Training", arXiv 2306.01381; feedback: "1-Bit Stochastic Gradient Descent" (Seide et al.,
    Interspeech 2014).

    Attributes:
        bits: 8, 4, 2 or 1 for an element of values.
        grad_bits: The same for gradients; None for `bits`, or 4 where that is less: coarser
            gradients cost more steps than their bytes save.
        feedback: Whether what rounding leaves out of a row is added to the row of the next step.
    """

    name = "quantized"
    stage = "encode"

    bits: int = 8
    grad_bits: int | None = field(default=None, metadata={"read": int})
    feedback: bool = field(default=False, metadata={"read": _read_flag})

    def check(self) -> None:
        """Raise ConfigError if a number of bits is none of 1, 2, 4 and 8."""
        for name, bits in (("bits", self.bits), ("grad_bits", self.grad_bits)):
            if bits not in (1, 2, 4, 8, None):
                raise ConfigError(f"quantized: {name} must be 1, 2, 4 or 8, got {bits}")

    def bits_of(self, *, gradients: bool) -> int:
        """Return the bits of an element of values or of gradients."""
        if not gradients:
            return self.bits
        return max(self.bits, 4) if self.grad_bits is None else self.grad_bits

    @property
    def needs_all_rows(self) -> str:
        """Why every row must travel in every step; "" if none must."""
        if not self.feedback:
            return ""
        return "feedback adds what a row has lost to the same row of the next step"

    def row_bytes(self, num_cols: int, itemsize: int, *, gradients: bool) -> int:
        """Return the bytes of a row of floating-point numbers on the wire."""
        packed = _packed_bytes(num_cols, self.bits_of(gradients=gradients))
        return min(packed, num_cols * itemsize)


@dataclass(frozen=True)
class Adaptive(Term):
    """Rows travel in 2, 4 or 8 bits an element: more where more would be lost, within a budget.

    Source: "AdaQP: Adaptive Message Quantization and Parallelization for Distributed Full-graph
    GNN Training", arXiv 2306.01381.

    Attributes:
        budget: Bytes on the wire, as a share of those in float32.
        every: Steps between two measurements of what would be lost.
    """

    name = "adaptive"
    stage = "encode"
    agrees = True

    budget: float = 0.15
    every: int = 10

    def check(self) -> None:
        """Raise ConfigError if the budget is no share, or there is no step in between."""
        if not 0.0 < self.budget <= 1.0:
            raise ConfigError(f"adaptive: budget must lie in (0, 1], got {self.budget}")
        if self.every < 1:
            raise ConfigError(f"adaptive: every must be 1 or more, got {self.every}")

    def row_bytes(self, num_cols: int, itemsize: int, *, gradients: bool) -> int:
        """Return the bytes that a row has at most, on average over the rows of a rank."""
        del gradients
        narrowest, plain = _packed_bytes(num_cols, 2), num_cols * itemsize
        if narrowest >= plain:
            return plain
        # Rows of one width may take a part of a byte more on average than those of another.
        budget = max(math.ceil(self.budget * 4 * num_cols), narrowest)
        return min(budget, _packed_bytes(num_cols, 8))
