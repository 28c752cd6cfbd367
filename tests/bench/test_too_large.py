"""A problem that does not fit stands in the record and in every table with its reason; the others are measured."""

import gc
import json
import re
import weakref

import pytest
import torch
from bench.conftest import family_row, norm_row, nothing, run

from normlab.bench import commands, family, ladder, norm, plots, product, tables
from normlab.bench.check import Check
from normlab.bench.contenders import Ours
from normlab.bench.problem import Problem, problems
from normlab.bench.report import markdown
from normlab.kernels import LADDERS

pytestmark = pytest.mark.usefixtures("on_the_cpu")
SAID = "CUDA out of memory. Tried to allocate 20.00 GiB."
REASON = f"OutOfMemoryError: {SAID}"
SMALL = Problem("layer", "forward", "float32", 4, 32)


def too_large(*arguments, **options):
    raise torch.OutOfMemoryError(f"{SAID}\nGPU 0 has a total capacity of 16 GiB")


def of_second(function, error=too_large):
    """The function, whose second call fails."""
    calls = []

    def called(*arguments, **options):
        calls.append(arguments)
        return error() if len(calls) == 2 else function(*arguments, **options)

    return called


@pytest.mark.parametrize("where", [(Problem, "draw"), (norm, "copy_time"), (norm, "Check")])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
def test_a_problem_that_does_not_fit_is_a_row_that_says_so_and_the_others_are_measured(
    where, error, monkeypatch, tmp_path
):
    def fails():
        raise error(SAID)

    monkeypatch.setattr(*where, of_second(getattr(*where), fails))
    file, plot = tmp_path / "norm.json", tmp_path / "norm.svg"
    small = ("--norm", "layer", "--direction", "forward", "--dtype", "float32", "--peers", "torch")
    done = run("norm", *small, "--n1", 4, "--n2", "16,32,64", "--json", file, "--plot", plot)
    assert done.exit_code == 0, done.output
    first, second, third = json.loads(file.read_text())["rows"]
    assert first["contenders"]["torch"]["status"] == third["contenders"]["torch"]["status"] == "ok"
    assert (second["n2"], second["status"], second["reason"]) == (32, "unable", f"{error.__name__}: {SAID}")
    assert (second["copy"], second["contenders"], second["bytes"]) == (None, {}, 2 * 4 * 4 * 32)
    (line,) = (line.split() for line in done.stdout.splitlines() if line.split()[:3] == ["float32", "4", "32"])
    assert line == ["float32", "4", "32", "not", "measured", "-", "-"]
    note = f"not measured: LayerNorm forward, 4 x 32 float32 ({error.__name__}: {SAID})"
    assert note in " ".join(done.stdout.split())
    shown = run("report", file).stdout
    assert "| 4 × 32 | not measured |" in shown
    assert f"N{note[1:]}." in shown
    assert plot.stat().st_size > 5000


def test_a_record_in_which_nothing_fits_is_shown_and_drawn(monkeypatch, tmp_path):
    monkeypatch.setattr(Problem, "draw", too_large)
    file = tmp_path / "norm.json"
    small = ("--norm", "rms", "--dtype", "float32", "--n1", 4, "--n2", "16", "--peers", "none")
    done = run("norm", *small, "--json", file, "--plot", tmp_path / "norm.svg")
    assert done.exit_code == 0, done.output
    assert "not measured: RMSNorm backward, 4 x 16 float32" in " ".join(done.stdout.split())
    assert run("report", file).exit_code == 0


def test_a_contender_is_shown_where_the_first_row_has_nobody(norm_record):
    unmeasured = norm_row("layer", "forward", "bfloat16", 2**20, 4096)
    unmeasured |= {"copy": None, "status": "unable", "reason": REASON}
    norm_record["rows"].insert(0, unmeasured)
    grid = tables.grids(norm_record)[0]
    assert grid.head[4:7] == ["normlab", "torch", "compile"]
    assert grid.rows[0][3:] == ["not measured", "-", "-", "-", "", "", ""]
    assert grid.rows[1][4:7] == ["0.98", "0.50", "0.95"]


