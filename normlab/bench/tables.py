"""Records as tables for a terminal. The text is ASCII, because not every pipe takes more."""

from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from normlab.bench.ladder import slowest
from normlab.bench.norm import ahead, best_peer, own

NORMS = {"layer": "LayerNorm", "rms": "RMSNorm"}
UNMEASURED = "not measured"
WIDEST = 1000  # characters, of any table
WORDS = (
    "dtype",
    "layout",
    "shape",
    "best peer",
    "step",
    "slowest kernel",
    "idea",
    "norm",
    "direction",
    "who",
)  # columns without numbers


class Grid(NamedTuple):
    """A table: what it shows, its columns, and its rows."""

    title: str
    head: list[str]
    rows: list[list[str]]


def show(record: dict[str, Any], console: Console | None = None) -> None:
    """Print a record's tables, and below them what is missing and why."""
    method = f"{record['gpu']}, driver {record['driver']}. {record['method']}"
    show_grids(grids(record), [*notes(record), method], console)


def show_grids(shown: list[Grid], below: list[str], console: Console | None = None) -> None:
    """Print tables, and lines below them; no column is cut, whatever the width."""
    console = console or Console()
    width = console.width
    for grid in shown:
        table = Table(title=grid.title, title_justify="left", box=box.SIMPLE, title_style="bold")
        for name in grid.head:
            table.add_column(name, justify="left" if name in WORDS else "right", no_wrap=True)
        for row in grid.rows:
            cells = [Text(cell, style="bold red" if cell == "wrong" else "") for cell in row]
            table.add_row(*cells)
        console.width = max(width, console.measure(table, options=console.options.update(width=WIDEST)).maximum)
        with console.capture() as captured:
            console.print(table)
        print(*(line.rstrip() for line in captured.get().splitlines()), sep="\n", file=console.file)
    for line in below:
        console.print(line, style="dim", markup=False, highlight=False, width=width)


def grids(record: dict[str, Any]) -> list[Grid]:
    """The tables of a record, whichever it is."""
    shown = {
        "norm": norm_grids,
        "ladder": ladder_grids,
        "sgemm": sgemm_grids,
        "host": host_grids,
        "family": family_grids,
    }
    return shown[record["what"]](record)


def norm_grids(record: dict[str, Any]) -> list[Grid]:
    """One for each norm and direction: fractions of the copy bandwidth."""
    found = []
    for direction, norm in dict.fromkeys((row["direction"], row["norm"]) for row in record["rows"]):
        rows = [row for row in record["rows"] if (row["direction"], row["norm"]) == (direction, norm)]
        names = contenders(rows)
        head = ["dtype", "n1", "n2", "copy GB/s", *names, "best peer", "normlab us (quartiles)", "normlab / best"]
        body = [
            [
                row["dtype"],
                str(row["n1"]),
                str(row["n2"]),
                copied(row),
                *(fraction(row["contenders"].get(name)) for name in names),
                best_peer(row) or "",
                microseconds(own(row)),
                "" if (factor := ahead(row)) is None else f"{factor:.2f}",
            ]
            for row in rows
        ]
        found.append(Grid(f"{NORMS[norm]} {direction}: fractions of the copy bandwidth", head, body))
    return found


def family_grids(record: dict[str, Any]) -> list[Grid]:
    """One for each norm and direction: fractions of the copy bandwidth, by the least that has to be moved."""
    found = []
    for direction, norm in dict.fromkeys((row["direction"], row["norm"]) for row in record["rows"]):
        rows = [row for row in record["rows"] if (row["direction"], row["norm"]) == (direction, norm)]
        names = contenders(rows)
        head = ["dtype", "layout", "shape", "copy GB/s", *names, "normlab us (quartiles)", "normlab / torch"]
        body = [
            [
                row["dtype"],
                row["layout"],
                " x ".join(map(str, row["shape"])),
                copied(row),
                *(fraction(row["contenders"].get(name)) for name in names),
                microseconds(own(row)),
                "" if (factor := ahead(row)) is None else f"{factor:.2f}",
            ]
            for row in rows
        ]
        found.append(Grid(f"{norm.capitalize()} norm {direction}: fractions of the copy bandwidth", head, body))
    return found


def ladder_grids(record: dict[str, Any]) -> list[Grid]:
    """The steps, the slowest first; kernel, registers, shared memory and occupancy are those of its slowest kernel."""
    head = ["step", "us", "GB/s", "of copy", "slowest kernel", "registers", "shared bytes", "occupancy", "idea"]
    rows = []
    for entry in record["steps"]:
        kernel = slowest(entry)
        times = [fraction(entry)] * 3
        if entry["status"] == "ok":
            times = [f"{entry['median_us']:.1f}", f"{entry['gb_per_s']:.0f}", f"{entry['of_copy']:.2f}"]
        occupied = ["", "", "", ""]
        if kernel:
            name, registers, shared = kernel["kernel"], kernel["registers"], kernel["shared_bytes"]
            share = kernel["occupancy"]
            occupied = [name, str(registers), str(shared), "" if share is None else f"{share:.0%}"]
        rows.append([entry["step"], *times, *occupied, entry["summary"]])
    copy = f"copy {copied(record)} GB/s" if record["copy"] else UNMEASURED
    moved = f"{record['bytes'] / 1e6:,.1f} MB by the model, {copy}"
    return [Grid(f"{problem_of(record)}: {moved}", head, rows)]


