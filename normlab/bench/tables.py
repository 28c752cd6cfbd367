"""Turn the records of `normlab bench` into tables for a terminal."""

from collections.abc import Iterator
from typing import Any

from rich.console import Console

from normlab.bench.norm import ahead, best_peer, own
from normlab.bench.sweep import sweep_grids
from normlab.measure import tables
from normlab.measure.numbers import fixed, quartiles
from normlab.measure.tables import NORMS, Grid

UNMEASURED = "not measured"


def show(record: dict[str, Any], console: Console | None = None) -> None:
    """Print a record's tables, and below them what is missing and why."""
    method = f"{record['gpu']}, driver {record['driver']}. {record['method']}"
    tables.show(grids(record), [*notes(record), method], console)


def grids(record: dict[str, Any]) -> list[Grid]:
    """Return the tables of a record of any kind."""
    kinds = {
        "norm": race_grids, "sweep": sweep_grids, "family": race_grids, "ladder": ladder_grids, "sgemm": sgemm_grids,
        "host": host_grids,
    }  # fmt: skip
    return kinds[record["what"]](record)


def race_grids(record: dict[str, Any]) -> list[Grid]:
    """Return a table per norm and direction: each contender's fraction of the copy bandwidth on each problem."""
    family = record["what"] == "family"
    columns = ["dtype", "layout", "shape"] if family else ["dtype", "n1", "n2"]
    found = []
    for direction, norm in dict.fromkeys((row["direction"], row["norm"]) for row in record["rows"]):
        rows = [row for row in record["rows"] if (row["direction"], row["norm"]) == (direction, norm)]
        names = list(dict.fromkeys(name for row in rows for name in row["contenders"]))
        head = [*columns, "copy GB/s", *names, *([] if family else ["best peer"]), "normlab us (quartiles)"]
        head.append("normlab / torch" if family else "normlab / best")
        body = []
        for row in rows:
            entry = own(row)
            body.append(
                [
                    *(_problem_cell(row[column]) for column in columns),
                    copied(row),
                    *(fraction(row["contenders"].get(name)) for name in names),
                    *([] if family else [best_peer(row) or ""]),
                    quartiles(entry) if entry else "",
                    fixed(ahead(row)),
                ]
            )
        title = f"{norm.capitalize()} norm" if family else NORMS[norm]
        found.append(Grid(f"{title} {direction}: fractions of the copy bandwidth", head, body))
    return found


def ladder_grids(record: dict[str, Any]) -> list[Grid]:
    """Return the steps, the slowest first; registers, shared memory and occupancy are the slowest kernel's."""
    head = ["step", "us", "GB/s", "of copy", "slowest kernel", "registers", "shared bytes", "occupancy", "idea"]
    rows = []
    for entry in record["steps"]:
        kernel = max(entry.get("kernels", []), key=lambda kernel: kernel["median_us"], default={"kernel": ""})
        times = [fraction(entry)] * 3
        if entry["status"] == "ok":
            times = [fixed(entry["median_us"], 1), fixed(entry["gb_per_s"], 0), fraction(entry)]
        rows.append([entry["step"], *times, kernel["kernel"], *occupied(kernel), entry["summary"]])
    copy = f"copy {copied(record)} GB/s" if record["copy"] else UNMEASURED
    return [Grid(f"{problem_of(record)}: {record['bytes'] / 1e6:,.1f} MB by the model, {copy}", head, rows)]


def sgemm_grids(record: dict[str, Any]) -> list[Grid]:
    """Return the steps in their order, and cuBLAS below them."""
    head = ["step", "ms", "TFLOP/s", "of cuBLAS", "of peak", "error / bound", "registers", "shared bytes", "occupancy"]
    rows = []
    for entry in [*record["steps"], {"step": "cuBLAS", "summary": "torch.mm, TF32 off", **record["cublas"]}]:
        speed = [entry["status"], "", "", "", ""]
        if entry["status"] == "ok":
            fractions = (entry[name] for name in ("tflops", "of_cublas", "of_peak", "error_over_bound"))
            speed = [fixed(entry["median_us"] / 1e3, 3), *map(fixed, fractions)]
        rows.append([entry["step"], *speed, *occupied(entry), entry["summary"]])
    peak = "" if record["peak_tflops"] is None else f", peak {record['peak_tflops']:.1f} TFLOP/s"
    return [Grid(f"{problem_of(record)}: {record['operations'] / 1e9:,.1f} GFLOP{peak}", [*head, "idea"], rows)]


