"""A timer that tests make up, and records that no machine ever made."""

import pytest
from typer.testing import CliRunner

from normlab.bench import commands, machine
from normlab.cli import app
from normlab.measure.timing import Spread


def run(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def refused(*arguments):
    """The one line on stderr of a command that exits with 2 and prints nothing else."""
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"normlab bench {arguments[0]}: ")
    return line


def nothing(launch):
    """What a launch takes of a multiprocessor, as nobody has counted it."""
    return {"registers": 1, "local_bytes": 0, "shared_bytes": 0, "blocks_per_multiprocessor": 1, "occupancy": 0.5}


class Stopwatch:
    """Runs each call once and says that it took the next of `seconds`, the last one for ever; counts the calls."""

    def __init__(self, *seconds):
        self.seconds, self.calls = list(seconds), 0

    def __call__(self, call):
        call()
        self.calls += 1
        median = self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]
        return Spread(median, 0.9 * median, 1.1 * median)


@pytest.fixture
def stopwatch(quick_collections):  # each problem ends with one
    return Stopwatch


@pytest.fixture
def on_the_cpu(monkeypatch, stopwatch):
    """The commands run on the CPU, and every call takes 1 µs."""
    monkeypatch.setattr(machine, "require_gpu", lambda ladder: None)
    monkeypatch.setattr(commands, "DEVICE", "cpu")
    monkeypatch.setattr(commands, "EventTimer", lambda: stopwatch(1e-6))
    monkeypatch.setattr(commands, "of_launch", nothing)
    monkeypatch.setattr(commands, "peak", lambda: None)


def entry(median_us, array_bytes, copy_us, arrays=2):
    """An entry as `norm.enter` makes it."""
    speed = arrays * array_bytes / median_us
    times = {"median_us": median_us, "lower_us": median_us - 1, "upper_us": median_us + 1}
    of_copy = round(speed / (2 * array_bytes / copy_us), 4)
    return {"status": "ok", **times, "gb_per_s": round(speed / 1e3, 1), "of_copy": of_copy, "error_over_bound": 0.5}


MACHINE = {
    "date": "2026-11-21T10:00:00+00:00", "command": "normlab bench norm --json x.json", "gpu": "NVIDIA H200",
    "driver": "580.159.04", "python": "3.12.3", "normlab": "0.1.0", "torch": "2.11.0", "triton": "3.6.0",
    "numba": "0.68.0", "numba-cuda": "0.30.4", "numpy": "2.4.6",
}  # fmt: skip


def norm_row(norm, direction, dtype, n1, n2, **medians):
    """A row in which a copy takes 100 µs and the contenders what `medians` say; "wrong" is a wrong one."""
    arrays = 2 if direction == "forward" else 3
    array_bytes = n1 * n2 * (4 if dtype == "float32" else 2)
    wrong = {"status": "wrong", "reason": "output is off by 7 times its bound"}
    entries = {
        name.replace("_", "-"): wrong if median == "wrong" else entry(median, array_bytes, 100.0, arrays)
        for name, median in medians.items()
    }
    copy = {"median_us": 100.0, "lower_us": 99.0, "upper_us": 101.0, "gb_per_s": round(2 * array_bytes / 1e5, 1)}
    return {
        "norm": norm, "direction": direction, "dtype": dtype, "n1": n1, "n2": n2, "bytes": arrays * array_bytes,
        "copy": copy, "contenders": entries,
    }  # fmt: skip


@pytest.fixture
def norm_record():
    rows = [
        norm_row("layer", "forward", "bfloat16", 32768, 4096, normlab=102.0, torch=200.0, compile=105.0),
        norm_row("layer", "forward", "float32", 32768, 4096, normlab=103.0, torch=150.0, compile=101.0),
        norm_row("layer", "forward", "bfloat16", 2048, 65536, normlab=110.0, torch="wrong", compile=200.0),
        norm_row("layer", "forward", "float32", 2048, 65536, normlab="wrong", torch=150.0, compile=200.0),
        norm_row(
            "rms", "backward", "bfloat16", 32768, 4096, normlab=160.0, normlab_me=162.0, torch=400.0, compile=180.0
        ),
    ]
    return {"what": "norm", **MACHINE, "method": "By hand.", "absent": {"apex": "no module"}, "rows": rows}


@pytest.fixture
def sweep_record(norm_record):
    return {**norm_record, "what": "sweep", "seed": 3}


