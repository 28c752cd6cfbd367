"""A norm's kernels with a gap for a collective: this rank's message, then the results from all ranks' messages.

`normlab.distributed` calls it. The kernels over a rank's columns are the ladders' steps split_rows, forward and
backward: their first kernel writes sums of pieces of rows, and their last one reads the finished statistics. Between
the two stand the kernels of `kernels.ranks`, which also describes the messages.

Calls that repeat are cached with their launches (`host.replay`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, NamedTuple

import numpy as np

from normlab.host import checks, replay
from normlab.host.arrays import FLOATS, Backend, backend_of
from normlab.kernels import ranks
from normlab.kernels.backward import split_rows as backward_rows
from normlab.kernels.forward import split_rows as forward_rows
from normlab.kernels.plan import Device, Plan, Refusal, Scratch, Work
from normlab.kernels.problem import BackwardProblem, ForwardProblem
from normlab.kernels.split import ROW_THREADS

FLOAT32 = np.dtype(np.float32)
# The kernels of a plan of split rows, in order. The first two need this rank's columns alone: one writes the sums of
# pieces of rows, one merges them. The others read the statistics of whole rows.
PIECES, MERGE = 0, 1
BEFORE, AFTER = slice(2), slice(2, None)
SAVED = "grad_output", "saved", "invvar", "weight", "bias", "mean"  # the arrays of `ShardedBackward`, in order


def replayed(*names: str) -> Callable[[Callable[..., tuple]], Callable[..., tuple]]:
    """Return a decorator that caches a function's launches for calls that repeat.

    The function gets an array backend, then the call's arguments: first the arrays, which errors call by `names` and of
    which all but the first may be None, then hashable options. It asks the backend for the arrays as operands, once
    each and in their order, and returns its results as `replay.keep` takes them. The decorated function takes no
    backend, and returns the caller's arrays.
    """

    def decorate(run: Callable[..., tuple]) -> Callable[..., tuple]:
        @wraps(run)
        def call(*given: Any) -> tuple:
            tensors, options = given[: len(names)], given[len(names) :]
            key, pointers = replay.signature(tensors, (), 0.0, run.__qualname__, run.__module__, *options)
            cached = replay.find(key)
            if cached:
                return cached(pointers)
            named = dict(zip(names, tensors, strict=True))
            backend = replay.caching(backend_of({names[0]: tensors[0]}, named), key, pointers)
            return replay.keep(backend, *run(backend, *given))

        return call

    return decorate


@replayed("x")
def row_message(backend: Backend, x: Any, rms: bool) -> tuple:
    """Return this rank's message for the forward. x: (n1, n2), both at least 1, float16, bfloat16 or float32."""
    n1, n2 = x.shape
    operand, statistics = backend.operand(x, (n1, n2)), backend.empty((n1,), FLOAT32)
    mean = None if rms else statistics  # tells the plan which norm it is
    problem = ForwardProblem(operand, None, None, FLOAT32.type(0), operand, mean, statistics)
    plan = _planned(forward_rows.plan, problem, operand)
    message = backend.empty((1 + (1 if rms else 2) * n1,), FLOAT32)
    options = plan.work[MERGE].options
    merge = Work(ranks.build_message, options, n1, ROW_THREADS, ("x", "sums", "factor", "message"))
    _run(plan, (plan.work[PIECES], merge), backend, problem, message=message)
    return ((message, message.shape),)


class Statistics(NamedTuple):
    """The statistics of whole sets, in accumulator precision.

    count: (1,), the size of a set. mean, variance and invvar: (sets,). RMSNorm has no mean; variance is unbiased, or
    None if it was not wanted.
    """

    count: Any
    mean: Any
    variance: Any
    invvar: Any


@replayed("messages")
def statistics_of(backend: Backend, messages: Any, eps: float, rms: bool, variance: bool) -> tuple:
    """Return the fields of `Statistics` from the messages of all ranks, which are overwritten.

    variance: the unbiased variance is wanted, too.
    """
    found = launch_statistics(backend, backend.operand(messages, messages.shape), eps, rms, variance)
    return tuple((one, () if one is None else one.shape) for one in found)


