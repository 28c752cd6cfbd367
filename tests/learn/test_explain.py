"""`explain`: which kernel, on which grid, and why; for every ladder, dtype and device, without a GPU."""

import itertools
import json
import math
import subprocess
import sys
from html import unescape
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from typer.testing import CliRunner

import normlab
from normlab.cli import app
from normlab.kernels import LADDERS, BackwardProblem, Device, Problem
from normlab.kernels.family.passes import Recording
from normlab.kernels.plan import DEVICES, Scratch
from normlab.kernels.step import Rung
from normlab.learn.explain import explain
from normlab.learn.speed import _shapes_apart
from normlab.measure.files import record

DTYPES = ("float16", "bfloat16", "float32", "float64")
COLUMNS = (1, 3, 127, 4096, 5121, 65536, 262144, 3_211_264)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ladder", ["forward", "backward"])
def test_every_problem_has_a_plan_with_a_reason(ladder, dtype, device):
    sizes = itertools.product(COLUMNS, (1, 40, 100_000))
    kinds = list(itertools.product(("layer", "rms"), ("input", "output")))  # other ones of a size for each dtype
    for turn, (n2, n1) in enumerate(sizes, DTYPES.index(dtype) + [*DEVICES].index(device)):
        norm, saved = kinds[turn % 4]
        one = explain(ladder, norm=norm, dtype=dtype, n1=n1, n2=n2, saved=saved, device=device)
        assert one.plan.why
        assert one.bytes_moved >= one.least_bytes > 0
        assert f"{n1:,} row{'s' * (n1 > 1)} of {n2:,} column{'s' * (n2 > 1)}" in str(one)
        for work in one.plan.work:
            threads = work.block if isinstance(work.block, int) else int(np.prod(work.block))
            assert 1 <= threads <= 1024
            assert work.shared_bytes <= Device.named(device).shared_bytes
            assert work.cluster <= Device.named(device).largest_cluster


@pytest.mark.parametrize("step", [(ladder, step.name) for ladder in LADDERS for step in LADDERS[ladder]], ids="/".join)
def test_every_step_explains_itself_in_text_json_and_a_notebook(step):
    one = explain(step[0], step=step[1])
    answer = json.loads(one.as_json())
    assert answer["asked"] == step[1]
    name, line = one.where.rsplit(":", 1)
    source = Path(name).read_text().splitlines()
    assert f"def {answer['kernels'][0]['name']}" in "\n".join(source[int(line) - 1 : int(line) + 2])  # after decorators
    for said in (str(one), unescape(one._repr_html_())):
        assert answer["kernels"][0]["name"] in said
        assert answer["why"].split(";")[0] in said


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_pass_of_the_family_has_a_plan_and_follows_it(dtype):
    shapes = ((1, 1), (3, 7, 5), (256, 128, 14, 14), (2, 64, 300, 300), (4096, 64))
    for step, shape, last in itertools.product(LADDERS["family"], shapes, (False, True)):
        one = explain("family", step=step.name, shape=shape, channels_last=last, dtype=dtype, device="h100")
        assert one.plan.why
        recording = Recording(one.operands, 256)
        one.plan.launch(recording.launch, recording, one.operands)
        for again, work in zip(recording.work, one.plan.work, strict=True):
            assert (again.kernel, again.grid, again.block, again.how) == (work.kernel, work.grid, work.block, work.how)
            assert [name for name in again.arguments if "value" not in str(name)] == [
                name for name in work.arguments if "value" not in str(name)
            ]
        assert recording.scratch == [Scratch(*scratch) for scratch in one.plan.scratch]


def test_the_numbers_of_a_plan_are_said_in_words():
    said = str(explain("backward", dtype="bfloat16", n1=32768, n2=4096, device="h100"))
    assert "two rows per block, 128 threads each" in said
    assert "four stages in 131,072 bytes of shared memory" in said
    assert "139,264 bytes of dynamic shared memory" in said
    assert "0.97 of a copy at 4096 columns; three stages: 0.96" in said
    assert "fused: runs it, too, but is asked only where pipelined refuses; predicted: " in said


