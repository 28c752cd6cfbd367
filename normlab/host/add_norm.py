"""Add a residual and normalise in one call, forward and backward, as between two blocks of a transformer.

    new_residual = x + residual, rounded to the residual's dtype
    output       = the norm of new_residual, with gamma = weight + offset

Both results go on: the output into the next block, new_residual past it. The backward therefore gets a gradient at
each, and returns one gradient, which is that of x and that of the residual. Arrays and dtypes are those of
`normlab.host.norms`, with the residual as the norm's input: T is the residual's dtype. x may have T, or a dtype that
the parameters of a T input may have.

`head_rms_norm` is the same kernel without a residual, for the heads of a query or a key. Their rows may lie apart in
memory, as in a fused tensor of query, key and value: they are read where they lie (`normlab.stages.row_map`).
"""

from typing import Any, NamedTuple

from normlab.host import checks, replay
from normlab.host.arrays import FLOATS, backend_of, dtype_name, gradients_of
from normlab.host.strided import contiguous, matrix_of, strided_rows
from normlab.kernels.add_norm import BACKWARD, FORWARD
from normlab.kernels.problem import BackwardProblem, ForwardProblem


def add_layer_norm_forward(
    x: Any, residual: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5
) -> tuple[Any, Any, Any, Any]:
    """Return the LayerNorm of x + residual over the last dimension, the sum, and the statistics.

    Args:
        x, residual: (*leading, n), float16, bfloat16, float32 or float64; any strides.
        weight, bias: (n,); each may be None.
        eps: added to the biased variance.

    Returns:
        (output, new_residual, mean, invvar): output has the parameters' dtype (the residual's without parameters), and
        new_residual the residual's. mean and invvar have the leading dimensions' shape and are float32 (float64 for
        float64).

    Raises:
        ValueError: shapes that do not fit, arrays on different devices.
        TypeError: an argument that is no array, a dtype or a mix of dtypes without kernels.

    >>> import numpy as np
    >>> x, residual = np.array([[[1.0, 2.0, 3.0, 6.0]], [[0.0, 0.0, 0.0, 0.0]]], np.float32)
    >>> output, new_residual, mean, invvar = add_layer_norm_forward(x, residual, eps=0.5)
    >>> output
    array([[-1. , -0.5,  0. ,  1.5]], dtype=float32)
    """
    return forward(x, _given(residual), weight, bias, eps, False, 0.0)


def add_rms_norm_forward(
    x: Any, residual: Any, weight: Any = None, *, eps: float = 1e-6, offset: float = 0.0
) -> tuple[Any, Any, Any]:
    """Return the RMSNorm of x + residual over the last dimension, the sum, and invvar.

    Otherwise as `add_layer_norm_forward`.

    offset: gamma is weight + offset, in accumulator precision. Gemma's norms have an offset of 1.

    Returns:
        (output, new_residual, invvar).
    """
    output, new_residual, _, invvar = forward(x, _given(residual), weight, None, eps, True, offset)
    return output, new_residual, invvar


def _given(residual: Any) -> Any:
    """Return the residual; raise TypeError for None, with which `forward` normalises x itself."""
    if residual is None:
        raise TypeError("residual must be an array, got None: without one call layer_norm_forward or rms_norm_forward")
    return residual


def add_layer_norm_backward(
    grad_output: Any,
    grad_residual: Any,
    saved: Any,
    mean: Any,
    invvar: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    eps: float = 1e-5,
    memory_efficient: bool = False,
    residual_dtype: Any = None,
) -> tuple[Any, Any, Any]:
    """Return the gradients of `add_layer_norm_forward`.

    Args:
        grad_output: (*leading, n), the output's dtype: the gradient at the output.
        grad_residual: (*leading, n), the residual's dtype: the gradient at new_residual. None counts as zeros.
        saved: new_residual, or with memory_efficient the output.
        mean, invvar: the forward's results. With memory_efficient mean is not read and may be None.
        weight, bias, eps: the forward's arguments.
        memory_efficient: recompute the normalised value from the output, as `normlab.layer_norm_backward` does.
        residual_dtype: the residual's dtype, if `saved` is an output of another dtype.

    Returns:
        (grad, grad_weight, grad_bias): grad, in the residual's dtype, is the gradient at x and at the residual. The
        gradient of an absent parameter is None.

    Raises:
        ValueError, TypeError: as `add_layer_norm_forward`.
    """
    if mean is None and not memory_efficient:
        raise ValueError("mean is needed when saved is new_residual (memory_efficient=False), got None")
    how = eps, False, 0.0, memory_efficient, residual_dtype
    return backward(AddNormBackward(grad_output, grad_residual, saved, mean, invvar, weight, bias, *how))


