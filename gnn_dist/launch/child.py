"""Become a rank that dies with its launcher. Run as a script, it needs nothing but Python itself.

    python -I -S child.py LAUNCHER_PID SIGNAL COMMAND...

The kernel keeps the wish to die with the parent over the exec of COMMAND, so that any command can
be a rank and nothing has to run between fork and exec in the launcher.
"""

import ctypes
import os
import signal
import sys

__all__ = ["die_with_parent"]

PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int, with_signal: int = signal.SIGKILL) -> None:
    """Ask the kernel to signal this process when its parent ends, however that ends.

    Only Linux can do that; elsewhere this does nothing.

    Args:
        parent_pid: The parent. If it has ended already, this process exits here.
        with_signal: The signal.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(with_signal), 0, 0, 0)
    # The parent may have ended before the wish was known; then nobody will signal.
    if os.getppid() != parent_pid:
        sys.exit(1)


def main(arguments: list[str]) -> None:
    """Replace this process by the command, which will die with the launcher."""
    parent_pid, with_signal, *command = arguments
    die_with_parent(int(parent_pid), int(with_signal))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