def test_the_cost_model_speaks_in_text_json_and_a_notebook():
    one = explain("backward", dtype="bfloat16", n1=32768, n2=4096, device="h100")
    cost = one.predicted
    for said in (str(one), unescape(one._repr_html_())):
        assert f"{cost.microseconds:,.1f} us, {cost.of_copy:.2f} of a copy's speed" in said
        assert "bound by memory; 136 KiB in flight per multiprocessor, " in said
        assert "times as long" in said
    answer = json.loads(one.as_json())
    assert answer["predicted"]["microseconds"] == cost.microseconds
    assert answer["predicted"]["bound_by"] == "memory"
    assert "times as long" in answer["runner_up"]["why_not"]
    slower = one.cost_of(one.runner_up).microseconds
    assert f"{slower:,.1f} us, {slower / cost.microseconds:.2f} times as long" in answer["runner_up"]["why_not"]


def test_a_norm_without_parameters_is_said_to_have_none():
    told = str(explain("forward", weight=False, bias=False, parameters="float32", dtype="float16", device="h100"))
    assert "no parameters\n" in told


def test_a_last_round_that_is_nearly_empty_is_named_and_what_the_model_does_not_know_is_not_said():
    tail = str(explain(n1=1284, n2=4096, dtype="bfloat16", device="h200"))
    assert "the last of two rounds of blocks is 8 % full" in tail
    assert "% full" not in str(explain(n1=1188, n2=4096, dtype="bfloat16", device="h200"))
    assert "at least " in str(explain(step="apex", device="h200"))
    for unknown in (explain(residual=True), explain("family"), explain(device=Device(132, (9, 0), 232448))):
        assert unknown.predicted is None
        assert json.loads(unknown.as_json())["predicted"] is None


def test_a_gpu_without_clusters_and_a_float64_norm_say_what_refused():
    assert "up to one block" in str(explain("forward", n2=65536, n1=8, device="a100"))
    assert "it computes in float32, and float64 is asked for" in str(explain("backward", dtype="float64"))


def test_a_kernel_beside_the_ladder_s_steps_is_not_called_an_earlier_step():
    rows = (
        ("forward", 2**20, 5, "short_rows"),
        ("backward", 2**20, 5, "short_rows"),
        ("forward", 9, 2**20, "split_rows"),
    )
    for ladder, n1, n2, beside in rows:
        (said,) = (line for line in dict(explain(ladder, n1=n1, n2=n2).facts())["step"] if line.startswith(beside))
        assert "beside the ladder's steps" in said
        assert "earlier" not in said
    assert dict(explain(dtype="float64").facts())["step"][0].startswith("column_blocks, an earlier step")


@pytest.mark.parametrize("n2", [4612, 65536])
def test_a_reason_measured_on_an_h100_is_not_said_to_be_an_h200_s(n2):
    _, source = dict(explain(dtype="bfloat16", n1=4096, n2=n2).facts())["why"]
    assert "H100" in source


def test_what_is_explained_is_what_is_launched():
    """At n1 for which the number of resident blocks does not matter."""
    for n2, dtype in itertools.product((64, 768, 4096, 65536), (ml_dtypes.bfloat16, np.float32)):
        one = explain("backward", dtype=np.dtype(dtype).name, n1=2, n2=n2)
        x, weight = np.empty((2, n2), dtype), np.empty(n2, dtype)
        rows = np.empty(2, np.float32)
        problem = BackwardProblem(x, x, rows, rows, weight, weight, np.float32(1), False, False, x, weight, weight)
        launched = launches_of(LADDERS["backward"][-1], problem)
        assert launched == [(work.kernel, work.grid, work.block, work.how) for work in one.plan.work]


def launches_of(step, problem) -> list:
    """What a step launches."""
    launched = []

    class Memory:
        empty = zeros = staticmethod(np.empty)

    step.run(lambda kernel, grid, block, *args, **how: launched.append((kernel, grid, block, how)), Memory, problem)
    return launched


