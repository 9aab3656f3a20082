"""The hub of the control channel: a thread beside rank 0 that hears every rank.

It decides once who failed and tells all ranks the same. See `control` for the messages.
"""

import contextlib
import json
import logging
import os
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["BEAT_S", "ControlServer", "Message", "encode", "host_identity", "is_silent", "split"]

log = logging.getLogger(__name__)

Message = dict[str, Any]

BEAT_S = 1.0  # seconds between signs of life
TICK_S = 0.25  # how often the server looks at the clock
POLL_S = 1.0  # how long ranks have to answer before one is blamed; their machine may be busy
HELLO_S = 10.0  # how long a connection may stay without introducing itself
MAX_LINE = 1 << 16
# A rank on another host that is silent may only be busy in native code that holds Python's lock,
# which cannot be told from here; it gets this many times the patience.
REMOTE_PATIENCE = 4.0


def encode(message: Message) -> bytes:
    """Return one JSON line; long texts are cut so that a line stays below MAX_LINE."""
    text = {k: v[:8000] if isinstance(v, str) else v for k, v in message.items()}
    return json.dumps(text).encode() + b"\n"


def split(buffer: bytearray) -> list[Message]:
    """Take the complete lines out of a buffer.

    Raises:
        ValueError: A line is no JSON object, or too long.
    """
    *lines, rest = bytes(buffer).split(b"\n")
    if len(rest) > MAX_LINE:
        raise ValueError(f"a control message is longer than {MAX_LINE} bytes")
    buffer[:] = rest
    messages = [json.loads(line) for line in lines]
    if not all(isinstance(message, dict) for message in messages):
        raise ValueError("a control message is no JSON object")
    return messages


def host_identity() -> str:
    """Return a text that two processes share if they see the same /proc and loopback device."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts += [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net")]
    return "|".join(parts)


def is_silent(age_s: float, silence_s: float, pid: int, *, same_host: bool) -> bool:
    """Return whether a process unheard for `age_s` seconds counts as gone.

    On the same host /proc tells a stopped process from a busy one, which is left to the time-out
    of whoever waits for it.
    """
    if age_s <= silence_s:
        return False
    if same_host:
        with contextlib.suppress(OSError, IndexError):
            stat = Path(f"/proc/{pid}/stat").read_text()
            return stat.rpartition(")")[2].split()[0] in "TtZX"
    return age_s > REMOTE_PATIENCE * silence_s


@dataclass(eq=False)
class Peer:
    """What the server knows of one connection; `rank` is -1 until it has introduced itself."""

    sock: socket.socket
    seen: float
    rank: int = -1
    pid: int = 0
    host: str = ""
    ops: int = 0
    phase: str = ""
    waiting: str | None = None
    left: bool = False
    buffer: bytearray = field(default_factory=bytearray)

    @property
    def name(self) -> str:
        """The rank, its pid and host name."""
        return f"rank {self.rank} (pid {self.pid} on host {self.host.partition('|')[0]})"


@dataclass
class Blame:
    """A rank's question who is at fault for its failed wait."""

    rank: int
    doing: str
    peers: tuple[int, ...]
    reason: str
    asked: float
    listened_s: float = 0.0


