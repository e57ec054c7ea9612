#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the torch ops against several releases of torch, runs their tests, and prints the table of docs/torch.md.

usage: python3 tools/torch_versions.py [--stable LIBRARY [--stable-only]] [--prefix COMMAND] FOLDER VERSION…

For each VERSION, such as 2.4.1, one after the other: a virtual environment in FOLDER, with what pip
gives under that name (the index decides; a CUDA build takes 5 GB while it is looked at), the extension
of examples/torch_extension.cpp built against it, the tests of test/torch that need nothing else, and the
same with LIBRARY, a torch_stable.so built once, against any release (or that alone); then the
environment is removed.
What failed is in FOLDER/VERSION.*.log. This takes ten minutes a version, and no CI runs it.

RANKFOLD_PIP_OPTIONS is passed to pip, COMMAND put before whatever computes.
"""

import argparse
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parent.parent
TESTS = ["schema", "errors", "ranks", "collectives", "autograd", "compile", "life"]


def of_stable(version):
    """Whether the stable ABI of 2.10 is there."""
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2]) >= (2, 10)


def counts(log):
    """`passed, failed, skipped` of pytest's last line."""
    found = dict((word, int(number)) for number, word in re.findall(r"(\d+) (passed|failed|error|skipped)", log[-400:]))
    if not found:
        return "no answer"
    return f"{found.get('passed', 0)}, {found.get('failed', 0) + found.get('error', 0)}, {found.get('skipped', 0)}"


class Version:
    def __init__(self, version, folder, options):
        self.version, self.folder, self.options = version, folder, options
        self.python = folder / "venv" / "bin" / "python"

    def run(self, name, command, **environment):
        """Runs a command; its exit code and output, which is kept."""
        done = subprocess.run([*(self.options.prefix if name != "pip" else []), *map(str, command)],
                              cwd=root, text=True, errors="replace", stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={**os.environ, **environment})
        (self.folder / f"{self.version}.{name}.log").write_text(done.stdout)
        return done.returncode, done.stdout

    def install(self):
        subprocess.run([sys.executable, "-m", "venv", self.folder / "venv"], check=True)
        pip = [self.python, "-m", "pip", "install", "-q", *shlex.split(os.environ.get("RANKFOLD_PIP_OPTIONS", ""))]
        # A version without a local part would take a build that has one, where there is one.
        return self.run("pip", [*pip, f"torch=={self.version}", "numpy", "setuptools", "pytest", "expecttest"])[0] == 0

    def build(self):
        """The extension, built against this version; None if it does not compile."""
        code, text = self.run("where", [self.python, "-c",
                                        "import torch; print(torch.__path__[0], int(torch._C._GLIBCXX_USE_CXX11_ABI))"])
        if code != 0:
            return None
        torch, abi = text.split()[-2:]
        out = self.folder / "torch_extension.so"
        code, _ = self.run("build", [
            "c++", "-std=c++20", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
            f"-I{root / 'include'}", f"-isystem{torch}/include", f"-isystem{torch}/include/torch/csrc/api/include",
            root / "examples" / "torch_extension.cpp", "-o", out,
            f"-L{torch}/lib", "-ltorch", "-ltorch_cpu", "-lc10"])
        return out if code == 0 else None

    def test(self, name, files, **environment):
        return counts(self.run(name, [
            self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short",
            *(root / "test" / "torch" / f"test_{file}.py" for file in files)], **environment)[1])

    def row(self):
        if not self.install():
            return "pip could not install it", "", ""
        stable = "–"
        if self.options.stable and of_stable(self.version):
            stable = self.test("stable", ["stable"], RANKFOLD_TORCH_STABLE=str(self.options.stable.resolve()))
        extension = None if self.options.stable_only else self.build()
        full = [self.test(file, [file], RANKFOLD_TORCH_EXTENSION=str(extension)) for file in TESTS] if extension else []
        shutil.rmtree(self.folder / "venv")
        return "–" if self.options.stable_only else "yes" if extension else "no", full, stable


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stable", type=pathlib.Path)
    parser.add_argument("--stable-only", action="store_true")
    parser.add_argument("--prefix", type=shlex.split, default=[])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("versions", nargs="+")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    print("| torch | compiles | " + " | ".join(TESTS) + " | stable |")
    print("|---" * (len(TESTS) + 3) + "|", flush=True)
    for version in options.versions:
        compiles, full, stable = Version(version, options.folder, options).row()
        cells = full or [""] * len(TESTS)
        print(f"| {version} | {compiles} | " + " | ".join(cells) + f" | {stable} |", flush=True)


if __name__ == "__main__":
    main()
