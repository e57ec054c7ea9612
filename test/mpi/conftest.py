# SPDX-License-Identifier: Apache-2.0
"""Tests count as skipped where their MPI is not installed; never as passed."""

import os
import signal
import sys

import pytest


def pytest_collection_modifyitems(items):
    if missing := os.environ.get("RANKFOLD_MPI_MISSING"):
        for item in items:
            item.add_marker(pytest.mark.skip(reason=f"{missing} is not installed"))


def pytest_configure():
    # Whoever ends the tests (a time limit) lets them take back what they have made.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
