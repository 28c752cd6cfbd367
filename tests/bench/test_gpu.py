"""The benchmarks on a real GPU, small."""

import json

import pytest
from bench.conftest import run

from normlab import engine

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not (engine.gpu_available() and torch.cuda.is_available()), reason="needs a GPU and a PyTorch with CUDA"
)


def record(tmp_path, *arguments):
    path = tmp_path / "record.json"
    done = run(*arguments, "--json", path)
    assert done.exit_code == 0, done.stderr
    return json.loads(path.read_text())


def test_norm(tmp_path):
    small = ("--n2", "100,1024", "--elements", "2^20", "--dtype", "bfloat16", "--peers", "torch", "--both-paths")
    for row in record(tmp_path, "norm", *small)["rows"]:
        assert row["copy"]["gb_per_s"] > 10
        for name, entry in row["contenders"].items():
            assert entry["status"] == "ok", (name, entry)
            assert 0.001 < entry["of_copy"] < 2
            assert entry["lower_us"] <= entry["median_us"] <= entry["upper_us"]


@pytest.mark.parametrize("ladder", ["forward", "backward"])
def test_ladder(ladder, tmp_path):
    for entry in record(tmp_path, "ladder", ladder, "--n2", 256, "--elements", "2^18")["steps"]:
        assert entry["status"] == "ok", entry
        for kernel in entry["kernels"]:
            assert 8 <= kernel["registers"] <= 255
            assert 0 < kernel["occupancy"] <= 1


def test_host(tmp_path):
    found = record(tmp_path, "host", "--norm", "layer", "--peers", "torch")
    for entry in found["rows"][0]["contenders"].values():
        assert 0.5 < entry["eager"]["median_us"] < 10_000
        assert 0.5 < entry["graph"]["median_us"] < 1000
    assert all(entry["status"] == "ok" for entry in found["first_calls"].values())
