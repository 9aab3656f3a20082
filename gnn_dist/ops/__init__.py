"""Local operators on sparse structures and rows. Nothing here communicates.

Importing any of it registers all operators, compiled ones and what stands in for them elsewhere.
"""

from gnn_dist.ops import reference

__all__ = ["reference"]
