"""The child process that calls METIS or Mt-KaHyPar: `python _worker.py FOLDER PARENT_PID`.

It is run as a file, so that it imports NumPy and the tool alone and is up in 0.15 s. Whatever the
tool does to its process (it may end it, print, trap signals, start threads, run out of stack or of
memory) happens here.

Reads `problem.json`, which names the tool, and vectors of raw int64 (each `<name>.int64`):

    metis       indptr indices node_weight (K numbers a node), and edge_weight if there is one
    mtkahypar   net_ptr pins node_weight (one number a node): net i holds the nodes
                pins[net_ptr[i]:net_ptr[i + 1]]

Writes `parts.npy` (int32) and `result.json`.

pymetis passes one weight a node. The METIS inside it can do more, and its functions are exported
by pymetis's extension module, so they are called there; where they are not, the constraints are
folded into one weight, and the result says so.
"""

import ctypes
import json
import os
import signal
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

METIS_OK = 1
NUM_OPTIONS = 40  # METIS_NOPTIONS, the same in all its versions
STATUS = {-2: "refused its input", -3: "ran out of memory", -4: "failed"}
FOLDED_MEAN = 1000  # weight of a mean node in each constraint


def main(folder: Path, parent: int) -> None:
    """Partition what a folder holds."""
    end_with(parent)
    set_limits()
    import numpy as np

    problem = json.loads((folder / "problem.json").read_text())
    tool = {"metis": run_metis, "mtkahypar": run_mtkahypar}[problem["tool"]]
    parts, result = tool(folder, problem)
    np.save(folder / "parts.npy", np.asarray(parts, dtype=np.int32))
    (folder / "result.json").write_text(json.dumps(result))


def load(folder: Path, name: str) -> Any:  # noqa: ANN401
    """Return a vector, mapped into memory; None if there is no such file."""
    import numpy as np

    path = folder / f"{name}.int64"
    return np.memmap(path, np.int64, mode="r") if path.exists() else None


