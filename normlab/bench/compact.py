"""Records as tables for a README: what matters of each, in few columns. Called by `normlab.bench.report`.

`normlab.bench.tables` has all of it, for a terminal.
"""

from typing import Any

from normlab.bench.norm import ahead, best_peer, own
from normlab.bench.tables import NORMS, UNMEASURED, Grid

MISSING = "wrong or unable"


def norm_grid(record: dict[str, Any], direction: str) -> Grid:
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
    if "status" in row:
        return UNMEASURED
    entry, best = own(row), best_peer(row)
    mine = f"{entry['of_copy']:.2f}" if entry else MISSING
    if best is None:
        return mine
    theirs = f"{row['contenders'][best]['of_copy']:.2f}"
    if (ahead(row) or 0) >= 1:
        return f"**{mine}** / {theirs} {best}"
    return f"{mine} / **{theirs}** {best}"


def family_grid(record: dict[str, Any], direction: str) -> Grid:
    """One direction's rows: a line for each shape, dtype and layout, a column for each norm."""
    rows = [row for row in record["rows"] if row["direction"] == direction]
    norms = list(dict.fromkeys(row["norm"] for row in rows))
    cells: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in rows:
        shape = " × ".join(map(str, row["shape"]))
        cells.setdefault((shape, row["dtype"], row["layout"]), {})[row["norm"]] = beside_torch(row)
    head = ["shape", "dtype", "layout", *(f"{norm} norm" for norm in norms)]
    body = [[*problem, *(line.get(norm, "") for norm in norms)] for problem, line in cells.items()]
    title = f"The family's {direction}: fraction of the copy bandwidth (times torch's speed)"
    return Grid(title, head, body)


def beside_torch(row: dict[str, Any]) -> str:
    """normlab's fraction of the copy bandwidth, and its speed over torch's, bold where it is no slower."""
    if "status" in row:
        return UNMEASURED
    entry, factor = own(row), ahead(row)
    if entry is None:
        return MISSING
    if factor is None:
        return f"{entry['of_copy']:.2f}"
    times = f"{factor:.2f}×"
    return f"{entry['of_copy']:.2f} ({f'**{times}**' if factor >= 1 else times})"


def product_grid(records: list[dict[str, Any]]) -> Grid:
    """One GPU's records of the SGEMM ladder: a line for each step and for cuBLAS, a column for each size."""
    columns = [{entry["step"]: speed(entry) for entry in record["steps"]} for record in records]
    names = list(dict.fromkeys(name for column in columns for name in column))
    body = [[f"`{name}`", *(column.get(name, "") for column in columns)] for name in names]
    body.append(["cuBLAS", *(speed(record["cublas"]) for record in records)])
    title = f"SGEMM on {records[0]['gpu']}: TFLOP/s / of cuBLAS / of the multiply-adds' peak"
    return Grid(title, ["step", *map(size, records)], body)


def speed(entry: dict[str, Any]) -> str:
    """TFLOP/s and its fractions of cuBLAS and of the peak; "-" for what is not known."""
    if entry["status"] != "ok":
        return entry["status"]
    fractions = ("-" if entry[name] is None else f"{entry[name]:.2f}" for name in ("of_cublas", "of_peak"))
    return " / ".join([f"{entry['tflops']:.1f}", *fractions])


def size(record: dict[str, Any]) -> str:
    """Of a product: M × N × K, or a cube."""
    sides = [f"{record[side]:,}" for side in "mnk"]
    return f"{sides[0]}³" if len(set(sides)) == 1 else " × ".join(sides)
