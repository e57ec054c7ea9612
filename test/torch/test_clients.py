# SPDX-License-Identifier: Apache-2.0
"""Programs of others, as they are: DeepSpeed with rankfold's module in place of its shared-memory op, and
transformers' tensor parallelism over the c10d backend."""

import functools
import os
import sys

import pytest
import torch
import torch.distributed as dist
from ranks import ProcessGroup, import_file, run_example

pytest.importorskip("transformers", reason="the packages of the group clients are not installed")

os.environ["HF_HUB_OFFLINE"] = "1"
NAME = "rankfold_deepspeed"


def llama(dtype=torch.float32):
    """A small Llama with random weights, the same in each process."""
    import transformers

    torch.manual_seed(11)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=96, max_position_embeddings=64)
    return transformers.LlamaForCausalLM(config).eval().to(dtype)


TOKENS = torch.arange(2 * 20).view(2, 20) * 7 % 96


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


@functools.cache
def logits_of_one_process(dtype):
    return logits(llama(dtype))


def check_logits(found):
    """The ranks agree in all bits, and differ from one process by the order of additions alone: each of the
    2 * 2 row-wise products is a sum of two parts, and has up to 128 terms, so that its relative error is at most 128
    roundings. (In double precision that leaves no room for any other error.)"""
    for each in found[1:]:
        assert torch.equal(each, found[0])
    wanted = logits_of_one_process(found[0].dtype)
    assert wanted.std() > 0.05
    most = 4 * 128 * torch.finfo(wanted.dtype).eps / 2 * wanted.abs().max().item()
    torch.testing.assert_close(found[0], wanted, rtol=0, atol=most)


# --- transformers ---


@pytest.fixture(scope="module", params=[torch.float32, torch.float64], ids=["float32", "float64"])
def checkpoint(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    llama(request.param).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def rankfold(backend_module):
    with ProcessGroup(2, "rankfold", backend_module) as ranks:
        yield ranks


def tensor_parallel(here, checkpoint):
    import transformers

    os.environ["LOCAL_RANK"] = str(here.rank)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, tp_plan="auto")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        found = logits(model)
    reduced = sum(event.count for event in profile.key_averages() if event.key == "c10d::allreduce_")
    own = sum(x.to_local().numel() if hasattr(x, "to_local") else x.numel() for x in model.parameters())
    return found, reduced, own


def test_llama_with_tp_plan_auto_gives_the_logits_of_one_process(rankfold, checkpoint):
    results = rankfold(tensor_parallel, checkpoint)
    check_logits([found for found, _, _ in results])
    whole = sum(x.numel() for x in llama().parameters())
    for _, reduced, own in results:
        assert reduced >= 4  # two for each layer
        assert own < 0.6 * whole


# --- DeepSpeed ---


@pytest.fixture(scope="module")
def deepspeed_module():
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    path = os.environ.get("RANKFOLD_DEEPSPEED_MODULE")
    if not path:
        pytest.skip("RANKFOLD_DEEPSPEED_MODULE names no module; test/meson.build sets it")
    return path


class DeepSpeed(ProcessGroup):
    def __init__(self, size, path):
        super().__init__(size, "gloo", LOCAL_SIZE=str(size))
        self.path = path

    def start(self):
        super().start()
        self(start_deepspeed, self.path)


@pytest.fixture(scope="module", params=[1, 2, 4])
def deepspeed_ranks(request, deepspeed_module):
    with DeepSpeed(request.param, deepspeed_module) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def deepspeed_pair(deepspeed_module):
    with DeepSpeed(2, deepspeed_module) as ranks:
        yield ranks


def start_deepspeed(here, path):
    """The two lines that a user adds, and DeepSpeed's own start."""
    os.environ.update(LOCAL_RANK=str(here.rank), DS_ACCELERATOR="cpu")
    import deepspeed
    from deepspeed.ops.op_builder.builder import OpBuilder

    OpBuilder._loaded_ops["deepspeed_shm_comm"] = import_file(path)
    deepspeed.init_distributed(dist.get_backend())


