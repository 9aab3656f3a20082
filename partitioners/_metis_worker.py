"""The child process that calls METIS: `python _metis_worker.py FOLDER PARENT_PID`.

It is run as a file, so that it imports NumPy and pymetis alone and is up in 0.15 s. Whatever METIS
does to its process (it may end it, print, trap signals or run out of stack) happens here.

Reads `problem.json` and, as raw int64, `indptr indices node_weight` and `edge_weight` if there is
one (each `<name>.int64`); writes `parts.npy` (int32) and `cut.json`.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any


def main(folder: Path, parent: int) -> None:
    """Partition the graph in a folder."""
    end_with(parent)
    set_limits()
    import numpy as np
    import pymetis

    def load(name: str) -> Any:  # noqa: ANN401 - an array, or None
        path = folder / f"{name}.int64"
        if not path.exists():
            return None
        values = np.memmap(path, np.int64, mode="r")
        index = pymetis.zero_copy_dtype()  # int32 in some builds of METIS
        if index.itemsize < 8 and len(values) and values.max() > np.iinfo(index).max:
            raise OverflowError(f"{name} needs 64-bit integers, this pymetis is built with {index}")
        return values.astype(index, copy=False)

    problem = json.loads((folder / "problem.json").read_text())
    options = pymetis.Options(**problem["options"])
    result = pymetis.part_graph(
        problem["num_parts"],
        pymetis.CSRAdjacency(load("indptr"), load("indices")),
        vweights=load("node_weight"),
        eweights=load("edge_weight"),
        recursive=problem["recursive"],
        options=options,
    )
    np.save(folder / "parts.npy", np.asarray(result.vertex_part, dtype=np.int32))
    (folder / "cut.json").write_text(json.dumps(int(result.edge_cuts)))


def end_with(parent: int) -> None:
    """Arrange for this process to be killed when its parent ends, where the system can."""
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        sys.exit("the parent process has ended")


def set_limits() -> None:
    """Allow as large a stack as the system does, and write no core file after a crash."""
    try:
        import resource
    except ImportError:  # not a Unix system
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
