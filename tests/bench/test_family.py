"""The family's benchmark, with a made-up timer on the CPU."""

import io
from dataclasses import replace

import pytest
import torch
from draws import paired
from rich.console import Console

from normlab.bench import tables
from normlab.bench.family import DTYPES, LAYOUTS, NORMS, SHAPES, FamilyProblem, compete, problems
from normlab.bench.norm import ahead, own
from normlab.bench.problem import DIRECTIONS
from normlab.host import family as host

SMALL = (3, 4, 2, 3)


def test_the_problems_are_those_of_the_issue():
    assert SHAPES == ((32, 256, 56, 56), (64, 1024, 14, 14), (8, 64, 224, 224))
    assert len(problems(list(NORMS), list(DIRECTIONS), list(DTYPES))) == 4 * 2 * 2 * 2 * 3
    assert FamilyProblem("group", "forward", "float32", "NCHW", SHAPES[0]).groups == 32
    last = FamilyProblem("batch", "forward", "bfloat16", "NHWC", SMALL).draw("cpu")
    assert last.x.is_contiguous(memory_format=torch.channels_last)
    assert last.grad_output.is_contiguous(memory_format=torch.channels_last)


def test_layer_norm_is_over_channels_and_pixels_and_its_parameters_count():
    forward = FamilyProblem("layer", "forward", "bfloat16", "NHWC", SMALL)
    assert forward.parameters == (4, 2, 3)
    data = forward.draw("cpu")
    assert data.weight.shape == data.bias.shape == (4, 2, 3)
    assert data.x.is_contiguous(memory_format=torch.channels_last)
    sample, x = 2 * 4 * 2 * 3, 2 * 3 * 4 * 2 * 3
    assert forward.bytes == 2 * x + 2 * sample  # x and y, weight and bias
    assert replace(forward, direction="backward").bytes == 3 * x + 3 * sample
    assert replace(forward, norm="batch").bytes == 2 * x
    assert replace(forward, norm="batch").parameters == (4,)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_layer_norm_s_parameters_are_checked_in_every_place(direction, layout, stopwatch, monkeypatch):
    """One gradient that is off, or one value of a sample's output: nothing is averaged away."""
    name = "layer_norm" if direction == "forward" else "layer_norm_backward"
    right, place = getattr(host, name), 0 if direction == "forward" else 1

    def wrong(*arguments, **options):
        results = list(right(*arguments, **options))
        results[place] = results[place].clone()
        results[place].view(-1)[7] += 0.01
        return tuple(results)

    monkeypatch.setattr(host, name, wrong)
    (row,) = compete([FamilyProblem("layer", direction, "float32", layout, SMALL)], stopwatch(1e-6), "cpu")
    entries = row["contenders"]
    assert (entries["normlab"]["status"], entries["torch"]["status"]) == ("wrong", "ok")
    assert entries["normlab"]["reason"].startswith("output is off" if place == 0 else "grad_weight is off")


@pytest.mark.parametrize(
    ("norm", "layout"),
    [("batch", "NCHW"), ("instance", "NHWC"), ("group", "NHWC"), ("layer", "NCHW"), ("layer", "NHWC")],
)
def test_both_contenders_are_checked_and_timed(norm, layout, stopwatch):
    wanted = [FamilyProblem(norm, direction, "float32", layout, SMALL) for direction in DIRECTIONS]
    rows = compete(wanted, stopwatch(1e-6, 2e-6, 4e-6), "cpu")
    for row in rows:
        assert [(name, entry["status"]) for name, entry in row["contenders"].items()] == [
            ("normlab", "ok"),
            ("torch", "ok"),
        ]
        assert 0 < row["contenders"]["normlab"]["error_over_bound"] <= 1
    assert ahead(rows[0]) == 2.0
    assert rows[0]["contenders"]["normlab"]["of_copy"] == (0.6667 if norm == "layer" else 0.5)  # with its parameters
    record = {"what": "family", "rows": rows, "gpu": "x", "driver": "y", "method": "z"}
    text = io.StringIO()
    tables.show(record, Console(file=text, width=150))
    assert f"{norm.capitalize()} norm backward" in text.getvalue()
    assert "3 x 4 x 2 x 3" in text.getvalue()


@pytest.mark.parametrize(("norm", "direction", "result"), paired(NORMS, DIRECTIONS, [0, 1, 2]))
def test_a_wrong_result_is_marked_and_not_timed(norm, direction, result, stopwatch, monkeypatch):
    name = f"{norm}_norm" if direction == "forward" else f"{norm}_norm_backward"
    right = getattr(host, name)

    def wrong(*arguments, **options):
        results = list(right(*arguments, **options))
        results[result] = results[result] + 0.01
        return tuple(results)

    monkeypatch.setattr(host, name, wrong)
    (row,) = compete([FamilyProblem(norm, direction, "float32", "NCHW", SMALL)], stopwatch(1e-6), "cpu")
    assert row["contenders"]["normlab"]["status"] == "wrong"
    assert own(row) is None
