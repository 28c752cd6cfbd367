"""A norm by PyTorch's own operations, in accumulator precision: float64 for float64, else float32; rounded once.

What CPU tensors run, and on every device what a second derivative runs: all of it is differentiable. The formulas are
those of `normlab.stages.recompute` and `normlab.stages.gradient`, over whole tensors. Statistics come with the
normalised dimensions kept as 1, so that they broadcast; those of `normlab.nn.launched` are welcome, too.

On a CPU ATen's LayerNorm computes wherever its results are within our bounds. Everything else goes block by block of
rows, whose temporary tensors stay in the cache. Of torch.nn's time, forward and backward, LayerNorm takes 1.0 to 1.1
in float32 and 1.2 to 1.4 in bfloat16 where it has saved its input, 1.3 to 2.0 where it has to divide its output. Over
whole tensors that was up to 3.7, and 11 activations of temporary memory in bfloat16.
"""

from collections.abc import Iterator
from math import prod
from typing import overload

import torch
from torch import Tensor

from normlab.host.exact import Kept
from normlab.kernels.exact.risk import RATIO
from normlab.kernels.exact.spread import LARGE, SMALL
from normlab.nn.private import in_a_graph, onlooker
from normlab.nn.shapes import Gradients, MemoryEfficient, Owners, Parameter, Shape, Statistic


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """What sums are done in, and statistics kept in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def inner(shape: Shape) -> tuple[int, ...]:
    """The dimensions that are normalised over, counted from the last."""
    return tuple(range(-len(shape), 0))


def outer(tensor: Tensor, shape: Shape) -> tuple[int, ...]:
    """The dimensions of the rows."""
    return tuple(range(tensor.dim() - len(shape)))


def statistics(x: Tensor, shape: Shape, eps: float, rms: bool) -> tuple[Statistic, Tensor]:
    """(mean, invvar) of the rows of x, which is in accumulator precision."""
    dims = inner(shape)
    if rms:
        return None, (x.square().mean(dims, keepdim=True) + eps).rsqrt()
    mean = x.mean(dims, keepdim=True)
    return mean, ((x - mean).square().mean(dims, keepdim=True) + eps).rsqrt()


def forward(
    x: Tensor, shape: Shape, weight: Parameter, bias: Parameter, eps: float, rms: bool
) -> tuple[Tensor, Statistic, Tensor]:
    """(output, mean, invvar): y = x̂ gamma + beta.

    x: (*leading, *shape), any strides; weight, bias: shape, or None. output: the parameters' dtype, x's without any;
    mean: None for rms.
    """
    wide, dtype = accumulator(x.dtype), output_dtype(x, weight, bias)
    gamma, beta = to(weight, wide), to(bias, wide)
    if x.device.type == "cpu" and x.numel() and (rms or x.dtype != wide or dtype != wide):
        if x.dtype == dtype and not rms:
            ones = torch.ones(shape, dtype=wide, device=x.device)  # float32 parameters ask for float32 statistics
            found = torch.native_layer_norm(x, shape, ones if gamma is None else gamma, beta, eps)
            if _spread_out(*found[1:], eps):
                return found
        return _forward_by_blocks(x, shape, gamma, beta, eps, rms, dtype)
    if rms:
        _, invvar = statistics(to(x, wide), shape, eps, rms)
        return to(normalised_from_input(x, None, invvar) * (1 if gamma is None else gamma), dtype), None, invvar
    output, mean, invvar = torch.native_layer_norm(to(x, wide), shape, gamma, beta, eps)
    return to(output, dtype), mean, invvar


def _forward_by_blocks(
    x: Tensor, shape: Shape, gamma: Parameter, beta: Parameter, eps: float, rms: bool, dtype: torch.dtype
) -> tuple[Tensor, Statistic, Tensor]:
    """(output, mean, invvar), as `forward`, on a CPU. gamma, beta: in accumulator precision."""
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


def composed(x: Tensor, shape: Shape, weight: Parameter, bias: Parameter, eps: float, rms: bool) -> Tensor:
    """The output alone, by operations that every transform of torch.func knows."""
    wide = accumulator(x.dtype)
    values = x.to(wide)
    output = normalised_from_input(values, *statistics(values, shape, eps, rms))
    if weight is not None:
        output = output * weight
    if bias is not None:
        output = output + bias
    return output.to(output_dtype(x, weight, bias))


def columns_at_risk(
    invvar: Tensor, output: Tensor, shape: Shape, weight: Parameter, bias: Parameter, eps: float, owners: Owners
) -> Tensor:
    """Return the numbers of the columns at risk, int32; see `normlab.kernels.exact.risk`. owners are of no use here."""
    wide, device = invvar.dtype, invvar.device
    risky = torch.zeros(shape, dtype=torch.bool, device=device)
    if (weight is not None or bias is not None) and invvar.numel():
        spread = _spread(invvar, eps)
        size = torch.ones((), dtype=wide, device=device) if weight is None else weight.to(wide).abs()
        if weight is not None:
            risky |= (size < eps) | (size * spread < torch.finfo(output.dtype).smallest_normal)
        if bias is not None:
            risky |= bias.to(wide).abs() > RATIO * (size * spread)
    return risky.flatten().nonzero().flatten().to(torch.int32)


def _spread(invvar: Tensor, eps: float) -> Tensor:
    """Return the spread of x̂; see `normlab.kernels.exact.spread`."""
    squares = 1 - eps * invvar.square()
    square = squares[squares >= -1].clamp(min=0).mean()
    return torch.where(square <= LARGE, square.clamp(min=SMALL).sqrt(), 1)


def keep(
    x: Tensor,
    mean: Statistic,
    invvar: Tensor,
    shape: Shape,
    weight: Parameter,
    bias: Parameter,
    eps: float,
    columns: Tensor,
) -> Tensor:
    """Return x̂ of these columns, (n1, count), in the output's dtype."""
    rows = invvar.numel()
    values = x.reshape(rows, prod(shape))[:, columns.long()].to(invvar.dtype)
    xhat = normalised_from_input(values, None if mean is None else mean.reshape(rows, 1), invvar.reshape(rows, 1))
    return xhat.to(output_dtype(x, weight, bias)).contiguous()


