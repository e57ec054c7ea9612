# SPDX-License-Identifier: Apache-2.0
"""A sentence encoder, tensor-parallel on two ranks, in one compiled graph.

Embeds the sentences of a file with all-MiniLM-L6-v2, checks the result against one process that
does without torch.compile, and measures sentences per second against one process and against gloo.
`sh examples/run.sh` sets up, builds and runs it.
"""

import argparse
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import time
from multiprocessing.connection import Pipe, wait
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
TOLERANCE = 2e-5
RANKS = ("rank 0", "rank 1")
BOTH = "both CPUs"
VARIANTS = {
    "one": "one process on one CPU",
    "both": "one process on both CPUs",
    "gloo": "two ranks over gloo",
    "rankfold": "two ranks over rankfold",
    "ceiling": "two processes, each its own sentences",
}
SIZES = (1, 16)
SPEED_UP, OF_CEILING = 1.5, 0.85  # the bars at batch 16: one of them is to be reached
PATIENCE = 10  # seconds until it says what it waits for
begin = time.monotonic()


def say(text=""):
    print(text, flush=True)


def progress(text):
    say(f"[{time.monotonic() - begin:5.1f} s] {text}")


class Failed(Exception):
    """The result is wrong, or a process failed."""


# --- processes ---


class Processes:
    """Worker processes, each with a pipe. None of them outlives the `with` block."""

    def __init__(self):
        self.children, self.pipes = {}, {}

    def start(self, name, settings, environment):
        here, there = Pipe()
        command = [sys.executable, str(FOLDER / "worker.py"), str(there.fileno())]
        self.children[name] = subprocess.Popen(
            command,
            env=os.environ | environment,
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # so that it ends together with compilers that it started
        )
        there.close()
        self.pipes[name] = here
        self.send(name, settings)

    def send(self, name, message):
        try:
            self.pipes[name].send(message)
        except OSError:
            pass  # it is gone; collect() says how

    def ask(self, names, command, *arguments, **options):
        """Sends the same command to these workers and returns their answers by name."""
        for name in names:
            self.send(name, (command, arguments, options))
        return self.collect(names, command.replace("_", " "))

    def collect(self, names, what):
        """The answers of these workers by name; Failed, with all that is known, if one fails."""
        waiting = {self.pipes[name]: name for name in names}
        answers, failures, until = {}, [], None
        while waiting:
            left = PATIENCE if until is None else max(0, until - time.monotonic())
            ready = wait(list(waiting), left)
            if not ready and until:
                break
            if not ready:
                progress(f"  {what}: at work are {', '.join(sorted(waiting.values()))}")
            for pipe in ready:
                name = waiting.pop(pipe)
                try:
                    done, answers[name] = pipe.recv()
                    if not done:
                        failures.append(f"{name} failed ({what}):\n{answers[name]}")
                except (EOFError, OSError):
                    failures.append(f"{name} died ({what}): {self.how_it_ended(name)}")
            if failures and until is None:
                until = time.monotonic() + 3  # the others may know more
        if failures:
            raise Failed("\n".join(failures))
        return answers

    def has_ended(self, name, seconds):
        """Waits for the end, without collecting the process: its id stays reserved."""
        until, pid = time.monotonic() + seconds, self.children[name].pid
        while True:
            state = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if state or time.monotonic() >= until:
                return state
            time.sleep(0.02)

    def how_it_ended(self, name):
        state = self.has_ended(name, 3)
        if not state:
            return "it closed its pipe"
        if state.si_code == os.CLD_EXITED:
            return f"exit code {state.si_status}"
        return signal.Signals(state.si_status).name

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # from here on, nothing stops the tidying up
        for pipe in self.pipes.values():
            pipe.close()  # which tells it to end
        for name, child in self.children.items():
            self.has_ended(name, 5 if kind is None else 0)
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def pick_cpus():
    """Two CPUs that this process may use, of two cores where there are two."""
    allowed = sorted(os.sched_getaffinity(0))
    cores = {}
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(siblings.read_text() if siblings.exists() else cpu, cpu)
    first = list(cores.values())
    return (first + [cpu for cpu in allowed if cpu not in first] + allowed)[:2]


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def free_ports(count):
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def start_workers(processes, options, sentences, cpus):
    rankfold_port, gloo_port = free_ports(2)
    common = {
        "sentences": sentences,
        "sizes": SIZES,
        "module": str(options.module),
        "namespace": options.namespace,
        "ports": {"rankfold": rankfold_port, "gloo": gloo_port},
        "size": len(RANKS),
    }
    roles = {name: {"rank": i, "cpus": [cpus[i]], "threads": 1} for i, name in enumerate(RANKS)}
    if options.speed:
        roles[BOTH] = {"rank": 0, "cpus": cpus, "threads": len(cpus)}
    for name, role in roles.items():
        environment = {
            "OMP_NUM_THREADS": str(role["threads"]),
            "MKL_NUM_THREADS": str(role["threads"]),
            "TORCHINDUCTOR_CACHE_DIR": str(options.cache),
            "KINETO_LOG_LEVEL": "99",
            "GLOO_SOCKET_IFNAME": "lo",
            "MASTER_ADDR": "127.0.0.1",
            "WORLD_SIZE": str(len(RANKS)),
            "RANK": str(role["rank"]),
        }
        processes.start(name, common | role, environment)
    processes.collect(roles, "start")


