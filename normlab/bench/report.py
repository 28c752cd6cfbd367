"""Records as Markdown, for the README: `normlab bench report`."""

from typing import Any

from normlab.bench.norm import ahead, best_peer, own
from normlab.bench.tables import NORMS, WORDS, Grid, grids, notes


def markdown(records: list[dict[str, Any]]) -> str:
    """All records' tables, each with where it comes from, and how all was measured; nothing for no records."""
    methods = dict.fromkeys(f"How: {record['method']}" for record in records)
    return "\n\n".join([*(part for record in records for part in _section(record)), *methods])


def _section(record: dict[str, Any]) -> list[str]:
    if record["what"] != "norm":
        tables = [text for grid in grids(record) for text in (f"**{grid.title}**", table(grid))]
        return [*tables, source(record)]
    parts = []
    for direction in dict.fromkeys(row["direction"] for row in record["rows"]):
        grid = compact(record, direction)
        parts += [f"**{grid.title}**", table(grid)]
    if recomputed := recomputing(record):
        parts.append(recomputed)
    return [*parts, source(record)]


def compact(record: dict[str, Any], direction: str) -> Grid:
    """One direction's rows: a line for each shape, a column for each norm and dtype, normlab / best peer in a cell."""
    rows = [row for row in record["rows"] if row["direction"] == direction]
    elements = [row["n1"] * row["n2"] for row in rows]
    one_size = min(elements) > 0.99 * max(elements)  # n1 is rounded
    columns = list(dict.fromkeys((row["norm"], row["dtype"]) for row in rows))
    cells: dict[str, dict[tuple[str, str], str]] = {}
    for row in rows:
        shape = f"{row['n2']:,}" if one_size else f"{row['n1']:,} × {row['n2']:,}"
        cells.setdefault(shape, {})[row["norm"], row["dtype"]] = duel(row)
    head = ["n2" if one_size else "n1 × n2", *(f"{NORMS[norm]} {dtype}" for norm, dtype in columns)]
    body = [[shape, *(line.get(column, "") for column in columns)] for shape, line in cells.items()]
    return Grid(f"{direction.capitalize()}: fraction of the copy bandwidth, normlab / best peer", head, body)


def duel(row: dict[str, Any]) -> str:
    """normlab's fraction of the copy bandwidth and the best peer's, the higher one bold."""
    entry, best = own(row), best_peer(row)
    mine = f"{entry['of_copy']:.2f}" if entry else "wrong or unable"
    if best is None:
        return mine
    theirs = f"{row['contenders'][best]['of_copy']:.2f}"
    if (ahead(row) or 0) >= 1:
        return f"**{mine}** / {theirs} {best}"
    return f"{mine} / **{theirs}** {best}"


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
    copies = [row["copy"]["gb_per_s"] for row in record.get("rows", []) if "copy" in row]
    ceiling = f"; copy: {min(copies):,.0f} to {max(copies):,.0f} GB/s" if copies else ""
    missing = "".join(f" {note[0].upper()}{note[1:]}." for note in notes(record))
    where = f"{record['date'][:10]}, {record['gpu']}, driver {record['driver']}, {versions}{ceiling}"
    return f"`{record['command']}`, {where}.{missing}"


def table(grid: Grid) -> str:
    """A grid as Markdown: words to the left, numbers to the right."""
    rules = ["---" if name in WORDS else "--:" for name in grid.head]
    lines = [grid.head, rules, *grid.rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