def sgemm_grids(record: dict[str, Any]) -> list[Grid]:
    """The steps in their order, and cuBLAS below them."""
    head = ["step", "ms", "TFLOP/s", "of cuBLAS", "of peak", "error / bound", "registers", "shared bytes", "occupancy"]
    rows = []
    for entry in [*record["steps"], {"step": "cuBLAS", "summary": "torch.mm, TF32 off", **record["cublas"]}]:
        speed, occupied = [entry["status"], "", "", "", ""], ["", "", ""]
        if entry["status"] == "ok":
            fractions = (entry["of_cublas"], entry["of_peak"], entry["error_over_bound"])
            speed = [f"{entry['median_us'] / 1e3:.3f}", f"{entry['tflops']:.2f}", *map(_hundredths, fractions)]
        if {"registers", "shared_bytes", "occupancy"} <= set(entry):
            share = entry["occupancy"]
            occupied = [str(entry["registers"]), str(entry["shared_bytes"]), "" if share is None else f"{share:.0%}"]
        rows.append([entry["step"], *speed, *occupied, entry["summary"]])
    peak = "" if record["peak_tflops"] is None else f", peak {record['peak_tflops']:.1f} TFLOP/s"
    return [Grid(f"{problem_of(record)}: {record['operations'] / 1e9:,.1f} GFLOP{peak}", [*head, "idea"], rows)]


def _hundredths(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def host_grids(record: dict[str, Any]) -> list[Grid]:
    """A call's host time, and a process's first call."""
    rows = []
    for row in record["rows"]:
        for name, entry in row["contenders"].items():
            times = ["-", "-"]
            if entry["status"] == "ok":
                graph = entry["graph"]
                times = [f"{entry['eager']['median_us']:.1f}", f"{graph['median_us']:.2f}" if graph else "-"]
            rows.append([NORMS[row["norm"]], row["direction"], name, *times])
    problem = record["rows"][0]
    shape = f"{problem['n1']} x {problem['n2']} {problem['dtype']}"
    calls = Grid(f"A call on {shape}", ["norm", "direction", "who", "eager us", "in a graph us"], rows)
    first = [
        [name, *(f"{times[cache][what]:.2f}" for cache in ("cold", "warm") for what in ("import_s", "call_s"))]
        for name, times in record["first_calls"].items()
        if times["status"] == "ok"
    ]
    head = ["who", "cold: import s", "call s", "warm: import s", "call s"]
    return [calls, Grid("The first call of a process, with cold and with warm disk caches", head, first)]


def notes(record: dict[str, Any]) -> list[str]:
    """What was not measured, who is absent, wrong or unable, and why; each reason once."""
    found = [f"interrupted: {record['left_out']} problems were not measured"] if "left_out" in record else []
    found += [f"absent: {name} ({reason})" for name, reason in record.get("absent", {}).items()]
    unable = [one for one in [record, *record.get("rows", [])] if "status" in one]
    found += [f"{UNMEASURED}: {problem_of(one)} ({one['reason']})" for one in unable]
    entries = [] if "status" in record else [(entry["step"], entry) for entry in record.get("steps", [])]
    entries += [("cuBLAS", record["cublas"])] if "cublas" in record and "status" not in record else []
    entries += [pair for row in record.get("rows", []) for pair in row["contenders"].items()]
    entries += [(f"first call of {name}", entry) for name, entry in record.get("first_calls", {}).items()]
    for name, entry in entries:
        if entry["status"] != "ok":
            found.append(f"{entry['status']}: {name} ({entry['reason']})")
        if "no_graph" in entry:
            found.append(f"not in a graph: {name} ({entry['no_graph']})")
        if "no_kernels" in entry:
            found.append(f"kernels not seen one by one: {name} ({entry['no_kernels']})")
    return list(dict.fromkeys(found))


def problem_of(row: dict[str, Any]) -> str:
    """What was, or was to be measured: of a row of norms or of the family, or of a ladder's record."""
    if "m" in row:
        return f"SGEMM ({row['m']}, {row['k']}) times ({row['k']}, {row['n']})"
    if "shape" in row:
        shape = " x ".join(map(str, row["shape"]))
        return f"{row['norm']} norm {row['direction']}, {shape} {row['layout']} {row['dtype']}"
    return f"{NORMS[row['norm']]} {row['direction']}, {row['n1']} x {row['n2']} {row['dtype']}"


def contenders(rows: list[dict[str, Any]]) -> list[str]:
    """Everybody who is in one of the rows; a row that was not measured has nobody."""
    return list(dict.fromkeys(name for row in rows for name in row["contenders"]))


def copied(row: dict[str, Any]) -> str:
    """GB/s of the copy; a row that has none was not measured."""
    return f"{row['copy']['gb_per_s']:.0f}" if row["copy"] else UNMEASURED


def fraction(entry: dict[str, Any] | None) -> str:
    """Of the copy bandwidth; or why there is none."""
    if entry is None:
        return "-"
    return f"{entry['of_copy']:.2f}" if entry["status"] == "ok" else {"wrong": "wrong", "unable": "-"}[entry["status"]]


def microseconds(entry: dict[str, Any] | None) -> str:
    """Median and quartiles."""
    if entry is None:
        return ""
    return f"{entry['median_us']:.1f} ({entry['lower_us']:.1f} to {entry['upper_us']:.1f})"
