#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks at the text of every file: what no file may hold, and what each must.

Banned: paths of one machine, hosts of package registries, invisible characters, carriage returns,
blanks at the ends of lines, no newline at the end. Demanded: the licence line in source files.
"""

import re
import sys

from project import files, report, root

# In halves, so that this file does not hold them either.
banned = {
    "a path of one machine": r"(?<![\w.$}/-])/(work|home|root|Users|opt/wheels|opt/pypi|mnt|tmp/dev)/",
    "a package registry": r"\b(py" r"pi\.org|python" r"hosted|download\.py" r"torch|deb\.deb" r"ian|security\.deb"
                          r"ian|npm" r"js\.org|wrapdb\.meson|crates\.io|conda\.ana" r"conda)",
    "an invisible character": "[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\x00-\x08\x0b\x0c\x0e-\x1f\x7f]",
    "a carriage return": "\r",
    "a blank at the end": r"[ \t]+$",
}
licensed = {".hpp", ".cpp", ".h", ".py", ".sh", ".build", ".options", ".format", ".in", ".pml", ".toml"}
licence = "SPDX-License-Identifier: Apache-2.0"
kept_as_it_is = {"LICENSE"}
largest = 256 * 1024

problems = []
for path in files():
    name = path.relative_to(root)
    if str(name) in kept_as_it_is:
        continue
    data = path.read_bytes()
    if len(data) > largest:
        problems.append(f"{name}: {len(data)} bytes; nothing generated or fetched belongs here")
        continue
    try:
        text = data.decode()
    except UnicodeDecodeError:
        problems.append(f"{name}: not UTF-8 text")
        continue
    for what, pattern in banned.items():
        for match in re.finditer(pattern, text, re.MULTILINE):
            problems.append(f"{name}:{text[:match.start()].count(chr(10)) + 1}: {what}: {match[0]!r}")
    if text and not text.endswith("\n"):
        problems.append(f"{name}: no newline at the end")
    if path.suffix in licensed and licence not in "\n".join(text.splitlines()[:3]):
        problems.append(f"{name}:1: must say `{licence}`")
sys.exit(report(problems, f"{len(files())} files"))
