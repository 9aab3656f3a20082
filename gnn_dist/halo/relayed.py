"""Exchanges over the three plans of `relay.py`: what crosses the network follows the policy."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnn_dist.halo.pending import Exchange, Pending
from gnn_dist.halo.relay import RelayPlan
from gnn_dist.ops.rows import new_rows_like

__all__ = ["RelayedBack", "RelayedThere"]


@dataclass(frozen=True)
class _Relayed:
    """Three exchanges in place of one; only what crosses the network may outlive its step.

    Attributes:
        relay: Who relays what.
        direct: Between ranks of a machine.
        across: Between machines, from or to relays.
        spread: Between relays and the readers on their machine.
    """

    relay: RelayPlan
    direct: Exchange
    across: Exchange
    spread: Exchange

    def drain(self) -> None:
        """Wait for rows between machines that outlive their step."""
        self.across.drain()

    def state_dict(self) -> dict[str, Any]:
        """Return what the policy keeps of rows between machines."""
        return self.across.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what the policy keeps of rows between machines."""
        self.across.load_state_dict(state)


class RelayedThere(_Relayed):
    """Owned rows to halo rows."""

    def start(self, rows: Tensor) -> Pending:
        """Collective. Send rows to neighbours and relays."""
        return _There(self, rows, self.direct.start(rows), self.across.start(rows))


@dataclass
class _There:
    exchange: RelayedThere
    rows: Tensor
    direct: Pending
    across: Pending

    def wait(self) -> Tensor:
        """Collective. Relay what came from other machines; return all halo rows."""
        relay = self.exchange.relay
        spread = self.exchange.spread.start(self.across.wait())
        out = new_rows_like(self.rows, len(relay.direct_place) + len(relay.spread_place))
        out[relay.direct_place] = self.direct.wait()
        out[relay.spread_place] = spread.wait()
        return out


class RelayedBack(_Relayed):
    """Gradients of halo rows to their owners, each machine's added up on the way.

    What arrives are boundary rows: those of the direct plan, then those of relays.
    """

    def start(self, rows: Tensor) -> Pending:
        """Collective. Send gradients to neighbours and relays."""
        direct = self.direct.start(rows[self.relay.direct_place])
        return _Back(self, rows, direct, self.spread.start(rows[self.relay.spread_place]))


@dataclass
class _Back:
    exchange: RelayedBack
    rows: Tensor
    direct: Pending
    spread: Pending

    def wait(self) -> Tensor:
        """Collective. Add up what this machine's readers have sent, and pass it on."""
        plan = self.exchange.relay.spread
        relayed = self.rows.new_zeros((plan.num_owned, *self.rows.shape[1:]))
        plan.add_boundary(relayed, self.spread.wait())
        across = self.exchange.across.start(relayed)
        return torch.cat([self.direct.wait(), across.wait()])
