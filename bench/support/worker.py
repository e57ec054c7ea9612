# SPDX-License-Identifier: Apache-2.0
"""One rank of a contestant that is called from Python: the twin of worker.hpp, same requests and answers."""

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

import torch

now = time.perf_counter_ns
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def clock_overhead_ns():
    samples = []
    for _ in range(1001):
        begin = now()
        samples.append(now() - begin)
    return sorted(samples)[500]


@dataclass
class Request:
    collective: str
    dtype: str
    bytes: int
    mode: str
    placement: str
    warmup: int
    batch: int
    batches: int
    calls: int

    @classmethod
    def parse(cls, words):
        collective, dtype, size, mode, placement, *numbers = words
        return cls(collective, dtype, int(size), mode, placement, *map(int, numbers))

    @property
    def count(self):
        return self.bytes // DTYPES[self.dtype].itemsize


def last_level_cache_bytes():
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text()
        return int(text.strip().removesuffix("K")) << 10
    except (OSError, ValueError):
        return 32 << 20


class Buffers:
    """Tensors over one arena: one that stays hot, or so many that each is cold when its turn comes."""

    def __init__(self):
        self.arena = torch.empty(0, dtype=torch.uint8)

    def tensors(self, asked):
        stride = (asked.bytes + 4095) // 4096 * 4096 + 64
        turns = 2 * last_level_cache_bytes() // stride + 2 if asked.mode == "cold" else 1
        if self.arena.numel() < stride * turns:
            self.arena = torch.zeros(stride * turns, dtype=torch.uint8)
        dtype = DTYPES[asked.dtype]
        return [self.arena[turn * stride : turn * stride + asked.bytes].view(dtype) for turn in range(turns)]


class OtherWork:
    """1 ms of reading memory, as inference reads weights."""

    def __init__(self):
        self.weights = None
        self.position = 0

    def run(self):
        if self.weights is None:
            self.weights = torch.ones(8 << 20, dtype=torch.int64).split(1 << 15)
        end = now() + 1_000_000
        while now() < end:
            self.weights[self.position].sum()
            self.position = (self.position + 1) % len(self.weights)


class Measurer:
    def __init__(self, rank, size):
        self.rank = rank
        self.size = size
        self.buffers = Buffers()
        self.work = OtherWork()
        self.verified = set()
        self.overhead = clock_overhead_ns()

    def values(self, rank, asked):
        index = torch.arange(asked.count, dtype=torch.int64)
        return ((index * 7 + rank * 13) % 31 - 15).to(DTYPES[asked.dtype])

    def verify(self, asked, tensor, call):
        tensor.copy_(self.values(self.rank, asked))
        found = call(tensor)
        expected = sum(self.values(rank, asked).float() for rank in range(self.size))
        if not torch.equal(found.float(), expected):
            raise RuntimeError(
                f"wrong result on rank {self.rank}, {asked.count} {asked.dtype} {asked.placement}"
            )

    def measure(self, asked, call):
        """call(tensor) returns the tensor that holds the result."""
        tensors = self.buffers.tensors(asked)
        what = (asked.dtype, asked.bytes, asked.placement)
        if what not in self.verified:
            self.verify(asked, tensors[0], call)
            self.verified.add(what)
        for tensor in tensors:
            tensor.fill_(1)
        paced = asked.mode == "paced"
        turn = 0

        if paced:
            self.work.run()
        for _ in range(asked.warmup):
            turn = (turn + 1) % len(tensors)
            call(tensors[turn])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        batches = []
        hot = tensors[0]
        rounds = range(asked.batch)
        for _ in range(asked.batches):
            if paced:
                self.work.run()
            if len(tensors) == 1:
                begin = now()
                for _ in rounds:
                    call(hot)
                end = now()
            else:
                turns = [tensors[(turn + i + 1) % len(tensors)] for i in rounds]
                turn += asked.batch
                begin = now()
                for tensor in turns:
                    call(tensor)
                end = now()
            batches.append(max(0, end - begin - self.overhead) / asked.batch)
        calls = []
        for _ in range(asked.calls):
            turn = (turn + 1) % len(tensors)
            tensor = tensors[turn]
            begin = now()
            call(tensor)
            calls.append(max(0, now() - begin - self.overhead))
        after = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        return batches, calls, after - before


def pin(cpus, rank):
    if cpus != "any":
        os.sched_setaffinity(0, [int(cpus.split(",")[rank])])


def serve(prefix, rank, size, greeting, call_for):
    """Answers requests until told to quit; call_for(placement) gives what Measurer.measure calls."""
    with (
        open(f"{prefix}.{rank}.in") as requests,
        open(f"{prefix}.{rank}.out", "w") as answers,
    ):

        def answer(text):
            print(text, file=answers, flush=True)

        measurer = Measurer(rank, size)
        answer(f"ready {greeting}")
        for line in requests:
            what, *words = line.split()
            if what == "quit":
                return
            try:
                asked = Request.parse(words)
                batches, calls, preemptions = measurer.measure(asked, call_for(asked.placement))
                b = " ".join(f"{value:.1f}" for value in batches)
                c = " ".join(f"{value:.1f}" for value in calls)
                answer(f"ok {preemptions} b {b} c {c}")
            except Exception as error:
                answer(f"error {type(error).__name__}: {error}".replace("\n", " "))
                raise
