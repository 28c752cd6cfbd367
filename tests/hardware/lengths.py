"""Time lengths between those of the plan tables, beside a copy: PYTHONPATH=tests python -m hardware.lengths FILE.json

Each result is compared with float64 before it is timed. Kernels are compiled by all processors first.
"""

import json
import sys
from functools import partial
from typing import Any

from hardware import sweep
from hardware.sweep import Task

FORWARD = (1, 3, 7, 8, 15, 31, 63, 97, 100, 127, 129, 333, 520, 768, 1000, 1776, 2047, 3000, 4096, 5000, 5001, 8191)
FORWARD += (20480, 40000)
BACKWARD = (7, 31, 63, 100, 129, 255, 333, 520, 768, 2047, 3000, 4096, 5001, 20480, 40960, 81920, 163840)
LARGEST_ERROR = 5e-3  # of a bfloat16 result, norm of the error over norm of the truth; rounding alone makes 1.7e-3


def tasks() -> list[Task]:
    """All of them, in bfloat16."""
    lengths = {"forward": FORWARD, "backward": BACKWARD}
    return [
        Task(direction, norm, "bfloat16", "input", n2, None)
        for norm in ("layer", "rms")
        for direction, some in lengths.items()
        for n2 in some
    ]


def truth(task: Task, data: Any, rows: Any) -> Any:
    """The output's or grad_input's rows in float64."""
    import torch

    x, weight = data.x[rows].double().requires_grad_(), data.weight.double()
    if task.norm == "layer":
        output = torch.nn.functional.layer_norm(x, data.shape, weight, data.bias.double(), 1e-5)
    else:
        output = x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-5) * weight
    if task.direction == "forward":
        return output.detach()
    return torch.autograd.grad(output, x, data.grad_output[rows].double())[0]


def measured(task: Task, timer: Any) -> dict[str, Any]:
    """One row of the record."""
    import torch

    problem = task.problem
    data = problem.draw("cuda")
    rows = torch.cat([torch.arange(40), torch.arange(problem.n1 - 40, problem.n1)]).cuda()
    call, want = sweep.calls(task, data), truth(task, data, rows)
    error = float((call()[0][rows].double() - want).norm() / want.norm())
    assert error < LARGEST_ERROR, f"{task}: off by {error:.1e}"  # false for NaN
    copy = timer(partial(torch.empty_like(data.x).copy_, data.x)).median
    of_copy = copy * problem.bytes / (2 * problem.array_bytes) / timer(call).median
    return {"direction": task.direction, "norm": task.norm, "n2": task.n2, "of_copy": round(of_copy, 3)}


def main() -> None:
    """Compile, check, time and write."""
    from normlab.measure.provenance import provenance
    from normlab.measure.timing import METHOD, EventTimer

    wanted = tasks()
    sweep.compile_all(wanted)
    timer = EventTimer()
    rows = [measured(task, timer) for task in wanted]
    with open(sys.argv[1], "w") as file:
        command = f"python -m hardware.lengths {sys.argv[1].rsplit('/', 1)[-1]}"
        json.dump(
            {"what": "lengths", **provenance(), "command": command, "method": METHOD, "rows": rows}, file, indent=1
        )


if __name__ == "__main__":
    main()
