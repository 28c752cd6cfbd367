"""Compute the numbers that sentences of README, docs/ and tutorials quote, from the records.

A sentence says `<!--=NAME-->0.95<!--=-->`, where NAME is a key of QUOTED; a reader of the page sees 0.95. `readme.py`
writes the numbers, and tests/test_readme.py fails if one differs.
"""

import sys
from collections.abc import Callable
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

from normlab import oracle
from normlab.bench import records
from normlab.bench.norm import ahead, own
from normlab.course import catalogue
from normlab.kernels import LADDERS, roofline
from normlab.learn import lesson, tutorials
from normlab.measure.files import record
from normlab.measure.numbers import scientific, size
from normlab.measure.tables import NORMS
from normlab.studies.compare import LayerReport, Report
from normlab.studies.compare.measure import Error
from normlab.studies.compare.passes import GRADIENTS, Backward
from normlab.studies.compare.plan import Plan
from normlab.studies.compare.verdict import Verdict, short

TESTS = Path(__file__).parents[2] / "tests"
BESIDE = ("norm_bfloat16_h200", "norm_float16_h200", "norm_float32_h200")  # torch, torch.compile and Liger


@cache
def places() -> list[dict[str, Any]]:
    """Return the problems of the main runs, each with normlab's time and the peers'."""
    return [row for made in records.load(list(BESIDE)) for row in made["rows"]]


def behind() -> list[dict[str, Any]]:
    """Return the problems in which a peer is faster."""
    return [row for row in places() if (ahead(row) or 0) < 1]


def percent_behind(row: dict[str, Any]) -> float:
    """Return by how many percent the best peer is faster."""
    return 100 * (1 / (ahead(row) or 1) - 1)


def recomputing() -> list[tuple[float, dict[str, Any]]]:
    """Return how many percent longer a backward takes from the saved output, the worst problem last."""
    found = []
    for row in places():
        times = row["contenders"]
        if "normlab-me" in times:
            found.append((100 * (times["normlab-me"]["median_us"] / times["normlab"]["median_us"] - 1), row))
    return sorted(found, key=lambda one: one[0])


def problem(row: dict[str, Any]) -> str:
    """Return a problem in words."""
    return f"{NORMS[row['norm']]} {row['dtype']} at {row['n2']:,} columns"


def of_copy(direction: str, n2: int, dtype: str = "bfloat16", norm: str = "layer") -> str:
    """Return normlab's fraction of the copy bandwidth in the main runs."""
    wanted = {"direction": direction, "n2": n2, "dtype": dtype, "norm": norm}
    (row,) = (row for row in places() if wanted.items() <= row.items())
    entry = own(row)
    assert entry
    return f"{entry['of_copy']:.2f}"


def step(ladder: str, name: str) -> str:
    """Return a step's fraction of the copy bandwidth, from the record of its ladder."""
    (entry,) = (one for one in record(f"ladder_{ladder}_h200")["steps"] if one["step"] == name)
    return f"{entry['of_copy']:.2f}"


def loss(name: str, variant: str, index: int) -> float:
    """Return a loss of a run in float32."""
    runs = record(name)["rows"]
    wanted = {"variant": variant, "dtype": "float32", "turned": 0}
    return next(run["losses"][index] for run in runs if wanted.items() <= run.items())


def difference(name: str, dtype: str, *variants: str) -> str:
    """Return the largest difference of the smoothed losses from torch.nn's."""
    runs = record(name)["rows"]
    return scientific(max(run["difference"] for run in runs if run["dtype"] == dtype and run["variant"] in variants))


def compared(layer: str = "block5_output") -> dict[str, Any]:
    """Return a layer of `normlab compare`, float32."""
    return next(one for one in record("compare_float32")["layers"] if one["name"] == layer)


def gradient_error(path: str) -> float:
    """Return grad_input's relative error in the layer with weights near 0."""
    return compared()[path]["grad_input"]["relative"]


def kept(path: str) -> int:
    """Return how many bytes a path keeps in the layer with weights near 0, output included."""
    return compared()[path]["bytes_kept_with_output"]


