#!/usr/bin/env bash
# install-deps.sh [--test]: install what is missing to build zerotrain (and, with --test, to run its
# test suite) on Debian or Ubuntu. Does nothing, and needs no rights, when all of it is there.
set -eu

# A|B: A, or B where the release has no A (or B is there already). LLVM 14 because formatting and
# analysis differ between its versions.
packages=(gcc make libc6-dev libdnnl-dev libyaml-dev libjansson-dev libxxhash-dev libssl-dev libssh2-1-dev
    liburing-dev)
if [ "${1:-}" = --test ]; then
    packages+=("clang-14|clang" "clang-format-14|clang-format" "clang-tidy-14|clang-tidy"
        git iproute2 mandoc openmpi-bin openssh-client openssh-server procps python3 python3-venv shellcheck)
fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "install-deps.sh knows Debian and Ubuntu only. Install with your package manager: a C11" \
        "compiler, make, oneDNN 2 or 3, libyaml, jansson, xxHash, OpenSSL 3 (libssl and libcrypto), libssh2, liburing if you like;" \
        "then run make." >&2
    exit 1
fi

installed() { dpkg-query -W -f '${Status}\n' "$1" 2>/dev/null | grep -q 'ok installed'; }

missing=()
for p in "${packages[@]}"; do
    installed "${p%|*}" || installed "${p#*|}" || missing+=("$p")
done
[ ${#missing[@]} -gt 0 ] || exit 0

echo "Installing: ${missing[*]}"
as_root=()
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || {
        echo "Not root and no sudo. Ask an administrator to run: apt-get install ${missing[*]%|*}" >&2
        exit 1
    }
    as_root=(sudo)
fi
"${as_root[@]}" apt-get -q update >/dev/null

chosen=()
for p in "${missing[@]}"; do
    if apt-cache show "${p%|*}" >/dev/null 2>&1; then
        chosen+=("${p%|*}")
    else
        chosen+=("${p#*|}")
    fi
done
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -q install -y --no-install-recommends "${chosen[@]}" >/dev/null