def output_dtype(x: Tensor, weight: Parameter, bias: Parameter) -> torch.dtype:
    """The parameters' dtype, x's where there are none."""
    parameter = bias if weight is None else weight
    return x.dtype if parameter is None else parameter.dtype


def clamp_by_magnitude(gamma: Tensor, eps: float) -> Tensor:
    """gamma, but at least eps away from 0, on the side it was; NaN stays."""
    return torch.where(gamma >= 0, gamma.clamp(min=eps), gamma.clamp(max=-eps))


def normalised_from_input(x: Tensor, mean: Statistic, invvar: Tensor) -> Tensor:
    """x̂ = (x - mean) invvar."""
    return (x if mean is None else x - mean) * invvar


def normalised_from_output(
    output: Tensor, gamma: Parameter, beta: Parameter, eps: float, shape: Shape, kept: Kept | None
) -> tuple[Tensor, Tensor]:
    """(x̂, y - beta), with x̂ = (y - beta) / gamma: gamma clamped, or, with kept columns, as it is and they as kept.

    output, gamma, beta: in accumulator precision.
    """
    shifted = output if beta is None else output - beta
    if kept is None:
        return shifted if gamma is None else shifted / clamp_by_magnitude(gamma, eps), shifted
    columns, values = kept
    size = values.numel()
    if type(size) is int and not size:  # no column, or no row; of a graph, that is known when it runs
        return shifted if gamma is None else shifted / gamma, shifted
    there = columns >= 0
    at = columns[there].long()
    xhat = shifted
    if gamma is not None:
        # what is replaced below must not be an infinity: its derivative would be one, too, and 0 times it NaN
        xhat = shifted / gamma.flatten().index_fill(0, at, 1).reshape(shape)
    return replaced(xhat, at, values[:, there]), shifted


