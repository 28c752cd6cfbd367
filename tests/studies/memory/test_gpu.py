"""`normlab memory` and `normlab train` on a real GPU, small."""

import gc
import json

import pytest
from typer.testing import CliRunner

from normlab import engine
from normlab.cli import app

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not (engine.gpu_available() and torch.cuda.is_available()), reason="needs a GPU and a PyTorch with CUDA"
)


def record(tmp_path, *arguments):
    gc.collect()  # other tests' tensors, freed meanwhile, would be taken for a variant's
    path = tmp_path / "record.json"
    done = CliRunner().invoke(app, [*map(str, arguments), "--json", str(path)])
    assert done.exit_code == 0, done.stderr
    return json.loads(path.read_text())


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_memory(norm, tmp_path):
    size = ("--layers", 6, "--hidden", 1024, "--sequence", 1024, "--norm", norm)
    rows = {row["variant"]: row for row in record(tmp_path, "memory", *size, "--steps", 3)["rows"]}
    stream = 13 * 2 * 1024 * 1024 * 2  # the inputs of 13 norms
    for variant in ("True", "exact"):
        row, base = rows[variant], rows["False"]
        assert base["saved_bytes"] - row["saved_bytes"] == base["predicted_bytes"] - row["predicted_bytes"]
        assert base["peak_bytes"] - row["peak_bytes"] > 0.9 * stream
    for row in rows.values():
        assert row["saved_bytes"] == pytest.approx(row["predicted_bytes"], rel=1e-3)  # attention keeps its seeds, too
        assert row["largest_difference"] < 0.05
        assert row["step_against_saved_input"] > 0  # taken beside other tests on the same GPU: it says no more


def test_train(tmp_path):
    rows = record(tmp_path, "train", "--steps", 30, "--dtype", "float32")["rows"]
    assert all(row["difference"] < 1e-2 for row in rows)
    assert all(row["losses"][-1] < 4 for row in rows)
