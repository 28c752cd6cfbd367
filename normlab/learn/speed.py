"""What was measured at the shape nearest to a problem's: how `explain` answers "how fast is it?" without a GPU."""

import math
from typing import Any

from normlab.kernels import Problem
from normlab.kernels.sgemm.product import ProductProblem
from normlab.measure import files
from normlab.stages.vector import BYTES

OURS = {"input": "normlab", "output": "normlab-me"}  # what the backward starts from → its name in a record
OTHER_VECTORS = 8  # rows of whole vectors count as far from rows of others as from rows of 8 times the length


def measured_lines(problem: Any, step: str) -> list[str]:
    """Return the records' speed at the nearest shape; [] where there is no record. step: of the plan."""
    if isinstance(problem, ProductProblem):
        return _of_product(problem, step)
    return _of_norm(problem) if isinstance(problem, Problem) else []


def _of_norm(problem: Problem) -> list[str]:
    """Return the fractions of a copy's speed at the nearest shape."""
    wanted = {"direction": problem.direction, "norm": problem.norm, "dtype": problem.dtype}
    own = OURS[problem.saved if problem.direction == "backward" else "input"]
    names = {f"norm_{problem.dtype}_h200", "norm_short_h200", "norm_long_h200", "sweep_h200"} & set(files.known())
    alike = [
        (record["gpu"], row)
        for record in map(files.record, sorted(names))
        for row in record["rows"]
        if wanted.items() <= row.items() and row["contenders"].get(own, {}).get("status") == "ok"
    ]
    if not alike:
        return []
    gpu, row = min(alike, key=lambda one: _shapes_apart(problem, one[1]["n1"], one[1]["n2"]))
    fractions = {name: entry["of_copy"] for name, entry in row["contenders"].items() if entry["status"] == "ok"}
    lines = [
        f"{fractions[own]:.2f} of a copy's, {row['contenders'][own]['median_us']:,.0f} us: measured on an {gpu} at "
        f"{row['n1']:,} x {row['n2']:,}, the nearest",
        f"others there: {', '.join(f'{name} {fractions[name]:.2f}' for name in fractions if name[:7] != 'normlab')}",
    ]
    shape = f"--norm {problem.norm} --direction {problem.direction} --dtype {problem.dtype}"
    return [*lines, f"on your GPU: normlab bench norm {shape} --n1 {problem.n1} --n2 {problem.n2}"]


def _of_product(problem: ProductProblem, step: str) -> list[str]:
    """Return the fraction of cuBLAS's speed at the nearest size."""
    records = [files.record(name) for name in files.known() if name.startswith("ladder_sgemm_")]
    size = problem.m * problem.n * problem.k
    made = min(records, key=lambda one: _apart(one["m"] * one["n"] * one["k"], size))
    found = next((entry for entry in made["steps"] if entry["step"] == step), None)
    if found is None:
        return []
    return [
        f"{found['of_cublas']:.2f} of cuBLAS's, {found['median_us']:,.0f} us: measured on an {made['gpu']} at "
        f"{made['m']:,} x {made['n']:,} x {made['k']:,}, the nearest",
        f"on your GPU: normlab bench ladder sgemm --size {problem.m}x{problem.n}x{problem.k}",
    ]


def _shapes_apart(problem: Problem, n1: int, n2: int) -> float:
    """Return how far a shape is from a problem's."""
    elements = BYTES // problem.itemsize
    alike = (n2 % elements == 0) == (problem.n2 % elements == 0)
    return _apart(n1, problem.n1) + _apart(n2, problem.n2) + (0 if alike else math.log(OTHER_VECTORS))


def _apart(one: int, other: int) -> float:
    """Return how far apart two sizes are, the same up and down."""
    return abs(math.log(one / other))
