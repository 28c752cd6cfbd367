"""What was measured on the CPU: records that the code of today would make the same, but for times."""

import math
from pathlib import Path

import pytest

from normlab.bench import record
from normlab.measure.numbers import scientific
from normlab.studies.memory import measure, prediction, tables, text
from normlab.studies.memory.model import Shape
from normlab.studies.memory.variants import TORCH

README = (Path(__file__).parents[3] / "README.md").read_text()


def test_the_bytes_in_the_record_are_those_predicted_today():
    made = record("memory_cpu")
    shape = Shape(**{name: made[name] for name in Shape._fields})
    assert shape == measure.SMALL
    for row in made["rows"]:
        assert row["saved_bytes"] == row["predicted_bytes"] == prediction.total(shape, row["variant"], "cpu")
        assert row["largest_difference"] < 1e-3
    assert made["predicted"] == measure.predicted(shape)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_the_record_the_losses_agree_as_well_as_those_of_torch_in_another_order(dtype):
    made = record("train_cpu")
    assert made["steps"] == 200
    assert made["text"] == text.read(Path(__file__).parents[3] / "LICENSE").described()
    rows = tables.of_dtype(made, dtype)
    assert len(rows) == 11
    for row in rows:
        assert row["losses"][-1] < 1
        assert row["difference"] < 2 * tables.by_rounding(made, dtype)


def test_in_the_record_of_weights_of_zero_all_but_true_learn():
    made = record("train_zero_cpu")
    ends = {row["variant"]: row["losses"][-1] for row in made["rows"] if not row["turned"]}
    assert ends.pop("True") == pytest.approx(math.log(256), abs=1e-3)
    assert all(end == pytest.approx(ends[TORCH], abs=1e-5) for end in ends.values())


def test_the_readme_shows_the_records():
    rows = {row["variant"]: row["saved_bytes"] / 1e6 for row in record("memory_cpu")["rows"]}
    for variant, saved in rows.items():
        assert f"| {_named(variant)} | {saved:.1f} | {rows['False'] - saved:.1f} |" in README
    made = record("train_cpu")
    for variant in measure.VARIANTS[1:]:
        differences = {row["dtype"]: row["difference"] for row in made["rows"] if row["variant"] == variant}
        cells = " | ".join(scientific(differences[dtype]) for dtype in ("float32", "bfloat16"))
        assert f"| {_named(variant)} | {cells} |" in README
    cells = " | ".join(scientific(tables.by_rounding(made, dtype)) for dtype in ("float32", "bfloat16"))
    assert f"| torch.nn in another order | {cells} |" in README
    large = record("memory_cpu")["predicted"]["rows"]
    for variant in ("False", "True"):
        roles = next(dict(row) for row in large if row["variant"] == variant)
        del roles["variant"]
        assert f"{sum(roles.values()) / 1e6:,.1f}" in README


def _named(variant):
    mode = '"exact"' if variant == "exact" else variant
    return variant if variant == TORCH else f"`memory_efficient={mode}`"
