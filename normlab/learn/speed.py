"""What was measured at the shape nearest to a problem's: how `explain` answers "how fast is it?" without a GPU."""

import math
from typing import Any

from normlab.kernels import Problem
from normlab.measure import files

OURS = {"input": "normlab", "output": "normlab-me"}  # what the backward starts from → its name in a record


def measured_lines(problem: Any) -> list[str]:
    """Return the record's fractions of a copy's speed at the nearest row length; [] where there is no such record."""
    if not isinstance(problem, Problem) or f"norm_{problem.dtype}_h200" not in files.known():
        return []
    record = files.record(f"norm_{problem.dtype}_h200")
    alike = [row for row in record["rows"] if (row["direction"], row["norm"]) == (problem.direction, problem.norm)]
    if not alike:
        return []
    row = min(alike, key=lambda one: abs(math.log(one["n2"] / problem.n2)))
    own = OURS[problem.saved if problem.direction == "backward" else "input"]
    fractions = {name: entry["of_copy"] for name, entry in row["contenders"].items() if entry["status"] == "ok"}
    if own not in fractions:
        return []
    others = ", ".join(f"{name} {fractions[name]:.2f}" for name in fractions if not name.startswith("normlab"))
    shape = f"{row['n1']:,} x {row['n2']:,}"
    return [
        f"{fractions[own]:.2f} of a copy's, {row['contenders'][own]['median_us']:,.0f} us: measured on an "
        f"{record['gpu']} at {shape}, the nearest",
        f"others there: {others}",
        "at your shape, on your GPU: normlab bench norm",
    ]
