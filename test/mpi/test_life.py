# SPDX-License-Identifier: Apache-2.0
"""How programs with the MPI transport begin and end: the scenarios of life.cpp."""

import re

import launcher
import pytest

RANKS = 3
LAST = RANKS - 1


def run(scenario, flags=(), **variables):
    found = launcher.run(RANKS, [launcher.program("life"), scenario], flags, **variables)
    assert found.left == []
    return found


def said(found, rank):
    return [line.removeprefix(f"rank {rank}: ") for line in launcher.lines(found, f"rank {rank}: ")]


def each(found, *texts, ranks=range(RANKS)):
    """Each rank has said these, in this order, each line with one text in it."""
    for rank in ranks:
        lines = said(found, rank)
        assert len(lines) == len(texts), (rank, lines)
        for line, text in zip(lines, texts):
            assert text in line


def ended_without_finalize(found):
    """Where a rank exits and rankfold has not finalised MPI, since a communicator had failed: Open MPI's
    launcher calls the job failed. MPICH's may end the others and call it failed, or may not notice."""
    return found.code != 0 or launcher.name == "mpich"


def seconds(line):
    return float(re.fullmatch(r"took (.*) s", line)[1])


@pytest.mark.parametrize("scenario", ["plain", "lasting"])
def test_a_program_that_knows_nothing_of_mpi(scenario):
    """rankfold initialises MPI, and finalises it at exit, also where the communicator is static."""
    found = run(scenario)
    assert found.code == 0
    each(found, "sum 6", "finalized")
    assert "not finalized" not in found.output


def test_a_program_that_uses_mpi_itself():
    found = run("user")
    assert found.code == 0
    each(found, "MPI gives MPI_THREAD_MULTIPLE", "sum 6", "not finalized", "finalized")


def test_use_after_mpi_finalize_is_an_error_that_says_so():
    found = run("after_finalize")
    assert found.code == 0
    gone = "MPI has been finalised; destroy communicators before MPI_Finalize"
    each(found, "MPI gives", "sum 6", f"transport_error: rankfold: MPI_Isend: {gone}", gone,
         f"transport_error: rankfold: MPI_Comm_idup: {gone}")


def test_the_first_use_after_mpi_finalize_too():
    found = run("late")
    assert found.code == 0
    each(found, "MPI gives MPI_THREAD_SINGLE", "MPI has been finalised")


def test_funneled_another_thread_gets_an_error_and_its_notice_is_sent_by_the_owner():
    found = run("funneled")
    assert found.code == 0
    other = "transport_error: rankfold: {}: MPI gives MPI_THREAD_FUNNELED, so that only the thread that " \
            "initialised it may call it; initialise it by MPI_Init_thread with MPI_THREAD_MULTIPLE"
    errors = other.format("MPI_Isend"), other.format("MPI_Comm_idup")
    each(found, "MPI gives MPI_THREAD_FUNNELED", *errors, "sum 6", ranks=[0])
    each(found, "MPI gives MPI_THREAD_FUNNELED", *errors, "heard from a thread", "sum 6", ranks=[1, 2])


def test_serialized_threads_take_turns():
    found = run("serialized")
    assert found.code == 0
    each(found, "MPI gives MPI_THREAD_SERIALIZED", "sum 6")


def test_a_rank_that_makes_no_transport():
    found = run("absent")
    for rank in range(LAST):
        _, error, took = said(found, rank)
        assert error == "rendezvous_error: rankfold: mpi_transport: not all 3 ranks of the communicator made " \
                        "a transport of it within 1 s"
        assert 1 <= seconds(took) < 5
    assert ended_without_finalize(found)


def test_a_rank_that_makes_one_call_fewer():
    found = run("missing")
    for rank in range(LAST):
        total, error, took, later = said(found, rank)
        assert re.fullmatch(r"timeout_error: barrier \(call 2\) on rank [01] of 3 over mpi: rank 2 did not arrive "
                            "within 1 s", error)
        # Whose deadline comes first tells the other, who may have begun to wait a little later.
        own = f"on rank {rank} of 3" in error
        assert (1 if own else 0.5) <= seconds(took) < 5
        assert later == f"aborted_error: communicator was given up; first error: {error.partition(': ')[2]}"
    # What it needs is there: it completes this call, and would fail in the next.
    assert said(found, LAST) == ["sum 6", "no error"]
    assert ended_without_finalize(found)


def test_a_rank_that_is_killed_ends_the_job():
    """Which is what launchers do unless told otherwise: before the deadline, with an error code."""
    found = run("killed")
    # mpiexec of MPICH 4.2 (Debian 13) ends the job, too, but says 0.
    assert found.code != 0 or launcher.name == "mpich" and launcher.version() >= (4, 2)
    assert found.seconds < 10
    for rank in range(LAST):
        assert said(found, rank) == ["sum 6"]


def test_a_rank_that_is_killed_where_the_others_may_live():
    """Open MPI lets them: they end by their own deadline. MPICH 4 says it does, but its launcher loses
    the others at times: the job ends within the deadline in any case."""
    found = run("killed", launcher.survive_flags())
    assert found.seconds < 15
    for rank in range(LAST):
        total, *rest = said(found, rank)
        if launcher.name == "openmpi" or rest:
            error, took = rest
            assert re.fullmatch(r"timeout_error: barrier \(call 2\) on rank [01] of 3 over mpi: rank 2 did not "
                                "arrive within 2 s", error)
            assert 2 <= seconds(took) < 6


def test_after_a_failure_mpi_is_not_finalised_at_exit():
    found = run("mismatch")
    for rank in range(RANKS):  # MPICH may end ranks as soon as one has exited
        assert said(found, rank)[1].startswith("mismatch_error: all_reduce (call 2)")
        assert said(found, rank)[2:] in (["not finalized"], [])
    assert "not finalized" in found.output
    assert ended_without_finalize(found)


def test_after_a_failure_a_program_may_finalise_mpi_itself():
    found = run("mismatch_user")
    assert found.code == 0
    each(found, "MPI gives", "sum 6", "mismatch_error: all_reduce (call 2)", "finalized")
    assert "not finalized" not in found.output


def test_a_child_after_fork_is_left_alone():
    found = run("forked")
    assert found.code == 0
    each(found, "sum 6", "made before fork()", "MPI was initialised before fork()", "child ended with 7", "sum 6")


def test_an_exception_of_the_program_tells_the_others():
    found = run("thrown")
    each(found, "sum 6", "of the program", ranks=[0])
    each(found, "sum 6", "peer_lost_error: rank 0 left", "took", ranks=[1, 2])
    assert ended_without_finalize(found)
