"""Halo policies as written in a command line, a YAML file or Python.

    overlap
    sampled:p=0.1
    overlap+bf16
    quantized:bits=4,grad_bits=8

A policy is terms joined by `+`, each with options after a colon. Every term belongs to one stage:

    select      which rows travel                       all of them, if nothing is said
    encode      what a row is on the wire               as it is
    schedule    when it is waited for, what is kept     overlap
    path        through whose hands it goes             owner to reader

This module knows words alone; `exchange.py` and its neighbours do what they say.
"""

from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from typing import Any

from gnn_dist.errors import ConfigError, nearest
from gnn_dist.halo.codec_terms import Adaptive, Bfloat16, Float16, HalfRows, Quantized
from gnn_dist.halo.stale_terms import Delayed, Held, Local, Pipelined, Ssp
from gnn_dist.halo.term import Stage, Term
from gnn_dist.sizes import parse_size, size_text

__all__ = [
    "TERMS",
    "Adaptive",
    "Blocking",
    "Delayed",
    "HalfRows",
    "HaloPolicy",
    "Held",
    "Local",
    "Overlap",
    "Pipelined",
    "Quantized",
    "Relay",
    "Remat",
    "Sampled",
    "Ssp",
    "Term",
]


@dataclass(frozen=True)
class Blocking(Term):
    """Rows are waited for at once: the reference for every other policy."""

    name = "blocking"
    stage = "schedule"
    exact = True


@dataclass(frozen=True)
class Overlap(Term):
    """Work on rows that are here goes on while others travel."""

    name = "overlap"
    stage = "schedule"
    exact = True


@dataclass(frozen=True)
class Remat(Term):
    """Rows are fetched in chunks, used and freed, and fetched again where a backward needs them.

    Source: "Sequential Aggregation and Rematerialization: Distributed Full-batch Training of Graph
    Neural Networks on Large Graphs" (Mostafa), arXiv 2111.06483.

    Attributes:
        buffer: Bytes of the halo rows and of the messages that a rank holds at one time.
    """

    name = "remat"
    stage = "schedule"
    exact = True
    without = {  # noqa: RUF012 - never changed
        "select": "its chunks are ranges of the whole halo",
        "path": "a relay would hold the rows of a whole machine",
    }

    buffer: int = field(default=256 << 20, metadata={"read": parse_size, "write": size_text})


@dataclass(frozen=True)
class Sampled(Term):
    """In each step a random part of the halo travels, scaled so that sums are right on average.

    Under a schedule that holds rows, those that do not travel keep their last values, and nothing
    is scaled.

    Source: "BNS-GCN: Efficient Full-Graph Training of Graph Convolutional Networks with
    Partition-Parallelism and Random Boundary Node Sampling" (Wan et al.), arXiv 2203.10983.

    Attributes:
        p: Probability that a row travels to one of its readers.
    """

    name = "sampled"
    stage = "select"

    p: float = 0.1

    def check(self) -> None:
        """Raise ConfigError if p is no probability above 0."""
        if not 0.0 < self.p <= 1.0:
            raise ConfigError(f"sampled: p must lie in (0, 1], got {self.p}")


@dataclass(frozen=True)
class Relay(Term):
    """A row crosses the network once for each machine; there a rank hands it on to its readers.

    Attributes:
        least: Share of the rows between machines that this must save; below it, rows go directly.
    """

    name = "relay"
    stage = "path"
    exact = True

    least: float = 0.2

    def check(self) -> None:
        """Raise ConfigError if least is no share."""
        if not 0.0 <= self.least <= 1.0:
            raise ConfigError(f"relay: least must lie in [0, 1], got {self.least}")


# Every word there is.
TERMS: dict[str, type[Term]] = {
    term.name: term
    for term in (
        *(Blocking, Overlap, Remat, Local, Delayed, Pipelined, Ssp),
        *(Sampled, Bfloat16, Float16, Quantized, Adaptive, Relay),
    )
}


