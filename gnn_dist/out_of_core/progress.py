"""Bars that show each stage's rate and the time that is left."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["ProgressBars"]


class ProgressBars:
    """One bar on stderr for each stage, in edges.

    Args:
        shown: Whether to show anything.
    """

    def __init__(self, *, shown: bool) -> None:
        self.shown = shown
        self.stage = ""
        self.bar: Any = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show that `done` of `total` edges of a stage are done."""
        if not self.shown:
            return
        # A stage that begins again, for another group of parts, gets a new bar.
        if stage != self.stage or done < self.bar.n:
            self._close()
            from tqdm import tqdm

            self.stage = stage
            self.bar = tqdm(desc=stage, total=total, unit=" edges", unit_scale=True)
        self.bar.update(done - self.bar.n)

    def __enter__(self) -> "ProgressBars":
        return self

    def __exit__(
        self,
        kind: "type[BaseException] | None",
        error: BaseException | None,
        traceback: "TracebackType | None",
    ) -> None:
        """End the last bar."""
        del kind, error, traceback
        self._close()

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None
