"""The family on a CPU, by PyTorch's own kernels where they are exact enough, and by `vectorised` elsewhere.

The same two functions as `normlab.nn.family.vectorised`, which documents them. Instance norm is group norm with a
channel per group, except that evaluation, and training that tracks running statistics, are batch norm as in PyTorch.

PyTorch computes x · invvar gamma + (beta - mean invvar gamma), which cancels where a mean is far from 0: hence `far`.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from normlab.nn.checks import HALVES
from normlab.nn.family import vectorised
from normlab.nn.family.norms import Given, Norm
from normlab.nn.shapes import Gradients, Parameter
from normlab.nn.vectorised import accumulator

# |mean| / sqrt(variance + eps) up to which PyTorch's kernels are taken. Its group norm of channels last computes the
# variance as E[x²] - mean²: at 30, (8, 6, 30, 30), float32, the output is off by 2.3e-4 (ours: 6e-6), at 1000 by 0.23.
FAR = 4.0
PIECES = 8  # a piece of bfloat16 needs 11 times its own memory, so 8 pieces need 1.4 activations
CHUNK = 2**18  # values that a core's second-level cache holds, as float32


def forward(norm: Norm, given: Given) -> tuple[Tensor, Tensor, Tensor]:
    """(output, mean, invvar)."""
    given = given._replace(x=norm.laid(given.x))
    if not given.x.numel():
        return vectorised.forward(norm, given)
    if not norm.own:
        return _evaluate(norm, given)
    if norm.kind == "instance" and given.running_mean is not None:
        return _track(given)
    output, mean, invvar, updated = _train(norm, given)
    if far(mean, invvar):
        return _forward_by_pieces(norm, given)
    for running, new in zip((given.running_mean, given.running_var), updated, strict=False):
        assert running is not None
        running.detach().copy_(new)
    return output, mean, invvar


def backward(
    grad_output: Tensor, x: Tensor, mean: Tensor, invvar: Tensor, norm: Norm, weight: Parameter, bias: Parameter
) -> Gradients:
    """(grad_input, grad_weight, grad_bias)."""
    x = norm.laid(x)
    batched = norm.kind == "batch" or not norm.own
    dy = grad_output.contiguous(memory_format=norm.layout(x))  # else halves are summed up in halves: off by 8 bounds
    if not x.numel():
        return vectorised.backward(grad_output, x, mean, invvar, norm, weight, bias)
    if not batched and far(mean, invvar):  # PyTorch's batch norm subtracts the mean before it sums, its group norm after
        return _backward_by_pieces(grad_output, x, mean, invvar, norm, weight, bias)
    gamma, wanted = _affine(x, weight), [True, weight is not None, bias is not None]
    if batched:
        channels = x.shape[1]
        mean, invvar = (one.reshape(-1)[:channels].contiguous() for one in (mean, invvar))  # the same in every sample
        running = (None, None) if norm.own else (mean, invvar**-2)
        found = torch.ops.aten.native_batch_norm_backward(dy, x, gamma, *running, mean, invvar, norm.own, 0.0, wanted)
    else:
        found = torch.ops.aten.native_group_norm_backward(dy, x, mean, invvar, gamma, *_sizes(norm, x), wanted)
    grad_input, *affine = found
    return grad_input, *(one if to is None else one.to(to.dtype) for one, to in zip(affine, (weight, bias), strict=True))


def far(mean: Tensor, invvar: Tensor) -> bool:
    """Return whether some set's mean is so far from 0 that PyTorch's kernels lose digits; NaN counts as far."""
    return not bool((mean.abs() * invvar).max() <= FAR)


def _affine(x: Tensor, parameter: Parameter, default: float = 1.0) -> Tensor:
    """A parameter as PyTorch's kernels keep float32 statistics of halves for: in accumulator precision, never absent."""
    if parameter is None:
        return x.new_full(x.shape[1:2], default, dtype=accumulator(x.dtype))
    return parameter.detach().to(accumulator(x.dtype)).contiguous()


def _sizes(norm: Norm, x: Tensor) -> tuple[int, int, int, int]:
    """N, C, spatial size and groups, as PyTorch's group norm wants them."""
    n, c = x.shape[:2]
    return n, c, x.numel() // (n * c), c if norm.groups is None else norm.groups


def _train(norm: Norm, given: Given) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
    """(output, mean, invvar, new running statistics or nothing) by PyTorch's kernels."""
    x, *tracked, weight, bias, momentum, eps = given
    affine = _affine(x, weight), _affine(x, bias, 0.0)
    if norm.kind != "batch":
        return *torch.ops.aten.native_group_norm(x, *affine, *_sizes(norm, x), eps), ()
    running = tuple(one.detach().to(affine[0].dtype, copy=True) for one in tracked if one is not None)
    output, mean, invvar = torch.native_batch_norm(x, *affine, *(running or (None, None)), True, float(momentum), eps)
    return output, mean, invvar, running


def _track(given: Given) -> tuple[Tensor, Tensor, Tensor]:
    """Instance norm that updates running statistics: batch norm of one sample that has all samples' channels."""
    x, running_mean, running_var, weight, bias, momentum, eps = given
    n, c, *spatial = x.shape
    channels = (None if one is None else one.detach().repeat(n) for one in (running_mean, running_var, weight, bias))
    one_sample = Given(x.view(1, n * c, *spatial), *channels, momentum, eps)
    output, mean, invvar = forward(Norm("batch", None, True), one_sample)
    for running, new in ((running_mean, one_sample.running_mean), (running_var, one_sample.running_var)):
        assert running is not None
        assert new is not None
        running.detach().copy_(new.view(n, c).mean(0))
    return torch.ops.aten._unsafe_view(output, x.shape), mean.view(n, c), invvar.view(n, c)


