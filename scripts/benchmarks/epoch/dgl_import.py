"""DGL 1.1, which imports a module that newer setuptools no longer has."""

import os
import sys
import types

import packaging.version

os.environ.setdefault("DGLBACKEND", "pytorch")
if "setuptools.extern" not in sys.modules:
    extern = types.ModuleType("setuptools.extern")
    extern.packaging = packaging
    extern.__path__ = []
    sys.modules["setuptools.extern"] = extern
    sys.modules["setuptools.extern.packaging"] = packaging

import dgl

__all__ = ["dgl"]
