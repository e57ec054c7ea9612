#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts a program once for each rank, on this host, with the variables that torchrun sets.

usage: launch.py [--expect TEXT] RANKS COMMAND…

Each line of output has its rank in front. When a rank fails the others get a moment to end by
themselves, and are then ended. The exit code is that of the first rank that failed; with --expect it
is 1 if a rank does not print TEXT.
"""

import argparse
import os
import socket
import subprocess
import sys
import threading
import time

GRACE_SECONDS = 10


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--expect", help="what each rank must print")
    parser.add_argument("ranks", type=int)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()

    common = {"WORLD_SIZE": options.ranks, "LOCAL_WORLD_SIZE": options.ranks, "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": free_port()}
    said = [False] * options.ranks

    def tell(rank, stream):
        for line in stream:
            said[rank] = said[rank] or (options.expect or "") in line
            print(f"[{rank}] {line}", end="", flush=True)

    children = []
    for rank in range(options.ranks):
        variables = {**common, "RANK": rank, "LOCAL_RANK": rank}
        children.append(subprocess.Popen(
            options.command, text=True, errors="replace", stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, **{name: str(value) for name, value in variables.items()}}))
    readers = [threading.Thread(target=tell, args=(rank, child.stdout))
               for rank, child in enumerate(children)]
    for reader in readers:
        reader.start()

    first_failure, deadline = 0, None
    try:
        while any(child.poll() is None for child in children):
            failures = [child.returncode for child in children if child.returncode]
            if failures and deadline is None:
                first_failure, deadline = failures[0], time.monotonic() + GRACE_SECONDS
            if deadline and time.monotonic() > deadline:
                break
            time.sleep(0.02)
    finally:
        for child in children:
            child.kill()
            child.wait()
        for reader in readers:
            reader.join()
    code = first_failure or next((child.returncode for child in children if child.returncode), 0)
    for rank, found in enumerate(said):
        if options.expect and not found:
            print(f"rank {rank} does not print {options.expect!r}", file=sys.stderr)
            code = code or 1
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
