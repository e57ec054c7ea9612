# SPDX-License-Identifier: Apache-2.0
"""What the checks know about the project: where it is, its files, its headers by layer."""

import pathlib
import re
import shutil
import subprocess

root = pathlib.Path(__file__).resolve().parent.parent
include = root / "include" / "rankfold"
skipped = re.compile(r"(\.git|build.*|__pycache__|\.cache)$")


def headers():
    """The header list of include/meson.build: {"detail/config.hpp": 0, …}, the number is the layer."""
    text = (root / "include" / "meson.build").read_text()
    layers = re.findall(r"'L(\d)': \[(.*?)\]", text, re.DOTALL)
    return {name: int(layer) for layer, names in layers for name in re.findall(r"'([^']+)'", names)}


def includes(path):
    """The includes of a file, in order: [(line number, "rankfold/error.hpp" or "<vector>"), …]."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := re.match(r'\s*#\s*include\s+(?:"([^"]+)"|(<[^>]+>))', line):
            found.append((number, match[1] or match[2]))
    return found


def files():
    """The project's own files: those that git knows or would take, or all of them without git."""
    paths = None
    if (root / ".git").exists() and shutil.which("git"):
        git = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=root,
                             capture_output=True, text=True)
        if git.returncode == 0:
            paths = [root / name for name in git.stdout.split("\0") if name]
    if paths is None:
        paths = [p for p in root.rglob("*") if not any(map(skipped.match, p.relative_to(root).parts))]
    return sorted(p for p in paths if p.is_file())


def report(problems, good):
    """Prints the problems, or what is good if there are none; the exit code."""
    print("\n".join(problems) if problems else good)
    return 1 if problems else 0
