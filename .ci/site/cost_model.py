"""Draw the cost model beside what was measured, and tabulate its constants and its errors, for docs/speed/model.md."""

import io
from math import exp
from typing import Any

from normlab.bench import predicted
from normlab.bench.plots import OWN
from normlab.kernels import Device, Problem
from normlab.kernels.cost import FITTED, predict
from normlab.measure.files import record
from normlab.measure.pictures import INK, style
from normlab.measure.tables import NORMS

PLACE = "<!-- the site's picture -->"  # in the page
ELEMENTS = 2**27  # as in the record of lengths
POINTS = 70
SHORTEST, LONGEST = 7, 2**18  # columns
LINES = {"multiples of 8 columns": (OWN, "-", 0), "odd numbers of columns": ("#4c9be8", "--", 1)}
SETS = {  # what the table of errors calls a set: record, and the set within it
    "shapes drawn, fitted to": ("cost_h200", "fitted"),
    "shapes of the plan tables, bfloat16, fitted to": ("norm_bfloat16_h200", None),
    "shapes drawn, held out": ("cost_h200", "held out"),
    "shapes of the plan tables, float32, held out": ("norm_float32_h200", None),
    "shapes drawn on another GPU, held out": ("sweep_h100", None),
}
MEANT = {
    "launch": ("µs", "an empty kernel between two events"),
    "latency": ("µs", "from a load to its value while the memory is busy"),
    "attained": ("", "fraction of the data sheet's bandwidth that a long copy reaches"),
    "work": ("ns", "per element and pass on one multiprocessor"),
    "access": ("", "how many passes' work on an element an access to memory is"),
    "sums": ("", "how many times longer partial sums take than their bytes at the data sheet's bandwidth"),
}


def constants() -> tuple[list[str], list[list[str]], set[str]]:
    """Return the head, a row for each constant, and the columns of words."""
    rows = [[name, f"{value:g}", *MEANT[name]] for name, value in FITTED._asdict().items()]
    return ["constant", "value", "unit", "meaning"], rows, {"constant", "unit", "meaning"}


def errors_of(said: str) -> list[float]:
    """Return the errors of one of SETS."""
    name, part = SETS[said]
    return predicted.errors(one for one in predicted.timed(record(name)) if part in (None, one.row.get("set")))


def errors() -> tuple[list[str], list[list[str]], set[str]]:
    """Return the head, a row for each set with the factors that half and nine of ten are within, and what are words."""
    rows = []
    for said, (name, _) in SETS.items():
        found = errors_of(said)
        gpu = record(name)["gpu"].split()[1]
        rows.append([said, gpu, str(len(found)), *(f"{exp(error):.2f}" for error in predicted.median_and_tail(found))])
    return ["what", "GPU", "plans", "half", "nine of ten"], rows, {"what", "GPU"}


def predicted_fraction(direction: str, norm: str, n2: int, device: Device) -> float:
    """Return the fraction of a copy's speed that the model predicts for long runs of bfloat16."""
    operands = Problem(direction, norm, ELEMENTS // n2, n2, "bfloat16").described()
    cost = predict(predicted.plan_of(operands, direction, device), operands, device)
    return cost.of_copy if cost is not None and cost.in_flight is not None else float("nan")


def lengths(odd: int) -> list[int]:
    """Return numbers of columns, about equally far apart on a logarithmic axis."""
    steps = (SHORTEST * (LONGEST / SHORTEST) ** (point / (POINTS - 1)) for point in range(POINTS))
    return sorted({min(LONGEST, max(8, round(step / 8) * 8)) - odd for step in steps})


def panel(axes: Any, direction: str, norm: str, made: dict[str, Any]) -> None:
    """Draw the model's curves and the measured points of one norm and direction."""
    device = predicted.device_of(made)
    for said, (color, style_of_line, odd) in LINES.items():
        columns = lengths(odd)
        heights = [predicted_fraction(direction, norm, n2, device) for n2 in columns]
        axes.plot(columns, heights, style_of_line, color=color, linewidth=1.2, label=f"predicted, {said}")
        rows = [row for row in made["rows"] if (row["direction"], row["norm"]) == (direction, norm)]
        rows = [row for row in rows if row["n2"] % 2 == odd]
        points = [row["n2"] for row in rows], [row["of_copy"] for row in rows]
        axes.plot(*points, "o", color=color, markersize=4, label=f"measured, {'odd' if odd else 'even'}")
    axes.axhline(1.0, color=INK, linewidth=0.8, linestyle=":")
    axes.set(xscale="log", ylim=(0, 1.1), title=f"{NORMS[norm]} {direction}")
    axes.grid(color=INK, alpha=0.25, linewidth=0.5)


def picture() -> str:
    """Return the SVG: a panel for each norm and direction, n2 across, the fraction of a copy's speed up."""
    from matplotlib.figure import Figure

    made = record("lengths_h100")
    with style():
        figure = Figure(figsize=(8.4, 5.6), layout="constrained")
        grid = figure.subplots(2, 2, sharex=True, sharey=True)
        for line, direction in zip(grid, ("forward", "backward"), strict=True):
            for axes, norm in zip(line, NORMS, strict=True):
                panel(axes, direction, norm, made)
        for axes in grid[-1]:
            axes.set_xlabel("n2, columns")
        for axes in grid[:, 0]:
            axes.set_ylabel("of a copy's speed")
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return text.getvalue()


def pages() -> dict[str, str]:
    """Return what the site adds: the picture."""
    return {"speed/model.svg": picture()}


def with_picture(markdown: str) -> str:
    """Return the page with the picture, which exists only in the site."""
    return markdown.replace(PLACE, "![Predicted and measured fraction of a copy over n2](model.svg)")
