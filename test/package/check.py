#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs rankfold into a folder, moves that, and builds and runs consumers of it: CMake, Meson,
pkg-config by hand, and Meson with rankfold as a subproject.

usage: check.py SOURCE_FOLDER
"""

import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile

here = pathlib.Path(__file__).resolve().parent
source = pathlib.Path(sys.argv[1]).resolve()
os.environ["PATH"] = f"{source / 'build/venv/bin'}:{os.environ['PATH']}"
results = []


def run(*command, cwd=None, **variables):
    done = subprocess.run([str(word) for word in command], cwd=cwd, text=True,
                          env={**os.environ, **{name: str(value) for name, value in variables.items()}},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout.strip()


def attempt(name, consume, *arguments):
    try:
        consume(*arguments)
        results.append(f"passed {name}\n")
    except Exception as error:
        print(f"{name}: {error}")
        results.append(f"failed {name}\n")


def install(work):
    """Into work/first/usr, then moved to work/second/usr: no file may know where it was."""
    build = work / "build"
    run("meson", "setup", build, source, "--prefix", work / "first" / "usr", "--wrap-mode=nodownload",
        *(f"-D{option}=disabled" for option in ("tests", "examples", "benchmarks", "torch", "mpi")),
        "-Dpkgconfig.relocatable=true")
    run("meson", "install", "-C", build)
    (work / "first").rename(work / "second")
    return work / "second" / "usr"


def cmake(work, prefix):
    build = work / "cmake"
    run("cmake", "-G", "Ninja", "-S", here, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", build)
    run(build / "consumer")
    assert not list(build.rglob("*rankfold_kernels*.a")), "kernels are built only where they are linked"


def cmake_dispatch(work, prefix):
    build = work / "cmake_dispatch"
    run("cmake", "-G", "Ninja", "-S", here, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release")
    run("cmake", "--build", build, "--target", "dispatching_consumer")
    if platform.machine() == "x86_64":
        output = run(build / "dispatching_consumer", RANKFOLD_ISA="sse2")
        assert output.endswith(", sse2"), output


def cmake_refuses(work, prefix):
    """While the major version is 0, another minor version is another interface."""
    folder = work / "refused"
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(
        (here / "CMakeLists.txt").read_text().replace("rankfold 0.1", "rankfold 0.0.9"))
    shutil.copy(here / "main.cpp", folder)
    try:
        run("cmake", "-G", "Ninja", "-S", folder, "-B", work / "refused_build",
            f"-DCMAKE_PREFIX_PATH={prefix}")
    except RuntimeError as error:
        assert "compatible" in str(error), error
        return
    raise RuntimeError("CMake took another minor version")


def meson(work, prefix):
    build = work / "meson"
    run("meson", "setup", build, here, "--wrap-mode=nofallback",
        PKG_CONFIG_PATH=prefix / "share" / "pkgconfig")
    run("meson", "compile", "-C", build)
    run(build / "consumer")


def pkg_config(work, prefix):
    flags = run("pkg-config", "--cflags", "--libs", "rankfold",
                PKG_CONFIG_PATH=prefix / "share" / "pkgconfig").split()
    known = [flag for flag in flags if flag.startswith(("-m", "-O", "-W", "-std", "-D"))]
    assert not known, f"the package must export no such flags: {known}"
    dispatch = run("pkg-config", "--variable=dispatch_source", "rankfold",
                   PKG_CONFIG_PATH=prefix / "share" / "pkgconfig")
    assert pathlib.Path(dispatch).read_text().startswith("// SPDX"), dispatch
    program = work / "by_hand"
    run(os.environ.get("CXX", "c++"), "-std=c++20", here / "main.cpp", "-o", program, *flags)
    run(program)


def subproject(work, _):
    project = work / "project"
    (project / "subprojects").mkdir(parents=True)
    for name in ("main.cpp", "meson.build"):
        shutil.copy(here / name, project)
    (project / "subprojects" / "rankfold").symlink_to(source)
    build = work / "subproject"
    run("meson", "setup", build, project, "--force-fallback-for=rankfold")
    run("meson", "compile", "-C", build)
    assert not list(build.rglob("test_support*")), "a subproject must not build our tests"
    assert "dispatching_consumer" in (build / "build.ninja").read_text(), "rankfold-dispatch is not known"
    assert not list(build.rglob("librankfold_*.a")), "kernels are built only where they are linked"
    run(build / "consumer")


with tempfile.TemporaryDirectory() as name:
    work = pathlib.Path(name)
    prefix = install(work)
    for file in (prefix / "share" / "pkgconfig" / "rankfold.pc", *prefix.rglob("*.cmake")):
        if str(work) in file.read_text():
            sys.exit(f"{file} knows where it was installed")
    for consume in (cmake, cmake_dispatch, cmake_refuses, meson, pkg_config, subproject):
        attempt(f"package: {consume.__name__}", consume, work, prefix)
print("".join(results), end="")
if report := os.environ.get("RANKFOLD_TEST_REPORT"):
    pathlib.Path(report).write_text("".join(results))
sys.exit(1 if any(result.startswith("failed") for result in results) else 0)
