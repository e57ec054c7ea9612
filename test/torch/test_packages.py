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


def run_package(here, folder):
    """What the package of this rank computes."""
    group = f"rank{here.rank}"
    here.ops.init(group, here.rank, export.RANKS, f"test_packages {folder}", 60)
    package = torch._inductor.aoti_load_package(f"{folder}/{group}.pt2")
    results = [package(export.inputs(rows)) for rows in export.BATCHES]
    here.ops.finalize(group)
    return results


def whole_model(library):
    """The same in one process, on all the weights, in double precision."""
    parts = [export.Mlp(library, rank, "").double() for rank in range(export.RANKS)]
    up, down = torch.cat([part.up for part in parts]), torch.cat([part.down for part in parts], dim=1)
    inputs = [export.inputs(rows).double() for rows in export.BATCHES]
    return [(torch.nn.functional.gelu(x @ up.t()) @ down.t()).detach() for x in inputs]


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_program_prints_the_bits_of_python(program, extension, packages):
    folder, lines = packages
    assert len(lines) == 4 and len({text.split("digest")[1] for text in lines}) == 2  # the ranks agree
    done = run(program, extension, str(folder))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == lines


def test_the_values_are_those_of_one_process(packages, pair, library):
    folder, lines = packages
    answers, expected = pair(run_package, folder), whole_model(library)
    assert sorted(export.line(rank, y) for rank, answer in enumerate(answers) for y in answer) == lines
    for answer in answers:
        for found, right in zip(answer, expected):
            torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=1e-5)


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
