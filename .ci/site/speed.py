"""Make a page for each machine that something was measured on: every record, as tables and plots, with its command."""

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from normlab.bench import plots, records, report
from normlab.measure import files
from normlab.measure.pictures import INK, style
from normlab.measure.tables import NORMS, Grid, markdown

Record = dict[str, Any]
TOOLS = ("racecheck", "memcheck", "initcheck", "synccheck", "normlab")
OTHERS: dict[str, tuple[str, str, dict[str, str]]] = {  # by a name's first word: title, list, and what of each entry
    "lengths": (
        "Rows of lengths between those of the plan tables, in bfloat16",
        "rows",
        {"direction": "direction", "norm": "norm", "columns": "n2", "of a copy": "of_copy", "before": "before"},
    ),
    "sweep": (
        "Shapes drawn at random",
        "rows",
        {name: name for name in ("direction", "norm", "dtype", "n1", "n2")}
        | {f"{name} us": f"contenders.{name}.median_us" for name in ("normlab", "torch", "compile", "liger")},
    ),
    "cost": (
        "Shapes drawn at random, normlab alone: what the cost model is fitted to, and held against",
        "rows",
        {name: name for name in ("set", "direction", "norm", "dtype", "n1", "n2")}
        | {"us": "contenders.normlab.median_us", "output saved, us": "contenders.normlab-me.median_us"},
    ),
    "modules": (
        "Modules in PyTorch: a forward and a backward",
        "rows",
        {name: name for name in ("norm", "dtype", "module")}
        | {"GPU us": "device.median_us", "host us": "host.median_us"},
    ),
    "distributed": (
        "Norms over two GPUs: a forward and a backward",
        "rows",
        {"norm": "norm", "shape": "shape", "dtype": "dtype", "by": "contender", "GPU us": "device_us"}
        | {"with the host us": "us", "bytes sent": "sent"},
    ),
    "extras": (
        "Norms with a residual, a gate, or parameters per sample",
        "rows",
        {"direction": "direction", "norm": "norm", "shape": "shape", "by": "contender"}
        | {"us": "us", "of a copy": "of_copy"},
    ),
    "llama": (
        "A training step of a decoder",
        "rows",
        {name: name for name in ("model", "place", "norms", "ms")}
        | {"of the first": "ratio", "peak bytes": "peak", "compiler's ms": "kernels.compiler"}
        | {"normlab's ms": "kernels.normlab", "products' ms": "kernels.products"},
    ),
    "memory": (
        "Memory that a model keeps",
        "rows",
        {"norms": "variant", "saved bytes": "saved_bytes", "predicted": "predicted_bytes", "peak bytes": "peak_bytes"},
    ),
    "train": (
        "Training: the largest difference of the losses from torch.nn's",
        "rows",
        {"norms": "variant", "dtype": "dtype", "order of the sums": "turned", "difference": "difference"},
    ),
    "compare": (
        "Errors of grad_input on a real model",
        "layers",
        {"layer": "name"}
        | {path: f"{path.replace(' ', '_')}.grad_input.relative" for path in ("saved input", "recomputed", "exact")},
    ),
    "apex": (
        "Errors of grad_input of apex's own kernels",
        "rows",
        {"dtype": "dtype", "saved input": "saved_input", "recomputed": "recomputed"},
    ),
    "counters": (
        "Counters of Nsight Compute beside those of the simulator",
        "launches",
        {"launch": "name", "grid": "grid", "block": "block", "all counters agree": "agrees"},
    ),
    "l2": (
        "What the L2 cache gives again, in the matrix product",
        "rows",
        {"step": "step", "size": "size", "hit": "l2_hit", "expected": "expected_l2_hit", "waves": "waves"},
    ),
    "profile": (
        "Profiles of Nsight Compute",
        "launches",
        {name: name for name in ("direction", "norm", "dtype", "n2", "saved")}
        | {name: name for name in ("microseconds", "memory %", "issue %", "shared memory %", "registers")},
    ),
    "sanitizers": (
        "Planted bugs, and the tools that find them",
        "bugs",
        {"bug": "name", "kind": "kind"} | {tool: f"{tool}.verdict" for tool in TOOLS},
    ),
}
WORDS = {
    "by",
    "set",
    "shape",
    "norm",
    "norms",
    "dtype",
    "module",
    "layer",
    "launch",
    "step",
    "direction",
    "saved",
    "bug",
    "kind",
    *TOOLS,
}


