# SPDX-License-Identifier: Apache-2.0
"""Extensions as files: twice the same namespace, two namespaces in one process, what is exported."""

import os
import shutil
import subprocess
import sys
import uuid

import pytest
import torch
from conftest import ROOT
from ranks import NAMESPACE


def compile_extension(folder, name, namespace, *flags):
    """An object file of the two lines, with another namespace than the example's."""
    from torch.utils import cpp_extension

    source = folder / f"{name}.cpp"
    source.write_text(f"#include <rankfold/torch.hpp>\nRANKFOLD_TORCH_LIBRARY({namespace})\n")
    out = folder / f"{name}.o"
    includes = [f"-isystem{path}" for path in cpp_extension.include_paths()]
    subprocess.run(["c++", "-std=c++20", "-O0", "-fPIC", "-c", f"-I{ROOT / 'include'}", *includes, *flags, source,
                    "-o", out], check=True)
    return out


def link(out, *objects):
    return subprocess.run(["c++", "-shared", "-o", out, *objects, f"-L{torch.__path__[0]}/lib", "-ltorch",
                           "-ltorch_cpu", "-lc10"], capture_output=True, text=True)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A second extension, whose namespace is `other_extension`: its object file and its library."""
    folder = tmp_path_factory.mktemp("other")
    compiled = compile_extension(folder, "other", "other_extension")
    linked = link(folder / "other.so", compiled)
    assert linked.returncode == 0, linked.stderr
    return compiled, str(folder / "other.so")


def run(program):
    return subprocess.run([sys.executable, "-c", "import torch\n" + program], capture_output=True, text=True,
                          timeout=120)


def test_the_macro_twice_in_one_library_is_a_link_error(other, tmp_path):
    compiled, _ = other
    twice = link(tmp_path / "twice.so", compiled, shutil.copy(compiled, tmp_path / "copy.o"))
    assert twice.returncode != 0
    assert "multiple definition of `rankfold_torch_library_used_twice_for_other_extension'" in twice.stderr
    # It is all there is to say: one error, not one for each function of the library.
    assert twice.stderr.count("multiple definition") == 1


def test_the_same_namespace_from_two_libraries(extension, tmp_path):
    copy = shutil.copy(extension, tmp_path / "rebuilt.so")
    ended = run(f"""
torch.ops.load_library({extension!r})
ops = torch.ops.{NAMESPACE}
order = ops.init("before", rank=0, size=1)
torch.ops.load_library({extension!r})  # the same again is nothing new
ops.init("still fine", rank=0, size=1)
torch.ops.load_library({str(copy)!r})
print(ops.all_reduce(torch.ones(2), order, group="before").tolist())
ops.init()
""")
    assert ended.returncode == 1 and ended.stdout == "[1.0, 1.0]\n"
    assert f"RuntimeError: {NAMESPACE}::init: the namespace {NAMESPACE} was registered by two libraries" in ended.stderr
    assert str(extension) in ended.stderr and str(copy) in ended.stderr


def test_two_extensions_share_nothing(extension, other):
    _, library = other
    ended = run(f"""
torch.ops.load_library({extension!r})
torch.ops.load_library({library!r})
first, second = torch.ops.{NAMESPACE}, torch.ops.other_extension
order = first.init(rank=0, size=1)
first.init("of the first", rank=0, size=1)
assert second.order() is not order
for call in (lambda: second.rank(), lambda: second.all_reduce(torch.ones(2), second.order(), group="of the first")):
    try:
        call()
        print("shared")
    except RuntimeError as error:
        print(str(error)[:24])
second.init(rank=0, size=1)
first.finalize()
print(second.all_reduce(torch.ones(2), second.order()).tolist())
""")
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == ["other_extension::rank (d"[:24], "other_extension::all_red"[:24], "[1.0, 1.0]"]


def test_two_extensions_in_two_processes_meet_each_in_its_own_groups(extension, other):
    _, library = other
    # In two threads, so that the ranks may come to the two in another order.
    program = f"""
import os
from concurrent.futures import ThreadPoolExecutor
torch.ops.load_library({extension!r})
torch.ops.load_library({library!r})
first, second = torch.ops.{NAMESPACE}, torch.ops.other_extension
with ThreadPoolExecutor(2) as threads:
    order = [first, second] if os.environ["RANK"] == "0" else [second, first]
    list(threads.map(lambda ops: ops.init(), order))
print(first.all_reduce(torch.ones(1), first.order()).item() + second.all_reduce(torch.ones(1) * 5, second.order()).item())
"""
    environment = {**os.environ, "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": uuid.uuid4().hex, "RANKFOLD_TIMEOUT": "60"}
    processes = [subprocess.Popen([sys.executable, "-c", "import torch\n" + program], stdout=subprocess.PIPE, text=True,
                                  env={**environment, "RANK": str(rank)}) for rank in (0, 1)]
    assert [process.communicate(timeout=120)[0] for process in processes] == ["12.0\n"] * 2


def test_nothing_of_rankfold_is_shared_between_libraries(other):
    # Unique symbols ("u") are one for the whole process, even of libraries loaded apart.
    _, library = other
    symbols = subprocess.run(["nm", "-DC", library], capture_output=True, text=True, check=True).stdout
    shared = [line for line in symbols.splitlines() if " u " in line and "rankfold" in line.split(" u ")[1]]
    assert shared == []
