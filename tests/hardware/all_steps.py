"""Every step of the ladders on a GPU, held to its bounds: python tests/hardware/all_steps.py [SHARE SHARES [CLUSTER]]

A share of SHARES is number SHARE, …, of the problems, for as many processes, which compile that many kernels. Norms
whose kernels come in clusters of more than CLUSTER blocks are left out.
`h200.sh clean` runs it under compute-sanitizer's tools. A few sizes go through all steps, by both paths and the exact
one; drawn sizes go through the last steps, until every variant of their kernels has run (`one_of_each_variant`). The
surveys behind an optimizer's step and the products follow.
"""

import math
import random
import sys
from collections.abc import Iterator
from functools import cache, partial
from itertools import product
from pathlib import Path

import ml_dtypes
import numpy as np

if not __package__:  # run as a script
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from draws import Case
from examine import examine_backward, examine_forward, examine_survey

from normlab import sgemm
from normlab.engine import gpu_available, using
from normlab.kernels import LADDERS, Device, Plan, Problem
from normlab.kernels.exact.survey import launch_survey
from normlab.oracle import assert_within

DTYPES = ("float32", "bfloat16")
ROWS = [(3, 1), (140, 96), (9, 770)]
LONG = [(300, 768), (12, 4096), (70, 5120), (40, 8192), (20, 16384), (3, 65536), (2, 65540)]
LONG += [(1, 65536), (1, 262144)]  # whose parameters have a cluster of their own
LONG += [(9, 262148), (3, 300001)]  # which are cut into pieces
PATHS = False, True  # from the input, from the output
ALL_PATHS = *PATHS, "exact"
# (n1, n2), dtype, RMSNorm?, how many steps of each ladder, the last ones (0: all), and the backward's paths
NORMS = [
    *((*one, 0, ALL_PATHS) for one in product(ROWS, DTYPES, (False, True))),
    *((*one, 1, ALL_PATHS) for one in product(LONG, DTYPES, (False, True))),  # whose layouts depend on n2
    *((*one, 0, ALL_PATHS) for one in product([(5, 33)], ("float16", "float64"), (False, True))),
]
DRAWN, LARGEST = 4000, 2**22  # problems, of at most so many elements
SURVEYS = [*product(("float16", *DTYPES), ((True, True), (True, False), (False, True)))]
PRODUCTS = [(1, 1, 1), (7, 33, 129), (129, 257, 33), (300, 516, 260)]


def draw(n1: int, n2: int, dtype: str, rms: bool) -> Case:
    """Some gammas are clamped."""
    rng = np.random.default_rng(n1 + n2)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    x, grad = (rng.normal(size=(n1, n2)).astype(kind) for _ in range(2))
    weight, bias = (rng.normal(size=n2).astype(kind) for _ in range(2))
    weight[::7] = 1e-4
    return Case(x, weight, None if rms else bias, grad, 1e-3, rms)


@cache
def one_of_each_variant(device: Device) -> list[tuple]:
    """Draw problems, and return the smallest ones that have every variant of the last steps' kernels among them."""
    rng, drawn = random.Random(0), []
    for _ in range(DRAWN):
        n2 = int(300_000 ** rng.random())
        if rng.random() < 0.5:
            n2 = max(8, n2 // 8 * 8)  # rows of whole vectors; most others are not
        n1 = int(max(2, LARGEST / n2) ** rng.random())
        drawn.append(((n1, n2), rng.choice(DTYPES), rng.random() < 0.5, 1, PATHS))
    kept, seen = [], set()
    for one in sorted(drawn, key=lambda one: math.prod(one[0])):
        found = set(variants(*one[:3], device))
        if not found <= seen:
            kept.append(one)
            seen |= found
    return kept


def variants(rows: tuple[int, int], dtype: str, rms: bool, device: Device) -> Iterator[tuple]:
    """Yield what tells the kernels of the last steps apart: builder, norm, and each of its layout's yes-or-no facts."""
    for plan in plans(rows, dtype, rms, device):
        for work in plan.work:
            yield work.build.__module__, work.build.__name__, rms, *facts(plan)


def plans(rows: tuple[int, int], dtype: str, rms: bool, device: Device) -> Iterator[Plan]:
    """Yield the last steps' plans: forward, and backward from the input and from the output."""
    for direction, saved in (("forward", "input"), ("backward", "input"), ("backward", "output")):
        asked = Problem(direction, "rms" if rms else "layer", *rows, dtype, saved=saved)
        yield LADDERS[direction][-1].plan(asked, device)


def facts(plan: Plan) -> Iterator[tuple]:
    """Yield the layout's fields; of a number only whether it is 0, 1 or more."""
    layout = {} if plan.layout is None else plan.layout._asdict()
    for name, value in layout.items():
        yield name, min(value, 2) if isinstance(value, int) else value is None


def norm(rows: tuple[int, int], dtype: str, rms: bool, last: int, paths: tuple) -> int:
    """Hold steps of both ladders to their bounds on a problem; how many there were."""
    case = draw(*rows, dtype, rms)
    forward, backward = (LADDERS[direction][-last:] for direction in ("forward", "backward"))
    for step in forward:
        examine_forward(case, step)
    for step, path in product(backward, paths):
        examine_backward(case, None, step, path)
    return len(forward) + len(paths) * len(backward)


def surveys(dtype: str, given_parameters: tuple[bool, bool]) -> int:
    """Ask about the columns of norms that have a weight, a bias or both; how many norms there were."""
    sizes = [1, 33, 1500, 4096]
    examine_survey(launch_survey, sizes, dtype, given_parameters, seed=0)
    return len(sizes)


def products(m: int, n: int, k: int) -> int:
    """Hold every step of the SGEMM ladder to its bounds, with and without C; how many there were."""
    rng = np.random.default_rng(0)
    a, b, c = (rng.normal(size=size).astype(np.float32) for size in ((m, k), (k, n), (m, n)))
    for step, beta in product(LADDERS["sgemm"], (0.0, 1.0)):
        want = a.astype(np.float64) @ b + beta * c
        bound = (k + 3) * 2.0**-24 * (abs(a).astype(np.float64) @ abs(b) + beta * abs(c))
        assert_within(sgemm(a, b, c, 1.0, beta, step=step.name), want, bound, f"{step.name} {m} x {n} x {k}")
    return 2 * len(LADDERS["sgemm"])


def norms(device: Device, cluster: int) -> list[tuple]:
    """Return the norms to run, without those whose kernels come in clusters of more blocks."""
    found = (*NORMS, *one_of_each_variant(device))
    return [
        one for one in found if all(work.cluster <= cluster for plan in plans(*one[:3], device) for work in plan.work)
    ]


def check(share: int, shares: int, cluster: int = 16) -> int:
    """Run a share of all of them; how many there were. AssertionError where one is off by more than its bound."""
    jobs = [partial(norm, *one) for one in norms(Device.of(np.empty(0, np.float32)), cluster)]
    jobs += [partial(surveys, *one) for one in SURVEYS] + [partial(products, *size) for size in PRODUCTS]
    return sum(job() for job in jobs[share::shares])


if __name__ == "__main__":
    if not gpu_available():
        sys.exit("tests/hardware/all_steps.py needs an NVIDIA GPU")
    with using("gpu"):
        print(f"{check(*map(int, sys.argv[1:] or (0, 1)))} results are within their bounds")
