"""`normlab bench`: what it refuses, what it says without a GPU, and whole runs on the CPU with a made-up timer."""

import json
import os
import signal
import sys

import pytest
from bench.conftest import refused, run

from normlab import engine
from normlab.bench import host, machine, norm
from normlab.learn.xray import steps_of
from normlab.measure.timing import Spread


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("norm", "--norm", "batch"), "--norm batch: choose from layer, rms, both"),
        (("norm", "--direction", "up"), "--direction up: choose from forward, backward, both"),
        (("norm", "--direction", "forward", "--memory-efficient"), "--memory-efficient is for the backward, not for"),
        (("norm", "--direction", "forward", "--both-paths"), "--both-paths is for the backward, not for"),
        (("norm", "--dtype", "int8"), "--dtype int8: choose from float16, bfloat16, float32, float64"),
        (("norm", "--dtype", "float16,int8"), "--dtype int8"),
        (("norm", "--peers", "torch,keras"), "--peers keras: choose from torch, compile, liger, quack, apex, triton"),
        (("norm", "--n2", "0"), "--n2 0: a whole number of at least 1 is needed"),
        (("norm", "--n1", "1,x"), "--n1 x: a whole number"),
        (("norm", "--elements", "-5"), "--elements -5: a whole number"),
        (("norm", "--plot", "x.txt"), "the name must end in .svg, .png, .pdf"),
        (("family", "--norm", "rms"), "--norm rms: choose from batch, instance, group, layer"),
        (("ladder", "sideways"), "LADDER sideways: choose from forward, backward, sgemm"),
        (("ladder", "forward", "--norm", "both"), "--norm both: choose from layer, rms"),
        (("ladder", "forward", "--dtype", "bf16"), "--dtype bf16: choose from"),
        (("host", "--peers", "x"), "--peers x: choose from"),
        (("report", "nowhere.json"), "nowhere.json: no such file or directory"),
    ],
)
def test_arguments_that_cannot_be_used_are_named_with_what_can(arguments, words):
    assert words in refused(*arguments)


@pytest.mark.parametrize(
    ("arguments", "ladder"),
    [
        (("norm",), "forward"),
        (("norm", "--direction", "backward"), "backward"),
        (("family",), "family"),
        (("ladder", "forward"), "forward"),
        (("ladder", "backward"), "backward"),
        (("ladder", "sgemm"), "sgemm"),
        (("host",), "forward"),
        (("host", "--direction", "backward"), "backward"),
        (("host", "--direction", "both"), "forward"),
    ],
)
def test_without_a_gpu_one_line_says_what_is_needed_and_what_can_be_had_instead(
    arguments, ladder, monkeypatch, tmp_path
):
    monkeypatch.setattr(machine.engine, "gpu_available", lambda: False)
    line = refused(*arguments, "--json", tmp_path / "x.json")
    assert "needs an NVIDIA GPU and its driver; none was found here" in line
    assert f"`normlab trace {ladder}` shows what each kernel asks of memory" in line
    assert steps_of(ladder)[1]  # there is such a command
    assert not (tmp_path / "x.json").exists()


def test_without_torch_one_line_says_so(monkeypatch):
    monkeypatch.setattr(machine.engine, "gpu_available", lambda: True)
    monkeypatch.setitem(sys.modules, "torch", None)
    line = refused("norm")
    assert "needs PyTorch" in line
    assert "pip install 'normlab[torch]'" in line


@pytest.mark.skipif(engine.gpu_available(), reason="there is a GPU")
def test_a_torch_without_cuda_is_named(monkeypatch):
    import torch

    monkeypatch.setattr(machine.engine, "gpu_available", lambda: True)
    assert f"needs a PyTorch with CUDA, but this one ({torch.__version__}) finds no GPU" in refused("norm")


def test_the_help_lists_the_subcommands_and_every_option():
    assert all(name in run("--help").stdout for name in ("norm", "ladder", "host", "report"))
    shown = run("norm", "--help").stdout
    for option in ("--norm", "--direction", "--n1", "--n2", "--elements", "--dtype", "--peers", "--memory-efficient",
                   "--both-paths", "--json", "--plot"):  # fmt: skip
        assert option in shown
    for command in ("norm", "host"):
        assert "compile-inference, only if named" in " ".join(run(command, "--help").stdout.split())


# ---- whole runs -----------------------------------------------------------------------------------------------------


@pytest.fixture
def hosts_of_made_up_speed(on_the_cpu, monkeypatch):
    monkeypatch.setattr(host, "eager_time", lambda call: Spread(1e-5, 1e-5, 1e-5))
    monkeypatch.setattr(host, "replay_time", lambda call: Spread(1e-6, 1e-6, 1e-6))
    monkeypatch.setattr(host, "first_call", lambda name, folder: {"import_s": 1.0, "call_s": 2.0})
    monkeypatch.setattr(host, "SHAPE", (2, 16))


