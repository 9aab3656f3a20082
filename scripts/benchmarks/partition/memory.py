"""Memory of a process and all below it, looked at again and again."""

import threading
from pathlib import Path

ANONYMOUS_AND_SHARED = ("RssAnon", "RssShmem")
RESIDENT = ("VmRSS",)


def children(pid: int) -> list[int]:
    """Return a process and all below it."""
    found = [pid]
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += children(int(child))
    except OSError:
        pass
    return found


def memory_of(pid: int, fields: tuple[str, ...]) -> int:
    """Return the bytes of some kinds of memory of one process, 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.split(":")[0] in fields)


class Watch(threading.Thread):
    """Keeps the most memory that a process and its children had at one time, in `peak` bytes."""

    def __init__(self, pid: int, fields: tuple[str, ...], interval_s: float) -> None:
        super().__init__(daemon=True)
        self.pid, self.fields, self.interval_s = pid, fields, interval_s
        self.ended = threading.Event()
        self.peak = self.look()

    def look(self) -> int:
        """Return the bytes of now."""
        return sum(memory_of(pid, self.fields) for pid in children(self.pid))

    def run(self) -> None:
        """Look until told to stop."""
        while not self.ended.wait(self.interval_s):
            self.peak = max(self.peak, self.look())

    def stop(self) -> None:
        """Look a last time and end."""
        self.ended.set()
        self.join()
        self.peak = max(self.peak, self.look())