def seen_by_hosts(monkeypatch) -> list:
    """What the host functions ask to be launched from here on: (a rung, its operands)."""
    seen = []
    monkeypatch.setattr(Rung, "run", lambda rung, launch, memory, operands: seen.append((rung, operands)))
    return seen


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("n2", [64, 1152, 4096])
def test_norms_with_extras_are_explained_by_the_plans_that_their_host_functions_ask_for(monkeypatch, n2, dtype):
    seen = seen_by_hosts(monkeypatch)
    x, weight, rows = np.ones((6, n2), dtype), np.ones(n2, dtype), np.ones(6, np.float32)
    heads = np.ones((3, 5, n2), dtype)[:, :2]
    apart, samples, of_sample = np.ones((3, 2, n2), dtype), x.reshape(2, 3, n2), np.ones((2, n2), dtype)
    by_head, by_sample = rows.reshape(3, 2), rows.reshape(2, 3)
    asked = [
        ("forward", {"norm": "rms", "residual": True, "offset": 1.0},
         lambda: normlab.add_rms_norm_forward(x, x, weight, offset=1.0)),
        ("backward", {"norm": "rms", "residual": True, "offset": 1.0},
         lambda: normlab.add_rms_norm_backward(x, x, x, rows, weight, offset=1.0)),
        ("forward", {"norm": "rms", "gate": "after"}, lambda: normlab.gated_rms_norm_forward(x, x, weight)),
        ("forward", {"norm": "rms", "gate": "before"},
         lambda: normlab.gated_rms_norm_forward(x, x, weight, norm_before_gate=False)),
        ("backward", {"norm": "rms", "gate": "after"}, lambda: normlab.gated_rms_norm_backward(x, x, x, rows, weight)),
        ("backward", {"norm": "rms", "gate": "after", "saved": "output"},
         lambda: normlab.gated_rms_norm_backward(x, x, x, rows, weight, memory_efficient=True)),
        ("backward", {"norm": "rms", "gate": "before"},
         lambda: normlab.gated_rms_norm_backward(x, x, x, rows, weight, norm_before_gate=False)),
        ("forward", {"norm": "rms", "heads": (2, 5)}, lambda: normlab.head_rms_norm_forward(heads, weight)),
        ("backward", {"norm": "rms", "heads": (2, 5)},
         lambda: normlab.head_rms_norm_backward(apart, heads, by_head, weight)),
        ("forward", {"samples": 2}, lambda: normlab.modulated_layer_norm_forward(samples, of_sample, of_sample)),
        ("backward", {"samples": 2},
         lambda: normlab.modulated_layer_norm_backward(samples, samples, by_sample, by_sample, of_sample, of_sample)),
    ]  # fmt: skip
    for ladder, extras, call in asked:
        call()
        rung, operands = seen.pop()
        assert not seen
        one = explain(ladder, dtype=np.dtype(dtype).name, n1=6, n2=n2, alignment=np.dtype(dtype).itemsize * 8, **extras)
        wanted = rung.plan(operands, Device.named("h200"))
        kernels = [
            [(work.kernel, work.grid, work.block, work.how) for work in plan.work] for plan in (one.plan, wanted)
        ]
        assert kernels[0] == kernels[1], (ladder, extras)
        assert one.least_bytes == 6 * n2 * np.dtype(dtype).itemsize * len((*operands.reading, *operands.writing))
        assert one.problem.extras.strip() in str(one)