def launch_statistics(backend: Backend, messages: Any, eps: float, rms: bool, variance: bool) -> Statistics:
    """Queue the kernel that merges all ranks' messages, an operand, and return the operands that it fills."""
    dtype, width = messages.dtype, messages.shape[1] - 1
    sets = width if rms else width // 2
    count, invvar = backend.empty((1,), dtype), backend.empty((sets,), dtype)
    mean = None if rms else backend.empty((sets,), dtype)
    unbiased = backend.empty((sets,), dtype) if variance else None
    grid = -(-sets // ranks.THREADS)
    rounded = checks.rounded_eps(eps, dtype.name)
    backend.launch(ranks.ranks_statistics, grid, ranks.THREADS, messages, rounded, count, mean, unbiased, invvar)
    return Statistics(count, mean, unbiased, invvar)


@replayed("x", "weight", "bias", "mean", "invvar")
def normalised(backend: Backend, x: Any, weight: Any, bias: Any, mean: Any, invvar: Any) -> tuple:
    """Return (x - mean) invvar weight + bias, in the parameters' dtype. mean, invvar: (n1,); mean None for RMSNorm."""
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
    plan = _planned(forward_rows.plan, problem, problem.x)
    _run(plan, plan.work[AFTER], backend, problem)
    return ((problem.output, (n1, n2)),)


class ShardedBackward(NamedTuple):
    """The arguments of a backward over rows (n1, n2), both at least 1: those of `normlab.layer_norm_backward`.

    input_dtype: the name of the dtype of the forward's input. No array is float64.
    """

    grad_output: Any
    saved: Any
    invvar: Any
    weight: Any
    bias: Any
    mean: Any
    eps: float
    rms: bool
    memory_efficient: bool
    input_dtype: str

    def message(self) -> Any:
        """Return this rank's message."""
        (sums,) = _sums(*self)
        return sums[1] if self.rms else sums.view(-1)

    def gradients(self, means: Any) -> Sequence[Any]:
        """Return (grad_input, grad_weight, grad_bias). means: of `means_of`."""
        return _gradients(means, *self)


@replayed(*SAVED)
def _sums(backend: Backend, *call: Any) -> tuple:
    """Return Σ g and Σ g x̂ of each row, (2, n1), over this rank's columns. RMSNorm's first sums are 0."""
    problem = _problem(backend, ShardedBackward(*call))
    problem = replace(problem, grad_input=problem.saved, grad_weight=problem.weight, grad_bias=problem.bias)  # not used
    plan = _planned(backward_rows.plan, problem, problem.saved)
    means = backend.empty((2, problem.saved.shape[0]), FLOAT32)
    # The step's second kernel multiplies the sums by a factor to make means: by 1 they stay sums.
    _run(plan, plan.work[BEFORE], backend, problem, means=means, factor=np.float32(1))
    return ((means, means.shape),)


@replayed("messages", "count")
def means_of(backend: Backend, messages: Any, count: Any, rms: bool) -> tuple:
    """Return the means of g and of g x̂, (2, sets), from all ranks' messages for the backward, which are overwritten.

    messages: (ranks, sums). count: (1,), of `Statistics`.
    """
    means = launch_means(backend, backend.operand(messages, messages.shape), backend.operand(count, (1,)), None, rms)
    return ((means, means.shape),)


def launch_means(backend: Backend, messages: Any, count: Any, weight: Any, rms: bool) -> Any:
    """Queue the kernel `ranks_means` on these operands, and return the operand that it fills: the means, (2, sets)."""
    sets = messages.shape[1] if rms else messages.shape[1] // 2
    means = backend.empty((2, sets), messages.dtype)
    backend.launch(ranks.ranks_means, -(-sets // ranks.THREADS), ranks.THREADS, messages, count, weight, means)
    return means


@replayed("means", *SAVED)
def _gradients(backend: Backend, means: Any, *call: Any) -> tuple:
    """Return (grad_input, grad_weight, grad_bias)."""
    held, given = backend.operand(means, means.shape), ShardedBackward(*call)
    problem = _problem(backend, given)
    n1, n2 = problem.saved.shape
    parameters = problem.grad_output.dtype
    problem = replace(
        problem,
        grad_input=backend.empty((n1, n2), FLOATS[given.input_dtype]),
        grad_weight=None if problem.weight is None else backend.empty((n2,), parameters),
        grad_bias=None if problem.bias is None else backend.empty((n2,), parameters),
    )
    plan = _planned(backward_rows.plan, problem, problem.saved)
    _run(plan, plan.work[AFTER], backend, problem, means=held)
    return (problem.grad_input, (n1, n2)), (problem.grad_weight, (n2,)), (problem.grad_bias, (n2,))


def _problem(backend: Backend, call: ShardedBackward) -> BackwardProblem:
    """Return the operands of a backward without its results."""
    (n1, n2), operand = call.saved.shape, backend.operand
    # The order of the calls of `operand` is that of the tensors: a cached launch tells them apart by it.
    return BackwardProblem(
        grad_output=operand(call.grad_output, (n1, n2)),
        saved=operand(call.saved, (n1, n2)),
        invvar=operand(call.invvar, (n1,)),
        weight=operand(call.weight, (n2,)),
        bias=operand(call.bias, (n2,)),
        mean=operand(call.mean, (n1,)),
        eps=checks.rounded_eps(call.eps, "float32"),
        rms=call.rms,
        memory_efficient=call.memory_efficient,
        grad_input=None,
        grad_weight=None,
        grad_bias=None,
    )


def _planned(planner: Any, problem: Any, operand: Any) -> Plan:
    plan = planner(problem, Device.of(operand))
    if isinstance(plan, Refusal):
        raise TypeError(f"no kernels for a sharded norm: {plan.reason}")
    return plan


def _run(plan: Plan, work: Sequence[Work], backend: Backend, problem: Any, **given: Any) -> None:
    """Launch `work`, some kernels of a plan. given: operands by name, beside the plan's or in place of them."""
    wanted = {name for one in work for name in one.arguments} - given.keys()
    scratch: tuple[Scratch, ...] = tuple(one for one in plan.scratch if one.name in wanted)
    part = replace(plan, work=tuple(work), scratch=scratch, values=(*plan.values, *given.items()))
    part.launch(backend.launch, backend, problem)
