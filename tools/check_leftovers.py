#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a command and fails if it leaves anything behind: a process, a file in /dev/shm, or what MPI's
launchers and the tests of MPI make in the folder for temporary files.

usage: check_leftovers.py [--timeout SECONDS] [--report FILE] [--name NAME] -- COMMAND…

Processes are told by descent: this one is made the reaper of all orphans below it, so that whatever
the command started and did not wait for becomes its child. What is left gets a moment to end, is
named, and is ended. As root the command has a /dev/shm of its own, of 64 MB as in a container; else
a new file there counts unless a process from elsewhere has it open, and stays.
Ends with the command's exit code, with 124 after a timeout, or with 1 if only leftovers failed it.
"""

import argparse
import ctypes
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWNS = 0x20000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
GRACE_SECONDS = 5.0
shm = pathlib.Path("/dev/shm")
session_of_mpi = re.compile(r"ompi\.|openmpi-sessions|pmix|prte")
temporary = re.compile(rf"rankfold-|{session_of_mpi.pattern}")


def processes():
    """All processes that can be seen: {pid: parent}."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
                found[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
            except OSError:
                pass  # it has just ended
    return found


def descendants():
    """The processes below this one, those that have ended reaped."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                break
        except ChildProcessError:
            break
    parents = processes()
    below, more = set(), {os.getpid()}
    while more:
        more = {pid for pid, parent in parents.items() if parent in more} - below
        below |= more
    return below


def command_line(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return "?"


def own_shared_memory(libc):
    """Gives this process and those below it a /dev/shm of their own; whether that could be done."""
    if not shm.is_dir() or libc.unshare(CLONE_NEWNS) != 0:
        return False
    # What is mounted here must not show outside. In a chroot / may be no mount point.
    if all(libc.mount(b"none", at, None, MS_REC | MS_PRIVATE, None) != 0 for at in (b"/", bytes(shm))):
        return False
    return libc.mount(b"tmpfs", bytes(shm), b"tmpfs", 0, b"size=64m") == 0


def shm_files():
    return {path for path in shm.rglob("*") if not path.is_dir()} if shm.is_dir() else set()


def temporary_files():
    return {path for path in pathlib.Path(tempfile.gettempdir()).iterdir() if temporary.match(path.name)}


def opened_elsewhere(path):
    """Whether a living process has the file mapped or open."""
    for pid in processes():
        folder = pathlib.Path(f"/proc/{pid}")
        try:
            if str(path) in (folder / "maps").read_text():
                return True
            if any(os.readlink(entry) == str(path) for entry in (folder / "fd").iterdir()):
                return True
        except OSError:
            pass  # it has just ended, or is not ours to look at
    return False


def end(pids):
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            try:
                os.kill(pid, sign)
            except ProcessLookupError:
                pass
        deadline = time.monotonic() + 2
        while descendants() and time.monotonic() < deadline:
            time.sleep(0.05)


def run(command, timeout=None):
    """Runs the command; its exit code and what it left behind, in words."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    alone = own_shared_memory(libc)
    before, temporary_before = shm_files(), temporary_files()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        code = child.wait(timeout)
    except subprocess.TimeoutExpired:
        print(f"check_leftovers: {timeout:.0f} s are over, ends the command", file=sys.stderr)
        end(descendants())
        return 124, []
    except KeyboardInterrupt:
        end(descendants())
        return 130, []

    deadline = time.monotonic() + GRACE_SECONDS
    while (left := descendants()) and time.monotonic() < deadline:
        time.sleep(0.05)
    found = [f"process {pid}: {command_line(pid)}" for pid in sorted(left)]
    end(left)
    for path in sorted(shm_files() - before):
        if alone or (path.exists() and not opened_elsewhere(path)):
            found.append(f"file {path}")
    # Of another run at the same time: it goes by itself.
    while (paths := temporary_files() - temporary_before) and time.monotonic() < deadline:
        time.sleep(0.05)
    found += [f"file {path}" for path in sorted(paths)]
    return code if code >= 0 else 128 - code, found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--timeout", type=float)
    parser.add_argument("--report", type=pathlib.Path)
    parser.add_argument("--name", default="nothing is left behind")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    code, found = run(options.command, options.timeout)
    for what in found:
        print(f"check_leftovers: left behind: {what}", file=sys.stderr)
    if options.report:
        with options.report.open("a") as report:
            report.write(f"{'failed' if found else 'passed'} {options.name}\n")
    return code or (1 if found else 0)


if __name__ == "__main__":
    sys.exit(main())