def add_rms_norm_backward(
    grad_output: Any,
    grad_residual: Any,
    saved: Any,
    invvar: Any,
    weight: Any = None,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    memory_efficient: bool = False,
    residual_dtype: Any = None,
) -> tuple[Any, Any]:
    """Return the gradients of `add_rms_norm_forward`: (grad, grad_weight). Otherwise as `add_layer_norm_backward`."""
    how = eps, True, offset, memory_efficient, residual_dtype
    return backward(AddNormBackward(grad_output, grad_residual, saved, None, invvar, weight, None, *how))[:2]


def head_rms_norm_forward(x: Any, weight: Any = None, *, eps: float = 1e-6, offset: float = 0.0) -> tuple[Any, Any]:
    """Return the RMSNorm of each head, and its invvar.

    Args:
        x: (*leading, heads, head_dim), float16, bfloat16, float32 or float64. It is not copied if a token's heads
            follow each other, and tokens lie equally far apart, by a multiple of head_dim, as in a fused tensor
            (batch, sequence, (heads + 2 kv_heads) head_dim).
        weight: (head_dim,), or None.
        eps, offset: as for `add_rms_norm_forward`.

    Returns:
        (output, invvar): output is contiguous and has the weight's dtype, or without a weight x's. invvar has the shape
        (*leading, heads).

    Raises:
        ValueError, TypeError: as `add_layer_norm_forward`.
    """
    output, _, _, invvar = forward(x, None, weight, None, eps, True, offset)
    return output, invvar


def head_rms_norm_backward(
    grad_output: Any, x: Any, invvar: Any, weight: Any = None, *, eps: float = 1e-6, offset: float = 0.0
) -> tuple[Any, Any]:
    """Return the gradients of `head_rms_norm_forward`: (grad_x, grad_weight). grad_x is contiguous; x is not copied."""
    how = eps, True, offset, False, None, "x"
    return backward(AddNormBackward(grad_output, None, x, None, invvar, weight, None, *how))[:2]


def forward(
    x: Any, residual: Any, weight: Any, bias: Any, eps: Any, rms: bool, offset: float
) -> tuple[Any, Any, Any, Any]:
    """Return (output, new_residual, mean, invvar) of either norm; mean is None for RMSNorm.

    residual: None normalises x itself; new_residual is then None.
    """
    shape = tuple(getattr(x, "shape", ()))
    rows, row_map = strided_rows(x) if residual is None else (x, None)
    given = rows, residual, weight, bias
    key, pointers = replay.signature(given, shape, eps, FORWARD.name, "forward", rms, offset, row_map)
    cached = replay.find(key)
    if cached:
        return cached(pointers)

    backend = backend_of({"x": x}, {"residual": residual, "weight": weight, "bias": bias})
    backend = replay.caching(backend, key, pointers)
    name, normalised = ("x", x) if residual is None else ("residual", residual)
    leading, n1, n2 = checks.rows_of(name, normalised)
    output_dtype = FLOATS[checks.parameter_dtype(name, normalised, weight, bias)]
    checks.check_parameters(weight, bias, (n2,))
    if residual is not None:
        _check_x(x, residual)
    statistics = FLOATS[checks.statistics_dtype(dtype_name(normalised))]
    eps = checks.rounded_eps(eps, statistics.name)
    offset = checks.number(offset, "offset")

    output = backend.empty((n1, n2), output_dtype)
    new_residual = None if residual is None else backend.empty((n1, n2), FLOATS[dtype_name(residual)])
    mean = None if rms else backend.empty((n1,), statistics)
    invvar = backend.empty((n1,), statistics)
    if n1:
        problem = ForwardProblem(  # operands in the order of `given`, by which a cached launch tells them apart
            x=matrix_of(backend, rows),
            residual=backend.operand(residual, (n1, n2)),
            weight=backend.operand(weight, (n2,)),
            bias=backend.operand(bias, (n2,)),
            eps=eps,
            output=output,
            mean=mean,
            invvar=invvar,
            new_residual=new_residual,
            offset=offset,
            row_map=row_map,
        )
        if row_map is not None and not FORWARD.does(problem):
            return forward(contiguous(x), residual, weight, bias, eps.item(), rms, offset)
        FORWARD.run(backend.launch, backend, problem)
    return replay.keep(backend, (output, shape), (new_residual, shape), (mean, leading), (invvar, leading))