def reduced_by_rankfold(function):
    """The function's result, and how many all-reduces went through rankfold's op meanwhile."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        result = function()
    return result, sum(event.count for event in profile.key_averages() if event.key.startswith(f"{NAME}::"))


# What DeepSpeed's tests/unit/comm/test_dist.py asks in TestDistAllReduce and TestDistInferenceAllReduce.
def all_reduce(here, dtype, count, name):
    import deepspeed.comm

    x = torch.full((1, count), here.rank + 1.0).to(dtype)
    _, calls = reduced_by_rankfold(lambda: getattr(deepspeed.comm, name)(x))
    return x, calls


@pytest.mark.parametrize("name", ["all_reduce", "inference_all_reduce"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [128, 3])
def test_deepspeed_all_reduce(deepspeed_ranks, dtype, count, name):
    size = deepspeed_ranks.size
    for x, calls in deepspeed_ranks(all_reduce, dtype, count, name):
        assert torch.equal(x, torch.full((1, count), size * (size + 1) / 2, dtype=dtype))
        assert calls == (size > 1 and name == "inference_all_reduce")


def op_pair(here):
    """Both ops, of every layout; what is compiled holds rankfold's op, in place and without a copy."""
    ops = torch.ops.deepspeed
    x = torch.arange(12.0).view(3, 4) + here.rank
    new = ops.inference_all_reduce(x)
    assert torch.equal(x, torch.arange(12.0).view(3, 4) + here.rank)
    turned = x.clone().t()
    assert ops.inference_all_reduce_(turned) is turned

    def layer(x):
        return torch.relu(ops.inference_all_reduce_(x @ x.t())) + 1

    from torch._inductor.utils import run_and_get_code

    compiled, (code, *_) = run_and_get_code(torch.compile(layer, fullgraph=True), x)
    return new, turned, torch.equal(compiled, layer(x)), code


def test_deepspeed_ops(deepspeed_pair):
    wanted = torch.arange(12.0).view(3, 4) * 2 + 1
    for new, turned, same, code in deepspeed_pair(op_pair):
        assert torch.equal(new, wanted) and torch.equal(turned, wanted.t()) and same
        assert code.count(f"torch.ops.{NAME}._all_reduce_.unordered(") == 1
        assert "clone" not in code.split("def call(")[1]


def inference_engine(here):
    import deepspeed

    engine = deepspeed.init_inference(
        llama(), tensor_parallel={"tp_size": here.size}, dtype=torch.float32, replace_with_kernel_inject=False)
    return reduced_by_rankfold(lambda: logits(engine))


def test_deepspeed_inference_gives_the_logits_of_one_process(deepspeed_pair):
    results = deepspeed_pair(inference_engine)
    check_logits([found for found, _ in results])
    assert all(calls >= 4 for _, calls in results)


def over_several_hosts(here, path):
    start_deepspeed(here, path)
    import deepspeed.comm

    x = torch.ones(3)
    _, calls = reduced_by_rankfold(lambda: deepspeed.comm.inference_all_reduce(x))
    return x.tolist(), calls, sys.modules[NAME].vector_kernel_level()


def test_over_several_hosts_deepspeed_takes_its_process_group(deepspeed_module, backend_module):
    with ProcessGroup(2, "rankfold", backend_module, LOCAL_SIZE="1") as ranks:
        assert ranks(over_several_hosts, deepspeed_module) == [([2.0] * 3, 0, 0)] * 2


def after_another_op(here, path):
    library = torch.library.Library("deepspeed", "DEF")
    library.define("inference_all_reduce(Tensor self) -> Tensor")
    try:
        import_file(path).initialize(here.size, here.rank)
    except RuntimeError as error:
        return str(error)


def test_a_second_op_of_that_name_is_an_error(deepspeed_module):
    with ProcessGroup(1, "gloo") as ranks:
        (text,) = ranks(after_another_op, deepspeed_module)
    assert text.startswith(f"{NAME}.initialize: torch.ops.deepspeed has been registered by another library")


def test_example_for_deepspeed(deepspeed_module):
    lines = run_example("deepspeed/all_reduce.py", deepspeed_module)
    assert "sum: 3.0" in lines
    assert [line.split(":")[0] for line in lines if "bytes over" in line] == [
        "8192 bytes over rankfold", "8192 bytes over gloo"]
