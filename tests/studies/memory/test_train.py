"""Training: the same for the same seed, apart by rounding only, and by more where a gradient is wrong."""

import math

import numpy as np
import pytest
import torch

from normlab.studies.memory import measure, tables, text, train
from normlab.studies.memory.model import Shape
from normlab.studies.memory.variants import TORCH, VARIANTS

SHAPE = Shape(1, 32, 4, 16, "rms", "float32")
POEM = text.Text("a poem", b"the norm keeps what the layer needs, and what it needs it keeps. " * 40)


def lesson(steps, norm_weight=1.0, **changes):
    return train.Lesson(SHAPE._replace(**changes), POEM, steps, norm_weight, "cpu")


def by_run(record):
    return {(row["variant"], row["turned"]): row for row in record["rows"]}


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_all_variants_learn_the_text_and_differ_by_no_more_than_rounding_can(norm):
    rows = by_run(train.run(lesson(40, norm=norm), ["float64"]))
    assert list(rows) == [*((variant, 0) for variant in VARIANTS), *((TORCH, turn) for turn in (1, 2, 3))]
    for row in rows.values():
        assert row["losses"][0] == pytest.approx(math.log(256), abs=0.1)
        assert row["losses"][-1] < 3.5
        assert row["difference"] < 1e-5  # sums in float64, losses in float32 and 6 digits


def test_other_orders_are_other_runs_of_the_same_problem():
    rows = by_run(train.run(lesson(25), ["bfloat16"]))
    others = [rows[TORCH, turned]["losses"] for turned in (1, 2, 3)]
    assert all(other != rows[TORCH, 0]["losses"] for other in others)
    assert all(0 < rows[TORCH, turned]["difference"] < 0.1 for turned in (1, 2, 3))
    assert train.losses(lesson(25, dtype="bfloat16"), TORCH, turned=4) == rows[TORCH, 0]["losses"]  # all the way round


def test_from_weights_of_zero_all_learn_but_true():
    one = lesson(60, norm_weight=0.0)
    ends = {variant: train.smoothed(train.losses(one, variant))[-1] for variant in VARIANTS}
    assert ends.pop("True") == pytest.approx(math.log(256), abs=1e-4)
    assert max(ends.values()) < 5
    assert max(ends.values()) - min(ends.values()) < 1e-3


def test_a_batch_of_two_has_one_other_order():
    assert lesson(1, batch=2).runs == [*((variant, 0) for variant in VARIANTS), (TORCH, 1)]


def test_a_dtype_that_does_not_fit_is_refused_before_the_first_run(monkeypatch):
    monkeypatch.setattr(measure.prediction, "peak", lambda shape, device: 1e30 if shape.dtype == "float64" else 0)
    runs = []
    with pytest.raises(measure.CapacityError):
        train.run(lesson(1, batch=2), ["float32", "float64"], lambda: runs.append(1))
    assert runs == []


def test_smoothing_a_short_curve_takes_its_mean_and_a_nan_stays():
    assert train.smoothed([1.0, 3.0]).tolist() == [2.0]
    assert math.isnan(train.difference([1.0, math.nan], [1.0, 1.0]))
    assert train.difference([1.0] * 40, [1.0] * 20 + [3.0] * 20) == pytest.approx(2)


@pytest.mark.parametrize("differences", [(1e-6, math.nan), (math.nan, 1e-6)])
def test_a_nan_of_another_order_is_the_largest_difference_by_rounding(differences):
    rows = [{"dtype": "float32", "turned": 1 + i, "difference": one} for i, one in enumerate(differences)]
    assert math.isnan(tables.by_rounding({"rows": rows}, "float32"))


def test_passages_are_the_text_and_targets_one_byte_further():
    inputs, targets = text.Text("abc", b"abcdefgh").batch(2, 3, "cpu")
    assert bytes(inputs.flatten().tolist()) == b"abcefg"
    assert bytes(targets.flatten().tolist()) == b"bcdfgh"
    around, _ = text.Text("abc", b"abcde").batch(2, 3, "cpu")
    assert bytes(around.flatten().tolist()) == b"abceab"
    random = torch.Generator().manual_seed(0)
    drawn = text.Text("abc", b"abcde").batch(500, 4, "cpu", random)
    assert {bytes(one.tolist()) for one in drawn[0]} == {b"abcd"}
    drawn = text.Text("abc", b"abcde").batch(500, 3, "cpu", random)
    assert {bytes(one.tolist()) for one in drawn[1]} == {b"bcd", b"cde"}


def test_a_text_is_described_by_its_digest(tmp_path):
    (tmp_path / "abc.txt").write_bytes(b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert text.read(tmp_path / "abc.txt").described() == {"name": "abc.txt", "bytes": 3, "sha256": digest}
    with pytest.raises(ValueError, match=r"abc\.txt: has 3 bytes; --sequence 3 needs 4"):
        text.read(tmp_path / "abc.txt", 3)
    assert text.read(tmp_path / "abc.txt", 2).content == b"abc"


def test_the_own_text_is_the_source_of_stages_and_ladders():
    own = text.read(None)
    assert len(own.content) > 50_000
    assert b"def welford_step(" in own.content
    assert np.frombuffer(own.content, np.uint8).max() < 256
