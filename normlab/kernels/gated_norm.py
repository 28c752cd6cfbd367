"""Plan an RMSNorm with a gate, as Mamba-2 and Qwen3-Next have it: silu(z) times the norm's output, or times its input.

The fastest steps of both ladders do this themselves (`stages.gate`). Step 6 of the forward fetches the gate beside a
row, and the pipelined backward makes the gate's gradient in the pass that makes grad_input.

What they refuse is done apart (`apart`), with the same stages in kernels of one element after another:

    forward     combine_rows                the norm's output, from scratch, or its input, to scratch
    backward    pass_gate                   what was normalised, and the gradient at x̂ γ, to scratch as far as needed
                the plain norm's backward
                pass_gate                   the gradients of the gate and, with the gate before the norm, of x
"""

from dataclasses import replace
from functools import cache
from typing import Any

from normlab.engine import accumulator, cuda, load, load_vector_into, store_vector_from
from normlab.kernels.apart import NO_ROW_MAP, THREADS, Apart, combining, described, together
from normlab.kernels.backward import step_3_pipelined
from normlab.kernels.forward import step_6_one_barrier, step_7_clusters
from normlab.kernels.plan import GRID_LIMIT, Device, PersistentPlan, Plan, Refusal, Scratch, Work
from normlab.kernels.problem import BackwardProblem, ForwardProblem
from normlab.kernels.step import Rung
from normlab.stages.gate import Gate, gated_gradients, gated_normaliser, silus
from normlab.stages.vector import widest

GATED, NORMALISED = "gated", "normalised"  # scratch: x silu(z), or x as recomputed; x̂ γ before it is gated
ABSENT = "gate", "grad_gate"  # from the plain norm
GRAD, THROUGH_NORM = "grad_gated", "through_norm"  # scratch: the gradients at x̂ γ, and at what was normalised


@cache
def gater(dtype: Any) -> Any:
    """Return the device function `gated(value, z, like)`: value silu(z)."""
    silu, _ = silus(dtype)

    @cuda.jit(device=True)
    def gated(value, z, like):
        return value * silu(z, like)

    return gated


@cache
def build(dtype: Any, width: int, gating: Gate, weighted: bool, leaving: bool) -> Any:
    """Return the kernel `pass_gate` for an accumulator dtype, vectors of `width` elements, and a gate.

    leaving: False before the plain norm's backward, True after it.
    """
    (_, silu_and_slope), xhat_and_grad = silus(dtype), gated_normaliser(gating, dtype)
    both = gated_gradients(gating)

    @cuda.jit
    def pass_gate(grad, saved, gate, invvar, weight, eps, first, second):
        """Write two results, (n1, n2) as the others; either may be None.

        Before the norm's backward: what was normalised, x̂ / invvar, and the gradient at x̂ γ; grad is the output's.
        After it: the gradients of x and of the gate. grad is then that of what was normalised, or if this is x, the
        output's.
        """
        values = cuda.local.array(width, dtype)
        grads = cuda.local.array(width, dtype)
        gates = cuda.local.array(width, dtype)
        gammas = cuda.local.array(width, dtype)
        row = cuda.blockIdx.x
        while row < gate.shape[0]:
            scale = load(invvar, row)
            column = cuda.threadIdx.x * width
            while column < gate.shape[1]:
                load_vector_into(values, 0, saved, (row, column), width)
                load_vector_into(grads, 0, grad, (row, column), width)
                load_vector_into(gates, 0, gate, (row, column), width)
                if weighted:
                    load_vector_into(gammas, 0, weight, column, width)
                for k in range(width):
                    gamma = gammas[k] if weighted else None
                    silu, slope = silu_and_slope(gates[k], gates)
                    xhat, inner = xhat_and_grad(values[k], grads[k], silu, gamma, scale, eps)
                    # Both results overwrite what they were made of, which saves the registers of two vectors.
                    if leaving:
                        values[k], grads[k] = both(values[k], xhat, grads[k], grads[k], silu, slope, gamma)
                    else:
                        # The plain norm multiplies its saved array by invvar, so it gets x̂ without that factor.
                        values[k], grads[k] = xhat / scale, inner
                if first is not None:
                    store_vector_from(first, (row, column), values, 0, width)
                if second is not None:
                    store_vector_from(second, (row, column), grads, 0, width)
                column += THREADS * width
            row += cuda.gridDim.x

    return pass_gate


