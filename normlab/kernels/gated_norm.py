"""Plan an RMSNorm with a gate, as Mamba-2 and Qwen3-Next have it: silu(z) times the norm's output, or times its input.

The fastest steps of both ladders do this themselves (`stages.gate`). Step 6 of the forward fetches the gate beside a
row, and the pipelined backward makes the gate's gradient in the pass that makes grad_input.

What they refuse is done apart (`apart`), with the same stages in kernels of one element after another:

    forward     gate_rows                   the norm's output, from scratch, or its input, to scratch
    backward    enter_norm                  what was normalised, and the gradient at x̂ γ, to scratch as far as needed
                the plain norm's backward
                leave_norm                  the gradients of the gate and, with the gate before the norm, of x
"""

from dataclasses import replace
from functools import cache
from typing import Any

from normlab.engine import accumulator, cuda, load, load_vector_into, store_vector_from
from normlab.kernels.apart import NO_ROW_MAP, Apart, described, together
from normlab.kernels.backward import step_3_pipelined
from normlab.kernels.forward import step_6_one_barrier, step_7_clusters
from normlab.kernels.plan import Device, PersistentPlan, Plan, Refusal, Scratch, Work
from normlab.kernels.problem import BackwardProblem, ForwardProblem
from normlab.kernels.step import Rung
from normlab.stages.gate import Gate, gated_gradients, gated_normaliser, silus
from normlab.stages.vector import widest

THREADS = 256  # per block, and a block per row
GRID_LIMIT = 2**31 - 1
GATED, NORMALISED = "gated", "normalised"  # scratch: x silu(z), or x as recomputed; x̂ γ before it is gated
ABSENT = "gate", "grad_gate"  # from the plain norm
GRAD, THROUGH_NORM = "grad_gated", "through_norm"  # scratch: the gradients at x̂ γ, and at what was normalised


@cache
def build_gate_rows(dtype: Any, width: int) -> Any:
    """Return the kernel `gate_rows` for an accumulator dtype and vectors of `width` elements."""
    silu, _ = silus(dtype)

    @cuda.jit
    def gate_rows(source, gate, product):
        """Write source times silu(gate). All are (n1, n2)."""
        values = cuda.local.array(width, dtype)
        gates = cuda.local.array(width, dtype)
        row = cuda.blockIdx.x
        while row < product.shape[0]:
            column = cuda.threadIdx.x * width
            while column < product.shape[1]:
                load_vector_into(values, 0, source, (row, column), width)
                load_vector_into(gates, 0, gate, (row, column), width)
                for k in range(width):
                    values[k] *= silu(gates[k], gates)
                store_vector_from(product, (row, column), values, 0, width)
                column += THREADS * width
            row += cuda.gridDim.x

    return gate_rows


@cache
def build_enter_norm(dtype: Any, width: int, gating: Gate, weighted: bool) -> Any:
    """Return the kernel `enter_norm` for an accumulator dtype, vectors of `width` elements, and a gate."""
    (silu, _), xhat_and_grad = silus(dtype), gated_normaliser(gating, dtype)

    @cuda.jit
    def enter_norm(grad_output, saved, gate, invvar, weight, eps, normalised, grad):
        """Write what was normalised, x̂ / invvar, and the gradient at x̂ γ; either may be None. Others: (n1, n2)."""
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
                load_vector_into(grads, 0, grad_output, (row, column), width)
                load_vector_into(gates, 0, gate, (row, column), width)
                if weighted:
                    load_vector_into(gammas, 0, weight, column, width)
                for k in range(width):
                    gamma = gammas[k] if weighted else None
                    xhat, grads[k] = xhat_and_grad(values[k], grads[k], silu(gates[k], gates), gamma, scale, eps)
                    values[k] = xhat / scale
                if normalised is not None:
                    store_vector_from(normalised, (row, column), values, 0, width)
                if grad is not None:
                    store_vector_from(grad, (row, column), grads, 0, width)
                column += THREADS * width
            row += cuda.gridDim.x

    return enter_norm


@cache
def build_leave_norm(dtype: Any, width: int, gating: Gate, weighted: bool) -> Any:
    """Return the kernel `leave_norm` for an accumulator dtype, vectors of `width` elements, and a gate."""
    (_, silu_and_slope), xhat_and_grad = silus(dtype), gated_normaliser(gating, dtype)
    both, before = gated_gradients(gating), not gating.after_norm

    @cuda.jit
    def leave_norm(grad_output, saved, gate, invvar, weight, eps, through, grad_input, grad_gate):
        """Write the gate's gradient and, if the gate comes before the norm, that of x.

        through: (n1, n2), the gradient of what was normalised, or None if that is x itself.
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
                load_vector_into(gates, 0, gate, (row, column), width)
                if before:
                    load_vector_into(grads, 0, through, (row, column), width)
                else:
                    load_vector_into(grads, 0, grad_output, (row, column), width)
                if weighted:
                    load_vector_into(gammas, 0, weight, column, width)
                for k in range(width):
                    gamma = gammas[k] if weighted else None
                    silu, slope = silu_and_slope(gates[k], gates)
                    xhat, _ = xhat_and_grad(values[k], grads[k], silu, gamma, scale, eps)
                    grads[k], gates[k] = both(values[k], xhat, grads[k], grads[k], silu, slope, gamma)
                if before:
                    store_vector_from(grad_input, (row, column), grads, 0, width)
                store_vector_from(grad_gate, (row, column), gates, 0, width)
                column += THREADS * width
            row += cuda.gridDim.x

    return leave_norm


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
        added = _gating(problem, problem.output, (NORMALISED, "gate", "output"))
        part = Apart("the output is gated last", ("output", NORMALISED), (), (added,), (scratch,), ABSENT)
        plain = replace(plain, output=held)
    else:
        added = _gating(problem, problem.x, ("x", "gate", GATED))
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
    given = "grad_output", "saved", "gate", "invvar", "weight", "eps"
    first = Work(build_enter_norm, options, grid, THREADS, (*given, GATED if anew else None, GRAD if after else None))
    results = None if after else THROUGH_NORM, "grad_input", "grad_gate"
    last = Work(build_leave_norm, options, grid, THREADS, (*given, *results))
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
    parts[0] = parts[0]._replace(before=(first,), after=(last,), absent=ABSENT)
    return together(parts, step_3_pipelined.STEP.first_answer(plain, device))


def _gating(problem: ForwardProblem, other: Any, names: tuple[str, str, str]) -> Work:
    """Return the kernel that gates rows; other: the operand beside the gate, for the width of vectors."""
    n1, n2 = problem.shape
    options = accumulator(problem.invvar), widest(n2, problem.gate, other)
    return Work(build_gate_rows, options, min(n1, GRID_LIMIT), THREADS, names)


FORWARD = Rung("gated_norm", "the gate is applied in the norm's kernel", (step_6_one_barrier.plan, plan_forward))
BACKWARD = Rung(
    "gated_norm", "the gate's gradient is made in the norm's kernel", (step_3_pipelined.plan, plan_backward)
)
