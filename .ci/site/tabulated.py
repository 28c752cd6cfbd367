"""Make the tables of README and docs/ from records and ladders; `readme.py` writes them between markers."""

import re
from collections.abc import Callable
from io import StringIO
from itertools import zip_longest
from pathlib import Path
from typing import Any

import cost_model
from quoted import QUOTED, report
from rich.console import Console

from normlab.bench import records
from normlab.bench.norm import best_peer, own
from normlab.bench.sweep import sweep_grids
from normlab.kernels import LADDERS
from normlab.learn import tutorials
from normlab.learn.address import repository
from normlab.learn.explain import explain
from normlab.measure.files import record
from normlab.measure.numbers import megabytes, scientific, size
from normlab.measure.tables import NORMS, Grid, markdown
from normlab.studies.compare.report import WIDTH, show

ROOT = Path(__file__).parents[2]
SHAPES = (
    *(("layer", "forward", 4096), ("layer", "backward", 4096), ("layer", "backward", 65536)),
    *(("rms", "forward", 768), ("rms", "forward", 8192), ("rms", "backward", 8192)),
)
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


def on_several_gpus() -> str:
    """Return the microseconds of a forward and a backward on two GPUs, and the bytes that one rank sends."""
    rows = []
    for row in record("distributed_h100")["rows"]:
        if "error" in row:
            cells = ["refuses its parameters"] + 2 * ["—"]
        else:
            sent = f"{row['sent']:,}" if "sent" in row else "as eager"
            cells = [f"{row['device_us']:,.0f}", f"{row['us']:,.0f}", sent]
        shape = " × ".join(f"{size:,}" for size in row["shape"])
        rows.append([f"{row['norm']}, {shape} {row['dtype']}", row["contender"], *cells])
    return _table(["norm", "by", "GPU, µs", "with the host, µs", "bytes sent"], rows)


def with_extras() -> str:
    """Return the speeds of norms with a residual, a gate and the like, as fractions of a copy: forward / backward."""
    found: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    contenders: dict[str, None] = {}  # in order
    for row in record("extras_h100")["rows"]:
        contenders[row["contender"]] = None
        of_one = found.setdefault((row["norm"], row["shape"]), {}).setdefault(row["contender"], {})
        of_one[row["direction"]] = f"{row['of_copy']:.2f}"
    names = {
        **{"rms": "x + residual, RMSNorm", "layer": "x + residual, LayerNorm", "heads": "heads in a fused tensor"},
        **{"gated": "gate after the norm", "gated x": "gate before the norm", "modulated": "scale, shift per sample"},
    }
    lines = []
    for (norm, shape), by in found.items():
        both = [[by.get(one, {}).get(direction, "") for direction in ("forward", "backward")] for one in contenders]
        cells = [" / ".join(pair).strip() if any(pair) else "" for pair in both]
        lines.append([f"{names[norm]}, {shape.replace('x', '×')}", *cells])
    return _table(["", *contenders], lines, {"", *contenders})


def training_step() -> str:
    """Return what a compiled training step of a Llama takes by its norms."""
    said = {
        **{"torch.nn": "torch.nn's", "exact fused": '`"exact"`, `fuse_residual=True`'},
        "True formulas": "`True`, in `fused_by_compiler`",
    }
    lines = []
    for row in record("llama_h100")["rows"]:
        kernels = [f"{row['kernels'].get(kind, 0.0):.2f}" for kind in ("compiler", "normlab")]
        memory = f"{row['peak'] / 2**20:,.0f}"
        lines.append([said[row["norms"]], f"{row['ms']:.1f}", f"{row['ratio']:.3f}", memory, *kernels])
    return _table(["norms", "ms", "of torch.nn's", "MiB", "compiler's kernels, ms", "normlab's, ms"], lines)


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


def address() -> str:
    """Return the badge of the last run of the tests, and how to clone; nothing while the repository has no address."""
    home = repository()
    if home is None:
        return ""
    run = f"{home}/actions/workflows/ci.yml"
    return f"[![tests]({run}/badge.svg)]({run}) `git clone {home}`"


