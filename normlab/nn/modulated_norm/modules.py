"""LayerNorm modulated per sample as a module, without parameters of its own."""

import torch
from torch import Tensor

from normlab.nn.modulated_norm.functional import modulated_layer_norm
from normlab.nn.overrides import cannot_be_scripted


class ModulatedLayerNorm(torch.nn.Module):
    """`normlab.nn.modulated_layer_norm` as a module: call it with x, scale and shift.

    Args:
        eps: added to the biased variance.
    """

    __prepare_scriptable__ = cannot_be_scripted

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        """Return the output, with x's shape (batch, ..., n). scale and shift: (batch, n)."""
        return modulated_layer_norm(x, scale, shift, self.eps)

    def extra_repr(self) -> str:
        """Return the options, for `repr`."""
        return f"eps={self.eps}"