@cache
def report() -> Report:
    """Return what `normlab compare` found in float32, as it was when the record was made."""
    made, layers = record("compare_float32"), []
    for one in made["layers"]:
        found = {"output": Error(**one["output"]), "verdict": Verdict(**one["verdict"])}
        for path in ("saved_input", "recomputed", "exact"):
            found[path] = Backward(**one[path] | {name: Error(**one[path][name]) for name in GRADIENTS})
        layers.append(LayerReport(**one | found))
    return Report(Plan(**made["plan"]), layers, made["seconds"])


def verdict() -> str:
    """Return the line that `normlab compare` prints on the layer with weights near 0."""
    (layer,) = (one for one in report().layers if one.name == "block5_output")
    backwards = layer.saved_input, layer.recomputed, layer.exact
    return f"{layer.name}: {short(layer.verdict, *backwards, oracle.unit_roundoff('float32'))}"


def planted() -> str:
    """Return how many bugs the tests plant."""
    sys.path.insert(0, str(TESTS))
    from sim.planted import PLANTED

    sys.path.remove(str(TESTS))
    return str(len(PLANTED))


def found_by_sanitizers() -> str:
    """Return how many planted bugs at least one of compute-sanitizer's tools found."""
    bugs = record("sanitizers_h200")["bugs"].values()
    tools = ("racecheck", "memcheck", "initcheck", "synccheck")
    return str(sum(any(bug[tool]["verdict"] == "found" for tool in tools) for bug in bugs))


def slower(step: str, other: str) -> str:
    """Return by how many percent a step of the product is slower than another one, from the least to the most."""
    found = []
    for one in (made for made in records.load([]) if made["what"] == "sgemm"):
        speeds = {entry["step"]: entry["tflops"] for entry in one["steps"]}
        found.append(round(100 * (1 - speeds[step] / speeds[other])))
    return f"{min(found)} to {max(found)}"


def copy_of_data_sheet() -> str:
    """Return what fraction of the data sheet's bandwidth a copy reaches in the main runs, in percent."""
    return f"{100 * max(row['copy']['gb_per_s'] for row in places()) * 1e9 / roofline.H200.bandwidth:.0f}"


def times(ladder: str, step_name: str, other: str) -> str:
    """Return how many times as fast a step of a ladder is as another one, for float32, as its file says."""
    found = {one.name: lesson.measured(one) for one in LADDERS[ladder]}
    return f"{found[step_name][1] / found[other][1]:.0f}"


def uncounted() -> str:
    """Return the bytes that the model of memory leaves out on a GPU."""
    (found,) = {row["saved_bytes"] - row["predicted_bytes"] for row in record("memory_h200")["rows"]}
    return str(found)


def llama(norms: str, model: str = "Llama", gpu: str = "h100", place: str = "compiled") -> dict:
    """Return the row of a decoder's training step with one kind of norms."""
    rows = record(f"llama_{gpu}")["rows"]
    (found,) = (row for row in rows if (row["model"], row["norms"], row["place"]) == (model, norms, place))
    return found


def by_operators() -> str:
    """Return by how many milliseconds the compiler's kernels and normlab's take longer than the compiler's alone."""
    kernels = [llama(norms)["kernels"] for norms in ("torch.nn", "exact fused")]
    first, second = (sum(one.get(kind, 0.0) for kind in ("compiler", "normlab")) for one in kernels)
    return f"{second - first:.1f}"


def layer_norm_of(n2: int) -> str:
    """Return the speed of LayerNorm forward of n2 columns of bfloat16, as a fraction of a copy's, on an H100."""
    rows = record("lengths_h100")["rows"]
    (found,) = (row for row in rows if (row["norm"], row["direction"], row["n2"]) == ("layer", "forward", n2))
    return f"{found['of_copy']:.2f}"


