"""`normlab trace`: the ladder's X-ray and its one-step view."""

import json
import re
import time
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from normlab.cli import app
from normlab.kernels import LADDERS
from normlab.learn import xray

LD_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
ST_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"


def run(*arguments):
    return CliRunner().invoke(app, ["trace", *map(str, arguments)])


@pytest.mark.parametrize("ladder", ["forward", "backward"])
def test_a_ladder_is_a_table_with_a_row_for_every_step(ladder):
    done = run(ladder, "--shape", "4x64")
    assert done.exit_code == 0, done.output
    assert "4 x 64 float32" in done.stdout
    for step in LADDERS[ladder]:
        (row,) = [line for line in done.stdout.splitlines() if line.startswith(f"{step.name} ")]
        assert len(row.split()) > 5
    assert "no room" not in done.stdout


def test_one_step_is_shown_line_by_line():
    done = run("forward/apex", "--shape", "4x64", "--dtype", "bfloat16")
    assert "forward_apex[(1, 4, 1), (32, 4, 1)]" in done.stdout
    assert "store(invvar" in done.stdout
    assert "warp.py:" in done.stdout


def test_a_step_of_several_launches_shows_each():
    done = run("backward/apex", "--shape", "4x64", "--recompute")
    for kernel in ("partial_sums", "final_sums", "grad_input"):
        assert f"backward_apex_{kernel}[" in done.stdout
    heads = [line for line in done.stdout.splitlines() if line.startswith("launch ")]
    assert [head.partition(" for ")[2] for head in heads] == ["", "grad_weight", "grad_bias", "grad_input"]
    assert [head.partition(":")[0] for head in heads] == [f"launch {n} of 4" for n in range(1, 5)]


@pytest.fixture(scope="module")
def results():
    problem = xray.NormProblem("forward", 2, 64)
    return problem, [problem.trace(step) for step in LADDERS["forward"]]


@pytest.mark.parametrize("width", [80, 100, 140, None])
@pytest.mark.parametrize("by_line", [False, True])
def test_a_terminal_gets_what_fits_and_a_file_gets_all(results, width, by_line):
    problem, steps = results
    steps = [step for step in steps if step.step.name == "apex" or not by_line]
    stream = StringIO()
    xray.show(problem, steps, Console(file=stream, width=width or 80, force_terminal=width is not None), by_line)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    longest = max(map(len, plain.splitlines()))
    assert longest <= width if width else longest > 100
    if by_line:
        (launch,) = steps[0].traces
        assert ("..." in plain) == (width is not None)
        first = plain.index("step_3_apex.py:")
        assert first < plain.index("block.py:") < plain.index("warp.py:")  # the kernel's own file before the others
        for row in launch.by_line():  # each with its counters, beside or below it
            place = rf"{Path(row.line.file).name}:{row.line.number}"
            (shown,) = re.findall(rf"^{place} .*(?:\n +.*)*", plain, re.MULTILINE)
            values = [value for name, value in row.metrics.items() if "moved" not in name and "ratio" not in name]
            assert all(f" {value:,}" in shown for value in values if value)
    assert ("no room for lanes/request" in plain) == (width in (80, 100) and not by_line)


def test_json_has_every_metric_of_every_launch_and_line():
    answer = json.loads(run("forward", "--shape", "4x64", "--norm", "rms", "--json").stdout)
    assert (answer["ladder"], answer["n1"], answer["n2"], answer["rms"]) == ("forward", 4, 64, True)
    assert [step["step"] for step in answer["steps"]] == [step.name for step in LADDERS["forward"]]
    for step in answer["steps"]:
        lines = [line for launch in step["launches"] for line in launch["lines"]]
        assert step["metrics"][LD_SECTORS] == sum(line["metrics"][LD_SECTORS] for line in lines) > 0


def test_apex_s_forward_reads_x_twice_and_writes_it_once():
    problem = xray.NormProblem("forward", 4, 128)
    (result,) = [problem.trace(step) for step in LADDERS["forward"] if step.name == "apex"]
    rows, statistics = 4 * 128 * 4 // 32, 4 * 2
    # its Welford pass takes four neighbours a lane, so each of its four loads touches every fourth element: 16 sectors
    assert result.metrics[ST_SECTORS] == rows + statistics
    assert result.metrics[LD_SECTORS] == 4 * rows + rows + 2 * rows


