"""The words of policies under which rows come late, or not at all; `stale.py` obeys them."""

from dataclasses import dataclass, field

from gnn_dist.errors import ConfigError
from gnn_dist.halo.term import Term

__all__ = ["Delayed", "Held", "Local", "Pipelined", "Ssp"]


@dataclass(frozen=True)
class Local(Term):
    """Nothing travels, and halo rows count as zeros: the floor that other policies stand on."""

    name = "local"
    stage = "schedule"


@dataclass(frozen=True)
class Held(Term):
    """Rows of earlier steps are used while newer ones travel.

    Attributes:
        warmup: So many steps at first are exact; they leave every row in the cache.
    """

    stage = "schedule"
    holds = True

    warmup: int = field(default=5, kw_only=True)

    def check(self) -> None:
        """Raise ConfigError if the first step would find no rows to use."""
        if self.warmup < 1:
            raise ConfigError(
                f"{self.name}: warmup must be at least 1, got {self.warmup}: in the first step "
                "there are no earlier rows"
            )


@dataclass(frozen=True)
class Delayed(Held):
    """In each step one bin of rows travels; it is used `r` steps later. Gradients likewise.

    Rows are r + bins - 1 steps old at most. With r=0 and one bin this is `overlap`.

    Source: algorithm cd-r of "DistGNN: Scalable Distributed Training for Large-Scale Graph Neural
    Networks" (Vasimuddin et al.), arXiv 2104.06700; with a cache of all rows and with gradients
    delayed like values, without which most of the accuracy is lost.

    Attributes:
        r: Steps from sending to use.
        bins: A row travels in every so manieth step.
    """

    name = "delayed"

    r: int = 5
    bins: int = 5

    def check(self) -> None:
        """Raise ConfigError for a negative delay or no bin."""
        super().check()
        if self.r < 0:
            raise ConfigError(f"delayed: r must be at least 0, got {self.r}")
        if self.bins < 1:
            raise ConfigError(f"delayed: bins must be at least 1, got {self.bins}")


@dataclass(frozen=True)
class Pipelined(Held):
    """All rows travel in each step and are used in the next. Gradients likewise.

    Source: "PipeGCN: Efficient Full-Graph Training of Graph Convolutional Networks with Pipelined
    Feature Communication" (Wan et al.), arXiv 2203.10428, with its smoothing.

    Attributes:
        smooth: The cache becomes smooth * cache + (1 - smooth) * new rows.
    """

    name = "pipelined"

    smooth: float = 0.0

    def check(self) -> None:
        """Raise ConfigError if new rows would not count."""
        super().check()
        if not 0.0 <= self.smooth < 1.0:
            raise ConfigError(f"pipelined: smooth must lie in [0, 1), got {self.smooth}")


@dataclass(frozen=True)
class Ssp(Held):
    """The newest rows that have arrived from each rank are used, if they are fresh enough.

    Which these are depends on timing, so two runs differ; with s=0 this is `blocking`.

    Source: "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server" (Ho
    et al., NeurIPS 2013), applied to halo rows.

    Attributes:
        s: Rows older than so many steps are waited for.
    """

    name = "ssp"

    s: int = 2

    def check(self) -> None:
        """Raise ConfigError for a negative bound."""
        super().check()
        if self.s < 0:
            raise ConfigError(f"ssp: s must be at least 0, got {self.s}")
