#!/usr/bin/env bash
# bench-venv.sh: a virtual environment with today's PyTorch and DeepSpeed, in build/bench-venv, for
# `make bench`. Several GB from PyPI. What cannot be had is said, and the bench goes on without it.
set -eu
cd "$(dirname "$0")/.." || exit 1
venv=build/bench-venv
python=$venv/bin/python

fail() {
    echo "bench-venv: $*" >&2
    exit 1
}

if [ ! -x "$python" ]; then
    mkdir -p build
    python3 -m venv "$venv" || fail "cannot make $venv; on Debian: apt-get install python3-venv"
fi
have() { "$python" -c "import importlib.util, sys; sys.exit(not importlib.util.find_spec('$1'))"; }
if ! have torch; then
    "$python" -m pip install --quiet torch numpy setuptools wheel ninja || fail "no PyTorch for $(uname -m)"
fi
# Its C++ parts are built when first used, if at all: the CPU needs none but Adam's.
if ! have deepspeed; then
    DS_BUILD_OPS=0 "$python" -m pip install --quiet --no-build-isolation deepspeed ||
        echo "bench-venv: no DeepSpeed: its rows will be missing" >&2
fi
"$python" - <<'EOF'
from importlib.metadata import PackageNotFoundError, version
for name in ("torch", "deepspeed"):
    try:
        print(f"bench-venv: {name} {version(name)}")
    except PackageNotFoundError:
        print(f"bench-venv: no {name}")
EOF
