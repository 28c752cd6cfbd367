"""For the tests of the family's PyTorch face: examples of the family run through PyTorch, and held to their bounds."""

import torch
from examine import hold
from family.examples import Example
from nn.norms import array, tensor

from normlab import nn, oracle
from normlab.oracle import family as truth
from normlab.oracle import family_bounds as bounds

FUNCTIONS = {"batch": nn.batch_norm, "instance": nn.instance_norm}


def like_memory_of(given: torch.Tensor, values) -> torch.Tensor:
    """A tensor of these values with channels last in memory where the NumPy array has them so."""
    last = not values.flags.c_contiguous
    return given.detach().movedim(1, -1).contiguous().movedim(-1, 1) if last else given.detach()


def through_torch(one: Example, running=None, device="cpu") -> tuple:
    """(output, (grad_input, grad_weight, grad_bias)) of an example as tensors; running: the statistics to take."""

    def placed(values):
        return None if values is None else tensor(values).to(device)

    x, grad_output = (like_memory_of(placed(values), values) for values in (one.x, one.grad_output))
    leaves = [None if leaf is None else leaf.requires_grad_() for leaf in (x, placed(one.weight), placed(one.bias))]
    if one.norm == "group":
        output = nn.group_norm(x, one.groups, *leaves[1:], one.eps)
    else:
        taken = map(placed, running or (None, None))
        output = FUNCTIONS[one.norm](x, *taken, *leaves[1:], running is None, 0.1, one.eps)
    output.backward(grad_output)
    return output, tuple(None if leaf is None else leaf.grad for leaf in leaves)


def vectorised_arithmetic(one: Example) -> oracle.Arithmetic:
    """How `normlab.nn.family.vectorised` computes, in the oracle's words: sums in any order."""
    in_a_channel = one.x.size // one.x.shape[1]
    return oracle.Arithmetic(
        **vars(one.arithmetic)
        | {
            "row_terms": one.sets.values + 4,
            "row_merges": 0,
            "column_terms": in_a_channel + 1,
            "column_merges": 0,
            "statistics": "welford",
        }
    )


def hold_to_bounds(one: Example, how: oracle.Arithmetic, running=None, device="cpu") -> None:
    """Run an example through PyTorch; assert that what comes back is within the oracle's bounds.

    running: as of `through_torch`, float32 or the example's dtype.
    """
    affine = one.weight, one.bias, one.eps
    if running is None:
        errors = bounds.family_norm_bound(one.x, one.sets, *affine, how)
        right = truth.family_norm(one.x, one.sets, *affine).output
        want = truth.family_norm_backward(one.grad_output, one.x, one.sets, *affine)
        limits = bounds.family_norm_backward_bound(one.grad_output, one.x, one.sets, *affine, how, errors)
        limits = bounds.stored(limits, want, how.parameter)
    else:
        errors = bounds.evaluated_norm_bound(one.x, *running, *affine, how)
        right = truth.evaluated_norm(one.x, *running, *affine).output
        want = truth.evaluated_norm_backward(one.grad_output, one.x, *running, *affine)
        limits = bounds.evaluated_norm_backward_bound(one.grad_output, one.x, *running, *affine, how)
    output, gradients = through_torch(one, running, device)
    what = f"nn {one.norm}{'' if running is None else ' evaluation'}"
    hold(f"{what} output", array(output.cpu()), right, errors.output)
    for name, got, exact, limit in zip(want._fields, gradients, want, limits, strict=True):
        hold(f"{what} {name}", array(None if got is None else got.cpu()), exact, limit)