@dataclass(frozen=True)
class HaloPolicy:
    """How halo rows travel during training. Evaluation is always exact.

    Attributes:
        schedule: When rows are waited for, and what is kept of earlier ones.
        select: Which rows travel; None for all.
        encode: What they are on the wire; None for what they are.
        path: Through whose hands they go; None for the direct way.

    Raises:
        ConfigError: The terms do not go together.

    Example:
        >>> HaloPolicy.parse("sampled:p=0.5+bf16")
        HaloPolicy(schedule=Overlap(), select=Sampled(p=0.5), encode=Bfloat16(), path=None)
        >>> str(HaloPolicy.parse("bf16 + overlap"))
        'overlap+bf16'
    """

    schedule: Term = field(default_factory=Overlap)
    select: Sampled | None = None
    encode: Term | None = None
    path: Relay | None = None

    def __post_init__(self) -> None:
        other = self.select or self.encode or self.path
        if isinstance(self.schedule, Local) and other is not None:
            raise ConfigError(
                f"local and {other.name} do not go together, because nothing travels under local"
            )
        why = "" if self.encode is None else self.encode.needs_all_rows
        in_parts = (isinstance(self.schedule, Delayed) and self.schedule.bins > 1) or isinstance(
            self.schedule, Ssp | Remat
        )
        partial = self.select or (self.schedule if in_parts else None)
        if why and partial is not None:
            raise ConfigError(
                f"{self.encode} needs every row to travel in every exchange ({why}), but "
                f"{partial} leaves rows out: drop one of the two"
            )
        if self.encode is not None and self.encode.agrees and isinstance(self.schedule, Remat):
            raise ConfigError(
                f"{self.encode.name} agrees on widths in exchanges that all ranks take part in, "
                "but remat has rounds that some leave out: drop one of the two"
            )
        for term in self._terms:
            for other in self._terms:
                reason = term.without.get(other.stage)
                if reason:
                    raise ConfigError(f"{term.name} does not go with {other.name}: {reason}")

    @classmethod
    def parse(cls, text: str) -> "HaloPolicy":
        """Read a policy.

        Raises:
            ConfigError: A word or an option is unknown, a value cannot work, or two terms decide
                the same thing.
        """
        chosen: dict[str, Any] = {}
        for word in text.split("+"):
            term = _parse_term(word.strip(), text)
            if term.stage in chosen:
                raise ConfigError(
                    f"a halo policy can have one of {chosen[term.stage].name} and {term.name}, "
                    f"which both say {MEANING[term.stage]}, got {text!r}"
                )
            chosen[term.stage] = term
        return cls(**chosen)

    @property
    def exact(self) -> bool:
        """Whether results are those of one process."""
        return all(term.exact for term in self._terms)

    @property
    def holds(self) -> bool:
        """Whether rows of earlier steps are kept and used."""
        return self.schedule.holds

    @property
    def stateful(self) -> bool:
        """Whether a resumed run needs what exchanges remember, or begins otherwise."""
        encode = self.encode
        return self.holds or (encode is not None and bool(encode.agrees or encode.needs_all_rows))

    @property
    def sums_only(self) -> str:
        """Why a layer that does not sum rows cannot run under this policy; "" if it can."""
        if isinstance(self.schedule, Local):
            return "under local they count as zeros"
        if self.select is not None and not self.holds:
            return f"under {self.select} the rows that are left out count as zeros"
        return ""

    def row_bytes(self, num_cols: int, itemsize: int = 4, *, gradients: bool = False) -> int:
        """Return the bytes of a halo row on the wire.

        Args:
            num_cols: Elements of the row.
            itemsize: Bytes of an element, a floating-point number. Integers travel as they are.
            gradients: Whether it is a row of gradients, not of values.

        Returns:
            Bytes; for `adaptive` what they are at most, on average over rows.
        """
        if self.encode is None:
            return num_cols * itemsize
        return self.encode.row_bytes(num_cols, itemsize, gradients=gradients)

    @property
    def in_pieces(self) -> str:
        """Why a layer that needs all halo rows at once cannot run under this policy; "" if not."""
        if isinstance(self.schedule, Remat):
            return f"under {self.schedule} no more than {size_text(self.schedule.buffer)} are here"
        return ""

    @property
    def for_evaluation(self) -> "HaloPolicy":
        """An exact policy: this one's schedule, where that is exact, and nothing else."""
        return HaloPolicy(schedule=self.schedule) if self.schedule.exact else HaloPolicy()

    @property
    def _terms(self) -> list[Term]:
        terms = (self.schedule, self.select, self.encode, self.path)
        return [term for term in terms if term is not None]

    def __str__(self) -> str:
        return "+".join(str(term) for term in self._terms)


MEANING: dict[Stage, str] = {
    "select": "which rows travel",
    "encode": "what rows are on the wire",
    "schedule": "when rows are waited for",
    "path": "which way rows take",
}


def _parse_term(word: str, text: str) -> Term:
    name, _, rest = word.partition(":")
    if name not in TERMS:
        where = "" if word == text else f" in {text!r}"
        raise ConfigError(f"no halo policy {name!r}{where}: {nearest(name, list(TERMS))}")
    kind = TERMS[name]
    known = {f.name: f for f in fields(kind)}
    values: dict[str, Any] = {}
    for option in filter(None, rest.split(",")):
        key, equals, value = (part.strip() for part in option.partition("="))
        if key not in known or not equals or not value:
            options = ", ".join(known) or "none"
            raise ConfigError(f"{name} takes options as key=value of: {options}; got {option!r}")
        if key in values:
            raise ConfigError(f"{name} takes each option once, got {key} twice in {rest!r}")
        values[key] = _parse_value(name, known[key], value)
    term = kind(**values)
    term.check()
    return term


def _parse_value(name: str, known: "Field[Any]", value: str) -> Any:
    read: Callable[[str], Any] = known.metadata.get("read", known.type)
    try:
        return read(value)
    except ConfigError as error:
        raise ConfigError(f"{name}: {known.name}: {error}") from error
    except ValueError as error:
        kind = getattr(known.type, "__name__", known.type)
        raise ConfigError(f"{name}: {known.name} must be of type {kind}, got {value!r}") from error
