#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits what a call costs (latency, a byte, a rank) to a CSV of bench/collectives.py with two ranks, and computes
from that, by each algorithm's count of messages and bytes, what more ranks would cost.

Usage: cost_model.py CSV…, of which the first has all_reduce and broadcast of rankfold on near CPUs. Prints Markdown.

Measured: times of two ranks. Fitted: a + b · N on three pieces of the sizes; see `PIECES`. Computed: all of more
ranks. A run with more ranks than CPUs measures the scheduler, so it has no part in this: the counts are those of the
algorithms, each scaled so that it gives the fitted time at two ranks.
"""

import argparse
import math
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "support"))
from report import bytes_text, digits, label  # noqa: E402
from rounds import median, read_csv  # noqa: E402

KIB, MIB = 1 << 10, 1 << 20
# Short: a flag and some lines. Middle: data in caches. Long: data in memory, where the latency is that of the middle.
PIECES = {"short": (0, KIB), "middle": (8 * KIB, 4 * MIB), "long": (16 * MIB, 1 << 62)}
PEERS = ("openmpi", "mpich", "gloo")
CHUNK, ONE_SHOT_READS = 512 * KIB, 256 * KIB  # rankfold::tuning's defaults
SIZES = (64, 64 * KIB, 16 * MIB)
RANKS = (2, 8, 16, 64)


def read(paths):
    """{(place, collective, dtype, contestant): {bytes: median µs}} of the counted rounds, and the one-way latency of
    each place in µs. A series is taken from the first file that has it."""
    found, latencies = {}, {}
    for path in paths:
        times, one_way = defaultdict(lambda: defaultdict(list)), defaultdict(list)
        for r in read_csv(path, "hot"):
            if not r.counted:
                continue
            for name, measured in r.measured.items():
                times[r.place, *r.series.split(), name][r.size].append(measured.median_ns / 1e3)
            one_way[r.place].append(r.latency_ns / 1e3)
        for key, sizes in times.items():
            found.setdefault(key, {size: median(values) for size, values in sorted(sizes.items())})
        for place, values in one_way.items():
            latencies.setdefault(place, median(values))
    return found, latencies


def least_squares(points, with_latency):
    """(a, b) of a + b · N, neither below zero, with the least sum of squares of relative errors."""
    if with_latency and len(points) > 1:
        # Normal equations of a/t + b·N/t = 1.
        aa = sum(1 / t**2 for _, t in points)
        ab = sum(n / t**2 for n, t in points)
        bb = sum((n / t) ** 2 for n, t in points)
        ya = sum(1 / t for _, t in points)
        yb = sum(n / t for n, t in points)
        a = (ya * bb - yb * ab) / (aa * bb - ab * ab)
        b = (yb * aa - ya * ab) / (aa * bb - ab * ab)
        if a >= 0 and b >= 0:
            return a, b
        if b < 0:
            return ya / aa, 0.0
    return 0.0, sum(n / t for n, t in points) / sum((n / t) ** 2 for n, t in points)


class Fit:
    """One series: (a, b) of each piece, in µs and µs a byte, and the relative error of each size."""

    def __init__(self, sizes):
        self.pieces, self.errors = {}, {}
        for piece, (low, high) in PIECES.items():
            points = [(n, t) for n, t in sizes.items() if low <= n <= high]
            if not points:
                continue
            a, b = least_squares(points, with_latency=piece != "long")
            if piece == "long":
                a = self.pieces.get("middle", (0, 0))[0]
            self.pieces[piece] = a, b
            self.errors |= {n: (a + b * n) / t - 1 for n, t in points}

    def at(self, size):
        """(a, b) of the piece that `size` lies in, or is nearest to."""
        fitting = [p for p in self.pieces if PIECES[p][0] <= size]
        return self.pieces[fitting[-1] if fitting else next(iter(self.pieces))]


# Of P ranks and N bytes: rounds of messages, and bytes that a rank receives over N.
MESSAGES = {
    "recursive doubling": lambda p: (math.ceil(math.log2(p)), math.ceil(math.log2(p))),
    "ring": lambda p: (2 * (p - 1), 2 * (p - 1) / p),
    "Rabenseifner": lambda p: (2 * math.ceil(math.log2(p)), 2 * (p - 1) / p),
}


def messages(fit, algorithm, ranks, size):
    a, b = fit.at(size)
    (rounds, share), (rounds2, share2) = MESSAGES[algorithm](ranks), MESSAGES[algorithm](2)
    return a * rounds / rounds2 + b * size * share / share2


class Memory:
    """Algorithms over shared memory, by what rankfold's steps cost: `call` µs a call of one step of two ranks, `line`
    µs for the line of each peer more, `write` and `read` µs a byte that a rank stages, and that it reads from peers."""

    def __init__(self, all_reduce, broadcast, line):
        self.all_reduce, self.broadcast, self.line = all_reduce, broadcast, line

    def units(self, size):
        """A broadcast's reader reads while its root stages; an all_reduce of two stages, then reads."""
        call, both = self.all_reduce.at(size)
        read = min(self.broadcast.at(size)[1], both)
        return call, both - read, read

    def time(self, ranks, size, steps, waits, reads):
        """`reads`: how often a rank reads N bytes from peers."""
        call, write, read = self.units(size)
        return waits * call + steps * (ranks - 2) * self.line + size * (write + reads * read)

    def one_shot(self, p, n):
        return self.time(p, n, math.ceil(n / CHUNK), 1, p - 1)

    def two_shot(self, p, n):
        return self.time(p, n, math.ceil(n / CHUNK) + 1, 2, 2 * (p - 1) / p)

    def rankfold(self, p, n):
        return self.two_shot(p, n) if p > 2 and (p - 1) * n > ONE_SHOT_READS else self.one_shot(p, n)

    def deepspeed(self, p, n):
        """Below 1 MiB one-shot over all P copies, its own too; else two-shot, the result of all slices copied."""
        return self.time(p, n, 1, 1, p) if n < MIB else self.time(p, n, 2, 2, 2)

    def vllm(self, p, n):
        return self.time(p, n, 1, 1, p)


