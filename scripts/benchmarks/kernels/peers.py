"""The libraries that kernels are compared with. Each is optional."""

import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Peers:
    """Modules of the libraries that are installed; None for the others.

    Attributes:
        torch: Compare with what PyTorch itself has.
        dgl: Deep Graph Library.
        pyg: PyTorch Geometric.
        pyg_samples: PyTorch Geometric has torch-sparse or pyg-lib, without which it cannot sample.
    """

    torch: bool = False
    dgl: ModuleType | None = None
    pyg: ModuleType | None = None
    pyg_samples: bool = False

    def describe(self) -> str:
        """Name the versions, and what is absent."""
        dgl = f"DGL {self.dgl.__version__}" if self.dgl else "no DGL"
        pyg = f"PyTorch Geometric {self.pyg.__version__}" if self.pyg else "no PyTorch Geometric"
        absent = " (without torch-sparse: no sampling)" if self.pyg and not self.pyg_samples else ""
        return f"{dgl}, {pyg}{absent}"


PEERS = ("torch", "dgl", "pyg")


def load_peers(wanted: Sequence[str] = PEERS) -> Peers:
    """Import those of the wanted peers that are there."""
    dgl = pyg = None
    pyg_samples = False
    if "dgl" in wanted and importlib.util.find_spec("dgl") is not None:
        _lend_packaging()
        os.environ.setdefault("DGLBACKEND", "pytorch")
        import dgl
    if "pyg" in wanted and importlib.util.find_spec("torch_geometric") is not None:
        import torch_geometric as pyg
        from torch_geometric import typing

        pyg_samples = typing.WITH_TORCH_SPARSE or typing.WITH_PYG_LIB
    return Peers("torch" in wanted, dgl, pyg, pyg_samples)


def _lend_packaging() -> None:
    """DGL 1.1 imports a module that newer setuptools no longer has: put its successor there."""
    # What was lent before has no spec, for which find_spec would raise.
    lent = "setuptools.extern" in sys.modules
    if lent or importlib.util.find_spec("setuptools.extern") is not None:
        return
    import packaging.version

    extern = ModuleType("setuptools.extern")
    extern.__path__ = []
    extern.packaging = packaging
    sys.modules["setuptools.extern"] = extern
    sys.modules["setuptools.extern.packaging"] = packaging