def run_metis(folder: Path, problem: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the part of each node, the edge cut, and whether constraints were folded."""
    import numpy as np
    import pymetis

    index = np.dtype(pymetis.zero_copy_dtype())  # int32 in some builds of METIS

    def narrow(name: str) -> Any:  # noqa: ANN401
        values = load(folder, name)
        if values is None:
            return None
        if index.itemsize < 8 and len(values) and values.max() > np.iinfo(index).max:
            raise OverflowError(f"{name} needs 64-bit integers, this pymetis is built with {index}")
        return values.astype(index, copy=False)

    graph = narrow("indptr"), narrow("indices"), narrow("edge_weight")
    weights = narrow("node_weight").reshape(-1, problem["num_constraints"])
    kernel = find_kernel(pymetis, problem["recursive"], index)
    if kernel is not None:
        parts, cut = kernel(problem, graph, weights)
        return parts, {"cut": cut, "folded": False}
    parts, cut = fold_and_partition(pymetis, problem, graph, weights)
    return parts, {"cut": cut, "folded": problem["num_constraints"] > 1}


class Kernel:
    """A function of METIS, called with any number of constraints."""

    def __init__(self, function: Any, pymetis: Any, index: Any, real: Any) -> None:  # noqa: ANN401
        self.function, self.pymetis, self.index, self.real = function, pymetis, index, real

    def __call__(self, problem: dict[str, Any], graph: Any, weights: Any) -> tuple[Any, int]:  # noqa: ANN401
        """Return the part of each node, and the cut."""
        import numpy as np

        indptr, indices, edge_weight = graph
        num_nodes, num_constraints = weights.shape
        num_parts = len(problem["targets"])
        options = self._options(problem["options"])
        targets = np.repeat(np.array(problem["targets"], self.real), num_constraints)
        allowed = np.array(problem["imbalance"], self.real) + self.real(1)
        sizes = [np.array([n], self.index) for n in (num_nodes, num_constraints, num_parts, 0)]
        parts = np.zeros(num_nodes, self.index)
        nodes, constraints, count, cut = sizes
        # METIS does not write to its input.
        graph_arrays = (nodes, constraints, indptr, indices, weights, None, edge_weight)
        arrays = (*graph_arrays, count, targets, allowed, options, cut, parts)
        status = self.function(*map(_pointer, arrays))
        if status != METIS_OK:
            sys.exit(f"METIS {STATUS.get(status, f'returned {status}')}")
        return parts, int(cut[0])

    def _options(self, named: dict[str, int]) -> Any:  # noqa: ANN401
        import numpy as np

        options = self.pymetis.Options(**named)  # knows the order that this version of METIS has
        return np.array([options._get(i) for i in range(NUM_OPTIONS)], self.index)


def find_kernel(pymetis: Any, recursive: bool, index: Any) -> Kernel | None:  # noqa: ANN401
    """Return METIS's own function, or None if it cannot be reached or answers nonsense."""
    import numpy as np

    library = ctypes.CDLL(pymetis._internal.__file__)
    name = "METIS_PartGraphRecursive" if recursive else "METIS_PartGraphKway"
    function = getattr(library, name, None)
    if function is None or not hasattr(pymetis.Options, "_get"):
        return None
    # The width of its floating-point numbers is no part of pymetis's interface, so try: a path of
    # 8 nodes must come in runs of 2 and 6. Buffers for the wider type are safe for both.
    path = [[v for v in (u - 1, u + 1) if 0 <= v < 8] for u in range(8)]
    graph = (
        np.cumsum([0, *map(len, path)]).astype(index),
        np.concatenate(path).astype(index),
        None,
    )
    problem = {"targets": [0.25, 0.75], "imbalance": [0.001], "options": {"seed": 1}}
    for real in (np.float32, np.float64):
        kernel = Kernel(function, pymetis, index, real)
        parts, cut = kernel(problem, graph, np.ones((8, 1), index))
        if cut == 1 and np.bincount(parts, minlength=2).tolist() == [2, 6]:
            return kernel
    return None


def fold_and_partition(
    pymetis: Any,  # noqa: ANN401
    problem: dict[str, Any],
    graph: Any,  # noqa: ANN401
    weights: Any,  # noqa: ANN401
) -> tuple[Any, int]:
    """Partition with one weight a node that stands for all constraints, through pymetis itself."""
    import numpy as np

    indptr, indices, edge_weight = graph
    folded = weights[:, 0]
    if weights.shape[1] > 1:
        unit = FOLDED_MEAN * len(weights) / np.maximum(1, weights.sum(axis=0))
        folded = np.maximum(1, np.rint(weights @ unit)).astype(weights.dtype)
    options = pymetis.Options(**problem["options"])
    options.ufactor = max(1, round(1000 * min(problem["imbalance"])))
    result = pymetis.part_graph(
        len(problem["targets"]),
        pymetis.CSRAdjacency(indptr, indices),
        vweights=folded,
        eweights=edge_weight,
        recursive=problem["recursive"],
        tpwgts=problem["targets"],
        options=options,
    )
    return result.vertex_part, int(result.edge_cuts)


def run_mtkahypar(folder: Path, problem: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the part of each node of a hypergraph, and what its nets cost."""
    import mtkahypar
    import numpy as np

    net_ptr = load(folder, "net_ptr").tolist()
    weight = load(folder, "node_weight")
    # The deterministic presets know no seed, but what they return goes by the order of nodes.
    order = np.random.default_rng(problem["seed"]).permutation(len(weight))
    new_id = np.argsort(order)
    pins, weight = new_id[load(folder, "pins")], weight[order].tolist()
    mtkahypar.set_seed(problem["seed"])
    maker = mtkahypar.initialize(problem["threads"], False)
    context = maker.context_from_preset(getattr(mtkahypar.PresetType, problem["preset"]))
    # The limits rule; the imbalance must be given all the same.
    context.set_partitioning_parameters(
        len(problem["limits"]), problem["imbalance"], mtkahypar.Objective.KM1
    )
    context.set_individual_target_block_weights(problem["limits"])
    context.logging = False
    nets = [pins[a:b].tolist() for a, b in pairwise(net_ptr)]
    ones = [1] * len(nets)
    hypergraph = maker.create_hypergraph(context, len(weight), len(nets), nets, weight, ones)
    del nets, ones, weight
    partitioned = hypergraph.partition(context)
    parts = np.asarray(partitioned.get_partition())[new_id]
    return parts, {"cut": int(partitioned.km1()), "folded": False}


def _pointer(array: Any) -> Any:  # noqa: ANN401
    return None if array is None else ctypes.c_void_p(array.ctypes.data)


def end_with(parent: int) -> None:
    """Arrange for this process to be killed when its parent ends, where the system can."""
    if sys.platform == "linux":
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
