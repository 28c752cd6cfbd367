"""LayerNorm and the linear layer behind it, forward and backward, with one array kept for both.

The linear layer keeps its input for its weight's gradient, whatever the norm does: and that input is the norm's output.
A norm that recomputes from its output (apex's memory_efficient) therefore keeps next to nothing of its own, where one
that recomputes from its input keeps a second array of that size. Made of `normlab.ops` and `normlab.products`.
"""

from typing import Any, NamedTuple

from normlab import ops, products


class Kept(NamedTuple):
    """What the backward needs beside the parameters: `normalised` (M, K), the norm's output, and `invvar` (M,)."""

    normalised: Any
    invvar: Any


class Gradients(NamedTuple):
    """Each of the shape of what it is the gradient of: x (M, K), gamma and beta (K,), weight (N, K)."""

    x: Any
    gamma: Any
    beta: Any
    weight: Any


def layer_norm_linear_forward(
    x: Any, gamma: Any, beta: Any, weight: Any, eps: float = 1e-5, *, step: str | None = None
) -> tuple[Any, Kept]:
    """layer_norm(x) Wᵀ, as torch.nn.LayerNorm(K) and torch.nn.Linear(K, N, bias=False) one after the other.

    Args:
        x: (M, K), float32.
        gamma, beta: (K,), the norm's weight and bias.
        weight: (N, K), W.
        eps: added to the variance.
        step: a step of the SGEMM ladder by name; None: the best one.

    Returns:
        ((M, N), what the backward needs).

    Raises:
        ValueError, TypeError: as `layer_norm_forward` and `sgemm`.
    """
    normalised, _, invvar = ops.layer_norm_forward(x, x.shape[-1], gamma, beta, eps)
    return products.sgemm(normalised, weight.T, step=step), Kept(normalised, invvar)


def layer_norm_linear_backward(
    grad_output: Any, kept: Kept, gamma: Any, beta: Any, weight: Any, eps: float = 1e-5, *, step: str | None = None
) -> Gradients:
    """Gradients of `layer_norm_linear_forward`; grad_output: (M, N). Channels whose gamma is near 0 lose accuracy.

    How much is `oracle.recompute_error`'s to say: dividing the output by gamma has no other way.

    Raises:
        ValueError, TypeError: as `layer_norm_backward` and `sgemm`.
    """
    grad_weight = products.sgemm(grad_output.T, kept.normalised, step=step)
    grad_normalised = products.sgemm(grad_output, weight, step=step)
    of_norm = ops.layer_norm_backward(
        grad_normalised, kept.normalised, None, kept.invvar, gamma.shape[0], gamma, beta, eps, memory_efficient=True
    )
    return Gradients(*of_norm, grad_weight)
