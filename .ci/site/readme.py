"""Make the README's tables from the records and the ladders: `python .ci/site/readme.py` puts them into README.md.

Each table stands between two markers, `<!-- NAME: begin -->` and `<!-- NAME: end -->`; PARTS has the function that
makes it. tests/test_readme.py fails if a table is not what its function returns, or stands outside all markers.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from normlab.bench import records, report
from normlab.kernels import LADDERS
from normlab.measure.files import record
from normlab.measure.numbers import megabytes, scientific, size
from normlab.measure.tables import NORMS, Grid, markdown

README = Path(__file__).parents[2] / "README.md"
PLOT = "normlab/bench/records/norm.svg"
GLOBAL = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"
SHARED = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
COUNTERS = {
    **{f"{op} {what}": GLOBAL.format(what, op) for op in ("ld", "st") for what in ("requests", "sectors")},
    **{f"shared {op} wavefronts": SHARED.format(op) for op in ("ld", "st")},
}
LAUNCHES = (
    *("copy float32", "copy float16", "copy float32 x4"),
    *("copy strided by 2", "copy strided by 8", "copy strided by 33", "gather", "histogram", "square"),
    *("transpose naive", "transpose float32 tile 32x32", "transpose float32 tile 32x33"),
    *("tree sum interleaved", "tree sum sequential", "forward apex"),
    *("backward apex partial sums", "backward apex final sums", "backward apex grad input"),
)
MODES = {
    "False": "`memory_efficient=False`",
    "True": "`memory_efficient=True`",
    "exact": '`memory_efficient="exact"`',
}
MODULES = {
    **{"False": "`False`", "True": "`True`", "exact": '`"exact"`'},
    **{"exact, after a step": '`"exact"`, after a step', "exact, 1 % at risk": '`"exact"`, 1 % at risk'},
}


def steps(*ladders: str) -> str:
    """Return the steps of ladders, each with its idea."""
    rows = [[f"`{ladder}/{step.name}`", step.summary] for ladder in ladders for step in LADDERS[ladder]]
    return _table(["step", ""], rows, {"step", ""})


def paths() -> str:
    """Return the errors of grad_input on a real layer, and what normlab keeps with the output."""
    apex = record("apex_recompute_h200")
    theirs = {row["dtype"]: row["recomputed"] for row in apex["rows"]}
    rows = [["apex, `memory_efficient=True`", *map(_error, theirs.values())]]
    layers = [
        next(layer for layer in record(f"compare_{dtype}")["layers"] if layer["name"] == apex["layer"])
        for dtype in theirs
    ]
    for said, path in {
        "normlab, saved input": "saved_input",
        f"normlab, {MODES['True']}": "recomputed",
        f"normlab, {MODES['exact']}": "exact",
    }.items():
        kept = [layer[path] for layer in layers]
        cells = [f"{_error(one['grad_input']['relative'])}, {size(one['bytes_kept_with_output'])}" for one in kept]
        rows.append([said, *cells])
    return _table(["", *theirs], rows)


def _error(relative: float | None) -> str:
    return "NaN" if relative is None else scientific(relative)


def modules() -> str:
    """Return what modules take, forward and backward, over what torch.nn's take: on the GPU / on its host."""
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in record("modules_h100")["rows"]:
        found.setdefault((row["norm"], row["dtype"].removeprefix("torch.")), {})[row["module"]] = row

    def over(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
        factors = (ours[where]["median_us"] / theirs[where]["median_us"] for where in ("device", "host"))
        return " / ".join(f"{factor:.2f}" for factor in factors)

    rows = [[said, *(over(one[name], one["torch.nn"]) for one in found.values())] for name, said in MODULES.items()]
    return _table(["`memory_efficient`", *(f"{NORMS[norm]} {dtype}" for norm, dtype in found)], rows)


def counters() -> str:
    """Return hardware / trace of some launches, or one number where both agree."""
    launches = {launch["name"]: launch["metrics"] for launch in record("counters_h200")["launches"]}

    def cell(counted: dict[str, float]) -> str:
        return " / ".join(dict.fromkeys(f"{counted[who]:,.0f}" for who in ("ncu", "trace")))

    rows = [[name, *(cell(launches[name][metric]) for metric in COUNTERS.values())] for name in LAUNCHES]
    return _table(["launch", *COUNTERS], rows)


def memory_on_a_cpu() -> str:
    """Return what a small model saves, and what LLaMA-7B's blocks are predicted to save."""
    made = record("memory_cpu")
    saved = {row["variant"]: row["saved_bytes"] for row in made["rows"]}
    rows = [[MODES.get(name, name), megabytes(one), megabytes(saved["False"] - one)] for name, one in saved.items()]
    measured = _table([_model(made), "saved MB", "less than False"], rows)
    large = {row["variant"]: row for row in made["predicted"]["rows"]}
    roles = ["norm inputs", "norm outputs", "attention", "mlp"]
    totals = {name: sum(row[role] for role in row if role != "variant") for name, row in large.items()}
    rows = []
    for said, name, same in (("torch.nn, `False`", "False", "torch.nn"), ('`True`, `"exact"`', "True", "exact")):
        if totals[name] != totals[same]:
            raise ValueError(f"a row cannot stand for {name} and {same}, which save {totals[name]} and {totals[same]}")
        cells = [totals[name], totals["False"] - totals[name], *(large[name][role] for role in roles)]
        rows.append([said, *map(megabytes, cells)])
    head = ["LLaMA-7B's blocks on a GPU, 2 x 2048, predicted", "saved MB", "less than False", *roles]
    return f"{measured}\n\n{_table(head, rows)}"


def memory_on_a_gpu() -> str:
    """Return bytes and times of LLaMA-7B's blocks."""
    made = record("memory_h200")
    peak = next(row["peak_bytes"] for row in made["rows"] if row["variant"] == "False")
    rows = [
        [
            MODES.get(row["variant"], row["variant"]),
            *map(megabytes, (row["saved_bytes"], row["peak_bytes"], peak - row["peak_bytes"])),
            f"{row['step_against_saved_input']:.3f}",
        ]
        for row in made["rows"]
    ]
    return _table([f"{_model(made)}, on an H200", "saved MB", "peak MB", "less than False", "time of a step"], rows)


def _model(made: dict[str, Any]) -> str:
    shape = f"{made['batch']} x {made['sequence']}"
    return f"{made['layers']} blocks of hidden {made['hidden']}, {NORMS[made['norm']]}, {made['dtype']}, {shape}"


def losses() -> str:
    """Return how far losses are from torch.nn's, by dtype."""
    runs = record("train_cpu")["rows"]
    dtypes = list(dict.fromkeys(row["dtype"] for row in runs))
    found: dict[str, list[str]] = {}
    for said, wanted in {
        "torch.nn in another order": lambda row: row["turned"],
        **{said: lambda row, name=name: row["variant"] == name for name, said in MODES.items()},
    }.items():
        largest = [max(row["difference"] for row in runs if row["dtype"] == dtype and wanted(row)) for dtype in dtypes]
        found[said] = list(map(scientific, largest))
    head = ["`normlab train LICENSE`: largest difference of the smoothed losses", *dtypes]
    return _table(head, [[said, *cells] for said, cells in found.items()])


def benchmarks() -> str:
    """Return the plot of `normlab bench report --plot`, and the tables of `normlab bench report`."""
    return f"![Fraction of the copy bandwidth over n2]({PLOT})\n\n{report.markdown(records.load([]))}"


def _table(head: list[str], rows: list[list[str]], words: set[str] | None = None) -> str:
    return markdown(Grid("", head, rows), words or {head[0]})


PARTS: dict[str, Callable[[], str]] = {
    "paths": paths,
    "modules": modules,
    "memory on a CPU": memory_on_a_cpu,
    "memory on a GPU": memory_on_a_gpu,
    "losses": losses,
    "steps of norms": lambda: steps("forward", "backward", "family"),
    "counters": counters,
    "steps of the product": lambda: steps("sgemm"),
    "benchmarks": benchmarks,
}


def stale(text: str) -> list[str]:
    """Return the names of the parts of a README that are not what is made of the records and ladders."""
    return [name for name, make in PARTS.items() if _split(text, name)[1] != f"\n\n{make()}\n\n"]


def unmade(text: str) -> list[str]:
    """Return the lines of tables that stand outside all parts, where nothing would make them."""
    for name in PARTS:
        before, _, after = _split(text, name)
        text = before + after
    return [line for line in text.splitlines() if line.startswith("|")]


def made(text: str) -> str:
    """Return a README with all its parts made anew."""
    for name, make in PARTS.items():
        before, _, after = _split(text, name)
        text = f"{before}\n\n{make()}\n\n{after}"
    return text


def _split(text: str, name: str) -> tuple[str, str, str]:
    """Return the text up to a part, the part, and the text after it; the markers stay outside."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"one line {begin} and below it one line {end} are needed")
    first, last = text.index(begin) + len(begin), text.index(end)
    return text[:first], text[first:last], text[last:]


if __name__ == "__main__":
    README.write_text(made(README.read_text()))
