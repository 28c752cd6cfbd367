"""`normlab run` itself: what only a process of its own shows. Each costs a second, so they are few."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from normlab.cli import app
from normlab.run.launcher import Launcher
from normlab.run.record import Record, ordinal
from normlab.sim.language.source import Line
from normlab.sim.sanitizing import Act, Finding

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


def test_findings_are_reported_at_the_end_and_make_the_exit_code_1(tmp_path):
    done = normlab_run("--sanitize", "--trace", "--json", tmp_path / "report.json", "planted.py")
    assert done.returncode == 1  # and not the program's own 5
    assert done.stdout == "result: True\n"
    assert "normlab run: 3 kernels, 5 launches, 2 findings" in done.stderr
    first_half, total, reverse = (
        done.stderr.split("\n\nfirst_half ")[1].split("\n\ntotal ")[0],
        *[done.stderr.split(f"\n\n{name} (planted.py:")[1] for name in ("total", "reverse")],
    )
    assert "in 1 launch" not in first_half
    assert "in 1 launch, the 1st, total[1, 64]: uninitialized-read on global x[32], 32 times" in total
    assert "in 3 launches, first the 1st, reverse[1, 64]: race on shared shared[32], 64 times" in reverse
    assert reverse.count("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum") == 1
    kernels = json.loads((tmp_path / "report.json").read_text())["kernels"]
    assert [(one["kernel"], one["launches"]) for one in kernels] == [("first_half", 1), ("total", 1), ("reverse", 3)]
    assert [[found["kind"] for found in one["findings"]] for one in kernels] == [[], ["uninitialized-read"], ["race"]]
    (race,) = kernels[2]["findings"]
    assert (race["launches"], race["first_launch"]) == (3, {"number": 1, "grid": 1, "block": 64})
    assert kernels[2]["trace"]["metrics"]["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] > 0


CLOSING = """
import shutil, sys
import numpy as np
from numba import cuda

@cuda.jit
def same_place(y):
    y[0] = cuda.grid(1)

same_place[1, 64](np.zeros(1))
sys.stdout.close()
shutil.rmtree(sys.argv[1])
"""


def test_a_report_is_told_when_its_file_and_the_output_are_gone(tmp_path):
    (tmp_path / "closing.py").write_text(CLOSING)
    folder = tmp_path / "gone"
    folder.mkdir()
    done = normlab_run("--sanitize", "--json", folder / "report.json", tmp_path / "closing.py", folder)
    assert done.returncode == 1
    assert "race on global y[0]" in done.stderr
    assert f"cannot write {folder / 'report.json'}: No such file or directory" in done.stderr


BENIGN = """
from numba import cuda
import numpy as np

@cuda.jit
def any_positive(x, found):
    if x[cuda.grid(1)] > 0:
        found[0] = 1

any_positive[2, 32](np.ones(64, np.float32), np.zeros(1, np.int32))
"""


def test_stores_of_one_value_are_told_and_fail_only_a_strict_run(tmp_path):
    script = tmp_path / "benign.py"
    script.write_text(BENIGN)
    for strict, code in (([], 0), (["--strict"], 1)):
        done = normlab_run("--sanitize", *strict, script)
        assert done.returncode == code, done.stderr
        assert "race of equal values on global found[0]" in done.stderr


TWO_KERNELS = """
from numba import cuda
import numpy as np

@cuda.jit
def first(x):
    i = cuda.grid(1)
    x[i] = i

@cuda.jit
def second(x):
    i = cuda.grid(1)
    x[i] += 1

x = cuda.to_device(np.zeros(64, np.float32))
first[2, 32](x)
first[2, 32](x)
if len(__import__("sys").argv) > 1:
    second[2, 32](x)
