"""Work that goes on ahead of the one who waits for it, in a thread, with bounded memory."""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

__all__ = ["Prefetch"]

Item = TypeVar("Item")
POLL_S = 0.05  # between looks at whether anybody still wants the work


class _End:
    """What ends the queue: an error, or none."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Prefetch(Generic[Item]):
    """Iterates in a thread, at most some items ahead.

    The order of items is that of the iterable, so that collectives in it come in one order on all
    ranks. Whoever consumes must do so to the end, or `close`: a rank that stops early while others
    go on would leave them waiting, and so must fail as a whole (`World.abort`).

    Args:
        make: Returns the iterable; called in the thread.
        ahead: Items that may lie ready, beside the one that is being made.
        name: Of the thread.

    Raises:
        Exception: On iteration, whatever the iterable raised.

    Example:
        >>> with Prefetch(lambda: iter(range(3)), ahead=1) as items:
        ...     list(items)
        [0, 1, 2]
    """

    def __init__(
        self, make: Callable[[], Iterator[Item]], *, ahead: int, name: str = "gnn-dist-prefetch"
    ) -> None:
        self._ready: queue.Queue[Item | _End] = queue.Queue(ahead)
        self._unwanted = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(make,), name=name, daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Item]:
        """Yield the items in order."""
        while True:
            item = self._ready.get()
            if isinstance(item, _End):
                self._thread.join()
                if item.error is not None:
                    raise item.error
                return
            yield item

    def close(self) -> None:
        """Ask for no more items; what is being made is finished in the thread, and dropped."""
        self._unwanted.set()

    def __enter__(self) -> "Prefetch[Item]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, make: Callable[[], Iterator[Item]]) -> None:
        error: BaseException | None = None
        try:
            for item in make():
                if not self._put(item):
                    return
        except BaseException as caught:
            error = caught
        self._put(_End(error))

    def _put(self, item: Item | _End) -> bool:
        """Return False if nobody wants it any more."""
        while not self._unwanted.is_set():
            try:
                self._ready.put(item, timeout=POLL_S)
            except queue.Full:
                continue
            return True
        return False
