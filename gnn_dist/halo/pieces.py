"""Halo rows as they come: all at once, or in pieces where a policy bounds their memory.

What works piece by piece works for every policy, whose halo is one piece unless it says otherwise.
"""

from collections.abc import Callable

from torch import Tensor

from gnn_dist.halo.exchange import LayerExchange, Pending
from gnn_dist.halo.remat import Fetch, RematExchange, Return
from gnn_dist.ops.rows import scatter_add_rows

__all__ = ["each_piece", "fetch_and_return", "give_back", "piece_bounds"]


def piece_bounds(exchange: LayerExchange, like: Tensor) -> tuple[int, ...]:
    """Return where halo rows like (n, ...) are cut into pieces, from 0 to h.

    Raises:
        ConfigError: On every rank: a policy's buffer is too small.
    """
    forward = exchange.forward
    return (
        forward.bounds(like) if isinstance(forward, RematExchange) else (0, exchange.plan.num_halo)
    )


def each_piece(pending: Pending, use: Callable[[int, int, Tensor], None]) -> None:
    """Collective. Call use(begin, end, rows) for every range of halo rows, as it arrives.

    Args:
        pending: Of a forward or mirrored exchange.
        use: Keeps no rows.
    """
    if isinstance(pending, Fetch):
        pending.each(use)
    else:
        rows = pending.wait()
        use(0, rows.size(0), rows)


def give_back(
    exchange: LayerExchange, make: Callable[[int, int], Tensor], like: Tensor
) -> Callable[[Tensor], Tensor]:
    """Collective. Begin to send gradients of halo rows to their owners.

    Args:
        exchange: The layer's.
        make: make(begin, end) returns those of a range of halo rows.
        like: Rows of their width and dtype.

    Returns:
        Collective. Adds what other ranks return to the gradient of owned rows (n, ...), in place.
    """
    plan, reverse = exchange.plan, exchange.reverse
    if not isinstance(reverse, RematExchange):
        pending = reverse.start(make(0, plan.num_halo))
        return lambda out: exchange.add_boundary(out, pending.wait())
    returned = Return(reverse, make, like)

    def finish(out: Tensor) -> Tensor:
        returned.each(_adder(exchange, out))
        return out

    return finish


def fetch_and_return(
    exchange: LayerExchange,
    x: Tensor,
    make: Callable[[int, int, Tensor], Tensor],
    out: Tensor,
) -> Tensor:
    """Collective. Fetch halo rows again, and return what is made of each piece to its owner.

    One round after the other, since both directions share the buffer.

    Args:
        exchange: The layer's, of a policy that fetches in pieces.
        x: (n, ...), owned rows.
        make: make(begin, end, rows) returns gradients of a range of halo rows.
        out: (n, ...), what the gradients are added to, in place.
    """
    forward, reverse = exchange.forward, exchange.reverse
    if not isinstance(forward, RematExchange) or not isinstance(reverse, RematExchange):
        raise TypeError("rows are fetched again only where they come in pieces")
    add = _adder(exchange, out)
    for there, back in zip(forward.rounds(x), reverse.rounds(x), strict=True):
        rows = forward.courier.post(x, there.route).wait()
        made = make(*there.halo, rows) if there.halo[0] < there.halo[1] else x[:0]
        del rows
        parcel = reverse.courier.post(made, back.route)
        del made
        add(*back.boundary, parcel.wait())
    return out


def _adder(exchange: LayerExchange, out: Tensor) -> Callable[[int, int, Tensor], None]:
    index = exchange.plan.send_index

    def add(begin: int, end: int, rows: Tensor) -> None:
        scatter_add_rows(out, index[begin:end], rows)

    return add
