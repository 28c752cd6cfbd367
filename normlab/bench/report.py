"""Turn the records of `normlab bench` into Markdown tables of few columns, with the source of each record.

`normlab.bench.tables` shows all columns of a record in a terminal.
"""

from collections.abc import Callable, Hashable
from typing import Any

from normlab.bench.norm import ahead, best_peer, by_recomputing, own
from normlab.bench.tables import UNMEASURED, grids, notes
from normlab.measure.numbers import fixed
from normlab.measure.tables import NORMS, Grid
from normlab.measure.tables import markdown as table

Row = dict[str, Any]
MISSING = "wrong or unable"
VERSIONS = ("torch", "triton", "numba", "numba-cuda")


def markdown(records: list[dict[str, Any]]) -> str:
    """Return the records' tables with their sources, then the methods; "" for no records.

    Products of several sizes on one GPU share a table, and so do the family's records.
    """
    sections: dict[Hashable, list[dict[str, Any]]] = {}
    for position, record in enumerate(records):
        shared = record["what"] in ("sgemm", "family")
        sections.setdefault((record["what"], record["gpu"]) if shared else position, []).append(record)
    parts = [part for together in sections.values() for part in _section(together)]
    return "\n\n".join([*parts, *dict.fromkeys(f"How: {record['method']}" for record in records)])


def _section(records: list[dict[str, Any]]) -> list[str]:
    """Return the titles, tables and sources of records of one kind; `norm_grid` and others make the tables."""
    what = records[0]["what"]
    if what == "sgemm":
        shown = [product_grid(records)]
    elif what in ("norm", "family"):
        # in the order of dates, because `_pivot` keeps the last row of a problem that was measured again
        rows = [row for record in sorted(records, key=lambda one: one["date"]) for row in record["rows"]]
        make = norm_grid if what == "norm" else family_grid
        directions = dict.fromkeys(row["direction"] for row in rows)
        shown = [make([row for row in rows if row["direction"] == direction], direction) for direction in directions]
    else:
        shown = grids(records[0])
    parts = [text for grid in shown for text in (f"**{grid.title}**", table(grid))]
    return [*parts, *recomputing(records[0]), *map(source, records)]


def norm_grid(rows: list[dict[str, Any]], direction: str) -> Grid:
    """Return a table with a line for each shape and a column for each norm and dtype; cells by `beside_best_peer`."""
    elements = [row["n1"] * row["n2"] for row in rows]
    one_size = min(elements) > 0.99 * max(elements)  # not equal: n1 = elements / n2 is rounded

    def shape(row: Row) -> tuple[str]:
        return (f"{row['n2']:,}" if one_size else f"{row['n1']:,} × {row['n2']:,}",)

    columns, lines = _pivot(rows, shape, lambda row: f"{NORMS[row['norm']]} {row['dtype']}", beside_best_peer)
    title = f"{direction.capitalize()}: fraction of the copy bandwidth, normlab / best peer"
    return Grid(title, ["n2" if one_size else "n1 × n2", *columns], lines)


def beside_best_peer(row: Row) -> str:
    """Return normlab's fraction of the copy bandwidth and the best peer's, with the faster one bold."""
    if "status" in row:
        return UNMEASURED
    entry, best = own(row), best_peer(row)
    mine = fixed(entry["of_copy"]) if entry else MISSING
    if best is None:
        return mine
    theirs = fixed(row["contenders"][best]["of_copy"])
    if (ahead(row) or 0) >= 1:
        return f"**{mine}** / {theirs} {best}"
    return f"{mine} / **{theirs}** {best}"


def family_grid(rows: list[dict[str, Any]], direction: str) -> Grid:
    """Return a table with a line for each shape, dtype and layout, a column for each norm; cells by `beside_torch`."""

    def problem(row: Row) -> tuple[str, str, str]:
        return " × ".join(map(str, row["shape"])), row["dtype"], row["layout"]

    columns, lines = _pivot(rows, problem, lambda row: f"{row['norm']} norm", beside_torch)
    title = f"The family's {direction}: fraction of the copy bandwidth (times torch's speed)"
    return Grid(title, ["shape", "dtype", "layout", *columns], lines)


