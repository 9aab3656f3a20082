"""The control channel: how a rank learns that another one failed, ended or is late.

    rank 0 process                     rank 1          rank 2
    +-----------------------+          +---------+     +---------+
    | training    hub thread|<--TCP----| control |     | control |
    |    |           ^      |          +---------+     +---------+
    | control -------+      |<--TCP-------------------------+
    +-----------------------+

It is a star beside the transport, so that it works while the transport does not. Messages are
JSON lines; a rank shows the token of the rendezvous before it is heard. The hub listens on the
loopback address when all ranks share a host, else on the address that the others reach it by.

    to the hub:    hello, beat (every second: operations so far, phase, what is waited for),
                   abort, blame (who is late?), failure (the hub itself was silent), bye
    from the hub:  welcome, beat, poll (beat now), failure, over (all have left), bye

A connection that ends without bye is a process that died, and all ranks know within
milliseconds. One that stays silent is a stopped process or a lost machine. The first failure wins
and every rank raises the same.
"""

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from gnn_dist.comm.control_server import (
    BEAT_S,
    MAX_LINE,
    ControlServer,
    Message,
    encode,
    host_identity,
    is_silent,
    keep_alive,
    split,
)
from gnn_dist.errors import CommError, GnnDistError, RankError

__all__ = ["Control"]

log = logging.getLogger(__name__)

VERDICT_S = 1.5  # how long a failed operation waits for the control channel to name the cause
ANSWER_S = 5.0  # how long the hub may take to say who is late
LINGER_CLEAN_S = 10.0  # how long rank 0 keeps the hub for ranks that end later
LINGER_FAILED_S = 3.0  # how long a failing rank stays, so that a launcher lets the others speak


