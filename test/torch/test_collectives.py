# SPDX-License-Identifier: Apache-2.0
"""all_gather, reduce_scatter, broadcast, all_to_all on two processes: values, layouts, uneven rows, errors."""

import re

import pytest
import torch
from reference import FLOATS, SIGNED, UNSIGNED, WRITING, collective, of_rank, operators, same_bits, values

DTYPES = [*FLOATS, *SIGNED, *UNSIGNED, torch.bool]

# Name -> op, shapes of the two ranks, and what the reference is told beside them.
CASES = {
    "all_gather": ("all_gather", [(3, 5), (3, 5)], {}),
    "all_gather of one line": ("all_gather", [(2,), (2,)], {}),
    "all_gather of numbers": ("all_gather", [(), ()], {}),
    "all_gather of nothing": ("all_gather", [(0, 4), (0, 4)], {}),
    "all_gather of thin rows": ("all_gather", [(3, 0), (3, 0)], {}),
    "all_gather uneven": ("all_gather", [(2, 3, 2), (5, 3, 2)], {"sizes": [2, 5]}),
    "all_gather of one rank": ("all_gather", [(0, 7), (4, 7)], {"sizes": [0, 4]}),
    "all_gather large": ("all_gather", [(700, 65), (3, 65)], {"sizes": [700, 3]}),
    "reduce_scatter": ("reduce_scatter", [(6, 5), (6, 5)], {}),
    "reduce_scatter of one line": ("reduce_scatter", [(2,), (2,)], {}),
    "reduce_scatter of nothing": ("reduce_scatter", [(0, 4), (0, 4)], {}),
    "reduce_scatter uneven": ("reduce_scatter", [(7, 2, 3), (7, 2, 3)], {"sizes": [2, 5]}),
    "reduce_scatter to one rank": ("reduce_scatter", [(4, 7), (4, 7)], {"sizes": [0, 4]}),
    "reduce_scatter large": ("reduce_scatter", [(703, 65), (703, 65)], {"sizes": [700, 3]}),
    "broadcast": ("broadcast", [(3, 5), (3, 5)], {}),
    "broadcast of the other": ("broadcast", [(3, 500), (3, 500)], {"root": 1}),
    "broadcast of a number": ("broadcast", [(), ()], {"root": 1}),
    "broadcast of nothing": ("broadcast", [(0, 4), (0, 4)], {}),
    "all_to_all": ("all_to_all", [(4, 5), (4, 5)], {}),
    "all_to_all of nothing": ("all_to_all", [(0, 4), (0, 4)], {}),
    "all_to_all uneven": ("all_to_all", [(5, 3), (3, 3)], {"splits": [[4, 1], [0, 3]]}),
    "all_to_all of one rank": ("all_to_all", [(2, 3), (0, 3)], {"splits": [[1, 1], [0, 0]]}),
    "all_to_all large": ("all_to_all", [(300, 65), (410, 65)], {"splits": [[200, 100], [10, 400]]}),
}

# How a tensor lies in memory; its values stay.
LAYOUTS = {
    "contiguous": lambda x: x.clone(),
    "transposed": lambda x: x.clone() if x.dim() < 2 else x.transpose(0, -1).clone().transpose(0, -1),
    "step": lambda x: x.clone() if x.dim() == 0 else x.repeat_interleave(2, 0)[::2],
}


def call_forms(here, name, x, out, **options):
    """The results of all forms of an op; `out` is written to, or None for what works in place."""
    results, before = [], x.clone()
    for token in ((here.order,), ()):
        result = getattr(here.ops, name)(x, *token, **options)
        assert result.is_contiguous() and (x.numel() == 0 or result.data_ptr() != x.data_ptr())
        if out is None:
            written = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x)
            assert getattr(here.ops, WRITING[name])(written, *token, **options) is written
        else:
            written, version = out, out._version
            assert getattr(here.ops, WRITING[name])(out, x, *token, **options) is out
            assert out._version == version + 1
        assert same_bits(x, before)
        results += [result, written.clone()]
    return results


