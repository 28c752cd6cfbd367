"""Normalise a row per thread: the textbook formula, read from top to bottom.

Idea: no thread needs another one.
Moves: x three times (mean, variance, write), y once. A thread uses one element of each 32-byte sector at a time,
because neighbouring threads are n2 elements apart.
Bound by: those sectors, which the cache throws out before their other elements are read, and by n2 additions one after
another.
Measured: 0.04 / 0.08 of a copy in bfloat16 / float32.
Next: give the row to a block, so that neighbouring threads read neighbouring elements.
"""

import math

from normlab.engine import cast, cuda, float32, load, store
from normlab.kernels.forward.operands import OPERANDS
from normlab.kernels.plan import Chains, Device, Plan, Work
from normlab.kernels.problem import ForwardProblem
from normlab.kernels.step import ForwardStep
from normlab.stages.recompute import affine, element, normalised_from_input

THREADS = 128


@cuda.jit
def forward_thread_per_row(x, weight, bias, eps, output, mean, invvar):
    """Normalise row `cuda.grid(1)`; arguments as in `ForwardStep`."""
    row = cuda.grid(1)
    if row >= x.shape[0]:  # the last block has more threads than rows
        return
    n2 = x.shape[1]
    # Mean pass; RMSNorm has none, and centres on 0.
    center = cast(0, invvar)
    if mean is not None:
        for column in range(n2):
            center += load(x, (row, column))
        center /= cast(n2, invvar)
        store(mean, row, center)
    # Variance pass. E[x²] - E[x]² would save it, and lose every digit where the mean is large (`stages.moments`).
    square_sum = cast(0, invvar)
    for column in range(n2):
        deviation = load(x, (row, column)) - center
        square_sum += deviation * deviation
    scale = float32(1) / math.sqrt(square_sum / cast(n2, invvar) + eps)
    store(invvar, row, scale)
    # Output pass.
    for column in range(n2):
        value = normalised_from_input(load(x, (row, column)), center, scale)
        store(output, (row, column), affine(value, element(weight, column), element(bias, column)))


def plan(problem: ForwardProblem, device: Device) -> Plan:
    """Return the plan, which does every problem."""
    n1, n2 = problem.shape
    work = Work(lambda: forward_thread_per_row, (), -(-n1 // THREADS), min(THREADS, n1), OPERANDS)
    why, reads = "a thread per row, whatever the row's length", 2 if problem.mean is None else 3
    return Plan("thread_per_row", (work,), why, row_chains_of(n2), reads=reads)


def row_chains_of(n2: int) -> Chains:
    """Return the chains along a row: all of it, by one thread."""
    return Chains(terms=n2, merges=0)


STEP = ForwardStep(
    name="thread_per_row",
    summary="a thread per row, three passes",
    ways=(plan,),
    row_chains=row_chains_of,
    simulated_seconds=lambda n1, n2: n2 * min(3e-6 * n1, 150e-6),  # a thread per row: few threads, many turns
    statistics="two_pass",
)
