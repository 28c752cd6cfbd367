"""RMSNorm with a gate as a module, with the parameter and state dict of torch.nn.RMSNorm."""

from typing import Any

import torch
from torch import Tensor

from normlab.host.gated_norm import check_options
from normlab.nn.add_norm.modules import check_normalized_shape, one_dimension, options_text
from normlab.nn.gated_norm.functional import gated_rms_norm
from normlab.nn.overrides import cannot_be_scripted
from normlab.nn.private import parameter_of


class GatedRMSNorm(torch.nn.RMSNorm):
    """`normlab.nn.gated_rms_norm` as a module: call it with x and the gate.

    Args:
        normalized_shape: the last dimension, an int.
        eps, elementwise_affine, device, dtype: as for torch.nn.RMSNorm.
        norm_before_gate, memory_efficient: as for `normlab.nn.gated_rms_norm`.
    """

    __prepare_scriptable__ = cannot_be_scripted

    def __init__(
        self,
        normalized_shape: int,
        eps: float | None = 1e-6,
        elementwise_affine: bool = True,
        *,
        norm_before_gate: bool = True,
        memory_efficient: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        check_options(norm_before_gate, memory_efficient)
        super().__init__(one_dimension("a gated norm", normalized_shape), eps, elementwise_affine, device, dtype)
        self.norm_before_gate, self.memory_efficient = norm_before_gate, memory_efficient

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        """Return the output, (*leading, n) as x and the gate."""
        check_normalized_shape(self, gated_rms_norm, x)
        how = {"norm_before_gate": self.norm_before_gate, "memory_efficient": self.memory_efficient}
        return gated_rms_norm(x, gate, parameter_of(self, "weight"), self.eps, **how)

    def extra_repr(self) -> str:
        """Return torch.nn's text, and the options that are not the defaults."""
        text = super().extra_repr() + options_text(self)
        return text if self.norm_before_gate else f"{text}, norm_before_gate=False"
