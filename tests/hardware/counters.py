"""`trace`'s counters against the hardware's: python tests/hardware/counters.py OUT.json

Launches every kernel once under `ncu` and once under `trace`, on the same arguments. Writes OUT.json (the record),
OUT.ncu.csv (what ncu said) and OUT.txt (the table); with --again it traces once more for the counts of the record that
is there, which needs no GPU. The rule: requests and sectors of global memory are equal, wavefronts of shared memory
within 3 %, and bank conflicts within 3 % of the wavefronts, less what the compiler merges (`Launch.fewer`). The exit
status is 1 where a launch breaks it that is not `unverified`. Metrics of copies and clusters (UNVERIFIED) are recorded,
and under no rule before hardware has shown what they count.
"""

import argparse
import csv
import json
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

if not __package__:  # run as a script
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from hardware import machine
from hardware.cluster_kernels import CLUSTER_LAUNCHES
from hardware.kernels import GLOBAL_LAUNCHES
from hardware.ladders import LADDER_LAUNCHES
from hardware.launches import (
    CONFLICTS,
    COPY_REQUESTS,
    COPY_SECTORS,
    COPY_WAVEFRONTS,
    OPERATIONS,
    REMOTE_REQUESTS,
    REMOTE_SECTORS,
    REQUESTS,
    SECTORS,
    SECTORS_A_REQUEST,
    WAVEFRONTS,
    Launch,
)
from hardware.shared_kernels import SHARED_LAUNCHES

LAUNCHES: list[Launch] = [*GLOBAL_LAUNCHES, *LADDER_LAUNCHES, *SHARED_LAUNCHES, *CLUSTER_LAUNCHES]
EXACT = [*REQUESTS.values(), *SECTORS.values()]
NEAR = [*WAVEFRONTS.values(), *CONFLICTS.values()]
WAVEFRONTS_OF = {CONFLICTS[op]: WAVEFRONTS[op] for op in OPERATIONS}
TOLERANCE = 0.03  # of wavefronts: the hardware's counter itself runs 1 to 2 % over
METRICS = [*EXACT, *SECTORS_A_REQUEST.values(), *NEAR]
ATOMICS = [
    f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}.sum" for what in ("requests", "sectors") for op in ("atom", "red")
]
UNVERIFIED = [
    *(COPY_REQUESTS, COPY_SECTORS, COPY_WAVEFRONTS),
    *REMOTE_REQUESTS.values(),
    *REMOTE_SECTORS.values(),
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum",  # perhaps the copies' wavefronts by another name
]
MEMORY_INSTRUCTION = re.compile(r"\b(?:LDG|STG|LDS|STS|LD|ST|RED|ATOMG?|ATOMS|LDL|STL|LDGSTS)\b")
SECONDS = 400  # for ncu, at most


def arguments_of(launch: Launch, seed: int) -> tuple:
    """The launch's arguments, the same for the same seed."""
    return launch.arguments(np.random.default_rng([seed, *launch.name.encode()]))


def launch_all(launches: list[Launch], seed: int) -> None:
    """Launch each once on the GPU; this is what runs under ncu."""
    for launch in launches:
        _launch(launch, seed)
        print(f"launched {launch.name}", flush=True)


def _launch(launch: Launch, seed: int) -> None:
    from normlab import engine

    how = {"shared_bytes": launch.shared_bytes, "cluster": launch.cluster}
    engine.launch(launch.kernel, launch.grid, launch.block, *_on_the_gpu(launch, seed), **how)
    engine.cuda.synchronize()


def _on_the_gpu(launch: Launch, seed: int) -> list:
    from normlab import engine

    return [
        engine.to_device(argument) if isinstance(argument, np.ndarray) else argument
        for argument in arguments_of(launch, seed)
    ]


def measure(launches: list[Launch], seed: int, raw: Path) -> str:
    """What ncu says of the launches; kept in `raw`, too, with what the program said."""
    said = counted = ""
    wanted = METRICS + ATOMICS + UNVERIFIED
    while True:
        metrics = wanted
        raw.unlink(missing_ok=True)
        options = ["--clock-control", "none", "--target-processes", "all", "--print-units", "base"]
        output = ["--csv", "--page", "raw", "--log-file", str(raw), "--metrics", ",".join(metrics)]
        program = [sys.executable, __file__, "--launch", str(seed), json.dumps([launch.name for launch in launches])]
        status, said = machine.run(["ncu", *options, *output, *program], SECONDS)
        counted = raw.read_text(errors="replace") if raw.exists() else ""
        wanted = without_unknown(metrics, said + counted)
        if parse(counted) or wanted == metrics:
            break
    raw.write_text(f"{counted}\n==== exit status {status}; the program said:\n{said}")
    return counted


