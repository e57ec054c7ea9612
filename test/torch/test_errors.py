# SPDX-License-Identifier: Apache-2.0
"""Bad input: an error that says the op, the group, the rank, what was expected and what was found."""

import re

import pytest
import torch
from reference import WRITING


def raises(text):
    return pytest.raises(RuntimeError, match=re.escape(text))


# Every form of every op: a call with x, in a world of one rank.
FORMS = {
    **{name: lambda ops, x, *more, name=name, **options: getattr(ops, name)(x, *more, **options)
       for op, writing in WRITING.items() for name in (op, writing) if not name.endswith("_into_")},
    **{writing: lambda ops, x, *more, name=writing, **options:
       getattr(ops, name)(torch.empty(x.shape, dtype=x.dtype), x, *more, **options)
       for writing in WRITING.values() if writing.endswith("_into_")},
}

BAD_TENSORS = {
    "complex": (lambda: torch.ones(2, dtype=torch.complex64), "x has dtype ComplexFloat, expected float32, "),
    "float8": (lambda: torch.ones(2).to(torch.float8_e4m3fnuz), "x has dtype Float8_e4m3fnuz, expected float32, "),
    "sparse": (lambda: torch.ones(2).to_sparse(), "x is a tensor of layout Sparse on device cpu, expected a dense"),
    "sparse csr": (lambda: torch.eye(2).to_sparse_csr(), "layout SparseCsr on device cpu, expected a dense"),
    "mkldnn": (lambda: torch.ones(2).to_mkldnn(), "layout Mkldnn on device cpu, expected a dense"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8), "expected a dense"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", BAD_TENSORS)
def test_tensors_that_cannot_be_buffers(ops, order, kind, form):
    make, text = BAD_TENSORS[kind]
    for token in ((order,), ()):
        with raises(text) as caught:
            FORMS[form](ops, make(), *token)
        assert re.match(rf"rankfold_example::{form} \(default group, rank 0 of 1\): (x|out) ", str(caught.value))


@pytest.mark.parametrize("form", FORMS)
def test_a_message_names_op_group_and_rank(ops, order, form):
    ops.init("named", rank=0, size=1)
    with raises(f'rankfold_example::{form} (group "named", rank 0 of 1): tag is -1, expected 0 to 1048575'):
        FORMS[form](ops, torch.ones(2), order, tag=-1, group="named")
    if "reduce" in form:
        with raises(f'rankfold_example::{form} (default group, rank 0 of 1): op is "mean", expected one of sum, prod, '):
            FORMS[form](ops, torch.ones(2), order, op="mean")
    ops.finalize("named")


BAD_CALLS = {
    "root below": (lambda ops, o: ops.broadcast(torch.ones(2), o, root=-1), "root is -1, expected 0 to 0"),
    "root above": (lambda ops, o: ops.broadcast_(torch.ones(2), o, root=1), "root is 1, expected 0 to 0"),
    "huge root": (lambda ops, o: ops.broadcast(torch.ones(2), o, root=1 << 32), "root is 4294967296, expected 0 to 0"),
    "too many sizes": (lambda ops, o: ops.all_gather(torch.ones(2), o, [1, 1]),
                       "sizes has 2 numbers, expected one for each of the 1 ranks"),
    "no sizes": (lambda ops, o: ops.reduce_scatter(torch.ones(2), o, sizes=[]),
                 "sizes has 0 numbers, expected one for each of the 1 ranks"),
    "other rows": (lambda ops, o: ops.all_gather(torch.ones(2, 3), o, [4]),
                   "x has 2 rows, expected 4, as sizes [4] says of this rank"),
    "other sum": (lambda ops, o: ops.reduce_scatter(torch.ones(2, 3), o, sizes=[4]),
                  "x has 2 rows, expected 4, the sum of sizes [4]"),
    "negative size": (lambda ops, o: ops.reduce_scatter(torch.ones(2, 3), o, sizes=[-2]),
                      "sizes is [-2], expected numbers of rows"),
    "input splits": (lambda ops, o: ops.all_to_all(torch.ones(2, 3), o, [2], [3]),
                     "x has 2 rows, expected 3, the sum of input_split_sizes [3]"),
    "one split": (lambda ops, o: ops.all_to_all(torch.ones(2, 3), o, [2]),
                  "of output_split_sizes and input_split_sizes only the first is given, expected both or none"),
    "the other split": (lambda ops, o: ops.all_to_all(torch.ones(2, 3), o, input_split_sizes=[2]),
                        "only the second is given"),
    "own splits": (lambda ops, o: ops.all_to_all(torch.ones(2, 3), o, [3], [2]),
                   "input_split_sizes [2] sends 2 rows from this rank to itself, output_split_sizes [3] expects 3; "
                   "expected the same number"),
    "too many splits": (lambda ops, o: ops.all_to_all(torch.ones(2, 3), o, [1, 1], [2]),
                        "output_split_sizes has 2 numbers, expected one for each of the 1 ranks"),
    "no rows": (lambda ops, o: ops.reduce_scatter(torch.tensor(1.0), o),
                "x has no dimensions, expected one or more, the first of rows"),
    "no rows to exchange": (lambda ops, o: ops.all_to_all(torch.tensor(1.0), o), "x has no dimensions"),
    "sizes of a number": (lambda ops, o: ops.all_gather(torch.tensor(1.0), o, [1]), "x has no dimensions"),
    "out's sizes": (lambda ops, o: ops.all_gather_into_(torch.empty(3, 3), torch.ones(2, 3), o),
                    "all_gather_into_ (default group, rank 0 of 1): out has sizes [3, 3], expected [2, 3]"),
    "out's dtype": (lambda ops, o: ops.all_to_all_into_(torch.empty(2), torch.ones(2).long(), o),
                    "out has dtype Float, expected Long, that of x"),
    "out's dtype where it is traced": (
        lambda ops, o: ops.all_gather_into_(torch.empty(2, dtype=torch.int64, device="meta"),
                                            torch.ones(2, device="meta"), o.to("meta")),
        "all_gather_into_ (default group, rank 0 of 1): out has dtype Long, expected Float, that of x"),
    "out overlaps itself": (lambda ops, o: ops.reduce_scatter_into_(torch.ones(1).expand(2), torch.ones(2), o),
                            "out has sizes [2] and strides [0], so that elements share memory"),
    "out and x overlap": (lambda ops, o: (lambda whole: ops.all_gather_into_(whole[1:], whole[:-1], o))(torch.ones(9)),
                          "input and output overlap in part; they may be the same or apart"),
    "out on meta": (lambda ops, o: ops.all_gather_into_(torch.ones(2, device="meta"), torch.ones(2), o),
                    "x is a tensor on device cpu beside one on meta, expected all on cpu"),
    "order on meta": (lambda ops, o: ops.all_reduce_(torch.ones(2), o.to("meta")),
                      "x is a tensor on device cpu beside one on meta, expected all on cpu"),
    "x on meta": (lambda ops, o: ops.broadcast(torch.ones(2, device="meta"), o),
                  "order is a tensor on device cpu beside one on meta, expected all on cpu"),
    "barrier's order": (lambda ops, o: ops.barrier(torch.zeros(1)), "expected the order token that init() returned"),
    "operator": (lambda ops, o: ops.reduce_scatter(torch.ones(2).bool(), o),
                 "op sum is not defined for dtype boolean, expected a floating or integer type"),
}


@pytest.mark.parametrize("what", BAD_CALLS)
def test_arguments_that_are_wrong(ops, order, what):
    call, text = BAD_CALLS[what]
    before = order.item()
    with raises(text):
        call(ops, order)
    if what != "out and x overlap":  # which the library finds
        assert order.item() == before
    assert ops.all_gather(torch.ones(2), order).tolist() == [1, 1]  # the group is as it was


def test_tensors_that_overlap_themselves_cannot_be_written(ops, order):
    for x in (torch.ones(1).expand(3), torch.ones(8).as_strided((3, 3), (2, 1)),
              torch.ones(20).as_strided((3, 4), (4, 2))):
        with raises("so that elements share memory"):
            ops.all_reduce_(x, order)
    # These interleave, but share nothing.
    x = torch.arange(8.0).as_strided((2, 3), (3, 2))
    assert ops.all_reduce_(x, order) is x
    # Reading twice does no harm.
    assert ops.all_reduce(torch.ones(1).expand(3), order).tolist() == [1, 1, 1]


def test_lazy_views_give_the_right_values(ops, order):
    base = torch.tensor([1 + 2j, 3 - 4j])
    negative = base.conj().imag
    assert negative.is_neg()
    assert ops.all_reduce(negative, order).tolist() == [-2, 4]
    ops.all_reduce_(negative, order)
    assert negative.tolist() == [-2, 4] and base.tolist() == [1 + 2j, 3 - 4j]


def test_operators_that_a_dtype_does_not_have(ops, order):
    for op, dtype, expected in (("avg", torch.int64, "expected a floating type"),
                                ("sum", torch.bool, "expected a floating or integer type"),
                                ("bit_and", torch.float32, "expected an integer type or bool")):
        with raises(f"op {op} is not defined for dtype "):
            ops.all_reduce(torch.ones(2, dtype=dtype), order, op)
        with raises(expected):
            ops.all_reduce(torch.ones(2, dtype=dtype), order, op)


def test_what_is_no_token(ops):
    for order in (torch.zeros(2, dtype=torch.int64), torch.zeros(1)):
        with raises("expected the order token that init() returned"):
            ops.all_reduce(torch.ones(2), order)


def test_a_group_that_is_not_there(ops, order):
    ops.init("here", rank=0, size=1)
    for call in (lambda: ops.all_reduce(torch.ones(2), order, group="there"), lambda: ops.barrier(order, "there"),
                 lambda: ops.rank("there"), lambda: ops.finalize("there"), lambda: ops.abort(group="there")):
        with raises('there is no group "there", expected the default group "" or one of "here"'):
            call()
        with raises('torch.ops.rankfold_example.init("there")'):
            call()
    ops.finalize("here")
    with raises('(group "here"): is not initialised; call torch.ops.rankfold_example.init("here") on every rank'):
        ops.all_reduce(torch.ones(2), order, group="here")


def test_ops_before_init_say_how_to(library):
    library.finalize()
    order = library.order()
    for call in (*(lambda form=form: form(library, torch.ones(2), order) for form in FORMS.values()),
                 *(lambda form=form: form(library, torch.ones(2)) for form in FORMS.values()),
                 lambda: library.barrier(), lambda: library.rank(), lambda: library.size(), lambda: library.abort()):
        with raises("(default group): is not initialised; call torch.ops.rankfold_example.init() on every rank first"):
            call()
    library.finalize()  # as often as one likes


def test_init_twice(ops):
    with raises("init (default group, rank 0 of 1): is already initialised; call finalize() first"):
        ops.init(rank=0, size=1)


@pytest.mark.parametrize("arguments, text", [
    (dict(rank=2, size=2, key="k"), "rank is 2 and size is 2, expected rank 0 to 1"),
    (dict(rank=-2, size=2, key="k"), "rank is -2 and size is 2, expected rank 0 to 1"),
    (dict(rank=0, size=0, key="k"), "rank is 0 and size is 0, expected size 1 or more"),
    (dict(rank=1), "rank is 1 and size is -1, expected size 1 or more"),
    (dict(size=2, key="k"), "rank is -1 and size is 2, expected rank 0 to 1"),
    (dict(rank=0, size=2), "rank and size are given and key is not"),
    (dict(key="k"), "key is given, and rank and size are not"),
    (dict(rank=0, size=1, timeout=-1.0), "timeout is -1, expected seconds"),
    (dict(rank=0, size=1, timeout=float("nan")), "timeout is nan, expected seconds"),
    (dict(rank=0, size=1 << 40, key="k"), "expected size 1 or more"),
])
def test_init_with_bad_arguments(library, arguments, text):
    library.finalize()
    with raises(text):
        library.init(**arguments)


LAUNCHER = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_PROCID",
            "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "TORCHELASTIC_RUN_ID")


@pytest.mark.parametrize("variables, text", [
    ({}, "rendezvous_error: rankfold: no launcher found in the environment: looked for RANK and WORLD_SIZE"),
    ({"RANK": "0"}, "but WORLD_SIZE is not set"),
    ({"RANK": "x", "WORLD_SIZE": "1"}, 'RANK is "x", expected a whole number from 0 to 0'),
    ({"RANK": "3", "WORLD_SIZE": "2"}, 'RANK is "3", expected a whole number from 0 to 1'),
    ({"RANK": "0", "WORLD_SIZE": "1", "RANKFOLD_TIMEOUT": "soon"}, 'RANKFOLD_TIMEOUT is "soon", expected seconds'),
])
def test_init_in_a_bad_environment(library, monkeypatch, variables, text):
    library.finalize()
    for name in (*LAUNCHER, "RANKFOLD_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with raises("rankfold_example::init (default group): "):
        library.init()
    with raises(text):
        library.init()


def test_a_rank_that_never_comes_is_named(library):
    library.finalize()
    with raises("rank 1"):
        library.init(rank=0, size=2, key="nobody else has this key", timeout=0.3)
    # Nothing is left of it.
    library.init(rank=0, size=1)
    library.finalize()


def test_gradients_that_are_not_supported(ops, order):
    x = torch.ones(2, requires_grad=True)
    for op in ("prod", "min", "max"):
        for collective in (ops.all_reduce, ops.reduce_scatter):
            with raises(f"x requires grad, which op {op} does not support, expected sum or avg"):
                collective(x, order, op)
            with torch.no_grad():
                collective(x, order, op)
    for op, form in WRITING.items():
        for y in (x, x * 2):
            with raises(f"rankfold_example::{form} (default group, rank 0 of 1): x requires grad, which is not "
                        f"supported in place, expected {op}(x, …), x.detach() or torch.no_grad()"):
                FORMS[form](ops, y, order)
        with torch.no_grad():
            FORMS[form](ops, x, order)
    with raises("out requires grad, which is not supported in place, expected all_gather(x, …), out.detach() or "):
        ops.all_gather_into_(x * 2, torch.ones(2), order)


def test_an_error_leaves_the_group_usable(ops, order):
    with raises('op is "mean", expected one of sum, prod'):
        ops.all_reduce(torch.ones(2), order, "mean")
    assert ops.all_reduce(torch.ones(2), order).tolist() == [1, 1]
