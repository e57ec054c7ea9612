# SPDX-License-Identifier: Apache-2.0
"""Measures all_reduce over several "hosts" of this machine (network namespaces joined by a bridge, TCP between
them): rankfold's hierarchical transport against MPI_Allreduce of Open MPI and of MPICH, in one program, in turn.
Needs root. See docs/performance.md.

usage: sh bench/run.sh --hosts [--layouts 2x2,2x1] [--launches 9] [--rounds 5] [--largest 16777216] [--update-docs]
"""

import argparse
import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE / "support"), str(ROOT / "test" / "mpi")]
os.environ.setdefault("RANKFOLD_MPI_FOLDER", str(ROOT / "build/bench/bench"))
import machine  # noqa: E402
import publish  # noqa: E402
from report import bytes_text  # noqa: E402
from rounds import median  # noqa: E402

TITLES = {"openmpi": "Open MPI", "mpich": "MPICH"}


def measure(mpi, layout, arguments):
    """{bytes: [(hierarchical, mpi, flat), …]} and what the program says of itself."""
    import hosts
    import launcher

    launcher.name = mpi
    found, about = {}, ""
    program = ROOT / f"build/bench/bench/bench_hosts_{mpi}"
    for _ in range(arguments.launches):  # which ranks share a CPU is the system's choice, once a launch
        with hosts.Hosts(len(layout)) as network:
            result = network.run(layout, [str(program), str(arguments.largest), str(arguments.rounds)], timeout=1800)
        if result.code != 0:
            sys.exit(f"bench: {TITLES[mpi]} on {layout}: exit code {result.code}")
        for line in result.output.splitlines():
            if line.startswith("# "):
                about = line[2:]
            elif re.fullmatch(r"\d+ \d+( [\d.]+){3}", line):
                size, _, *times = line.split()
                found.setdefault(int(size), []).append(tuple(map(float, times)))
    return found, about


def table(found):
    rows = ["| bytes | rankfold, two levels | MPI_Allreduce | rankfold over MPI alone | MPI / two levels |",
            "|---:|---:|---:|---:|---:|"]
    for size, rounds in sorted(found.items()):
        times = [median([r[i] for r in rounds]) for i in range(3)]
        ratio = median([r[1] / r[0] for r in rounds])
        rows.append(f"| {bytes_text(size)} | {times[0]:.1f} | {times[1]:.1f} | {times[2]:.1f} | {ratio:.2f}× |")
    return "\n".join(rows)


def verdicts(layout, found):
    ratios = {size: median([r[1] / r[0] for r in rounds]) for size, rounds in found.items()}
    missed = [f"{bytes_text(s)} ({ratio:.2f}×)" for s, ratio in ratios.items() if ratio < 1 / 1.1]
    yield f"at most 1.1 times MPI's time at any size: {'NOT MET at ' + ', '.join(missed) if missed else 'met'}"
    if layout == [2, 2]:
        missed = [f"{bytes_text(s)} ({ratio:.2f}×)" for s, ratio in ratios.items() if s >= 65536 and ratio < 1.3]
        yield f"at least 1.3 times faster from 64 KiB: {'NOT MET at ' + ', '.join(missed) if missed else 'met'}"


def main():
    parser = argparse.ArgumentParser(prog="bench/run.sh --hosts", description=__doc__.split("\n\n")[0])
    parser.add_argument("--layouts", default="2x2,2x1", help="HOSTSxRANKS, …")
    parser.add_argument("--mpis", default="openmpi,mpich")
    parser.add_argument("--launches", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=5, help="of a launch")
    parser.add_argument("--largest", type=int, default=16 << 20)
    parser.add_argument("--update-docs", action="store_true")
    arguments = parser.parse_args()
    description = machine.describe(ROOT, machine.usable_cpus())
    parts = [f"- {description['date']}, commit {description['commit']}"
             + (" with changes" if description["changed"] else "") + f", {description['cpu']}, "
             f"{len(description['cpus'])} CPUs, load {os.getloadavg()[0]:.1f}",
             f"- command: `sh bench/run.sh --hosts {' '.join(sys.argv[1:])}`".replace(" `", "`")]
    for text in arguments.layouts.split(","):
        hosts, ranks = map(int, text.split("x"))
        layout = [ranks] * hosts
        for mpi in arguments.mpis.split(","):
            found, about = measure(mpi, layout, arguments)
            parts.append(f"\n### {text}: {about}\n\nMicroseconds a call, median of {arguments.launches} launches of {arguments.rounds} rounds:\n")
            parts.append(table(found))
            parts += [f"\n{verdict}" for verdict in verdicts(layout, found)]
    page = "\n".join(parts) + "\n"
    print(page)
    if arguments.update_docs:
        publish.replace_section("hosts", page)


if __name__ == "__main__":
    main()