QUOTED: dict[str, Callable[[], str]] = {
    "best forward": lambda: of_copy("forward", 4096),
    "best backward": lambda: of_copy("backward", 4096),
    "best backward recomputing": lambda: f"{lesson.recorded('layer', 'backward', 4096, 'bfloat16', 'normlab-me'):.2f}",
    "copy of the data sheet": copy_of_data_sheet,
    "block order slower": lambda: slower("block_order", "double_buffer"),
    "second step of the forward": lambda: times("forward", "block_tree", "thread_per_row"),
    "odd columns": lambda: layer_norm_of(333),
    "more odd columns": lambda: layer_norm_of(5001),
    "uncounted bytes": uncounted,
    "step by formulas": lambda: f"{llama('True formulas')['ratio']:.2f}",
    "step by operators": lambda: f"{llama('exact fused')['ratio']:.2f}",
    "milliseconds of operators": by_operators,
    "step by formulas again": lambda: f"{llama('True formulas', 'Llama', 'again_h100')['ratio']:.2f}",
    "formulas of a Qwen3": lambda: f"{llama('True formulas', 'Qwen3', 'again_h100')['ratio']:.2f}",
    "formulas of a Gemma": lambda: f"{llama('True formulas', 'Gemma', 'again_h100')['ratio']:.2f}",
    "eager fused Llama": lambda: f"{llama('exact fused', 'Llama', 'again_h100', 'eager')['ratio']:.2f}",
    "h200 formulas of a Llama": lambda: f"{llama('True formulas', 'Llama', 'h200')['ratio']:.2f}",
    "h200 formulas of a Qwen3": lambda: f"{llama('True formulas', 'Qwen3', 'h200')['ratio']:.2f}",
    "h200 operators of a Gemma": lambda: f"{llama('exact', 'Gemma', 'h200', 'eager')['ratio']:.2f}",
    "h200 fused Gemma": lambda: f"{llama('exact fused', 'Gemma', 'h200', 'eager')['ratio']:.2f}",
    "h200 compiled Gemma": lambda: f"{llama('exact', 'Gemma', 'h200')['ratio']:.2f}",
    "h200 compiled fused Gemma": lambda: f"{llama('exact fused', 'Gemma', 'h200')['ratio']:.2f}",
    "tutorials": lambda: str(len(tutorials.every())),
    "exercises": lambda: str(len(catalogue.FILES)),
    "places": lambda: str(len(places())),
    "places ahead": lambda: str(len(places()) - len(behind())),
    "places behind": lambda: str(len(behind())),
    "where behind": lambda: " and ".join(sorted({f"{NORMS[row['norm']]} {row['direction']}" for row in behind()})),
    "least behind": lambda: f"{min(map(percent_behind, behind())):.2f}",
    "most behind": lambda: f"{max(map(percent_behind, behind())):.2f}",
    "recompute worst": lambda: f"{recomputing()[-1][0]:.0f}",
    "recompute worst where": lambda: problem(recomputing()[-1][1]),
    "recompute worst but one": lambda: str(ceil(recomputing()[-2][0])),
    "launches alike": lambda: str(
        sum(one["agrees"] and not one["fewer"] for one in record("counters_h200")["launches"])
    ),
    "launches": lambda: str(len(record("counters_h200")["launches"])),
    "planted": planted,
    "planted on a GPU": lambda: str(len(record("sanitizers_h200")["bugs"])),
    "sanitizers found": found_by_sanitizers,
    "error of recomputing": lambda: scientific(gradient_error("recomputed")),
    "error of the exact mode": lambda: scientific(gradient_error("exact")),
    "verdict": verdict,
    "columns": lambda: str(compared()["columns"]),
    "kept columns": lambda: str(compared()["kept_columns"]),
    "exact keeps": lambda: size(kept("exact") - kept("recomputed")),
    "input keeps": lambda: size(kept("saved_input")),
    "largest error": lambda: f"{max(row['contenders']['normlab']['error_over_bound'] for row in places()):.3f}",
    "train torch float32": lambda: difference("train_cpu", "float32", "torch.nn"),
    "train normlab float32": lambda: difference("train_cpu", "float32", "False", "True", "exact"),
    "train first": lambda: f"{loss('train_cpu', 'torch.nn', 0):.2f}",
    "train last": lambda: f"{loss('train_cpu', 'torch.nn', -1):.2f}",
    "train h200 torch float32": lambda: difference("train_h200", "float32", "torch.nn"),
    "train h200 torch bfloat16": lambda: difference("train_h200", "bfloat16", "torch.nn"),
    "train h200 normlab float32": lambda: difference("train_h200", "float32", "False", "True", "exact"),
    "train h200 normlab bfloat16": lambda: difference("train_h200", "bfloat16", "False", "True", "exact"),
    "train zero torch": lambda: f"{loss('train_zero_cpu', 'torch.nn', -1):.4f}",
    "train zero difference": lambda: difference("train_zero_cpu", "float32", "False", "exact"),
    "train zero true": lambda: f"{loss('train_zero_cpu', 'True', -1):.4f}",
}
