"""Halo rows in rounds: chunks that are fetched, used and freed, in memory of bounded size.

    round            0        1        2                 offset 1, chunks 0 1 2; offset 2, ...
    fetch   post 0 1 | wait 0 use 0, post 2 | wait 1 use 1, post 3 | ...
    return  make 0 post 0, make 1 post 1 | wait 0 add 0, make 2 post 2 | ...

In round (offset o, chunk c) a rank takes chunk c of the rows that rank + o owns, and serves chunk c
of the rows that rank - o reads, so both directions of a link are busy. While one round's rows are
used, the next one's travel. Rounds are in one order for all ranks, and a rank leaves out those in
which it has no part; whoever is furthest behind finds all that it waits for posted, so nobody waits
in a circle.

Source: "Sequential Aggregation and Rematerialization: Distributed Full-batch Training of Graph
Neural Networks on Large Graphs" (Mostafa), arXiv 2111.06483; there a round is all of a part's rows.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor

from gnn_dist.errors import ConfigError
from gnn_dist.halo.courier import Courier, Parcel
from gnn_dist.halo.route import Route
from gnn_dist.halo.wire import num_cols
from gnn_dist.sizes import size_text

__all__ = ["Fetch", "RematExchange", "Return", "Round"]

IN_FLIGHT = 2

Use = Callable[[int, int, Tensor], None]
Make = Callable[[int, int], Tensor]


class Round(NamedTuple):
    """What one exchange carries.

    Attributes:
        route: To at most one rank, from at most one.
        halo: Begin and end of the halo rows that this rank gets, or whose gradients it returns.
        boundary: Begin and end of the boundary rows that it sends, or whose gradients it gets.
    """

    route: Route
    halo: tuple[int, int]
    boundary: tuple[int, int]


@dataclass(frozen=True)
class RematExchange:
    """One direction of a layer's exchange, in rounds.

    Attributes:
        courier: Carries the rows.
        buffer: Bytes that messages and received rows may take.
        on_wire: Bytes on the wire of a row like others, as values and as gradients: what is cut
            for the ones is used for the others.
        made: The rounds of each number of rows, as they are needed.
    """

    courier: Courier
    buffer: int
    on_wire: Callable[[Tensor], tuple[int, ...]]
    made: dict[int, list[Round]] = field(default_factory=dict)

    def start(self, rows: Tensor) -> "Fetch":
        """Collective. Post the first rounds of owned rows (n, ...) to their readers.

        Raises:
            ConfigError: On every rank: the buffer is too small for one row.
        """
        return Fetch(self, rows, IN_FLIGHT)

    def drain(self) -> None:
        """Do nothing: no row outlives its round."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: no row outlives its round."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: no row outlives its round."""

    def bounds(self, like: Tensor) -> tuple[int, ...]:
        """Return where the halo is cut for rows (n, ...), from 0 to h."""
        route = self.courier.route
        ptr = route.recv_ptr if route.to_readers else route.send_ptr
        ends = {ptr[-1], *(step.halo[1] for step in self.rounds(like))}
        return 0, *(sorted(ends - {0}) or [0])

    def rounds(self, like: Tensor) -> list[Round]:
        """Return this rank's rounds for rows (n, ...), in the order of all ranks."""
        chunk = self._chunk_rows(like)
        if chunk not in self.made:
            self.made[chunk] = list(_rounds(self.courier.route, chunk))
        return self.made[chunk]

    def _chunk_rows(self, like: Tensor) -> int:
        """Return the rows of a chunk, a power of two: chunks of other sizes fit in each other.

        At most two rounds' messages, out and in, are held, and where a row differs from what
        travels, decoded rows and rows that are being encoded.
        """
        decoded = num_cols(like) * like.element_size()
        row_bytes = max(
            2 * IN_FLIGHT * on_wire + (2 * decoded if on_wire != decoded else 0)
            for on_wire in self.on_wire(like)
        )
        if row_bytes > self.buffer:
            raise ConfigError(
                f"remat: a buffer of {size_text(self.buffer)} must hold two messages each way of "
                f"at least one row, which are {row_bytes} bytes here: give it more"
            )
        return 1 << (self.buffer // max(1, row_bytes)).bit_length() - 1


class Fetch:
    """Halo rows under way to their readers, some rounds at a time.

    Args:
        exchange: The forward exchange.
        rows: (n, ...), owned rows.
        in_flight: Rounds that travel at one time.
    """

    def __init__(self, exchange: RematExchange, rows: Tensor, in_flight: int) -> None:
        self._courier, self._rows = exchange.courier, rows
        self._left = deque(exchange.rounds(rows))
        self._posted: deque[tuple[Round, Parcel]] = deque()
        for _ in range(in_flight):
            self._post()

    def each(self, use: Use) -> None:
        """Collective. Call use(begin, end, rows) for every range of halo rows that arrives.

        The rows must not be kept: their memory is counted on for the next ones.
        """
        while self._posted:
            (_, (begin, end), _), parcel = self._posted.popleft()
            rows = parcel.wait()
            del parcel
            if begin < end:
                use(begin, end, rows)
            del rows
            self._post()

    def wait(self) -> Tensor:
        """Refuse: all rows at once are what the buffer has no room for."""
        raise ConfigError("rows that are fetched in pieces are never all here: use them piecewise")

    def _post(self) -> None:
        if self._left:
            step = self._left.popleft()
            self._posted.append((step, self._courier.post(self._rows, step.route)))


class Return:
    """Gradients of halo rows on their way to their owners, some rounds at a time.

    Args:
        exchange: The reverse exchange.
        make: make(begin, end) returns the gradients of a range of halo rows.
        like: Rows of their width and dtype.
    """

    def __init__(self, exchange: RematExchange, make: Make, like: Tensor) -> None:
        self._courier, self._make, self._none = exchange.courier, make, like[:0]
        self._left = deque(exchange.rounds(like))
        self._posted: deque[tuple[Round, Parcel]] = deque()
        for _ in range(IN_FLIGHT):
            self._post()

    def each(self, add: Use) -> None:
        """Collective. Call add(begin, end, rows) for ranges of boundary rows as they arrive."""
        while self._posted:
            (_, _, (begin, end)), parcel = self._posted.popleft()
            rows = parcel.wait()
            del parcel
            if begin < end:
                add(begin, end, rows)
            del rows
            self._post()

    def _post(self) -> None:
        if self._left:
            step = self._left.popleft()
            begin, end = step.halo
            rows = self._make(begin, end) if begin < end else self._none
            self._posted.append((step, self._courier.post(rows, step.route)))


def _rounds(route: Route, chunk: int) -> "list[Round]":
    """Return one direction's rounds in which this rank sends or receives."""
    world_size, rank = len(route.send_ptr) - 1, route.rank
    halo_ptr, boundary_ptr = route.recv_ptr, route.send_ptr
    if not route.to_readers:
        halo_ptr, boundary_ptr = boundary_ptr, halo_ptr
    made = []
    for offset in range(1, world_size):
        owner, reader = (rank + offset) % world_size, (rank - offset) % world_size
        halos = _chunks(halo_ptr[owner], halo_ptr[owner + 1], chunk)
        boundaries = _chunks(boundary_ptr[reader], boundary_ptr[reader + 1], chunk)
        for i in range(max(len(halos), len(boundaries))):
            halo = halos[i] if i < len(halos) else (0, 0)
            boundary = boundaries[i] if i < len(boundaries) else (0, 0)
            ends = (reader, boundary), (owner, halo)
            to, back = ends if route.to_readers else ends[::-1]
            made.append(Round(_part(route, *to, *back), halo, boundary))
    return made


def _chunks(begin: int, end: int, size: int) -> list[tuple[int, int]]:
    return [(at, min(at + size, end)) for at in range(begin, end, size)]


def _part(
    route: Route, to: int, sent: tuple[int, int], source: int, received: tuple[int, int]
) -> Route:
    """Return the route of a range of what goes to one rank, and of what comes from one."""
    send, recv = slice(*sent), slice(*received)
    world_size = len(route.send_ptr) - 1

    def ptr(peer: int, rows: tuple[int, int]) -> tuple[int, ...]:
        return tuple(rows[1] - rows[0] if q > peer else 0 for q in range(world_size + 1))

    return replace(
        route,
        send_index=None if route.send_index is None else route.send_index[send],
        send_id=route.send_id[send],
        send_ptr=ptr(to, sent),
        recv_id=route.recv_id[recv],
        recv_ptr=ptr(source, received),
        num_rows=received[1] - received[0],
    )
