# SPDX-License-Identifier: Apache-2.0
"""Measures collectives of rankfold and its peers in one run, interleaved in rounds. See docs/performance.md.

Every contestant is a set of processes, one a rank, pinned one a CPU, asleep until their turn. In a round, at
every size, a ping-pong between the CPUs is taken, then every contestant in random order, then the ping-pong
again; the round counts only if both agree within 1.3x. Ratios are taken within a round.
"""

import argparse
import os
import random
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "support"))
import machine  # noqa: E402
import publish  # noqa: E402
import report  # noqa: E402
from contestant import Contestant, Failure  # noqa: E402
from rounds import Round, median  # noqa: E402

ROOT = HERE.parent
AGREEMENT = 1.3
SMALLEST, LARGEST = 8, 64 << 20
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]
DTYPES = ("float32", "bfloat16")
QUICK = [8, 64, 1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20]
FIRST_STREAMING, LAST_EXCHANGE = 1 << 20, 4 << 20


def size_of(text):
    units = {"K": 1 << 10, "M": 1 << 20}
    return int(text[:-1]) * units[text[-1]] if text[-1:].upper() in units else int(text)


def sizes_of(text):
    """'8-64M' (powers of two) or '64,1K,1M'."""
    if "-" in text:
        low, high = (size_of(end.upper()) for end in text.split("-"))
        sizes = []
        while low <= high:
            sizes.append(low)
            low *= 2
        return sizes
    return [size_of(size.upper()) for size in text.split(",")]