def told(options, reduction):
    return options | ({"op": reduction} if reduction else {})


def answers_of(case, dtype, reduction):
    """What the reference says that the two ranks get."""
    op, shapes, options = CASES[case]
    xs = [values(dtype, shape, 20 + rank) for rank, shape in enumerate(shapes)]
    return [collective(op, xs, rank, **told(options, reduction)) for rank in (0, 1)]


def run_case(here, case, layout):
    op, shapes, options = CASES[case]
    results = {}
    for dtype in FLOATS if "large" in case else DTYPES:  # the reference is slow with integers
        x = LAYOUTS[layout](values(dtype, shapes[here.rank], 20 + here.rank))
        for reduction in operators(dtype) if op == "reduce_scatter" else [None]:
            out = None
            if op != "broadcast":
                out = LAYOUTS[layout](values(dtype, answers_of(case, dtype, reduction)[here.rank].shape, 99))
            results[dtype, reduction] = call_forms(here, op, x, out, **told(of_rank(options, here.rank), reduction))
    return results


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES)
def test_values(pair, case, layout):
    for rank, answer in enumerate(pair(run_case, case, layout, seconds=60)):
        for (dtype, reduction), results in answer.items():
            expected = answers_of(case, dtype, reduction)[rank]
            for result in results:
                assert same_bits(result, expected), (rank, dtype, reduction)


# --- memory ---


def own_blocks(here):
    """x and out in one tensor, each rank's part where it belongs."""
    ops, order, rank = here.ops, here.order, here.rank
    gathered = values(torch.float32, (6, 4), rank)
    ops.all_gather_into_(gathered, gathered[3 * rank:][:3], order)
    uneven = values(torch.float32, (7, 4), rank)
    ops.all_gather_into_(uneven, uneven[2 * rank:][:2 + 3 * rank], order, sizes=[2, 5])
    reduced = values(torch.float32, (6, 4), rank)
    ops.reduce_scatter_into_(reduced[3 * rank:][:3], reduced, order)
    exchanged = values(torch.float32, (6, 4), rank)
    ops.all_to_all_into_(exchanged, exchanged, order)
    return gathered, uneven, reduced[3 * rank:][:3], exchanged


def test_in_place_within_one_tensor(pair):
    wholes = [values(torch.float32, (6, 4), rank) for rank in (0, 1)]
    uneven = [values(torch.float32, (7, 4), rank) for rank in (0, 1)]
    for rank, answer in enumerate(pair(own_blocks)):
        assert same_bits(answer[0], torch.cat([wholes[0][:3], wholes[1][3:]]))
        assert same_bits(answer[1], torch.cat([uneven[0][:2], uneven[1][2:]]))
        assert same_bits(answer[2], collective("reduce_scatter", wholes, rank))
        assert same_bits(answer[3], collective("all_to_all", wholes, rank))


def into_a_part(here):
    """`out` is a part of a tensor, with and without holes; the rest stays."""
    whole = torch.zeros(6, 8)
    x = values(torch.float32, (2, 3), here.rank)
    here.ops.all_gather_into_(whole[1:5, 2:5], x, here.order)
    here.ops.broadcast_(whole[5, ::2], here.order, root=1)
    rows = torch.zeros(6, 3)
    here.ops.all_gather_into_(rows[1:5], x, here.order)
    return whole, rows


def test_what_is_not_written_stays(pair):
    x = torch.cat([values(torch.float32, (2, 3), rank) for rank in (0, 1)])
    for whole, rows in pair(into_a_part):
        assert torch.equal(whole[1:5, 2:5], x) and whole.count_nonzero() == x.count_nonzero()
        assert torch.equal(rows[1:5], x) and rows.count_nonzero() == x.count_nonzero()


# --- wrong arguments of one's own ---

UNEVEN = {"input_split_sizes": [[1, 3], [0, 2]], "output_split_sizes": [[1, 0], [3, 2]]}


