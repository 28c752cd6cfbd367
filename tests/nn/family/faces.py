"""For the tests of the family's PyTorch face: torch's samples, and examples of the family run through PyTorch."""

import sys
import unittest
from types import ModuleType

import torch
from examine import hold
from family.examples import Example
from nn.norms import array, tensor

from normlab import nn, oracle
from normlab.oracle import family as truth
from normlab.oracle import family_bounds as bounds

# torch's sample modules import expecttest, which torch does not bring along, for a class that the samples do not use.
if "expecttest" not in sys.modules:
    stand_in = sys.modules["expecttest"] = ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase

FUNCTIONS = {"batch": nn.batch_norm, "instance": nn.instance_norm, "group": nn.group_norm}


def like_memory_of(given: torch.Tensor, values) -> torch.Tensor:
    """A tensor of these values with channels last in memory where the NumPy array has them so."""
    last = not values.flags.c_contiguous
    return given.detach().movedim(1, -1).contiguous().movedim(-1, 1) if last else given.detach()


def through_torch(one: Example) -> tuple:
    """(output, (grad_input, grad_weight, grad_bias)) of an example with its own statistics, as tensors."""
    x, grad_output = (like_memory_of(tensor(values), values) for values in (one.x, one.grad_output))
    leaves = [x.requires_grad_(), tensor(one.weight, True), tensor(one.bias, True)]
    rest = (one.groups, *leaves[1:], one.eps) if one.norm == "group" else (None, None, *leaves[1:], True, 0.1, one.eps)
    output = FUNCTIONS[one.norm](x, *rest)
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


def hold_to_bounds(one: Example, how: oracle.Arithmetic) -> tuple:
    """Run an example through PyTorch; assert that what comes back is within the oracle's bounds, and return it."""
    output, gradients = through_torch(one)
    affine = one.weight, one.bias, one.eps
    errors = bounds.family_norm_bound(one.x, one.sets, *affine, how)
    what = f"nn {one.norm}"
    hold(f"{what} output", array(output), truth.family_norm(one.x, one.sets, *affine).output, errors.output)
    want = truth.family_norm_backward(one.grad_output, one.x, one.sets, *affine)
    unstored = bounds.family_norm_backward_bound(one.grad_output, one.x, one.sets, *affine, how, errors)
    limits = bounds.stored(unstored, want, how.parameter)
    for name, got, right, limit in zip(want._fields, gradients, want, limits, strict=True):
        hold(f"{what} {name}", array(got), right, limit)
    return output, gradients
