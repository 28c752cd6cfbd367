"""The norms' host functions: check the arguments, choose a step of the ladder, launch it. For NumPy and GPU arrays.

A result is an array of the caller's kind. NumPy arrays and torch CPU tensors are computed by the simulator; on a
machine with a GPU they are computed there and copied back (`normlab.engine.using` chooses). torch CUDA tensors and
arrays with `__cuda_array_interface__` stay on their device, and the work is queued on their current stream.

dtypes, in apex's letters: input T, accumulator U (float64 for float64, else float32), parameters and output V. V is T,
or a half with a float32 input, or float32 with a half input; a half is float16 or bfloat16. Everything is computed in U
and rounded once.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, Literal, NamedTuple, SupportsIndex

import numpy as np

from normlab.host import checks, replay
from normlab.host.arrays import FLOATS, Backend, backend_of, dtype_name, gradients_of
from normlab.host.exact import Kept
from normlab.kernels import BEST, LADDERS, BackwardProblem, ForwardProblem, Step
from normlab.kernels.exact.correct import launch_correction
from normlab.kernels.exact.repair import launch_repair


@checks.positional("eps")
def layer_norm_forward(
    x: Any,
    normalized_shape: SupportsIndex | Sequence[SupportsIndex],
    weight: Any = None,
    bias: Any = None,
    *,
    eps: float = 1e-5,
    step: str | None = None,
) -> tuple[Any, Any, Any]:
    """Return the LayerNorm over the trailing dimensions, with its statistics.

    output = (x - mean) invvar weight + bias, where invvar = 1 / sqrt(var + eps).

    Args:
        x: (*leading, *normalized_shape), float16, bfloat16, float32 or float64; any strides.
        normalized_shape: the trailing dimensions to normalise over, or the last one as an int.
        weight, bias: normalized_shape, each may be None.
        eps: added to the biased variance. If the sum is negative, the row becomes NaN.
        step: the name of a step of the forward ladder; None: the best one.

    Returns:
        (output, mean, invvar): output has x's shape and the parameters' dtype; mean and invvar have the leading
        dimensions' shape and are float32 (float64 for float64).

    Raises:
        ValueError: shapes that do not fit, arrays on different devices, an unknown step.
        TypeError: an argument that is no array, a dtype or a mix of dtypes without kernels.

    >>> import numpy as np
    >>> x = np.array([[1.0, 2.0, 3.0, 6.0]], np.float32)
    >>> output, mean, invvar = layer_norm_forward(x, 4, eps=0.5)
    >>> mean, invvar
    (array([3.], dtype=float32), array([0.5], dtype=float32))
    >>> output
    array([[-1. , -0.5,  0. ,  1.5]], dtype=float32)
    """
    return forward(x, normalized_shape, weight, bias, eps, False, step)


@checks.positional("eps")
def rms_norm_forward(
    x: Any,
    normalized_shape: SupportsIndex | Sequence[SupportsIndex],
    weight: Any = None,
    *,
    eps: float = 1e-5,
    step: str | None = None,
) -> tuple[Any, Any]:
    """Return the RMSNorm over the trailing dimensions, with its invvar. Otherwise as `layer_norm_forward`.

    output = x invvar weight, where invvar = 1 / sqrt(mean(x²) + eps).

    Returns:
        (output, invvar).
    """
    output, _, invvar = forward(x, normalized_shape, weight, None, eps, True, step)
    return output, invvar


@checks.positional("eps", "memory_efficient", "kept")
def layer_norm_backward(
    grad_output: Any,
    saved: Any,
    mean: Any,
    invvar: Any,
    normalized_shape: SupportsIndex | Sequence[SupportsIndex],
    weight: Any = None,
    bias: Any = None,
    *,
    eps: float = 1e-5,
    memory_efficient: bool | Literal["exact"] = False,
    kept: Kept | None = None,
    input_dtype: Any = None,
    step: str | None = None,
) -> tuple[Any, Any, Any]:
    """Return the gradients of `layer_norm_forward`.

    Args:
        grad_output: (*leading, *normalized_shape), the output's dtype; any strides.
        saved: the forward's input, or with memory_efficient its output.
        mean, invvar: the forward's results. With memory_efficient mean is not read and may be None.
        normalized_shape, weight, bias, eps: the forward's arguments. A weight or bias of the forward must be given.
        memory_efficient: True recomputes the normalised value from the output, with gamma clamped away from
            (-eps, eps) as in apex. The gradients then have the error that `normlab.oracle.recompute_error` bounds.
            "exact" takes the normalised values of the columns at risk from `kept`, and recomputes all other columns'.
        kept: with "exact", the result of `keep_columns`.
        input_dtype: the dtype of the forward's input, of NumPy, of torch or by name. It is needed if `saved` is an
            output with another dtype.
        step: the name of a step of the backward ladder; None: the best one.

    Returns:
        (grad_input, grad_weight, grad_bias): grad_input has the shape of `saved` and the dtype of the forward's input;
        the gradient of an absent parameter is None.

    Raises:
        ValueError, TypeError: as `layer_norm_forward`.
    """
    if mean is None and not memory_efficient:
        raise ValueError("mean is needed when saved is the input (memory_efficient=False), got None")
    how = eps, False, memory_efficient, kept, input_dtype, step
    return backward(BackwardCall(grad_output, saved, mean, invvar, normalized_shape, weight, bias, *how))


@checks.positional("eps", "memory_efficient", "kept")
def rms_norm_backward(
    grad_output: Any,
    saved: Any,
    invvar: Any,
    normalized_shape: SupportsIndex | Sequence[SupportsIndex],
    weight: Any = None,
    *,
    eps: float = 1e-5,
    memory_efficient: bool | Literal["exact"] = False,
    kept: Kept | None = None,
    input_dtype: Any = None,
    step: str | None = None,
) -> tuple[Any, Any]:
    """Return the gradients of `rms_norm_forward`. Otherwise as `layer_norm_backward`.

    Returns:
        (grad_input, grad_weight).
    """
    how = eps, True, memory_efficient, kept, input_dtype, step
    return backward(BackwardCall(grad_output, saved, None, invvar, normalized_shape, weight, None, *how))[:2]


def forward_signature(
    x: Any, normalized_shape: Any, weight: Any, bias: Any, eps: Any, rms: bool, step: str | None = None
) -> tuple[tuple | None, list[int]]:
    """Return the key that a forward is cached under, and its tensors' addresses: see `replay.signature`."""
    wanted = BEST["forward"] if step is None else step
    return replay.signature((x, weight, bias), normalized_shape, eps, wanted, "forward", rms)