class Control:
    """One rank's end of the control channel.

    Without a connection (`Control(0)`) it is the control channel of a single rank, which nobody
    can fail but itself.

    Args:
        rank: This rank.
        connection: A connected socket to the hub.
        server: The hub, if it runs in this process.
        silence_s: Seconds without a sign of life after which the hub counts as gone.

    Attributes:
        failure: The first failure of any rank, or None.
        failed: Set when there is a failure.

    Example:
        >>> control = Control(0)
        >>> control.progress("epoch 3")
        >>> control.check()
    """

    def __init__(
        self,
        rank: int,
        connection: socket.socket | None = None,
        *,
        server: ControlServer | None = None,
        silence_s: float = 15.0,
    ) -> None:
        self.rank = rank
        self.failure: RankError | None = None
        self.failed = threading.Event()
        self._sock = connection
        self._server = server
        self._silence_s = silence_s
        self._hub_pid, self._hub_host = 0, ""
        self._over = threading.Event()
        self._ops, self._phase = 0, ""
        # By thread: batches are made in one of their own, beside the one that trains.
        self._waiting: dict[int, str] = {}
        self._aside: set[int] = set()
        self._needs_aside = False
        self._callbacks: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._closed = False
        if connection is not None:
            self._thread = threading.Thread(target=self._run, name="gnn-dist-control", daemon=True)
            self._thread.start()

    @classmethod
    def connect(
        cls,
        rank: int,
        address: tuple[str, int],
        *,
        token: str,
        server: ControlServer | None = None,
        silence_s: float = 15.0,
        timeout_s: float = 60.0,
    ) -> "Control":
        """Join the control channel of a world.

        Args:
            rank: This rank.
            address: Host and port of the hub.
            token: The secret from the rendezvous.
            server: The hub, if it runs in this process.
            silence_s: Seconds without a sign of life after which a rank counts as gone.
            timeout_s: How long to try.

        Raises:
            CommError: Nobody answers there.
        """
        try:
            sock = socket.create_connection(address, timeout=timeout_s)
            keep_alive(sock, silence_s)
            hello: Message = {"kind": "hello", "rank": rank, "token": token}
            sock.sendall(encode({**hello, "pid": os.getpid(), "host": host_identity()}))
        except OSError as error:
            raise CommError(
                f"rank {rank} cannot reach the control channel of rank 0 at "
                f"{address[0]}:{address[1]} ({error}): check that TCP connections between the "
                "hosts are allowed, or set MASTER_ADDR to an address of rank 0 that all reach"
            ) from error
        sock.setblocking(True)
        return cls(rank, sock, server=server, silence_s=silence_s)

    def progress(self, phase: str) -> None:
        """Say what this rank is busy with, for the message that names it if it is late."""
        self._phase = phase

    def check(self) -> None:
        """Raise the failure, if there is one.

        Raises:
            RankError: A rank has failed.
        """
        if self.failure is not None:
            # A new object each time: a raised one carries the traceback of its first place.
            raise RankError(str(self.failure), self.failure.rank)

    @contextmanager
    def waiting(self, doing: str) -> Iterator[None]:
        """Mark this rank as blocked in an operation, as against busy by itself."""
        self._ops += 1
        thread = threading.get_ident()
        outer = self._waiting.get(thread)
        self._waiting[thread] = doing
        try:
            yield
        finally:
            if outer is None:
                del self._waiting[thread]
            else:
                self._waiting[thread] = outer

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Mark this thread as one that works ahead: its waiting does not hold up the rank."""
        thread = threading.get_ident()
        self._aside.add(thread)
        try:
            yield
        finally:
            self._aside.discard(thread)

    @contextmanager
    def needing_aside(self) -> Iterator[None]:
        """Mark this rank as waiting for its own thread that works ahead, and for what that does."""
        before, self._needs_aside = self._needs_aside, True
        try:
            yield
        finally:
            self._needs_aside = before

    @property
    def _blocked_in(self) -> str | None:
        """The operation of other ranks that holds up this one; None while it is busy itself."""
        waiting = dict(self._waiting)
        aside = [waiting.pop(thread) for thread in list(self._aside) if thread in waiting]
        held_up = [*waiting.values(), *(aside if self._needs_aside else ())]
        return held_up[0] if held_up else None

    def on_failure(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Register what wakes a blocked operation; return a function that takes it back.

        The callback runs once, in the control thread, after `failure` is set.
        """
        self._callbacks.append(callback)

        def remove() -> None:
            with contextlib.suppress(ValueError):
                self._callbacks.remove(callback)

        return remove

    def abort(self, error: BaseException | str) -> None:
        """Tell all ranks that this one fails; return when they have been told.

        Nothing happens if there is a failure already: the first cause wins.
        """
        if self.failure is not None or self._closed:
            return
        if isinstance(error, BaseException):
            kind = "" if isinstance(error, GnnDistError) else f"{type(error).__name__}: "
            error = f"{kind}{error}"
        if self._sock is None or not self._send({"kind": "abort", "message": error}):
            self._fail(self.rank, f"rank {self.rank} failed: {error}")
        # The hub answers the reporter last, so then all others know.
        self.failed.wait(timeout=1.0)

    def explain(
        self, cause: Exception | str, doing: str, *, peers: Sequence[int], waited_s: float | None
    ) -> CommError:
        """Find out which rank is at fault for a failed operation.

        Args:
            cause: What the transport said.
            doing: The operation, as in "exchange on channel 3".
            peers: World ranks that it waited for.
            waited_s: How long it waited, if it gave up; None if it failed at once.

        Returns:
            The error to raise: the world's failure if there is one, found by waiting for the
            verdict of the control channel and then by asking the hub.
        """
        if self._sock is not None and waited_s is None:
            self.failed.wait(VERDICT_S)
        if self._sock is not None and not self.failed.is_set():
            reason = "lost a connection" if waited_s is None else f"waited {waited_s:.1f} s"
            question = {"doing": doing, "peers": list(peers), "reason": reason}
            if self._send({"kind": "blame", **question}):
                self.failed.wait(ANSWER_S)
        if self.failure is not None:
            return RankError(str(self.failure), self.failure.rank)
        return CommError(f"rank {self.rank} failed in {doing}: {cause}")

    def close(self) -> None:
        """Say goodbye and end. Rank 0 first waits a little for the others; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._sock is None:
            return
        if self._send({"kind": "bye"}):
            if self.failure is not None:
                self._over.wait(LINGER_FAILED_S)
            elif self._server is not None:
                self._over.wait(LINGER_CLEAN_S)
        if self._server is not None:
            self._server.stop()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=2.0)
        self._sock.close()

    def _send(self, message: Message) -> bool:
        """Send a message to the hub; return whether that was possible."""
        if self._sock is None:
            return False
        try:
            with self._lock:
                self._sock.sendall(encode(message))
        except OSError:
            return False
        return True

    def _run(self) -> None:
        """Beat, and hear the hub, until the connection ends."""
        sock = self._sock
        if sock is None:
            return
        buffer = bytearray()
        last = heard = time.monotonic()
        beat = 0.0
        while True:
            now = time.monotonic()
            heard = now if now - last > 2 * BEAT_S else heard  # this process itself stood still
            last = now
            if now - beat >= BEAT_S:
                beat = now
                self._beat()
            try:
                if not select.select([sock], [], [], max(0.0, beat + BEAT_S - now))[0]:
                    self._watch_hub(time.monotonic() - heard)
                    continue
                data = sock.recv(MAX_LINE)
                buffer += data
                messages = split(buffer)
            except (OSError, ValueError):
                data, messages = b"", []
            heard = time.monotonic()
            if any([self._hear(message) for message in messages]):
                return
            if not data:
                self._over.set()
                if not self._closed:
                    self._fail(0, f"{self._hub_name} ended without notice (killed or crashed)")
                return

    def _beat(self) -> None:
        state: Message = {"ops": self._ops, "phase": self._phase, "waiting": self._blocked_in}
        self._send({"kind": "beat", **state})

    def _hear(self, message: Message) -> bool:
        """Act on a message of the hub; return whether it was the last one."""
        kind = message.get("kind")
        if kind == "welcome":
            self._hub_pid, self._hub_host = message["pid"], message["host"]
        elif kind == "poll":
            self._beat()
        elif kind == "failure":
            self._fail(int(message["rank"]), str(message["message"]))
        elif kind == "over":
            self._over.set()
        return kind == "bye"

    @property
    def _hub_name(self) -> str:
        host = self._hub_host.partition("|")[0]
        return f"rank 0 (pid {self._hub_pid} on host {host})" if host else "rank 0"

    def _watch_hub(self, age_s: float) -> None:
        same = self._hub_host == host_identity()
        if is_silent(age_s, self._silence_s, self._hub_pid, same_host=same):
            text = f"{self._hub_name} did not answer for {age_s:.0f} s (stopped, or machine lost)"
            self._fail(0, text)
            # Should the hub live again, it must not blame those who have left meanwhile.
            self._send({"kind": "failure", "rank": 0, "message": text})
            self._over.set()

    def _fail(self, rank: int, text: str) -> None:
        if self.failure is not None:
            return
        self.failure = RankError(text, rank)
        self.failed.set()
        for callback in list(self._callbacks):
            try:
                callback()
            except Exception:
                log.exception("waking a blocked operation failed")
