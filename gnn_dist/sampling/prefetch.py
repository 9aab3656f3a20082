"""Work that goes on ahead of the one who waits for it, in a thread, with bounded memory."""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

__all__ = ["Gate", "Prefetch"]

Item = TypeVar("Item")
POLL_S = 0.05  # between looks at whether anybody still wants the work


class _End:
    """What ends the queue: an error, or none."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Gate:
    """What ranks that stop early meet at: none may begin a round that another will not join.

    Example:
        >>> gate = Gate()
        >>> gate.enter(), gate.hold(), gate.open_until(1), gate.enter()
        (True, 1, None, False)
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._begun = 0
        self._held = False
        self._most: int | None = None

    def enter(self) -> bool:
        """Begin a round; wait while the gate is held. Return False if there shall be none."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held)
            if self._most is not None and self._begun >= self._most:
                return False
            self._begun += 1
            return True

    def hold(self) -> int:
        """Let no round begin; return how many have."""
        with self._changed:
            self._held = True
            return self._begun

    def open_until(self, most: int) -> None:
        """Let rounds begin again, until there are so many."""
        with self._changed:
            self._most, self._held = most, False
            self._changed.notify_all()


class Prefetch(Generic[Item]):
    """Iterates in a thread, at most some items ahead.

    The order of items is that of the iterable, so that collectives in it come in one order on all
    ranks. Who stops before the end drains what all ranks have begun (`Gate`), or fails as a whole.

    Args:
        make: Returns the iterable; called in the thread.
        ahead: Items that may lie ready, beside the one that is being made.

    Raises:
        Exception: On iteration, whatever the iterable raised.

    Example:
        >>> with Prefetch(lambda: iter(range(3)), ahead=1) as items:
        ...     list(items)
        [0, 1, 2]
    """

    def __init__(self, make: Callable[[], Iterator[Item]], *, ahead: int) -> None:
        self._ready: queue.Queue[Item | _End] = queue.Queue(ahead)
        self._unwanted = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(make,), name="gnn-dist-prefetch", daemon=True
        )
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