def without_unknown(metrics: list[str], said: str) -> list[str]:
    """The metrics to ask for next, as ncu refuses all of them for one that it does not know.

    Those that ncu names go; if it names none, all but METRICS.
    """
    others = [metric for metric in metrics if metric not in METRICS]
    known = [metric for metric in others if metric not in said]
    return METRICS + (known if known != others else [])


def matched(launches: list[Launch], counted: str) -> list[tuple[Launch, dict[str, float]]]:
    """Each launch with its metrics, in order, as far as ncu came; raises RuntimeError if it counted none."""
    rows = parse(counted)
    if not rows or len(rows) > len(launches):
        raise RuntimeError(f"ncu counted {len(rows)} launches where {len(launches)} were wanted; see what it said")
    if len(rows) < len(launches):
        print(f"warning: ncu counted {len(rows)} of {len(launches)} launches")
    for launch, (function, _) in zip(launches, rows, strict=False):
        if launch.function not in function:
            print(f"warning: {launch.name!r} launches {launch.function}, ncu calls what it counted there {function}")
    return [(launch, values) for launch, (_, values) in zip(launches, rows, strict=False)]


def parse(text: str) -> list[tuple[str, dict[str, float]]]:
    """ncu's CSV as (kernel's name, metric → value), one a launch; a row a launch, or a row a launch and metric."""
    lines = text.splitlines()
    first = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        return []
    launches: dict[str, tuple[str, dict[str, float]]] = {}
    for row in csv.DictReader(line for line in lines[first:] if line.startswith('"')):
        if not row["ID"]:  # the row of units
            continue
        _, values = launches.setdefault(row["ID"], (row["Kernel Name"], {}))
        pairs = [(row["Metric Name"], row["Metric Value"])] if row.get("Metric Name") else row.items()
        for metric, value in pairs:
            if "__" in metric:  # as all metrics' names have
                values[metric] = number_in(value)
    return list(launches.values())


def number_in(text: str | None) -> float:
    """A number as ncu prints it, with commas between thousands; NaN for none."""
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return float("nan")


def traced(launch: Launch, seed: int) -> dict[str, float]:
    """What `trace` counts in the launch."""
    from normlab.sim import trace

    watched = trace(launch.kernel, cluster=launch.cluster)[launch.grid, launch.block, 0, launch.shared_bytes]
    return watched(*arguments_of(launch, seed)).metrics


def compare(launch: Launch, seed: int, counted: dict[str, float]) -> dict:
    """The record of one launch."""
    simulated, by_hand = traced(launch, seed), launch.expected(arguments_of(launch, seed))
    sources = {"ncu": counted, "trace": simulated, "hand": by_hand}
    metrics = {
        metric: {source: values[metric] for source, values in sources.items() if metric in values}
        for metric in (*METRICS, *ATOMICS, *UNVERIFIED)
    }
    expected = {metric: simulated[metric] - launch.fewer.get(metric, 0) for metric in (*EXACT, *NEAR)}
    broken = [metric for metric in expected if not agree(metric, counted, expected)]
    return {
        "name": launch.name, "kernel": launch.function, "grid": launch.grid, "block": launch.block,
        "compiler": launch.compiler, "fewer": launch.fewer, "unverified": launch.unverified,
        "agrees": not broken, "broken": broken, "metrics": metrics,
    }  # fmt: skip


def hardware_s(recorded: dict) -> dict[str, float]:
    """What ncu counted, of the record of a launch."""
    return {metric: counts["ncu"] for metric, counts in recorded["metrics"].items() if "ncu" in counts}


def agree(metric: str, counted: dict[str, float], simulated: dict[str, float]) -> bool:
    """Whether hardware and trace agree on a metric as far as they must; both know all metrics, metric → count."""
    if metric not in counted or metric not in simulated:
        return False
    return abs(counted[metric] - simulated[metric]) <= allowed(metric, counted)


def allowed(metric: str, counted: dict[str, float]) -> float:
    """By how much a count may differ.

    Bank conflicts are wavefronts, too: those beyond the fewest possible. A wavefront that the hardware counts too many
    is a conflict too many, even where there is none (8,833 and 1 on an H200 where 8,832 and 0 are right).
    """
    if metric not in NEAR:
        return 0.0
    return TOLERANCE * counted.get(WAVEFRONTS_OF.get(metric, metric), float("nan"))


