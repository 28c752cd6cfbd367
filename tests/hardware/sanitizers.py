"""Who finds which planted bug, compute-sanitizer's tools or `sanitize`? python tests/hardware/sanitizers.py OUT.json

Every bug is launched under every tool in a process of its own, because one that faults takes its process along, and
one that hangs is killed after a while. The mended twins run one after another in one process a tool. Writes OUT.json
(the record), OUT.raw.txt (what the tools said) and OUT.txt (the table); with --again it reads once more what the tools
said earlier and asks `sanitize` again, which needs no GPU.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

if not __package__:  # run as a script
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from sim.planted import PLANTED, Planted

from hardware import machine

TOOLS = {
    "racecheck": ["--racecheck-report", "all"],
    "memcheck": ["--report-api-errors", "no"],
    "initcheck": ["--initcheck-address-space", "all"],
    "synccheck": [],
}
ALWAYS = ["--show-backtrace", "no", "--print-limit", "20", "--require-cuda-init", "no"]
PROCESSES = max(1, min(14, (os.cpu_count() or 2) - 2))
SECONDS, SECONDS_OF_A_HANG, SECONDS_OF_ALL = 90, 20, 240
BUDGET = 330  # seconds, after which no more processes are started
RAW = 8000  # characters of each process's words that are kept, of the first and of the last
TWINS = "all twins"  # whose words these are, where it is not one bug
LAUNCHED, FINISHED = "normlab launches", "normlab finished"

SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error)|(?:RACECHECK SUMMARY: (\d+) hazard)")
REFUSED = re.compile(r"Device not supported|Unable to find|Target application terminated before first instrumented")
HEADLINE = re.compile(
    r"^=+ ((?:Error: |Warning: )?(?:Race reported.*|Potential \w+ hazard.*|Invalid .*|Uninitialized .*|Barrier error.*"
    r"|.*out of bounds.*|Misaligned .*))$",
    re.MULTILINE,
)
PLACE = re.compile(r"\b(\w+\.py):(\d+)")


def launch(bug: Planted, fixed: bool) -> None:
    """Launch a planted bug, or its twin, on the GPU, with line numbers in its code; this runs under the tools."""
    from numba import cuda

    from normlab import engine

    kernel = cuda.jit(lineinfo=True)((bug.fixed if fixed else bug.kernel).py_func)
    if bug.cluster > 1:  # which Numba's own launcher does not have
        views = [engine.to_device(one) if isinstance(one, np.ndarray) else one for one in bug.arguments()]
        print(f"{LAUNCHED} {kernel.py_func.__name__}", flush=True)
        engine.launch(kernel, bug.grid, bug.block, *views, shared_bytes=bug.dynamic_shared, cluster=bug.cluster)
        cuda.synchronize()
        print(f"{FINISHED} {kernel.py_func.__name__}", flush=True)
        return
    arguments: list[Any] = []
    for position, argument in enumerate(bug.arguments()):
        if not isinstance(argument, np.ndarray):
            arguments.append(argument)
        elif position in bug.uninitialized:
            arguments.append(cuda.device_array(argument.shape, argument.dtype))
        else:
            arguments.append(cuda.to_device(argument))
    print(f"{LAUNCHED} {kernel.py_func.__name__}", flush=True)
    kernel[bug.configuration](*arguments)
    cuda.synchronize()
    print(f"{FINISHED} {kernel.py_func.__name__}", flush=True)


def launch_all(names: list[str], fixed: bool) -> None:
    """Launch these bugs, or their twins; one that fails does not keep the others from it."""
    by_name = {bug.name: bug for bug in PLANTED}
    for name in names:
        try:
            launch(by_name[name], fixed)
        except Exception as error:
            print(f"normlab sees {name} fail: {type(error).__name__}: {error}", flush=True)


@cache
def help_text() -> str:
    """What this machine's compute-sanitizer says of its options."""
    return subprocess.run(["compute-sanitizer", "--help"], capture_output=True, text=True).stdout


