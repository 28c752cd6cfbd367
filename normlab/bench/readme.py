"""The README's tables, made from the records: `python -m normlab.bench.readme` prints all but the benchmarks'.

The benchmarks' tables come from `normlab.bench.report`; `insert` puts them between two markers.
"""

from importlib.resources import files
from pathlib import Path
from typing import Any

from normlab.bench import record
from normlab.bench.report import markdown
from normlab.studies.compare.numbers import scientific, size

GLOBAL = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"
SHARED = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
COLUMNS = {
    "ld requests": GLOBAL.format("requests", "ld"),
    "ld sectors": GLOBAL.format("sectors", "ld"),
    "st requests": GLOBAL.format("requests", "st"),
    "st sectors": GLOBAL.format("sectors", "st"),
    "shared ld wavefronts": SHARED.format("ld"),
    "shared st wavefronts": SHARED.format("st"),
}
LAUNCHES = (
    *(
        "copy float32",
        "copy float16",
        "copy float32 x4",
        "copy strided by 2",
        "copy strided by 8",
        "copy strided by 33",
    ),
    *(
        "gather",
        "histogram",
        "square",
        "transpose naive",
        "transpose float32 tile 32x32",
        "transpose float32 tile 32x33",
    ),
    *("tree sum interleaved", "tree sum sequential", "forward apex", "backward apex partial sums"),
    *("backward apex final sums", "backward apex grad input"),
)
TOOLS = ("racecheck", "memcheck", "initcheck", "synccheck")


def counters() -> str:
    """Return hardware against trace as a Markdown table."""
    launches = {launch["name"]: launch for launch in record("counters_h200")["launches"]}
    rows = [[name, *(_cell(launches[name]["metrics"][metric]) for metric in COLUMNS.values())] for name in LAUNCHES]
    return _table(["launch", *COLUMNS], rows)


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(counted: dict[str, Any]) -> str:
    hardware, traced = f"{counted['ncu']:,.0f}", f"{counted['trace']:,.0f}"
    return hardware if hardware == traced else f"{hardware} / {traced}"


def sanitizers() -> str:
    """Return how many planted bugs compute-sanitizer's tools find, in words."""
    bugs = record("sanitizers_h200")["bugs"].values()
    found = {tool: sum(bug[tool]["verdict"] == "found" for bug in bugs) for tool in TOOLS}
    together = sum(any(bug[tool]["verdict"] == "found" for tool in TOOLS) for bug in bugs)
    return f"four tools find {together} ({', '.join(f'{tool} {count}' for tool, count in found.items())})"


PATHS = {
    "normlab, saved input": "saved_input",
    "normlab, `memory_efficient=True`": "recomputed",
    'normlab, `memory_efficient="exact"`': "exact",
}


def paths() -> str:
    """Return the errors of grad_input on a real layer, and what normlab keeps with the output, as a Markdown table."""
    apex = record("apex_recompute_h200")
    theirs = {row["dtype"]: row["recomputed"] for row in apex["rows"]}
    ours = [_layer(record(f"compare_{dtype}"), apex["layer"]) for dtype in theirs]
    rows = [["apex, `memory_efficient=True`", *map(_error, theirs.values())]]
    for said, path in PATHS.items():
        cells = [
            f"{_error(layer[path]['grad_input']['relative'])}, {size(layer[path]['bytes_kept_with_output'])}"
            for layer in ours
        ]
        rows.append([said, *cells])
    return _table(["", *theirs], rows)


MODULES = {
    "False": "`False`",
    "True": "`True`",
    "exact": '`"exact"`',
    "exact, after a step": '`"exact"`, after a step',
    "exact, 1 % at risk": '`"exact"`, 1 % at risk',
}


def _modules() -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
    """Of each norm and dtype, what its modules take, by their names."""
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in record("modules_h100")["rows"]:
        found.setdefault((row["norm"], row["dtype"].removeprefix("torch.")), {})[row["module"]] = row
    return found


def modules() -> str:
    """Return what modules take on a GPU and on its host, forward and backward, over torch.nn's, as a Markdown table."""
    found = _modules()
    rows = [[said, *(_over(one[name], one["torch.nn"]) for one in found.values())] for name, said in MODULES.items()]
    names = {"layer": "LayerNorm", "rms": "RMSNorm"}
    return _table(["`memory_efficient`", *(f"{names[norm]} {dtype}" for norm, dtype in found)], rows)


def _over(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    return " / ".join(f"{ours[where]['median_us'] / theirs[where]['median_us']:.2f}" for where in ("device", "host"))


def _layer(compared: dict[str, Any], name: str) -> dict[str, Any]:
    return next(layer for layer in compared["layers"] if layer["name"] == name)


def _error(relative: float | None) -> str:
    return "NaN" if relative is None else scientific(relative)


PLOT = "norm.svg"  # in records/, where `normlab bench report --plot` is to put it
BEGIN, END = "<!-- normlab bench report: begin -->", "<!-- normlab bench report: end -->"


def benchmarks(records: list[dict[str, Any]]) -> str:
    """Return the benchmarks' part: the plot, if there is one, and the records' tables."""
    tables = markdown(records)
    if not (files("normlab.bench") / "records" / PLOT).is_file():
        return tables
    return f"![Fraction of the copy bandwidth over n2](normlab/bench/records/{PLOT})\n\n{tables}"


def between(text: str) -> str:
    """What stands between the markers.

    Raises:
        ValueError: not one of each marker, in this order.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"one line {BEGIN} and below it one line {END} are needed")
    return text.partition(BEGIN)[2].partition(END)[0].strip()


def insert(readme: Path, tables: str) -> None:
    """Replace what stands between the markers of a file; ValueError, naming the file, as `between`."""
    text = readme.read_text()
    try:
        between(text)
    except ValueError as error:
        raise ValueError(f"{readme}: {error}") from None
    readme.write_text(f"{text.partition(BEGIN)[0]}{BEGIN}\n{tables}\n{END}{text.partition(END)[2]}")


if __name__ == "__main__":
    print(paths())
    print(modules())
    print(counters())
    print(sanitizers())
