"""`normlab memory` and `normlab train`: what they print and write, and what they refuse."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from normlab.cli import app
from normlab.measure.provenance import provenance
from normlab.studies.memory import measure, prediction

TINY = ("--layers", 1, "--hidden", 32, "--batch", 2, "--sequence", 8)


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(measure, "device", lambda: "cpu")


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def refused(*arguments):
    """What stderr says of a command that exits with 2 and prints nothing."""
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize(("arguments", "words"), [
    (("memory", "--hidden", 33), "normlab memory: --hidden 33: an even number is needed, for rotary positions"),
    (("memory", "--plot", "x.txt"), "normlab memory: --plot x.txt: the name must end in .svg, .png, .pdf"),
    (("memory", "--hidden", 2**20), "GB at least, and cpu has"),
    (("memory", "--json", "no/where.json"), "normlab memory: no/where.json: no such file or directory"),
    (("train", "nothing.txt"), "normlab train: nothing.txt: no such file or directory"),
    (("train", "--dtype", "float16"), "normlab train: --dtype float16: choose from float32, bfloat16, float64"),
    (("train", "--norm-weight", "nan"), "normlab train: --norm-weight nan: a finite number is needed"),
    (("train", "--plot", "x"), "normlab train: --plot x: the name must end in .svg, .png, .pdf"),
    (("train", "--hidden", 2**20), "GB at least, and cpu has"),
])  # fmt: skip
def test_what_cannot_be_used_is_named_in_a_line(arguments, words):
    said = refused(*arguments)
    assert words in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(("arguments", "words"), [
    (("memory", "--layers", 0), "--layers must be at least 1, got 0"),
    (("memory", "--steps", 1), "--steps must be at least 2, got 1"),
    (("memory", "--norm", "batch"), "--norm must be one of layer, rms; got batch"),
    (("memory", "--dtype", "int8"), "--dtype must be one of float16, bfloat16, float32, float64; got int8"),
    (("train", "--batch", 1), "--batch must be at least 2, got 1"),
])  # fmt: skip
def test_numbers_and_names_that_cannot_be_are_named_with_what_is_needed(arguments, words):
    assert words in refused(*arguments)


def test_a_text_that_is_too_short_is_named(tmp_path):
    (tmp_path / "short.txt").write_text("short")
    assert "short.txt: has 5 bytes; --sequence 8 needs 9" in refused("train", tmp_path / "short.txt", "--sequence", 8)


@pytest.mark.parametrize(("command", "options"), [
    ("memory", "--layers --hidden --batch --sequence --dtype --norm --steps --json --plot"),
    ("train", "--layers --hidden --batch --sequence --dtype --norm --norm-weight --steps --json --plot"),
])  # fmt: skip
def test_the_help_lists_every_option(command, options):
    shown = run(command, "--help").stdout
    assert set(options.split()) <= set(shown.split())
    assert command in run("--help").stdout


def test_without_torch_the_help_works_and_one_line_says_what_is_needed():
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from typer.testing import CliRunner; from normlab.cli import app\n"
        "for command in ('memory', 'train'):\n"
        "    assert CliRunner().invoke(app, [command, '--help']).exit_code == 0\n"
        "    done = CliRunner().invoke(app, [command])\n"
        "    print(done.exit_code, done.stderr.strip())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        f"2 normlab {command}: normlab.nn needs PyTorch, which is not installed: pip install 'normlab[torch]'"
        for command in ("memory", "train")
    ]


MACHINE = set(provenance()) | {"what", "device", "method"}
SHAPE = {"layers", "hidden", "batch", "sequence", "norm", "parameters", "steps", "text", "rows"}


def test_memory_prints_what_is_saved_and_what_the_large_model_would_and_writes_record_and_plot(tmp_path):
    record, plot = tmp_path / "memory.json", tmp_path / "memory.svg"
    done = run("memory", *TINY, "--norm", "layer", "--dtype", "float32", "--steps", 2, "--json", record, "--plot", plot)
    assert done.exit_code == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "1 blocks of hidden 32, LayerNorm, float32, 2 x 8 tokens, measured on the CPU" in words
    assert "on a GPU, predicted: 32 blocks of hidden 4096, LayerNorm, float32, 2 x 2048 tokens" in words
    assert "No peak: only a GPU's allocator counts." in words
    apart, fused = (22 * 2 * 8 * 32 * 4 / 1e6, 17 * 2 * 8 * 32 * 4 / 1e6)  # matrices of a block
    assert f"move {apart:,.1f} MB, and {fused:,.1f} MB where they are fused" in words
    written = json.loads(record.read_text())
    assert set(written) == MACHINE | SHAPE | {"dtype", "heads", "inner", "predicted", "threads"}
    assert (written["what"], written["device"], written["parameters"]) == ("memory", "cpu", 45_248)
    for row in written["rows"]:
        assert set(row) == {
            "variant", "saved_bytes", "predicted_bytes", "peak_bytes", "losses", "largest_difference", "step",
            "step_against_saved_input",
        }  # fmt: skip
        assert set(row["step"]) == {"median_us", "lower_us", "upper_us"}
    large = prediction.LLAMA._replace(norm="layer", dtype="float32")
    for row in written["predicted"]["rows"]:
        assert {"variant": row["variant"], **prediction.saved(large, row["variant"], "cuda")} == row
        assert f"{prediction.total(large, row['variant'], 'cuda') / 1e6:,.1f}" in words
    picture = plot.read_text()
    assert all(name in picture for name in ("torch.nn", "exact", "saved for the backward", "predicted", "step, ms"))


def test_in_float64_a_gpu_keeps_more_than_predicted_and_the_command_says_so():
    words = "On a GPU attention in float64 keeps more than predicted"
    for dtype, said in (("float64", True), ("float32", False)):
        assert (words in " ".join(run("memory", *TINY, "--dtype", dtype, "--steps", 2).stdout.split())) == said


def test_peaks_are_shown_where_they_were_measured(monkeypatch, tmp_path):
    alone = measure.Bench.alone
    peaks = {"torch.nn": 30_000_000_000, "False": 30_100_000_000, "True": 28_000_000_000, "exact": 28_000_000_000}
    peaks["exact, fused"] = 27_900_000_000
    monkeypatch.setattr(
        measure.Bench, "alone", lambda bench, name, steps: alone(bench, name, steps) | {"peak_bytes": peaks[name]}
    )
    done = run("memory", *TINY, "--steps", 2, "--plot", tmp_path / "memory.svg")
    words = " ".join(done.stdout.split())
    assert "30,100.0" in words
    assert "2,100.0" in words
    assert ", and the peak is 2,100.0 MB lower." in words
    assert "No peak" not in words
    assert "peak memory, GB" in (tmp_path / "memory.svg").read_text()


def test_train_prints_how_far_losses_are_apart_and_writes_record_and_plot(tmp_path):
    record, plot, text = tmp_path / "train.json", tmp_path / "train.svg", tmp_path / "text.txt"
    text.write_text("what it keeps, and what it needs. " * 20)
    done = run("train", text, *TINY, "--steps", 3, "--dtype", "float32,bfloat16", "--json", record, "--plot", plot)
    assert done.exit_code == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "1 blocks of hidden 32, RMSNorm, float32, 2 x 8 tokens, 3 steps" in words
    assert "bfloat16: rounding alone takes torch.nn " in words
    written = json.loads(record.read_text())
    assert set(written) == MACHINE | SHAPE | {"norm_weight"}
    assert written["text"]["name"] == "text.txt"
    assert len(written["rows"]) == 2 * 5
    for row in written["rows"]:
        assert set(row) == {"dtype", "variant", "turned", "difference", "losses"}
        assert len(row["losses"]) == 3
    picture = plot.read_text()
    assert all(name in picture for name in ("loss, float32", "loss, bfloat16", "torch.nn, another order", "exact"))


def test_a_variant_that_learns_something_else_is_named_with_its_difference(tmp_path):
    (tmp_path / "poem.txt").write_text("the norm keeps what the layer needs, and what it needs it keeps. " * 40)
    done = run("train", tmp_path / "poem.txt", *TINY, "--steps", 30, "--dtype", "float32", "--norm-weight", 0)
    words = " ".join(done.stdout.split())
    assert "(True)." in words
    difference = float(words.split("off by up to ")[1].split()[0])
    assert difference > 0.05


def test_whoever_has_to_wait_is_told(monkeypatch):
    monkeypatch.setattr(measure, "seconds", lambda *arguments: 100.0)
    assert run("memory", *TINY, "--steps", 2).stderr == (
        "this takes about 1.7 minutes; fewer or smaller --layers take less\n"
    )
