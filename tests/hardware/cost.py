"""Fit the constants of the cost model to measured plans, and measure these.

    PYTHONPATH=tests python -m hardware.cost FILE.json      # on a GPU: times plans at drawn shapes, in two sets
    PYTHONPATH=tests python -m hardware.cost                # anywhere: fits to the first set and to the tables' shapes

Each result is compared with float64 before it is timed. Kernels are compiled by all processors first.
"""

import json
import sys
from functools import partial
from random import Random
from typing import Any

from hardware import sweep
from hardware.lengths import truth
from hardware.sweep import Task
from normlab.bench import predicted
from normlab.bench.contenders import OURS, RECOMPUTED
from normlab.bench.problem import Problem
from normlab.bench.sweep import draw
from normlab.kernels.cost import FITTED, Constants
from normlab.measure.files import record

TABLES = "norm_bfloat16_h200"  # long runs, at the shapes of the plan tables: they say what bandwidth is attained
SEEDS = {"fitted": 6007, "held out": 6011}
COUNT = 100  # draws of each seed
LARGE, THINNED = 2**20, 3  # of the draws with fewer elements every third is timed: they are most, and launches mostly
TURNS = 4000  # of the search: more change no constant by 2 %
CHECKED = {OURS: 5e-3, RECOMPUTED: 2e-2}  # largest relative error; the saved output was rounded before x̂ was computed


def problems() -> list[tuple[str, Problem]]:
    """Return what is timed, with the set that each is of, the sets in turns."""
    drawn = {name: draw(seed, COUNT) for name, seed in SEEDS.items()}
    return [
        (name, one)
        for number, both in enumerate(zip(*drawn.values(), strict=True))
        for name, one in zip(drawn, both, strict=True)
        if one.n1 * one.n2 >= LARGE or number % THINNED == 0
    ]


def tasks(problem: Problem) -> dict[str, Task]:
    """Return what is timed of a problem, by the contender's name in a record."""
    saved = {name: how for name, how in predicted.SAVED.items() if name == OURS or problem.direction == "backward"}
    rest = problem.direction, problem.norm, problem.dtype
    return {name: Task(*rest, how, problem.n2, None, problem.n1) for name, how in saved.items()}


def right(task: Task, data: Any, result: Any, largest: float) -> bool:
    """Is a result near float64's, at the first and the last rows?"""
    import torch

    n1 = task.problem.n1
    rows = torch.unique(torch.cat([torch.arange(min(n1, 40)), torch.arange(max(0, n1 - 40), n1)])).cuda()
    want = truth(task, data, rows)
    return bool((result[rows].double() - want).norm() <= largest * (want.norm() + 1e-3 * want.numel() ** 0.5))


def measured(name: str, problem: Problem, timer: Any) -> dict[str, Any]:
    """Return one row of the record."""
    import torch

    data = problem.draw("cuda")
    copy = timer(partial(torch.empty_like(data.x).copy_, data.x)).median
    row = {"set": name, **vars(problem), "copy": {"median_us": round(copy * 1e6, 3)}, "contenders": {}}
    for contender, task in tasks(problem).items():
        call = sweep.calls(task, data)
        status = "ok" if right(task, data, call()[0], CHECKED[contender]) else "wrong"
        row["contenders"][contender] = {"status": status, "median_us": round(timer(call).median * 1e6, 3)}
    return row


def measure(path: str) -> None:
    """Compile, check, time and write."""
    from normlab.measure.provenance import provenance
    from normlab.measure.timing import METHOD, EventTimer

    wanted = [task for _, problem in problems() for task in tasks(problem).values()]
    # a backward needs its forward's results
    sweep.compile_all(list({one for task in wanted for one in (task, task._replace(direction="forward"))}))
    timer = EventTimer()
    rows = [measured(*one, timer) for one in problems()]
    command = f"python -m hardware.cost {path.rsplit('/', 1)[-1]}"
    with open(path, "w") as file:
        json.dump({"what": "cost", **provenance(), "command": command, "method": METHOD, "rows": rows}, file, indent=1)


def fit() -> None:
    """Search the constants with the least mean error on the sets that are fitted to, and print the errors on all."""
    drawn = predicted.timed(record("cost_h200"))
    sets = {name: [one for one in drawn if one.row["set"] == name] for name in SEEDS}
    sets |= {name: predicted.timed(record(name)) for name in (TABLES, "norm_float32_h200", "sweep_h100")}

    def loss(constants: Constants) -> float:
        found = predicted.errors([*sets["fitted"], *sets[TABLES]], constants)
        return sum(found) / len(found)

    random, best, size = Random(0), FITTED, 0.1
    for _ in range(TURNS):  # a step in a few of the constants, longer after each that helps
        other = Constants(*(one * (1 + size * random.gauss(0, 1) * (random.random() < 0.4)) for one in best))
        better = min(other) > 0 and loss(other) < loss(best)
        best, size = (other, min(0.4, 1.3 * size)) if better else (best, max(0.005, 0.985 * size))
    print(best)
    for name, some in sets.items():
        for said, constants in (("now", FITTED), ("best", best)):
            found = predicted.median_and_tail(predicted.errors(some, constants))
            print(f"{name:20} {len(some):4} plans, {said:5}: median {found[0]:.3f}, 90th percentile {found[1]:.3f}")


if __name__ == "__main__":
    measure(sys.argv[1]) if len(sys.argv) > 1 else fit()