def ladders() -> str:
    """Return the ladders side by side: each step with a link to its file, and its speed."""
    columns = []
    for name, made, fraction in (
        ("forward", "ladder_forward_h200", "of_copy"),
        ("backward", "ladder_backward_h200", "of_copy"),
        ("sgemm", "ladder_sgemm_4096_h200", "of_cublas"),
    ):
        steps = record(made)["steps"]
        columns.append([(_linked(name, step["step"]), f"{step[fraction]:.2f}") for step in steps])
    rows = [[cell for pair in pairs for cell in pair] for pairs in zip_longest(*columns, fillvalue=("", ""))]
    head = ["forward", "of copy", "backward", "of copy", "sgemm", "of cuBLAS"]
    return _table(head, rows, {"forward", "backward", "sgemm"})


def _linked(ladder: str, step: str) -> str:
    (file,) = (ROOT / "normlab/kernels" / ladder).rglob(f"step_*_{step}.py")
    return f"[{step}]({file.relative_to(ROOT)})"


def tutorial_list() -> str:
    """Return the tutorials' titles, each with a link to its notebook, and their minutes."""
    rows = [[str(one.number), f"[{one.title}]({one.notebook.name})", str(one.minutes)] for one in tutorials.every()]
    return _table(["", "tutorial", "minutes"], rows, {"tutorial"})


def fast() -> str:
    """Return normlab's speed at six shapes beside torch's and the best peer's, and the GPU."""
    made = record("norm_bfloat16_h200")
    found = {(row["norm"], row["direction"], row["n2"]): row for row in made["rows"]}
    lines = []
    for norm, direction, n2 in SHAPES:
        row = found[norm, direction, n2]
        entry, best = own(row), best_peer(row)
        if entry is None or best is None:
            raise ValueError(f"no peer to compare with: {row}")
        shape = f"{row['n1']:,} × {row['n2']:,}"
        cells = [f"{NORMS[norm]} {direction}", shape, f"{entry['of_copy']:.2f}", f"{_times(row, 'torch'):.2f}"]
        lines.append([*cells, f"{_times(row, best):.2f} ({best})"])
    head = ["bfloat16", "rows × columns", "of a copy", "times torch's speed", "times the best peer's"]
    gpu = f"{made['gpu']}, {made['date'][:10]}, PyTorch {made['torch']}. Peers: torch, torch.compile, Liger."
    return f"{_table(head, lines)}\n\n{gpu}"


def right() -> str:
    """Return what is claimed about results, the number that shows it, and where it is tested."""
    said = {name: make() for name, make in QUOTED.items()}
    tools = f"of the first {said['planted on a GPU']}, compute-sanitizer finds {said['sanitizers found']}"
    order = f"torch.nn in another order {said['train torch float32']}"
    largest = f"{said['largest error']} at most, in {said['places']} benchmarks"
    rows = [
        ["error / bound, at most 1 in a right kernel", largest],
        ["bugs put into normlab's kernels", "the tests notice each"],
        ["bugs planted in programs", f"`sanitize` finds {said['planted']} of {said['planted']}; {tools}"],
        ["the simulator's counts", f"equal an H200's in {said['launches alike']} of {said['launches']} launches"],
        ["gradient, two weights near 0", f"{said['error of the exact mode']} off; apex {said['error of recomputing']}"],
        ["training losses", f"{said['train normlab float32']} from torch.nn's; {order}"],
    ]
    shown = {
        **{"bounds": "tests/test_properties.py", "mutants": "tests/test_mutants.py", "planted": "tests/sim/planted"},
        **{"counters": "docs/see/simulator.md", "exact mode": "docs/use/exact.md", "training": "docs/use/memory.md"},
    }
    links = [f"[{name}]({path})" for name, path in shown.items()]
    lines = [[*row, link] for row, link in zip(rows, links, strict=True)]
    return _table(["claim", "measured", "where"], lines, {"claim", "measured", "where"})