def forward(
    x: Any, normalized_shape: Any, weight: Any, bias: Any, eps: Any, rms: bool, step: str | None = None
) -> tuple[Any, Any, Any]:
    """Return (output, mean, invvar) of either norm, as `layer_norm_forward`; mean is None for RMSNorm."""
    key, pointers = forward_signature(x, normalized_shape, weight, bias, eps, rms, step)
    cached = replay.find(key)
    if cached:
        return cached(pointers)

    backend = replay.caching(backend_of({"x": x}, {"weight": weight, "bias": bias}), key, pointers)
    shape = checks.shape_of(normalized_shape)
    n1, n2 = checks.rows_and_columns("x", x, shape)
    output_dtype = FLOATS[checks.parameter_dtype("x", x, weight, bias)]
    checks.check_parameters(weight, bias, shape)
    statistics = FLOATS[checks.statistics_dtype(dtype_name(x))]
    eps = checks.rounded_eps(eps, statistics.name)
    chosen = checks.step_of("forward", step)

    output = backend.empty((n1, n2), output_dtype)
    mean = None if rms else backend.empty((n1,), statistics)
    invvar = backend.empty((n1,), statistics)
    if n1:
        _warn_if_slow(chosen, "forward", n1, n2, backend)
        problem = ForwardProblem(
            x=backend.operand(x, (n1, n2)),
            weight=backend.operand(weight, (n2,)),
            bias=backend.operand(bias, (n2,)),
            eps=eps,
            output=output,
            mean=mean,
            invvar=invvar,
        )
        chosen.run(backend.launch, backend, problem)
    leading = tuple(x.shape[: -len(shape)])
    return replay.keep(backend, (output, tuple(x.shape)), (mean, leading), (invvar, leading))


