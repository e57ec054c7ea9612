# SPDX-License-Identifier: Apache-2.0
"""One process of the example: waits for a command on a pipe, carries it out, answers, waits again.

Started by run.py. While another process is measured this one sleeps in read().
"""

import contextlib
import ctypes
import gc
import hashlib
import os
import re
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection


def capture(graphs):
    """Inductor, as torch.compile runs it, that notes the graphs which pass through."""
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    def inner(graph, inputs, **options):
        compiled = compile_fx_inner(graph, inputs, **options)
        graphs["compiled"] = compiled.inductor_post_grad_graph_str
        return compiled

    def backend(graph, inputs):
        graphs["traced"] = graph.code
        return compile_fx(graph, inputs, inner_compile=inner)

    return backend


# A matmul in the graphs: as traced, and in the forms that Inductor gives it (the second one is its
# name for a oneDNN matmul with GELU).
MATMUL = re.compile(
    r"nn\.linear\(|_mkldnn_fusion_fn\w*\(|\.(_linear_pointwise|_mkl_linear|mm|addmm)\b"
)


def around_all_reduce(code, all_reduce):
    """The lines of a graph from the matmul before its first all-reduce to the next matmul."""
    lines = []
    for line in code.splitlines():
        line = re.sub(r"\s*;.*= None$", "", line.strip())  # what frees dead values
        line = re.sub(r'^(\w+): "[^"]*" = ', r"\1 = ", line)  # types
        if re.match(r"\w+ = (?!self\.)", line):
            lines.append(line)
    matmuls = [i for i, line in enumerate(lines) if MATMUL.search(line)]
    all_reduces = [i for i, line in enumerate(lines) if all_reduce in line]
    first = max((i for i in matmuls if i < min(all_reduces, default=0)), default=0)
    last = min((i for i in matmuls if i > min(all_reduces, default=0)), default=len(lines))
    return {
        "lines": lines[first : last + 1],
        "matmuls": len(matmuls),
        "all_reduces": len(all_reduces),
    }


def digest(tensor):
    return hashlib.sha256(ctypes.string_at(tensor.data_ptr(), tensor.nbytes)).hexdigest()


