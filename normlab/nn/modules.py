"""apex's four modules, as subclasses of torch.nn's LayerNorm and RMSNorm with another forward.

State dicts, initial values, pickling and everything else come from torch.nn's modules.
"""

import warnings
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from normlab.nn import checks, functional
from normlab.nn.dtypes import Rule
from normlab.nn.overrides import cannot_be_scripted, leaf
from normlab.nn.private import parameter_of
from normlab.nn.shapes import MemoryEfficient


class _Fused(torch.nn.Module):
    """What both norms have beside torch.nn's."""

    memory_efficient: MemoryEfficient
    dtype_rule: Rule = "apex"
    """The rule for output dtypes (`normlab.nn.dtypes`). `replace_norms` sets the one that the old norm followed."""

    __prepare_scriptable__ = cannot_be_scripted

    def extra_repr(self) -> str:
        """Return torch.nn's text; a norm made by `replace_norms` adds its memory_efficient."""
        mode = f", memory_efficient={self.memory_efficient!r}" if "made_of" in vars(self) else ""
        return super().extra_repr() + mode


class FusedLayerNorm(_Fused, torch.nn.LayerNorm):
    """`normlab.nn.layer_norm` as a module; apex's name, arguments and defaults.

    Args:
        normalized_shape, eps, elementwise_affine: as for torch.nn.LayerNorm.
        memory_efficient: which tensors the backward keeps: False, True or "exact", as for `normlab.nn.layer_norm`.
        bias, device, dtype: as for torch.nn.LayerNorm; apex has none of the three.
    """

    def __init__(
        self,
        normalized_shape: functional.NormalizedShape,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: MemoryEfficient = False,
        *,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)
        checks.check_mode(memory_efficient)
        self.memory_efficient = memory_efficient

    def forward(self, input: Tensor) -> Tensor:
        """Return the norm of (*leading, *normalized_shape), of the same shape, in the dtype of `dtype_rule`."""
        if type(input) is not Tensor and (node := leaf(self, FusedLayerNorm.forward, input)) is not None:
            return node
        weight, bias = parameter_of(self, "weight"), parameter_of(self, "bias")
        options = functional.Options(self.memory_efficient, False, self.dtype_rule)
        function, shape = functional.layer_norm, self.normalized_shape
        return functional.norm(function, input, shape, weight, bias, self.eps, options)


class FusedRMSNorm(_Fused, torch.nn.RMSNorm):
    """`normlab.nn.rms_norm` as a module; apex's name, arguments and defaults. eps=None: as `rms_norm`.

    Args:
        normalized_shape, eps, elementwise_affine: as for torch.nn.RMSNorm.
        memory_efficient: which tensors the backward keeps: False, True or "exact", as for `normlab.nn.layer_norm`.
        device, dtype: as for torch.nn.RMSNorm; apex has neither.
    """

    def __init__(
        self,
        normalized_shape: functional.NormalizedShape,
        eps: float | None = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: MemoryEfficient = False,
        *,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        checks.check_mode(memory_efficient)
        self.memory_efficient = memory_efficient

    def forward(self, input: Tensor) -> Tensor:
        """Return the norm of (*leading, *normalized_shape), of the same shape, in the dtype of `dtype_rule`."""
        if type(input) is not Tensor and (node := leaf(self, FusedRMSNorm.forward, input)) is not None:
            return node
        weight, options = parameter_of(self, "weight"), functional.Options(self.memory_efficient, True, self.dtype_rule)
        function, shape = functional.rms_norm, self.normalized_shape
        return functional.norm(function, input, shape, weight, None, self.eps, options)


class _Mixed(torch.nn.Module):
    """A norm that always has parameters, with the arguments of apex's."""

    def __init__(
        self,
        normalized_shape: functional.NormalizedShape,
        eps: float | None = 1e-5,
        *,
        memory_efficient: MemoryEfficient = False,
        **kwargs: Any,
    ) -> None:
        name, known = type(self).__name__, signature(super().__init__).parameters
        for option in kwargs:
            if option not in known:
                raise TypeError(f"{name}.__init__() got an unexpected keyword argument {option!r}")
        kwargs = _with_parameters(name, kwargs)
        super().__init__(normalized_shape, eps, memory_efficient=memory_efficient, **kwargs)


class MixedFusedLayerNorm(_Mixed, FusedLayerNorm):
    """A FusedLayerNorm that always has parameters, whose dtype the output has; apex's name and arguments."""


class MixedFusedRMSNorm(_Mixed, FusedRMSNorm):
    """A FusedRMSNorm that always has a weight, whose dtype the output has; apex's name and arguments."""


def _with_parameters(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options without elementwise_affine. As in apex, it causes a warning, and an error if it is False."""
    if "elementwise_affine" in options:
        warnings.warn(f"{name} does not support `elementwise_affine` argument", stacklevel=3)
        if not options["elementwise_affine"]:
            raise RuntimeError(f"{name} does not support `elementwise_affine = False`")
    return {option: value for option, value in options.items() if option != "elementwise_affine"}
