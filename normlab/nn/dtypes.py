"""The rules for the dtype of a norm's output: mixed dtypes of input and parameters, and autocast.

The kernels know one rule: the output has the parameters' dtype, or the input's if there are no parameters. Under the
other rules, half parameters of a float32 input are made float32 first, and a float32 output is rounded to the half that
the rule wants.

| rule | output's dtype | under autocast | used by |
| --- | --- | --- | --- |
| "apex" | the parameters' | the autocast dtype | apex's names |
| "torch" | the input's | float32 on a GPU, no change on a CPU | torch.nn's norms (RMSNorm: `RMS_NORM_RULE`) |
| "parameters" | the parameters' | no change | other libraries' norms, written as formulas |
| "input" | the input's | no change | other libraries' norms, written as formulas |
| "wider" | the one that PyTorch promotes both to | no change | formulas that end in `weight * x` |
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from normlab.nn import checks
from normlab.nn.checks import HALVES
from normlab.nn.private import FakeTensorMode, any_autocast
from normlab.nn.shapes import Parameter, Shape

Rule: TypeAlias = Literal["apex", "torch", "parameters", "input", "wider"]
RULES: tuple[Rule, ...] = ("input", "parameters", "wider")
"""The rules that `replace_norms` tries for another library's norm."""
NAMES = ("apex", "torch", *RULES)
OF_PARAMETERS = ("apex", "parameters")
OF_INPUT = ("torch", "input")


def unknown(rule: object) -> ValueError:
    """Return the error for a dtype_rule that is none."""
    return ValueError(f"dtype_rule must be one of {', '.join(map(repr, NAMES))}, got {rule!r}")


_input_rounded = False  # no ContextVar: Dynamo of PyTorch 2.13 cannot read one


@contextmanager
def apex_autocast() -> Iterator[None]:
    """Round inputs to the autocast dtype before norms of apex's names see them, as apex does, inside a `with` block.

    Outside of it, the statistics are those of the unrounded input. The switch holds in all threads.
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
    """Return the arguments in the dtypes that autocast gives them. A float64 input stays, as in PyTorch."""
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
    elif x.dtype not in (torch.float32, dtype):  # no kernel mixes float16 and bfloat16
        x = x.float()
    return x, *parameters_in_autocast(x, shape, weight, bias)


def parameters_in_autocast(x: Tensor, shape: Shape, weight: Parameter, bias: Parameter) -> tuple[Parameter, Parameter]:
    """Return the parameters in autocast's dtype, so that the output has it; with a float64 x they stay."""
    dtype = torch.get_autocast_dtype(x.device.type)
    if x.dtype is torch.float64:
        return weight, bias
    if weight is None and bias is None and x.dtype is not dtype:
        return torch.ones(shape, dtype=dtype, device=x.device), None
    return None if weight is None else weight.to(dtype), None if bias is None else bias.to(dtype)


def widened(parameter: Parameter) -> Parameter:
    """Return a half parameter in float32, any other as it is."""
    return parameter if parameter is None or parameter.dtype not in HALVES else parameter.float()


def in_float32(x: Tensor, rule: Rule) -> bool:
    """Return True if autocast makes the output float32: on a GPU it runs PyTorch's norms in float32."""
    if rule != "torch" or x.is_meta or x.device.type == "cpu" or x.dtype is torch.float64:
        return False
    return torch.is_autocast_enabled(x.device.type)


def input_is_smaller(x: Tensor, weight: Parameter, bias: Parameter, rule: Rule) -> bool:
    """Return True if a half input has a float32 output under this rule, so that saving the output would cost more.

    The next layer does not share the float32 output: the rule or autocast rounds it before that layer saves it.
    """
    if x.dtype not in HALVES or rule not in OF_INPUT:
        return False
    return in_float32(x, rule) or any(one is not None and one.dtype is torch.float32 for one in (weight, bias))


def to_rule_dtype(output: Tensor, input: Tensor, rule: Rule) -> Tensor:
    """Return a norm's output in the dtype of the rule: the kernels give the parameters' dtype."""
    return output if rule not in OF_INPUT or in_float32(input, rule) else output.to(input.dtype)


def by_formula(norm: Any, x: Tensor, dtype: torch.dtype, compute: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return compute(x, weight) in the dtype of a norm's rule, for a norm that another library writes as a formula.

    norm: a module with `weight` and `dtype_rule`. dtype: that of the norm's input, which the caller may have widened to
    x. x and the weight are widened to a mix of dtypes that the kernels take.
    """
    weight, rule = norm.weight, norm.dtype_rule
    wide = dtype if weight.dtype is dtype else torch.promote_types(dtype, weight.dtype)
    if rule not in OF_PARAMETERS and x.dtype is torch.float32:
        weight = widened(weight)
    if checks.mixed_by_pytorch_alone(x, weight):
        both = torch.promote_types(x.dtype, weight.dtype)
        x, weight = x.to(both), weight.to(both)
    # formulas do not change under autocast
    with torch.autocast(x.device.type, enabled=False) if any_autocast() else nullcontext():
        output = compute(x, weight)
    if rule == "wider":
        return output.to(wide)
    return output.to(dtype if rule in OF_INPUT else norm.weight.dtype)


@torch.no_grad()
def asks_autocast(norm: torch.nn.Module, shape: Shape) -> bool:
    """Return True if a GPU's autocast makes the norm of a half input float32. Fake tensors find this without a GPU."""
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)  # torch.autocast needs a GPU
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
"""The rule of torch.nn.RMSNorm. PyTorch 2.11 does not list it among a GPU's operations in float32."""
