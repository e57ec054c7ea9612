#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The main job: sets up what is missing, builds the torch extension, and runs a sentence encoder on
# two ranks (examples/minilm).
#
# usage: sh examples/run.sh [OPTION…]      such as --no-speed or --strict; --help names them
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
sh "$root/tools/setup.sh" examples

build=$root/build/examples
log=$build.log
PATH=$root/build/venv/bin:$PATH
export PATH
say() { printf 'build: %s\n' "$*"; }
fail() {
  tail -n 20 "$log" >&2
  say "$1 ($log has it all)" >&2
  exit 1
}

if [ ! -f "$build/build.ninja" ]; then
  say 'configures build/examples'
  meson setup "$build" "$root" --buildtype=release -Dtests=disabled -Dmpi=disabled \
    -Dbenchmarks=disabled -Dexamples=enabled -Dtorch=enabled \
    -Dtorch_python="$root/build/venv/bin/python" >"$log" 2>&1 || fail 'cannot be configured'
fi
# Ninja says nothing where nothing is to be done.
if ! ninja -C "$build" -n examples/torch_extension.so 2>/dev/null | grep -q 'no work to do'; then
  say 'builds examples/torch_extension.cpp (half a minute)'
  ninja -C "$build" examples/torch_extension.so >"$log" 2>&1 || fail 'cannot be built'
fi

exec "$root/build/venv/bin/python" "$root/examples/minilm/run.py" \
  --module "$build/examples/torch_extension.so" --cache "$build/inductor" "$@"
