#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of torch.distributed, as the installed torch has them, run on a backend.

usage: upstream.py [--module PATH] [--like gloo|mpi] [--ranks N] [--jobs N] [--only REGEX] [--json FILE] BACKEND

The tests are torch/testing/_internal/distributed/distributed_test.py, unchanged. They skip themselves by the
names of backends that their authors know: such a check sees the name that --like gives (gloo unless it is
told), while the process groups are of BACKEND. So a new backend has to pass what that one has to. --like mpi
runs the tests of all_to_all, which upstream does not ask of gloo, and, from 4 ranks on, those of groups that are
not of all ranks, which it asks of others from 8 ranks on.

PATH is the Python module that registers BACKEND. Upstream spawns new processes for each of some 300 tests, and
importing torch takes each seconds: here they are forked from one that has it.
"""

import argparse
import contextlib
import ctypes
import importlib
import io
import json
import multiprocessing.connection
import os
import pathlib
import re
import signal
import sys
import tempfile
import time
import unittest
from unittest import mock

# Tests that a backend of another name cannot pass.
EXPLAINED = {
    "test_ddp_logging_data_cpu": "torch's log of DDP names every backend that is not torch's own `custom`",
}

class Name(str):
    """The name of a backend that the tests also take for `like`."""

    def __new__(cls, name, like):
        self = super().__new__(cls, name)
        self.like = like
        return self

    def __eq__(self, other):
        return str.__eq__(self, other) or str.__eq__(self.like, other)

    def __ne__(self, other):
        return not self == other

    __hash__ = str.__hash__


def load(backend, like, ranks):
    """The class of all tests. Its decorators look at the environment when they are defined: at `like` then."""
    os.environ.update(BACKEND=like, WORLD_SIZE=str(ranks), TEMP_DIR=tempfile.gettempdir(),
                      INIT_METHOD="file://", OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    import torch
    import torch.distributed as dist
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed import distributed_test as upstream

    if ranks < 4:  # what asks the environment later takes MPI for reason enough to run with few ranks
        os.environ["BACKEND"] = backend
    if like != backend:
        upstream.BACKEND = Name(backend, like)
        for lists in (upstream.PROFILING_SUPPORTED_BACKENDS, upstream.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
            lists.append(backend)
        # torch asks for the name gloo before it calls the backend.
        monitored_barrier = dist.monitored_barrier

        def as_gloo(*arguments, **options):
            with mock.patch.object(dist.distributed_c10d, "get_backend", lambda group=None: dist.Backend.GLOO):
                return monitored_barrier(*arguments, **options)

        dist.monitored_barrier = as_gloo
    torch.set_num_threads(1)

    class Cases(upstream.TestDistBackend, upstream.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, *arguments, **options):
            end_with_parent()
            upstream.INIT_METHOD = os.environ["INIT_METHOD"]  # of this test
            super()._run(*arguments, **options)

        def _check_return_codes(self, function, seconds):
            super()._check_return_codes(function, seconds)
            # Upstream looks at the first rank's alone.
            died = {rank: -process.exitcode for rank, process in enumerate(self.processes) if process.exitcode < 0}
            self.assertEqual(died, {}, "ranks died by a signal")

    common_distributed.TIMEOUT_DEFAULT = 100
    return Cases


def end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def names(cases):
    """Those that may take long come first."""
    def order(name):
        return ("uneven" not in name and "ddp" not in name.lower() and "timeout" not in name, name)

    return sorted(unittest.TestLoader().getTestCaseNames(cases), key=order)


@contextlib.contextmanager
def output_to(file):
    """What this process and its children print goes into the file."""
    kept = os.dup(1), os.dup(2)
    for target in (1, 2):
        os.dup2(file.fileno(), target)
    yield
    sys.stdout.flush()
    sys.stderr.flush()
    for target, old in zip((1, 2), kept):
        os.dup2(old, target)
        os.close(old)


def run(cases, name):
    """(outcome, why, seconds): outcome is passed, failed or skipped."""
    begin, result = time.monotonic(), unittest.TestResult()
    with tempfile.TemporaryFile() as log:
        with output_to(log), contextlib.redirect_stdout(io.StringIO()):
            unittest.TestSuite([cases(name)]).run(result)
        log.seek(0)
        said = log.read().decode(errors="replace")
    problems = [*result.failures, *result.errors]
    if problems:
        outcome, why = "failed", f"{said}\n{problems[0][1]}"
    elif result.skipped:
        outcome, why = "skipped", result.skipped[0][1]
    else:
        outcome, why = "passed", ""
    return outcome, why, round(time.monotonic() - begin, 2)


def work(cases, all_names, place, pipe):
    """Takes one test after the other from the list that all workers share."""
    end_with_parent()
    tempfile.tempdir = tempfile.mkdtemp()  # of this worker alone
    while True:
        with place.get_lock():
            at = place.value
            place.value += 1
        if at >= len(all_names):
            return
        pipe.send((all_names[at], *run(cases, all_names[at])))


def run_all(cases, all_names, jobs, tell=lambda *_: None):
    """Name -> (outcome, why, seconds)."""
    context = multiprocessing.get_context("fork")
    place, workers, pipes, found = context.Value("i", 0), [], [], {}
    for _ in range(jobs):
        pipe, theirs = context.Pipe(duplex=False)
        workers.append(context.Process(target=work, args=(cases, all_names, place, theirs)))
        workers[-1].start()
        theirs.close()
        pipes.append(pipe)
    while pipes:
        for pipe in multiprocessing.connection.wait(pipes):
            try:
                name, *found[name] = pipe.recv()
                tell(name, *found[name])
            except EOFError:
                pipes.remove(pipe)
    for worker in workers:
        worker.join()
    for name in set(all_names) - set(found):
        found[name] = "failed", "the process that ran it ended before", 0
        tell(name, *found[name])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("backend")
    parser.add_argument("--module", type=pathlib.Path, help="the Python module that registers the backend")
    parser.add_argument("--like", default="gloo", choices=["gloo", "mpi"], help="whose tests (default gloo)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=4, help="how many tests at a time; most of them wait")
    parser.add_argument("--only", default="", help="tests whose name has this regular expression")
    parser.add_argument("--json", type=pathlib.Path, help="where to write the results")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        cases = load(options.backend, options.like, options.ranks)
        if options.module:
            sys.path.insert(0, str(options.module.parent))
            importlib.import_module(options.module.name.split(".")[0])
        chosen = [name for name in names(cases) if re.search(options.only, name)]

        def tell(name, outcome, why, seconds):
            print(f"{outcome:8}{seconds:6.1f} s  {name}", flush=True)
            if outcome == "failed":
                print("    " + why.replace("\n", "\n    "), flush=True)

        found = run_all(cases, chosen, options.jobs, tell)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    count = {outcome: sum(each[0] == outcome for each in found.values()) for outcome in ("passed", "failed", "skipped")}
    print(", ".join(f"{number} {outcome}" for outcome, number in count.items()))
    return count["failed"] > 0


if __name__ == "__main__":
    sys.exit(main())
