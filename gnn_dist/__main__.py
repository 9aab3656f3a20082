"""`python -m gnn_dist` is the command `gnn-dist`."""

import sys

from gnn_dist.cli import main

if __name__ == "__main__":
    sys.exit(main())