def replaced(tensor: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    """A tensor with other values (n1, columns) in some of its columns."""
    n1 = values.shape[0]
    rows = tensor.reshape(n1, tensor.numel() // max(1, n1))
    return rows.index_copy(1, columns, values.to(rows.dtype)).reshape(tensor.shape)


def projected(
    g: Tensor, mean_of: Tensor | None, products: Tensor, xhat: Tensor, invvar: Tensor, shape: Shape
) -> Tensor:
    """(g - mean(mean_of) - x̂ mean(products)) invvar: what a gradient at x̂ is at x. mean_of is None for RMSNorm."""
    dims = inner(shape)
    result = g - xhat * products.mean(dims, keepdim=True)
    if mean_of is not None:
        result = result - mean_of.mean(dims, keepdim=True)
    return result * invvar


def backward(
    grad_output: Tensor,
    saved: Tensor,
    mean: Statistic,
    invvar: Tensor,
    shape: Shape,
    weight: Parameter,
    bias: Parameter,
    eps: float,
    rms: bool,
    memory_efficient: MemoryEfficient,
    kept: Kept | None,
    input_dtype: torch.dtype,
) -> Gradients:
    """(grad_input, grad_weight, grad_bias), as `normlab.layer_norm_backward`; those of absent parameters are None.

    kept: what `keep` gave, for memory_efficient="exact", else None. input_dtype: of the forward's x, and so of
    grad_input.
    """
    gamma, beta = to(weight, invvar.dtype), to(bias, invvar.dtype)
    once = onlooker(grad_output) is None and not in_a_graph(saved)
    if not once or saved.device.type != "cpu" or not saved.numel():
        found = _composed_gradients(
            grad_output, saved, mean, invvar, shape, gamma, beta, eps, rms, memory_efficient, kept
        )
    elif _by_one_operation(grad_output, saved, mean, invvar, eps, memory_efficient):
        found = _fused(grad_output, saved, mean, invvar, shape, gamma, beta)
    else:
        found = _gradients_by_blocks(
            grad_output, saved, mean, invvar, shape, gamma, beta, eps, rms, memory_efficient, kept, input_dtype
        )
    grad_input, grad_weight, grad_bias = found
    return (
        to(grad_input, input_dtype),
        None if weight is None else to(grad_weight, weight.dtype),
        None if bias is None else to(grad_bias, bias.dtype),
    )


def _composed_gradients(
    grad_output: Tensor,
    saved: Tensor,
    mean: Statistic,
    invvar: Tensor,
    shape: Shape,
    gamma: Parameter,
    beta: Parameter,
    eps: float,
    rms: bool,
    memory_efficient: MemoryEfficient,
    kept: Kept | None,
) -> Gradients:
    """The gradients in accumulator precision, by operations that have gradients themselves."""
    wide = invvar.dtype
    dy, values = to(grad_output, wide), to(saved, wide)
    invvar = column(invvar, dy, shape)
    if not memory_efficient:
        xhat = normalised_from_input(values, column(mean, dy, shape), invvar)
    else:
        xhat, shifted = normalised_from_output(values, gamma, beta, eps, shape, kept)
    g = mean_of = dy if gamma is None else dy * gamma
    products = g * xhat
    if memory_efficient and kept is None:  # apex's way: g has the clamped gamma, its mean the gamma as it is
        products = dy * shifted  # dy gamma x̂: the division by gamma cancels
        if gamma is not None:
            g = dy * clamp_by_magnitude(gamma, eps)
    grad_input = projected(g, None if rms else mean_of, products, xhat, invvar, shape)
    rows = outer(dy, shape)
    grad_weight = None if gamma is None else _summed(dy * xhat, rows)
    return grad_input, grad_weight, None if beta is None else _summed(dy, rows)


def _gradients_by_blocks(
    grad_output: Tensor,
    saved: Tensor,
    mean: Statistic,
    invvar: Tensor,
    shape: Shape,
    gamma: Parameter,
    beta: Parameter,
    eps: float,
    rms: bool,
    memory_efficient: MemoryEfficient,
    kept: Kept | None,
    input_dtype: torch.dtype,
) -> Gradients:
    """As `_composed_gradients`, on a CPU, once; grad_input in input_dtype."""
    wide, n2 = invvar.dtype, prod(shape)
    grad_input = torch.empty(saved.shape, dtype=input_dtype, device=saved.device)
    gamma, beta = (None if one is None else one.flatten() for one in (gamma, beta))
    sums = [torch.zeros(n2, dtype=wide, device=saved.device) for one in (gamma, beta) if one is not None]
    by_aten = not rms and (not memory_efficient or kept is not None or _divides(gamma, eps))
    tensors = [saved if mean is None else mean, saved if kept is None else kept.values]
    buffers = [torch.empty(min(BLOCK, n2 * invvar.numel()) if by_aten else 0, dtype=wide) for _ in range(2)]
    for dy, some, result, scale, *others in _blocks(*_rows(shape, grad_output, saved, grad_input, invvar, *tensors)):
        centre = None if mean is None else others[0]
        some_kept = None if kept is None else Kept(kept.columns, others[1])
        if by_aten:
            room = [one.resize_(dy.shape) for one in buffers]
            found = _block_by_aten(dy, some, centre, scale, gamma, beta, some_kept, bool(memory_efficient), *room)
        else:
            found = _composed_gradients(
                dy, some, centre, scale, (n2,), gamma, beta, eps, rms, memory_efficient, some_kept
            )
        result.copy_(found[0])
        for total, part in zip(sums, [part for part in found[1:] if part is not None], strict=True):
            total += part
    each = iter(total.reshape(shape) for total in sums)
    return grad_input, None if gamma is None else next(each), None if beta is None else next(each)


def _block_by_aten(
    dy: Tensor,
    saved: Tensor,
    mean: Statistic,
    invvar: Tensor,
    gamma: Parameter,
    beta: Parameter,
    kept: Kept | None,
    from_output: bool,
    room: Tensor,
    room_of_dy: Tensor,
) -> Gradients:
    """LayerNorm's gradients for a block of rows: ATen's of x - mean, or of the x̂ that an output gives back.

    Handed x, ATen would subtract the mean from products of x, and lose the digits that x and its mean share.
    room, room_of_dy: to compute in; new tensors for each block would come from new pages.
    """
    zero, shape = torch.zeros_like(invvar), dy.shape[1:]
    if dy.dtype != room.dtype:
        dy = room_of_dy.copy_(dy)
    if mean is not None and not from_output:
        return _fused(dy, torch.sub(saved, mean, out=room), zero, invvar, shape, gamma, beta)
    xhat = room.copy_(saved) if beta is None else torch.sub(saved, beta, out=room)
    if gamma is not None:
        xhat.div_(gamma)
    if kept is not None and kept.columns.shape[0]:
        there = kept.columns >= 0
        xhat[:, kept.columns[there].long()] = kept.values[:, there].to(xhat.dtype)
    grad_input, grad_weight, grad_bias = _fused(dy, xhat, zero, torch.ones_like(invvar), shape, gamma, beta)
    return grad_input.mul_(invvar), grad_weight, grad_bias


BLOCK = 2**18
"""Elements of a block: 1 MB of float32. Of 2**16 to 2**19 the fastest where a core has 1 MB of L2 cache."""


def _rows(shape: Shape, *tensors: Tensor) -> list[Tensor]:
    """Tensors of equally many rows, two-dimensional. Those that are dense stay views."""
    rows = prod(tensors[0].shape[: tensors[0].dim() - len(shape)])
    return [one.reshape(rows, one.numel() // max(1, rows)) for one in tensors]


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The rows of two-dimensional tensors, some after others: so many that the first has about BLOCK elements."""
    step = max(1, BLOCK // max(1, tensors[0].shape[1]))
    return zip(*(one.split(step) for one in tensors), strict=True)


def _by_one_operation(
    grad_output: Tensor, saved: Tensor, mean: Statistic, invvar: Tensor, eps: float, memory_efficient: MemoryEfficient
) -> bool:
    """Are the gradients that ATen's LayerNorm makes of x as it is within our bounds?

    Not of halves, in which it adds up the parameters' gradients: 1e-2 off after 64 rows of bfloat16.
    """
    if mean is None or memory_efficient or not grad_output.dtype == saved.dtype == mean.dtype:
        return False
    return _spread_out(mean, invvar, eps)


def _spread_out(mean: Tensor, invvar: Tensor, eps: float) -> bool:
    """Has no row a mean beyond its standard deviation, or a variance below a hundredth of eps?

    There ATen's x̂, which is x invvar - mean invvar, is off by more than its own rounding: 4e-5 in float32 for a mean of
    1e3 deviations, anything for rows of equal values.
    """
    return bool(((mean.square() + eps) * invvar.square() <= 0.99).all())


def _fused(
    dy: Tensor, x: Tensor, mean: Statistic, invvar: Tensor, shape: Shape, gamma: Parameter, beta: Parameter
) -> Gradients:
    """LayerNorm's gradients by one operation of ATen's; those of absent parameters are None."""
    wanted = [True, gamma is not None, beta is not None]
    grad_input, *affine = _native_backward(dy.contiguous(), x.contiguous(), shape, mean, invvar, gamma, beta, wanted)
    return grad_input, *(one if want else None for one, want in zip(affine, wanted[1:], strict=True))


_native_backward = torch.ops.aten.native_layer_norm_backward.default


@overload
def to(tensor: Tensor, dtype: torch.dtype) -> Tensor: ...
@overload
def to(tensor: None, dtype: torch.dtype) -> None: ...
def to(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """tensor.to(dtype), at a tenth of its price where there is nothing to do: a call asks for a dozen. None stays."""
    return tensor if tensor is None or tensor.dtype == dtype else tensor.to(dtype)


@overload
def column(statistic: Tensor, like: Tensor, shape: Shape) -> Tensor: ...
@overload
def column(statistic: None, like: Tensor, shape: Shape) -> None: ...
def column(statistic: Tensor | None, like: Tensor, shape: Shape) -> Tensor | None:
    """A statistic so that it broadcasts against the rows of `like`; None stays."""
    if statistic is None or statistic.dim() == like.dim():
        return statistic
    return statistic.reshape(statistic.shape + (1,) * len(shape))


def _divides(gamma: Parameter, eps: float) -> bool:
    """Is it as it is after the clamp, and nowhere 0? Of a meta tensor that may be said."""
    return gamma is None or gamma.is_meta or bool(((gamma.abs() >= eps) & (gamma != 0)).all())


def _summed(tensor: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The sum over some dimensions, which may be none: for PyTorch that would mean all. A tensor of its own."""
    return tensor.sum(dims) if dims else tensor.clone()
