"""The family's benchmark, with a made-up timer on the CPU."""

import io

import pytest
import torch
from rich.console import Console

from normlab import family as host
from normlab.bench import tables
from normlab.bench.family import DTYPES, NORMS, SHAPES, FamilyProblem, compete, problems
from normlab.bench.norm import ahead, own
from normlab.bench.problem import DIRECTIONS

SMALL = (3, 4, 2, 3)


def test_the_problems_are_those_of_the_issue():
    assert SHAPES == ((32, 256, 56, 56), (64, 1024, 14, 14), (8, 64, 224, 224))
    assert len(problems(list(NORMS), list(DIRECTIONS), list(DTYPES))) == 3 * 2 * 2 * 2 * 3
    assert FamilyProblem("group", "forward", "float32", "NCHW", SHAPES[0]).groups == 32
    last = FamilyProblem("batch", "forward", "bfloat16", "NHWC", SMALL).draw("cpu")
    assert last.x.is_contiguous(memory_format=torch.channels_last)
    assert last.grad_output.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("norm", "layout"), [("batch", "NCHW"), ("instance", "NHWC"), ("group", "NHWC")])
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
    assert rows[0]["contenders"]["normlab"]["of_copy"] == 0.5
    record = {"what": "family", "rows": rows, "gpu": "x", "driver": "y", "method": "z"}
    text = io.StringIO()
    tables.show(record, Console(file=text, width=150))
    assert f"{norm.capitalize()} norm backward" in text.getvalue()
    assert "3 x 4 x 2 x 3" in text.getvalue()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("result", [0, 1, 2])
@pytest.mark.parametrize("direction", DIRECTIONS)
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