def test_of_the_family_too(monkeypatch, tmp_path):
    monkeypatch.setattr(family, "SHAPES", ((3, 4, 2, 3),))
    monkeypatch.setattr(family.FamilyProblem, "draw", of_second(family.FamilyProblem.draw))
    file = tmp_path / "family.json"
    done = run("family", "--norm", "batch", "--direction", "forward", "--dtype", "float32", "--json", file)
    assert done.exit_code == 0, done.output
    first, second = json.loads(file.read_text())["rows"]
    assert first["contenders"]["normlab"]["status"] == "ok"
    assert (second["layout"], second["status"], second["reason"]) == ("NHWC", "unable", REASON)
    note = f"not measured: batch norm forward, 3 x 4 x 2 x 3 NHWC float32 ({REASON})"
    assert note in " ".join(done.stdout.split())
    shown = run("report", file).stdout
    assert "| 3 × 4 × 2 × 3 | float32 | NHWC | not measured |" in shown
    assert f"N{note[1:]}." in shown


def test_an_unmeasured_row_of_the_family_gives_way_to_a_later_one(family_record):
    row = family_record["rows"][0]
    row |= {"copy": None, "contenders": {}, "status": "unable", "reason": REASON}
    assert "| 8 × 64 × 224 × 224 | float32 | NCHW | not measured | wrong or unable |" in markdown([family_record])
    again = {**family_record, "date": "2099-01-01", "rows": [family_row("batch", "forward", "float32", "NCHW", normlab=100.0)]}  # fmt: skip  # noqa: E501
    assert "| 8 × 64 × 224 × 224 | float32 | NCHW | 1.00 | wrong or unable |" in markdown([family_record, again])


@pytest.mark.parametrize("where", [(Problem, "draw"), (ladder, "copy_time"), (ladder, "Check")])
def test_a_ladder_whose_problem_does_not_fit_has_its_steps_without_times(where, monkeypatch, tmp_path):
    monkeypatch.setattr(*where, too_large)
    file = tmp_path / "ladder.json"
    done = run("ladder", "forward", "--n2", 32, "--elements", 128, "--dtype", "float32", "--json", file)
    assert done.exit_code == 0, done.output
    record = json.loads(file.read_text())
    assert (record["status"], record["reason"], record["copy"]) == ("unable", REASON, None)
    assert [(step["step"], step["status"]) for step in record["steps"]] == [
        (step.name, "unable") for step in LADDERS["forward"]
    ]
    shown = " ".join(done.stdout.split())
    assert shown.count(REASON) == 1
    assert f"not measured: LayerNorm forward, 4 x 32 float32 ({REASON})" in shown
    assert "0.0 MB by the model, not measured" in shown
    assert f"Not measured: LayerNorm forward, 4 x 32 float32 ({REASON})." in run("report", file).stdout


def test_a_step_keeps_its_time_where_its_kernels_cannot_be_timed_one_by_one(monkeypatch, stopwatch):
    monkeypatch.setattr(ladder, "launches", of_second(ladder.launches))
    record = ladder.climb(SMALL, stopwatch(1e-6), nothing, "cpu")
    assert all(step["status"] == "ok" and step["median_us"] == 1.0 for step in record["steps"])
    (lost,) = (step for step in record["steps"] if "no_kernels" in step)
    assert (lost["step"], lost["kernels"], lost["no_kernels"]) == (LADDERS["forward"][1].name, [], REASON)
    assert tables.notes(record) == [f"kernels not seen one by one: {lost['step']} ({REASON})"]
    (grid,) = tables.ladder_grids(record)
    assert ["", "", "", ""] in [row[4:8] for row in grid.rows]


@pytest.mark.parametrize("where", [(product.Size, "draw"), (product, "Check")])
def test_a_product_that_does_not_fit_has_its_steps_without_times(where, monkeypatch, tmp_path):
    monkeypatch.setattr(*where, too_large)
    file = tmp_path / "sgemm.json"
    done = run("ladder", "sgemm", "--size", "5x12x3", "--json", file)
    assert done.exit_code == 0, done.output
    record = json.loads(file.read_text())
    assert (record["status"], record["reason"], record["operations"]) == ("unable", REASON, 360)
    assert [step["status"] for step in [record["cublas"], *record["steps"]]] == ["unable"] * (len(LADDERS["sgemm"]) + 1)
    assert " ".join(done.stdout.split()).count(f"not measured: SGEMM (5, 3) times (3, 12) ({REASON})") == 1
    shown = run("report", file).stdout
    assert "| cuBLAS | unable |" in shown
    assert shown.count(REASON) == 1


