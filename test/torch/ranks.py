# SPDX-License-Identifier: Apache-2.0
"""Runs functions of test modules on ranks that are processes.

    with Ranks(2, extension) as ranks:
        first, second = ranks(function, argument)      # function(here, argument) on each of them

`here` (see Here) has the rank, the size and the ops. Each call has a deadline, after which the processes
are killed; so a collective that hangs is a failed test. This file is also the program of a rank.
"""

import ctypes
import datetime
import importlib
import io
import multiprocessing.connection
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import uuid

import torch

NAMESPACE = "rankfold_example"  # of examples/torch_extension.cpp


class RanksFailed(AssertionError):
    pass


def send(pipe, value):
    # pipe.send would share tensors' memory, and pickle alone does not take every dtype.
    buffer = io.BytesIO()
    torch.save(value, buffer)
    pipe.send_bytes(buffer.getbuffer())


def receive(pipe):
    return torch.load(io.BytesIO(pipe.recv_bytes()), weights_only=False)


class Here:
    """What a function on a rank is given."""

    def __init__(self, rank, size, ops):
        self.rank, self.size, self.ops = rank, size, ops

    @property
    def order(self):
        return self.ops.order()


def run_example(path, *arguments):
    """What rank 0 of a program in examples/ prints, run on two ranks."""
    root = pathlib.Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, root / "tools" / "launch.py", "2", sys.executable, root / "examples" / path, *arguments],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:1 attempts:1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    assert run.returncode == 0, run.stdout
    return [line.removeprefix("[0] ") for line in run.stdout.splitlines() if line.startswith("[0] ")]


class Ranks:
    def __init__(self, size, extension, init=True, **environment):
        self.size, self.extension, self.init, self.environment = size, extension, init, environment
        self.processes, self.pipes = [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def program(self, rank):
        """What runs this file as that rank."""
        return [sys.executable]

    def start(self):
        run = uuid.uuid4().hex  # so that runs on this host never meet
        for rank in range(self.size):
            pipe, theirs = multiprocessing.connection.Pipe()
            environment = {
                **os.environ,
                "RANK": str(rank), "WORLD_SIZE": str(self.size), "TORCHELASTIC_RUN_ID": run,
                "RANKFOLD_TIMEOUT": "240",
                "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1",
                "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
                **self.environment,
            }
            self.processes.append(subprocess.Popen(
                [*self.program(rank), __file__, str(theirs.fileno()), self.extension, str(int(self.init))],
                env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL))
            theirs.close()
            self.pipes.append(pipe)

    def end(self):
        """Ends the processes as they are: whoever waits for their exit uses `leave`."""
        self.kill()
        for process in self.processes:
            process.wait()
        for pipe in self.pipes:
            pipe.close()
        self.processes, self.pipes = [], []

    def leave(self, only=None, seconds=60):
        """Lets processes come to the end of their program; their exit codes."""
        asked = list(range(self.size) if only is None else only)
        for rank in asked:
            self.pipes[rank].close()  # that is what they wait for
        return [self.processes[rank].wait(seconds) for rank in asked]

    def kill(self, how=signal.SIGKILL, only=None):
        for rank in range(len(self.processes)) if only is None else only:
            self.processes[rank].send_signal(how)

    def send(self, function, *arguments, only=None, **options):
        """Starts a call on all ranks, or on `only` those."""
        if not self.processes:
            self.start()
        for rank in range(self.size) if only is None else only:
            send(self.pipes[rank], (function.__module__, function.__qualname__, arguments, options))

    def receive(self, seconds=300, only=None):
        """Their results, in rank order; RanksFailed with all tracebacks if one raised or is late."""
        asked = list(range(self.size) if only is None else only)
        deadline = time.monotonic() + seconds
        answers, problems = {}, []
        for rank in asked:
            try:
                # Once one has failed, the others are not waited for as long.
                limit = deadline if not problems else min(deadline, time.monotonic() + 5)
                if not self.pipes[rank].poll(max(0, limit - time.monotonic())):
                    problems.append(f"rank {rank}: no answer within {seconds} s")
                    continue
                good, answers[rank] = receive(self.pipes[rank])
                if not good:
                    problems.append(f"rank {rank}: {answers[rank]}")
            except (EOFError, ConnectionError):
                problems.append(f"rank {rank}: ended with {self.processes[rank].wait()}")
        if problems:
            self.end()
            raise RanksFailed("\n".join(problems))
        return [answers[rank] for rank in asked]

    def __call__(self, function, *arguments, seconds=300, **options):
        self.send(function, *arguments, **options)
        return self.receive(seconds)


def import_file(path):
    """The Python module that this file is."""
    path = pathlib.Path(path)
    sys.path.insert(0, str(path.parent))
    return importlib.import_module(path.name.split(".")[0])


def join(here, backend, module, file):
    if module:
        import_file(module)
    torch.distributed.init_process_group(
        backend, init_method=f"file://{file}", rank=here.rank, world_size=here.size,
        timeout=datetime.timedelta(seconds=60))


class ProcessGroup(Ranks):
    """Ranks with a default process group of a backend, which the Python module `module` registers."""

    def __init__(self, size, backend, module="", **environment):
        # gloo asks for the name of this host; a name server that is slow would make it wait.
        super().__init__(size, "", init=False, GLOO_SOCKET_IFNAME="lo", **environment)
        self.backend, self.module = backend, module
        self.folder = tempfile.TemporaryDirectory()

    def start(self):
        super().start()
        self(join, self.backend, self.module, f"{self.folder.name}/{uuid.uuid4().hex}", seconds=120)

    def __exit__(self, *_):
        super().__exit__()
        self.folder.cleanup()


def serve(descriptor, extension, init):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not to outlive the tests
    pipe = multiprocessing.connection.Connection(descriptor)
    here = None
    while True:
        try:
            module, name, arguments, options = receive(pipe)
        except EOFError:
            return
        try:
            if here is None:
                torch.set_num_threads(1)
                if extension:
                    torch.ops.load_library(extension)
                ops = getattr(torch.ops, NAMESPACE)
                if init:
                    ops.init()
                here = Here(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), ops)
            function = importlib.import_module(module)
            for part in name.split("."):
                function = getattr(function, part)
            answer = (True, function(here, *arguments, **options))
        except BaseException:
            answer = (False, traceback.format_exc())
        send(pipe, answer)


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    sys.modules["ranks"] = sys.modules["__main__"]
    serve(int(sys.argv[1]), sys.argv[2], sys.argv[3] == "1")