def pages() -> dict[str, str]:
    """Return a page for each GPU, and one for what needs none, with their pictures."""
    machines: dict[str, dict[str, Record]] = {}
    for name in files.known():
        record = files.record(name)
        if record.get("command"):
            record["command"] = re.sub(r"/(?:root/out|work/main|tmp/t)/", "", record["command"])
        machines.setdefault(machine(record), {})[name] = record
    return {path: text for gpu, own in machines.items() for path, text in machine_page(gpu, own).items()}


def links() -> str:
    """Return links to the pages of all machines, for the page before them."""
    names = sorted({machine(files.record(name)) for name in files.known()}, reverse=True)
    return "\n".join(["", *(f"- [All records: {gpu}]({gpu.lower()}.md)" for gpu in names)])


def machine(record: Record) -> str:
    """Return a GPU's short name, such as "H200"; "CPU" for what was measured or simulated without one."""
    name = record.get("gpu") or record.get("gpu, driver") or "unknown"
    found = re.search(r"NVIDIA (\w+)", name)
    return found[1] if found else "CPU"


def machine_page(gpu: str, own: dict[str, Record]) -> dict[str, str]:
    """Return the page of a machine's records, and its pictures."""
    slug = gpu.lower()
    where = "without a GPU: on a CPU, and in the simulator" if gpu == "CPU" else f"on an NVIDIA {gpu}"
    pictures: dict[str, str] = {}
    parts = [
        f"# {gpu}: all records",
        f"Everything that was measured {where}, each with the command that measured it. The files are in "
        "`normlab/bench/records/`. [How it was measured](index.md).",
    ]
    for number, (title, body, picture) in enumerate(sections(own), start=1):
        parts.append(f"## {title}")
        if picture:
            path = f"speed/{slug}-{number}.svg"
            pictures[path] = picture
            parts.append(f"![{title}, {gpu}]({Path(path).name})")
        parts.append(body)
    return {f"speed/{slug}.md": "\n\n".join(parts), **pictures}


def sections(own: dict[str, Record]) -> Iterator[tuple[str, str, str]]:
    """Yield title, text and picture (or "") of each section of a machine's page."""
    benched = [record for record in own.values() if record.get("what") in records.KINDS]
    for norm, title in NORMS.items():
        found = [of_norm(record, norm) for record in benched if record["what"] == "norm"]
        if found := [record for record in found if record["rows"]]:
            yield f"{title} speed", norm_tables(found), drawn(lambda path, found=found: plots.draw(found, path))
    for title, kind, draw in (
        ("Ladders of norms, step by step", "ladder", ladder_bars),
        ("Matrix product (SGEMM) speed", "sgemm", product_bars),
        ("Batch, instance and group norm speed", "family", None),
        ("Host time of a call, and a process's first call", "host", None),
    ):
        if found := [record for record in benched if record["what"] == kind]:
            yield title, report.markdown(found), draw(found) if draw else ""
    for word, (title, entries, columns) in OTHERS.items():
        if found := {name: record for name, record in own.items() if re.split("_", name)[0] == word}:
            tables = [f"{table(record[entries], columns)}\n\n{source(name, record)}" for name, record in found.items()]
            yield title, "\n\n".join(tables), ""


def of_norm(record: Record, norm: str) -> Record:
    """Return a record of norms with the rows of one norm only."""
    return {**record, "rows": [row for row in record["rows"] if row["norm"] == norm]}


