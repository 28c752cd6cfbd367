"""What binds the fast steps, by ncu, in one launch each: PYTHONPATH=tests python -m hardware.profile OUT.json

The record holds, for every problem, the time, how busy the memory, the issue slots and the shared memory are, the warps
that are resident, and for which reasons they wait. Clocks are left as they are. Kernels are compiled first, as for a
sweep.
"""

import json
import sys
from pathlib import Path

from hardware import counters, machine
from hardware.sweep import Task, calls, compile_all

SECONDS = 500
FORWARD = {
    "bfloat16": [("layer", 768), ("layer", 1024), ("layer", 65536), ("rms", 768), ("rms", 8192), ("rms", 65536)],
    "float16": [("layer", 1024), ("rms", 8192)],
    "float32": [("rms", 2048), ("rms", 4096), ("rms", 16384), ("rms", 65536)],
}
BACKWARD = {
    "bfloat16": [
        ("layer", "input", 1024), ("layer", "input", 4096), ("layer", "input", 8192), ("layer", "input", 16384),
        ("layer", "input", 65536), ("rms", "input", 16384), ("rms", "input", 65536),
        ("layer", "output", 1024), ("layer", "output", 4096), ("layer", "output", 16384), ("layer", "output", 65536),
        ("rms", "output", 4096), ("rms", "output", 16384),
    ],
    "float16": [("layer", saved, n2) for saved in ("input", "output") for n2 in (8192, 65536)],
    "float32": [("rms", "input", 8192)],
}  # fmt: skip
ONE_ROW = [("forward", "layer"), ("backward", "layer"), ("backward", "rms")]  # of 262,144 float32, from the input
KERNELS = "regex:(forward|backward)_(pipelined|fused|one_barrier|clusters|vectors)"
STALLS = (
    "barrier", "branch_resolve", "dispatch_stall", "drain", "lg_throttle", "long_scoreboard", "math_pipe_throttle",
    "membar", "mio_throttle", "no_instruction", "not_selected", "selected", "short_scoreboard", "sleeping",
    "tex_throttle", "wait",
)  # fmt: skip
STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
METRICS = {
    "microseconds": "gpu__time_duration.sum",
    "memory %": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue %": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "shared memory %": "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed",
    "l1 data pipe %": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "alu %": "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",
    "fma %": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "warps a multiprocessor": "sm__warps_active.avg.per_cycle_active",
    "instructions": "smsp__inst_executed.sum",
    "registers": "launch__registers_per_thread",
    "clock MHz": "smsp__cycles_elapsed.avg.per_second",
}


def problems() -> list[Task]:
    """Those worth a look: the ones that miss their bar, and their neighbours."""
    found = [Task("forward", norm, dtype, "input", n2, None) for dtype, some in FORWARD.items() for norm, n2 in some]
    for dtype, some in BACKWARD.items():
        found += [Task("backward", norm, dtype, saved, n2, None) for norm, saved, n2 in some]
    return found + [Task(direction, norm, "float32", "input", 2**18, None, n1=1) for direction, norm in ONE_ROW]


def launch_all() -> None:
    """Each once, under ncu; the forwards that a backward needs are launched too, and told apart by their order."""
    for task in problems():
        calls(task, task.problem.draw("cuda"))()


Row = tuple[str, dict[str, float]]


def matched(tasks: list[Task], rows: list[Row]) -> list[tuple[Task, Row]]:
    """Each task with the launch that is its own: of ncu's rows, in their order, the next of the task's direction.

    Raises:
        ValueError: the rows end before the tasks do.
    """
    left, found = iter(rows), []
    for task in tasks:
        own = next((row for row in left if task.direction in row[0]), None)  # a forward goes before a backward
        if own is None:
            raise ValueError(f"ncu's rows end before {task}")
        found.append((task, own))
    return found


def main(out: Path) -> None:
    """Write the record, and print it as a table."""
    tasks = problems()
    before = {task._replace(direction="forward", saved="input") for task in tasks}  # what a backward needs
    compile_all([*before, *(task for task in tasks if task.direction == "backward")])
    raw = out.with_suffix(".csv")
    wanted = [*METRICS.values(), *(STALLED.format(reason) for reason in STALLS)]
    options = ["--clock-control", "none", "--kernel-name", KERNELS, "--csv", "--page", "raw", "--print-units", "base"]
    program = [sys.executable, "-m", "hardware.profile", "--launch"]
    _, said = machine.run(["ncu", *options, "--log-file", str(raw), "--metrics", ",".join(wanted), *program], SECONDS)
    rows = counters.parse(raw.read_text()) if raw.exists() else []
    try:
        pairs = matched(tasks, rows)
    except ValueError as error:
        sys.exit(f"{error}:\n{said[-2000:]}")
    found = []
    for task, (kernel, values) in pairs:
        short = {name: values.get(metric) for name, metric in METRICS.items()}
        short["microseconds"] = (values.get(METRICS["microseconds"]) or 0) / 1000
        short["clock MHz"] = (values.get(METRICS["clock MHz"]) or 0) / 1e6
        stalls = {reason: values.get(STALLED.format(reason), 0.0) for reason in STALLS}
        found.append({**task._asdict(), "n1": task.problem.n1, "kernel": kernel, **short, "stalls": stalls})
        most = sorted(stalls.items(), key=lambda one: -one[1])[:4]
        numbers = " ".join(f"{name} {value:.5g}" for name, value in short.items() if value is not None)
        print(f"{task.direction} {task.norm} {task.dtype} {task.saved} {task.problem.n1} x {task.n2}: {numbers}")
        print("     warps waiting for each that issues: " + ", ".join(f"{name} {value:.2f}" for name, value in most))
    record = {**machine.provenance(), "ncu": machine.tool_version("ncu"), "launches": found}
    out.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    if sys.argv[1] == "--launch":
        launch_all()
    else:
        main(Path(sys.argv[1]))
