"""Install metadata. Tool settings and the build system are in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION_LINE = re.search(
    r'^__version__ = "([^"]+)"', (ROOT / "gnn_dist/__init__.py").read_text(), re.MULTILINE
)
if VERSION_LINE is None:
    raise RuntimeError("gnn_dist/__init__.py has no __version__ line")

MPI4PY = "mpi4py>=4.1,<5"
EXTRAS = {
    # An MPI library from a wheel, for machines without one. On a cluster use mpi-site.
    "mpi": [MPI4PY, "mpich>=5.0,<6"],
    "mpi-site": [MPI4PY],
    "dgl": ["dgl==1.1.3"],
    "ogb": ["ogb>=1.3.6,<2"],
    "parquet": ["pyarrow>=16"],
    "dev": [
        "hypothesis>=6.100,<7",
        "mypy>=2.4,<2.5",
        "pytest>=9.0,<10",
        "ruff>=0.17,<0.18",
        "types-PyYAML",
        "types-tqdm",
    ],
}

setup(
    name="gnn-dist",
    version=VERSION_LINE.group(1),
    description="Distributed training of graph neural networks on one large graph",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    # gnn_dist/partitioners and gnn_dist/datasets are relative links to the top-level folders.
    packages=find_packages(include=["gnn_dist", "gnn_dist.*"]),
    package_data={"gnn_dist": ["py.typed"]},
    install_requires=[
        "numpy>=1.26,<3",
        "pymetis>=2025.2,<2027",
        "pyyaml>=6,<7",
        "scipy>=1.11,<2",
        "tensorboard>=2.16,<3",
        "torch==2.13.0",
        "torch_geometric>=2.8,<2.9",
        "tqdm>=4.66,<5",
        "tyro>=1.0,<2",
    ],
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["gnn-dist = gnn_dist.cli:main"]},
)