# --- the job ---


def run_job(processes, sentences):
    """Embeds the sentences on two ranks and checks what comes out."""
    progress("compiles the tensor-parallel model on both ranks (torch.compile takes its time)")
    answers = processes.ask(RANKS, "main_job")
    first = answers[RANKS[0]]
    progress(f"embedded {len(sentences)} sentences")

    say("\nNearest neighbours (cosine similarity; each the other's nearest):")
    for similarity, i, j in first["pairs"]:
        say(f"  {similarity:.3f}  {sentences[i]}\n         {sentences[j]}")

    say("\nThe traced graph, around the first of its all-reduces:")
    for line in first["traced"]["lines"]:
        say(f"  {line}")
    say("\nThe same place as Inductor compiled it, without a copy and without Python in between:")
    for line in first["compiled"]["lines"]:
        say(f"  {line}")

    digests = {answer["digest"] for answer in answers.values()}
    graphs = [answer["graphs"] for answer in answers.values()]
    breaks = [answer["graph_breaks"] for answer in answers.values()]
    counts = [first[graph]["all_reduces"] for graph in ("traced", "compiled")]
    say("\nChecks:")
    wrong = [
        text
        for good, text in [
            (
                first["difference"] <= TOLERANCE,
                f"largest difference from one process, uncompiled, fp32: "
                f"{first['difference']:.1e} (at most {TOLERANCE:.0e})",
            ),
            (len(digests) == 1, f"both ranks hold identical bits: {', '.join(sorted(digests))}"),
            (
                set(graphs) == {1} and set(breaks) == {0},
                f"graphs {max(graphs)}, graph breaks {max(breaks)}, on each rank",
            ),
            (
                counts == [12, 12],  # two for each layer
                f"{counts[0]} all-reduces traced and {counts[1]} compiled, "
                f"among {first['compiled']['matmuls']} matmuls",
            ),
        ]
        if not (say(f"  {'ok   ' if good else 'WRONG'}  {text}") or good)
    ]
    if wrong:
        raise Failed("wrong: " + "; ".join(wrong))
    return {key: first[key] for key in ("pairs", "difference", "digest", "graphs", "graph_breaks")}


# --- speed ---


def measure(processes, machine, variant, size, passes):
    """Sentences per second, and the seconds that one pass over the sentences takes."""
    names = {"one": RANKS[:1], "both": (BOTH,)}.get(variant, RANKS)
    model = variant if variant in ("gloo", "rankfold") else "whole"
    answers = processes.ask(names, "measure", model, size, passes, trail=variant == "ceiling")
    seconds = answers.values()
    sentences = passes * machine["sentences"][size]
    if variant == "ceiling":
        return sum(sentences / s for s in seconds), max(seconds) / passes
    return sentences / max(seconds), max(seconds) / passes


def cpu_times(cpus, processes):
    """Seconds that these CPUs were busy, and the seconds of that which the workers used."""
    tick = os.sysconf("SC_CLK_TCK")
    busy = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *times = line.split()
        if name in {f"cpu{cpu}" for cpu in cpus}:
            times = [int(t) for t in times]
            busy += sum(times[:3]) + sum(times[5:8])
    ours = 0
    for child in processes.children.values():
        times = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        ours += int(times[11]) + int(times[12])
    return busy / tick, ours / tick


def run_rounds(processes, options, machine, cpus):
    """rates[variant][size]: sentences per second in each round."""
    passes = {}
    for size in SIZES:
        for variant in VARIANTS:
            _, seconds = measure(processes, machine, variant, size, 1)
            passes[variant, size] = max(1, round(options.seconds / seconds))
    rates = {variant: {size: [] for size in SIZES} for variant in VARIANTS}
    cases = [(variant, size) for size in SIZES for variant in VARIANTS]
    start, before = time.monotonic(), cpu_times(cpus, processes)
    for turn in range(options.rounds):
        for variant, size in cases[turn % len(cases) :] + cases[: turn % len(cases)]:
            rate, _ = measure(processes, machine, variant, size, passes[variant, size])
            rates[variant][size].append(rate)
        latest = [
            f"batch {size}: " + ", ".join(f"{v} {rates[v][size][-1]:.0f}" for v in VARIANTS)
            for size in SIZES
        ]
        progress(f"round {turn + 1} of {options.rounds}   " + "   ".join(latest))
    after = cpu_times(cpus, processes)
    others = (after[0] - before[0]) - (after[1] - before[1])
    return rates, max(0.0, others / (len(set(cpus)) * (time.monotonic() - start)))


def ratio(rates, a, b, size):
    """The median over the rounds of the ratio within a round."""
    return statistics.median(x / y for x, y in zip(rates[a][size], rates[b][size]))


