"""Compute the family on a CPU by PyTorch's own kernels, from x where they are exact enough, else from x - mean.

The functions are those of `normlab.nn.family.vectorised`, which documents them. Instance norm is group norm with a
channel per group, except that evaluation, and training that tracks running statistics, are batch norm as in PyTorch.

PyTorch computes x · invvar gamma + (beta - mean invvar gamma), which cancels where a mean is far from 0. `far` finds
such means. The largest error of a group norm's float32 output, (8, 6, 30, 30) in three groups, at a mean of 1e6 and a
standard deviation of 1 (PyTorch 2.13):

| computed from | channels first | channels last |
| --- | --- | --- |
| x | 1e-1 | no digit is right |
| x - mean | 3e-7 | 3e-7 |
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from normlab.nn.checks import HALVES
from normlab.nn.family import vectorised
from normlab.nn.family.norms import Given, Norm
from normlab.nn.formulas import accumulator, in_dtypes
from normlab.nn.private import unsafe_view
from normlab.nn.shapes import Gradients, Parameter

# PyTorch's kernels compute x itself up to this |mean| / sqrt(variance + eps). With channels last its group norm
# computes the variance as E[x²] - mean². In float32, at the shape above, its output is then off by up to 2.7e-3 at a
# ratio of 30, instead of 1.2e-6 for x - mean. At a ratio of 1000 no digit is right.
FAR = 4.0
PIECES = 8  # for halves: a centred piece needs 7 times its own memory, so 8 pieces need 0.9 activations
CHUNK = 2**18  # float32 values that fit into a core's second-level cache


def forward(norm: Norm, given: Given) -> tuple[Tensor, Tensor, Tensor]:
    """Return (output, mean, invvar); the running statistics change in place where norm.own."""
    given = given._replace(x=norm.in_layout(given.x))
    if not given.x.numel():
        return vectorised.forward(norm, given)
    if not norm.own:
        return _evaluate(norm, given)
    if norm.kind == "instance" and given.running_mean is not None:
        return _track(given)
    output, mean, invvar, updated = _train(norm, given)
    if far(mean, invvar):
        del output  # so that memory never holds two outputs
        return _train_by_pieces(norm, given) if given.x.dtype in HALVES else _train_centred(norm, given)
    _copy(given, updated)
    return output, mean, invvar


def backward(
    grad_output: Tensor, x: Tensor, mean: Tensor, invvar: Tensor, norm: Norm, weight: Parameter, bias: Parameter
) -> Gradients:
    """Return (grad_input, grad_weight, grad_bias); None for an absent parameter's."""
    x = norm.in_layout(x)
    if not x.numel():
        return vectorised.backward(grad_output, x, mean, invvar, norm, weight, bias)
    # dy gets x's layout: from another layout PyTorch's batch norm adds up halves in halves, and misses the bound by a
    # factor of 8 to 150.
    dy = grad_output.contiguous(memory_format=norm.output_layout(x))
    gamma, every = _affine(x, weight), [True] * 3
    if norm.kind == "batch" or not norm.own:
        mean, invvar = (one.reshape(-1)[: x.shape[1]].contiguous() for one in (mean, invvar))  # equal in all samples
        running = (None, None) if norm.own else (mean, invvar**-2)
        found = torch.ops.aten.native_batch_norm_backward(dy, x, gamma, *running, mean, invvar, norm.own, 0.0, every)
    elif far(mean, invvar):  # PyTorch's group norm sums before it subtracts the mean, its batch norm after
        centred = _backward_by_pieces if x.dtype in HALVES else _backward_centred
        found = centred(norm, dy, x, mean, invvar, gamma)
    else:
        found = torch.ops.aten.native_group_norm_backward(dy, x, mean, invvar, gamma, *_sizes(norm, x), every)
    return in_dtypes(found, x.dtype, weight, bias)


def far(mean: Tensor, invvar: Tensor) -> bool:
    """Return True if the mean of any set is so far from 0 that PyTorch's kernels lose digits; NaN counts as far."""
    return not bool((mean.abs() * invvar).max() <= FAR)


def _affine(x: Tensor, parameter: Parameter, default: float = 1.0) -> Tensor:
    """Return a parameter in accumulator precision, which PyTorch then uses for statistics, too; `default` for None."""
    if parameter is None:
        return x.new_full(x.shape[1:2], default, dtype=accumulator(x.dtype))
    return parameter.detach().to(accumulator(x.dtype)).contiguous()


