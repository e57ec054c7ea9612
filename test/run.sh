#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Sets up, builds and runs all tests; the last line is `N passed, N failed`.
#
# usage: sh test/run.sh [SUITE…]      such as `sh test/run.sh unit torch`; --list names them
set -eu
cd "$(dirname "$0")/.."
sh tools/setup.sh tests
exec build/venv/bin/python tools/run_tests.py "$@"
