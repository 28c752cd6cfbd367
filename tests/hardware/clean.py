"""All kernels under compute-sanitizer's four tools, as a record: python -m hardware.clean OUT.json

`all_steps` and `norm_family` run in shares, once without a tool, which compiles their kernels, then under each tool, all
at the same time. The exit status is 1 where a tool reports an error, or a script does not reach its end under it.
"""

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from hardware import machine

HERE = Path(__file__).parent
SHARES = {"norm_family": 4, "all_steps": 12}
SCRIPTS = [f"{script} {share} {shares}" for script, shares in SHARES.items() for share in range(shares)]
TOOLS = {"memcheck": ("--report-api-errors", "no"), "racecheck": (), "initcheck": (), "synccheck": ()}
SECONDS = 500
WITHIN = re.compile(r"^\d+ \w+ are within their bounds.*$", re.MULTILINE)
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")


def run(script: str, *under: str) -> str:
    """What a script said, under a tool or not."""
    name, *share = script.split()
    command = [*under, sys.executable, str(HERE / f"{name}.py"), *share]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
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


def main(out: Path) -> int:
    """Write the record, and print it as a table."""
    with ThreadPoolExecutor(4 * len(SCRIPTS)) as pool:
        compiled = list(pool.map(run, SCRIPTS))
        print(*(verdict(said)["checked"] for said in compiled), sep="\n", flush=True)
        pairs = list(product(SCRIPTS, TOOLS))
        said = pool.map(lambda pair: run(pair[0], "compute-sanitizer", "--tool", pair[1], *TOOLS[pair[1]]), pairs)
        found = {f"{script}, {tool}": verdict(words) for (script, tool), words in zip(pairs, said, strict=True)}
    out.write_text(json.dumps({"what": "clean", **machine.provenance(), "tools": found}, indent=1))
    for what, one in found.items():
        print(f"{what:<24} {one['errors']} errors; {one['checked']}")
    return int(any(one["errors"] != 0 or not WITHIN.match(one["checked"]) for one in found.values()))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
