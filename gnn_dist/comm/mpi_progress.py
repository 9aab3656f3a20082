"""What makes MPI move messages while the program computes.

MPI libraries move messages inside calls of MPI, and only there: a large message that is sent, and
then left alone, arrives when somebody waits for it. So a thread asks for what is in flight, and
sleeps in between: the sockets' buffers hold what comes meanwhile.
"""

import threading
import time
from typing import Protocol

__all__ = ["MpiProgress", "Polled"]

SLEEP_S = 0.5e-3


class Polled(Protocol):
    """An operation that goes on when it is asked whether it is complete."""

    def poll(self) -> bool:
        """Ask; return whether it need not be asked again. Does not raise."""


class MpiProgress:
    """A thread that polls operations while nobody waits for any.

    It starts with the first operation and sleeps when there is none.

    Example:
        >>> progress = MpiProgress()
        >>> progress.close()
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._operations: list[Polled] = []
        self._waiting = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, operation: Polled) -> None:
        """Poll an operation until it is complete."""
        with self._changed:
            self._operations.append(operation)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, name="gnn-dist-mpi-progress", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def __enter__(self) -> None:
        """Leave the polling to the caller, who waits for something: all goes on then."""
        with self._changed:
            self._waiting += 1

    def __exit__(self, *_: object) -> None:
        """Take it up again."""
        with self._changed:
            self._waiting -= 1
            self._changed.notify()

    def close(self) -> None:
        """End the thread; safe to call twice."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while self._has_work():
            with self._changed:
                operations = list(self._operations)
            done = [operation for operation in operations if operation.poll()]
            if done:
                with self._changed:
                    self._operations = [o for o in self._operations if o not in done]
            time.sleep(SLEEP_S)

    def _has_work(self) -> bool:
        """Sleep until there is something to poll; return False when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._operations and not self._waiting))
            return not self._closed