def table(records: list[dict]) -> str:
    """Hardware's count and, where it is another, trace's behind a slash."""
    columns = {f"{what} {op}": names[op] for what, names in
               (("req", REQUESTS), ("sect", SECTORS), ("wave", WAVEFRONTS)) for op in OPERATIONS}  # fmt: skip
    lines = [f"{'launch':36}" + "".join(f"{head:>16}" for head in columns) + "  verdict"]
    for record in records:
        cells = [_cell(record["metrics"][metric]) for metric in columns.values()]
        verdict = f"agrees {record['compiler'] and 'but for: '}{record['compiler']}" if record["agrees"] else "DIFFERS"
        if record.get("unverified"):
            verdict += " (not verified before)"
        lines.append(f"{record['name']:36}" + "".join(f"{cell:>16}" for cell in cells) + f"  {verdict}")
        others = {metric: record["metrics"].get(metric, {}) for metric in UNVERIFIED}
        lines += [f"    {metric:90}{_cell(found):>16}" for metric, found in others.items() if any(found.values())]
    return "\n".join(lines)


def _cell(found: dict[str, float]) -> str:
    counted, simulated = (found.get(key, float("nan")) for key in ("ncu", "trace"))
    return f"{counted:.0f}" if counted == simulated else f"{counted:.0f} / {simulated:.0f}"


def memory_instructions(launch: Launch, seed: int) -> list[str]:
    """The compiled kernel's loads and stores in machine code, for a reader who asks why counts differ."""
    from normlab.engine import compute_capability
    from normlab.engine.compile import cubins, signatures

    try:
        views = _on_the_gpu(launch, seed)
        capability = next(compute_capability(view) for view in views if hasattr(view, "shape"))
        _, image = cubins.cubin(launch.kernel, tuple(map(signatures.kind_of, views)), capability)
        listing = disassembled(image)
    except Exception as error:  # no nvdisasm, say: the counts are worth keeping all the same
        return [f"no machine code: {type(error).__name__}: {error}"]
    return [line.strip() for line in listing.splitlines() if MEMORY_INSTRUCTION.search(line)]


def disassembled(image: bytes) -> str:
    """A cubin in words, by the CUDA toolkit's nvdisasm."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(image)
        return subprocess.run(["nvdisasm", str(file)], capture_output=True, text=True, check=True).stdout


def write(out: Path, record: dict, records: list[dict]) -> int:
    """Write the record, a launch a line, and the table; return the exit status."""
    lines = ",\n  ".join(json.dumps(one, default=float) for one in records)
    out.write_text(f'{json.dumps(record, indent=1)[:-2]},\n "launches": [\n  {lines}\n ]\n}}\n')
    differ = {one["name"]: one["unverified"] for one in records if not one["agrees"]}
    text = f"{table(records)}\n{len(records)} launches, {len(differ)} differ: {', '.join(differ) or 'none'}"
    out.with_suffix(".txt").write_text(text + "\n")
    print(text)
    return 0 if all(differ.values()) else 1


def main() -> int:
    """Run the comparison; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="the record; two more files are written beside it")
    parser.add_argument("--only", default="", help="only launches whose name has this regular expression")
    parser.add_argument("--sass", help="record the memory instructions of these launches, too (a regular expression)")
    parser.add_argument("--again", action="store_true", help="trace again, for the counts of an earlier record")
    options = parser.parse_args()
    before = {}
    if options.again:
        record = json.loads(options.out.read_text())
        before = {one["name"]: one for one in record.pop("launches")}
        counted = [(launch, hardware_s(before[launch.name])) for launch in LAUNCHES if launch.name in before]
    else:
        launches = [launch for launch in LAUNCHES if re.search(options.only, launch.name)]
        record = {**machine.provenance(), "ncu": machine.tool_version("ncu"), "seed": secrets.randbits(32)}
        counted = matched(launches, measure(launches, record["seed"], options.out.with_suffix(".ncu.csv")))
    records = []
    for launch, values in counted:
        one = compare(launch, record["seed"], values)
        if "sass" in before.get(launch.name, {}):
            one["sass"] = before[launch.name]["sass"]
        elif not options.again and (not one["agrees"] or (options.sass and re.search(options.sass, launch.name))):
            one["sass"] = memory_instructions(launch, record["seed"])
        records.append(one)
    return write(options.out, record, records)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--launch"]:
        wanted = json.loads(sys.argv[3])
        launch_all([launch for launch in LAUNCHES if launch.name in wanted], int(sys.argv[2]))
    elif "--again" not in sys.argv and not shutil.which("ncu"):
        sys.exit("counters.py needs Nsight Compute's ncu on the PATH, and a GPU")
    else:
        sys.exit(main())