def test_the_fast_steps_read_x_once_16_bytes_a_lane():
    problem = xray.NormProblem("forward", 4, 512)
    rows = 4 * 512 * 4 // 32
    for step in LADDERS["forward"]:
        if step.name in ("vectors", "one_barrier", "clusters"):
            result = problem.trace(step)
            assert result.metrics[LD_SECTORS] == rows + 2 * rows  # x, and the parameters once a row
            assert result.metrics[ST_SECTORS] == rows + 4 * 2
            assert result.metrics[LD_SECTORS.replace("sectors", "requests")] == 3 * rows // 16


def test_the_sgemm_ladder_is_a_table_and_a_step_is_shown_line_by_line(monkeypatch):
    assert xray.steps_of("sgemm")[1] == list(LADDERS["sgemm"])
    few = [step for step in LADDERS["sgemm"] if step.name in ("coalesced", "pipelined")]  # quick, and with shared_bytes
    monkeypatch.setitem(LADDERS, "sgemm", tuple(few))
    done = run("sgemm", "--shape", "32x32x8")
    assert done.exit_code == 0, done.output
    assert "SGEMM, (32, 8) times (8, 32) float32" in done.stdout
    for step in few:
        (row,) = [line for line in done.stdout.splitlines() if line.startswith(f"{step.name} ")]
        assert len(row.split()) > 5
    done = run("sgemm/coalesced", "--shape", "5x7x3")
    assert "sgemm_coalesced[(1, 1, 1), (32, 32, 1)]" in done.stdout
    assert "total += load(a, (row, k)) * load(b, (k, column))" in done.stdout


def test_the_products_of_the_sgemm_ladder_are_counted_as_launched():
    problem = xray.ProductProblem(32, 32, 8)
    naive, coalesced = (problem.trace(step).metrics[LD_SECTORS] for step in LADDERS["sgemm"][:2])
    assert (naive, coalesced) == (32 * 8 * 33, 32 * 8 * 5)


@pytest.mark.parametrize("last", [[], ["--channels-last"]])
def test_the_family_is_a_table_with_a_row_for_every_norm_forward_and_backward(last):
    done = run("family", "--shape", "2x4x4x4", "--dtype", "bfloat16", *last)
    assert done.exit_code == 0, done.output
    head, *rows = done.stdout.splitlines()
    assert (
        head == f"The norm family, 2 x 4 x 4 x 4 bfloat16{', channels last' if last else ''}, traced in the simulator"
    )
    for norm in ("batch", "instance", "group"):
        for name in (norm, f"{norm}_backward"):
            (row,) = [line for line in rows if line.startswith(f"{name} ")]
            assert len(row.split()) > 5


def test_a_pass_of_the_family_shows_its_kernels_and_their_results():
    done = run("family/batch_backward", "--shape", "2x4x4x4")
    heads = [line.partition("[")[0].split()[-1] for line in done.stdout.splitlines() if line.startswith("launch ")]
    assert heads == ["family_plane_sums", "family_merge_sums", "family_plane_gradient"]
    assert " for grad_bias-grad_weight" in done.stdout
    answer = json.loads(run("family/instance", "--shape", "1x2x4x8", "--json").stdout)
    assert (answer["ladder"], answer["shape"], answer["channels_last"]) == ("family", [1, 2, 4, 8], False)
    (step,) = answer["steps"]  # both sets held by a block: x is read once, and weight and bias
    assert step["metrics"][LD_SECTORS] == 2 * 4 * 8 * 4 // 32 + 2 * 2