@pytest.fixture
def ladder_record():
    kernels = [
        {"kernel": "fast", "grid": 4, "block": 32, "median_us": 1.0, "lower_us": 1.0, "upper_us": 1.0, "registers": 32,
         "local_bytes": 0, "shared_bytes": 0, "blocks_per_multiprocessor": 16, "occupancy": 1.0},
        {"kernel": "slow", "grid": 4, "block": 64, "median_us": 9.0, "lower_us": 9.0, "upper_us": 9.0, "registers": 48,
         "local_bytes": 0, "shared_bytes": 512, "blocks_per_multiprocessor": 10, "occupancy": 0.625},
    ]  # fmt: skip
    steps = [
        {"step": "naive", "summary": "one thread a row", "status": "wrong", "reason": "off by 2"},
        {"step": "two_kernels", "summary": "partial sums", **entry(150.0, 2**28, 100.0), "kernels": kernels},
    ]  # fmt: skip
    row = norm_row("layer", "forward", "bfloat16", 32768, 4096)
    del row["contenders"]
    return {"what": "ladder", **MACHINE, "method": "By hand.", **row, "steps": steps}


@pytest.fixture
def host_record():
    def times(median):
        return {"median_us": median, "lower_us": median, "upper_us": median}

    contenders = {
        "normlab": {"status": "ok", "eager": times(12.0), "graph": times(2.5)},
        "compile": {"status": "ok", "eager": times(40.0), "graph": None},
        "torch": {"status": "unable", "reason": "RuntimeError: no"},
    }
    rows = [
        {"norm": "layer", "direction": "forward", "dtype": "bfloat16", "n1": 8, "n2": 4096, "contenders": contenders}
    ]
    seconds = {"import_s": 0.5, "call_s": 0.25}
    first = {"normlab": {"status": "ok", "cold": seconds, "warm": {"import_s": 0.5, "call_s": 0.1}},
             "torch": {"status": "unable", "reason": "it said no"}}  # fmt: skip
    return {"what": "host", **MACHINE, "method": "By hand.", "absent": {}, "rows": rows, "first_calls": first}


def family_row(norm, direction, dtype, layout, **medians):
    """As `norm_row`, on images."""
    made = norm_row(norm, direction, dtype, 8 * 64, 50176, **medians)
    del made["n1"], made["n2"]
    return {**made, "layout": layout, "shape": [8, 64, 224, 224]}


@pytest.fixture
def family_record():
    rows = [
        family_row("batch", "forward", "float32", "NCHW", normlab=150.0, torch=300.0),
        family_row("batch", "forward", "bfloat16", "NHWC", normlab=125.0, torch=100.0),
        family_row("group", "forward", "float32", "NCHW", normlab="wrong", torch=200.0),
        family_row("group", "forward", "bfloat16", "NHWC", normlab=100.0, torch="wrong"),
        family_row("batch", "backward", "float32", "NCHW", normlab=200.0, torch=210.0),
    ]
    return {"what": "family", **MACHINE, "method": "By hand.", "rows": rows}


def product_record(m, n, k, microseconds, cublas_us, peak=60e12, **further):
    """A record of the SGEMM ladder, of steps that take `microseconds`; a step may be "wrong" or "unable"."""
    operations = 2 * m * n * k

    def entered(median):
        if isinstance(median, str):
            return {"status": median, "reason": "by hand"}
        speed = operations / median * 1e6
        fractions = {"of_cublas": round(cublas_us / median, 4), "of_peak": peak and round(speed / peak, 4)}
        times = {"median_us": median, "lower_us": median, "upper_us": median}
        return {"status": "ok", **times, "tflops": round(speed / 1e12, 3), "error_over_bound": 0.1, **fractions}

    steps = [{"step": name, "summary": f"the {name} one", **entered(one)} for name, one in microseconds.items()]
    whole = {"m": m, "n": n, "k": k, "operations": operations, "peak_tflops": peak and peak / 1e12}
    return {
        "what": "sgemm", **MACHINE, "method": "By hand.", **whole, "cublas": entered(cublas_us), "steps": steps,
        **further,
    }  # fmt: skip


@pytest.fixture
def product_records():
    return [
        product_record(4096, 4096, 4096, {"naive": 100_000.0, "padded": 3_200.0, "pipelined": 2_500.0}, 2_600.0),
        product_record(4000, 4100, 3000, {"naive": "wrong", "padded": "unable", "pipelined": 2_000.0}, 1_800.0, None),
    ]
