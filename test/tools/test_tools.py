# SPDX-License-Identifier: Apache-2.0
"""The checks themselves: each finds the fault that it is for."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

tools = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path[:0] = [str(tools), str(tools.parent / "test" / "mpi")]
import check_layers  # noqa: E402
import ci_summary  # noqa: E402
import launcher  # noqa: E402


def tool(name, *arguments, **options):
    return subprocess.run([sys.executable, str(tools / name), *map(str, arguments)],
                          capture_output=True, text=True, **options)


# --- check_leftovers ---


def leftovers(tmp_path, script, *options):
    report = tmp_path / "report"
    done = tool("check_leftovers.py", "--report", report, *options, "--", "sh", "-c", script)
    return done, report.read_text() if report.exists() else ""


def test_a_command_that_leaves_nothing_passes_with_its_own_exit_code(tmp_path):
    done, report = leftovers(tmp_path, "sleep 0.2 & exit 7")  # the moment of grace is enough
    assert (done.returncode, report) == (7, "passed nothing is left behind\n")


def test_a_process_that_is_left_behind_fails_and_is_ended(tmp_path):
    done, report = leftovers(tmp_path, "setsid sleep 4321 & echo $!")
    assert done.returncode == 1 and report == "failed nothing is left behind\n"
    assert "sleep 4321" in done.stderr
    assert not pathlib.Path(f"/proc/{done.stdout.strip()}").exists()


def test_a_file_left_in_shared_memory_fails(tmp_path):
    file = pathlib.Path(f"/dev/shm/rankfold-tools-{tmp_path.name}")
    try:
        done, _ = leftovers(tmp_path, f"touch {file}")
        assert done.returncode == 1 and str(file) in done.stderr
        if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0:
            assert not file.exists()  # it never was in the machine's own
    finally:
        file.unlink(missing_ok=True)


def test_a_session_folder_of_mpi_left_behind_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done, _ = leftovers(tmp_path, "mkdir $TMPDIR/ompi.host.0 $TMPDIR/of_others")
    assert done.returncode == 1
    assert "ompi.host.0" in done.stderr and "of_others" not in done.stderr


@pytest.mark.parametrize("end, session", [("exit 1", ["contact.txt"]), ("kill -SEGV $$", [])])
def test_only_the_session_of_an_mpi_launcher_that_crashed_is_left_out(end, session):
    ended = launcher.run_launcher(
        ["sh", "-c", f"mkdir $TMPDIR/ompi.host.0; touch $TMPDIR/ompi.host.0/contact.txt $TMPDIR/other; {end}"], 10)
    assert [pathlib.Path(what).name for what in ended.left] == [*session, "other"]


def test_a_command_that_hangs_is_ended(tmp_path):
    done, _ = leftovers(tmp_path, "sleep 4322 & sleep 4323", "--timeout", "0.5")
    assert done.returncode == 124


# --- compile_fail: with a script in the compiler's place ---


@pytest.mark.parametrize("defined, says, passes", [
    ("CF_A", "error: no avg of int", True),
    ("CF_A", "error: something else", False),
    ("CF_NONE", "error: no avg of int", False),
    ("", "error: no avg of int", False),
])
def test_compile_fail_wants_a_failure_with_that_text(tmp_path, defined, says, passes):
    source = tmp_path / "source.cpp"
    source.write_text("#if defined(CF_A)  // expect: no avg of (int|long)\n#endif\n")
    script = tmp_path / "compiler"
    script.write_text(f'case "$*" in *{defined}*) echo "{says}" >&2; exit 1;; esac\n')
    done = tool("compile_fail.py", source, "sh", script)
    assert (done.returncode == 0) == passes, done.stdout


# --- check_layers: on small trees ---


def layers(tmp_path, monkeypatch, **contents):
    """Problems of a tree of headers, given as folder__name="layer: includes"."""
    listed = {}
    for key, content in contents.items():
        name = key.replace("__", "/") + ".hpp"
        layer, _, text = content.partition(": ")
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("".join(
            f"{line}\n" if line.startswith("using") else f"#include {line}\n"
            for line in text.split(";") if line))
        listed[name] = int(layer)
    monkeypatch.setattr(check_layers, "include", tmp_path)
    return "\n".join(check_layers.check(listed))


@pytest.mark.parametrize("problem, contents", [
    ("layer 1 includes b.hpp of layer 2", {"a": '1: "rankfold/b.hpp"', "b": "2: "}),
    ("siblings", {"transport__a": '3: "rankfold/transport/b.hpp"', "transport__b": "3: "}),
    ("circle: a.hpp → b.hpp → a.hpp", {"a": '1: "rankfold/b.hpp"', "b": '1: "rankfold/a.hpp"'}),
    ("a public header above layer 2", {"detail__a": '4: "rankfold/context.hpp"', "context": "4: "}),
    ("must be generic", {"algorithm__a": "5: using t = shm_transport;"}),
    ("generic over transports", {"algorithm__a": '5: "rankfold/transport/b.hpp"', "transport__b": "3: "}),
    ("belongs to detail/simd.hpp alone", {"a": "1: <xsimd/xsimd.hpp>"}),
    ("belongs to nobody alone", {"a": "1: <iostream>"}),
    ("no header of the list", {"a": '1: "rankfold/gone.hpp"'}),
    ('not <rankfold/b.hpp>', {"a": "2: <rankfold/b.hpp>", "b": "1: "}),
])
def test_check_layers_finds(tmp_path, monkeypatch, problem, contents):
    assert problem in layers(tmp_path, monkeypatch, **contents)


def test_check_layers_takes_a_good_tree_and_misses_no_file(tmp_path, monkeypatch):
    good = {"a": '2: "rankfold/b.hpp";<vector>', "b": "1: ", "detail__simd": "2: <xsimd/xsimd.hpp>",
            "collective__a": '6: "rankfold/collective/b.hpp"', "collective__b": "6: "}
    assert layers(tmp_path, monkeypatch, **good) == ""
    (tmp_path / "new.hpp").touch()
    assert "new.hpp is not in the list" in layers(tmp_path, monkeypatch, **good)


# --- ci_summary ---


def test_the_summary_counts_cases_and_tests_and_crashes(tmp_path):
    lines, junit = tmp_path / "lines.report", tmp_path / "junit.xml"
    lines.write_text("passed a\nfailed b\n")
    junit.write_text('<testsuites><testsuite><testcase classname="m" name="c"/>'
                     '<testcase classname="m" name="d"><skipped/></testcase>'
                     '<testcase classname="m" name="e"><failure>why</failure></testcase>'
                     '</testsuite></testsuites>')
    crashed = tmp_path / "crashed.report"
    crashed.write_text("passed f\n")
    tests = [("one", "OK", None), ("two", "FAIL", lines), ("three", "FAIL", junit),
             ("four", "TIMEOUT", crashed), ("five", "SKIP", None), ("six", "FAIL", "output")]
    (tmp_path / "meson-logs").mkdir()
    said = {"output": "ok   good\nFAIL  bad\n"}
    (tmp_path / "meson-logs" / "testlog.json").write_text("\n".join(
        json.dumps({"name": name, "result": result, "returncode": 1, "stdout": said.get(report, "out"),
                    "env": {"RANKFOLD_TEST_REPORT": str(report)} if report else {}})
        for name, result, report in tests))
    results = ci_summary.from_meson(tmp_path)
    assert ci_summary.line(results) == "5 passed, 4 failed, 2 skipped"
    failed = {result.name: result.detail for result in results if result.state == "failed"}
    assert "bad" in failed.pop("bad")
    assert failed == {
        "b": "out", "m: e": "why", "four (timeout, exit code 1, last passed: f)": "out"}


# --- launch ---


def test_launch_gives_each_rank_its_place_and_ends_with_the_first_failure():
    show = 'echo "rank $RANK of $WORLD_SIZE at $MASTER_ADDR"'
    done = tool("launch.py", "--expect", "of 3 at 127.0.0.1", 3, "sh", "-c", show)
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [f"[{r}] rank {r} of 3 at 127.0.0.1" for r in range(3)]
    assert tool("launch.py", 2, "sh", "-c", "exit $((RANK * 5))").returncode == 5
    assert tool("launch.py", "--expect", "rank 0", 2, "sh", "-c", show).returncode == 1


# --- bench/cost_model ---


def test_the_cost_model_fits_two_ranks_and_counts_for_more(tmp_path):
    lines = ["round,counted,place,one_way_ns,collective,dtype,bytes,contestant,median_ns,p99_ns"]
    for collective, name, a, b in [("all_reduce", "rankfold", 0.1, 40e-6), ("broadcast", "rankfold", 0.05, 20e-6),
                                   ("all_reduce", "openmpi", 1, 100e-6)]:
        for size in [8, 64, 1 << 10, 8 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]:
            for number, (counted, error) in enumerate([(1, 1), (0, 9), (0, 9)]):  # what does not count is not looked at
                ns = (a + b * size) * 1e3 * error
                lines.append(f"{number},{counted},near,50,{collective},float32,{size},{name},{ns},{ns}")
    (tmp_path / "x.csv").write_text("\n".join(lines))
    done = subprocess.run([sys.executable, str(tools.parent / "bench/cost_model.py"), tmp_path / "x.csv"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ")[1:] for line in done.stdout.splitlines()
            if " | " in line}
    assert rows["rankfold, all_reduce"][:3] == ["0.10, 40.0", "0.10, 40.0", "0.10, 40.0"]
    assert rows["Open MPI, all_reduce"][3].startswith("0%")
    # 64 B: 1 step, 6 more lines, 1 write and 7 reads. 64 KiB: 2 waits and steps, 1 write, 2 · 7/8 reads.
    rankfold = rows["rankfold: one_shot, two_shot"]
    assert rankfold[1] == "0.41" and rankfold[5] == "4.40"
    assert rankfold[4] == "2.72*"
    # 64 B: three rounds, or six halves. 64 KiB: six halves of the latency, 7/4 of the bytes.
    assert rows["Open MPI: the fastest of three"][1] == "3.01" and rows["Open MPI: the fastest of three"][5] == "14.5"