def test_the_family_s_groups_and_layout_are_those_that_the_title_says():
    batch, _, group = xray.steps_of("family")[1][:3]
    first, last = (xray.FamilyProblem((1, 4, 4, 8), channels_last=layout) for layout in (False, True))
    assert [one.kernel for one in last.trace(batch).traces] == [
        "family_column_moments",
        "family_merge_moments",
        "family_column_output",
    ]
    sectors = 4 * 4 * 8 * 4 // 32  # of the output; and a mean and an invvar for each of two groups
    assert first.trace(group).metrics[ST_SECTORS] == sectors + 2 * 2


def test_copies_and_clusters_are_counted_and_shown():
    done = run("forward/clusters", "--shape", "1x32776", "--dtype", "bfloat16", "--norm", "rms")
    assert "forward_clusters[(64, 1, 1), (64, 1, 1)], clusters of 16" in done.stdout
    x, weight = [line for line in done.stdout.splitlines() if "copy_async(" in line]
    # 4097 lanes copy 16 bytes each: 128 whole warps and a lane; a whole warp's 512 bytes take four wavefronts
    assert weight.split(")")[-1].split()[:2] == ["129", "2,049"], "loads"
    assert x.split(")")[-1].split()[:2] == ["516", "8,196"], "by each of four clusters"
    assert weight.split(")")[-1].split()[2:5] == ["129", "2,049", "513"], "copies"
    head = " ".join(done.stdout.split("step_7")[0].split())
    assert "copy copy copy" in head
    assert "remote" in head
    assert "cluster" in head


def test_html_writes_a_page_for_every_launch(tmp_path):
    done = run("forward/apex", "--shape", "2x64", "--html", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    assert "forward_apex" in (tmp_path / "page.html").read_text()
    done = run("backward/apex", "--shape", "2x64", "--html", tmp_path / "back.html")
    assert done.exit_code == 0, done.output
    names = sorted(path.stem.replace("backward_apex_", "") for path in tmp_path.glob("back-*.html"))
    assert names == [
        "back-1-partial_sums",
        "back-2-final_sums-grad_weight",
        "back-3-final_sums-grad_bias",
        "back-4-grad_input",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sideways"], "unknown ladder 'sideways': choose one of forward, backward"),
        (["forward/sideways"], "unknown step 'sideways' of the forward ladder; known: thread_per_row"),
        (["forward", "--shape", "8"], "a shape is rows x columns, such as 8x256, both at least 1; got '8'"),
        (["forward", "--shape", ""], "a shape is rows x columns, such as 8x256, both at least 1; got ''"),
        (["forward", "--shape", "0x8"], "both at least 1; got '0x8'"),
        (["forward/"], "'forward/' names no step: 'forward' alone means all of them, and forward/thread_per_row one"),
        (["forward", "--shape", "1000000x100000"], "days, more than a day; a smaller --shape takes less"),
        (["forward", "--html", "x.html"], "--html writes one step's report: give one, such as forward/thread_per_row"),
        (["forward", "--recompute"], "--recompute is for the backward ladder, not for 'forward'"),
        (["forward/apex", "--shape", "2x8", "--html", "/nowhere/x.html"], "/nowhere"),
        (["sgemm/fast"], "unknown step 'fast' of the sgemm ladder; known: naive, coalesced"),
        (["family/layer"], "unknown step 'layer' of the family ladder; known: batch, instance, group, batch_backward"),
        (["sgemm", "--shape", "64x64"], "a shape is M x N x K, such as 128x128x32, each at least 1; got '64x64'"),
        (["family", "--shape", "64"], "a shape is N x C x H x W, such as 2x8x16x16, each at least 1; got '64'"),
        (["sgemm", "--dtype", "float16"], "--dtype is no option of 'sgemm'"),
        (["family", "--norm", "rms"], "--norm is no option of 'family'"),
        (["sgemm", "--channels-last"], "--channels-last is for the family ladder, not for 'sgemm'"),
        (["sgemm", "--html", "x.html"], "--html writes one step's report: give one, such as sgemm/naive"),
    ],
)
def test_what_cannot_be_used_is_named(arguments, message):
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stdout == ""


def test_a_forward_of_16_x_1024_is_traced_in_time():
    began = time.perf_counter()
    assert run("forward/apex", "--shape", "16x1024").exit_code == 0
    assert time.perf_counter() - began < 10
