"""Compute a norm of CPU tensors and its first derivative, one block of rows after another.

Called by `normlab.nn.vectorised`. A block's temporary tensors stay in the cache. ATen's LayerNorm computes a block
wherever its results are within the oracle's bounds. The time of LayerNorm's forward and backward over torch.nn's:

| saved | float32 | bfloat16 |
| --- | --- | --- |
| the input | 1.0 to 1.1 | 1.2 to 1.4 |
| the output, which has to be divided | 1.3 to 2.0 | 1.3 to 2.0 |

Over whole tensors instead of blocks the time was up to 3.7, and bfloat16 needed 11 activations of temporary memory.
"""

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

from normlab.nn.formulas import accumulator, composed_gradients, present, statistics, to
from normlab.nn.shapes import Gradients, How, MemoryEfficient, Parameter, Saved, Shape, Statistic


def forward(
    x: Tensor, shape: Shape, gamma: Parameter, beta: Parameter, eps: float, rms: bool, dtype: torch.dtype
) -> tuple[Tensor, Statistic, Tensor]:
    """Return (output, mean, invvar) of a CPU tensor, as `normlab.nn.vectorised.forward` does.

    gamma, beta: in accumulator precision.
    """
    wide = accumulator(x.dtype)
    output = x.new_empty(x.shape, dtype=dtype)
    statistics_shape = x.shape[: x.dim() - len(shape)] + (1,) * len(shape)
    mean, invvar = (x.new_empty(statistics_shape, dtype=wide) for _ in range(2))
    gamma, beta = (None if one is None else one.flatten() for one in (gamma, beta))
    for some, result, centre, scale in _blocks(*_rows(shape, x, output, mean, invvar)):
        values = to(some, wide)
        if not rms:
            parts = torch.native_layer_norm(values, values.shape[1:], gamma, beta, eps)
            for one, part in zip((result, centre, scale), parts, strict=True):
                one.copy_(part)
            continue
        scale.copy_(statistics(values, values.shape[1:], eps, rms)[1])
        if gamma is None:
            torch.mul(values, scale, out=result)
        else:
            torch.mul(values * scale, gamma, out=result)
    return output, None if rms else mean, invvar


def gradients(grad_output: Tensor, saved: Saved, how: How) -> Gradients:
    """Return `composed_gradients`' results for CPU tensors, not differentiable, with grad_input in how.dtype."""
    tensor, invvar, gamma, beta, _, values, mean = saved
    kept, wide, n2 = saved.kept, invvar.dtype, prod(how.shape)
    grad_input = torch.empty(tensor.shape, dtype=how.dtype, device=tensor.device)
    gamma, beta = (None if one is None else one.flatten() for one in (gamma, beta))
    sums = [torch.zeros(n2, dtype=wide, device=tensor.device) for one in (gamma, beta) if one is not None]
    by_aten = not how.rms and (not how.memory_efficient or kept is not None or _divides(gamma, how.eps))
    buffers = [torch.empty(min(BLOCK, n2 * invvar.numel()) if by_aten else 0, dtype=wide) for _ in range(2)]
    rows = how._replace(shape=(n2,))
    optional = [tensor if one is None else one for one in (mean, values)]  # `tensor` for an absent one, not used
    tensors = grad_output, tensor, grad_input, invvar, *optional
    for dy, some, result, scale, centre, some_values in _blocks(*_rows(how.shape, *tensors)):
        statistic = None if mean is None else centre
        block = Saved(some, scale, gamma, beta, saved.columns, None if values is None else some_values, statistic)
        if by_aten:
            found = _block_by_aten(dy, block, bool(how.memory_efficient), result, buffers)
        else:
            found = composed_gradients(dy, block, rows)
        if found[0] is not result:
            result.copy_(found[0])
        for total, part in zip(sums, present(found[1:]), strict=True):
            total += part
    each = iter(total.reshape(how.shape) for total in sums)
    return grad_input, None if gamma is None else next(each), None if beta is None else next(each)


