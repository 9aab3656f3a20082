"""Times every kernel against its peers, side by side, and prints a Markdown table.

    python scripts/benchmarks/kernels/main.py                    everything; see README.md
    python scripts/benchmarks/kernels/main.py --only spmm
    python scripts/benchmarks/kernels/main.py --quick --peers

Peers that are not installed are left out.
"""

import argparse
import gc
import sys
import tempfile
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

import attention
import rows
import sampling
import spmm
from harness import HEADER, Setup, measure, measure_machine, table_rows
from peers import PEERS, load_peers

# Name to the function that makes its cases.
SUITES = {
    "spmm": spmm.cases,
    "attention": attention.cases,
    "rows": rows.cases,
    "sampling": sampling.cases,
}


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument("--case", default="", help="only cases whose name holds this")
    parser.add_argument("--scale", type=int, default=19, help="2^scale nodes, 16 edges each")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--reps", type=int, default=7, help="repetitions, in turns")
    parser.add_argument("--quick", action="store_true", help="scale 14, 2 repetitions")
    parser.add_argument(
        "--peers", nargs="*", choices=PEERS, default=PEERS, help="none: our own kernels alone"
    )
    cache = Path(tempfile.gettempdir()) / "gnn-dist-benchmarks"
    parser.add_argument("--cache", type=Path, default=cache, help="folder for graphs")
    return parser.parse_args()


def main() -> None:
    """Run the benchmark."""
    args = parse()
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore")  # of the peers
    peers = load_peers(args.peers)
    scale, reps = (14, 2) if args.quick else (args.scale, args.reps)
    setup = Setup(peers, scale, args.cache, args.quick)
    machine = measure_machine(args.quick)
    print(f"torch {torch.__version__}, {peers.describe()}; {args.threads} threads")
    print(f"{machine.describe()}; medians of {reps} repetitions in turns; RMAT scale {scale}\n")
    print(HEADER)
    for name in args.only:
        for case in SUITES[name](setup):
            if args.case in case.name:
                for line in table_rows(case, measure(case, reps), machine):
                    print(line, flush=True)
            del case
            gc.collect()


if __name__ == "__main__":
    main()
