"""Draw records of `normlab bench norm`: n2 across, the fraction of a copy's bandwidth up.

The figure is a grid of panels: a line of panels per dtype, a column of panels per direction and norm.
"""

from pathlib import Path
from typing import Any

from normlab.bench.contenders import OURS, RECOMPUTED
from normlab.measure.pictures import INK, check_suffix, save, style
from normlab.measure.tables import NORMS

OWN = "#e8590c"  # of normlab's own curves
COLORS = {  # of the other contenders, by name; "-me" is apex's memory_efficient: the backward from the saved output
    "torch": "#4c9be8",
    "compile": "#2b9e8f",
    "compile-inference": "#8fd0c6",
    "liger": "#b07fd8",
    "quack": "#c9a227",
    "apex": "#7fae4d",
    "apex-me": "#7fae4d",
    "triton": "#d46a9f",
}


def draw(records: list[dict[str, Any]], path: Path) -> None:
    """Draw the records of norms into one file. Only the problems with the largest arrays are drawn.

    records: as `normlab bench` writes them; a record of a norm has a row for each problem.

    Raises:
        ValueError: there is no record of a norm, or the file's name has no suffix of `pictures.SUFFIXES`.
    """
    rows = [row for record in records if record["what"] == "norm" for row in record["rows"]]
    if not rows:
        raise ValueError("a plot needs a record of `normlab bench norm`, and there is none")
    check_suffix(path)
    largest = max(row["n1"] * row["n2"] for row in rows)
    rows = [row for row in rows if row["n1"] * row["n2"] > 0.99 * largest]  # n1 is rounded down
    from matplotlib.figure import Figure  # here, because normlab can do without matplotlib

    columns = list(dict.fromkeys((row["direction"], row["norm"]) for row in rows))
    lines = list(dict.fromkeys(row["dtype"] for row in rows))
    widths = sorted({row["n2"] for row in rows})
    with style():
        figure = Figure(figsize=(3.1 * len(columns) + 0.6, 2.3 * len(lines) + 0.6), layout="constrained")
        axes = figure.subplots(len(lines), len(columns), sharex=True, sharey=True, squeeze=False)
        for line, dtype in zip(axes, lines, strict=True):
            for panel, (direction, norm) in zip(line, columns, strict=True):
                chosen = [
                    row for row in rows if (row["direction"], row["norm"], row["dtype"]) == (direction, norm, dtype)
                ]
                _panel(panel, sorted(chosen, key=lambda row: row["n2"]), widths)
                panel.set_title(f"{NORMS[norm]} {direction}, {dtype}", fontsize=9)
        for panel in axes[-1]:
            panel.set_xlabel("n2, columns")
        for panel in axes[:, 0]:
            panel.set_ylabel("of copy bandwidth")
        # One entry per contender, from all panels. A panel's first line is the dotted one at 1.
        handles = {curve.get_label(): curve for panel in axes.flat for curve in panel.get_lines()[1:]}
        legend = figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=8, frameon=False)
        legend.set_zorder(3)
        save(figure, path)


def _panel(panel: Any, rows: list[dict[str, Any]], widths: list[int]) -> None:
    """Draw a curve for each contender. Where its result was wrong or it could not run, the curve has a gap.

    rows: one dtype, norm and direction, sorted by n2. widths: all n2 of the figure; they stand equally far apart.
    Two records may have rows of the same n2: a curve has a point for each row in which its contender took part.
    """
    panel.axhline(1.0, color=INK, linewidth=0.8, linestyle=":")
    for name in dict.fromkeys(name for row in rows for name in row["contenders"]):
        # A row without any contender makes a gap in every curve.
        own = [row for row in rows if name in row["contenders"] or not row["contenders"]]
        positions = [widths.index(row["n2"]) for row in own]
        heights = [row["contenders"].get(name, {}).get("of_copy", float("nan")) for row in own]
        mine = name in (OURS, RECOMPUTED)
        panel.plot(
            positions,
            heights,
            label=name,
            color=OWN if mine else COLORS.get(name, INK),
            linewidth=2.4 if mine else 1.1,
            linestyle="--" if name.endswith("-me") else "-",
            marker="o",
            markersize=4 if mine else 2.5,
            zorder=3 if mine else 2,
        )
    panel.set_xticks(range(len(widths)), [f"{width:,}" for width in widths], rotation=60)
    panel.set_ylim(0, 1.1)
    panel.grid(color=INK, alpha=0.25, linewidth=0.5)
