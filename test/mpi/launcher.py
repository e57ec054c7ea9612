# SPDX-License-Identifier: Apache-2.0
"""Runs programs under Open MPI and MPICH, and sees to it that nothing is left behind."""

import collections
import ctypes
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import check_leftovers  # noqa: E402

Result = collections.namedtuple("Result", "code output seconds left")
# The MPI under test, and where its programs are; Meson sets both.
name = os.environ.get("RANKFOLD_MPI", "openmpi")
folder = pathlib.Path(os.environ.get("RANKFOLD_MPI_FOLDER", "."))
launchers = {"openmpi": ["mpirun.openmpi", "mpirun"], "mpich": ["mpiexec.hydra", "mpiexec.mpich", "mpiexec"]}
titles = {"openmpi": "Open MPI", "mpich": "MPICH"}
SPARE_SECONDS = 60  # two CPUs, many ranks
FINALIZE_SECONDS = 3


def launcher():
    found = next(filter(None, map(shutil.which, launchers[name])), None)
    assert found, f"{titles[name]} has headers here, but no {launchers[name][0]}"
    return found


def version():
    said = subprocess.run([launcher(), "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in re.search(r"(\d+)\.(\d+)", said).groups())


def program(which):
    return str(folder / f"mpi_{name}_{which}")


def run_flags():
    """What every run needs: more ranks than CPUs, ranks on no CPU of their own."""
    return ["--oversubscribe", "--bind-to", "none"] if name == "openmpi" else []


def survive_flags():
    """What lets the other ranks live when one dies, as far as the MPI can."""
    if name == "mpich":
        return ["-disable-auto-cleanup"]
    if version() >= (5, 0):
        return ["--enable-recovery"]
    return ["--mca", "orte_abort_on_non_zero_status", "0", "-enable-recovery"]


def environment(scratch):
    # As root only where asked for; both spellings, of Open MPI 4 and 5.
    allow = {f"{runtime}_ALLOW_RUN_AS_ROOT{confirm}": "1" for runtime in ("OMPI", "PRTE")
             for confirm in ("", "_CONFIRM")}
    return {**os.environ, **allow, "TMPDIR": str(scratch)}


def run(ranks, command, flags=(), timeout=SPARE_SECONDS, **variables):
    """Runs a program on so many ranks. Its output, how it ended, and what it left behind."""
    return run_launcher([launcher(), "-n", str(ranks), *run_flags(), *flags, *command], timeout, variables)


def run_launcher(command, timeout, variables=None, during=None, finished=None):
    """Runs a launcher. `during()` is called again and again meanwhile; what runs is ended when it says so.
    Where `finished(output)` says that the ranks have done their work, they have FINALIZE_SECONDS left to end;
    then they are ended here, and count as ended well."""
    ctypes.CDLL(None).prctl(check_leftovers.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans become ours
    before = check_leftovers.shm_files()
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="rankfold-mpi-"))
    try:
        with tempfile.TemporaryFile() as output:
            begin = time.monotonic()
            finished_at = None
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                     env={**environment(scratch), **(variables or {})})
            left = []
            try:
                while child.poll() is None and not (during and during()):
                    if time.monotonic() > begin + timeout:
                        left.append(f"{timeout} s were not enough")
                        break
                    if finished_at is None and finished and finished(text_of(output)):
                        finished_at = time.monotonic()
                    if finished_at is not None and time.monotonic() > finished_at + FINALIZE_SECONDS:
                        break
                    time.sleep(0.01)
                hangs_in_finalize = finished_at is not None and child.poll() is None
            finally:
                stop(child)
            seconds = time.monotonic() - begin
            left += leftovers(before, scratch, crashed=child.returncode == -signal.SIGSEGV)
            text = text_of(output)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"{' '.join(map(str, command))}\n{text}\nexit code {child.returncode}, {seconds:.1f} s")
    return Result(0 if hangs_in_finalize else child.returncode, text, seconds, left)


def text_of(output):
    return os.pread(output.fileno(), os.fstat(output.fileno()).st_size, 0).decode(errors="replace")


def stop(child):
    """Ends a launcher that still runs: politely, so that it ends its ranks."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            return
        child.send_signal(sign)
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            pass


def leftovers(before, scratch, crashed):
    """What a run has left: processes, files in /dev/shm, files in its folder for temporary ones. Where the
    launcher itself has crashed, its session is left out: mpirun of Open MPI 4.1 with PMIx 4.2 now and then calls
    a null pointer in PMIx_server_finalize, once a rank has ended without MPI_Finalize."""
    deadline = time.monotonic() + check_leftovers.GRACE_SECONDS
    while (pids := check_leftovers.descendants()) and time.monotonic() < deadline:
        time.sleep(0.02)
    found = [f"process {pid}: {check_leftovers.command_line(pid)}" for pid in sorted(pids)]
    check_leftovers.end(pids)
    for path in sorted(check_leftovers.shm_files() - before):
        if not check_leftovers.opened_elsewhere(path):
            found.append(f"file {path}")
            path.unlink(missing_ok=True)
    return found + [f"file {path}" for path in sorted(scratch.rglob("*")) if not path.is_dir()
                    and not (crashed and check_leftovers.session_of_mpi.match(path.relative_to(scratch).parts[0]))]


def lines(result, start=""):
    return [line for line in result.output.splitlines() if line.startswith(start)]
