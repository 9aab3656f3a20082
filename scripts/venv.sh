# Sourced by scripts/quickstart and scripts/test: makes .venv if there is none, installs into it.
#
#   ensure_venv EXTRAS     EXTRAS as pip writes them, "[dev,mpi]" or ""
#
# What is installed already is not installed again: a stamp holds the extras and a hash of what
# setup.py builds. PyTorch is installed before the package and serves its build too, so that it is
# not fetched a second time for an isolated one.

find_python() {
    local candidate
    for candidate in python3.11 python3.12 python3.13 python3; do
        if command -v "$candidate" >/dev/null &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            echo "$candidate"
            return
        fi
    done
    echo "gnn-dist needs Python 3.11 or newer, and none is on PATH" >&2
    return 1
}

build_requirements() {
    .venv/bin/python -c 'import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])'
}

ensure_venv() {
    local extras=$1 python stamp
    if [ ! -x .venv/bin/python ]; then
        python=$(find_python)
        "$python" -m venv .venv || {
            echo "cannot make .venv: on Debian and Ubuntu, apt-get install python3-venv" >&2
            return 1
        }
    fi
    stamp=".venv/installed$extras-$(
        find setup.py pyproject.toml gnn_dist/csrc -type f | sort | xargs sha256sum | sha256sum | cut -c1-16
    )"
    if [ ! -e "$stamp" ]; then
        echo "installing gnn-dist$extras into .venv (log: .venv/install.log)" >&2
        .venv/bin/python -m pip install --upgrade pip >.venv/install.log 2>&1 &&
            .venv/bin/python -m pip install $(build_requirements) >>.venv/install.log 2>&1 &&
            .venv/bin/python -m pip install --no-build-isolation -e ".$extras" \
                >>.venv/install.log 2>&1 || {
            tail -n 20 .venv/install.log >&2
            return 1
        }
        touch "$stamp"
    fi
}