def test_it_is_at_the_top_level_and_needs_no_driver():
    assert normlab.explain is explain
    code = (
        "from normlab.engine.launching import driver; driver.Driver.__init__ = None\n"
        "import normlab; print(normlab.explain('forward', n2=65536, device='h100').plan.step)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "clusters\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ladder": "sideways"}, "ladder must be one of forward, backward, sgemm"),
        ({"norm": "batch"}, "norm must be one of layer, rms, got 'batch'"),
        ({"dtype": "int8"}, "dtype must be one of float16, bfloat16, float32, float64, got 'int8'"),
        ({"device": "tpu"}, "device must be one of here, h200, h100"),
        ({"step": "quick"}, "unknown step 'quick' of the forward ladder; known: thread_per_row"),
        ({"n1": 0}, "n1 must be a whole number and at least 1, got 0"),
        ({"n2": 2.5}, "n2 must be a whole number and at least 1, got 2.5"),
        ({"m": 3}, "the forward ladder does not take m, got m=3"),
        ({"ladder": "sgemm", "n2": 3}, "the sgemm ladder does not take n2, got n2=3"),
        ({"ladder": "sgemm", "dtype": "float16"}, "dtype must be float32"),
        ({"alignment": 3}, "alignment must be a power of two and at least the 4 bytes of an element, got 3"),
        ({"norm": "rms", "bias": True}, "bias must be None or False with norm='rms'"),
        ({"dtype": "float64", "parameters": "float16"}, "parameters of a float64 norm must be one of float64"),
        ({"shape": (2, 3)}, "the forward ladder does not take shape"),
        ({"ladder": "family", "shape": (2,)}, "shape must be (N, C, *spatial), got (2,)"),
        ({"ladder": "family", "shape": (2, 6), "groups": 4}, "groups must divide the 6 channels, got 4"),
        ({"ladder": "family", "groups": 4}, "the step 'batch' of the family does not take groups, got groups=4"),
        ({"ladder": "family", "norm": "rms"}, "the family ladder does not take norm, got norm=rms"),
        ({"ladder": "sgemm", "saved": "output"}, "the sgemm ladder does not take saved, got saved=output"),
        ({"ladder": "sgemm", "weight": False}, "the sgemm ladder does not take weight, got weight=False"),
        ({"groups": 2}, "the forward ladder does not take groups, got groups=2"),
        ({"channels_last": True}, "the forward ladder does not take channels_last, got channels_last=True"),
        ({"dtype": "float16", "parameters": "bfloat16"}, "of a float16 norm must be one of float16, float32, got"),
        ({"norm": "rms", "offset": math.nan}, "offset must be finite, got nan"),
        ({"samples": 0}, "samples must be a whole number and at least 1, got 0"),
        ({"norm": "rms", "gate": ""}, "gate must be one of after, before, got ''"),
        ({"saved": "nothing"}, "saved must be one of input, output, got 'nothing'"),
        ({"gate": "after"}, "gate needs norm='rms', got norm='layer'"),
        ({"norm": "rms", "gate": "beside"}, "gate must be one of after, before, got 'beside'"),
        ({"norm": "rms", "gate": "after", "residual": True}, "one of residual, gate, heads and samples, got residual"),
        ({"norm": "rms", "gate": "after", "offset": 1.0}, "offset goes with residual or heads, or alone, got gate"),
        ({"norm": "rms", "gate": "before", "saved": "output"}, "saved must be input with gate, got 'output'"),
        ({"norm": "rms", "gate": "after", "step": "fused"}, "a norm with gate='after' has no steps to choose from"),
        ({"norm": "rms", "samples": 2}, "samples needs norm='layer' with weight and bias, got norm='rms'"),
        ({"samples": 2, "bias": False}, "got norm='layer', weight=True and no bias"),
        ({"samples": 3, "n1": 8}, "n1 must be a multiple of samples, got 8 rows and 3 samples"),
        ({"norm": "rms", "heads": (4, 3)}, "heads must be (heads, places), at least as many places as heads"),
        ({"norm": "rms", "heads": (4,)}, "heads must be a pair (heads, places), got (4,)"),
        ({"norm": "rms", "heads": 4}, "heads must be a pair (heads, places), got 4"),
        ({"norm": "rms", "heads": (2, 2.5)}, "places of heads must be a whole number and at least 1, got 2.5"),
        ({"alignment": 16.0}, "alignment must be a whole number and at least 1, got 16.0"),
        ({"norm": "rms", "heads": (4, 6), "dtype": "float64"}, "no kernel takes these heads where they lie"),
        (
            {"ladder": "sgemm", "residual": True},
            "ladder with residual=True must be one of forward, backward, got 'sgemm'",
        ),
    ],
)
def test_bad_input_is_named(given, said):
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the message is looked at
        explain(**given)
    assert said in str(error.value)


def test_the_command_prints_text_or_json_and_names_what_is_wrong():
    runner = CliRunner()
    how = ["explain", "forward", "--norm", "rms", "--dtype", "bfloat16", "--n1", "32768", "--n2", "4096"]
    done = runner.invoke(app, [*how, "--device", "a100"])
    assert done.exit_code == 0, done.output
    assert "one row per block, 128 threads each" in done.stdout
    answer = json.loads(runner.invoke(app, [*how, "--json"]).stdout)
    assert answer["step"] == "one_barrier"
    assert answer["kernels"][0]["block"] == [128, 1]
    done = runner.invoke(app, [*how, "--heads", "32x48"])
    assert "RMSNorm of 32 heads in 48 places forward" in done.stdout
    done = runner.invoke(app, [*how, "--heads", "32"])
    assert "heads are HEADS x PLACES, such as 32x48, got '32'" in done.output
    done = runner.invoke(app, [*how, "--gate", "before"])
    assert "RMSNorm with a gate before it forward" in done.stdout
    done = runner.invoke(app, [*how, "--device", "tpu"])
    assert done.exit_code == 2
    assert "normlab explain: device must be one of" in done.output


