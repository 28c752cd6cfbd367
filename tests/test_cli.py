"""The command `normlab`: what it prints where, its exit codes, and one whole run as a user starts it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import normlab
from normlab import engine
from normlab.cli import app
from normlab.measure.files import record
from normlab.measure.numbers import scientific
from normlab.studies import compare
from normlab.studies.compare import passes, plan

PATHS = ("saved_input", "recomputed", "exact")
WORDS = (
    *("error", "/bound", "kept by the norm", "kept, with output", "smallest |gamma|", "channels at risk"),
    "kept columns",
)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def simulated(*arguments):
    return run("compare", *arguments, "--engine", "simulator")


def command(*arguments, **options):
    """The command in a process of its own, without the COLUMNS that readline, which pytest imports, sets in C."""
    options = {"env": {name: value for name, value in os.environ.items() if name != "COLUMNS"}} | options
    return subprocess.run(
        [sys.executable, "-m", "normlab.cli", *arguments], capture_output=True, text=True, timeout=300, **options
    )


@pytest.fixture
def small(tmp_path):
    """A file of 3 rows of 8."""
    np.save(tmp_path / "small.npy", np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32))
    return tmp_path / "small.npy"


# ---- the whole command -----------------------------------------------------------------------------------------------


def test_compare_prints_what_the_record_has():
    done = command("compare", "--engine", "simulator", "--rows", "270", "--details")
    assert (done.returncode, done.stderr) == (0, "")
    for layer in record("compare_float32")["layers"]:
        errors = re.search(rf"^{layer['name']}$.*?grad_input (.*?)$", done.stdout, re.DOTALL | re.MULTILINE)
        cells = errors[1].split()[::2]
        assert all(map(same, cells, (scientific(layer[path]["grad_input"]["relative"]) for path in PATHS)))


def test_compare_of_no_file_is_a_line_per_layer_the_verdict_first():
    done = simulated("--rows", "90")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= 20
    assert re.fullmatch(r"embeddings: recomputing is as accurate as saving, and keeps [\d.]+ kB less", lines[0])
    assert lines[1].startswith("block0_output: recomputing is as accurate as saving")
    worse = r"block5_output: recomputing is \d{3},000 times less accurate; exact keeps \d\.\d kB more"
    assert re.fullmatch(worse, lines[2])


def same(shown, cell):
    """Two printed numbers, give or take one in the last digit, which another machine's libm may round otherwise."""
    if shown == cell or not re.fullmatch(r"[0-9.e-]+", cell):
        return shown == cell
    last_digit = {"rel": 0.1} if "e" in cell else {"rel": 0, "abs": 0.0011}
    return float(shown) == pytest.approx(float(cell), **last_digit)


def test_the_help_comes_at_once_and_imports_no_compiler():
    code = "import sys, normlab.cli; print([m for m in ('numba', 'numpy', 'torch', 'rich.table') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_pipe_that_takes_only_ascii_gets_the_table_uncut_in_80_columns_and_no_colour():
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = command("compare", "--rows", "1", "--engine", "simulator", "--details", env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line == line.rstrip() for line in lines)
    rows = [line.split() for line in lines if line.startswith("  grad_")]
    assert len(rows) == 9
    for _, *numbers in rows:
        assert len([float(number) for number in numbers]) == 6


@pytest.mark.skipif(sys.platform == "win32", reason="another kind of Ctrl-C")
@pytest.mark.parametrize("seconds", [0, 1.5])
def test_ctrl_c_ends_the_command_at_once_and_without_a_traceback(tmp_path, seconds):
    np.save(tmp_path / "long.npy", np.ones((4000, 1024), np.float32))
    arguments = [sys.executable, "-m", "normlab.cli", "compare", tmp_path / "long.npy", "--rows", "4000"]
    started = subprocess.Popen(
        [*arguments, "--engine", "simulator"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's job in the background ignores it
    )
    assert "this takes about" in started.stderr.readline()  # it is not still importing
    time.sleep(seconds)
    started.send_signal(signal.SIGINT)
    _, complaint = started.communicate(timeout=3)
    assert started.returncode == 130
    assert "Traceback" not in complaint


# ---- help and version ------------------------------------------------------------------------------------------------


def test_normlab_alone_shows_what_one_can_do_in_order_of_use():
    done = run()
    assert done.exit_code == 0
    shown = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("  normlab ")]
    assert shown == ["compare", "tutorials", "course", "course", "explain", "trace", "run", "memory", "bench", "doctor"]
    assert all(run(name, "--help").exit_code == 0 for name in shown)
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_the_version_is_the_packages():
    assert run("--version").stdout == f"normlab {normlab.__version__}\n"


@pytest.mark.parametrize("option", ["--norm", "--dtype", "--rows", "--engine", "--step", "--details", "--json"])
def test_the_help_of_compare_names_every_option(option):
    assert option in run("compare", "--help").stdout


# ---- what is printed -------------------------------------------------------------------------------------------------


def test_the_table_has_all_paths_every_row_and_a_verdict(small):
    done = simulated(small, "--details")
    assert done.exit_code == 0
    for words in (*WORDS, "saved input", "recomputed", "exact", "output", "grad_input", "grad_weight", "grad_bias"):
        assert words in done.stdout
    assert "LayerNorm in float32, on normlab's simulator" in done.stdout
    assert "forward step thread_per_row, backward step fused" in done.stdout
    assert "3 of 3 rows, 8 columns, eps 1e-05" in done.stdout
    assert "grad_output: none given, drawn at random (standard normal, seed 160706450)" in done.stdout
    assert "small: recomputing is as good as saving" in done.stdout


