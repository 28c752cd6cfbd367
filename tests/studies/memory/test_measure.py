"""Measuring: each variant's bytes, losses and times; and the GPU's side of it with a GPU that is made up."""

import pytest
import torch

from normlab.nn import FusedLayerNorm, FusedRMSNorm
from normlab.studies.memory import measure, prediction
from normlab.studies.memory.model import Shape
from normlab.studies.memory.threads import threads
from normlab.studies.memory.variants import FUSED, MEASURED, MODES, TORCH, Switch

TINY = Shape(2, 64, 2, 16, "rms", "float32")


@pytest.mark.parametrize(("norm", "kind", "own"), [
    ("rms", FusedRMSNorm, torch.nn.RMSNorm), ("layer", FusedLayerNorm, torch.nn.LayerNorm)
])  # fmt: skip
def test_switch_exchanges_every_norm_and_no_parameter(norm, kind, own):
    bench = measure.Bench(TINY._replace(norm=norm), "cpu")
    parameters = list(bench.model.parameters())
    for variant in (*MEASURED, TORCH, "exact", FUSED, "False"):
        bench.switch(variant)
        norms = [module for module in bench.model.modules() if isinstance(module, own)]
        assert {type(module) for module in norms} == {own if variant == TORCH else kind}
        assert len(norms) == TINY.norms
        if variant != TORCH:
            assert {module.memory_efficient for module in norms} == {"exact" if variant == FUSED else MODES[variant]}
        fused = [block for block in bench.model.blocks if hasattr(block, "sites")]
        assert len(fused) == (TINY.layers if variant == FUSED else 0)
        assert all(one is other for one, other in zip(bench.model.parameters(), parameters, strict=True))


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_the_variants_lose_alike_and_save_what_is_predicted(norm):
    shape = TINY._replace(norm=norm)
    advances = []
    record = measure.run(shape, 4, "cpu", lambda: advances.append(1))
    assert len(advances) == measure.ADVANCES
    rows = {row["variant"]: row for row in record["rows"]}
    assert list(rows) == list(MEASURED)
    for variant, row in rows.items():
        assert row["saved_bytes"] == row["predicted_bytes"] == prediction.total(shape, variant, "cpu")
        assert row["peak_bytes"] is None
        assert 0 < row["step"]["lower_us"] <= row["step"]["median_us"] <= row["step"]["upper_us"]
        assert len(row["losses"]) == 4
        assert row["losses"][-1] < row["losses"][0] - 0.01  # it learns
        # In a step, float32 adds up to 512 terms of at most a few units: 1e-5 is what rounding leaves, 1e-2 what
        # a wrong gradient makes.
        assert row["largest_difference"] == max(
            abs(a - b) for a, b in zip(row["losses"], rows[TORCH]["losses"], strict=True)
        )
        assert row["largest_difference"] < 1e-5
    assert rows["False"]["step_against_saved_input"] == 1.0


def test_the_variants_take_turns_each_round_in_the_other_order(monkeypatch):
    timed = []

    def step(bench, variant):
        timed.append(variant)
        seconds = {"torch.nn": 2.0, "False": 4.0, "True": 3.0, "exact": 5.0, FUSED: 6.0}
        return seconds[variant] * (100 if len(timed) < 6 else 1)

    monkeypatch.setattr(measure.Bench, "timed", step)
    rows = {row["variant"]: row for row in measure.run(TINY, 2, "cpu")["rows"]}
    assert timed == [*MEASURED[::-1], *MEASURED, *MEASURED[::-1]]
    assert {name: row["step_against_saved_input"] for name, row in rows.items()} == {
        "torch.nn": 0.5, "False": 1.0, "True": 0.75, "exact": 1.25, FUSED: 1.5
    }  # fmt: skip
    assert rows["True"]["step"]["upper_us"] == 3e6  # the round to warm up does not count


def test_on_a_gpu_peaks_are_the_allocator_s_and_times_its_events(monkeypatch):
    bench = measure.Bench(TINY, "cpu")
    bench.device = "cuda"
    said = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            said.append("event")

        def synchronize(self):
            said.append("wait")

        def elapsed_time(self, end):
            return 250.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: said.append("reset"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: said.append("peak") or 123)
    step = bench.step
    monkeypatch.setattr(bench, "step", lambda: said.append("step") or step())
    assert bench.alone("exact", 3)["peak_bytes"] == 123
    assert said == ["reset", "step", "step", "peak"]  # the first step, in which bytes are counted, is before the reset
    said.clear()
    assert bench.timed("exact") == 0.25
    assert said == ["event", "step", "event", "wait"]


def test_no_gradient_of_a_variant_is_left_to_the_next():
    bench = measure.Bench(TINY, "cpu")
    first = bench.alone("False", 2)
    bench.alone("exact", 2)
    assert bench.alone("False", 2) == first


def test_a_gpu_without_room_is_an_error_that_names_the_need(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10**9, 10**11))
    with pytest.raises(measure.CapacityError, match=r"^needs 46\.\d GB at least, and cuda has 1\.0 GB: give a smaller"):
        measure.check_fits(prediction.LLAMA, "cuda")

    def full(*arguments):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")

    monkeypatch.setattr(measure, "Bench", full)
    with pytest.raises(measure.CapacityError, match=r"^CUDA out of memory\. Tried to allocate 2\.00 GiB\.$"):
        measure.run(TINY, 1, "cuda")


def test_the_usual_size_is_llama_s_on_a_gpu_and_small_without():
    assert measure.shape("cuda", "rms", "bfloat16", layers=None, hidden=None) == prediction.LLAMA
    small = measure.shape("cpu", "layer", "float16", layers=1, hidden=None)
    assert small == measure.SMALL._replace(layers=1, norm="layer", dtype="float16")
    assert measure.seconds(prediction.LLAMA, 5, "cuda") == 0
    assert measure.seconds(prediction.LLAMA, 5, "cpu") > 3600


def test_switch_leaves_the_model_with_its_own_norms():
    model = torch.nn.Sequential(torch.nn.LayerNorm(4))
    own = model[0]
    Switch(model)
    assert model[0] is own


def test_a_small_model_runs_on_one_thread_and_gives_the_others_back():
    torch.set_num_threads(2)
    with threads(TINY):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with threads(prediction.LLAMA):
        assert torch.get_num_threads() == 2
