"""Draw the records of `normlab memory` and `normlab train`."""

from pathlib import Path
from typing import Any

import numpy as np

from normlab.measure.pictures import INK, save, style
from normlab.studies.memory import tables
from normlab.studies.memory.train import WINDOW, smoothed
from normlab.studies.memory.variants import FUSED, TORCH

COLORS = {TORCH: "#4c9be8", "False": INK, "True": "#c9a227", "exact": "#e8590c", FUSED: "#5c940d"}
# Curves that agree lie on each other: the first is drawn the widest, so that all of them are seen.
WIDTHS = {TORCH: 6.0, "False": 4.2, "True": 2.6, "exact": 1.0, FUSED: 0.6}
OTHER_ORDER = "torch.nn, another order"


def draw(record: dict[str, Any], path: Path) -> None:
    """Draw a record into a file that `normlab.measure.pictures.check_suffix` takes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with style(), mpl.rc_context({"axes.titlesize": 9}):
        if record["what"] == "memory":
            figure = Figure(figsize=(12.0, 3.0), layout="constrained")
            _memory(figure.subplots(1, 4), record)
            figure.suptitle(f"{tables.described(record)}, on {tables.where(record)}", fontsize=9)
        else:
            dtypes = tables.dtypes(record)
            figure = Figure(figsize=(8.4, 2.7 * len(dtypes) + 0.5), layout="constrained")
            for line, dtype in zip(figure.subplots(len(dtypes), 2, squeeze=False), dtypes, strict=True):
                _train(line[0], line[1], record, dtype)
        panel = figure.axes[-2 if record["what"] == "train" else -1]
        figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
        save(figure, path)


def _memory(panels: Any, record: dict[str, Any]) -> None:
    """Draw bars of bytes and of times, and the losses; predicted bytes stand for a peak that was not measured."""
    saved, large, time, loss = panels
    rows = record["rows"]
    names = [row["variant"] for row in rows]
    colors = [COLORS[name] for name in names]
    saved.bar(names, [row["saved_bytes"] / 1e6 for row in rows], color=colors, label="_saved")
    saved.set_title("saved for the backward, MB")
    totals, title = [row["peak_bytes"] for row in rows], "peak memory, GB"
    if None in totals:
        totals, title = list(tables.predicted_totals(record).values()), "LLaMA-7B's blocks, predicted: saved, GB"
    large.bar(names, [total / 1e9 for total in totals], color=colors, label="_large")
    large.set_title(title)
    steps = np.array([[row["step"][name] / 1e3 for name in ("median_us", "lower_us", "upper_us")] for row in rows]).T
    median, lower, upper = steps
    time.bar(names, median, color=colors, label="_time")
    time.errorbar(names, median, [median - lower, upper - median], fmt="none", ecolor=INK, capsize=3)
    time.set_title("step, ms")
    for row in rows:
        name = row["variant"]
        loss.plot(row["losses"], label=name, color=COLORS[name], linewidth=WIDTHS[name])
    loss.set_title("loss")
    loss.set_xlabel("step")
    loss.xaxis.get_major_locator().set_params(integer=True)


def _train(loss: Any, difference: Any, record: dict[str, Any], dtype: str) -> None:
    """Draw the losses, and how far they are from torch.nn's."""
    rows = tables.of_dtype(record, dtype)
    reference = smoothed(rows[0]["losses"])
    steps = np.arange(len(reference)) + len(rows[0]["losses"]) - len(reference)
    for row in rows:
        name, curve = row["variant"], smoothed(row["losses"])
        if row["turned"]:
            label = OTHER_ORDER if row is rows[-1] else "_"
            loss.plot([], [], color=INK, linestyle=":", label=label)
            difference.plot(steps, curve - reference, color=INK, linestyle=":", linewidth=1.2)
        else:
            loss.plot(row["losses"], label=name, color=COLORS[name], linewidth=WIDTHS[name])
        if name != TORCH:
            difference.plot(steps, curve - reference, color=COLORS[name], linewidth=0.5 * WIDTHS[name])
    loss.set_title(f"loss, {dtype}")
    difference.set_title(f"smoothed over {WINDOW} steps, less torch.nn's")
    for panel in (loss, difference):
        panel.set_xlabel("step")
        panel.grid(color=INK, alpha=0.25, linewidth=0.5)
