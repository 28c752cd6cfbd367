"""LayerNorm and the linear layer after it, forward and backward, with one array kept for both.

The linear layer keeps its input for its weight's gradient, and this input is the norm's output. So a norm that
recomputes from its output (apex's memory_efficient) keeps next to nothing of its own. A norm that recomputes from its
input keeps a second array of the same size. Channels with a gamma near 0 cannot be recomputed from the output;
`keep_columns` keeps them beside it. Made of `normlab.host.norms`, `normlab.host.exact` and `normlab.host.matmul`.
"""

from typing import Any, NamedTuple

from normlab.host import checks, exact, matmul, norms
from normlab.host.arrays import backend_of


class Kept(NamedTuple):
    """The arrays that the backward needs beside the parameters.

    normalised: (M, K), the norm's output. invvar: (M,). columns, values: (R,), (M, R), the channels at risk and their
    normalised values, as in `normlab.host.exact.Kept`. If they are None, all channels are recomputed.
    """

    normalised: Any
    invvar: Any
    columns: Any = None
    values: Any = None


class Gradients(NamedTuple):
    """The gradients of x (M, K), gamma (K,) or None, beta (K,) or None, and weight (N, K), in the same shapes."""

    x: Any
    gamma: Any
    beta: Any
    weight: Any


@checks.positional("eps")
def layer_norm_linear_forward(
    x: Any, gamma: Any, beta: Any, weight: Any, *, eps: float = 1e-5, step: str | None = None
) -> tuple[Any, Kept]:
    """Return layer_norm(x) Wᵀ, as torch.nn.LayerNorm(K) and then torch.nn.Linear(K, N, bias=False).

    Args:
        x: (M, K), float32.
        gamma, beta: (K,), float32, the norm's weight and bias; each may be None.
        weight: (N, K), float32, W.
        eps: added to the variance.
        step: the name of a step of the SGEMM ladder; None: the best one.

    Returns:
        (output, kept): output is (M, N), and kept is for the backward. The host waits for the GPU to count the channels
        at risk, because their number is the size of kept.columns.

    Raises:
        ValueError: shapes that do not fit, arrays on different devices, an unknown step. Nothing is launched.
        TypeError: an argument that is no array, another dtype, eps that is no real number. Nothing is launched.
    """
    _check({"x": x}, gamma, beta, weight, eps, step)
    normalised, mean, invvar = norms.layer_norm_forward(x, x.shape[-1], gamma, beta, eps=eps)
    at_risk = exact.keep_columns(x, mean, invvar, x.shape[-1], gamma, beta, eps=eps)
    return matmul.sgemm(normalised, weight.T, step=step), Kept(normalised, invvar, *at_risk)


@checks.positional("eps")
def layer_norm_linear_backward(
    grad_output: Any, kept: Kept, gamma: Any, beta: Any, weight: Any, *, eps: float = 1e-5, step: str | None = None
) -> Gradients:
    """Return the gradients of `layer_norm_linear_forward`. They are right for every gamma, 0 included.

    grad_output: (M, N).

    Raises:
        ValueError, TypeError: as the forward.
    """
    if not isinstance(kept, Kept):
        kind = f"{type(kept).__module__}.{type(kept).__qualname__}"
        raise TypeError(f"kept must be the Kept that layer_norm_linear_forward returned, got {kind}")
    saved = {"kept.normalised": kept.normalised, "kept.invvar": kept.invvar}
    _check(saved | {"grad_output": grad_output}, gamma, beta, weight, eps, step)
    rows, columns = kept.normalised.shape
    checks.check_shape("kept.invvar", kept.invvar, (rows,), "rows of kept.normalised")
    of_output = rows, weight.shape[0]
    checks.check_shape("grad_output", grad_output, of_output, "rows of kept.normalised and of weight")
    mode, at_risk = _recomputing(kept)
    grad_weight = matmul.sgemm(grad_output.T, kept.normalised, step=step)
    grad_normalised = matmul.sgemm(grad_output, weight, step=step)
    of_norm = norms.layer_norm_backward(
        grad_normalised,
        kept.normalised,
        None,
        kept.invvar,
        columns,
        gamma,
        beta,
        eps=eps,
        memory_efficient=mode,
        kept=at_risk,
    )
    return Gradients(*of_norm, grad_weight)


def _recomputing(kept: Kept) -> tuple[Any, exact.Kept | None]:
    """Return the arguments memory_efficient and kept of `layer_norm_backward`."""
    if kept.columns is None or kept.values is None:
        return True, None
    expected = kept.normalised.shape[0], kept.columns.shape[0]
    checks.check_shape("kept.values", kept.values, expected, "rows of kept.normalised and kept.columns")
    return "exact", exact.Kept(kept.columns, kept.values)


def _check(given: dict[str, Any], gamma: Any, beta: Any, weight: Any, eps: Any, step: str | None) -> None:
    """Raise unless the norm of the first given array's rows and the product with weight can both be computed."""
    backend_of(given | {"weight": weight}, {"gamma": gamma, "beta": beta})
    checks.check_float32(given | {"weight": weight, "gamma": gamma, "beta": beta})
    (name, matrix), *_ = given.items()
    checks.check_matrix(name, matrix)
    checks.check_matrix("weight", weight)
    columns = matrix.shape[1]
    if not columns:
        raise ValueError(f"{name} must have at least one column, got shape {list(matrix.shape)}")
    checks.check_shape("weight", weight, (weight.shape[0], columns), f"a column for each of {name}")
    for label, parameter in {"gamma": gamma, "beta": beta}.items():
        checks.check_shape(label, parameter, (columns,), f"an element for each column of {name}")
    checks.number(eps)
    checks.product_step(step)