"""


def test_play_writes_a_page_for_each_kernel(tmp_path):
    script, page = tmp_path / "kernels.py", tmp_path / "page.html"
    script.write_text(TWO_KERNELS)
    done = normlab_run("--trace", "--play", page, script)
    assert done.returncode == 0, done.stderr
    assert f"wrote {page}\n" in done.stderr
    html = page.read_text()
    assert "<title>first, block (0, 0, 0): step by step</title>" in html
    assert f"<h2>{script}</h2>" in html
    done = normlab_run("--trace", "--play", tmp_path / "pages.html", script, "both")
    names = ["pages-1-first.html", "pages-2-second.html"]
    assert sorted(one.name for one in tmp_path.glob("*.html")) == ["page.html", *names]
    assert [f"wrote {tmp_path / name}\n" in done.stderr for name in names] == [True, True]
    assert "<title>second, " in (tmp_path / names[1]).read_text()


def test_play_needs_trace_and_a_file_that_can_be_written(tmp_path):
    done = CliRunner().invoke(app, ["run", "--play", "page.html", str(PROGRAMS / "exits.py")])
    assert done.exit_code == 2
    assert "--play writes what --trace follows: give that, too" in done.stderr
    done = CliRunner().invoke(app, ["run", "--trace", "--play", str(tmp_path), str(PROGRAMS / "exits.py")])
    assert done.exit_code == 2
    assert f"cannot open {tmp_path}: Is a directory" in done.stderr


REFUSED = """
from numba import cuda
import numpy as np

@cuda.jit(device=True)
def doubled(value):
    return {"twice": 2 * value}["twice"]

@cuda.jit
def kernel(x):
    x[cuda.grid(1)] = doubled(x[cuda.grid(1)])

x = np.ones(4, np.float32)
kernel[1, 4](x)
print(x.sum())
"""


def test_a_kernel_that_numba_does_not_compile_is_refused_before_it_runs(tmp_path):
    script = tmp_path / "refused.py"
    script.write_text(REFUSED)
    for options in ((), ("--sanitize", "--trace")):
        done = normlab_run(*options, str(script))
        assert (done.returncode, done.stdout) == (1, "")
        assert "kernel 'kernel' does not compile for a GPU: a kernel cannot use a dict" in done.stderr
        assert f"{script}:7: return {{" in done.stderr
        assert f'"{script}", line 14, in <module>' in done.stderr
        assert "numba_cuda" not in done.stderr
        assert "engine" not in done.stderr
    done = normlab_run("--no-check", str(script))
    assert (done.returncode, done.stdout) == (0, "8.0\n"), done.stderr


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


def test_options_behind_the_script_are_the_script_s(monkeypatch):
    """As what comes with them is told; `test_programs` runs programs with arguments."""
    ran = []
    monkeypatch.setattr("normlab.run.run_program", lambda *given: ran.append(given) or 0)
    done = CliRunner().invoke(app, ["run", "matmul_shared.py", "--help"])
    assert (done.exit_code, done.output) == (0, "")
    done = CliRunner().invoke(app, ["run", "exits.py", "nothing", "--sanitize"])
    assert ran == [
        ("matmul_shared.py", ["--help"], False, False, None, True, False, None, False),
        ("exits.py", ["nothing", "--sanitize"], False, False, None, True, False, None, False),
    ]
    assert done.exit_code == 0
    assert done.stderr == (
        "normlab run: --sanitize after SCRIPT is an argument of the program; normlab's own comes before: "
        "normlab run --sanitize exits.py\n"
    )
    done = CliRunner().invoke(app, ["run", "-m", "pytest", "tests", "--json", "report.json"])
    assert "before: normlab run --json FILE -m pytest\n" in done.stderr


MODULE = """
import sys
import numpy as np
from numba import cuda
from . import part

@cuda.jit
def twice(x):
    x[cuda.threadIdx.x] *= 2