class Worker:
    def __init__(self, settings):
        import encoder
        import torch

        self.torch = torch
        self.settings = settings
        self.encoder = encoder
        torch.set_num_threads(settings["threads"])
        torch.set_grad_enabled(False)
        # The weights are constants: oneDNN gets them packed, once. That is the fastest fp32 matmul
        # that torch 2.13 has on a CPU, and all variants run on it.
        torch._inductor.config.freezing = True
        torch._inductor.config.compile_threads = 1
        # A batch of 16 sentences of 16 tokens is no reason to take the two sizes for one.
        torch.fx.experimental._config.use_duck_shape = False
        folder = encoder.model_folder()
        self.model = encoder.load_weights(folder)
        batcher = encoder.Batcher(folder)
        sentences = settings["sentences"]
        self.order = batcher.by_length(sentences)
        ordered = [sentences[i] for i in self.order]
        self.batches = {
            size: [batcher(ordered[i : i + size]) for i in range(0, len(ordered) - size + 1, size)]
            for size in settings["sizes"]
        }
        # The job takes all of them, in batches of like size: a batch of one would be a graph of
        # its own, since torch.compile treats a size of 1 apart.
        count = -(-len(ordered) // max(settings["sizes"]))
        edges = [len(ordered) * i // count for i in range(count + 1)]
        self.job = [batcher(ordered[i:j]) for i, j in zip(edges, edges[1:])]
        self.compiled = {}

    def machine(self):
        sentences = {size: sum(len(ids) for ids, _ in b) for size, b in self.batches.items()}
        return {
            "torch": str(self.torch.__version__),
            "capability": self.torch.backends.cpu.get_cpu_capability(),
            "sentences": sentences,
        }

    def compile(self, variant):
        """The model under torch.compile, not yet called."""
        settings = self.settings
        if variant == "whole":
            model = self.encoder.Encoder(*self.model)
        else:
            from communication import all_reduce_over

            os.environ["MASTER_PORT"] = str(settings["ports"][variant])
            all_reduce = all_reduce_over(variant, settings["module"], settings["namespace"])
            model = self.encoder.Encoder(
                *self.model, settings["rank"], settings["size"], all_reduce
            )
        self.graphs = {}
        self.torch._dynamo.utils.counters.clear()
        self.compiled[variant] = self.torch.compile(
            model, fullgraph=True, dynamic=True, backend=capture(self.graphs)
        )

    def embed(self, model):
        """The job: embeddings of all sentences, in the order of the file."""
        parts = self.torch.cat([model(*batch) for batch in self.job])
        embeddings = self.torch.empty_like(parts)
        embeddings[self.order] = parts
        return embeddings

    def main_job(self):
        """Embeds with the tensor-parallel model; rank 0 adds what one rank can tell for all."""
        self.compile("rankfold")
        embeddings = self.embed(self.compiled["rankfold"])
        counters = self.torch._dynamo.utils.counters
        answer = {
            "digest": digest(embeddings),
            "graphs": counters["stats"]["unique_graphs"],
            "graph_breaks": sum(counters["graph_break"].values()),
        }
        if self.settings["rank"] == 0:
            reference = self.embed(self.encoder.Encoder(*self.model))
            similarity = embeddings @ embeddings.T
            similarity.fill_diagonal_(-1)
            nearest = similarity.argmax(1).tolist()
            name = f"torch.ops.{self.settings['namespace']}."
            answer |= {
                "difference": (embeddings - reference).abs().max().item(),
                "pairs": sorted(
                    (similarity[i, j].item(), i, j)
                    for i, j in enumerate(nearest)
                    if nearest[j] == i and i < j
                )[::-1],
                "traced": around_all_reduce(self.graphs["traced"], name),
                "compiled": around_all_reduce(self.graphs["compiled"], name),
            }
        return answer

    def prepare(self, variant):
        """Compiles what is not compiled yet and runs every batch once."""
        if variant not in self.compiled:
            self.compile(variant)
        for size in sorted(self.batches, reverse=True):
            for batch in self.batches[size]:
                self.compiled[variant](*batch)

    def measure(self, variant, size, passes, trail=False):
        """Seconds for `passes` passes over all batches of this size.

        An untimed batch goes before them; with `trail` also an untimed pass after them, so that a
        process that measures at the same time never runs alone.
        """
        model, batches = self.compiled[variant], self.batches[size]
        model(*batches[-1])
        gc.collect()
        gc.disable()
        start = time.perf_counter()
        for _ in range(passes):
            for batch in batches:
                model(*batch)
        seconds = time.perf_counter() - start
        gc.enable()
        if trail:
            for batch in batches:
                model(*batch)
        return seconds

    def share(self, variant, size, passes):
        """What part of the time the all-reduces take, seconds for one, and the largest in bytes."""
        names = {
            "rankfold": (f"{self.settings['namespace']}::_all_reduce_",),
            "gloo": ("_c10d_functional::all_reduce_", "_c10d_functional::wait_tensor"),
        }[variant]
        cpu = self.torch.profiler.ProfilerActivity.CPU
        with self.torch.profiler.profile(activities=[cpu]) as profile:
            start = time.perf_counter()
            for _ in range(passes):
                for batch in self.batches[size]:
                    self.compiled[variant](*batch)
            seconds = time.perf_counter() - start
        events = {event.key: event for event in profile.key_averages()}
        inside = sum(events[name].cpu_time_total for name in names) * 1e-6
        tokens = max(ids.numel() for ids, _ in self.batches[size])
        largest = tokens * self.model[0]["hidden_size"] * 4
        return inside / seconds, inside / events[names[0]].count, largest


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # run.py gets it, and ends us
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not to outlive run.py
    pipe = Connection(int(sys.argv[1]))
    try:
        settings = pipe.recv()
        os.sched_setaffinity(0, settings["cpus"])  # before torch counts them
        worker = Worker(settings)
        pipe.send((True, None))
        while True:
            name, arguments, options = pipe.recv()
            pipe.send((True, getattr(worker, name)(*arguments, **options)))
    except EOFError:
        pass  # run.py has closed the pipe: this is the end
    except BaseException:
        with contextlib.suppress(OSError):  # run.py may have closed the pipe: it ends all processes
            pipe.send((False, traceback.format_exc()))
        os._exit(1)  # a peer may be gone: wait for nobody


if __name__ == "__main__":
    main()