def command_of(tool: str, names: list[str], fixed: bool) -> list[str]:
    """The command line that launches these bugs, or their twins, under a tool."""
    pairs = zip(*2 * [iter([*TOOLS[tool], *ALWAYS])], strict=True)
    known = [word for option, value in pairs if option in help_text() for word in (option, value)]
    return ["compute-sanitizer", "--tool", tool, *known, sys.executable, __file__,
            "--launch", "fixed" if fixed else "bug", *names]  # fmt: skip


def verdict_of(status: int | None, said: str, bug: Planted | None = None) -> dict:
    """What one run of a tool found.

    `verdict`: "found", "silent", "hangs" (killed, nothing reported), "no verdict" (the kernel was not launched, or the
    tool printed no summary) or "refused" (the tool does not work on this machine). `lines`: the places in the
    collection that the reports name; `marked`: whether one of the bug's guilty lines is among them.
    """
    counts = [int(errors or hazards) for errors, hazards in SUMMARY.findall(said)]
    headlines = list(dict.fromkeys(re.sub(r"0x[0-9a-f]+", "0x…", line) for line in HEADLINE.findall(said)))
    lines = sorted({int(line) for file, line in PLACE.findall(_reports(said)) if _is_of(file, bug)})
    if any(counts) or headlines:
        verdict = "found"
    elif status is None:
        verdict = "hangs"
    elif REFUSED.search(said):
        verdict = "refused"
    else:
        verdict = "silent" if counts and LAUNCHED in said else "no verdict"
    return {
        "verdict": verdict,
        "errors": sum(counts),
        "reports": headlines[:5],
        "lines": lines,
        "marked": bool(bug and set(lines) & set(bug.lines)),
        "status": "killed" if status is None else status,
        "finished": FINISHED in said,
    }


def _reports(said: str) -> str:
    """The tool's own lines, without Python's tracebacks."""
    return "\n".join(line for line in said.splitlines() if line.startswith("==="))


def _is_of(file: str, bug: Planted | None) -> bool:
    return bug is None or Path(bug.kernel.py_func.__code__.co_filename).name == file


def own_verdict(bug: Planted, fixed: bool) -> dict:
    """What `sanitize` finds, in the same words."""
    arguments = bug.arguments()
    empty = [arguments[position] for position in bug.uninitialized]
    kernel = bug.fixed if fixed else bug.kernel
    try:
        from normlab.sim import sanitize

        report = sanitize(kernel, uninitialized=empty, cluster=bug.cluster)[bug.configuration](*arguments)
    except Exception as error:
        return {"verdict": "no verdict", "reports": [f"{type(error).__name__}: {error}"]}
    findings = report.findings
    guilty = set(bug.lines)
    return {
        "verdict": "found" if report.findings else "silent",
        "kinds": sorted({finding.kind for finding in findings}),
        "lines": sorted({line for finding in findings for line in finding.lines}),
        "right": any(finding.kind == bug.kind and guilty.issuperset(finding.lines) for finding in findings),
        "reports": [str(finding) for finding in findings][:5],
    }


def ask_the_tools(raw: Path) -> None:
    """Launch every bug under every tool, and the twins; write what was said to `raw`, a section a process."""
    deadline = time.monotonic() + BUDGET
    jobs = [(tool, None) for tool in TOOLS]
    jobs += [(tool, bug) for hangs in (False, True) for bug in PLANTED for tool in TOOLS if bug.hangs == hangs]

    def one(job: tuple[str, Planted | None]) -> str:
        tool, bug = job
        if time.monotonic() > deadline:
            return ""
        names = [bug.name] if bug else [bug.name for bug in PLANTED]
        seconds = SECONDS_OF_ALL if not bug else SECONDS_OF_A_HANG if bug.hangs else SECONDS
        status, said = machine.run(command_of(tool, names, fixed=not bug), seconds)
        kept = said if len(said) <= 2 * RAW or not bug else f"{said[:RAW]}\n[...]\n{said[-RAW:]}"
        return f"\n==== {tool}, {bug.name if bug else TWINS}, status {status}\n{kept[: 50 * RAW]}"

    with ThreadPoolExecutor(PROCESSES) as pool, raw.open("w") as file:
        file.write(f"compute-sanitizer --help\n{help_text()}")
        for section in pool.map(one, jobs):  # whatever goes wrong later, what the tools said is worth keeping
            file.write(section)
            file.flush()


