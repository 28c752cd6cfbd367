"""Plan a norm of x + residual, and a norm whose gamma is weight + offset: what transformers ask for between two blocks.

The fastest steps of both ladders do this themselves. Step 6 of the forward adds the residual where it fetches a row,
and the pipelined backward adds the residual's gradient where it stores grad_input. Both add the offset where they read
the weight.

Both refuse float64 and rows that no block holds, and the backward refuses vectors that are too narrow for asynchronous
copies. Then the sum is done apart: a kernel adds the two matrices (or the offset to the weight), and the plain norm's
kernels do the rest. The results keep the same bounds, because a kernel hands a sum on in accumulator precision, or in
the dtype to which the sum is rounded anyway.
"""

from dataclasses import replace
from functools import cache
from typing import Any

from normlab.engine import cast, cuda
from normlab.kernels.apart import NO_ROW_MAP, Apart, combining, described, together
from normlab.kernels.backward import step_3_pipelined
from normlab.kernels.forward import step_6_one_barrier, step_7_clusters
from normlab.kernels.plan import Device, PersistentPlan, Plan, Refusal, Scratch, View, Work
from normlab.kernels.problem import BackwardProblem, ForwardProblem
from normlab.kernels.step import Rung

GAMMA, THROUGH_NORM = "gamma", "through_norm"  # scratch: weight + offset, and the gradient that comes through the norm


@cache
def adder(dtype: Any, offset: float) -> Any:
    """Return the device function `add(value, other, like)`: value + other + offset."""

    @cuda.jit(device=True)
    def add(value, other, like):
        total = value + other
        # A constant of the kernel: without an offset no addition is compiled.
        if offset:
            total += cast(offset, like)
        return total

    return add


def plan_forward(problem: ForwardProblem, device: Device) -> Plan | PersistentPlan | Refusal:
    """Return the plan that adds the residual and the offset first, in kernels of their own."""
    if problem.row_map is not None:
        return NO_ROW_MAP
    apart, plain = _with_gamma(problem)
    if problem.residual is not None:
        arrays = problem.x, problem.residual, problem.new_residual
        added = _adding(problem.invvar, ("x", "residual", "new_residual"), *arrays)
        apart.append(Apart("the residual is added", ("x", "new_residual"), before=(added,)))
        # The plain norm reads the sum from new_residual, rounded as the next layers will see it.
        plain = replace(plain, x=problem.new_residual, residual=None, new_residual=None)
    # The last step of the ladder, whose ways include those of earlier steps: so every plain norm has a plan.
    return together(apart, step_7_clusters.STEP.first_answer(plain, device))


def plan_backward(problem: BackwardProblem, device: Device) -> Plan | PersistentPlan | Refusal:
    """Return the plan that adds the offset first, and the residual's gradient last, in kernels of their own."""
    if problem.row_map is not None:
        return NO_ROW_MAP
    apart, plain = _with_gamma(problem)
    if problem.grad_residual is not None:
        # in accumulator precision, so that the sum is rounded once
        scratch = Scratch(THROUGH_NORM, problem.shape, problem.invvar.dtype)
        through = described(scratch)
        names = THROUGH_NORM, "grad_residual", "grad_input"
        added = _adding(problem.invvar, names, through, problem.grad_residual, problem.grad_input)
        words = "the norm's gradient goes to scratch, to which the residual's is added last"
        apart.append(Apart(words, ("grad_input", THROUGH_NORM), after=(added,), scratch=(scratch,)))
        plain = replace(plain, grad_input=through, grad_residual=None)
    return together(apart, step_3_pipelined.STEP.first_answer(plain, device))


def _with_gamma(problem: Any) -> tuple[list[Apart], Any]:
    """Return what makes gamma = weight + offset in scratch, and the problem with this gamma as its weight."""
    if not problem.offset or problem.weight is None:
        return [], replace(problem, offset=0.0)
    (n2,) = problem.weight.shape
    # Not in the weight's dtype: in 16 bits a weight near 0 would lose its digits beside an offset of 1.
    scratch = Scratch(GAMMA, (n2,), problem.invvar.dtype)
    gamma = described(scratch)
    # The kernel combines matrices: here of one row, and without a second operand, which counts as 0.
    names = View("weight", (1, n2)), None, View(GAMMA, (1, n2))
    added = _adding(problem.invvar, names, problem.weight, gamma, offset=problem.offset)
    apart = Apart("the offset is added", ("weight", GAMMA), before=(added,), scratch=(scratch,))
    return [apart], replace(problem, weight=gamma, offset=0.0)


def _adding(like: Any, names: tuple, *arrays: Any, offset: float = 0.0) -> Work:
    """Return the kernel that adds two operands into a third, by their names. arrays: for widths. like: invvar."""
    shape = arrays[0].shape if len(arrays[0].shape) == 2 else (1, *arrays[0].shape)
    return combining(shape, like, names, arrays, adder, offset)


FORWARD = Rung("add_norm", "the residual is added in the norm's kernel", (step_6_one_barrier.plan, plan_forward))
BACKWARD = Rung(
    "add_norm",
    "the residual's gradient is added in the norm's kernel",
    (step_3_pipelined.plan_by_length, plan_backward),
)
