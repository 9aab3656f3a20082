"""Hosts on one machine: network namespaces, joined by links of a given bandwidth.

     host 0            switch           host 1
    +--------+       +--------+       +--------+
    |  eth0 =|==tbf==|= p0 p1=|==tbf==|= eth0  |        10.79.0.1, 10.79.0.2, ...
    +--------+       +--------+       +--------+

Every link is a pair of virtual devices, each of whose ends passes no more than the bandwidth, so
that a host can send and receive at full rate at the same time, as on a switched network. Nothing
outside the namespaces is touched, and they are removed on every way out.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

__all__ = ["DEVICE", "Hosts", "why_not"]

PREFIX = "gnn-dist-net"
DEVICE = "eth0"
NETNS = Path("/run/netns")


def why_not() -> str:
    """Return why there can be no hosts on this machine; "" if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc", "nsenter") if shutil.which(tool) is None]
    return f"{', '.join(missing)} not found (Debian: iproute2, util-linux)" if missing else ""


@dataclass(frozen=True)
class Hosts:
    """Namespaces of some hosts and their switch.

    Attributes:
        name: What their names begin with.
        num: How many hosts.
    """

    name: str
    num: int

    @classmethod
    @contextmanager
    def made(cls, num: int, rate: str | None) -> Iterator["Hosts"]:
        """Make hosts for the time of a `with`; they go on errors, Ctrl-C and SIGTERM too.

        Args:
            num: How many.
            rate: Bandwidth of each link as tc writes it (`1gbit`), or None for no limit.
        """
        _remove_left_over()
        hosts = cls(f"{PREFIX}-{os.getpid()}", num)
        before = signal.signal(signal.SIGTERM, _interrupt)
        try:
            hosts._make()
            hosts.limit(rate)
            yield hosts
        finally:
            signal.signal(signal.SIGTERM, before)
            _remove(f"{hosts.name}-")

    def address(self, host: int) -> str:
        """Return a host's address."""
        return f"10.79.0.{host + 1}"

    def enter(self, host: int | str) -> list[str]:
        """Return the words before a command that runs it on a host."""
        return ["nsenter", f"--net={NETNS / self.namespace(host)}"]

    def namespace(self, host: int | str) -> str:
        """Return the name of a host's namespace, or of the switch's."""
        return f"{self.name}-{host}"

    def limit(self, rate: str | None) -> None:
        """Let each link pass so much and no more, in each direction."""
        ends = [(self.namespace(i), DEVICE) for i in range(self.num)]
        ends += [(self.namespace("switch"), f"p{i}") for i in range(self.num)]
        for space, device in ends:
            qdisc = ["tc", "-n", space, "qdisc"]
            with suppress(subprocess.CalledProcessError):
                _run(*qdisc, "del", "dev", device, "root")
            if rate is not None:
                shape = ("tbf", "rate", rate, "burst", "256kb", "latency", "20ms")
                _run(*qdisc, "add", "dev", device, "root", *shape)

    def sent_bytes(self, host: int) -> int:
        """Return how many bytes a host has sent so far."""
        path = f"/sys/class/net/{DEVICE}/statistics/tx_bytes"
        # /sys shows the namespace in which it was mounted.
        return int(_run("ip", "netns", "exec", self.namespace(host), "cat", path))

    def _make(self) -> None:
        switch = self.namespace("switch")
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "br0", "up")
        for i in range(self.num):
            host, port = self.namespace(i), f"p{i}"
            _run("ip", "netns", "add", host)
            pair = (*("type", "veth", "peer", "name", port), *("netns", switch))
            _run("ip", "link", "add", DEVICE, "netns", host, *pair)
            _run("ip", "-n", switch, "link", "set", port, "master", "br0", "up")
            _run("ip", "-n", host, "addr", "add", f"{self.address(i)}/24", "dev", DEVICE)
            for device in ("lo", DEVICE):
                _run("ip", "-n", host, "link", "set", device, "up")


def _run(*words: str) -> str:
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return done.stdout


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _remove(beginning: str) -> None:
    """Remove namespaces and, with them, their devices."""
    for path in NETNS.glob(f"{beginning}*") if NETNS.exists() else ():
        with suppress(subprocess.CalledProcessError):
            _run("ip", "netns", "del", path.name)


def _remove_left_over() -> None:
    """Remove namespaces of runs that were killed: those named after a process that is no more."""
    for path in NETNS.glob(f"{PREFIX}-*") if NETNS.exists() else ():
        owner = path.name.removeprefix(f"{PREFIX}-").partition("-")[0]
        if not Path(f"/proc/{owner}").exists():
            _remove(path.name)