def plan_forward(problem: ForwardProblem, device: Device) -> Plan | PersistentPlan | Refusal:
    """Return the plan that gates x, or the norm's output, in a kernel of its own."""
    if problem.row_map or problem.gate_map:
        return NO_ROW_MAP
    assert problem.gating is not None
    after = problem.gating.after_norm
    scratch = Scratch(NORMALISED if after else GATED, problem.shape, problem.invvar.dtype)
    held = described(scratch)
    plain = replace(problem, gate=None, gating=None)
    if after:
        arrays = problem.gate, problem.output
        added = combining(problem.shape, problem.invvar, (NORMALISED, "gate", "output"), arrays, gater)
        part = Apart("the output is gated last", ("output", NORMALISED), (), (added,), (scratch,), ABSENT)
        plain = replace(plain, output=held)
    else:
        added = combining(problem.shape, problem.invvar, ("x", "gate", GATED), (problem.gate, problem.x), gater)
        part = Apart("x is gated first", ("x", GATED), (added,), (), (scratch,), ABSENT)
        plain = replace(plain, x=held)
    return together([part], step_7_clusters.STEP.first_answer(plain, device))


def plan_backward(problem: BackwardProblem, device: Device) -> Plan | PersistentPlan | Refusal:
    """Return the plan with a kernel before the plain norm's backward and one after it."""
    if problem.row_map or problem.gate_map:
        return NO_ROW_MAP
    assert problem.gating is not None
    after, recompute = problem.gating
    gated, grad, through = (Scratch(name, problem.shape, problem.invvar.dtype) for name in (GATED, GRAD, THROUGH_NORM))
    anew = recompute or not after  # what was normalised is no operand
    width = widest(problem.shape[1], *problem.matrices, problem.weight)
    options = accumulator(problem.invvar), width, problem.gating, problem.weight is not None
    grid = min(problem.shape[0], GRID_LIMIT)
    given = "saved", "gate", "invvar", "weight", "eps"
    # The plain norm's saved array and gradient; None where an operand of the problem is the same.
    results = GATED if anew else None, GRAD if after else None
    first = Work(build, (*options, False), grid, THREADS, ("grad_output", *given, *results))
    names = ("grad_output", None) if after else (THROUGH_NORM, "grad_input")
    last = Work(build, (*options, True), grid, THREADS, (names[0], *given, names[1], "grad_gate"))
    plain = replace(problem, gate=None, gating=None, grad_gate=None)
    parts = []
    if anew:
        parts.append(Apart("what was normalised goes to scratch", ("saved", GATED), scratch=(gated,)))
        plain = replace(plain, saved=described(gated))
    if after:
        parts.append(Apart("so does the gradient at the norm's output", ("grad_output", GRAD), scratch=(grad,)))
        plain = replace(plain, grad_output=described(grad))
    else:
        parts.append(
            Apart("so does the gradient of what was normalised", ("grad_input", THROUGH_NORM), scratch=(through,))
        )
        plain = replace(plain, grad_input=described(through))
    # One kernel before and one after serve all parts, so the first part carries both. There is a first part: the gate
    # is after the norm, or else `anew` is true.
    parts[0] = parts[0]._replace(before=(first,), after=(last,), absent=ABSENT)
    return together(parts, step_3_pipelined.STEP.first_answer(plain, device))


FORWARD = Rung("gated_norm", "the gate is applied in the norm's kernel", (step_6_one_barrier.plan, plan_forward))
BACKWARD = Rung(
    "gated_norm", "the gate's gradient is made in the norm's kernel", (step_3_pipelined.plan, plan_backward)
)
