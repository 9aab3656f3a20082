"""Building the package graph's arrays from the package index that `apt-get update` leaves."""

import hashlib
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.errors import DatasetError

__all__ = ["build_arrays", "index_files", "parse_packages", "read_packages"]

Array = NDArray[Any]
Package = dict[str, str]

RELATIONS = ("Depends", "Pre-Depends", "Recommends", "Suggests", "Enhances")  # by edge type
KEPT_FIELDS = frozenset(("Package", "Source", "Section", "Description", "Provides", *RELATIONS))
DISTRIBUTIONS = ("Debian", "Ubuntu")  # other repositories differ from machine to machine
APT_HELPER = "/usr/lib/apt/apt-helper"
TIMEOUT_S = 120

NUM_WORDS = 1024
MIN_CLASS_SIZE = 100  # packages; a section with fewer has no label
MAX_PROVIDERS = 8  # edges for one dependency on a virtual package
TRAIN_PERCENT, VAL_PERCENT = 50, 20

PACKAGE_NAME = re.compile(r"\s*([a-z0-9][a-z0-9+.\-]+)")
WORD = re.compile(r"[a-z][a-z0-9+#]+")
STOP_WORDS = frozenset(
    (
        *("a", "an", "and", "as", "at", "be", "by", "dummy", "for", "from", "in", "into", "is"),
        *("it", "its", "of", "on", "or", "package", "that", "the", "this", "to", "transitional"),
        *("use", "using", "via", "with"),
    )
)


def index_files() -> list[Path]:
    """Return the package index files of the distribution, ascending; none without apt."""
    apt = shutil.which("apt-get")
    if apt is None or not Path(APT_HELPER).exists():
        return []
    listing = _run(
        [apt, "indextargets", "--format", "$(ORIGIN)\t$(FILENAME)", "Created-By: Packages"]
    )
    entries = (line.split("\t") for line in listing.splitlines() if "\t" in line)
    found = {Path(file) for origin, file in entries if origin in DISTRIBUTIONS}
    return sorted(file for file in found if file.is_file())


def read_packages(files: Iterable[Path]) -> dict[str, Package]:
    """Read the packages of index files; a later file (updates, security) replaces entries.

    Raises:
        DatasetError: apt cannot read a file.
    """
    packages: dict[str, Package] = {}
    for file in files:
        packages.update(parse_packages(_run([APT_HELPER, "cat-file", str(file)])))
    return packages


def parse_packages(text: str) -> dict[str, Package]:
    """Return the wanted fields of each stanza of a package index, by package name."""
    packages = {}
    for stanza in text.split("\n\n"):
        package = {}
        for line in stanza.split("\n"):
            key, colon, value = line.partition(":")  # a continuation line starts with a space
            if colon and key in KEPT_FIELDS:
                package[key] = value.strip()
        if "Package" in package:
            packages[package["Package"]] = package
    return packages


def build_arrays(packages: Mapping[str, Package]) -> dict[str, Array]:
    """Return the arrays of `debian.npz`.

    Returns:
        `edge_index` int32 (2, E), row 0 needs row 1, by (row 0, row 1); `edge_type` int8 (E,);
        `y` int64 (N,), -1 where the section is rare; `split` int8 (N,), 0 train, 1 val, 2 test,
        -1 without a label; `x_indptr`, `x_indices`, `x_shape`, all values one; and the `names` of
        nodes, `classes` and `words`.
    """
    names = sorted(packages)
    edge_index, edge_type = _edges(names, packages)
    y, classes = _labels(names, packages)
    features, words = _features(names, packages)
    split = np.array([_split(packages[name]) for name in names], np.int8)
    split[y < 0] = -1
    return {
        "edge_index": edge_index,
        "edge_type": edge_type,
        "y": y,
        "split": split,
        **features,
        "names": np.array(names),
        "classes": np.array(classes),
        "words": np.array(words),
    }


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise DatasetError(
            f"apt could not read its package index ({error}): run `apt-get update`"
        ) from error
    return done.stdout.decode(errors="replace")


def _related(field: str) -> Iterator[str]:
    """Yield the names in a relation field, all alternatives, without versions."""
    for item in re.split(r"[,|]", field):
        match = PACKAGE_NAME.match(item)
        if match:
            yield match.group(1)


def _edges(names: list[str], packages: Mapping[str, Package]) -> tuple[Array, Array]:
    """Return each pair once, with the first relation that names it."""
    node = {name: i for i, name in enumerate(names)}
    providers: dict[str, list[int]] = defaultdict(list)
    for name in names:
        for virtual in _related(packages[name].get("Provides", "")):
            providers[virtual].append(node[name])
    types: dict[tuple[int, int], int] = {}
    for edge_type, relation in enumerate(RELATIONS):
        for source, name in enumerate(names):
            for wanted in _related(packages[name].get(relation, "")):
                real = node.get(wanted)
                targets = providers[wanted][:MAX_PROVIDERS] if real is None else [real]
                for target in targets:
                    if target != source:
                        types.setdefault((source, target), edge_type)
    pairs = sorted(types)
    edge_index = np.array(pairs, np.int32).reshape(-1, 2).T
    return edge_index, np.array([types[pair] for pair in pairs], np.int8)


def _labels(names: list[str], packages: Mapping[str, Package]) -> tuple[Array, list[str]]:
    # A section outside `main` is written `contrib/net`.
    sections = [packages[name].get("Section", "misc").split("/")[-1] for name in names]
    sizes = Counter(sections)
    classes = sorted(section for section, size in sizes.items() if size >= MIN_CLASS_SIZE)
    number = {section: i for i, section in enumerate(classes)}
    return np.array([number.get(section, -1) for section in sections], np.int64), classes


def _features(
    names: list[str], packages: Mapping[str, Package]
) -> tuple[dict[str, Array], list[str]]:
    """Return which of the commonest words each description holds, ties broken by the alphabet."""
    described = [
        set(WORD.findall(packages[name].get("Description", "").lower())) - STOP_WORDS
        for name in names
    ]
    counts = Counter(word for words in described for word in words)
    words: list[str] = sorted(counts, key=lambda word: (-counts[word], word))[:NUM_WORDS]
    column = {word: i for i, word in enumerate(words)}
    rows = [sorted(column[word] for word in found if word in column) for found in described]
    indptr = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row) for row in rows], out=indptr[1:])
    arrays: dict[str, Array] = {
        "x_indptr": indptr,
        "x_indices": np.array([c for row in rows for c in row], np.int32),
        "x_shape": np.array([len(names), NUM_WORDS], np.int64),
    }
    return arrays, words


def _split(package: Package) -> int:
    """Return 0, 1 or 2 by source package, so that sisters, described alike, stay together."""
    source = package.get("Source", package["Package"]).split()[0]  # "name (version)"
    percent = int(hashlib.sha256(source.encode()).hexdigest()[:8], 16) % 100
    return int(percent >= TRAIN_PERCENT) + int(percent >= TRAIN_PERCENT + VAL_PERCENT)