class BackwardCall(NamedTuple):
    """The arguments of `layer_norm_backward` or `rms_norm_backward`, and which of the two it is."""

    grad_output: Any
    saved: Any
    mean: Any
    invvar: Any
    normalized_shape: Any
    weight: Any
    bias: Any
    eps: Any
    rms: bool
    memory_efficient: Any
    kept: Kept | None
    input_dtype: Any
    step: str | None = None


class _Sizes(NamedTuple):
    """The shapes and dtypes of a backward, as its checks find them."""

    shape: tuple[int, ...]
    n1: int
    n2: int
    input: np.dtype
    output: np.dtype
    statistics: np.dtype


def backward(call: BackwardCall) -> tuple[Any, Any, Any]:
    """Return (grad_input, grad_weight, grad_bias) of either norm, as `layer_norm_backward`."""
    grad_output, saved, mean, invvar, normalized_shape, weight, bias, eps, rms, memory_efficient, kept, dtype, step = (
        call
    )
    columns, values = _kept(memory_efficient, kept, weight, bias)  # of the columns at risk; None outside the exact mode
    # In the order of the calls of `backend.operand`, by which a cached launch tells operands apart. mean is last: with
    # memory_efficient a caller may give it, but it is no operand.
    given = grad_output, saved, invvar, weight, bias, columns, values, mean
    wanted = BEST["backward"] if step is None else step
    key, pointers = replay.signature(
        given, normalized_shape, eps, wanted, "backward", rms, bool(memory_efficient), dtype
    )
    cached = replay.find(key)
    if cached:
        return cached(pointers)

    required = {"saved": saved, "grad_output": grad_output, "invvar": invvar}
    if columns is not None:
        required |= {"kept.columns": columns, "kept.values": values}
    backend = backend_of(required, {"mean": mean, "weight": weight, "bias": bias})
    backend = replay.caching(backend, key, pointers)
    sizes = _checked(call, columns, values)
    n1, n2 = sizes.n1, sizes.n2
    eps = checks.rounded_eps(eps, sizes.statistics.name)
    chosen = checks.step_of("backward", step)

    grad_weight, grad_bias = gradients_of((weight, bias), (n2,), sizes.output, n1, backend)
    grad_input = backend.empty((n1, n2), sizes.input)
    if n1:
        _warn_if_slow(chosen, "backward", n1, n2, backend)
        problem = BackwardProblem(
            grad_output=backend.operand(grad_output, (n1, n2)),
            saved=backend.operand(saved, (n1, n2)),
            invvar=backend.operand(invvar, (n1,)),
            weight=backend.operand(weight, (n2,)),
            bias=backend.operand(bias, (n2,)),
            mean=None if memory_efficient else backend.operand(mean, (n1,)),
            eps=eps,
            rms=rms,
            memory_efficient=bool(memory_efficient),
            grad_input=grad_input,
            grad_weight=grad_weight,
            grad_bias=grad_bias,
            row_sums=None if columns is None else backend.empty((3, n1), sizes.statistics),
        )
        if columns is None:
            chosen.run(backend.launch, backend, problem)
        else:
            # The step recomputes x̂ of the columns at risk wrongly. Before it, one kernel computes the part that
            # each row's sum of g x̂ will lack. After it, another kernel computes the gradients in these columns again.
            capacity = columns.shape[0]
            at_risk = backend.operand(columns, (capacity,)), backend.operand(values, (n1, capacity))
            launch_correction(backend.launch, problem, *at_risk)
            chosen.run(backend.launch, backend, problem)
            launch_repair(backend.launch, backend, problem, *at_risk)
    of_input = grad_input, tuple(saved.shape)
    return replay.keep(backend, of_input, (grad_weight, sizes.shape), (grad_bias, sizes.shape))


