"""SyncBatchNorm: batch norm of a batch that lies on several ranks, with torch.nn.SyncBatchNorm's interface.

    forward    moments of each channel of this rank's samples → one all-gather → merge → output, running statistics
    backward   Σ dy and Σ dy x̂ of each channel → one all-gather → sums → grad_input

Ranks may have different numbers of samples, also none. As in torch.nn, the gradients of weight and bias are those of
this rank's samples, and DistributedDataParallel adds them up. Each rank sends 2 floats per channel and one more
forward, 2 floats per channel backward. CUDA tensors run normlab's kernels (`channels_launched`), CPU tensors PyTorch's
operations (`channels_vectorised`), which also serve empty batches and compiled code.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from normlab.distributed import channels_launched, channels_vectorised, merging
from normlab.distributed.collectives import Call, checked, gather, group_or_world, refuse_second_derivatives
from normlab.host.family import view_of
from normlab.nn import checks
from normlab.nn.family.modules import _BatchNorm
from normlab.nn.formulas import to
from normlab.nn.private import differentiated
from normlab.nn.shapes import Parameter


class SyncBatchNorm(_BatchNorm):
    """Batch norm of (N, C, *spatial) over the samples of all ranks, as torch.nn.SyncBatchNorm, also on CPUs.

    Arguments are those of torch.nn.SyncBatchNorm. In evaluation, on one rank and without a process group it is
    `normlab.nn.batch_norm`. It is no subclass of torch.nn.SyncBatchNorm, because DistributedDataParallel refuses this
    class on CPUs.

    Raises:
        ValueError: channels or dtypes differ between ranks. All ranks raise it.
        RuntimeError: another rank raised an error, or did not come within the group's timeout. The message names it.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: dist.ProcessGroup | None = None,
        **factory: Any,
    ):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, **factory)
        self.process_group = process_group

    def forward(self, input: Tensor) -> Tensor:
        """Return this rank's samples, normalised, in the input's shape and dtype."""
        group = self._group()
        if group is None:
            return super().forward(input)
        checked(group, lambda: self._check(input))
        passes = "forward and backward" if differentiated(input, self.weight, self.bias) else "forward alone"
        call = Call("SyncBatchNorm", ("*", input.shape[1], "*"), (str(input.dtype), f"eps {float(self.eps)}", passes))
        output, mean, variance, size = _SyncBatchNorm.apply(input, self.weight, self.bias, self.eps, group, call)
        if self.track_running_stats:
            # If this rank has samples, the host knows without asking the GPU that the batch is not empty.
            self._update(mean, variance, 1.0 if input.numel() else (size > 0).to(size.dtype))
        return output

    def _group(self) -> dist.ProcessGroup | None:
        """Return the group whose ranks share the batch now, or None if this rank normalises alone."""
        if not self.training or not dist.is_available() or not dist.is_initialized():
            return None
        group = group_or_world(self.process_group)
        return group if dist.get_world_size(group) > 1 else None

    def _check(self, input: Any) -> None:
        """Raise an error for an input that is wrong on this rank, whatever the other ranks have."""
        if not isinstance(input, Tensor):
            raise TypeError(f"SyncBatchNorm: input must be a tensor, not {type(input).__name__}")
        self._check_input_dim(input)
        if input.shape[1] != self.num_features:
            raise ValueError(f"expected {self.num_features} channels, got input of shape {tuple(input.shape)}")
        checks.check_kinds(torch.nn.functional.batch_norm, input, self.weight, self.bias)

    def _check_input_dim(self, input: Tensor) -> None:
        """Raise torch.nn.SyncBatchNorm's error for an input without channels."""
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    @torch.no_grad()
    def _update(self, mean: Tensor, variance: Tensor, filled: float | Tensor) -> None:
        """Set running = (1 - momentum) running + momentum new.

        variance: unbiased. filled: 1, or 0 if no rank has a sample; then the running statistics stay as they are.
        """
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:  # the average of all batches so far
                momentum = 1 / float(self.num_batches_tracked)
        for running, new in ((self.running_mean, mean), (self.running_var, variance)):
            if running is not None:
                if running.dtype == new.dtype:
                    running.lerp_(new, momentum * filled)
                else:
                    running.copy_(torch.lerp(running.to(new.dtype), new, momentum * filled))

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_group: dist.ProcessGroup | None = None
    ) -> torch.nn.Module:
        """Replace all batch norms of a model, torch.nn's and normlab's, and return the model.

        Parameters and buffers are the same objects afterwards. If the model is itself a batch norm, the new module is
        returned. process_group: the ranks that share a batch; None: all ranks.
        """
        converted = module
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            converted = cls(
                module.num_features,
                module.eps,
                module.momentum,
                module.affine,
                module.track_running_stats,
                process_group,
                device="meta",  # what it would make is replaced
            )
            converted.weight, converted.bias = module.weight, module.bias
            converted.running_mean, converted.running_var = module.running_mean, module.running_var
            converted.num_batches_tracked = module.num_batches_tracked
            converted.training = module.training
        for name, child in module.named_children():
            converted.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return converted


