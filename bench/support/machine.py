# SPDX-License-Identifier: Apache-2.0
"""What this machine is, and which CPUs to use."""

import datetime
import os
import platform
import re
import subprocess
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")


def read(path, default=""):
    try:
        return Path(path).read_text().strip()
    except OSError:
        return default


def output(*command):
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        return run.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def usable_cpus():
    """The CPUs this process may use, one of each core first."""
    first, rest, cores = [], [], set()
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = read(CPUS / f"cpu{cpu}/topology/thread_siblings_list", str(cpu))
        (rest if siblings in cores else first).append(cpu)
        cores.add(siblings)
    return first + rest


def cpu_model():
    for line in read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def instruction_sets():
    flags = ""
    for line in read("/proc/cpuinfo").splitlines():
        if line.startswith(("flags", "Features")):
            flags = line.split(":", 1)[1].split()
            break
    interesting = "sse4_2 avx avx2 f16c fma avx512f avx512bw avx512vl avx512_bf16 avx512_fp16 asimd sve sve2"
    return [flag for flag in interesting.split() if flag in flags]


def caches(cpu):
    found = {}
    for index in sorted((CPUS / f"cpu{cpu}/cache").glob("index*")):
        if read(index / "type") != "Instruction":
            found[f"L{read(index / 'level')}"] = read(index / "size")
    return found


def describe(root, cpus):
    cpu = next(iter(cpus), 0)
    compiler = output("c++", "--version").splitlines()
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": output("git", "-C", str(root), "rev-parse", "--short=12", "HEAD") or "none",
        "changed": bool(output("git", "-C", str(root), "status", "--porcelain", "include")),
        "cpu": cpu_model(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "instruction_sets": instruction_sets(),
        "caches": caches(cpu),
        "hypervisor": bool(re.search(r"\bhypervisor\b", read("/proc/cpuinfo"))),
        "huge_pages": read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "kernel": platform.release(),
        "system": next(
            (
                line.split("=", 1)[1].strip('"')
                for line in read("/etc/os-release").splitlines()
                if line.startswith("PRETTY_NAME=")
            ),
            platform.system(),
        ),
        "compiler": compiler[0] if compiler else "unknown",
        "python": platform.python_version(),
    }
