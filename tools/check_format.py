#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the layout of C++ and Meson files, or with --fix makes it so.

usage: check_format.py [--fix]       (clang-format 23.1.5 and meson, as tools/setup.sh installs them)
"""

import os
import shutil
import subprocess
import sys

from project import files, root

os.environ["PATH"] = f"{root / 'build/venv/bin'}:{os.environ['PATH']}"
fix = "--fix" in sys.argv
cpp = [str(p) for p in files() if p.suffix in {".hpp", ".cpp"}]
meson = [str(p) for p in files() if p.name in {"meson.build", "meson.options"}]

asked = "clang-format version 23.1.5"
program = shutil.which("clang-format")
found = subprocess.run([program, "--version"], capture_output=True, text=True).stdout if program else "none"
if asked not in found:
    sys.exit(f"needs {asked} (found: {found.strip()}): sh tools/setup.sh tests")
codes = [
    subprocess.run(["clang-format", *(["-i"] if fix else ["--dry-run", "-Werror"]), *cpp]).returncode,
    subprocess.run(["meson", "format", "-c", str(root / "meson.format"),
                    "-i" if fix else "--check-only", *meson]).returncode,
]
print(f"{len(cpp)} C++ files, {len(meson)} Meson files")
sys.exit(1 if any(codes) else 0)