x = np.arange(3.0)
twice[1, 3](x)
print(__name__, sys.argv[0].endswith("__main__.py"), sys.argv[1:], x.tolist(), part.seen)
sys.exit(5)
"""


def test_a_module_runs_as_python_m_runs_it(tmp_path):
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole/__init__.py").write_text("from numba import cuda\n")  # before the module itself is run
    (tmp_path / "whole/part.py").write_text("from numba import cuda\nseen = cuda.get_current_device().name\n")
    (tmp_path / "whole/__main__.py").write_text(MODULE)
    done = normlab_run("-m", "whole", "-q", "x.py", PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    assert (done.returncode, done.stderr) == (5, "")
    assert done.stdout == "__main__ True ['-q', 'x.py'] [0.0, 2.0, 4.0] NVIDIA H200\n"


def test_a_module_that_is_not_there_is_named_and_the_help_names_the_exit_codes():
    done = CliRunner().invoke(app, ["run", "-m", "no_such_package.part"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == ("normlab run: cannot run -m no_such_package.part: No module named 'no_such_package.part'\n")
    told = CliRunner().invoke(app, ["run", "--help"]).stdout
    assert "SCRIPT} [ARGS]" in told
    assert "130 for Ctrl-C" in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--json", "report.json", "exits.py"],
            "--json writes what --sanitize or --trace report: give one of them, too",
        ),
        (
            ["--trace", "--json", "/nowhere/report.json", str(PROGRAMS / "exits.py")],
            "cannot open /nowhere/report.json: No such file",
        ),
    ],
)
def test_a_report_that_cannot_be_written_is_refused_before_the_program_runs(arguments, said):
    done = CliRunner().invoke(app, ["run", *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"normlab run: {said}" in done.stderr


def test_a_script_that_is_not_there_leaves_the_report_of_another(tmp_path):
    report = tmp_path / "report.json"
    report.write_text("{}")
    done = CliRunner().invoke(app, ["run", "--trace", "--json", str(report), "no_such_program.py"])
    assert done.exit_code == 2
    assert done.output == "normlab run: cannot open no_such_program.py: No such file or directory\n"
    assert report.read_text() == "{}"


QUIET = ["block_reduction", "grid_sync", "laplace_2d", "life", "matmul_shared", "scan", "streams", "ufuncs"]


@pytest.mark.parametrize("name", QUIET)
def test_nothing_is_found_in_correct_programs_and_their_results_stay(run, name):
    launcher = Launcher(sanitize=True)
    watched, plain = run(name, launcher=launcher), run(name)
    assert not launcher.found_something(strict=True), launcher.report()
    if name != "streams":  # which prints times
        assert watched.out == plain.out


def test_findings_of_a_launch_that_raised_count_and_say_which_it_was(run):
    launcher = Launcher(sanitize=True)
    finished = run("caught", launcher=launcher)
    assert finished.results == [1]  # under the sanitizer, a store out of bounds is a finding, and goes on
    assert "raising (caught.py:7): 4 launches" in launcher.report()
    assert "in 1 launch, the 4th, raising[(1, 1), 33]: race on global x[0]" in launcher.report()
    assert "in 1 launch, the 1st, outside[1, 1]: out-of-bounds on global x[1]" in launcher.report()
    assert [*map(ordinal, (1, 2, 3, 4, 11, 22, 112))] == ["1st", "2nd", "3rd", "4th", "11th", "22nd", "112th"]


def test_of_many_findings_of_a_kind_the_first_are_printed():
    def kernel():
        pass

    record = Record(kernel)
    record.launches = 2
    lines = [Line(__file__, number) for number in range(1, 9)]
    acts = [Act("write", (0, 0, 0), (0, 0, 0), 0, 0, line) for line in lines]
    record.add([Finding("race", "x", "global", (0,), act, None, "wait") for act in acts], (1, 32))
    record.add([Finding("race", "y", "global", (0,), acts[0], None, "wait")], (1, 32))
    text = str(record)
    assert text.count("in 1 launch, the 2nd, kernel[1, 32]: race on global x[0]") == 5
    assert text.count("race on global y[0]") == 1
    assert text.endswith("3 more of kind race on x: see --json FILE")
    assert len(record.as_dict()["findings"]) == 9


def test_a_first_launch_that_raises_has_no_trace_and_says_so(run):
    launcher = Launcher(trace=True)
    assert run("caught", launcher=launcher).results == [3]
    head, raising, outside = launcher.report().split("(caught.py:")
    assert "2 kernels, 5 launches" in head
    assert "the first:\n  raising[" in raising
    assert "the first raised IndexError: " in outside
    assert outside.endswith("; 'x' is an array of shape (1,); --sanitize tells more")
    both = Launcher(sanitize=True, trace=True)
    assert run("caught", launcher=both).results == [1]
    assert "out-of-bounds on global x[1]" in both.report()
    assert "--sanitize tells" not in both.report()
    assert both.as_dict()["kernels"][1]["raised"].startswith("IndexError: index 1 is out of bounds")


def test_tracing_changes_no_result(run):
    assert run("heat_1d", launcher=Launcher(trace=True)).out == run("heat_1d").out