def norm_tables(found: list[Record]) -> str:
    """Return a table for each direction of records with the same peers and shapes, and below it their sources."""
    largest = max(row["n1"] * row["n2"] for record in found for row in record["rows"])
    together: dict[Any, list[Record]] = {}
    for record in found:
        shapes = {row["n1"] * row["n2"] > 0.99 * largest for row in record["rows"]}  # n1 is rounded
        together.setdefault((*sorted(shapes), "quack" in record["command"]), []).append(record)
    parts = []
    for own in together.values():
        rows = sorted((row for record in own for row in record["rows"]), key=lambda row: (row["n2"], row["n1"]))
        for direction in dict.fromkeys(row["direction"] for row in rows):
            grid = report.norm_grid([row for row in rows if row["direction"] == direction], direction)
            parts += [f"**{grid.title}**", markdown(grid)]
        parts += map(report.source, own)
    return "\n\n".join([*parts, f"How: {found[0]['method']}"])


def table(entries: Any, columns: dict[str, str]) -> str:
    """Return a list of a record, or a dictionary by name, as a table."""
    rows = [{"name": name, **entry} for name, entry in entries.items()] if isinstance(entries, dict) else entries
    lines = [[cell(row, path) for path in columns.values()] for row in rows]
    kept = [place for place in range(len(columns)) if any(line[place] for line in lines)]
    head, *body = ([line[place] for place in kept] for line in [list(columns), *lines])
    return markdown(Grid("", head, body), WORDS)


def cell(row: Record, path: str) -> str:
    """Return what stands at a path such as "host.median_us", as a table's cell; nothing where there is nothing."""
    value: Any = row
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value or "").removeprefix("torch.")


def source(name: str, record: Record) -> str:
    """Return the command, the date and the versions of a record."""
    versions = ", ".join(f"{what} {record[what]}" for what in report.VERSIONS if what in record)
    command = f"`{record['command']}`" if record.get("command") else record.get("source", "")
    return f"Record `{name}`: {command}, {record['date'][:10]}, {versions}. {record.get('method', '')}"


def drawn(draw: Callable[[Path], None]) -> str:
    """Return the SVG that a function draws into a file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "picture.svg"
        draw(path)
        return path.read_text(encoding="utf-8")


def ladder_bars(found: list[Record]) -> str:
    """Return a plot of each step's fraction of the copy bandwidth, a panel for each ladder."""
    panels = [
        (f"{NORMS[one['norm']]} {one['direction']}, {one['dtype']}, n2 = {one['n2']:,}", steps(one, "of_copy"), 1.0)
        for one in found
    ]
    return bars(panels, "fraction of the copy bandwidth")


def product_bars(found: list[Record]) -> str:
    """Return a plot of each step's TFLOP/s in the largest product; the line is cuBLAS."""
    largest = max(found, key=lambda one: one["m"] * one["n"] * one["k"])
    panel = (f"{report.size(largest)}; the line: cuBLAS", steps(largest, "tflops"), largest["cublas"]["tflops"])
    return bars([panel], "TFLOP/s, float32")


def steps(record: Record, what: str) -> dict[str, float]:
    """Return a number of each step of a ladder that was measured."""
    return {entry["step"]: entry[what] for entry in record["steps"] if entry["status"] == "ok"}


def bars(panels: list[tuple[str, dict[str, float], float]], label: str) -> str:
    """Return an SVG of horizontal bars, a panel for each title; each has a line at a value to be compared with."""
    from matplotlib.figure import Figure

    with style():
        heights = [len(values) for _, values, _ in panels]
        figure = Figure(figsize=(6.2, 0.3 * sum(heights) + 0.8 * len(panels)), layout="constrained")
        axes = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
        for panel, (title, values, mark) in zip(axes, panels, strict=True):
            drawn_bars = panel.barh(list(values), list(values.values()), color=plots.OWN)
            panel.bar_label(drawn_bars, fmt="{:.2f}" if mark == 1 else "{:.1f}", padding=3)
            panel.axvline(mark, color=INK, linewidth=0.8, linestyle=":")
            panel.set(title=title, xlim=(0, 1.15 * max(mark, *values.values())))
            panel.invert_yaxis()
        axes[-1].set_xlabel(label)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return text.getvalue()