def test_rms_norm_has_no_row_for_grad_bias(small):
    done = simulated(small, "--norm", "rms", "--details")
    assert "RMSNorm in float32" in done.stdout
    assert "grad_weight" in done.stdout
    assert "grad_bias" not in done.stdout


def test_rows_dtype_and_step_are_taken_and_named(small):
    done = simulated(small, "--rows", 2, "--dtype", "bfloat16", "--step", "apex", "--details")
    assert done.exit_code == 0
    assert "2 of 3 rows" in done.stdout
    assert "LayerNorm in bfloat16" in done.stdout
    assert "forward step apex, backward step apex" in done.stdout


def test_a_name_with_brackets_is_printed_as_it_is(small):
    odd = small.rename(small.with_name("[bold]x.npy"))
    assert "[bold]x: recomputing" in simulated(odd).stdout


def test_json_is_all_there_is_on_stdout_and_has_every_number(small):
    done = simulated(small, "--json")
    assert done.stderr == ""
    answer = json.loads(done.stdout)
    assert set(answer) == {"normlab", "plan", "layers", "seconds", "within_bounds"}
    assert answer["plan"] == {
        "norm": "layer",
        "dtype": "float32",
        "engine": "simulator",
        "forward": "thread_per_row",
        "backward": "fused",
    }
    (layer,) = answer["layers"]
    assert set(layer) == {
        "name", "rows", "rows_total", "columns", "eps", "output", *PATHS, "smallest_gamma", "channels_at_risk",
        "kept_columns", "verdict", "notes",
    }  # fmt: skip
    numbers = {"relative", "largest", "bound_ratio", "not_finite", "unbounded", "size"}
    assert set(layer["output"]) == numbers
    for path in PATHS:
        assert set(layer[path]) == {"grad_input", "grad_weight", "grad_bias", "bytes_kept", "bytes_kept_with_output"}
        assert all(set(layer[path][name]) == numbers for name in passes.GRADIENTS)
    assert layer["saved_input"]["bytes_kept"] == 3 * 8 * 4 + 2 * 3 * 4
    assert set(layer["verdict"]) == {"kind", "sentence"}


def test_infinity_is_null_in_json_and_inf_in_the_table(tmp_path):
    np.savez(tmp_path / "zero.npz", input=np.arange(8.0).reshape(2, 4) ** 2, weight=np.zeros(4))
    (layer,) = json.loads(simulated(tmp_path / "zero.npz", "--json").stdout)["layers"]
    assert layer["recomputed"]["grad_input"]["relative"] is None
    (row,) = [
        line for line in simulated(tmp_path / "zero.npz", "--details").stdout.splitlines() if "grad_input  " in line
    ]
    assert "inf" in row.split()


def test_an_exceeded_bound_is_said_and_exits_with_1(small, monkeypatch):
    measured = passes.measure
    monkeypatch.setattr(passes, "measure", lambda *arrays: replace(measured(*arrays), bound_ratio=7.0))
    done = simulated(small)
    assert done.exit_code == 1
    assert "BOUND EXCEEDED: output (forward) is off by 7 times its bound" in " ".join(done.stdout.split())
    assert not json.loads(simulated(small, "--json").stdout)["within_bounds"]


def test_more_than_20_seconds_are_announced(small, monkeypatch):
    monkeypatch.setattr(plan.Plan, "seconds", lambda self, shapes, cores=1: 300.0)
    monkeypatch.setattr(compare, "run", lambda job, advance: compare.Report(job.plan, [], 0.0))
    done = simulated(small, "--json", "--rows", 3)
    assert done.stderr == "this takes about 5.0 minutes; a smaller --rows takes less\n"


# ---- what is refused -------------------------------------------------------------------------------------------------


def refused(*arguments):
    """The one line on stderr of a command that exits with 2 and prints nothing else."""
    done = run("compare", *arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("normlab compare: ")
    return line


def test_a_missing_file_and_a_directory_are_one_line_and_exit_code_2(tmp_path):
    assert refused(tmp_path / "no.npy").endswith("no.npy: no such file")
    assert refused(tmp_path).endswith("is a directory; give a .npy or .npz file")


def test_numbers_that_cannot_be_used_are_one_line_and_exit_code_2(tmp_path):
    """`test_compare` reads all kinds of files that cannot be used."""
    np.save(tmp_path / "x.npy", np.array([[1.0, np.nan]]))
    assert "input has 1 NaN or infinite values, the first at (0, 1)" in refused(tmp_path / "x.npy")


def test_a_file_that_may_not_be_read_is_one_line_and_exit_code_2(small):
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    small.chmod(0)
    assert "cannot be read: Permission denied" in refused(small)


def test_an_unknown_step_is_one_line_with_the_known_ones():
    line = refused("--step", "fastest")
    assert "unknown step 'fastest'; known are" in line
    assert "thread_per_row" in line
    assert "global_atomics" in line


@pytest.mark.skipif(engine.gpu_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_line():
    assert "the engine 'gpu' needs an NVIDIA GPU" in refused("--engine", "gpu")


@pytest.mark.parametrize(
    "arguments",
    [("--rows", "0"), ("--rows", "-1"), ("--dtype", "int8"), ("--norm", "batch"), ("--engine", "cpu"), ("a", "b")],
)
def test_arguments_that_typer_refuses_exit_with_2(arguments):
    done = run("compare", *arguments)
    assert done.exit_code == 2
    assert "Traceback" not in done.stderr