def host_grids(record: dict[str, Any]) -> list[Grid]:
    """Return two tables: the host's time of a call, and the seconds of a process's import and first call."""
    rows = []
    for row in record["rows"]:
        for name, entry in row["contenders"].items():
            times = ["-", "-"]
            if entry["status"] == "ok":
                graph = entry["graph"]
                times = [fixed(entry["eager"]["median_us"], 1), fixed(graph["median_us"]) if graph else "-"]
            rows.append([NORMS[row["norm"]], row["direction"], name, *times])
    problem = record["rows"][0]
    shape = f"{problem['n1']} x {problem['n2']} {problem['dtype']}"
    calls = Grid(f"A call on {shape}", ["norm", "direction", "who", "eager us", "in a graph us"], rows)
    first = [
        [name, *(fixed(times[cache][what]) for cache in ("cold", "warm") for what in ("import_s", "call_s"))]
        for name, times in record["first_calls"].items()
        if times["status"] == "ok"
    ]
    head = ["who", "cold: import s", "call s", "warm: import s", "call s"]
    return [calls, Grid("The first call of a process, with cold and with warm disk caches", head, first)]


def notes(record: dict[str, Any]) -> list[str]:
    """Return which problems were not measured, which contenders are absent, wrong or unable, and why, each once."""
    found = [f"interrupted: {record['left_out']} problems were not measured"] if "left_out" in record else []
    found += [f"absent: {name} ({reason})" for name, reason in record.get("absent", {}).items()]
    unable = [one for one in [record, *record.get("rows", [])] if "status" in one]
    found += [f"{UNMEASURED}: {problem_of(one)} ({one['reason']})" for one in unable]
    for name, entry in _entries(record):
        if entry["status"] != "ok":
            found.append(f"{entry['status']}: {name} ({entry['reason']})")
        if "no_graph" in entry:
            found.append(f"not in a graph: {name} ({entry['no_graph']})")
        if "no_kernels" in entry:
            found.append(f"kernels not seen one by one: {name} ({entry['no_kernels']})")
    return list(dict.fromkeys(found))


def _entries(record: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the entry of each contender, step and first call."""
    if "status" not in record:  # else all steps have the record's own reason
        yield from ((entry["step"], entry) for entry in record.get("steps", []))
        if "cublas" in record:
            yield "cuBLAS", record["cublas"]
    for row in record.get("rows", []):
        yield from row["contenders"].items()
    for name, entry in record.get("first_calls", {}).items():
        yield f"first call of {name}", entry


def problem_of(row: dict[str, Any]) -> str:
    """Return the problem of a row, or of the record of a ladder or of SGEMM, in words."""
    if "m" in row:
        return f"SGEMM ({row['m']}, {row['k']}) times ({row['k']}, {row['n']})"
    if "shape" in row:
        shape = _problem_cell(row["shape"])
        return f"{row['norm']} norm {row['direction']}, {shape} {row['layout']} {row['dtype']}"
    return f"{NORMS[row['norm']]} {row['direction']}, {row['n1']} x {row['n2']} {row['dtype']}"


def _problem_cell(value: Any) -> str:
    """Return a dtype, layout, size or shape as text."""
    return " x ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def copied(row: dict[str, Any]) -> str:
    """Return the copy's GB/s of a row or record, or UNMEASURED."""
    return fixed(row["copy"]["gb_per_s"], 0) if row["copy"] else UNMEASURED


def fraction(entry: dict[str, Any] | None) -> str:
    """Return a contender's fraction of the copy bandwidth: "-" if it is absent or unable, "wrong" if it is wrong."""
    if entry is None or entry["status"] == "unable":
        return "-"
    return fixed(entry["of_copy"]) if entry["status"] == "ok" else "wrong"


def occupied(launch: dict[str, Any]) -> list[str]:
    """Return registers, shared bytes and occupancy of a launch; blanks where they were not seen."""
    if "registers" not in launch:
        return ["", "", ""]
    share = launch["occupancy"]
    return [str(launch["registers"]), str(launch["shared_bytes"]), "" if share is None else f"{share:.0%}"]
