"""What time it is for the exchanges of a training run."""

from dataclasses import dataclass

from gnn_dist.ops.draws import DrawKey

__all__ = ["Clock"]

# Apart from the sites of any model's draws, which count from zero.
FIRST_SITE = 1 << 24


@dataclass
class Clock:
    """Which step it is; one for all exchanges of a run.

    Attributes:
        seed: Of the draws that policies make.
        step: Optimiser steps so far.
        ticks: How many steps have begun in this process.
    """

    seed: int = 0
    step: int = 0
    ticks: int = 0

    def begin(self, step: int) -> None:
        """Let a training step begin; the same on every rank."""
        self.step = step
        self.ticks += 1

    def key(self, site: int) -> DrawKey:
        """Return the key of the draws of this step at one of the policies' sites."""
        return DrawKey(self.seed, self.step, FIRST_SITE + site)