def _evaluate(norm: Norm, given: Given) -> tuple[Tensor, Tensor, Tensor]:
    """(output, mean, invvar) by the running statistics.

    Of float32 PyTorch's output misses the oracle's bounds even for means of 0 (1.2 to 2.4 times the bound; 15 times at
    a mean of 8); of halves it is within them up to `FAR`, since the output's rounding is the larger.
    """
    x, running_mean, running_var, weight, bias, _, eps = given
    assert running_mean is not None
    assert running_var is not None
    mean, variance = (one.detach().to(accumulator(x.dtype)) for one in (running_mean, running_var))
    invvar = (variance + eps).rsqrt()
    gamma, beta = _affine(x, weight), _affine(x, bias, 0.0)
    if x.dtype in HALVES and not far(mean, invvar):
        output = torch.native_batch_norm(x, gamma, beta, mean, variance, False, 0.0, eps)[0]
    else:
        output = _centred(norm, x, mean, invvar * gamma, beta)
    shape = norm.statistics_shape(x)
    return output, mean.expand(shape).clone(), invvar.expand(shape).clone()


def _centred(norm: Norm, x: Tensor, mean: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """(x - mean) scale + shift, a number a channel each; some samples at a time, which a core's cache holds.

    float32, (32, 64, 56, 56), one thread of an EPYC: 1.7 ms, PyTorch's 1.1; addcmul is vectorised for channels last only.
    """
    output = torch.empty_like(x, memory_format=norm.output_layout(x))
    mean, scale, shift = (one.view(-1, *(1,) * (x.dim() - 2)) for one in (mean, scale, shift))
    for values, place in zip(*(one.split(max(1, CHUNK // x[0].numel())) for one in (x, output)), strict=True):
        if x.dtype != mean.dtype:
            place.copy_((values - mean).mul_(scale).add_(shift))
        elif x.is_contiguous():
            torch.sub(values, mean, out=place).mul_(scale).add_(shift)
        else:
            torch.addcmul(shift, torch.sub(values, mean, out=place), scale, out=place)
    return output


class Piece(NamedTuple):
    """Some sets of a norm: their norm, the part of an input that they are in, and of a parameter."""

    norm: Norm
    of_input: tuple[slice, ...]
    of_parameter: slice
    of_statistics: tuple[slice, ...]

    def parameters(self, *all_of_them: Parameter) -> tuple[Parameter, ...]:
        """The piece's elements of parameters: views, so that running statistics are updated."""
        return tuple(None if one is None else one[self.of_parameter] for one in all_of_them)


def pieces(norm: Norm, x: Tensor) -> Iterator[Piece]:
    """Return a norm's sets in up to `PIECES` pieces: groups of channels, or samples where there is one group only."""
    n, c = x.shape[:2]
    groups = c if norm.groups is None else norm.groups
    by_samples = norm.kind != "batch" and groups == 1
    count = n if by_samples else groups
    step = max(1, -(-count // PIECES))
    every = slice(None)
    for start in range(0, count, step):
        some = slice(start, min(start + step, count))
        if by_samples:
            yield Piece(norm, (some,), every, (some,))
            continue
        size = c // groups
        channels = slice(some.start * size, some.stop * size)
        inside = norm._replace(groups=None if norm.groups is None else some.stop - some.start)
        yield Piece(inside, (every, channels), channels, (some,) if norm.kind == "batch" else (every, some))


def _forward_by_pieces(norm: Norm, given: Given) -> tuple[Tensor, Tensor, Tensor]:
    x, *parameters, momentum, eps = given
    output = torch.empty_like(x, memory_format=norm.output_layout(x))
    mean, invvar = (x.new_empty(norm.statistics_shape(x), dtype=accumulator(x.dtype)) for _ in range(2))
    for piece in pieces(norm, x):
        part = Given(x[piece.of_input], *piece.parameters(*parameters), momentum, eps)
        output[piece.of_input], mean[piece.of_statistics], invvar[piece.of_statistics] = vectorised.forward(
            piece.norm, part
        )
    return output, mean, invvar


def _backward_by_pieces(
    grad_output: Tensor, x: Tensor, mean: Tensor, invvar: Tensor, norm: Norm, weight: Parameter, bias: Parameter
) -> Gradients:
    grad_input = torch.empty_like(x, memory_format=norm.layout(x))
    wide = tuple(None if one is None else one.to(mean.dtype) for one in (weight, bias))
    affine = tuple(None if one is None else torch.zeros_like(one) for one in wide)
    for piece in pieces(norm, x):
        of_piece = (one[piece.of_input] for one in (grad_output, x))
        statistics = (one[piece.of_statistics] for one in (mean, invvar))
        part, *sums = vectorised.backward(*of_piece, *statistics, piece.norm, *piece.parameters(*wide))
        grad_input[piece.of_input] = part
        for whole, found in zip(piece.parameters(*affine), sums, strict=True):
            if whole is not None and found is not None:
                whole += found
    return grad_input, *(None if to is None else one.to(to.dtype) for one, to in zip(affine, (weight, bias), strict=True))
