"""What L2 gives again of the matrices that SGEMM's blocks read, by ncu: PYTHONPATH=tests python -m hardware.l2 OUT.json

Beside it what `normlab.kernels.roofline` expects: the share of a wave's reads that another of its blocks has asked for,
the waves of the grid, and the blocks that a multiprocessor holds. Clocks are left as they are.
"""

import json
import sys
from pathlib import Path

from hardware import counters, machine
from normlab.kernels import LADDERS, Device
from normlab.kernels.roofline import l2_hit, waves
from normlab.kernels.sgemm.product import ProductProblem
from normlab.stages.lanes import blocks_in_bands, blocks_in_rows

SECONDS = 200
SIZES = 4096, 8192
BAND = 8
PLACES = {"z_order": blocks_in_rows, "double_buffer": blocks_in_rows, "block_order": blocks_in_bands(BAND)}
FROM_MEMORY, WAVES = "dram__bytes_read.sum", "launch__waves_per_multiprocessor"
BLOCKS = "launch__occupancy_limit_registers"
METRICS = FROM_MEMORY, WAVES, BLOCKS
KERNELS = "regex:sgemm_(tiled|buffered)"
MULTIPROCESSORS = 132


def launch_all() -> None:
    """Each product once."""
    import torch

    from normlab import sgemm

    for size in SIZES:
        a, b = (torch.randn(size, size, device="cuda") for _ in range(2))
        for step in PLACES:
            sgemm(a, b, step=step)


def rows_of(launches: list[tuple[str, dict[str, float]]]) -> list[dict]:
    """What was measured of each launch, and what is expected."""
    problem, device = ProductProblem(SIZES[0], SIZES[0], SIZES[0]), Device.named("h200")
    tiles = {step.name: step.plan(problem, device).layout.tile for step in LADDERS["sgemm"] if step.name in PLACES}
    problems = [(size, name) for size in SIZES for name in PLACES]
    found = []
    for (size, name), (_, values) in zip(problems, launches, strict=True):
        rows, columns, _ = tiles[name]
        down, across = size // rows, size // columns
        asked = down * across * (rows + columns) * size * 4
        at_once = MULTIPROCESSORS * int(values[BLOCKS])
        found.append({
            "step": name, "size": size, "bytes_asked": asked, "bytes_from_memory": values[FROM_MEMORY],
            "l2_hit": round(1 - values[FROM_MEMORY] / asked, 4), "waves": values[WAVES],
            "expected_l2_hit": round(l2_hit(rows, columns, down, across, at_once, PLACES[name].py_func), 4),
            "expected_waves": round(waves(down * across, at_once).full, 2),
        })  # fmt: skip
    return found


def main(out: Path) -> None:
    """Write the record, and print it as a table."""
    raw = out.with_suffix(".csv")
    options = ["--clock-control", "none", "--kernel-name", KERNELS, "--csv", "--print-units", "base"]
    program = [sys.executable, "-m", "hardware.l2", "--launch"]
    command = ["ncu", *options, "--log-file", str(raw), "--metrics", ",".join(METRICS), *program]
    _, said = machine.run(command, SECONDS)
    launches = counters.parse(raw.read_text()) if raw.exists() else []
    if not launches:
        sys.exit(f"ncu has measured nothing:\n{said[-2000:]}")
    found = rows_of(launches)
    for row in found:
        print(*(f"{name} {value}" for name, value in row.items()), sep=", ")
    record = {"what": "l2", **machine.provenance(), "ncu": machine.tool_version("ncu"), "rows": found}
    out.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    if sys.argv[1] == "--launch":
        launch_all()
    else:
        main(Path(sys.argv[1]))
