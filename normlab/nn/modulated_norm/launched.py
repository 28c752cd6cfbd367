"""LayerNorm modulated per sample by normlab's kernels; the functions are those of `vectorised` beside it."""

from torch import Tensor

from normlab.host.modulated_norm import modulated_layer_norm_backward, modulated_layer_norm_forward
from normlab.nn.launched import world
from normlab.nn.modulated_norm.vectorised import ModulatedSaved


def forward(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return (output, mean, invvar)."""
    with world(x):
        return modulated_layer_norm_forward(x, scale, shift, eps=eps)


def backward(grad_output: Tensor, saved: ModulatedSaved) -> tuple[Tensor, Tensor, Tensor]:
    """Return (grad_x, grad_scale, grad_shift)."""
    with world(saved.x):
        return modulated_layer_norm_backward(grad_output, *saved)
