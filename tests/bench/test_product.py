"""The SGEMM ladder's benchmark: what it checks, what it counts, and a whole run on the CPU with a made-up timer."""

import json

import numpy as np
import pytest
from bench.conftest import nothing, refused, run

from normlab import engine, oracle
from normlab.bench import machine, product, tables
from normlab.bench.ladder import Launch
from normlab.bench.occupancy import of_launch
from normlab.bench.report import markdown
from normlab.kernels import LADDERS

torch = pytest.importorskip("torch", reason="the benchmark measures torch tensors")
SMALL = product.Size(5, 12, 3)
STEPS = tuple(
    step for step in LADDERS["sgemm"] if step.name in ("naive", "coalesced", "pipelined")
)  # of the quick runs here


@pytest.fixture(autouse=True)
def three_steps(monkeypatch):
    monkeypatch.setattr(product, "SGEMM", STEPS)


def climbed(stopwatch, seconds=1e-6, peak=1e6):
    with engine.using("simulator"):
        return product.climb(SMALL, stopwatch(seconds), nothing, "cpu", peak)


def test_cublas_and_every_step_in_order_with_speed_and_fractions(stopwatch, monkeypatch):
    monkeypatch.setattr(product, "SGEMM", LADDERS["sgemm"])
    record = climbed(stopwatch)
    assert [entry["step"] for entry in record["steps"]] == [step.name for step in LADDERS["sgemm"]]
    assert record["operations"] == 2 * 5 * 12 * 3
    for entry in [record["cublas"], *record["steps"]]:
        assert entry["status"] == "ok"
        assert entry["tflops"] == round(2 * 5 * 12 * 3 / 1e-6 / 1e12, 3)
        assert entry["of_cublas"] == 1.0
        assert entry["of_peak"] == round(2 * 5 * 12 * 3 / 1e-6 / 1e6, 4)
        assert 0 <= entry["error_over_bound"] < 1
    assert all(entry["registers"] == 1 for entry in record["steps"])


def test_a_wrong_result_has_no_time_and_says_by_how_much(stopwatch, monkeypatch):
    right = product.matmul.sgemm
    monkeypatch.setattr(product.matmul, "sgemm", lambda a, b, step: right(a, b, step=step) + (step == "coalesced"))
    record = climbed(stopwatch)
    (wrong,) = (entry for entry in record["steps"] if entry["step"] == "coalesced")
    assert wrong["status"] == "wrong"
    assert wrong["reason"].startswith("the product is off by ")
    assert "median_us" not in wrong


def test_a_step_that_fails_is_named_and_the_others_go_on(stopwatch, monkeypatch):
    right = product.matmul.sgemm

    def sgemm(a, b, step):
        if step == "naive":
            raise RuntimeError("the driver could not\nand more")
        return right(a, b, step=step)

    monkeypatch.setattr(product.matmul, "sgemm", sgemm)
    first, second, *_ = climbed(stopwatch)["steps"]
    assert (first["status"], first["reason"]) == ("unable", "RuntimeError: the driver could not")
    assert second["status"] == "ok"


def test_the_check_has_the_oracle_s_bound_and_lets_no_nan_pass():
    a, b = SMALL.draw("cpu")
    check = product.Check(a, b)
    np.testing.assert_allclose(check.want, oracle.product(a, b), rtol=1e-15)
    np.testing.assert_allclose(check.bound, oracle.product_bound(a, b), rtol=1e-9)
    got = a @ b
    assert check.worst(got) < 1
    got[1, 2] = float("nan")
    assert check.worst(got) == float("inf")


def test_torch_multiplies_without_tf32_and_is_left_as_it_was():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with product.full_precision():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def test_the_launch_of_a_step_is_the_one_whose_registers_are_shown():
    (step,) = (step for step in LADDERS["sgemm"] if step.name == "pipelined")
    launch = product.launched(step, *SMALL.draw("cpu"))
    assert isinstance(launch, Launch)
    assert launch.threads == 256
    found = of_launch(launch, cc=(9, 0))
    assert found["shared_bytes"] == launch.options["shared_bytes"] == 74_880
    assert (found["local_bytes"], found["blocks_per_multiprocessor"]) == (0, 2)


def test_the_peak_is_that_of_the_highest_clock(monkeypatch):
    class Properties:
        multi_processor_count, major, minor = 132, 9, 0

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    monkeypatch.setattr(machine, "ask_nvidia_smi", {"clocks.max.sm": "1980"}.get)
    assert machine.peak() == 132 * 128 * 2 * 1.98e9
    monkeypatch.setattr(Properties, "minor", 7)
    assert machine.peak() is None
    monkeypatch.setattr(machine, "ask_nvidia_smi", lambda what: "[N/A]")
    assert machine.peak() is None


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_command_prints_the_table_and_writes_the_record(on_the_cpu, tmp_path):
    file = tmp_path / "sgemm.json"
    done = run("ladder", "sgemm", "--size", "5x12x3", "--json", file)
    assert done.exit_code == 0, done.stderr
    assert "SGEMM (5, 3) times (3, 12): 0.0 GFLOP" in done.stdout
    assert all(f" {step.name} " in done.stdout for step in STEPS)
    record = json.loads(file.read_text())
    assert {"date", "command", "gpu", "method", "m", "n", "k", "operations", "peak_tflops", "cublas"} <= set(record)
    assert record["what"] == "sgemm"
    assert "| `pipelined` | 0.0 / 1.00 / - |" in run("report", file).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ladder", "sgemm", "--size", "0"), "--size 0: a whole number of at least 1 is needed"),
        (
            ("ladder", "sgemm", "--size", "8x8"),
            "--size 8x8: M x N x K is needed, such as 4000x4100x3000",
        ),
        (("ladder", "sgemm", "--n2", "64"), "--n2 is no option of the sgemm ladder"),
        (("ladder", "forward", "--size", "64"), "--size is no option of the forward ladder"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(arguments, words):
    assert words in refused(*arguments)


@pytest.mark.skipif(not engine.gpu_available(), reason="needs a GPU")
def test_every_step_is_right_and_timed_on_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(product, "SGEMM", LADDERS["sgemm"])
    file = tmp_path / "sgemm.json"
    assert run("ladder", "sgemm", "--size", 512, "--json", file).exit_code == 0
    record = json.loads(file.read_text())
    for entry in [record["cublas"], *record["steps"]]:
        assert entry["status"] == "ok", entry
        assert 0 < entry["of_peak"] < 1
    assert all(entry["local_bytes"] == 0 and entry["registers"] > 16 for entry in record["steps"])


def test_what_is_wrong_stands_in_the_table_and_its_reason_below(stopwatch, capsys):
    record = {"what": "sgemm", "gpu": "G", "driver": "1", "method": "By hand.", **climbed(stopwatch, peak=None)}
    record["cublas"] = {"status": "unable", "reason": "no torch"}
    tables.show(record)
    shown = capsys.readouterr().out
    assert "unable: cuBLAS (no torch)" in shown
    lines = markdown([{**record, "date": "2026-11-21", "command": "normlab"}]).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