def beside_quack() -> str:
    """Return normlab's speed over quack's, from the runs that quack took part in."""
    rows = [
        row for record in records.load([]) for row in record.get("rows", []) if "quack" in row.get("contenders", {})
    ]
    rows.sort(key=lambda row: (row["direction"] != "forward", row["n2"], row["dtype"]))
    lines = [[row["direction"], row["dtype"], f"{row['n2']:,}", f"{_times(row, 'quack'):.2f}"] for row in rows]
    return _table(["direction", "dtype", "n2", "times as fast"], lines, {"direction", "dtype"})


def _times(row: dict[str, Any], peer: str) -> float:
    """Return how many times as fast as a peer normlab is."""
    entries = row["contenders"]
    return entries[peer]["median_us"] / entries["normlab"]["median_us"]


def lengths(direction: str) -> str:
    """Return the fractions of a copy at lengths between those of the plan tables."""
    found: dict[int, dict[tuple[str, str], str]] = {}
    for gpu in ("h200", "h100"):
        for row in record(f"lengths_{gpu}")["rows"]:
            if row["direction"] == direction:
                found.setdefault(row["n2"], {})[gpu, row["norm"]] = f"{row['of_copy']:.2f}"
    columns = [(gpu, norm) for gpu in ("h200", "h100") for norm in NORMS]
    rows = [[f"{n2:,}", *(cells.get(column, "–") for column in columns)] for n2, cells in sorted(found.items())]
    return _table(["columns", *(f"{NORMS[norm]}, {gpu.upper()}" for gpu, norm in columns)], rows, set())


def drawn() -> str:
    """Return how normlab's speeds at drawn shapes are distributed, without the bars."""
    rows = []
    for gpu in ("H200", "H100"):
        distribution = sweep_grids(record(f"sweep_{gpu.lower()}"))[0]
        rows += [[gpu, what, *numbers[:3]] for what, *numbers in distribution.rows]
    return _table(["GPU", *distribution.head[:4]], rows, {"GPU", "what"})


def sanitizers() -> str:
    """Return how many of the planted bugs each tool found on a GPU."""
    bugs = record("sanitizers_h200")["bugs"].values()
    tools = ("racecheck", "memcheck", "initcheck", "synccheck")
    found = [str(sum(bug[tool]["verdict"] == "found" for bug in bugs)) for tool in tools]
    return _table(["tool", *tools], [["bugs found", *found]])


def compared() -> str:
    """Return what `normlab compare --details` prints in a pipe, from the record, without its time."""
    written = StringIO()
    show(report(), Console(file=written, width=WIDTH, color_system=None))
    said = re.sub(r"(?m), in [0-9.]+ s$", "", written.getvalue().strip())
    return f"```text\n{said}\n```"


def explained() -> str:
    """Return what `normlab explain` prints in docs/see/explain.md, without the kernel's line, which edits move."""
    said = explain("backward", dtype="bfloat16", n1=32768, n2=4096, device="h100")
    return f"```text\n{re.sub(r'(?m)[.]py:[0-9]+$', '.py', str(said)).rstrip()}\n```"


def _table(head: list[str], rows: list[list[str]], words: set[str] | None = None) -> str:
    return markdown(Grid("", head, rows), words or {head[0]})


PARTS: dict[str, Callable[[], str]] = {
    "address": address,
    "ladders": ladders,
    "tutorial list": tutorial_list,
    "right": right,
    "fast": fast,
    "paths": paths,
    "modules": modules,
    "on several GPUs": on_several_gpus,
    "memory on a CPU": memory_on_a_cpu,
    "memory on a GPU": memory_on_a_gpu,
    "losses": losses,
    "steps of norms": lambda: steps("forward", "backward", "family"),
    "counters": counters,
    "sanitizers": sanitizers,
    "compared": compared,
    "explained": explained,
    "beside quack": beside_quack,
    "norms with extras": with_extras,
    "training step": training_step,
    "drawn": drawn,
    "lengths forward": lambda: lengths("forward"),
    "lengths backward": lambda: lengths("backward"),
    "constants of the cost model": lambda: _table(*cost_model.constants()),
    "errors of the cost model": lambda: _table(*cost_model.errors()),
    "steps of the product": lambda: steps("sgemm"),
}
