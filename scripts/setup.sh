#!/usr/bin/env bash
# Creates .venv in this checkout with tvmtune and the runtimes to compare with.
#
#   scripts/setup.sh [--tests]      --tests: also PyTorch, TFLite, ncnn, the test tools, and the C++
#                                   compilers, the linker, the OpenCL device and the browser that
#                                   some tests use
#
# Safe to run again: it returns at once unless pyproject.toml has changed.
# TVMTUNE_PYTHON names the interpreter to use instead of the first python3 >= 3.10.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
stamp=$venv/.tvmtune-setup

say() { printf 'setup: %s\n' "$*" >&2; }

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

find_python() {
    local name
    for name in ${TVMTUNE_PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python3.10}; do
        if command -v "$name" >/dev/null && new_enough "$name"; then
            command -v "$name"
            return
        fi
    done
    return 1
}

found() {
    local name
    for name in "$@"; do
        if command -v "$name" >/dev/null; then return 0; fi
    done
    return 1
}

# Installs Debian packages; if it cannot, prints how to and fails.
apt_install() {
    local prefix=()
    if ! found apt-get; then
        say "please install these Debian packages or their equivalents: $*"
        return 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        # sudo may ask for a password only on a terminal.
        if ! found sudo || { [ ! -t 0 ] && ! sudo -n true 2>/dev/null; }; then
            say "please run: sudo apt-get install $*"
            return 1
        fi
        prefix=(sudo)
    fi
    say "installing $* (apt-get)"
    "${prefix[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2 || true
    "${prefix[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$@" >&2
}

tests=no
for argument in "$@"; do
    case $argument in
        --tests) tests=yes ;;
        *) say "unknown argument: $argument"; exit 2 ;;
    esac
done

if [ "$tests" = yes ] && ! found g++ clang++ c++; then
    apt_install g++ || say "continuing without it: tests that compile C++ will be skipped"
fi
if [ "$tests" = yes ] && ! found ld.lld; then
    apt_install lld || say "continuing without it: tests that link for other machines will be skipped"
fi
if [ "$tests" = yes ] && [ ! -e /usr/lib/x86_64-linux-gnu/amdgcn/bitcode/ocml.bc ] &&
    [ "$(uname -m)" = x86_64 ]; then
    apt_install rocm-device-libs ||
        say "continuing without it: the test that links ROCm device functions will be skipped"
fi
# Elsewhere than in CI the package would open port 22 of the developer's machine.
if [ "$tests" = yes ] && [ -n "${CI:-}" ] && ! found sshd && [ ! -x /usr/sbin/sshd ]; then
    apt_install openssh-server || say "continuing without it: tests of SSH tunnels will be skipped"
fi
if [ "$tests" = yes ] && [ ! -e /etc/OpenCL/vendors/pocl.icd ]; then
    apt_install pocl-opencl-icd ocl-icd-libopencl1 ||
        say "continuing without them: tests that run OpenCL will be skipped"
fi
if [ "$tests" = yes ] && ! found aarch64-linux-gnu-g++; then
    apt_install g++-aarch64-linux-gnu libc6-dev-arm64-cross ||
        say "continuing without them: the test that builds the OpenCL runtime for ARM will be skipped"
fi
if [ "$tests" = yes ] && ! found chromium; then
    apt_install chromium fonts-dejavu-core ||
        say "continuing without it: tests that open pages in a browser will be skipped"
fi
if [ -z "${TVMTUNE_LINKER:-}" ] && ! found ld.lld ld gcc cc clang; then
    apt_install binutils
fi

# A checkout that was moved needs a new environment, because scripts in it contain absolute paths.
wanted="$root $(cksum <"$root/pyproject.toml")"
extras=peers
if [ "$tests" = yes ]; then extras=test; fi
if [ -f "$stamp" ] && [ -x "$venv/bin/python" ]; then
    # The test extra includes all others.
    case $(cat "$stamp") in
        "$wanted test" | "$wanted $extras") exit 0 ;;
    esac
fi

if ! python=$(find_python); then
    if [ -n "${TVMTUNE_PYTHON:-}" ]; then
        say "TVMTUNE_PYTHON=$TVMTUNE_PYTHON is not Python 3.10 or later"
        exit 1
    fi
    apt_install python3 python3-venv
    python=$(find_python) || { say "Python 3.10 or later is needed"; exit 1; }
fi
# Debian ships Python without ensurepip, which venv needs.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    case ${python##*/} in
        python3) apt_install python3-venv ;;
        *) apt_install "${python##*/}-venv" ;;
    esac
fi

# PyTorch compiles against Python's headers.
if [ "$tests" = yes ] && ! "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'; then
    case ${python##*/} in
        python3) apt_install python3-dev ;;
        *) apt_install "${python##*/}-dev" ;;
    esac || say "continuing without it: tests that compile with PyTorch will be skipped"
fi

rm -f "$stamp"
if [ ! -e "$venv" ] || ! new_enough "$venv/bin/python" || ! "$venv/bin/python" -c 'import pip' \
    2>/dev/null; then
    say "creating .venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
fi
say "installing tvmtune and its dependencies into .venv (takes a few minutes the first time)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
    -e "$root[$extras]" >&2  # Python compiles what it imports: a small part of PyTorch and the like
printf '%s %s\n' "$wanted" "$extras" >"$stamp"
say "ready"
