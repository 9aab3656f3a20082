"""What every policy's exchange offers."""

from typing import Any, Protocol

from torch import Tensor

__all__ = ["Exchange", "Pending"]


class Pending(Protocol):
    """Rows under way."""

    def wait(self) -> Tensor:
        """Return the rows once they are here."""


class Exchange(Protocol):
    """One direction of one layer's exchange."""

    def start(self, rows: Tensor) -> Pending:
        """Collective. Begin to send rows; nothing is waited for unless the policy says so."""

    def drain(self) -> None:
        """Wait for what is on its way, if anything outlives its step."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs (caches of stale rows); empty for exact policies."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` returned for the same exchange.

        Raises:
            ValueError: It is of another exchange, or of another policy.
        """
