# SPDX-License-Identifier: Apache-2.0
"""A library with the MPI transport in a Python process that uses torch."""

import os
import pathlib

import launcher
import pytest

python = os.environ.get("RANKFOLD_TORCH_PYTHON")


@pytest.mark.skipif(not python, reason="torch is not installed")
def test_beside_torch():
    script = pathlib.Path(__file__).with_name("with_torch.py")
    found = launcher.run(2, [python, str(script), launcher.program("module") + ".so"], timeout=120)
    assert found.code == 0  # also: MPI is finalised when Python ends
    assert launcher.lines(found, "2 ranks") == ["2 ranks: 1000"] * 2
    assert found.left == []
