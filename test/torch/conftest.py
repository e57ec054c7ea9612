# SPDX-License-Identifier: Apache-2.0
"""What the tests share: the extension, its ops in this process, two ranks that are processes.

RANKFOLD_TORCH_EXTENSION names a built examples/torch_extension.cpp; without it, it is built here.
"""

import os
import pathlib
import shutil
import sys

os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # else a graph of an older build is tested
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
if shutil.which("openssl") is None:  # which Inductor calls to find its precompiled headers again
    os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from ranks import NAMESPACE, Ranks  # noqa: E402

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="session")
def extension(tmp_path_factory):
    """The path of the built extension, loaded."""
    path = os.environ.get("RANKFOLD_TORCH_EXTENSION")
    if path is None:
        from torch.utils import cpp_extension

        path = cpp_extension.load(
            "torch_extension", [str(ROOT / "examples" / "torch_extension.cpp")],
            extra_include_paths=[str(ROOT / "include")], extra_cflags=["-std=c++20", "-O2"],
            build_directory=str(tmp_path_factory.mktemp("extension")), is_python_module=False)
    torch.ops.load_library(path)
    return path


@pytest.fixture(scope="session")
def library(extension):
    torch.set_num_threads(1)
    return getattr(torch.ops, NAMESPACE)


@pytest.fixture
def ops(library):
    """The ops, in a world of one rank."""
    library.finalize()
    library.init(rank=0, size=1)
    yield library
    library.finalize()


@pytest.fixture
def order(ops):
    return ops.order()


@pytest.fixture(scope="session")
def pair(extension):
    """Two ranks, which keep what they have from test to test; a failure makes new ones."""
    with Ranks(2, extension) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def backend_module():
    """The Python module that registers the c10d backend: a built examples/torch_backend.cpp."""
    path = os.environ.get("RANKFOLD_TORCH_BACKEND")
    if not path:
        pytest.skip("RANKFOLD_TORCH_BACKEND names no module; test/meson.build sets it")
    return path


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