class ControlServer:
    """Listens for every rank of a world, in a daemon thread, until `stop`.

    Args:
        address: What to bind to; the port is chosen by the system.
        world_size: How many ranks will come.
        token: The secret that a rank must show before it is listened to.
        silence_s: Seconds without a sign of life after which a rank counts as gone.
        join_s: Seconds that a rank may take to come.
    """

    def __init__(
        self,
        address: str,
        *,
        world_size: int,
        token: str,
        silence_s: float = 15.0,
        join_s: float = 60.0,
    ) -> None:
        self._world_size = world_size
        self._token = token
        self._silence_s = silence_s
        self._host = host_identity()
        self._peers: dict[int, Peer] = {}
        self._strangers: set[Peer] = set()
        self._blame: Blame | None = None
        self._failure: Message | None = None
        self._started = time.monotonic()
        self._join_s = join_s
        self._stopping = threading.Event()
        self._listener = socket.create_server((address, 0), backlog=max(128, world_size))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="gnn-dist-hub", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Tell the ranks that are left that the hub ends in order, then end."""
        self._stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        try:
            last = time.monotonic()
            beat = last
            while not self._stopping.is_set():
                for key, _ in self._selector.select(timeout=TICK_S):
                    self._read(key)
                now = time.monotonic()
                if now - last > 2 * BEAT_S:  # this process itself stood still
                    for peer in self._peers.values():
                        peer.seen = now
                if self._blame is not None:
                    # Time in which this process stood still is none that others had to answer.
                    self._blame.listened_s += min(now - last, TICK_S)
                last = now
                if now - beat >= BEAT_S:
                    beat = now
                    self._tell_all({"kind": "beat"})
                self._look_at_clock(now)
            self._tell_all({"kind": "bye"})
        finally:
            self._selector.close()
            self._listener.close()
            for peer in (*self._peers.values(), *self._strangers):
                peer.sock.close()

    def _read(self, key: selectors.SelectorKey) -> None:
        if key.data is None:
            with contextlib.suppress(OSError):
                sock, _ = self._listener.accept()
                sock.setblocking(False)
                keep_alive(sock, self._silence_s)
                peer = Peer(sock, time.monotonic())
                self._strangers.add(peer)
                self._selector.register(sock, selectors.EVENT_READ, peer)
            return
        peer = key.data
        try:
            data = peer.sock.recv(MAX_LINE)
            peer.buffer += data
            messages = split(peer.buffer)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            data, messages = b"", []
        peer.seen = time.monotonic()
        try:
            welcome = all([self._hear(peer, message) for message in messages])
        except (KeyError, TypeError, ValueError) as error:
            log.warning("a message on the control channel makes no sense: %r", error)
            welcome = False
        if not (data and welcome):
            self._drop(peer)

    def _hear(self, peer: Peer, message: Message) -> bool:
        """Act on a message; return False if the connection must be closed."""
        kind = message.get("kind")
        if peer.rank < 0:
            return kind == "hello" and self._welcome(peer, message)
        if kind == "beat":
            peer.ops, peer.phase = int(message["ops"]), str(message["phase"])
            peer.waiting = message["waiting"]
        elif kind == "abort":
            text = f"rank {peer.rank} failed: {message['message']}"
            self._fail(peer.rank, text, last=peer)
        elif kind == "blame" and self._blame is None:
            peers = tuple(int(rank) for rank in message["peers"])
            doing, reason = str(message["doing"]), str(message["reason"])
            self._blame = Blame(peer.rank, doing, peers, reason, time.monotonic())
            self._tell_all({"kind": "poll"})
        elif kind == "failure":
            self._fail(int(message["rank"]), str(message["message"]))
        elif kind == "bye":
            peer.left = True
            self._note_end()
        return True

    def _welcome(self, peer: Peer, message: Message) -> bool:
        rank = message.get("rank")
        known = isinstance(rank, int) and 0 <= rank < self._world_size and rank not in self._peers
        if message.get("token") != self._token or not known:
            log.warning("refused a connection to the control channel that is no rank of this run")
            return False
        peer.rank, peer.pid, peer.host = int(message["rank"]), message["pid"], message["host"]
        self._strangers.discard(peer)
        self._peers[peer.rank] = peer
        self._tell(peer, {"kind": "welcome", "pid": os.getpid(), "host": self._host})
        if self._failure is not None:
            self._tell(peer, self._failure)
        return True

    def _drop(self, peer: Peer) -> None:
        self._strangers.discard(peer)
        if peer.rank >= 0 and not peer.left:
            peer.left = True
            self._fail(peer.rank, f"{peer.name} ended without notice (killed or crashed)")
            self._note_end()
        with contextlib.suppress(KeyError):
            self._selector.unregister(peer.sock)
        peer.sock.close()

    def _note_end(self) -> None:
        if len(self._peers) == self._world_size and all(p.left for p in self._peers.values()):
            self._tell_all({"kind": "over"})
            self._stopping.set()

    def _look_at_clock(self, now: float) -> None:
        for peer in [p for p in self._strangers if now - p.seen > HELLO_S]:
            self._drop(peer)
        if self._failure is not None:
            return
        absent = [r for r in range(self._world_size) if r not in self._peers]
        if absent and now - self._started > self._join_s:
            text = f"rank {absent[0]} did not join the control channel in {self._join_s:.0f} s"
            self._fail(absent[0], text)
            return
        for peer in self._peers.values():
            same = peer.host == self._host
            age = now - peer.seen
            if not peer.left and is_silent(age, self._silence_s, peer.pid, same_host=same):
                text = f"{peer.name} did not answer for {age:.0f} s (stopped, or its machine lost)"
                self._fail(peer.rank, text)
                return
        if self._blame is not None and self._blame.listened_s >= POLL_S:
            rank, text = self._judge(self._blame)
            self._fail(rank, text)

    def _judge(self, blame: Blame) -> tuple[int, str]:
        """Return who is at fault for a failed wait (-1 if nobody more than others), and why."""
        others = [p for r, p in sorted(self._peers.items()) if r != blame.rank]
        others.sort(key=lambda p: p.rank not in blame.peers)  # those waited for come first
        where = f"rank {blame.rank} {blame.reason} in {blame.doing}"
        for peer in others:
            if peer.left and peer.rank in blame.peers:
                return peer.rank, f"{peer.name} has already ended, but {where}"
        for peer in others:
            if not peer.left and peer.seen < blame.asked:
                return peer.rank, f"{peer.name} does not answer, and {where}"
        for peer in others:
            if not peer.left and peer.waiting is None:
                phase = f", it is busy with: {peer.phase}" if peer.phase else ""
                return peer.rank, f"{peer.name} is late{phase}; {where}"
        calls = "; ".join(f"rank {p.rank} in {p.waiting}" for p in others[:8] if p.waiting)
        text = f"all ranks wait, but for different things: {where}"
        return -1, f"{text}; {calls}" if calls else text

    def _fail(self, rank: int, text: str, *, last: Peer | None = None) -> None:
        """Tell all ranks of a failure. The first one wins; the reporter hears it last."""
        if self._failure is not None:
            return
        self._failure = {"kind": "failure", "rank": rank, "message": text}
        peers = sorted(self._peers.values(), key=lambda p: p is last or p.rank == 0)
        for peer in peers:
            self._tell(peer, self._failure)

    def _tell_all(self, message: Message) -> None:
        for peer in self._peers.values():
            self._tell(peer, message)

    def _tell(self, peer: Peer, message: Message) -> None:
        # A rank that cannot take a few bytes is gone or stopped: its silence will tell.
        with contextlib.suppress(OSError):
            peer.sock.send(encode(message))


def keep_alive(sock: socket.socket, silence_s: float) -> None:
    """Let the kernel close a connection whose other machine is lost, and send without delay."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        interval = max(1, int(silence_s // 3))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        timeout_ms = int(silence_s * 1000)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
