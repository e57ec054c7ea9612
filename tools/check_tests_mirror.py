#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a header has no unit test, or a unit test is not in the table of test/meson.build.

The test of kernel/fold.hpp is test/unit/kernel/fold.cpp or test/unit/kernel_fold.cpp, or either name
followed by _TOPIC; that of detail/futex.hpp may be test/unit/futex.cpp.
"""

import re
import sys

from project import headers, report, root

elsewhere = {  # header -> where it is tested instead
    "rankfold.hpp": "test/headers",  # an umbrella
    "torch.hpp": "test/torch",  # an umbrella
    "detail/config.hpp": "test/headers",  # macros only
    "detail/inline.hpp": "test/headers",  # macros only
    "detail/rendezvous_message.hpp": "test/unit/bootstrap",  # what unix_socket sends
    "testing/conformance.hpp": "test/conformance",
    "transport.hpp": "test/unit/transport",  # concepts: each transport asserts them
}

unit = root / "test" / "unit"
tests = {str(path.relative_to(unit).with_suffix("")) for path in unit.rglob("*.cpp")}
table = (root / "test" / "meson.build").read_text()
listed = set(re.findall(r"'([\w/]+)'", re.search(r"unit_tests = \{(.*?)\n\}", table, re.DOTALL)[1]))


def tested(name):
    stem = name.removesuffix(".hpp")
    names = {stem, stem.replace("/", "_"), stem.rpartition("/")[2]}
    return any(test == n or test.startswith(n + "_") for test in tests for n in names)


problems = [f"test/unit/{test}.cpp is not in unit_tests of test/meson.build" for test in tests - listed]
problems += [f"include/rankfold/{name} has no test in test/unit" for name, layer in headers().items()
             if name not in elsewhere and not name.startswith("torch/") and not tested(name)]
sys.exit(report(sorted(problems), f"{len(tests)} unit tests, each header has one"))
