"""LayerNorm with a scale and a shift per sample in one call, forward and backward: AdaLN, as diffusion models have it.

    output = x̂ (1 + scale) + shift        x: (samples, ..., n), scale and shift: (samples, n)

Arrays and dtypes are those of `normlab.host.norms`, with scale and shift as the parameters.
"""

from typing import Any

from normlab.host import checks, replay
from normlab.host.arrays import FLOATS, backend_of, dtype_name, gradients_of
from normlab.kernels.modulated_norm import BACKWARD, FORWARD
from normlab.kernels.problem import BackwardProblem, ForwardProblem


def modulated_layer_norm_forward(x: Any, scale: Any, shift: Any, *, eps: float = 1e-6) -> tuple[Any, Any, Any]:
    """Return x̂ (1 + scale) + shift, where x̂ is x normalised over the last dimension, and the statistics.

    Args:
        x: (samples, ..., n), float16, bfloat16, float32 or float64; any strides.
        scale, shift: (samples, n), of one dtype: that of x, or a mix as of parameters.
        eps: added to the biased variance.

    Returns:
        (output, mean, invvar): output has the dtype of scale and shift. mean and invvar have the shape (samples, ...)
        and are float32 (float64 for float64).

    Raises:
        ValueError: shapes that do not fit, arrays on different devices.
        TypeError: an argument that is no array, a dtype or a mix of dtypes without kernels.

    >>> import numpy as np
    >>> x, ones = np.float32([[[1.0, 3.0], [5.0, 3.0]]]), np.ones((1, 2), np.float32)
    >>> modulated_layer_norm_forward(x, ones, 0 * ones, eps=0.0)[0]
    array([[[-2.,  2.],
            [ 2., -2.]]], dtype=float32)
    """
    shape = tuple(getattr(x, "shape", ()))
    key, pointers = replay.signature((x, scale, shift), shape, eps, FORWARD.name, "forward")
    cached = replay.find(key)
    if cached:
        return cached(pointers)

    backend = replay.caching(backend_of({"x": x, "scale": scale, "shift": shift}, {}), key, pointers)
    leading, samples, n1, n2 = _samples(x)
    output_dtype = FLOATS[_parameter_dtype(x, scale, shift, samples, n2)]
    statistics = FLOATS[checks.statistics_dtype(dtype_name(x))]
    output = backend.empty((n1, n2), output_dtype)
    mean, invvar = (backend.empty((n1,), statistics) for _ in range(2))
    if n1:
        problem = ForwardProblem(
            x=backend.operand(x, (n1, n2)),
            weight=backend.operand(scale, (samples, n2)),
            bias=backend.operand(shift, (samples, n2)),
            eps=checks.rounded_eps(eps, statistics.name),
            output=output,
            mean=mean,
            invvar=invvar,
            offset=1.0,
            sampled=True,
        )
        FORWARD.run(backend.launch, backend, problem)
    return replay.keep(backend, (output, shape), (mean, leading), (invvar, leading))


def modulated_layer_norm_backward(
    grad_output: Any, x: Any, mean: Any, invvar: Any, scale: Any, shift: Any
) -> tuple[Any, Any, Any]:
    """Return the gradients of `modulated_layer_norm_forward`: (grad_x, grad_scale, grad_shift).

    Args:
        grad_output: as x, of the output's dtype.
        x, scale, shift: the forward's arguments. mean, invvar: its results.

    Raises:
        ValueError, TypeError: as `modulated_layer_norm_forward`.
    """
    given = {"grad_output": grad_output, "x": x, "mean": mean, "invvar": invvar, "scale": scale, "shift": shift}
    shape = tuple(getattr(x, "shape", ()))
    key, pointers = replay.signature(tuple(given.values()), shape, 0.0, BACKWARD.name, "backward")
    cached = replay.find(key)
    if cached:
        return cached(pointers)

    backend = replay.caching(backend_of(given, {}), key, pointers)
    leading, samples, n1, n2 = _samples(x)
    output = _parameter_dtype(x, scale, shift, samples, n2)
    checks.check_dtype("grad_output", grad_output, output, "the output's dtype")
    checks.check_shape("grad_output", grad_output, shape, "as x")
    statistics = checks.statistics_dtype(dtype_name(x))
    checks.check_statistics({"mean": mean, "invvar": invvar}, leading, statistics, "x")
    grad_scale, grad_shift = gradients_of((scale, shift), (samples, n2), FLOATS[output], n1, backend)
    grad_input = backend.empty((n1, n2), FLOATS[dtype_name(x)])
    if n1:
        problem = BackwardProblem(
            grad_output=backend.operand(grad_output, (n1, n2)),
            saved=backend.operand(x, (n1, n2)),
            mean=backend.operand(mean, (n1,)),
            invvar=backend.operand(invvar, (n1,)),
            weight=backend.operand(scale, (samples, n2)),
            bias=backend.operand(shift, (samples, n2)),
            eps=FLOATS[statistics].type(0),  # only a backward from the output reads it
            rms=False,
            memory_efficient=False,
            grad_input=grad_input,
            grad_weight=grad_scale,
            grad_bias=grad_shift,
            offset=1.0,
            sampled=True,
        )
        BACKWARD.run(backend.launch, backend, problem)
    return replay.keep(backend, (grad_input, shape), (grad_scale, (samples, n2)), (grad_shift, (samples, n2)))


def _samples(x: Any) -> tuple[tuple[int, ...], int, int, int]:
    """Return the leading dimensions, the first of them, their product, and the last dimension; or raise ValueError."""
    if len(x.shape) < 2:
        raise ValueError(f"x must be of shape (samples, ..., n), got shape {list(x.shape)}")
    leading, n1, n2 = checks.rows_of("x", x)
    return leading, leading[0], n1, n2


def _parameter_dtype(x: Any, scale: Any, shift: Any, samples: int, n2: int) -> str:
    """Return the dtype of scale, shift and the output; raise unless all fit."""
    for label, array in (("scale", scale), ("shift", shift)):
        checks.check_shape(label, array, (samples, n2), "first and last dimension of x")
    return checks.parameter_dtype("x", x, scale, shift, ("scale", "shift"))
