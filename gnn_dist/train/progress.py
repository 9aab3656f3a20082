"""How far a run has come."""

import math
from dataclasses import dataclass

__all__ = ["Progress"]


@dataclass
class Progress:
    """How far a run has come, and its best evaluation so far.

    Attributes:
        epoch: Epochs done.
        best_epoch: The epoch whose validation metric was best, -1 before any.
        best_val: That metric.
        test_at_best: The test metric then.
        stale: Evaluations since then.
        evaluated: Epochs that were done at the last evaluation.
    """

    epoch: int = 0
    best_epoch: int = -1
    best_val: float = float("-inf")
    test_at_best: float = float("nan")
    stale: int = 0
    evaluated: int = 0

    def update(
        self, epoch: int, scores: dict[str, float], *, higher_is_better: bool = True
    ) -> bool:
        """Take in an evaluation; return whether it is the best so far.

        Without validation nodes the last evaluation counts as the best.
        """
        val, sign = scores["val"], 1 if higher_is_better else -1
        first = not math.isfinite(self.best_val)
        if val != val or first or sign * val > sign * self.best_val:
            self.best_epoch, self.test_at_best, self.stale = epoch, scores["test"], 0
            self.best_val = val if val == val else self.best_val
            return True
        self.stale += 1
        return False
