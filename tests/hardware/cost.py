"""Time the plans of drawn shapes, for the cost model: PYTHONPATH=tests python -m hardware.cost FILE.json

Each result is compared with float64 before it is timed. Kernels are compiled by all processors first.
"""

import json
import sys
import time
from functools import partial
from typing import Any

from hardware import sweep
from hardware.lengths import truth
from hardware.sweep import Task
from normlab.bench.sweep import draw

SEEDS = {"fitted": 6007, "held out": 6011}
COUNT = 100  # draws of each seed; a backward is timed from the input and from the output
LARGE, THINNED = 2**20, 3  # of the draws with fewer elements every third is timed: they are most, and launches mostly
SECONDS = 60  # to spend on timing: later draws are left out


def tasks() -> list[tuple[str, Task]]:
    """Return all of them, with the set that each is of, the sets in turns."""
    drawn = {name: draw(seed, COUNT) for name, seed in SEEDS.items()}
    return [
        (name, Task(one.direction, one.norm, one.dtype, saved, one.n2, None, one.n1))
        for number, both in enumerate(zip(*drawn.values(), strict=True))
        for name, one in zip(drawn, both, strict=True)
        if one.n1 * one.n2 >= LARGE or number % THINNED == 0
        for saved in (("input", "output") if one.direction == "backward" else ("input",))
    ]


def right(task: Task, data: Any, result: Any) -> bool:
    """Is a result near float64's, at the first and the last rows?"""
    import torch

    n1 = task.problem.n1
    rows = torch.unique(torch.cat([torch.arange(min(n1, 40)), torch.arange(max(0, n1 - 40), n1)])).cuda()
    want = truth(task, data, rows)
    # the saved output was rounded before x̂ was computed from it
    largest = 2e-2 if task.memory_efficient else 5e-3
    return bool((result[rows].double() - want).norm() <= largest * (want.norm() + 1e-3 * want.numel() ** 0.5))


def measured(name: str, task: Task, timer: Any) -> dict[str, Any]:
    """Return one row of the record."""
    import torch

    data = task.problem.draw("cuda")
    call = sweep.calls(task, data)
    ok = right(task, data, call()[0])
    copy = timer(partial(torch.empty_like(data.x).copy_, data.x)).median
    row = {"set": name, "direction": task.direction, "norm": task.norm, "dtype": task.dtype, "saved": task.saved}
    row |= {"n1": task.problem.n1, "n2": task.n2, "right": ok}
    return row | {"us": round(timer(call).median * 1e6, 3), "copy_us": round(copy * 1e6, 3)}


def main() -> None:
    """Compile, check, time and write."""
    from normlab.measure.provenance import provenance
    from normlab.measure.timing import METHOD, EventTimer

    wanted = tasks()
    start = time.monotonic()
    # a backward needs its forward's results
    sweep.compile_all(list({one for _, task in wanted for one in (task, task._replace(direction="forward"))}))
    print(f"compiled after {time.monotonic() - start:.0f} s", flush=True)
    timer, start, rows = EventTimer(), time.monotonic(), []
    for name, task in wanted:
        try:
            rows.append(measured(name, task, timer))
        except Exception as error:
            print(task, error, flush=True)
        if time.monotonic() - start > SECONDS:
            print(f"{len(rows)} of {len(wanted)} in time")
            break
    command = f"python -m hardware.cost {sys.argv[1].rsplit('/', 1)[-1]}"
    with open(sys.argv[1], "w") as file:
        json.dump({"what": "cost", **provenance(), "command": command, "method": METHOD, "rows": rows}, file, indent=1)
    print("wrong:", [row for row in rows if not row["right"]])
    print(f"timed {len(rows)} after {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