def test_registers_are_the_assembler_s_where_it_is_installed():
    pytest.importorskip("numba_cuda", reason="kernels are assembled by numba-cuda, which has no wheels here")
    one = explain("forward", dtype="bfloat16", n2=4096, device="h100", compiled=True)
    assert 16 <= one.resources.registers <= 255
    assert one.occupancy.blocks >= 1
    assert "per thread, 0 bytes of spills" in str(one)


@pytest.mark.parametrize("name", ["norm_bfloat16_h200", "sweep_h200"])
@pytest.mark.parametrize("saved", ["input", "output"])
def test_it_says_what_was_measured_at_the_nearest_shape(name, saved):
    """A shape that was measured, and one a little off, also of rows that begin in the middle of a vector."""
    for row in record(name)["rows"]:
        entry = row["contenders"].get({"input": "normlab", "output": "normlab-me"}[saved], {})
        if (row["direction"] == "forward" and saved == "output") or entry.get("status") != "ok":
            continue
        asked = {key: row[key] for key in ("norm", "dtype", "n1", "n2")} | {"device": "h200", "saved": saved}
        for n1 in (row["n1"], row["n1"] + row["n1"] // 100):
            facts = dict(explain(row["direction"], **asked | {"n1": n1}).facts())
            said, others, how = facts["speed"]
            assert said.startswith(f"{entry['of_copy']:.2f} of a copy's, {entry['median_us']:,.0f} us: measured on an")
            assert f"at {row['n1']:,} x {row['n2']:,}, the nearest" in said
            assert f"torch {row['contenders']['torch']['of_copy']:.2f}" in others
            shape = f"--norm {row['norm']} --direction {row['direction']} --dtype {row['dtype']}"
            assert how.endswith(f"{shape} --n1 {n1} --n2 {row['n2']}")


def test_rows_that_begin_within_a_vector_are_far_from_rows_that_do_not():
    asked = {"dtype": "bfloat16", "n1": 32768, "device": "h200"}
    for n2 in (4096, 4095):
        problem = Problem("forward", "layer", 32768, n2, "bfloat16")
        near, far = (_shapes_apart(problem, 32768, other) for other in (n2 - 8, n2 - 7))
        assert near < far
        assert far > _shapes_apart(problem, 32768 // 4, n2)
    assert "speed" in dict(explain("forward", n2=4095, **asked).facts())


def test_few_bytes_are_bound_by_the_launch():
    facts = dict(explain("backward", norm="rms", dtype="bfloat16", n1=64, n2=4126, device="h200").facts())
    assert facts["predicted"][2].startswith("bound by launch")


def test_nothing_is_said_of_speed_where_nothing_was_measured():
    for ladder, options in (("forward", {"dtype": "float64"}), ("family", {})):
        assert "speed" not in dict(explain(ladder, **options).facts())


def test_it_says_what_was_measured_of_few_long_rows_and_of_a_product():
    """The nearest record of one row of 65,536 columns is that row, not 2,048 of them."""
    lines = dict(explain("forward", dtype="bfloat16", n1=1, n2=65536).facts())["speed"]
    assert "at 1 x 65,536, the nearest" in lines[0]
    facts = dict(explain("forward", n1=4096, n2=4096, device="h200").facts())  # 134 MB, which take 30 us
    assert facts["predicted"][2].startswith("bound by memory")
    (entry,) = (one for one in record("ladder_sgemm_4096_h200")["steps"] if one["step"] == "pipelined")
    (said, how) = dict(explain("sgemm", m=4000, n=4096).facts())["speed"]
    assert said.startswith(f"{entry['of_cublas']:.2f} of cuBLAS's, {entry['median_us']:,.0f} us: measured on an")
    assert how.endswith("--size 4000x4096x4096")