def parse_arguments():
    parser = argparse.ArgumentParser(prog="bench/run.sh", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer sizes and rounds; for a look, not for a claim")
    add("--sizes", type=sizes_of, help="such as 8-64M (powers of two) or 64,8K,1M")
    add("--collectives", default="all_reduce", help=f"'all', or of: {', '.join(COLLECTIVES)}")
    add("--dtypes", help="default float32,bfloat16; float32 where other collectives are measured, too")
    add("--ranks", type=int, default=2, help="default 2; more than CPUs: not pinned")
    add("--rounds", type=int, help="counted rounds wanted of every size (default 9, --quick 3)")
    add("--cold", action="store_true", help="rotate buffers through more than the last-level cache")
    add("--paced", action="store_true", help="1 ms of other work between two calls")
    add("--out-of-place", action="store_true", help="where the contestant can")
    add("--transports", action="store_true", help="rankfold over threads and over each MPI as well")
    add("--only", help="contestants to run, such as rankfold,openmpi")
    add("--milliseconds", type=float, help="of measuring, per contestant, size and round")
    add("--minutes", type=float, default=30, help="end after this time, whatever was counted")
    add("--build", type=Path, default=ROOT / "build/bench", help="folder with the built contestants")
    add("--output", type=Path, help="folder for results (default: results in the build folder)")
    add("--update-docs", action="store_true", help="write pictures and tables into docs/performance.md")
    add(
        "--variant",
        action="append",
        default=[],
        metavar="NAME[@BINARY]:KEY=VALUE,…",
        help="rankfold once more, with other options (collectives/rankfold.cpp) or another binary",
    )
    arguments = parser.parse_args()
    if arguments.cold and arguments.paced:
        parser.error("--cold and --paced exclude each other")
    arguments.mode = "cold" if arguments.cold else "paced" if arguments.paced else "hot"
    arguments.placement = "out_of_place" if arguments.out_of_place else "in_place"
    arguments.sizes = arguments.sizes or (QUICK if arguments.quick else sizes_of(f"{SMALLEST}-{LARGEST}"))
    arguments.rounds = arguments.rounds or (3 if arguments.quick else 9)
    arguments.milliseconds = arguments.milliseconds or (5 if arguments.quick else 10)
    arguments.collectives = COLLECTIVES if arguments.collectives == "all" else arguments.collectives.split(",")
    if unknown := set(arguments.collectives) - set(COLLECTIVES):
        parser.error(f"unknown collectives: {', '.join(sorted(unknown))}")
    default_dtypes = "float32,bfloat16" if arguments.collectives == ["all_reduce"] else "float32"
    arguments.dtypes = (arguments.dtypes or default_dtypes).split(",")
    arguments.output = arguments.output or arguments.build / "results"
    return arguments


def contestants_of(arguments, folder, cpus):
    """All that are built and wanted, by name. A new one is a few lines here and a program that speaks the
    protocol of support/worker.hpp."""
    ranks = arguments.ranks
    where = ",".join(map(str, cpus)) or "any"
    found = {}

    def add(name, command, dtypes=DTYPES, collectives=COLLECTIVES, in_place_only=False,
            **options):
        wanted = arguments.only is None or name in arguments.only.split(",") or ":" in name
        if wanted and not (in_place_only and arguments.out_of_place):
            contestant = Contestant(name.rstrip(":"), folder, command, ranks, **options)
            contestant.series = {f"{c} {dtype}" for c in collectives for dtype in dtypes}
            found[contestant.name] = contestant

    def torchrun(name):
        """The environment that torchrun would set."""
        return lambda rank: {
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": f"bench-{os.getpid()}-{name}",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }

    def rankfold(name, binary, options=()):
        add(
            name,
            lambda rank: [binary, f"{folder}/{name.rstrip(':')}", where, *options],
            environment=torchrun(name),
        )

    binary = arguments.build / "bench/bench_rankfold"
    if binary.exists():
        rankfold("rankfold", binary)
        if arguments.transports:
            add(
                "rankfold_threads",
                lambda rank: [binary, f"{folder}/rankfold_threads", where, f"threads={ranks}"],
                launcher=True,
            )
    for variant in arguments.variant:
        name, _, options = variant.partition(":")
        name, _, other = name.partition("@")
        if other and not Path(other).exists():
            raise Failure(f"--variant {variant}: there is no {other}")
        rankfold(name + ":", Path(other) if other else binary, list(filter(None, options.split(","))))

    def torch(name, *options, **more):
        script = HERE / "collectives/torch_peers.py"
        add(
            name,
            lambda rank: [sys.executable, script, f"{folder}/{name}", where, *options],
            environment=torchrun(name),
            collectives=["all_reduce"],
            **more,
        )

    extension = arguments.build / "bench/bench_torch.so"
    if extension.exists():
        torch("torch_op", "rankfold", f"library={extension}", "namespace=rankfold_bench")
    try:
        import torch as torch_module

        if torch_module.distributed.is_gloo_available():
            torch("gloo", "gloo", in_place_only=True)
    except ImportError:
        pass

    # An MPI is measured if its program was built and its launcher is there.
    crowded = ranks > len(os.sched_getaffinity(0))
    for name, launchers, options, environment in [
        (
            "openmpi",
            ["mpirun.openmpi", "mpirun"],
            ["--bind-to", "none", *(["--oversubscribe"] if crowded else [])],
            {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
        ),
        ("mpich", ["mpiexec.hydra", "mpiexec.mpich"], ["-bind-to", "none"], {}),
    ]:
        launcher = next(filter(None, map(shutil.which, launchers)), None)
        for called, dtypes in [(name, ("float32",)), *([(f"rankfold_{name}", DTYPES)] if arguments.transports else [])]:
            program = arguments.build / f"bench/bench_{called}"
            if program.exists() and launcher is not None:
                command = [launcher, "-n", str(ranks), *options, program, f"{folder}/{called}", where]
                add(
                    called,
                    lambda rank, command=command: command,
                    dtypes=dtypes,
                    environment=lambda rank, environment=environment: environment,
                    launcher=True,
                )
    return found


class Plan:
    """How many calls a contestant makes at a size, so that a measurement takes about the time given."""

    def __init__(self, call_ns, budget_ns, mode):
        if mode == "paced":
            self.batch, self.batches, self.calls, self.warmup = 1, 20, 0, 1
        elif call_ns > 4000:
            self.batch, self.calls = 1, 0
            self.batches = min(max(int(budget_ns / call_ns), 4), 1000)
            self.warmup = min(max(self.batches // 10, 1), 20)
        else:  # the clock would weigh too much in a single call
            self.batch = int(10_000 / call_ns) + 1
            self.batches = max(int(budget_ns / 2 / (self.batch * call_ns)), 10)
            self.calls = min(int(budget_ns / 2 / (call_ns + 100)), 1000)
            self.warmup = 100

    def __str__(self):
        return f"{self.warmup} {self.batch} {self.batches} {self.calls}"


class Bench:
    def __init__(self, arguments, limits, contestants):
        self.arguments = arguments
        self.limits = limits
        self.contestants = contestants
        self.plans = {}

    def one_way_ns(self):
        """Of a cache line between the two CPUs; None where ranks are not pinned."""
        if self.limits is None:
            return None
        (answer,) = self.limits.measure("measure all_reduce latency 8 hot in_place 500 50 40 0")
        return median(answer.batches)

    def limit_ns(self, collective, size):
        """By kind; see collectives/limit.cpp."""
        found = {}
        if self.limits is None or self.arguments.mode != "hot":
            return found
        budget = self.arguments.milliseconds * 1e6
        if size <= LAST_EXCHANGE:
            count = min(max(int(budget / 2 / (500 + size / 4)), 5), 1000)
            (answer,) = self.limits.measure(f"measure {collective} exchange {size} hot in_place 5 1 {count} 0")
            found["exchange"] = median(answer.batches)
        if size >= FIRST_STREAMING:
            count = min(max(int(budget / 3 / (size / 8)), 3), 50)
            (answer,) = self.limits.measure(f"measure {collective} streaming {size} hot in_place 1 1 {count} 0")
            found["streaming"] = median(answer.batches)
        return found

    def ask(self, contestant, series, size, plan):
        arguments = self.arguments
        return contestant.measure(f"measure {series} {size} {arguments.mode} {arguments.placement} {plan}")

    def plan(self, contestant, series, size):
        key = contestant.name, series, size
        if key not in self.plans:
            budget = self.arguments.milliseconds * 1e6
            plan = "1 1 3 0"
            for _ in range(2):  # the first try counts little; a short call needs a longer second one
                answers = self.ask(contestant, series, size, plan)
                call_ns = max(median(answer.batches) for answer in answers)
                plan = Plan(max(call_ns, 20), budget / 4, self.arguments.mode)
                if call_ns > 100_000:
                    break
            self.plans[key] = Plan(max(call_ns, 20), budget, self.arguments.mode)
        return self.plans[key]

    def round(self, series, size):
        result = Round(series, size, self.arguments.mode)
        able = [c for c in self.contestants.values() if series in c.series]
        plans = {contestant.name: self.plan(contestant, series, size) for contestant in able}
        random.shuffle(able)
        before = self.one_way_ns()
        for contestant in able:
            answers = self.ask(contestant, series, size, plans[contestant.name])
            result.add(contestant.name, answers)
        result.limits = self.limit_ns(series.split()[0], size)
        result.set_latency(before, self.one_way_ns(), AGREEMENT)
        return result


def run(arguments, folder, description):
    usable = machine.usable_cpus()
    pinned = arguments.ranks <= len(usable)
    cpus = usable[: arguments.ranks] if pinned else []
    contestants = contestants_of(arguments, folder, cpus)
    if not contestants:
        raise Failure(f"nothing to measure is built in {arguments.build}; run bench/run.sh")
    limits = None
    binary = arguments.build / "bench/bench_limit"
    if arguments.ranks == 2 and pinned and binary.exists():
        where = ",".join(map(str, cpus))
        limits = Contestant("limit", folder, lambda rank: [binary, f"{folder}/limit", where], 1)
    everyone = [*contestants.values(), *([limits] if limits else [])]
    rounds = []
    try:
        for contestant in everyone:
            contestant.start()
        for contestant in everyone:
            contestant.wait_until_ready()
        description["contestants"] = {c.name: c.greeting for c in contestants.values()}
        description["pinned"] = cpus
        print(report.heading(description), flush=True)

        bench = Bench(arguments, limits, contestants)
        todo = {
            (f"{collective} {dtype}", size)
            for collective in arguments.collectives
            for dtype in arguments.dtypes
            for size in arguments.sizes
            if any(f"{collective} {dtype}" in contestant.series for contestant in contestants.values())
            and (collective in ("all_reduce", "broadcast") or size >= 4 * arguments.ranks)
        }
        end = time.monotonic() + arguments.minutes * 60
        number = 0
        while todo and time.monotonic() < end and number < 6 * arguments.rounds:
            number += 1
            for series, size in sorted(todo):
                result = bench.round(series, size)
                result.number = number
                rounds.append(result)
                if time.monotonic() >= end:
                    break
            todo -= {config for config in todo if report.is_done(rounds, config, arguments.rounds)}
            counted = sum(result.counted for result in rounds if result.number == number)
            total = sum(result.number == number for result in rounds)
            print(
                f"round {number}: {counted} of {total} counted; {len(todo)} sizes left",
                flush=True,
            )
        for contestant in everyone:
            contestant.stop()
    except BaseException:
        for contestant in everyone:
            contestant.kill()
        raise
    return rounds


def main():
    arguments = parse_arguments()
    arguments.output.mkdir(parents=True, exist_ok=True)
    cpus = machine.usable_cpus()
    description = machine.describe(ROOT, cpus)
    description["command"] = shlex.join(["sh", "bench/run.sh", *sys.argv[1:]])
    description["collectives"] = arguments.collectives
    description["ranks"] = arguments.ranks
    description["mode"] = arguments.mode
    description["placement"] = arguments.placement
    description["load"] = [os.getloadavg()[0]]
    if arguments.update_docs:
        try:
            publish.check(report.name_of(description))
        except LookupError as problem:
            sys.exit(f"bench: {problem}")
    with tempfile.TemporaryDirectory(prefix="rankfold-bench-") as folder:
        try:
            rounds = run(arguments, folder, description)
        except Failure as failure:
            sys.exit(f"bench: {failure}")
    description["load"].append(os.getloadavg()[0])
    results = report.Results(rounds, description)
    print(results.text())
    written = results.write(arguments.output)
    if arguments.update_docs:
        written += publish.publish(written[0])
    for path in written:
        print(f"written: {os.path.relpath(path)}")


if __name__ == "__main__":
    main()
