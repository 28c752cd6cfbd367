"""Whose dtype a norm's output has, where the input's and the parameters' differ, and what autocast makes of it.

The kernels know one rule: the output has the parameters' dtype, the input's where there are none. For the others, half
parameters beside a float32 input are made float32 first, and a half that is wanted is rounded from a float32 output.

| rule | output's dtype | under autocast | of |
| --- | --- | --- | --- |
| "apex" | the parameters' | the autocast dtype | apex's names |
| "torch" | the input's | float32 on a GPU; on a CPU as without | torch.nn's norms (RMSNorm: `RMS_NORM_RULE`) |
| "parameters", "input" | its | as without | formulas, in other libraries' norms |
| "wider" | what PyTorch promotes both to | as without | formulas that end in `weight * x` |
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from normlab.nn.checks import HALVES
from normlab.nn.private import FakeTensorMode
from normlab.nn.shapes import Parameter, Shape

Rule: TypeAlias = Literal["apex", "torch", "parameters", "input", "wider"]
RULES: tuple[Rule, ...] = ("input", "parameters", "wider")
"""Those of formulas."""
OF_PARAMETERS = ("apex", "parameters")
OF_INPUT = ("torch", "input")

_input_rounded = False  # no ContextVar: Dynamo of PyTorch 2.13 cannot read one


@contextmanager
def apex_autocast() -> Iterator[None]:
    """Round inputs to the autocast dtype before apex's norms see them, for the length of a `with` block, as apex does.

    Without it, their statistics are of the input as it comes. It holds in all threads, as torch.backends' switches do.
    """
    global _input_rounded
    before, _input_rounded = _input_rounded, True
    try:
        yield
    finally:
        _input_rounded = before


def autocast(
    x: Tensor, shape: Shape, weight: Parameter, bias: Parameter, rule: Rule
) -> tuple[Tensor, Parameter, Parameter]:
    """Return what autocast makes of the arguments. It leaves alone an input in float64, as in PyTorch."""
    if x.dtype not in (torch.float32, *HALVES) or rule not in ("apex", "torch"):
        return x, weight, bias
    if rule == "torch":
        if not in_float32(x, rule):
            return x, weight, bias
        if weight is None and bias is None:
            return x.float(), weight, bias
        return x, None if weight is None else weight.float(), None if bias is None else bias.float()
    dtype = torch.get_autocast_dtype(x.device.type)
    if _input_rounded:
        x = x.to(dtype)
    elif x.dtype not in (torch.float32, dtype):
        x = x.float()
    if weight is None and bias is None:
        if x.dtype != dtype:
            weight = torch.ones(shape, dtype=dtype, device=x.device)  # a weight of ones asks for the output's dtype
        return x, weight, bias
    return x, None if weight is None else weight.to(dtype), None if bias is None else bias.to(dtype)


def widened(parameter: Parameter) -> Parameter:
    """Return a half parameter in float32, any other as it is."""
    return parameter if parameter is None or parameter.dtype not in HALVES else parameter.float()


def in_float32(x: Tensor, rule: Rule) -> bool:
    """Return True if autocast asks for a float32 output of this input: PyTorch's norms are on a GPU's list of those."""
    if rule != "torch" or x.is_meta or x.device.type == "cpu" or x.dtype is torch.float64:
        return False
    return torch.is_autocast_enabled(x.device.type)


def input_is_smaller(x: Tensor, weight: Parameter, bias: Parameter, rule: Rule) -> bool:
    """Return True if a half input gives a float32 output that no next layer keeps: it rounds it, or autocast does."""
    if x.dtype not in HALVES or rule not in OF_INPUT:
        return False
    return in_float32(x, rule) or any(one is not None and one.dtype is torch.float32 for one in (weight, bias))


def ruled(output: Tensor, input: Tensor, rule: Rule) -> Tensor:
    """Return the output of `normlab.nn.functional.norm` in the dtype of the rule."""
    return output if rule not in OF_INPUT or in_float32(input, rule) else output.to(input.dtype)


@torch.no_grad()
def asks_autocast(norm: torch.nn.Module, shape: Shape) -> bool:
    """Return True if under a GPU's autocast the norm of a half input is float32, as PyTorch's are. Needs no GPU."""
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)  # torch.autocast would look for a GPU
    try:
        with FakeTensorMode():
            x = torch.empty(2, *shape, dtype=torch.float16, device="cuda")
            parameters = {name: x.new_empty(one.shape) for name, one in norm.named_parameters()}
            return torch.func.functional_call(norm, parameters, x).dtype is torch.float32
    except Exception:  # a forward that fake tensors cannot go through
        return False
    finally:
        torch.set_autocast_enabled("cuda", before)


RMS_NORM_RULE: Rule = "torch" if asks_autocast(torch.nn.RMSNorm(8, device="cpu"), (8,)) else "input"
"""Of torch.nn.RMSNorm, which PyTorch 2.11 does not have on a GPU's list of norms in float32."""