class AddNormBackward(NamedTuple):
    """The arguments of `add_layer_norm_backward` or `add_rms_norm_backward`, and which of the two it is."""

    grad_output: Any
    grad_residual: Any
    saved: Any
    mean: Any
    invvar: Any
    weight: Any
    bias: Any
    eps: Any
    rms: bool
    offset: float
    memory_efficient: bool
    residual_dtype: Any
    name: str = "saved"  # the caller's, of `saved`


def backward(call: AddNormBackward) -> tuple[Any, Any, Any]:
    """Return (grad, grad_weight, grad_bias) of either norm."""
    grad_output, grad_residual, saved, mean, invvar, weight, bias, eps, rms, offset, memory_efficient, dtype, _ = call
    # mean comes last in `given`: with memory_efficient a caller may give it, but it is no operand
    shape = tuple(getattr(saved, "shape", ()))
    rows, row_map = strided_rows(saved)
    given = grad_output, grad_residual, rows, invvar, weight, bias, mean
    options = "backward", rms, offset, bool(memory_efficient), dtype, row_map
    key, pointers = replay.signature(given, shape, eps, BACKWARD.name, *options)
    cached = replay.find(key)
    if cached:
        return cached(pointers)

    required = {call.name: saved, "grad_output": grad_output, "invvar": invvar}
    optional = {"grad_residual": grad_residual, "mean": mean, "weight": weight, "bias": bias}
    backend = replay.caching(backend_of(required, optional), key, pointers)
    leading, n1, n2 = checks.rows_of(call.name, saved)
    residual_dtype, output_dtype, statistics = _checked(call, leading, n2)
    eps = checks.rounded_eps(eps, statistics.name)

    grad_weight, grad_bias = gradients_of((weight, bias), (n2,), output_dtype, n1, backend)
    grad = backend.empty((n1, n2), residual_dtype)
    if n1:
        problem = BackwardProblem(  # operands in the order of `given`
            grad_output=backend.operand(grad_output, (n1, n2)),
            grad_residual=backend.operand(grad_residual, (n1, n2)),
            saved=matrix_of(backend, rows),
            invvar=backend.operand(invvar, (n1,)),
            weight=backend.operand(weight, (n2,)),
            bias=backend.operand(bias, (n2,)),
            mean=None if memory_efficient else backend.operand(mean, (n1,)),
            eps=eps,
            rms=rms,
            memory_efficient=bool(memory_efficient),
            grad_input=grad,
            grad_weight=grad_weight,
            grad_bias=grad_bias,
            offset=checks.number(offset, "offset"),
            row_map=row_map,
        )
        if row_map is not None and not BACKWARD.does(problem):
            return backward(call._replace(saved=contiguous(saved)))
        BACKWARD.run(backend.launch, backend, problem)
    return replay.keep(backend, (grad, shape), (grad_weight, (n2,)), (grad_bias, (n2,)))


def _checked(call: AddNormBackward, leading: tuple[int, ...], n2: int) -> tuple[Any, Any, Any]:
    """Return the dtypes of grad, of the parameters' gradients and of statistics; raise unless all arguments fit."""
    saved, memory_efficient, name = call.saved, call.memory_efficient, call.name
    if memory_efficient not in (False, True):
        raise ValueError(f"memory_efficient must be True or False, got {memory_efficient!r}")
    output = checks.parameter_dtype(name, saved, call.weight, call.bias)
    checks.check_parameters(call.weight, call.bias, (n2,))
    checks.check_dtype("grad_output", call.grad_output, output, "the output's dtype")
    checks.check_shape("grad_output", call.grad_output, (*leading, n2), f"as {name}")
    if memory_efficient:
        checks.check_dtype("saved", saved, output, "with memory_efficient it is the output, as the parameters")
    residual = checks.input_dtype(call.residual_dtype, saved, memory_efficient, "residual_dtype")
    checks.check_dtype("grad_residual", call.grad_residual, residual, "the residual's dtype")
    checks.check_shape("grad_residual", call.grad_residual, (*leading, n2), "as saved")
    statistics = checks.statistics_dtype(dtype_name(saved))
    checks.check_statistics({"mean": call.mean, "invvar": call.invvar}, leading, statistics, name)
    return FLOATS[residual], FLOATS[output], FLOATS[statistics]


def _check_x(x: Any, residual: Any) -> None:
    """Raise ValueError or TypeError unless x can be added to the residual."""
    checks.check_shape("x", x, tuple(residual.shape), "as residual")
    kinds = dtype_name(residual), dtype_name(x)
    if kinds[1] != kinds[0] and kinds not in checks.MIXED:
        raise TypeError(f"residual is {kinds[0]} and x is {kinds[1]}: they must have one dtype, or mix {checks.MIXES}")
