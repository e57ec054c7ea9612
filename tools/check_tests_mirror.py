#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a header has no unit test, or a test is not in its table in test/meson.build.

The test of kernel/fold.hpp is test/unit/kernel/fold.cpp or test/unit/kernel_fold.cpp, or either name
followed by _TOPIC; that of detail/futex.hpp may be test/unit/futex.cpp.
"""

import re
import sys

from project import headers, report, root

elsewhere = {  # header -> what tests it instead
    "rankfold.hpp": "test/headers",  # an umbrella
    "torch.hpp": "test/torch",  # an umbrella
    "detail/config.hpp": "test/headers",  # macros only
    "detail/attributes.hpp": "test/headers",  # macros only
    "detail/fold_batch.hpp": "test/unit/kernel_fold.cpp",  # what the kernels are made of
    "detail/fold_element.hpp": "test/unit/kernel_fold.cpp",
    "detail/float16_batch.hpp": "test/unit/kernel_convert.cpp",
    "detail/float8_batch.hpp": "test/unit/kernel_convert.cpp",
    "detail/meeting_options.hpp": "test/unit/split.cpp",
    "detail/segment_file.hpp": "test/unit/transport/shm.cpp",
    "detail/kernel_table.hpp": "test/unit/kernel_dispatch.cpp",
    "detail/simd.hpp": "test/odr",
    "kernel/copy.hpp": "test/unit/algorithm",  # a memcpy
    "symmetric_buffer.hpp": "test/unit/symmetric_allocation.cpp",
    "transport.hpp": "test/unit/transport",  # concepts: each transport asserts them
    "testing/conformance.hpp": "test/conformance",
    "mpi.hpp": "test/mpi",
    "transport/mpi.hpp": "test/mpi",  # under mpirun
}

table = (root / "test" / "meson.build").read_text()
tests = {str(path.relative_to(root / "test/unit").with_suffix(""))
         for path in (root / "test/unit").rglob("*.cpp")}
problems = []
for name, pattern, end in [("unit", "**/*.cpp", r"\n\}"), ("conformance", "*.cpp", r"\]"),
                           ("compile_fail", "*.cpp", r"\]"), ("model", "*.pml", r"\]"),
                           ("mpi", "test_*.py", r"\]"), ("torch", "test_*.py", r"\]")]:
    folder = root / "test" / name
    there = {str(path.relative_to(folder).with_suffix("")).removeprefix("test_")
             for path in folder.glob(pattern)}
    entries = re.search(rf"^{name}_tests = [\[{{](.*?){end}", table, re.DOTALL | re.MULTILINE)[1]
    rows = set(re.findall(r"'([\w/]+)':", entries))
    listed = set(re.findall(r"'([\w/]+)'", entries)) - rows
    problems += [f"{name}_tests in test/meson.build lacks {test}" for test in there - listed]
    problems += [f"{name}_tests in test/meson.build has {test}, which does not exist"
                 for test in listed - there]


def tested(name):
    stem = name.removesuffix(".hpp")
    names = {stem, stem.replace("/", "_"), stem.rpartition("/")[2]}
    return any(test == n or test.startswith(n + "_") for test in tests for n in names)


problems += [f"include/rankfold/{name} has no test in test/unit" for name, layer in headers().items()
             if name not in elsewhere and not name.startswith("torch/") and not tested(name)]
problems += [f"tools/check_tests_mirror.py: {place} does not exist"
             for place in set(elsewhere.values()) if not (root / place).exists()]
sys.exit(report(sorted(problems), f"{len(tests)} unit tests, each header has one"))
