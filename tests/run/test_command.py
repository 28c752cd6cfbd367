"""`normlab run` itself: what only a process of its own shows. Each costs a second, so they are few."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from normlab.cli import app
from normlab.run.launcher import Launcher

PROGRAMS = Path(__file__).parent / "programs"


def normlab_run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "normlab.cli", "run", *arguments],
        capture_output=True,
        text=True,
        cwd=PROGRAMS,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )


def test_findings_are_reported_at_the_end_and_make_the_exit_code_1():
    done = normlab_run("--sanitize", "--trace", "planted.py")
    assert done.returncode == 1  # and not the program's own 5
    assert done.stdout == "result: True\n"
    assert "normlab run: 3 kernels, 5 launches, 2 findings" in done.stderr
    first_half, total, reverse = (
        done.stderr.split("\n\nfirst_half ")[1].split("\n\ntotal ")[0],
        *[done.stderr.split(f"\n\n{name} (planted.py:")[1] for name in ("total", "reverse")],
    )
    assert "in 1 launch" not in first_half
    assert "in 1 launch: uninitialized-read on global x[32], 32 times" in total
    assert "in 3 launches: race on shared shared[32], 64 times" in reverse
    assert reverse.count("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum") == 1


def test_threads_and_exit_functions_are_watched_to_the_end():
    done = normlab_run("--sanitize", "threads.py")
    assert (done.returncode, done.stdout) == (0, f"result: {64 * 115}\n")
    assert "1 kernel, 7 launches, no findings" in done.stderr
    done = normlab_run("--trace", "exits.py", "three")
    assert done.returncode == 3
    assert "at exit: 2" in done.stdout
    assert "count (exits.py:10): 1 launch" in done.stderr


def test_spawned_processes_simulate_and_numba_s_own_switch_does_not_matter():
    done = normlab_run("processes.py", NUMBA_ENABLE_CUDASIM="1")
    assert (done.returncode, done.stdout) == (0, "result: 36 748\n")
    assert done.stderr == "normlab run: NUMBA_ENABLE_CUDASIM is ignored: kernels run in normlab's simulator\n"


def test_options_behind_the_script_are_the_script_s():
    done = normlab_run("matmul_shared.py", "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: matmul_shared.py [-h] [--rows ROWS]")


def test_a_script_that_is_not_there():
    done = CliRunner().invoke(app, ["run", "no_such_program.py"])
    assert done.exit_code == 2
    assert done.output == "normlab run: cannot read no_such_program.py: No such file or directory\n"


QUIET = ["block_reduction", "grid_sync", "laplace_2d", "life", "matmul_shared", "scan", "streams", "ufuncs"]


@pytest.mark.parametrize("name", QUIET)
def test_nothing_is_found_in_correct_programs_and_their_results_stay(run, name):
    launcher = Launcher(sanitize=True)
    watched, plain = run(name, launcher=launcher), run(name)
    assert not launcher.found_something, launcher.report()
    if name != "streams":  # which prints times
        assert watched.out == plain.out


def test_tracing_changes_no_result(run):
    assert run("heat_1d", launcher=Launcher(trace=True)).out == run("heat_1d").out
