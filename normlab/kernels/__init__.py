"""Collect the ladders: whole kernels, one file per step, each differing from the step before by one idea.

`LADDERS` maps each ladder's name to its steps in order: "forward", "backward", "sgemm" and "family", whose steps are
the passes of batch, instance and group norm. Tests, benchmarks, tutorials and `explain` walk it. Every step has a name,
a summary and `plan(problem, device)`. Adding a step is adding a file `step_N_name.py` that defines `STEP`.
"""

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from normlab.kernels import backward, forward, sgemm
from normlab.kernels.family.passes import PASSES
from normlab.kernels.plan import Chains, Device, Plan
from normlab.kernels.problem import BackwardProblem, ForwardProblem, Problem
from normlab.kernels.sgemm.product import Product, ProductStep
from normlab.kernels.step import BackwardStep, ForwardStep, Step


def _ladder(package: ModuleType) -> tuple[Any, ...]:
    # by their files, so that adding a step is adding a file
    files = [module.name for module in iter_modules(package.__path__) if module.name.startswith("step_")]
    files.sort(key=lambda file: int(file.split("_")[1]))  # step 10 comes after step 9
    return tuple(import_module(f"{package.__name__}.{file}").STEP for file in files)


# The fastest rungs on an H200: the whole ladders were measured at n2 = 4096 in bfloat16 (2026-11-20), and at 4096³.
BEST = {"forward": "clusters", "backward": "pipelined", "sgemm": "pipelined"}

LADDERS: dict[str, tuple[Any, ...]] = {
    "forward": _ladder(forward),
    "backward": _ladder(backward),
    "sgemm": _ladder(sgemm),
    "family": PASSES,
}

__all__ = [
    "BEST",
    "LADDERS",
    "BackwardProblem",
    "BackwardStep",
    "Chains",
    "Device",
    "ForwardProblem",
    "ForwardStep",
    "Plan",
    "Problem",
    "Product",
    "ProductStep",
    "Step",
]
