"""torch.nn's norms by name: each is PyTorch's own module with another forward.

State dicts, extra_repr, initial values, checks of dimensions and everything else come from PyTorch's modules.
`LayerNorm` and `RMSNorm` have no memory_efficient, unlike `normlab.nn.modules`, and they follow torch.nn's rule for
dtypes: the output has the input's dtype, or float32 under a GPU's autocast.
"""

from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy, Tracer

from normlab.nn import functional as rows
from normlab.nn.add_norm.functional import offset_rms_norm
from normlab.nn.add_norm.modules import OffsetRMSNorm, check_normalized_shape
from normlab.nn.checks import not_a_tensor
from normlab.nn.dtypes import RMS_NORM_RULE
from normlab.nn.family import functional
from normlab.nn.overrides import cannot_be_scripted, leaf

_TORCH_NORM = torch.nn.GroupNorm(1, 1, device="cpu")
"""A norm of torch.nn: `_OneNode` asks a tracer whether it keeps this module as one node."""


class _OneNode(torch.nn.Module):
    """A norm that `torch.fx.symbolic_trace` keeps as one node of its graph, as it keeps torch.nn's own modules.

    A trace of the forward would fail in checks of shapes, because a proxy has no shape. Its graph would not count the
    batches either.
    """

    def __call__(self, input: Any, *rest: Any, **options: Any) -> Any:
        """Return the output, or its proxy while torch.fx traces."""
        if isinstance(input, Proxy) and isinstance(tracer := input.tracer, Tracer):
            path = tracer.path_of_module(self)
            if tracer.is_leaf_module(_TORCH_NORM, path):
                return tracer.create_proxy("call_module", path, (input, *rest), options)
        return super().__call__(input, *rest, **options)


def _symbolic(input: Tensor) -> bool:
    """Return True if torch.fx traces the inside of the module, where a proxy has no shape to check."""
    if torch.jit.is_scripting():
        return False
    else:  # in a branch, because TorchScript leaves out only branches
        return isinstance(input, Proxy)


class _BatchNorm(_OneNode, torch.nn.modules.batchnorm._BatchNorm):
    def forward(self, input: Tensor) -> Tensor:
        """Return batch norm of (N, C, *spatial), of the same shape. BatchNorm1d takes (N, C), too."""
        if not _symbolic(input):
            self._check_input_dim(input)
        own = bool(self.training) or (self.running_mean is None and self.running_var is None)
        tracked = not self.training or self.track_running_stats
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:  # the average of all batches so far
                momentum = 1 / float(self.num_batches_tracked)
        return functional.batch_norm(
            input,
            self.running_mean if tracked else None,
            self.running_var if tracked else None,
            self.weight,
            self.bias,
            own,
            momentum,
            self.eps,
        )


class _InstanceNorm(_OneNode, torch.nn.modules.instancenorm._InstanceNorm):
    def forward(self, input: Tensor) -> Tensor:
        """Return instance norm of (N, C, *spatial) or (C, *spatial): torch.nn's checks, then `_apply_instance_norm`."""
        if torch.jit.is_scripting():  # TorchScript does not know super()
            self._check_input_dim(input)
            if input.dim() == self._get_no_batch_dim():
                return self._handle_no_batch_input(input)
            return self._apply_instance_norm(input)
        else:
            return self._apply_instance_norm(input) if isinstance(input, Proxy) else super().forward(input)

    def _apply_instance_norm(self, input: Tensor) -> Tensor:
        """Return instance norm of (N, C, *spatial). If the input had no N, torch.nn's forward has added it."""
        own = self.training or not self.track_running_stats
        momentum = 0.0 if self.momentum is None else self.momentum
        return functional.instance_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, own, momentum, self.eps
        )


class BatchNorm1d(_BatchNorm, torch.nn.BatchNorm1d):
    """torch.nn.BatchNorm1d by normlab: `normlab.nn.batch_norm` of (N, C) or (N, C, L)."""


class BatchNorm2d(_BatchNorm, torch.nn.BatchNorm2d):
    """torch.nn.BatchNorm2d by normlab: `normlab.nn.batch_norm` of (N, C, H, W)."""


class BatchNorm3d(_BatchNorm, torch.nn.BatchNorm3d):
    """torch.nn.BatchNorm3d by normlab: `normlab.nn.batch_norm` of (N, C, D, H, W)."""


class InstanceNorm1d(_InstanceNorm, torch.nn.InstanceNorm1d):
    """torch.nn.InstanceNorm1d by normlab: `normlab.nn.instance_norm` of (N, C, L) or (C, L)."""


class InstanceNorm2d(_InstanceNorm, torch.nn.InstanceNorm2d):
    """torch.nn.InstanceNorm2d by normlab: `normlab.nn.instance_norm` of (N, C, H, W) or (C, H, W)."""


class InstanceNorm3d(_InstanceNorm, torch.nn.InstanceNorm3d):
    """torch.nn.InstanceNorm3d by normlab: `normlab.nn.instance_norm` of (N, C, D, H, W) or (C, D, H, W)."""


class GroupNorm(_OneNode, torch.nn.GroupNorm):
    """torch.nn.GroupNorm by normlab: `normlab.nn.group_norm` of (N, C, *spatial)."""

    def forward(self, input: Tensor) -> Tensor:
        """Return group norm of (N, C, *spatial), of the same shape."""
        return functional.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm by normlab: `normlab.nn.layer_norm` that saves its input."""

    __prepare_scriptable__ = cannot_be_scripted

    def forward(self, input: Tensor) -> Tensor:
        """Return LayerNorm of (*leading, *normalized_shape), in the dtype of torch.nn's output, also under autocast."""
        if type(input) is not Tensor and (node := leaf(self, LayerNorm.forward, input)) is not None:
            return node
        shape, options = self.normalized_shape, rows.Options(False, False, "torch")
        return rows.norm(rows.layer_norm, input, shape, self.weight, self.bias, self.eps, options)


class RMSNorm(OffsetRMSNorm):
    """torch.nn.RMSNorm by normlab: `normlab.nn.rms_norm` that saves its input.

    Args:
        normalized_shape, eps, elementwise_affine, device, dtype: as for torch.nn.RMSNorm.
        offset: gamma is weight + offset, as in Gemma's norms, whose offset is 1. The weight begins as 1 - offset. With
            an offset the norm goes over one dimension, and the output has the input's dtype, also under autocast.
    """

    def __init__(
        self,
        normalized_shape: rows.NormalizedShape,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        offset: float = 0.0,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype, offset=offset)
        if offset and len(self.normalized_shape) != 1:
            raise ValueError(f"with an offset a norm goes over one dimension, got {self.normalized_shape}")

    def forward(self, x: Tensor) -> Tensor:
        """Return RMSNorm of (*leading, *normalized_shape), in the dtype of torch.nn's output, also under autocast."""
        if type(x) is not Tensor and (node := leaf(self, RMSNorm.forward, x)) is not None:
            return node
        if self.offset:
            if not isinstance(x, Tensor):
                raise not_a_tensor(rows.rms_norm, "input", x)
            check_normalized_shape(self, rows.rms_norm, x)
            return offset_rms_norm(x, self.weight, self.eps, self.offset).to(x.dtype)
        shape, options = self.normalized_shape, rows.Options(False, True, RMS_NORM_RULE)
        return rows.norm(rows.rms_norm, x, shape, self.weight, None, self.eps, options)
