"""Show the answer of `normlab compare`: a line per layer; or one table, what its columns mean, sentences; or JSON.

Called by `normlab.cli`; takes a `compare.Report`. The text is ASCII except for names, for pipes that take no more.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from normlab import __version__, oracle
from normlab.measure.numbers import fixed, scientific, size
from normlab.measure.tables import NORMS, print_stripped
from normlab.studies.compare import AT_RISK, LayerReport, Report
from normlab.studies.compare.measure import Error
from normlab.studies.compare.verdict import short

RULE = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)  # one line below the header
WIDTH = 80  # columns of the table with the errors over their bounds; a narrower terminal gets the errors alone


def brief(report: Report, console: Console) -> None:
    """Print a line for each layer, the verdict first, and how one sees more."""
    roundoff = oracle.unit_roundoff(report.plan.dtype)
    shared, own = _notes(report)
    lines = []
    for layer, notes in zip(report.layers, own, strict=True):
        said = short(layer.verdict, layer.saved_input, layer.recomputed, layer.exact, roundoff)
        lines.append(Text.assemble((f"{layer.name}: ", "bold"), (said, _style(layer))))
        lines += [Text(f"  {note}", style="dim") for note in notes]
    below = [_ran(report), *shared, "normlab compare --details shows every error, bound and byte."]
    print_stripped(Group(*lines, Text(), *(Text(line, style="dim") for line in below)), console)


def show(report: Report, console: Console) -> None:
    """Print everything."""
    parts = heading(report), Text(), table(report, console.width), Text(), legend(report), Text(), verdicts(report)
    print_stripped(Group(*parts), console)


def _ran(report: Report) -> str:
    """Return what ran, and where."""
    engine = "the GPU" if report.plan.engine == "gpu" else "normlab's simulator"
    return f"{NORMS[report.plan.norm]} in {report.plan.dtype}, on {engine}, in {report.seconds:.1f} s"


def _style(layer: LayerReport) -> str:
    return "green" if layer.verdict.kind == "as_good" else "bold red"


def heading(report: Report) -> RenderableType:
    """Return what ran, on which engine, by which kernels, and the notes that hold for all layers."""
    plan = report.plan
    lines = [
        _ran(report),
        f"forward step {plan.forward}, backward step {plan.backward}",
        *_notes(report)[0],
    ]
    return Text("\n".join(lines))


def _notes(report: Report) -> tuple[list[str], list[list[str]]]:
    """Return the notes that all layers share, and each layer's own."""
    every = [
        [f"{layer.rows:,} of {layer.rows_total:,} rows, {layer.columns:,} columns, eps {layer.eps:.2g}", *layer.notes]
        for layer in report.layers
    ]
    shared = [note for note in every[0] if all(note in notes for notes in every)]
    return shared, [[note for note in notes if note not in shared] for notes in every]


def table(report: Report, width: int) -> Table:
    """Return up to nine rows for each layer; for each path an error, and where there is room its ratio to the bound."""
    ratios = width >= WIDTH
    grid = Table(box=RULE, padding=0, show_edge=False)
    grid.add_column("", min_width=20, max_width=20, overflow="fold")
    for path, color in (("saved input", "cyan"), ("recomputed", "magenta"), ("exact", "green")):
        for header, needs in ((f"{path}\nerror", 12 if not ratios else 11), *([("\n/bound", 7)] if ratios else [])):
            grid.add_column(Text(header, justify="right", style=color), justify="right", no_wrap=True, min_width=needs)
    for layer in report.layers:
        for row in _rows(layer):
            grid.add_row(*(row if ratios else [row[0], *row[1::2]]))
        grid.add_section()
    return grid


def _rows(layer: LayerReport) -> Iterator[Sequence[str | Text]]:
    """Yield a layer's rows: a name, then for each path a value and its ratio to the bound."""
    paths = layer.saved_input, layer.recomputed, layer.exact
    yield [Text(layer.name, style="bold"), *[""] * 6]
    yield ["  output", *_cells(layer.output), "same", "", "same", ""]
    for name in layer.saved_input.gradients:
        yield [f"  {name}", *(cell for path in paths for cell in _cells(path.gradients[name]))]
    for name, cells in {
        "kept by the norm": [size(path.bytes_kept) for path in paths],
        "kept, with output": [size(path.bytes_kept_with_output) for path in paths],
        "smallest |gamma|": ["", scientific(layer.smallest_gamma), ""],
        "channels at risk": ["", f"{layer.channels_at_risk}/{layer.columns}", ""],
        "kept columns": ["", "", f"{layer.kept_columns}/{layer.columns}"],
    }.items():
        yield [f"  {name}", *(text for cell in cells for text in (cell, ""))]


def _cells(error: Error) -> tuple[Text, Text]:
    bad = "bold red" if error.not_finite else ""
    ratio = Text(bound_ratio(error), style="" if error.bound_ratio <= 1 else "bold red")
    return Text(scientific(error.relative), style=bad), ratio


def bound_ratio(error: Error) -> str:
    """Return error over bound; "none" where no value has a finite bound."""
    if error.unbounded == error.size:
        return "none"
    return fixed(error.bound_ratio, 3) if error.bound_ratio < 100 else scientific(error.bound_ratio)


def legend(report: Report) -> RenderableType:
    """Return what the columns and rows mean."""
    meanings = {
        "error": "norm of (kernel - truth) over norm of truth, over the whole array; the truth is float64, "
        f"from the same {report.plan.dtype} inputs",
        "/bound": "the largest |kernel - truth| over its a-priori bound; a right kernel stays within 1",
        "exact": "recomputing, but for the kept columns: their normalised values are kept beside the output. Where no "
        "column needs it, this is recomputing, and not run twice",
        "kept": "bytes that the backward needs from the forward. Recomputing reads the output, which the next layer "
        "mostly keeps anyway; the norm itself then keeps no more than its statistics",
        "at risk": f"channels whose recomputed grad_input has a bound over {AT_RISK:g} times that from the saved input",
    }
    grid = Table.grid(padding=(0, 2))
    for name, meaning in meanings.items():
        grid.add_row(Text(name, style="dim"), Text(meaning, style="dim"))
    return grid


def verdicts(report: Report) -> RenderableType:
    """Return a sentence and the notes of each layer."""
    parts: list[RenderableType] = []
    for layer, notes in zip(report.layers, _notes(report)[1], strict=True):
        parts.append(Text.assemble((f"{layer.name}: ", "bold"), (layer.verdict.sentence, _style(layer))))
        parts += [Padding(Text(note, style="dim"), (0, 0, 0, 2)) for note in notes]
    return Group(*parts)


def as_json(report: Report) -> str:
    """Return everything as JSON; NaN and infinity, which JSON does not have, are null."""
    whole = {"normlab": __version__, **asdict(report), "within_bounds": report.within_bounds}
    return json.dumps(_finite(whole), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