def _block_by_aten(dy: Tensor, saved: Saved, from_output: bool, result: Tensor, buffers: list[Tensor]) -> Gradients:
    """Return LayerNorm's gradients for a block of rows, by ATen from x - mean or from x̂, recomputed from the output.

    Given x itself, ATen would subtract the mean from products of x, and lose the digits that x and its mean share.
    result: the block's rows of grad_input; the last product is written into it. buffers: two that all blocks
    share, because the allocator would give each block new pages.
    """
    tensor, invvar, gamma, beta, *_, mean = saved
    temporary, temporary_dy = (one.resize_(dy.shape) for one in buffers)
    zero, shape, kept = torch.zeros_like(invvar), dy.shape[1:], saved.kept
    if dy.dtype != temporary.dtype:
        dy = temporary_dy.copy_(dy)
    if mean is not None and not from_output:
        return fused(dy, torch.sub(tensor, mean, out=temporary), zero, invvar, shape, gamma, beta)
    xhat = temporary.copy_(tensor) if beta is None else torch.sub(tensor, beta, out=temporary)
    if gamma is not None:
        xhat.div_(gamma)
    if kept is not None and kept.columns.shape[0]:
        there = kept.columns >= 0
        xhat[:, kept.columns[there].long()] = kept.values[:, there].to(xhat.dtype)
    grad_input, grad_weight, grad_bias = fused(dy, xhat, zero, torch.ones_like(invvar), shape, gamma, beta)
    return torch.mul(grad_input, invvar, out=result), grad_weight, grad_bias


BLOCK = 2**18
"""The elements of a block: 1 MB of float32. The fastest of 2**16 to 2**19 on a CPU with 1 MB of L2 cache per core."""


def _rows(shape: Shape, *tensors: Tensor) -> list[Tensor]:
    """Return tensors of the same number of rows in two dimensions. A dense tensor gives a view."""
    rows = prod(tensors[0].shape[: tensors[0].dim() - len(shape)])
    return [one.reshape(rows, one.numel() // max(1, rows)) for one in tensors]


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Return an iterator over blocks of the tensors' rows.

    A block of the first tensor has at most BLOCK elements, but at least one row.
    """
    step = max(1, BLOCK // max(1, tensors[0].shape[1]))
    return zip(*(one.split(step) for one in tensors), strict=True)


def by_one_operation(
    grad_output: Tensor, saved: Tensor, mean: Statistic, invvar: Tensor, eps: float, memory_efficient: MemoryEfficient
) -> bool:
    """Return True if the gradients by ATen's LayerNorm of the whole x are within our bounds.

    Those of halves are not, because ATen adds up the parameters' gradients in halves: in bfloat16 they are off by 1e-2
    after 64 rows.
    """
    if mean is None or memory_efficient or not grad_output.dtype == saved.dtype == mean.dtype:
        return False
    return spread_out(mean, invvar, eps)


def spread_out(mean: Tensor, invvar: Tensor, eps: float) -> bool:
    """Return True if no row has a mean beyond its standard deviation, or a variance below a hundredth of eps.

    In such a row ATen's x̂ = x invvar - mean invvar is off by more than its own rounding. In float32 the error is 4e-5
    for a mean of 1e3 deviations, and has no bound for rows of equal values.
    """
    return bool(((mean.square() + eps) * invvar.square() <= 0.99).all())


def fused(
    dy: Tensor, x: Tensor, mean: Statistic, invvar: Tensor, shape: Shape, gamma: Parameter, beta: Parameter
) -> Gradients:
    """Return LayerNorm's gradients by one operation of ATen's; None for an absent parameter's."""
    wanted = [True, gamma is not None, beta is not None]
    grad_input, *affine = _native_backward(dy.contiguous(), x.contiguous(), shape, mean, invvar, gamma, beta, wanted)
    return grad_input, *(one if want else None for one, want in zip(affine, wanted[1:], strict=True))


_native_backward = torch.ops.aten.native_layer_norm_backward.default


def _divides(gamma: Parameter, eps: float) -> bool:
    """Return True if gamma is nowhere 0 and the clamp leaves all of it unchanged. A meta tensor counts as such."""
    return gamma is None or gamma.is_meta or bool(((gamma.abs() >= eps) & (gamma != 0)).all())
