#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the version that include/rankfold/version.hpp states; Meson asks this."""

import pathlib
import re

text = (pathlib.Path(__file__).parent.parent / "include/rankfold/version.hpp").read_text()
print(".".join(re.search(rf"#define RANKFOLD_VERSION_{part} (\d+)", text)[1]
               for part in ("MAJOR", "MINOR", "PATCH")))
