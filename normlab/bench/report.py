"""Records as Markdown, for the README: `normlab bench report`. The tables are made in `normlab.bench.compact`."""

from typing import Any

from normlab.bench.compact import family_grid, norm_grid, product_grid
from normlab.bench.tables import WORDS, Grid, grids, notes


def markdown(records: list[dict[str, Any]]) -> str:
    """All records' tables, each with where it comes from, and how all was measured; nothing for no records."""
    methods = dict.fromkeys(f"How: {record['method']}" for record in records)
    return "\n\n".join([*(part for together in _together(records) for part in _section(together)), *methods])


def _together(records: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The records that share a section: products of several sizes on a GPU, and the family's; others have their own."""
    sections: dict[Any, list[dict[str, Any]]] = {}
    for position, record in enumerate(records):
        shared = record["what"] in ("sgemm", "family")
        sections.setdefault((record["what"], record["gpu"]) if shared else position, []).append(record)
    return list(sections.values())


def latest(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of several records of the family, each problem's from the last one that has it."""
    rows = {}
    for record in sorted(records, key=lambda one: one["date"]):
        for row in record["rows"]:
            rows[tuple(row[name] for name in ("norm", "direction", "dtype", "layout")), tuple(row["shape"])] = row
    return list(rows.values())


def _section(records: list[dict[str, Any]]) -> list[str]:
    record = records[0]
    if record["what"] == "family":
        record = {**record, "rows": latest(records)}
    extra = []
    if record["what"] in ("norm", "family"):
        make = norm_grid if record["what"] == "norm" else family_grid
        shown = [make(record, direction) for direction in dict.fromkeys(row["direction"] for row in record["rows"])]
        extra = [text for text in [recomputing(record)] if text]
    elif record["what"] == "sgemm":
        shown = [product_grid(records)]
    else:
        shown = grids(record)
    return [*(text for grid in shown for text in (f"**{grid.title}**", table(grid))), *extra, *map(source, records)]


def recomputing(record: dict[str, Any]) -> str | None:
    """How long the backward from the saved output takes, against that from the saved input; None if not measured."""
    factors = []
    for row in record["rows"]:
        entries = [row["contenders"].get(name, {"status": "absent"}) for name in ("normlab-me", "normlab")]
        if all(entry["status"] == "ok" for entry in entries):
            factors.append(entries[0]["median_us"] / entries[1]["median_us"])
    if not factors:
        return None
    return f"From the saved output the backward takes {min(factors):.2f} to {max(factors):.2f} times as long."


def source(record: dict[str, Any]) -> str:
    """Where the numbers come from, and who is missing."""
    versions = ", ".join(
        f"{name} {record[name]}" for name in ("torch", "triton", "numba", "numba-cuda") if name in record
    )
    copies = [row["copy"]["gb_per_s"] for row in record.get("rows", []) if row.get("copy")]
    ceiling = f"; copy: {min(copies):,.0f} to {max(copies):,.0f} GB/s" if copies else ""
    missing = "".join(f" {note[0].upper()}{note[1:]}." for note in notes(record))
    where = f"{record['date'][:10]}, {record['gpu']}, driver {record['driver']}, {versions}{ceiling}"
    return f"`{record['command']}`, {where}.{missing}"


def table(grid: Grid) -> str:
    """A grid as Markdown: words to the left, numbers to the right."""
    rules = ["---" if name in WORDS else "--:" for name in grid.head]
    lines = [grid.head, rules, *grid.rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