def test_a_product_s_step_keeps_its_time_where_there_is_no_room_to_see_its_launch(monkeypatch, stopwatch):
    monkeypatch.setattr(product, "SGEMM", LADDERS["sgemm"][:2])
    monkeypatch.setattr(product, "launched", of_second(product.launched))
    record = product.climb(product.Size(5, 12, 3), stopwatch(1e-6), nothing, "cpu", None)
    assert [step["status"] for step in record["steps"]] == ["ok", "ok"]
    assert record["steps"][0]["registers"] == 1
    assert record["steps"][1]["no_kernels"] == REASON
    assert tables.notes(record) == [f"kernels not seen one by one: {LADDERS['sgemm'][1].name} ({REASON})"]
    assert tables.sgemm_grids(record)[0].rows[1][6:9] == ["", "", ""]


def test_memory_is_free_again_after_a_problem_that_did_not_fit(monkeypatch, stopwatch):
    """What its frames held is gone, and the allocator is asked to give back what it keeps, before the next begins."""
    alive, emptied = [], []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append([one() for one in alive]))

    def copy_time(data, timer):
        alive.append(weakref.ref(data.x))
        too_large()

    monkeypatch.setattr(norm, "copy_time", copy_time)
    wanted = problems(["rms"], ["forward"], ["float32"], [4], [16, 32])
    rows = norm.compete(wanted, [Ours()], stopwatch(1e-6), "cpu")
    assert [row["status"] for row in rows] == ["unable", "unable"]
    assert emptied == [[None], [None, None]]


def test_a_check_does_not_outlive_its_problem(stopwatch):
    """Else the next problem finds the last one's arrays in memory, until somebody collects garbage."""
    data = SMALL.draw("cpu")
    # Where kernels are compiled, Numba's frames lie in cycles with what it was given: not in the call that is watched.
    norm.enter(Ours(), SMALL, data, Check(SMALL, data), stopwatch(1e-6), 1.0)
    gc.collect()
    gc.disable()
    try:
        data = SMALL.draw("cpu")
        arrays, check = weakref.ref(data.x), Check(SMALL, data)
        assert norm.enter(Ours(), SMALL, data, check, stopwatch(1e-6), 1.0)["status"] == "ok"
        del data, check
        assert arrays() is None
    finally:
        gc.enable()


def test_bounds_are_computed_once_for_all_who_have_them_in_common(monkeypatch):
    check, asked = Check(SMALL, SMALL.draw("cpu")), []
    monkeypatch.setattr(check, "_compute_row_bounds", lambda *how: asked.append(how) or "bound")
    assert [check._row_bounds("slow", me) for me in (False, True, False)] == ["bound"] * 3
    assert asked == [("slow", False), ("slow", True)]


def test_a_bench_that_is_refused_after_it_looked_leaves_no_file(tmp_path):
    file, plot = tmp_path / "norm.json", tmp_path / "no_such_folder" / "norm.svg"
    done = run("norm", "--json", file, "--plot", plot)
    assert done.exit_code == 2
    assert re.search(r"normlab bench norm: .*no_such_folder", done.stderr)
    assert not file.exists()


@pytest.mark.parametrize("arguments", [("norm",), ("family",), ("ladder", "forward"), ("ladder", "sgemm")])
def test_a_gpu_that_others_have_filled_is_refused_in_one_line(arguments, monkeypatch, tmp_path):
    monkeypatch.setattr(commands, "EventTimer", too_large)
    done = run(*arguments, "--json", tmp_path / "x.json")
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.endswith(f"the GPU has no room for the buffer that empties its L2 ({REASON})")
    assert not (tmp_path / "x.json").exists()


def test_a_plot_of_rows_that_were_not_measured_has_gaps(norm_record, tmp_path):
    row = norm_record["rows"][0]
    row |= {"copy": None, "contenders": {}, "status": "unable", "reason": REASON}
    plots.draw([norm_record], tmp_path / "norm.svg")
    assert (tmp_path / "norm.svg").stat().st_size > 5000
