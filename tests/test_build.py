import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("environment", "missing"),
    [
        ({"CXX": "/nonexistent/g++"}, "/nonexistent/g++ was not found"),
        ({"CXX": "/nonexistent/g++ -m64", "CC": "/nonexistent/gcc"}, "/nonexistent/g++ was not"),
        ({"CXX": "/nonexistent/g++", "LDSHARED": "/nonexistent/ld"}, "/nonexistent/g++ was not"),
        ({"CXX": ""}, "the command in CXX was not found"),
        ({"PATH": "/nonexistent"}, "++ was not found"),
    ],
)
def test_without_a_compiler_the_error_says_what_to_install(tmp_path, environment, missing):
    names = ("CC", "CXX", "LDSHARED", "LDCXXSHARED")
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    command = ["setup.py", "-q", "build_ext", "--build-lib", tmp_path, "--build-temp", tmp_path]
    done = subprocess.run(
        [sys.executable, *command],
        env=inherited | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert missing in done.stderr
    assert "need a C++17 compiler" in done.stderr
    assert "apt-get install g++" in done.stderr
    assert list(tmp_path.rglob("*.o")) == []
