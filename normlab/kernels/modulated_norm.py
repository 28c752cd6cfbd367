"""Plan a LayerNorm whose scale and shift are one row per sample, as DiT and other adaptive norms have it.

    output = x̂ (1 + scale) + shift        x: (samples, rows of a sample, n2), scale and shift: (samples, n2)

The fastest steps of both ladders do this themselves: a block of the forward's step 6 stages the parameters of its rows'
sample (`stages.sampled`), with an offset of 1, and each cluster of the pipelined backward takes rows of one sample
(`pipelined.samples`).

What they refuse is done apart (`apart`): by the norm without parameters, and kernels that modulate the output, scale
its gradient, and add up the gradients of scale and shift. The last reads x and dy again.
"""

from dataclasses import replace
from functools import cache
from typing import Any

from normlab.engine import accumulator, cast, cuda, load, load_vector_into, store, store_vector_from
from normlab.kernels.apart import Apart, described, together
from normlab.kernels.backward import step_3_pipelined
from normlab.kernels.forward import step_6_one_barrier, step_7_clusters
from normlab.kernels.plan import GRID_LIMIT, GRID_LIMIT_Y, Chains, Device, PersistentPlan, Plan, Refusal, Scratch, Work
from normlab.kernels.problem import BackwardProblem, ForwardProblem
from normlab.kernels.step import Rung
from normlab.stages.recompute import normalised_from_input
from normlab.stages.vector import widest

THREADS = 256  # per block
ABSENT = "weight", "bias", "grad_weight", "grad_bias"  # from the plain norm
NORMALISED, SCALED = "normalised", "scaled"  # scratch: x̂, and dy (1 + scale)


@cache
def build_modulate_rows(dtype: Any, width: int) -> Any:
    """Return the kernel `modulate_rows` for an accumulator dtype and vectors of `width` elements."""

    @cuda.jit
    def modulate_rows(source, scale, shift, result):
        """Write source (1 + scale) + shift, both (samples, n2); shift may be None. source, result: (n1, n2)."""
        values = cuda.local.array(width, dtype)
        scales = cuda.local.array(width, dtype)
        shifts = cuda.local.array(width, dtype)
        rows = result.shape[0] // scale.shape[0]
        row = cuda.blockIdx.x
        while row < result.shape[0]:
            column = cuda.threadIdx.x * width
            while column < result.shape[1]:
                load_vector_into(values, 0, source, (row, column), width)
                load_vector_into(scales, 0, scale, (row // rows, column), width)
                if shift is not None:
                    load_vector_into(shifts, 0, shift, (row // rows, column), width)
                for k in range(width):
                    # In accumulator precision: added in 16 bits, the 1 would cut off the scale's last digits.
                    values[k] *= scales[k] + cast(1, values)
                    if shift is not None:
                        values[k] += shifts[k]
                store_vector_from(result, (row, column), values, 0, width)
                column += THREADS * width
            row += cuda.gridDim.x

    return modulate_rows


@cuda.jit
def sum_samples(grad_output, saved, mean, invvar, grad_weight, grad_bias):
    """Write the sums of dy x̂ and of dy over each sample's rows. A thread has a column of a sample."""
    column = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    # Blocks lie along x over the columns, so the threads of a warp read neighbouring columns of a row.
    rows = saved.shape[0] // grad_weight.shape[0]
    if column < saved.shape[1]:
        # A grid has fewer blocks along y than there may be samples.
        for sample in range(cuda.blockIdx.y, grad_weight.shape[0], cuda.gridDim.y):
            sum_weight = cast(0, invvar)
            sum_bias = cast(0, invvar)
            for row in range(sample * rows, (sample + 1) * rows):  # one row after the other: always the same order
                grad = load(grad_output, (row, column))
                value = load(saved, (row, column))
                sum_weight += grad * normalised_from_input(value, load(mean, row), load(invvar, row))
                sum_bias += grad
            store(grad_weight, (sample, column), sum_weight)
            store(grad_bias, (sample, column), sum_bias)


def plan_forward(problem: ForwardProblem, device: Device) -> Plan | PersistentPlan | Refusal:
    """Return the plan that modulates the output of a norm without parameters."""
    scratch = Scratch(NORMALISED, problem.shape, problem.invvar.dtype)
    names = NORMALISED, "weight", "bias", "output"
    last = _modulating(problem, names, problem.weight, problem.bias, problem.output)
    part = Apart("the output is modulated last", ("output", NORMALISED), (), (last,), (scratch,), ABSENT[:2])
    plain = replace(problem, weight=None, bias=None, offset=0.0, sampled=False, output=described(scratch))
    answer = step_7_clusters.STEP.first_answer(plain, device)
    return together([part], answer)


def plan_backward(problem: BackwardProblem, device: Device) -> Plan | PersistentPlan | Refusal:
    """Return the plan that scales dy first, and adds up the gradients of scale and shift last."""
    n1, n2 = problem.shape
    samples = problem.weight.shape[0]
    scratch = Scratch(SCALED, problem.shape, problem.invvar.dtype)
    names = "grad_output", "weight", None, SCALED
    first = _modulating(problem, names, problem.weight, problem.grad_output)
    given = "grad_output", "saved", "mean", "invvar", "grad_weight", "grad_bias"
    last = Work(_sum_samples, (), (-(-n2 // THREADS), min(samples, GRID_LIMIT_Y)), THREADS, given)
    words = "the gradient is scaled first, those of scale and shift are added up last"
    part = Apart(words, ("grad_output", SCALED), (first,), (last,), (scratch,), ABSENT)
    none: dict[str, Any] = dict.fromkeys(ABSENT)
    # dy (1 + scale) is the gradient at x̂, for which a norm without parameters has the rest of the backward.
    plain = replace(problem, **none, offset=0.0, sampled=False, grad_output=described(scratch))
    answer = step_3_pipelined.STEP.first_answer(plain, device)
    found = together([part], answer)
    # A thread adds up its sample's rows alone, so nothing is merged.
    columns = Chains(n1 // samples, 0)
    if isinstance(found, PersistentPlan):
        # The plain norm's plan, which is made at the launch, has no sums over rows and says so: put these in its place.
        finish = found.plan
        return found._replace(plan=lambda resident: replace(finish(resident), columns=columns))
    return found if isinstance(found, Refusal) else replace(found, columns=columns)


def _sum_samples() -> Any:
    return sum_samples


def _modulating(problem: Any, names: tuple, *arrays: Any) -> Work:
    """Return the kernel that modulates rows, with operands by these names; arrays: for the width of vectors."""
    n1, n2 = problem.shape
    options = accumulator(problem.invvar), widest(n2, *arrays)
    return Work(build_modulate_rows, options, min(n1, GRID_LIMIT), THREADS, names)


FORWARD = Rung("modulated_norm", "the norm's kernel modulates", (step_6_one_barrier.plan, plan_forward))
BACKWARD = Rung("modulated_norm", "a cluster takes rows of one sample", (step_3_pipelined.plan, plan_backward))