def _sizes(norm: Norm, x: Tensor) -> tuple[int, int, int, int]:
    """Return N, C, the spatial size and the number of groups, the arguments of PyTorch's group norm."""
    n, c = x.shape[:2]
    return n, c, x.numel() // (n * c), c if norm.groups is None else norm.groups


def _train(norm: Norm, given: Given) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
    """Return (output, mean, invvar, new running statistics or ()), by PyTorch's kernels."""
    x, *tracked, weight, bias, momentum, eps = given
    affine = _affine(x, weight), _affine(x, bias, 0.0)
    if norm.kind != "batch":
        return *torch.ops.aten.native_group_norm(x, *affine, *_sizes(norm, x), eps), ()
    running = tuple(one.detach().to(affine[0].dtype, copy=True) for one in tracked if one is not None)
    statistics = running or (None, None)
    return *torch.ops.aten.native_batch_norm(x, *affine, *statistics, True, momentum, eps), running


def _copy(given: Given, updated: tuple[Tensor, ...]) -> None:
    """Copy updated running statistics, if any, to the caller's tensors."""
    for running, new in zip((given.running_mean, given.running_var), updated, strict=False):
        assert running is not None
        running.detach().copy_(new)


def _track(given: Given) -> tuple[Tensor, Tensor, Tensor]:
    """Return (output, mean, invvar) of instance norm: batch norm of one sample that has all samples' channels."""
    x, running_mean, running_var, weight, bias, momentum, eps = given
    n, c, *spatial = x.shape
    channels = (None if one is None else one.detach().repeat(n) for one in (running_mean, running_var, weight, bias))
    one_sample = Given._make((x.view(1, n * c, *spatial), *channels, momentum, eps))
    output, mean, invvar = forward(Norm("batch", None, True), one_sample)
    _copy(given, tuple(one.view(n, c).mean(0) for one in one_sample[1:3] if one is not None))
    return unsafe_view(output, x.shape), mean.view(n, c), invvar.view(n, c)


def _evaluate(norm: Norm, given: Given) -> tuple[Tensor, Tensor, Tensor]:
    """Return (output, mean, invvar), with the running statistics.

    In float32, PyTorch's output misses the oracle's bounds even for means of 0, by a factor of 1.2 to 2.4. At a mean of
    8 the factor is 15. In halves the output is within the bounds up to `FAR`, because its rounding is the larger error.
    """
    x, running_mean, running_var, weight, bias, _, eps = given
    assert running_mean is not None
    assert running_var is not None
    mean, variance = (one.detach().to(accumulator(x.dtype)) for one in (running_mean, running_var))
    invvar = (variance + eps).rsqrt()
    gamma, beta = _affine(x, weight), _affine(x, bias, 0.0)
    if x.dtype in HALVES and not far(mean, invvar):
        output = torch.ops.aten.native_batch_norm(x, gamma, beta, mean, variance, False, 0.0, eps)[0]
    else:
        output = _centred(norm, x, mean, invvar * gamma, beta)
    shape = norm.statistics_shape(x)
    return output, mean.expand(shape).clone(), invvar.expand(shape).clone()