def beside_torch(row: Row) -> str:
    """Return normlab's fraction of the copy bandwidth, and its speed over torch's, which is bold from 1 on."""
    if "status" in row:
        return UNMEASURED
    entry, factor = own(row), ahead(row)
    if entry is None:
        return MISSING
    if factor is None:
        return fixed(entry["of_copy"])
    times = f"{factor:.2f}×"
    return f"{entry['of_copy']:.2f} ({f'**{times}**' if factor >= 1 else times})"


def product_grid(records: list[dict[str, Any]]) -> Grid:
    """Return a table with a line for each step of the SGEMM ladder and for cuBLAS, and a column for each size."""
    entries = [
        {**entry, "name": f"`{entry['step']}`", "size": size(record)} for record in records for entry in record["steps"]
    ]
    entries += [{**record["cublas"], "name": "cuBLAS", "size": size(record)} for record in records]
    columns, lines = _pivot(entries, lambda entry: (entry["name"],), lambda entry: entry["size"], speed)
    title = f"SGEMM on {records[0]['gpu']}: TFLOP/s / of cuBLAS / of the multiply-adds' peak"
    return Grid(title, ["step", *columns], lines)


def speed(entry: dict[str, Any]) -> str:
    """Return TFLOP/s and its fractions of cuBLAS and of the peak, "-" for an unknown one; or why there are none."""
    if entry["status"] != "ok":
        return entry["status"]
    return f"{entry['tflops']:.1f} / {fixed(entry['of_cublas'], 2, '-')} / {fixed(entry['of_peak'], 2, '-')}"


def size(record: dict[str, Any]) -> str:
    """Return "M × N × K" of a product, or "M³" if its sides are equal."""
    sides = [f"{record[side]:,}" for side in "mnk"]
    return f"{sides[0]}³" if len(set(sides)) == 1 else " × ".join(sides)


def _pivot(
    rows: list[Row], line: Callable[[Row], tuple[str, ...]], column: Callable[[Row], str], cell: Callable[[Row], str]
) -> tuple[list[str], list[list[str]]]:
    """Return the table's columns, and its lines: `line(row)`, then a cell for each column.

    Rows with the same line and column share a cell, which shows the last one. A cell without a row is empty.
    """
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        cells.setdefault(line(row), {})[column(row)] = cell(row)
    columns = list(dict.fromkeys(map(column, rows)))
    return columns, [[*begin, *(found.get(name, "") for name in columns)] for begin, found in cells.items()]


def recomputing(record: dict[str, Any]) -> list[str]:
    """Return a sentence that compares the backward from the saved output with that from the input, or none.

    Both are in the record if it was measured with "normlab-me" (memory_efficient=True) beside "normlab".
    """
    factors = by_recomputing(record["rows"]) if record["what"] == "norm" else []
    if not factors:
        return []
    return [f"From the saved output the backward takes {min(factors):.2f} to {max(factors):.2f} times as long."]


def source(record: dict[str, Any]) -> str:
    """Return the command, date, machine and versions of a record, and what it does not contain."""
    versions = ", ".join(f"{name} {record[name]}" for name in VERSIONS if name in record)
    copies = [row["copy"]["gb_per_s"] for row in record.get("rows", []) if row.get("copy")]
    ceiling = f"; copy: {min(copies):,.0f} to {max(copies):,.0f} GB/s" if copies else ""
    missing = "".join(f" {note[0].upper()}{note[1:]}." for note in notes(record))
    where = f"{record['date'][:10]}, {record['gpu']}, driver {record['driver']}, {versions}{ceiling}"
    return f"`{record['command']}`, {where}.{missing}"
