"""Install metadata. Tool settings and the build system are in pyproject.toml."""

import os
import platform
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from pathlib import Path
from typing import ClassVar

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

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
    # Without packaging it looks for a copy in setuptools, which has none any more.
    "dgl": ["dgl==1.1.3", "packaging>=22"],
    "mtkahypar": ["mtkahypar>=1.5,<2"],
    "ogb": ["ogb>=1.3.6,<2"],
    "parquet": ["pyarrow>=16"],
    "dev": [
        "hypothesis>=6.100,<7",
        "mypy>=2.4,<2.5",
        "pytest>=9.0,<10",
        "pytest-xdist>=3.6,<4",
        "ruff>=0.17,<0.18",
        "scikit-learn>=1.6,<2",
        "torchmetrics>=1.4,<2",
        "types-PyYAML",
        "types-tqdm",
    ],
}

CSRC = Path("gnn_dist/csrc")
# PyTorch's stable ABI: one build serves every PyTorch from this version on, and every Python.
TORCH_TARGET_VERSION = "0x020b000000000000"  # 2.11
COMPILE_ARGS = ["-std=c++17", "-O3", "-g0", "-fno-math-errno", "-fvisibility=hidden"]
COMPILE_ARGS += ["-Wall", "-Wextra"]
# GCC 12 warns of its own intrinsics.
COMPILE_ARGS += ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]
# Outside the hot loops each operation rounds by itself, on every CPU: sampling depends on it.
PLAIN_ARGS = ["-ffp-contract=off"]
# For scripts/sanitize: the first finding ends the process.
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
NO_COMPILER = """gnn-dist's kernels need a C++17 compiler (GCC 11 or newer), and {} was not found.
On Debian and Ubuntu: apt-get install g++. On Fedora: dnf install gcc-c++. On a cluster, load the
GCC module. Another compiler is chosen with the environment variable CXX."""


def instruction_sets() -> dict[str, list[str]]:
    """Return compiler options for each set that the hot loops are compiled for."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return {"baseline": []}
    avx2 = ["-mavx2", "-mfma", "-mf16c"]
    avx512 = [f"-mavx512{part}" for part in ("f", "bw", "dq", "vl")]
    return {
        "baseline": [],
        "avx2": avx2,
        "avx512": [*avx2, *avx512, "-mprefer-vector-width=512"],
    }


def included(path: Path) -> set[Path]:
    """Return a source file and the headers of ours that it includes, directly or not."""
    found, waiting = {path}, [path]
    while waiting:
        current = waiting.pop()
        for name in re.findall(r'^#include "([^"]+)"', current.read_text(), re.MULTILINE):
            header = Path(os.path.normpath(current.parent / name))
            if header not in found:
                found.add(header)
                waiting.append(header)
    return found


class BuildKernels(build_ext):
    """Compiles csrc/*.cpp once and csrc/hot/*.cpp once per instruction set."""

    user_options: ClassVar = [
        *build_ext.user_options,
        ("sanitize", None, "find bad memory accesses and undefined behaviour at run time"),
    ]
    boolean_options: ClassVar = [*build_ext.boolean_options, "sanitize"]

    def initialize_options(self) -> None:
        """Set every option's default."""
        super().initialize_options()
        self.sanitize = False

    def finalize_options(self) -> None:
        """Keep objects in one place, so that a wheel reuses those of an editable install."""
        if self.build_temp is None:
            self.build_temp = str(ROOT / "build" / ("sanitized" if self.sanitize else "kernels"))
        super().finalize_options()

    def get_ext_filename(self, fullname: str) -> str:
        """Name a plain shared library: it is loaded by PyTorch, not imported by Python."""
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        """Compile and link."""
        compiler = self.compiler.compiler_so_cxx[0]
        if shutil.which(compiler) is None:
            # Where CXX is set and empty, the first word is an option.
            name = "the command in CXX" if compiler.startswith("-") else compiler
            raise CompileError(NO_COMPILER.format(name))
        jobs = [(path, "once", PLAIN_ARGS) for path in sorted(CSRC.glob("*.cpp"))]
        for path in sorted((CSRC / "hot").glob("*.cpp")):
            jobs += [(path, name, options) for name, options in instruction_sets().items()]
        with ThreadPoolExecutor(self.parallel or cpu_count()) as pool:
            objects = list(pool.map(lambda job: self._compile(*job), jobs))
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        from torch.utils.cpp_extension import library_paths

        self.compiler.link_shared_object(
            objects,
            str(target),
            libraries=["torch_cpu"],
            library_dirs=library_paths(),
            extra_postargs=SANITIZE if self.sanitize else [],
            target_lang="c++",
        )

    def _compile(self, path: Path, name: str, options: list[str]) -> str:
        from torch.utils.cpp_extension import include_paths

        out = Path(self.build_temp) / name
        made = out / path.with_suffix(".o")
        inputs = [Path(__file__), *included(path)]
        if made.exists() and made.stat().st_mtime > max(p.stat().st_mtime for p in inputs):
            return str(made)
        # Python's own options may allow signed overflow; other builds of Python do not.
        sanitize = [*SANITIZE, "-O1", "-fno-omit-frame-pointer", "-fno-wrapv"]
        macros = [("TORCH_TARGET_VERSION", TORCH_TARGET_VERSION), ("GNN_DIST_ISA", name)]
        (built,) = self.compiler.compile(
            [str(path)],
            output_dir=str(out),
            macros=macros,
            # System headers: what they are warned of is not ours to mend.
            extra_postargs=[
                *COMPILE_ARGS,
                *options,
                *(sanitize if self.sanitize else []),
                *(f"-isystem{p}" for p in include_paths()),
            ],
        )
        return str(built)


class AnyPythonWheel(bdist_wheel):
    """A wheel for every Python 3 of this platform: nothing in it is compiled against Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag."""
        return "py3", "none", super().get_tag()[2]


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
    ext_modules=[Extension("gnn_dist.ops.kernels", sources=[])],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": AnyPythonWheel},
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
