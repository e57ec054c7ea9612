# SPDX-License-Identifier: Apache-2.0
"""Packages of AOTInductor in a C++ program without Python (examples/cpp_runtime).

RANKFOLD_TORCH_RUNTIME names its built main.cpp; without it, that is built here.
"""

import os
import subprocess
import sys

import pytest
import torch
from conftest import ROOT


EXAMPLE = ROOT / "examples" / "cpp_runtime"
sys.path.insert(0, str(EXAMPLE))
import export  # noqa: E402


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = os.environ.get("RANKFOLD_TORCH_RUNTIME")
    if path is None:
        folder = torch.__path__[0]
        path = str(tmp_path_factory.mktemp("runtime") / "cpp_runtime")
        subprocess.run(["c++", "-std=c++20", f"-isystem{folder}/include",
                        f"-isystem{folder}/include/torch/csrc/api/include", EXAMPLE / "main.cpp", "-o", path,
                        f"-L{folder}/lib", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{folder}/lib"], check=True)
    return path


@pytest.fixture(scope="module")
def packages(extension, tmp_path_factory):
    """The folder of the packages, and the lines that export.py printed."""
    folder = tmp_path_factory.mktemp("packages")
    done = subprocess.run([sys.executable, EXAMPLE / "export.py", extension, folder], capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr
    return folder, sorted(done.stdout.splitlines())


def eager_lines(here):
    with torch.no_grad():
        model = export.Mlp(here.ops, here.rank, "")
        return [(rows, model(export.inputs(rows))) for rows in export.BATCHES]


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_program_prints_the_bits_of_python(program, extension, packages, pair):
    folder, lines = packages
    assert len(lines) == 4 and len({text.split("digest")[1] for text in lines}) == 2  # the ranks agree
    done = run(program, extension, str(folder))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == lines
    # And the values are those of the module, whose gelu and matmuls are others in eager code.
    for text, (rows, y) in zip(lines[:2], pair(eager_lines)[0]):
        assert text.startswith(f"rank 0 batch {rows}: first ")
        assert float(text.split("first ")[1].split(",")[0]) == pytest.approx(y[0, 0].item(), abs=1e-5)


def test_the_program_has_no_python(program):
    linked = run("ldd", program)
    assert "libtorch_cpu.so" in linked.stdout
    assert "libpython" not in linked.stdout and "libtorch_python" not in linked.stdout


def test_a_package_says_what_it_lacks(program, packages, tmp_path):
    # A library that registers nothing in the place of the ops.
    (tmp_path / "empty.cpp").write_text("")
    empty = str(tmp_path / "empty.so")
    subprocess.run(["c++", "-shared", "-o", empty, str(tmp_path / "empty.cpp")], check=True)
    done = run(program, empty, str(packages[0]))
    assert done.returncode == 1 and "rankfold_example::init" in done.stderr