def _centred(norm: Norm, x: Tensor, mean: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return (x - mean) scale + shift, where mean, scale and shift have a number per channel.

    It computes as many samples at a time as a core's cache holds. At (32, 64, 56, 56), float32, it takes 1.7 ms on one
    thread of an EPYC, and PyTorch's kernel 1.1 ms. addcmul is used for channels last, where alone it has vector code.
    """
    output = torch.empty_like(x, memory_format=norm.output_layout(x))
    mean, scale, shift = (one.view(-1, *(1,) * (x.dim() - 2)) for one in (mean, scale, shift))
    for values, result in zip(*(one.split(max(1, CHUNK // x[0].numel())) for one in (x, output)), strict=True):
        if x.dtype != mean.dtype:
            result.copy_((values - mean).mul_(scale).add_(shift))
        elif x.is_contiguous():
            torch.sub(values, mean, out=result).mul_(scale).add_(shift)
        else:
            torch.addcmul(shift, torch.sub(values, mean, out=result), scale, out=result)
    return output


class Piece(NamedTuple):
    """A part of a norm's sets: the norm of this part alone, and its slices of the input, parameters and statistics."""

    norm: Norm
    of_input: tuple[slice, ...]
    of_parameter: slice
    of_statistics: tuple[slice, ...]

    def parameters(self, *all_of_them: Parameter) -> tuple[Parameter, ...]:
        """Return the piece's elements of parameters, as views, so that updates reach the running statistics."""
        return tuple(None if one is None else one[self.of_parameter] for one in all_of_them)


def pieces(norm: Norm, x: Tensor) -> Iterator[Piece]:
    """Yield a norm's sets in up to `PIECES` pieces: of samples if there are enough, else of channels."""
    n, c = x.shape[:2]
    groups = c if norm.groups is None else norm.groups
    every = slice(None)
    by_samples = norm.kind != "batch" and (n >= PIECES or n > groups)
    count = n if by_samples else groups
    step = -(-count // PIECES)
    for start in range(0, count, step):
        some = slice(start, min(start + step, count))
        if by_samples:
            yield Piece(norm, (some,), every, (some,))
            continue
        size = c // groups
        channels = slice(some.start * size, some.stop * size)
        inside = norm._replace(groups=None if norm.groups is None else some.stop - some.start)
        yield Piece(inside, (every, channels), channels, (some,) if norm.kind == "batch" else (every, some))


def _train_by_pieces(norm: Norm, given: Given) -> tuple[Tensor, Tensor, Tensor]:
    """Return (output, mean, invvar), computed piece by piece from x - mean, which loses no digits."""
    x, *parameters, momentum, eps = given
    output = torch.empty_like(x, memory_format=norm.output_layout(x))
    mean, invvar = (x.new_empty(norm.statistics_shape(x), dtype=accumulator(x.dtype)) for _ in range(2))
    for piece in pieces(norm, x):
        part = Given._make((x[piece.of_input], *piece.parameters(*parameters), momentum, eps))
        where = piece.of_statistics
        output[piece.of_input], mean[where], invvar[where] = _train_centred(piece.norm, part)
    return output, mean, invvar


def _train_centred(norm: Norm, given: Given) -> tuple[Tensor, Tensor, Tensor]:
    """Return (output, mean, invvar), computed from x - mean. Its own small mean is added to the mean."""
    values = norm.split(given.x)
    shift = values.mean(norm.over(values), dtype=accumulator(given.x.dtype))
    output, rest, invvar, updated = _train(norm, given._replace(x=_less(given.x, shift, norm)))
    if updated:
        _copy(given, (updated[0] + given.momentum * shift, updated[1]))
    return output, shift + rest, invvar


def _backward_by_pieces(
    norm: Norm, dy: Tensor, x: Tensor, mean: Tensor, invvar: Tensor, gamma: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias, computed piece by piece; the last two in accumulator precision."""
    grad_input = torch.empty_like(x, memory_format=norm.layout(x))
    grad_weight, grad_bias = torch.zeros_like(gamma), torch.zeros_like(gamma)
    for piece in pieces(norm, x):
        inside, channels = piece.of_input, piece.of_parameter
        own_mean, own_invvar = (one[piece.of_statistics].contiguous() for one in (mean, invvar))
        grad_input[inside], for_weight, for_bias = _backward_centred(
            piece.norm, dy[inside], x[inside], own_mean, own_invvar, gamma[channels]
        )
        grad_weight[channels] += for_weight
        grad_bias[channels] += for_bias
    return grad_input, grad_weight, grad_bias


def _backward_centred(
    norm: Norm, dy: Tensor, x: Tensor, mean: Tensor, invvar: Tensor, gamma: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias of instance or group norm, in accumulator precision, from x - mean."""
    values = _less(x, mean, norm)
    dy = dy.to(values.dtype).contiguous(memory_format=norm.layout(values))
    return torch.ops.aten.native_group_norm_backward(
        dy, values, torch.zeros_like(mean), invvar, gamma, *_sizes(norm, x), [True] * 3
    )


def _less(x: Tensor, mean: Tensor, norm: Norm) -> Tensor:
    """Return x - mean in accumulator precision. It has x's strides, from which PyTorch chooses the results' layout."""
    centred, values = torch.empty_like(x, dtype=accumulator(x.dtype)), norm.split(x)
    torch.sub(values, vectorised.column(mean, values), out=norm.split(centred))
    return centred