def read(raw: str) -> tuple[dict, dict]:
    """The sections of `raw`: bug → its kind and tool → verdict, and tool → verdict on the twins."""
    by_name = {bug.name: bug for bug in PLANTED}
    bugs: dict[str, dict] = {bug.name: {"kind": bug.kind} for bug in PLANTED}
    twins = {}
    _, *parts = re.split(r"^==== (\w+), (.+), status (.+)$", raw, flags=re.MULTILINE)
    for tool, name, status, said in zip(*4 * [iter(parts)], strict=True):
        verdict = verdict_of(None if status == "None" else int(status), said, by_name.get(name))
        if name == TWINS:
            twins[tool] = {**verdict, "launches finished": said.count(FINISHED), "accused": accused(said)}
        elif name in bugs:
            bugs[name][tool] = verdict
    return bugs, twins


def accused(said: str) -> list[str]:
    """The twins during whose launch the tool reported something."""
    names, current = [], ""
    for line in said.splitlines():
        if LAUNCHED in line:
            current = line.rpartition(" ")[2]
        elif HEADLINE.match(line) and current not in names:
            names.append(current)
    return names


def table(bugs: dict) -> str:
    """Who finds what; a star where a report names a guilty line (ours: only guilty ones, and of the right kind)."""
    heads = [*TOOLS, "normlab"]
    lines = [f"{'bug':36}{'kind':20}" + "".join(f"{head:>12}" for head in heads)]
    for name, row in bugs.items():
        cells = []
        for tool in heads:
            verdict = row.get(tool, {"verdict": "not run"})
            star = "*" if verdict.get("marked") or verdict.get("right") else ""
            cells.append("-" if verdict["verdict"] == "silent" else verdict["verdict"] + star)
        lines.append(f"{name:36}{row['kind']:20}" + "".join(f"{cell:>12}" for cell in cells))
    totals = [sum(row.get(tool, {}).get("verdict") == "found" for row in bugs.values()) for tool in heads]
    lines.append(f"{'found, of ' + str(len(bugs)):56}" + "".join(f"{total:>12}" for total in totals))
    return "\n".join(lines)


def main() -> None:
    """Run everything and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="the record; two more files are written beside it")
    parser.add_argument(
        "--again", action="store_true", help="read an earlier run's raw words, ask only `sanitize` anew"
    )
    options = parser.parse_args()
    raw = options.out.with_suffix(".raw.txt")
    if options.again:
        record = json.loads(options.out.read_text())
    else:
        record = {**machine.provenance(), "compute-sanitizer": machine.tool_version("compute-sanitizer")}
        ask_the_tools(raw)
    bugs, twins = read(raw.read_text())
    own_twins = {}
    for bug in PLANTED:
        bugs[bug.name]["normlab"] = own_verdict(bug, fixed=False)
        own_twins[bug.name] = own_verdict(bug, fixed=True)
    silent = sum(verdict["verdict"] == "silent" for verdict in own_twins.values())
    wrong = {name: verdict for name, verdict in own_twins.items() if verdict["verdict"] == "found"}
    twins["normlab"] = {"launches finished": silent + len(wrong), "accused": wrong}
    options.out.write_text(json.dumps({**record, "bugs": bugs, "twins": twins}, indent=1, ensure_ascii=False) + "\n")
    text = table(bugs)
    for tool, row in twins.items():
        text += f"\n{tool}: {row['launches finished']} twins launched, accused {', '.join(row['accused']) or 'none'}"
    options.out.with_suffix(".txt").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--launch"]:
        launch_all(sys.argv[3:], fixed=sys.argv[2] == "fixed")
    elif "--again" not in sys.argv and not shutil.which("compute-sanitizer"):
        sys.exit("sanitizers.py needs compute-sanitizer on the PATH, and a GPU")
    else:
        main()
