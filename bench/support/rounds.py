# SPDX-License-Identifier: Apache-2.0
"""What one round at one size measured."""

import csv

NEAR_NS = 150


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


class Measurement:
    """A contestant in a round: the slower rank's times, or, where ranks arrive at different times, each
    call's time on the rank that came last."""

    def __init__(self, answers, mode):
        if mode == "paced":
            calls = [min(times) for times in zip(*(answer.batches for answer in answers))]
            self.median_ns = median(calls)
            self.calls = calls
        else:
            slower = max(answers, key=lambda answer: median(answer.batches))
            self.median_ns = median(slower.batches)
            self.calls = slower.calls or slower.batches
        self.preemptions = sum(answer.preemptions for answer in answers)
        self.p99_ns = percentile(self.calls, 0.99)


class Recorded:
    """A contestant in a round, as a file has it."""

    def __init__(self, median_ns, p99_ns):
        self.median_ns = median_ns
        self.p99_ns = p99_ns


class Round:
    def __init__(self, series, size, mode):
        self.number = 0
        self.series = series  # collective and element type
        self.size = size
        self.mode = mode
        self.measured = {}
        self.limits = {}
        self.latency_ns = None
        self.counted = False
        self.place = "any"

    def add(self, name, answers):
        self.measured[name] = Measurement(answers, self.mode)

    def set_latency(self, before, after, agreement):
        """Where ranks are not pinned there is no latency, and every round counts."""
        if before is None:
            self.counted = True
            return
        self.latency_ns = (before + after) / 2
        self.counted = max(before, after) <= agreement * min(before, after)
        self.place = "near" if self.latency_ns < NEAR_NS else "far"

    def limit_ns(self):
        """The largest lower bound that holds at this size."""
        best = min(self.limits.values(), default=0)
        return max(best, self.latency_ns or 0)


HEAD = "round counted place one_way_ns collective dtype bytes contestant median_ns p99_ns".split()
LIMIT = "limit, "


def write_csv(path, rounds):
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(HEAD)
        for r in rounds:
            common = [r.number, int(r.counted), r.place, f"{r.latency_ns or 0:.1f}", *r.series.split(), r.size]
            for name, measured in r.measured.items():
                rows.writerow([*common, name, f"{measured.median_ns:.1f}", f"{measured.p99_ns:.1f}"])
            for kind, ns in r.limits.items():
                rows.writerow([*common, LIMIT + kind, f"{ns:.1f}", ""])


def read_csv(path, mode):
    """The rounds that write_csv wrote: medians and percentiles, not the single calls."""
    rounds = {}
    with open(path, newline="") as file:
        rows = csv.DictReader(file)
        if rows.fieldnames != HEAD:
            raise ValueError(f"{path} is no file of this bench: its first line should be {','.join(HEAD)}")
        for row in rows:
            series, size = f"{row['collective']} {row['dtype']}", int(row["bytes"])
            key = row["round"], series, size
            if key not in rounds:
                result = rounds[key] = Round(series, size, mode)
                result.number = int(row["round"])
                result.counted = row["counted"] == "1"
                result.place = row["place"]
                result.latency_ns = float(row["one_way_ns"]) or None
            name, ns = row["contestant"], float(row["median_ns"])
            if name.startswith(LIMIT):
                rounds[key].limits[name.removeprefix(LIMIT)] = ns
            else:
                rounds[key].measured[name] = Recorded(ns, float(row["p99_ns"]))
    return list(rounds.values())
