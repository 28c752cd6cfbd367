"""A rank's part of a sharded norm by PyTorch's operations: every device and dtype, compiled code, the exact mode.

`launched` does the same by normlab's kernels.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from normlab.distributed.merging import message_of
from normlab.nn.formulas import (
    accumulator,
    affine,
    gradient_terms,
    in_dtypes,
    less_means,
    normalised_from_input,
    output_dtype,
    parameter_gradients,
    to,
)
from normlab.nn.shapes import Gradients, How, Parameter, Saved, Statistic


def message(x: Tensor, rms: bool) -> Tensor:
    """Return this rank's message for the forward: the moments of its columns."""
    return message_of(to(x, accumulator(x.dtype)), (-1,), x.shape[-1], rms)


def output(x: Tensor, mean: Statistic, invvar: Tensor, weight: Parameter, bias: Parameter) -> Tensor:
    """Return this rank's columns of the output. mean, invvar: (*leading, 1)."""
    wide = invvar.dtype
    found = affine(normalised_from_input(to(x, wide), mean, invvar), to(weight, wide), to(bias, wide))
    return to(found, output_dtype(x, weight, bias))


def backward(grad_output: Tensor, saved: Saved, how: How) -> tuple[Tensor, Callable[[Tensor], Gradients]]:
    """Return this rank's message for the backward, and the function from all ranks' means to the gradients.

    The message has Σ g of each row, but not for RMSNorm, and then Σ g x̂. The function takes means of both, (2, rows).
    """
    weight, bias, wide = saved.weight, saved.bias, saved.invvar.dtype
    widened = saved._replace(weight=to(weight, wide), bias=to(bias, wide))
    terms = gradient_terms(grad_output, widened, how)
    sums = [] if how.rms else [terms.mean_of.sum(-1).flatten()]
    sums.append(terms.products.sum(-1).flatten())

    def gradients(means: Tensor) -> Gradients:
        of_g, of_products = means.view(2, *grad_output.shape[:-1], 1)
        grad_input = less_means(terms.g, None if how.rms else of_g, of_products, terms.xhat, terms.invvar)
        affine = parameter_gradients(terms, widened.weight, widened.bias, how.shape)
        return in_dtypes((grad_input, *affine), how.dtype, weight, bias)

    return torch.cat(sums), gradients
