"""Do two norms compute the same? Asked by `normlab.nn.replace` about a norm whose class it does not know.

Copies of both get the same random parameters and inputs. Values are compared in float32, where another formula shows (a
variance with n - 1, or about the mean), dtypes in every mix of float32 and a half that the old norm takes.
"""

import copy
from itertools import product
from typing import Any

import torch
from torch import Tensor

from normlab.nn.dtypes import RULES, asks_autocast
from normlab.nn.modules import FusedLayerNorm, FusedRMSNorm

FLOAT, HALVES = torch.float32, (torch.bfloat16, torch.float16)
MIXES = [mix for half in HALVES for mix in ((half, half), (FLOAT, half), (half, FLOAT))]
"""(parameters' dtype, input's)."""
ROUNDINGS = 16
"""How many of them may lie between two norms' outputs, of the size of the largest: sums in another order."""


@torch.no_grad()
def compared(old: torch.nn.Module, new: FusedLayerNorm | FusedRMSNorm) -> str | None:
    """How the norms differ, or None; then new has got old's dtype_rule.

    Raises:
        Exception: whatever old says to an input as new takes it, or to being copied.
    """
    generator = torch.Generator().manual_seed(0)
    device = next((parameter.device for parameter in old.parameters()), None)
    shape = new.normalized_shape
    sizes = [size for size in range(2, 5 + len(shape)) if size not in shape]  # it shows which dimension is which
    drawn = [torch.randn(*sizes[:leading], *shape, generator=generator, device="cpu") for leading in (1, 2, 3)]
    inputs = [(one + 1).to(device) for one in drawn]  # a mean that is not 0
    x, one, other = inputs[0], *_copies(old, new, generator)
    for some, training in product([*inputs, x * 1e-3], (True, False)):  # the eps counts in the last
        difference = _off(one.train(training).forward(some), other.forward(some))
        if difference is not None:
            return difference
    rules = list(RULES)
    for parameters, given in MIXES:
        one, other = one.to(parameters), other.to(parameters)
        try:
            want = one.forward(x.to(given))
        except Exception:  # a mix that the old norm does not take says nothing of the new one
            continue
        got = {}
        for rule in rules:
            other.dtype_rule = rule
            got[rule] = other.forward(x.to(given))
        rules = [rule for rule in rules if isinstance(want, Tensor) and got[rule].dtype == want.dtype]
        if not rules:
            return f"its output has another dtype for parameters in {parameters} and an input in {given}"
    new.dtype_rule = "torch" if rules[0] == "input" and asks_autocast(one, shape) else rules[0]
    return None


def _copies(old: Any, new: Any, generator: torch.Generator) -> tuple[Any, Any]:
    """Both in float32, with the same random parameters."""
    pair = [copy.deepcopy(_without_hooks(norm)).float() for norm in (old, new)]
    for several in zip(*(copied.parameters() for copied in pair), strict=True):
        values = torch.randn(several[0].shape, generator=generator, device="cpu")
        for parameter in several:
            parameter.copy_(values)
    return pair[0], pair[1]


def _without_hooks(norm: Any) -> Any:
    """A shallow copy: hooks are not to be called, nor copied with all that they hold, which may be the model."""
    result = copy.copy(norm)
    for name, value in vars(norm).items():
        if "hook" in name and isinstance(value, dict):
            vars(result)[name] = type(value)()
    return result


def _off(want: Any, got: Tensor) -> str | None:
    if not isinstance(want, Tensor) or want.shape != got.shape or want.dtype != got.dtype:
        return "its output has another shape or dtype"
    off = (want.double() - got.double()).abs().max().item()
    if not off <= ROUNDINGS * torch.finfo(got.dtype).eps * max(1.0, got.double().abs().max().item()):
        return f"it computes something else: off by {off:.2g} on a random input"
    return None
