"""A norm's kernels with a gap for a collective: sums of this rank's columns, then the results from all ranks' sums.

`normlab.distributed` calls it. The kernels are the ladders' steps split_rows, forward and backward: their first kernel
writes sums of pieces of rows, and their last one reads the finished statistics. Between the two, where the step itself
merges the pieces, the caller merges the pieces of all ranks.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from normlab.host import checks
from normlab.host.arrays import FLOATS, Backend, backend_of, dtype_name
from normlab.kernels.backward import split_rows as backward_rows
from normlab.kernels.forward import split_rows as forward_rows
from normlab.kernels.plan import Device, Plan, Refusal
from normlab.kernels.problem import BackwardProblem, ForwardProblem
from normlab.kernels.split import THREADS, VECTORS

FLOAT32 = np.dtype(np.float32)


class PieceSums(NamedTuple):
    """What the first kernel wrote. sums: (2, n1, pieces), float32; sizes: the columns of each piece."""

    sums: Any
    sizes: tuple[int, ...]


def piece_moments(x: Any, rms: bool) -> PieceSums:
    """Return each piece's Σx and Σ(x - the piece's mean)²; for RMSNorm Σx², and sums[0] is not written.

    x: (n1, n2), both at least 1, float16, bfloat16 or float32.
    """
    backend = backend_of({"x": x}, {})
    n1, n2 = x.shape
    operand, statistics = backend.operand(x, (n1, n2)), backend.empty((n1,), FLOAT32)
    mean = None if rms else statistics  # tells the plan which norm it is
    problem = ForwardProblem(operand, None, None, FLOAT32.type(0), operand, mean, statistics)
    plan = _planned(forward_rows.plan, problem, operand)
    sums = backend.empty((2 * n1, plan.layout.pieces), FLOAT32)
    _run(plan, slice(0, 1), backend, problem, sums=sums)
    span = THREADS * VECTORS * plan.layout.width
    sizes = tuple(min(span, n2 - piece * span) for piece in range(plan.layout.pieces))
    return PieceSums(backend.give_back(sums, (2, n1, plan.layout.pieces)), sizes)


def normalised(x: Any, mean: Any, invvar: Any, weight: Any, bias: Any) -> Any:
    """Return (x - mean) invvar weight + bias, in the parameters' dtype. mean, invvar: (n1,); mean None for RMSNorm."""
    backend = backend_of({"x": x, "invvar": invvar}, {"mean": mean, "weight": weight, "bias": bias})
    n1, n2 = x.shape
    problem = ForwardProblem(
        backend.operand(x, (n1, n2)),
        backend.operand(weight, (n2,)),
        backend.operand(bias, (n2,)),
        FLOAT32.type(0),
        backend.empty((n1, n2), FLOATS[checks.parameter_dtype("x", x, weight, bias)]),
        backend.operand(mean, (n1,)),
        backend.operand(invvar, (n1,)),
    )
    _run(_planned(forward_rows.plan, problem, problem.x), slice(2, 3), backend, problem)
    return backend.give_back(problem.output, (n1, n2))


class ShardedBackward:
    """The backward of this rank's columns: `piece_sums` before the collective, `gradients` after it."""

    def __init__(
        self,
        grad_output: Any,
        saved: Any,
        mean: Any,
        invvar: Any,
        weight: Any,
        bias: Any,
        *,
        eps: float,
        rms: bool,
        memory_efficient: bool,
        input_dtype: str,
    ):
        """Take the arguments of `normlab.layer_norm_backward`, with rows (n1, n2), both at least 1, not float64."""
        arrays = {"saved": saved, "grad_output": grad_output, "invvar": invvar}
        self.backend = backend_of(arrays, {"mean": mean, "weight": weight, "bias": bias})
        self.shape = n1, n2 = tuple(saved.shape)
        make, operand, parameters = self.backend.empty, self.backend.operand, FLOATS[dtype_name(grad_output)]
        self.problem = BackwardProblem(
            grad_output=operand(grad_output, (n1, n2)),
            saved=operand(saved, (n1, n2)),
            mean=None if memory_efficient else operand(mean, (n1,)),
            invvar=operand(invvar, (n1,)),
            weight=operand(weight, (n2,)),
            bias=operand(bias, (n2,)),
            eps=checks.rounded_eps(eps, "float32"),
            rms=rms,
            memory_efficient=memory_efficient,
            grad_input=make((n1, n2), FLOATS[input_dtype]),
            grad_weight=None if weight is None else make((n2,), parameters),
            grad_bias=None if bias is None else make((n2,), parameters),
        )
        self.plan = _planned(backward_rows.plan, self.problem, self.problem.saved)

    def piece_sums(self) -> Any:
        """Return each piece's Σ g and Σ g x̂, (2, n1, pieces). RMSNorm's first sums are 0."""
        n1, pieces = self.shape[0], self.plan.layout.pieces
        sums = self.backend.empty((2 * n1, pieces), FLOAT32)
        _run(self.plan, slice(0, 1), self.backend, self.problem, sums=sums)
        return self.backend.give_back(sums, (2, n1, pieces))

    def gradients(self, means: Any) -> Sequence[Any]:
        """Return (grad_input, grad_weight, grad_bias). means: (2, n1), of g and of g x̂ over all ranks' columns."""
        held = self.backend.operand(means, (2, self.shape[0]))
        _run(self.plan, slice(2, None), self.backend, self.problem, means=held)
        found, give_back = self.problem, self.backend.give_back
        row = self.shape[1:]
        return (
            give_back(found.grad_input, self.shape),
            give_back(found.grad_weight, row),
            give_back(found.grad_bias, row),
        )


def _planned(planner: Any, problem: Any, operand: Any) -> Plan:
    plan = planner(problem, Device.of(operand))
    if isinstance(plan, Refusal):
        raise TypeError(f"no kernels for a sharded norm: {plan.reason}")
    return plan


def _run(plan: Plan, chosen: slice, backend: Backend, problem: Any, **given: Any) -> None:
    """Launch some kernels of a plan. given: operands by name that the plan's other kernels would have made."""
    work = plan.work[chosen]
    wanted = {name for one in work for name in one.arguments} - given.keys()
    scratch = tuple(one for one in plan.scratch if one.name in wanted)
    part = replace(plan, work=work, scratch=scratch, values=(*plan.values, *given.items()))
    part.launch(backend.launch, backend, problem)