def _checked(call: BackwardCall, columns: Any, values: Any) -> _Sizes:
    """Return the sizes of a backward; raise ValueError or TypeError unless its arguments fit together."""
    saved, weight, bias = call.saved, call.weight, call.bias
    shape = checks.shape_of(call.normalized_shape)
    n1, n2 = checks.rows_and_columns("saved", saved, shape)
    output = checks.parameter_dtype("saved", saved, weight, bias)
    checks.check_parameters(weight, bias, shape)
    checks.check_dtype("grad_output", call.grad_output, output, "the output's dtype")
    checks.check_shape("grad_output", call.grad_output, tuple(saved.shape), "as saved")
    if call.memory_efficient:
        checks.check_dtype("saved", saved, output, "with memory_efficient it is the output, as the parameters")
    input_dtype = checks.input_dtype(call.input_dtype, saved, call.memory_efficient)
    statistics = checks.statistics_dtype(dtype_name(saved))
    leading = tuple(saved.shape[: -len(shape)])
    checks.check_statistics({"mean": call.mean, "invvar": call.invvar}, leading, statistics, "saved")
    if columns is not None:
        capacity = prod(columns.shape)
        checks.check_dtype("kept.columns", columns, "int32", "column numbers")
        checks.check_shape("kept.columns", columns, (capacity,), "column numbers")
        checks.check_shape("kept.values", values, (n1, capacity), "rows of saved, columns kept")
        checks.check_dtype("kept.values", values, output, "the output's dtype")
    return _Sizes(shape, n1, n2, FLOATS[input_dtype], FLOATS[output], FLOATS[statistics])


def _kept(memory_efficient: Any, kept: Kept | None, weight: Any, bias: Any) -> tuple[Any, Any]:
    """Return (columns, values) of `kept`, or (None, None) if no column was kept.

    A norm without parameters needs no `kept`, because no column of it is at risk.
    """
    if isinstance(memory_efficient, str) and memory_efficient != "exact":
        raise ValueError(f"memory_efficient must be True, False or 'exact', got {memory_efficient!r}")
    if memory_efficient != "exact":
        return None, None
    if kept is not None and not isinstance(kept, Kept):
        kind = f"{type(kept).__module__}.{type(kept).__qualname__}"
        raise TypeError(f"kept must be the Kept that normlab.keep_columns returned, got {kind}")
    if kept is None and (weight is not None or bias is not None):
        raise ValueError("memory_efficient='exact' needs kept, which normlab.keep_columns makes in the forward")
    return (None, None) if kept is None or tuple(getattr(kept.columns, "shape", ())) == (0,) else kept


def _warn_if_slow(chosen: Step, direction: str, n1: int, n2: int, backend: Backend) -> None:
    """Warn the caller if the simulator will take long, and name a step of the ladder that takes half as long."""
    seconds = chosen.simulated_seconds(n1, n2)
    quickest = min(LADDERS[direction], key=lambda step: step.simulated_seconds(n1, n2))
    less = quickest.simulated_seconds(n1, n2)
    faster = f"step={quickest.name!r} takes about {checks.duration(less)}, " if less < seconds / 2 else ""
    what, instead = f"step {chosen.name!r} on {n1:,} x {n2:,} elements", f"{faster}fewer rows are faster"
    # the user's line: above `warn_if_slow`, this function, `forward`, `layer_norm_forward` and its decorator
    checks.warn_if_slow(backend, seconds, what, instead, stacklevel=6)