def refused(call):
    with pytest.raises(RuntimeError) as caught:
        call()
    return str(caught.value)


def wrong_splits(here):
    """Splits that contradict x, each other or its place in memory; the other rank waits meanwhile, or does the same."""
    ops, order, rank = here.ops, here.order, here.rank
    splits = {name: table[rank] for name, table in UNEVEN.items()}
    sent, received = (sum(splits[name]) for name in UNEVEN)
    whole = torch.zeros(5, 2)
    texts = [refused(lambda: ops.all_to_all_into_(whole[:received], whole[:sent], order, **splits))]
    if rank == 1:
        texts += [refused(lambda: ops.all_to_all(torch.ones(sent + 1, 2), order, **splits)),
                  refused(lambda: ops.all_to_all(torch.ones(sent, 2), order, [3, 1], [0, 2]))]
    return texts, ops.all_to_all(values(torch.float32, (sent, 2), rank), order, **splits)


def test_a_wrong_call_is_refused_on_its_rank_and_can_be_made_again(pair):
    (first, x), (second, y) = pair(wrong_splits, seconds=60)
    for text in (first[0], second[0]):
        assert "in place, and send_counts and recv_counts differ; expected the same numbers, or in and out apart" in text
    assert "all_to_all (default group, rank 1 of 2): x has 3 rows, expected 2, the sum of input_split_sizes [0, 2]" in second[1]
    assert "input_split_sizes [0, 2] sends 2 rows from this rank to itself, output_split_sizes [3, 1] expects 1" in second[2]
    xs = [values(torch.float32, (rows, 2), rank) for rank, rows in enumerate((4, 2))]
    for rank, result in enumerate((x, y)):
        assert same_bits(result, collective("all_to_all", xs, rank, splits=UNEVEN["input_split_sizes"]))


# --- ranks that do not agree: all of them get the cause, and make the group anew ---

DIFFERENT = {
    "rows": (lambda ops, o, r: ops.all_gather(torch.ones(2 + r, 3), o), "all_gather of 6 × float32"),
    "dtype": (lambda ops, o, r: ops.broadcast(torch.ones(2, dtype=[torch.int32, torch.float32][r]), o), "int32"),
    "root": (lambda ops, o, r: ops.broadcast_(torch.ones(2), o, root=r), "from root 1"),
    "operator": (lambda ops, o, r: ops.reduce_scatter(torch.ones(2), o, ["sum", "max"][r]), "by max"),
    "sizes": (lambda ops, o, r: ops.all_gather(torch.ones(2, 3), o, sizes=[[2, 5], [7, 2]][r]), "counts"),
    "sizes of one rank": (lambda ops, o, r: ops.all_gather(torch.ones(2, 3), o, sizes=[[2, 2], None][r]), "uneven"),
    "split sizes": (lambda ops, o, r: ops.all_to_all(torch.ones(4), o, [2 + r, 2], [2, 2]), "rank 0"),
    "collective": (lambda ops, o, r: (ops.all_to_all if r else ops.broadcast)(torch.ones(4), o), "all_to_all"),
    "form": (lambda ops, o, r: ops.all_gather_into_(torch.empty(4), torch.ones(2), o, tag=r), "tag 1"),
}


def disagree(here, what):
    call, _ = DIFFERENT[what]
    try:
        call(here.ops, here.order, here.rank)
        here.ops.barrier(here.order)  # of a broadcast, the root has not waited for the others
        text = "no error"
    except RuntimeError as error:
        text = str(error)
    here.ops.init()  # makes it anew
    return text, here.ops.all_gather(torch.ones(1), here.order).tolist()


@pytest.mark.parametrize("what", DIFFERENT)
def test_ranks_that_do_not_agree(pair, what):
    for rank, (text, later) in enumerate(pair(disagree, what, seconds=60)):
        assert re.match(rf"rankfold_example::\w+ \(default group, rank {rank} of 2\): mismatch_error: ", text), text
        assert DIFFERENT[what][1] in text
        assert later == [1.0, 1.0]
