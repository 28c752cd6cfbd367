"""The norms of x + residual and of heads as modules, with the parameters and state dicts of torch.nn's norms."""

from collections.abc import Callable
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from normlab.nn import checks
from normlab.nn.add_norm.functional import add_layer_norm, add_rms_norm, check_options, head_rms_norm
from normlab.nn.overrides import cannot_be_scripted
from normlab.nn.private import parameter_of
from normlab.nn.shapes import MemoryEfficient

SUM = "a norm of x + residual"


class AddLayerNorm(torch.nn.LayerNorm):
    """`normlab.nn.add_layer_norm` as a module: call it with x and the residual.

    Args:
        normalized_shape: the last dimension, an int.
        eps, elementwise_affine, bias, device, dtype: as for torch.nn.LayerNorm.
        dropout, memory_efficient: as for `normlab.nn.add_layer_norm`; dropout is 0 in evaluation.
    """

    __prepare_scriptable__ = cannot_be_scripted

    def __init__(
        self,
        normalized_shape: int,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        dropout: float = 0.0,
        memory_efficient: MemoryEfficient = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        check_options(dropout, memory_efficient)
        super().__init__(one_dimension(SUM, normalized_shape), eps, elementwise_affine, bias, device, dtype)
        self.dropout, self.memory_efficient = dropout, memory_efficient

    def extra_repr(self) -> str:
        """Return torch.nn's text, and the options that are not the defaults."""
        return super().extra_repr() + options_text(self)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Return (output, new_residual) of (*leading, n) each."""
        weight, bias = parameter_of(self, "weight"), parameter_of(self, "bias")
        check_normalized_shape(self, add_layer_norm, residual)
        options: dict[str, Any] = {"dropout": self.dropout * self.training, "memory_efficient": self.memory_efficient}
        return add_layer_norm(x, residual, weight, bias, self.eps, **options)


class OffsetRMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm whose gamma is weight + offset. A subclass has the forward."""

    __prepare_scriptable__ = cannot_be_scripted
    offset: float = 0.0  # the value of a module that normlab 0.1 pickled without an offset

    def __init__(self, normalized_shape: Any, *options: Any, offset: float, **named: Any) -> None:
        if not isinstance(offset, Real):
            raise TypeError(f"offset must be float, not {type(offset).__name__}")
        self.offset = offset  # before torch.nn's constructor, which calls `reset_parameters`
        super().__init__(normalized_shape, *options, **named)

    def reset_parameters(self) -> None:
        """Set gamma to 1: the weight to 1 - offset."""
        if self.elementwise_affine:
            torch.nn.init.constant_(self.weight, 1 - self.offset)

    def extra_repr(self) -> str:
        """Return torch.nn's text, and the options that are not the defaults."""
        return super().extra_repr() + options_text(self)


class AddRMSNorm(OffsetRMSNorm):
    """`normlab.nn.add_rms_norm` as a module: call it with x and the residual.

    Args:
        normalized_shape: the last dimension, an int.
        eps, elementwise_affine, device, dtype: as for torch.nn.RMSNorm.
        offset: gamma is weight + offset. The weight begins as 1 - offset.
        dropout, memory_efficient: as for `normlab.nn.add_layer_norm`; dropout is 0 in evaluation.
    """

    def __init__(
        self,
        normalized_shape: int,
        eps: float | None = 1e-6,
        elementwise_affine: bool = True,
        *,
        offset: float = 0.0,
        dropout: float = 0.0,
        memory_efficient: MemoryEfficient = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        check_options(dropout, memory_efficient, offset)
        super().__init__(one_dimension(SUM, normalized_shape), eps, elementwise_affine, device, dtype, offset=offset)
        self.dropout, self.memory_efficient = dropout, memory_efficient

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Return (output, new_residual) of (*leading, n) each."""
        check_normalized_shape(self, add_rms_norm, residual)
        options: dict[str, Any] = {"dropout": self.dropout * self.training, "memory_efficient": self.memory_efficient}
        return add_rms_norm(x, residual, parameter_of(self, "weight"), self.eps, offset=self.offset, **options)


class HeadRMSNorm(OffsetRMSNorm):
    """`normlab.nn.head_rms_norm` as a module.

    Args:
        head_dim: the last dimension of x.
        eps, elementwise_affine, device, dtype: as for torch.nn.RMSNorm.
        heads: None for a weight (head_dim,), or their number for a weight (heads, head_dim).
        offset: gamma is weight + offset. The weight begins as 1 - offset.
    """

    def __init__(
        self,
        head_dim: int,
        eps: float | None = 1e-6,
        elementwise_affine: bool = True,
        *,
        heads: int | None = None,
        offset: float = 0.0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        shape = (head_dim,) if heads is None else (heads, head_dim)
        super().__init__(shape, eps, elementwise_affine, device, dtype, offset=offset)

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of (*leading, heads, head_dim), contiguous."""
        check_normalized_shape(self, head_rms_norm, x)
        return head_rms_norm(x, parameter_of(self, "weight"), self.eps, offset=self.offset)


def one_dimension(norm: str, normalized_shape: Any) -> int:
    """Return the size of the last dimension, or raise an error for several dimensions or no size. norm: in words."""
    shape = (normalized_shape,) if checks.is_size(normalized_shape) else normalized_shape
    if not isinstance(shape, (tuple, list)) or not all(map(checks.is_size, shape)):
        raise TypeError(f"the normalized_shape of {norm} must be an int, got {normalized_shape!r}")
    shape = tuple(shape)
    if len(shape) != 1:
        raise ValueError(f"{norm} goes over the last dimension alone, got normalized_shape={shape}")
    return shape[0]


def check_normalized_shape(norm: Any, function: Callable[..., Any], x: Any) -> None:
    """Raise PyTorch's error if x has other last dimensions than a norm without a weight, which would show it."""
    if norm.weight is None and isinstance(x, Tensor) and not torch.jit.is_tracing():
        checks.check_size(function, x, norm.normalized_shape)


def options_text(norm: Any) -> str:
    """Return the options of a norm that are not the defaults, for its `extra_repr`."""
    names = ("offset", "dropout", "memory_efficient")
    return "".join(f", {name}={getattr(norm, name)!r}" for name in names if getattr(norm, name, False))
