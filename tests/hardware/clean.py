"""All kernels under compute-sanitizer's four tools, as a record: python -m hardware.clean OUT.json

`all_steps` and `norm_family` run in shares, once without a tool, which compiles their kernels, then under each tool,
as many at a time as there are processors, on all GPUs of the machine. The exit status is 1 where a tool reports an
error, or a script does not reach its end under it. Synccheck does not see norms in clusters of 16 blocks, because it
reports errors there for a kernel that cannot have any (`one_barrier_for_all`); the record says whether it still does.
"""

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import cycle, product
from pathlib import Path

from hardware import machine

HERE = Path(__file__).parent
SHARES = {"norm_family": 4, "all_steps": 44}
SCRIPTS = [f"{script} {share} {shares}" for script, shares in SHARES.items() for share in range(shares)]
CLUSTER = {"synccheck": 8}  # blocks per cluster, at most, in `all_steps`
CONTROLS = "one_barrier_for_all 8", "one_barrier_for_all 16"
TOOLS = {"memcheck": ("--report-api-errors", "no"), "racecheck": (), "initcheck": (), "synccheck": ()}
SECONDS = 500
WITHIN = re.compile(r"^\d+ \w+ are within their bounds.*$", re.MULTILINE)
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")


def run(script: str, gpu: str, *under: str) -> str:
    """What a script said on one GPU, under a tool or not."""
    name, *share = script.split()
    command = [*under, sys.executable, str(HERE / f"{name}.py"), *share]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        return f"not done after {SECONDS} s"
    return done.stdout + done.stderr


def verdict(said: str) -> dict:
    """errors: how many a tool counted, or None; checked: the script's last line, or how it ended instead."""
    within, summary = WITHIN.search(said), SUMMARY.search(said)
    return {
        "errors": int(summary[1]) if summary else None,
        "checked": within[0] if within else f"did not reach its end: {said[-2000:]}",
    }


def limited(script: str, tool: str) -> str:
    """Return the script's command line, for `all_steps` with the largest cluster that the tool is right about."""
    return f"{script} {CLUSTER[tool]}" if script.startswith("all_steps") and tool in CLUSTER else script


def is_clean(found: dict) -> bool:
    """Return True if the tool counted no error and the script reached its end."""
    return found["errors"] == 0 and bool(WITHIN.match(found["checked"]))


def main(out: Path) -> int:
    """Print each as it ends, and write those that have into the record."""
    began, found = time.monotonic(), {}
    facts, gpus = {"what": "clean", **machine.provenance()}, cycle(machine.gpus())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for said in pool.map(run, SCRIPTS, gpus):
            print(f"{time.monotonic() - began:4.0f} s: compiled; {verdict(said)['checked']}", flush=True)
        jobs = {}
        for tool, script in (*product(TOOLS, SCRIPTS), *product(["synccheck"], CONTROLS)):
            under = "compute-sanitizer", "--tool", tool, *TOOLS[tool]
            jobs[pool.submit(run, limited(script, tool), next(gpus), *under)] = f"{script}, {tool}"
        for job in as_completed(jobs):
            one = found[jobs[job]] = verdict(job.result())
            said = f"{jobs[job]:<26} {one['errors']} errors; {one['checked']}"
            print(f"{time.monotonic() - began:4.0f} s: {said}", flush=True)
            missing = sorted(set(jobs.values()) - set(found))
            out.write_text(json.dumps({**facts, "missing": missing, "tools": dict(sorted(found.items()))}, indent=1))
    wrong_report = f"{CONTROLS[-1]}, synccheck"
    return int(any(one != wrong_report and not is_clean(said) for one, said in found.items()))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