class _SyncBatchNorm(torch.autograd.Function):
    """apply(x, weight, bias, eps, group, call) -> (output, mean, variance, size), statistics of all ranks' samples."""

    @staticmethod
    def forward(ctx: Any, x, weight, bias, eps: float, group: dist.ProcessGroup, call: Call) -> tuple[Tensor, ...]:
        """Return the output in x's shape; mean and unbiased variance (C,); size (1,), a channel's number of values."""
        by_kernels = channels_launched.merges(x)
        view = view_of(x) if by_kernels and x.numel() else None  # None: by PyTorch's operations
        if view is not None:
            x = view.as_stored(x.detach()).contiguous()
            messages = gather(channels_launched.message(x, view), group, call)
            output, found = channels_launched.output(x, view, messages, weight, bias, eps)
        else:
            x = channels_vectorised.BATCH.in_layout(x)
            messages = gather(channels_vectorised.message(x), group, call)
            found = merging.statistics(messages, eps, False, by_kernels, variance=True)
            output = channels_vectorised.output(x, found.mean, found.invvar, weight, bias)
        ctx.mark_non_differentiable(found.mean, found.variance, found.count)
        ctx.save_for_backward(x, found.mean, found.invvar, found.count, weight, bias)
        ctx.group, ctx.call, ctx.view, ctx.by_kernels = group, call, view, by_kernels
        return output, found.mean, found.variance, found.count

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, *_: Any) -> tuple[Parameter, ...]:
        """Return the gradients of x, weight and bias, of this rank's samples."""
        checked(ctx.group, lambda: refuse_second_derivatives(ctx.call))
        x, mean, invvar, size, weight, bias = ctx.saved_tensors
        call, view = ctx.call._replace(name=f"the backward of {ctx.call.name}"), ctx.view
        # The message is gathered from two ranks or more, so the merge, which overwrites what it merges, leaves `own`.
        if view is not None:
            dy = view.as_stored(grad_output).contiguous()
            own = channels_launched.sums(dy, x, view, mean, invvar)
            messages = gather(own, ctx.group, call)
            grad_input = channels_launched.grad_input(dy, x, view, messages, size, mean, invvar, weight)
        else:
            own = channels_vectorised.sums(grad_output, x, mean, invvar)
            means = merging.means(gather(own, ctx.group, call), size, False, ctx.by_kernels)
            if weight is not None:
                means = means * weight.to(means.dtype)
            grad_input = channels_vectorised.grad_input(grad_output, x, mean, invvar, weight, *means)
        grad_bias, grad_weight = own.view(2, -1)
        return (
            grad_input,
            None if weight is None else to(grad_weight, weight.dtype),
            None if bias is None else to(grad_bias, bias.dtype),
            *[None] * 3,
        )
