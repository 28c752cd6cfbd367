"""Who finds which planted bug, compute-sanitizer's tools or `sanitize`? python tests/hardware/sanitizers.py OUT.json

Every bug is launched under every tool in a process of its own, because one that faults takes its process along, and
one that hangs is killed after a while. The mended twins run one after another in one process a tool. Writes OUT.json
(the record), OUT.raw.txt (what the tools said) and OUT.txt (the table).
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
RAW = 6000  # characters of each process's words that are kept
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

    kernel = cuda.jit(lineinfo=True)((bug.fixed if fixed else bug.kernel).py_func)
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
    """Launch these bugs, or their twins; one that cannot be launched does not keep the others from it."""
    by_name = {bug.name: bug for bug in PLANTED}
    for name in names:
        try:
            launch(by_name[name], fixed)
        except Exception as error:
            print(f"normlab could not launch {name}: {type(error).__name__}: {error}", flush=True)


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

        report = sanitize(kernel, uninitialized=empty)[bug.configuration](*arguments)
    except Exception as error:
        return {"verdict": "no verdict", "reports": [f"{type(error).__name__}: {error}"]}
    findings = report.findings
    guilty = set(bug.lines)
    return {
        "verdict": "silent" if report.ok else "found",
        "kinds": sorted({finding.kind for finding in findings}),
        "lines": sorted({line for finding in findings for line in finding.lines}),
        "right": any(finding.kind == bug.kind and guilty.issuperset(finding.lines) for finding in findings),
        "reports": [str(finding) for finding in findings][:5],
    }


def ask_the_tools(raw: list[str]) -> tuple[dict, dict]:
    """Run all: bug → tool → verdict, and tool → verdict on the twins. What was said goes to `raw`."""
    deadline = time.monotonic() + BUDGET
    jobs = [(tool, bug) for hangs in (False, True) for bug in PLANTED for tool in TOOLS if bug.hangs == hangs]

    def one(job: tuple[str, Planted]) -> dict:
        tool, bug = job
        if time.monotonic() > deadline:
            return {"verdict": "not run"}
        seconds = SECONDS_OF_A_HANG if bug.hangs else SECONDS
        status, said = machine.run(command_of(tool, [bug.name], fixed=False), seconds)
        raw.append(f"\n==== {tool} {bug.name}, status {status}\n{said[:RAW]}")
        return verdict_of(status, said, bug)

    def twins(tool: str) -> dict:
        names = [bug.name for bug in PLANTED]
        status, said = machine.run(command_of(tool, names, fixed=True), SECONDS_OF_ALL)
        raw.append(f"\n==== {tool} on all twins, status {status}\n{said[-20 * RAW :]}")
        found = verdict_of(status, said)
        return {**found, "launches finished": said.count(FINISHED), "accused": accused(said)}

    bugs: dict[str, dict] = {bug.name: {"kind": bug.kind} for bug in PLANTED}
    with ThreadPoolExecutor(PROCESSES) as pool:
        of_twins = pool.map(twins, TOOLS)
        for (tool, bug), verdict in zip(jobs, pool.map(one, jobs), strict=True):
            bugs[bug.name][tool] = verdict
        return bugs, dict(zip(TOOLS, of_twins, strict=True))


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
    out = parser.parse_args().out
    raw = [f"\n==== compute-sanitizer --help\n{help_text()}"]
    try:
        bugs, twins = ask_the_tools(raw)
    finally:  # whatever goes wrong, what the tools said is worth keeping
        out.with_suffix(".raw.txt").write_text("".join(sorted(raw)))
    twins_of_ours = {}
    for bug in PLANTED:
        bugs[bug.name]["normlab"] = own_verdict(bug, fixed=False)
        twins_of_ours[bug.name] = own_verdict(bug, fixed=True)
    silent = sum(verdict["verdict"] == "silent" for verdict in twins_of_ours.values())
    wrong = {name: verdict for name, verdict in twins_of_ours.items() if verdict["verdict"] == "found"}
    record = {
        **machine.provenance(),
        "compute-sanitizer": machine.tool_version("compute-sanitizer"),
        "bugs": bugs,
        "twins": {**twins, "normlab": {"launches finished": silent + len(wrong), "accused": wrong}},
    }
    out.write_text(json.dumps(record, indent=1, default=str))
    text = table(bugs)
    for tool, row in record["twins"].items():
        text += f"\n{tool}: {row['launches finished']} twins launched, accused {', '.join(row['accused']) or 'none'}"
    out.with_suffix(".txt").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--launch"]:
        launch_all(sys.argv[3:], fixed=sys.argv[2] == "fixed")
    elif not shutil.which("compute-sanitizer"):
        sys.exit("sanitizers.py needs compute-sanitizer on the PATH, and a GPU")
    else:
        main()
