# SPDX-License-Identifier: Apache-2.0
"""What one round at one size measured."""

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
