# SPDX-License-Identifier: Apache-2.0
"""Processes that sleep until they are asked to measure: one contestant is one set of them."""

import os
import select
import signal
import subprocess
import time


class Failure(Exception):
    """A contestant that could not start, died, or computed a wrong result."""


class Answer:
    """What one rank measured: nanoseconds a call."""

    def __init__(self, text):
        preemptions, rest = text.split(" b", 1)
        batches, calls = rest.split(" c", 1)
        self.preemptions = int(preemptions)
        self.batches = [float(value) for value in batches.split()]
        self.calls = [float(value) for value in calls.split()]


class Contestant:
    """`command(rank)` gives the argument list of one rank's process, `environment(rank)` what is added to
    its environment; with `launcher`, command(0) starts all `ranks` ranks."""

    def __init__(self, name, folder, command, ranks, *, environment=None, launcher=False):
        self.name = name
        self.ranks = ranks
        self.prefix = os.path.join(folder, name)
        self.log = self.prefix + ".log"
        self.greeting = ""
        self._command = command
        self._environment = environment or (lambda rank: {})
        self._launcher = launcher
        self._processes = []
        self._requests = []
        self._answers = []
        self._pending = []

    def start(self):
        for rank in range(self.ranks):
            for end in ("in", "out"):
                os.mkfifo(f"{self.prefix}.{rank}.{end}")
            # Reading and writing, so that neither end waits for the other to open.
            self._requests.append(os.open(f"{self.prefix}.{rank}.in", os.O_RDWR | os.O_CLOEXEC))
            self._answers.append(
                os.open(f"{self.prefix}.{rank}.out", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            )
            self._pending.append(b"")
        with open(self.log, "wb") as log:
            for rank in [0] if self._launcher else range(self.ranks):
                # Process groups of their own, to end them; no sessions of their own, which a scheduler with
                # autogroups would keep apart: then sched_yield would do nothing for another rank.
                self._processes.append(
                    subprocess.Popen(
                        self._command(rank),
                        env=os.environ | self._environment(rank),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        process_group=0,
                    )
                )

    def wait_until_ready(self, seconds=120):
        for rank in range(self.ranks):
            words = self._read_line(rank, seconds)
            if not words.startswith("ready"):
                raise Failure(f"{self.name}: {words}")
            self.greeting = words.removeprefix("ready").strip()

    def measure(self, request, seconds=300):
        """Sends one request to all ranks; returns their answers."""
        for fd in self._requests:
            os.write(fd, (request + "\n").encode())
        answers = []
        for rank in range(self.ranks):
            line = self._read_line(rank, seconds)
            if not line.startswith("ok "):
                raise Failure(f"{self.name}: {line}")
            answers.append(Answer(line.removeprefix("ok ")))
        return answers

    def _read_line(self, rank, seconds):
        until = time.monotonic() + seconds
        while b"\n" not in self._pending[rank]:
            if select.select([self._answers[rank]], [], [], 0.2)[0]:
                self._pending[rank] += os.read(self._answers[rank], 1 << 16)
            elif any(process.poll() is not None for process in self._processes):
                raise Failure(f"{self.name} ended too early: {self._last_words()}")
            elif time.monotonic() > until:
                raise Failure(f"{self.name} gave no answer in {seconds} s: {self._last_words()}")
        line, self._pending[rank] = self._pending[rank].split(b"\n", 1)
        return line.decode()

    def _last_words(self):
        with open(self.log, errors="replace") as log:
            return log.read().strip()[-2000:] or "it said nothing"

    def stop(self):
        for fd in self._requests:
            os.write(fd, b"quit\n")
        self._end(seconds=10)
        for fd in self._requests + self._answers:
            os.close(fd)

    def kill(self):
        for process in self._processes:
            if process.poll() is None:
                process.terminate()  # a launcher ends its ranks
        self._end(seconds=5)

    def _end(self, seconds):
        for process in self._processes:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