def run_speed(processes, options, machine, cpus):
    progress("compiles the same model for one process")
    processes.ask(RANKS + (BOTH,), "prepare", "whole")
    progress("compiles it for gloo, and for batches of 1 over rankfold")
    for variant in ("gloo", "rankfold"):
        processes.ask(RANKS, "prepare", variant)
    progress("measures; while one variant runs, the processes of the others sleep")
    rates, others = run_rounds(processes, options, machine, cpus)
    shares = {
        variant: {
            size: processes.ask(RANKS, "share", variant, size, passes)[RANKS[0]]
            for size, passes in zip(SIZES, (2, 10))
        }
        for variant in ("rankfold", "gloo")
    }

    width = max(map(len, VARIANTS.values()))
    say(f"\nSentences per second (median of {options.rounds} rounds, lowest to highest):")
    for variant, name in VARIANTS.items():
        row = f"  {name:{width}}"
        for size in SIZES:
            values = rates[variant][size]
            span = f"({min(values):.0f} to {max(values):.0f})"
            row += f"   batch {size}: {statistics.median(values):6.0f} {span:16}"
        say(row.rstrip())
    say("\nRankfold in comparison (median of the ratios within a round):")
    for other in ("gloo", "one", "both", "ceiling"):
        row = f"  to {VARIANTS[other]:{width}}"
        for size in SIZES:
            row += f"   batch {size}: {ratio(rates, 'rankfold', other, size):5.2f}"
        say(row)
    say("\nTime in the all-reduces (12 for a batch; waiting for the other rank included):")
    for variant, by_size in shares.items():
        row = f"  {variant:{width}}"
        for size, (share, each, most) in by_size.items():
            text = f"{share:.0%}, {each * 1e6:.0f} µs each (up to {most / 1024:.0f} KiB)"
            row += f"   batch {size}: {text}"
        say(row)
    if others > 0.03:
        say(f"\nNote: other programs used {others:.0%} of these CPUs meanwhile.")
    return rates, shares, others


def judge(rates, cpus):
    """The speed bars: what was asked for, whether it was reached, and the numbers."""
    gloo = {size: ratio(rates, "rankfold", "gloo", size) for size in SIZES}
    one, ceiling = (ratio(rates, "rankfold", other, 16) for other in ("one", "ceiling"))
    bars = [
        (
            min(gloo.values()) > 1,
            "rankfold beats gloo everywhere: "
            + ", ".join(f"{value:.2f} times at batch {size}" for size, value in gloo.items()),
        ),
        (
            one >= SPEED_UP or ceiling >= OF_CEILING,
            f"at batch 16, {SPEED_UP} times one process on one CPU or {OF_CEILING} of what two "
            f"independent processes reach: {one:.2f} times, {ceiling:.2f}",
        ),
    ]
    say("\nBars:")
    if len(set(cpus)) < 2:
        say("  not measured: this needs two CPUs")
        return None
    for met, text in bars:
        say(f"  {'met    ' if met else 'NOT MET'}  {text}")
    return all(met for met, _ in bars)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--module", type=Path, required=True, help="the built torch extension")
    add("--namespace", default="rankfold_example", help="its namespace under torch.ops")
    add("--sentences", type=Path, default=FOLDER / "sentences.txt", help="a file, one a line")
    add("--cache", type=Path, default=FOLDER.parents[1] / "build/inductor", help="for Inductor")
    add("--no-speed", dest="speed", action="store_false", help="embed and check only")
    add("--rounds", type=int, default=9, help="rounds of measurement (default %(default)s)")
    add("--seconds", type=float, default=0.3, help="for a measurement (default %(default)s)")
    add("--strict", action="store_true", help="a missed speed bar makes the exit code 2")
    add("--json", type=Path, help="a file for the results")
    options = parser.parse_args(arguments)
    options.module, options.cache = options.module.resolve(), options.cache.resolve()
    if not options.module.is_file():
        parser.error(f"--module: there is no file {options.module}")
    return options


def main(arguments):
    options = parse(arguments)
    sentences = [s for s in options.sentences.read_text(encoding="utf-8").splitlines() if s.strip()]
    if len(sentences) < max(SIZES):
        raise Failed(f"{options.sentences}: at least {max(SIZES)} sentences are needed")
    cpus = pick_cpus()
    with Processes() as processes:
        progress(f"starts a process for each rank, on CPUs {cpus[0]} and {cpus[1]}")
        start_workers(processes, options, sentences, cpus)
        machine = processes.ask(RANKS[:1], "machine")[RANKS[0]]
        progress(f"torch {machine['torch']}, {machine['capability']}, {processor()}")
        results = run_job(processes, sentences)
        met = True
        if options.speed:
            say()
            rates, shares, others = run_speed(processes, options, machine, cpus)
            met = judge(rates, cpus)
            results |= {"rates": rates, "all_reduce": shares, "others": others, "met": met}
    if options.json:
        options.json.write_text(json.dumps({"machine": machine} | results, indent=1))
    progress("done")
    return 2 if options.strict and not met else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    try:
        sys.exit(main(sys.argv[1:]))
    except Failed as failure:
        sys.exit(str(failure))
    except KeyboardInterrupt:
        sys.exit("\nstopped")
