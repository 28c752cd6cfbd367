"""Turn the records of `normlab memory` and `normlab train` into tables for a terminal, and into sentences."""

import math
from typing import Any

from normlab.measure import tables
from normlab.measure.numbers import fixed, megabytes, quartiles
from normlab.measure.tables import NORMS, Grid
from normlab.studies.memory import prediction
from normlab.studies.memory.measure import BASE
from normlab.studies.memory.model import Shape
from normlab.studies.memory.variants import TORCH

REAL = "LLaMA-7B's blocks on a GPU, predicted"


def show(record: dict[str, Any]) -> None:
    """Print a record's tables, then its sentences and its method."""
    if record["what"] == "memory":
        tables.show([measured(record), predicted(record)], [*memory_sentences(record), record["method"]])
    else:
        grids = [trained(record, dtype) for dtype in dtypes(record)]
        tables.show(grids, [*train_sentences(record), record["method"]])


def measured(record: dict[str, Any]) -> Grid:
    """Return a table with a row for each variant: bytes saved, peak, time of a step, losses."""
    base = variant(record["rows"], BASE)
    head = ["who", "saved MB", "predicted", "less than False", "peak MB", "less than False", "step ms (quartiles)",
            "/ False", "loss, first to last", "off torch.nn"]  # fmt: skip
    rows = []
    for row in record["rows"]:
        peak = ["", ""]
        if row["peak_bytes"] is not None:
            peak = [megabytes(row["peak_bytes"]), megabytes(base["peak_bytes"] - row["peak_bytes"])]
        rows.append([
            row["variant"],
            megabytes(row["saved_bytes"]),
            megabytes(row["predicted_bytes"]),
            megabytes(base["saved_bytes"] - row["saved_bytes"]),
            *peak,
            quartiles(row["step"], unit=1e3),
            fixed(row["step_against_saved_input"], 3),
            f"{row['losses'][0]:.4f} to {row['losses'][-1]:.4f}",
            f"{row['largest_difference']:.1e}",
        ])  # fmt: skip
    return Grid(f"{described(record)}, measured on {where(record)}", head, rows)


def predicted(record: dict[str, Any]) -> Grid:
    """Return a table of the bytes that the large model's variants save, with a column for each role of a tensor."""
    saved = predicted_totals(record)
    rows = record["predicted"]["rows"]
    roles = [name for name in rows[0] if name != "variant"]
    head = ["who", "saved MB", "less than False", *roles]
    body = [
        [
            row["variant"],
            megabytes(saved[row["variant"]]),
            megabytes(saved[BASE] - saved[row["variant"]]),
            *(megabytes(row[role]) for role in roles),
        ]
        for row in rows
    ]
    return Grid(f"{REAL}: {described(record['predicted'])}", head, body)


def predicted_totals(record: dict[str, Any]) -> dict[str, int]:
    """Return the bytes that the large model saves, by variant."""
    return {
        row["variant"]: sum(count for role, count in row.items() if role != "variant")
        for row in record["predicted"]["rows"]
    }


def trained(record: dict[str, Any], dtype: str) -> Grid:
    """Return a table with each variant's losses in one dtype, and how far they are from torch.nn's.

    The runs of torch.nn with the passages in another order have `turned`; they only measure what rounding does.
    """
    rounding = by_rounding(record, dtype)
    head = ["who", "first loss", "last loss", "difference", "over rounding's"]
    body = []
    for row in of_dtype(record, dtype):
        if row["turned"]:
            continue
        cells = ["", ""]
        if row["variant"] != TORCH:
            cells = [f"{row['difference']:.1e}", fixed(row["difference"] / rounding, 1) if rounding else ""]
        body.append([row["variant"], fixed(row["losses"][0], 4), fixed(row["losses"][-1], 4), *cells])
    return Grid(f"{described({**record, 'dtype': dtype})}, {record['steps']} steps", head, body)


def memory_sentences(record: dict[str, Any]) -> list[str]:
    """Return sentences on the bytes that the model's norms no longer keep."""
    base = variant(record["rows"], BASE)
    sentences = []
    for name in ("True", "exact"):
        row = variant(record["rows"], name)
        less = base["saved_bytes"] - row["saved_bytes"]
        sentence = f"{name} saves {megabytes(less)} MB less than False, {less / base['saved_bytes']:.0%}"
        if row["peak_bytes"] is not None:
            sentence += f", and the peak is {megabytes(base['peak_bytes'] - row['peak_bytes'])} MB lower"
        sentences.append(f"{sentence}.")
    shape = Shape(**{field: record[field] for field in Shape._fields})
    apart, fused = prediction.moved(shape, fused=False), prediction.moved(shape, fused=True)
    sentences.append(
        f"In a step the blocks' norms and additions move {megabytes(apart)} MB, and {megabytes(fused)} MB where they "
        "are fused, which keeps as much."
    )
    if record["dtype"] == "float64":
        sentences.append("On a GPU attention in float64 keeps more than predicted: it has no fused kernel.")
    if base["peak_bytes"] is None:
        sentences.append("No peak: only a GPU's allocator counts.")
    return sentences


def train_sentences(record: dict[str, Any]) -> list[str]:
    """Return a sentence for each dtype: how far rounding takes torch.nn's losses, and how far the variants' are."""
    sentences = []
    for dtype in dtypes(record):
        rows = [row for row in of_dtype(record, dtype) if row["variant"] != TORCH]
        worst = furthest(rows)
        sentences.append(
            f"{dtype}: rounding alone takes torch.nn {by_rounding(record, dtype):.1e} from itself; normlab's norms are "
            f"off by up to {worst['difference']:.1e} ({worst['variant']})."
        )
    return sentences


def described(record: dict[str, Any]) -> str:
    """Return a line with the model's size and norm, the dtype and the batch."""
    return (
        f"{record['layers']} blocks of hidden {record['hidden']}, {NORMS[record['norm']]}, {record['dtype']}, "
        f"{record['batch']} x {record['sequence']} tokens"
    )


def where(record: dict[str, Any]) -> str:
    """Return the name of the device."""
    return "the CPU" if record["device"] == "cpu" else record["gpu"]


def variant(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return a variant's row."""
    return next(row for row in rows if row["variant"] == name)


def dtypes(record: dict[str, Any]) -> list[str]:
    """Return the dtypes that a record of `normlab train` has."""
    return list(dict.fromkeys(row["dtype"] for row in record["rows"]))


def of_dtype(record: dict[str, Any], dtype: str) -> list[dict[str, Any]]:
    """Return a record's runs in one dtype."""
    return [row for row in record["rows"] if row["dtype"] == dtype]


def by_rounding(record: dict[str, Any], dtype: str) -> float:
    """Return the largest difference between torch.nn's losses and those of its runs in another order."""
    return furthest([row for row in of_dtype(record, dtype) if row["turned"]])["difference"]


def furthest(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the run with the largest difference; NaN is larger than any number."""
    return max(rows, key=lambda row: math.inf if math.isnan(row["difference"]) else row["difference"])
