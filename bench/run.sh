#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Measures rankfold's collectives against its peers on this machine: sets up, builds, runs, writes
# build/bench/results. See docs/performance.md.
#
# usage: sh bench/run.sh [--quick] [--cold | --paced] [--out-of-place] [--help for all options]
#        sh bench/run.sh --hosts [--help]      all_reduce over several hosts; needs root
#        sh bench/run.sh --publish CSV…        an earlier run's pictures and tables into docs/performance.md
set -eu

cd "$(dirname "$0")/.."
for argument; do
  case $argument in
    -h | --help) exec python3 bench/collectives.py --help ;;
  esac
done

sh tools/setup.sh bench --mpi
python=build/venv/bin/python
if [ "${1-}" = --publish ]; then
  shift
  exec "$python" bench/publish.py "$@"
fi
if [ ! -f build/bench/build.ninja ]; then
  echo 'bench: configures build/bench'
  build/venv/bin/meson setup build/bench --buildtype=release -Dtests=disabled -Dexamples=disabled \
    -Dbenchmarks=enabled -Dtorch_python="$PWD/$python" >build/bench.log 2>&1 || {
    tail -n 20 build/bench.log >&2
    exit 1
  }
fi
echo 'bench: builds (the torch extension takes half a minute the first time)'
PATH="$PWD/build/venv/bin:$PATH" build/venv/bin/meson compile -C build/bench >build/bench.log 2>&1 || {
  grep -E 'error|Error' build/bench.log | head -n 20 >&2
  echo 'bench: the build failed; build/bench.log has it all' >&2
  exit 1
}
if [ "${1-}" = --hosts ]; then
  shift
  exec "$python" bench/hosts.py "$@"
fi
exec "$python" bench/collectives.py "$@"