def table(rows):
    head, *rest = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|---" + "|---:" * (len(rows[0]) - 1) + "|", *rest])


def fits_table(series, place):
    rows = [["all_reduce and broadcast, fp32, " + place, *(f"{p}: a µs, b ps/B" for p in PIECES), "residual: median, most"]]
    for (where, collective, dtype, name), sizes in series.items():
        if where != place or dtype != "float32" or collective not in ("all_reduce", "broadcast"):
            continue
        if name != "rankfold" and (name not in PEERS or collective == "broadcast"):
            continue
        fit = Fit(sizes)
        worst = max(fit.errors, key=lambda n: abs(fit.errors[n]))
        rows.append([f"{label(name)}, {collective}"])
        for piece in PIECES:
            a, b = fit.pieces.get(piece, (None, None))
            rows[-1].append("" if a is None else f"{digits(a)}, {digits(b * 1e6)}")
        middle = median([abs(e) for e in fit.errors.values()])
        rows[-1].append(f"{middle:.0%}, {fit.errors[worst]:+.0%} at {bytes_text(worst)}")
    return table(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", nargs="+")
    series, latencies = read(parser.parse_args().csv)

    def fit_of(place, name, collective="all_reduce"):
        sizes = series.get((place, collective, "float32", name))
        return Fit(sizes) if sizes else None

    near = fit_of("near", "rankfold"), fit_of("near", "rankfold", "broadcast")
    if None in near:
        parser.error("the files have no all_reduce and broadcast of rankfold in float32 on near CPUs")
    memory = Memory(*near, latencies["near"])
    here = {name: series["near", "all_reduce", "float32", name] for name in ("rankfold", *PEERS)
            if ("near", "all_reduce", "float32", name) in series}
    far = series.get(("far", "all_reduce", "float32", "rankfold"), {})
    rows = [["all_reduce, fp32, µs", *(f"{bytes_text(n)} B, {p}" for n in SIZES for p in RANKS)]]

    def row(name, time, measured=()):
        cells = [(measured[n] if p == 2 and n in measured else time(p, n), p == 2 and n in measured)
                 for n in SIZES for p in RANKS]
        rows.append([name, *(digits(value) + "*" * star for value, star in cells)])

    def over_sockets(p, n):
        """Ranks on two sockets: p / 2 of the p - 1 peers are far, and cost what far CPUs cost two ranks."""
        share = p / 2 / (p - 1)
        return memory.rankfold(p, n) * (1 - share + share * far[n] / here["rankfold"][n])

    row("rankfold: one_shot, two_shot", memory.rankfold, here["rankfold"])
    if all(n in far for n in SIZES):
        row("rankfold, half of the ranks far", over_sockets, far)
    for name in PEERS:
        if name in here:
            ways = ["ring"] if name == "gloo" else list(MESSAGES)
            fit = fit_of("near", name)
            row(f"{label(name)}: {'ring' if name == 'gloo' else 'the fastest of three'}",
                lambda p, n, fit=fit, ways=ways: min(messages(fit, way, p, n) for way in ways), here[name])
    row("DeepSpeed's and SGLang's shm op", memory.deepspeed)
    row("vLLM's shm op", memory.vllm)
    print("Fitted, two ranks:\n")
    print(fits_table(series, "near"))
    _, write, read_ = memory.units(64 * KIB)
    print(f"\nrankfold's units: {digits(memory.line)} µs a line of a peer; in caches {digits(write * 1e6)} ps a byte"
          f" staged and {digits(read_ * 1e6)} ps a byte read from a peer.")
    print("\nComputed; * measured, two ranks:\n")
    print(table(rows))


if __name__ == "__main__":
    main()