MACHINE = {
    "what", "date", "command", "gpu", "driver", "python", "normlab", "torch", "triton", "numba", "numba-cuda", "numpy",
    "liger-kernel", "quack-kernels", "apex", "method",
}  # fmt: skip


def test_norm_prints_its_tables_and_writes_record_and_plot(on_the_cpu, tmp_path):
    record, plot = tmp_path / "norm.json", tmp_path / "norm.svg"
    small = ("--n1", 4, "--n2", "16,32", "--dtype", "float32", "--peers", "torch")
    done = run("norm", *small, "--both-paths", "--json", record, "--plot", plot)
    assert done.exit_code == 0, done.stderr
    for words in ("LayerNorm forward", "RMSNorm backward", "normlab-me", "torch"):
        assert words in done.stdout
    written = json.loads(record.read_text())
    assert set(written) == MACHINE | {"absent", "rows"}
    assert (written["what"], written["absent"]) == ("norm", {})
    assert len(written["rows"]) == 8
    ok = {"status", "median_us", "lower_us", "upper_us", "gb_per_s", "of_copy", "error_over_bound"}
    for row in written["rows"]:
        recomputed = ["normlab-me"] if row["direction"] == "backward" else []
        assert list(row["contenders"]) == ["normlab", *recomputed, "torch"]
        assert all(set(entry) == ok for entry in row["contenders"].values())
    assert plot.stat().st_size > 5000
    assert "| 4 × 16 |" in run("report", record).stdout


def test_a_bench_that_is_told_to_stop_writes_what_it_has_measured(on_the_cpu, monkeypatch, tmp_path):
    rows, record = [], tmp_path / "norm.json"
    race = norm.race

    def stopped(*arguments):
        rows.append(race(*arguments))
        if len(rows) == 3:
            os.kill(os.getpid(), signal.SIGTERM)  # as `timeout` and `kill` do
        return rows[-1]

    monkeypatch.setattr(norm, "race", stopped)
    before = signal.getsignal(signal.SIGTERM)
    try:
        done = run("norm", "--n1", 2, "--n2", "16,32", "--dtype", "float32", "--peers", "none", "--json", record)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done.exit_code == 0, done.stderr
    written = json.loads(record.read_text())
    assert (len(written["rows"]), written["left_out"]) == (2, 6)
    assert "interrupted: 6 problems were not measured" in done.stdout


def test_peers_that_are_absent_are_named_with_the_reason(on_the_cpu, monkeypatch):
    for name in ("liger_kernel", "quack"):
        monkeypatch.setitem(sys.modules, name, None)
    done = run("norm", "--n1", 2, "--n2", 16, "--dtype", "float32", "--norm", "rms", "--direction", "forward",
               "--peers", "torch,liger,quack")  # fmt: skip
    assert done.exit_code == 0
    assert "absent: liger (No module named 'liger_kernel.ops'" in done.stdout
    assert "absent: quack (No module named 'quack.rmsnorm'" in done.stdout


def test_none_is_no_peer_and_memory_efficient_leaves_the_other_path_out(on_the_cpu):
    small = ("--n1", 2, "--n2", 16, "--dtype", "float32", "--norm", "rms", "--peers", "none")
    done = run("norm", *small, "--memory-efficient")
    assert done.exit_code == 0
    forward, backward = done.stdout.split("RMSNorm backward")
    assert " normlab " in forward
    assert "normlab-me" not in forward
    assert backward.split("normlab us")[0].split()[-2:] == ["best", "peer"]
    assert "normlab-me" in backward


def test_ladder_prints_every_step_and_writes_the_record(on_the_cpu, tmp_path):
    record = tmp_path / "ladder.json"
    done = run("ladder", "forward", "--n2", 32, "--elements", 128, "--dtype", "float32", "--json", record)
    assert done.exit_code == 0, done.stderr
    assert "LayerNorm forward, 4 x 32 float32" in done.stdout
    assert "thread_per_row" in done.stdout
    written = json.loads(record.read_text())
    assert set(written) == MACHINE | {"norm", "direction", "dtype", "n1", "n2", "bytes", "copy", "steps"}


def test_host_prints_and_writes_eager_graph_and_first_calls(hosts_of_made_up_speed, tmp_path):
    record = tmp_path / "host.json"
    done = run("host", "--peers", "torch", "--json", record)
    assert done.exit_code == 0, done.stderr
    assert "in a graph us" in done.stdout
    written = json.loads(record.read_text())
    assert set(written) == MACHINE | {"absent", "rows", "first_calls"}
    assert set(written["first_calls"]) == {"normlab", "torch"}
    assert [row["norm"] for row in written["rows"]] == ["layer", "rms"]
