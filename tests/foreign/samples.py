"""PyTorch's own sample inputs, of operators (OpInfo) and of modules (ModuleInfo); skips where torch has none.

What is right is what PyTorch makes of a sample on the CPU. `close` says how near a result must come to it.
"""

import sys
import unittest
from types import ModuleType

import pytest
import torch

# The samples' modules import expecttest, which torch does not bring along, for a class that the samples do not use.
if "expecttest" not in sys.modules:
    stand_in = sys.modules["expecttest"] = ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase
_operators = pytest.importorskip("torch.testing._internal.common_methods_invocations", reason="this torch has no op_db")
_modules = pytest.importorskip("torch.testing._internal.common_modules", reason="this torch has no module_db")

MODES = (False, True, "exact")
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU and a torch built for CUDA")
ROUNDINGS = {torch.float16: 4, torch.bfloat16: 4, torch.float32: 64, torch.float64: 1024}
"""How many roundings of the largest value a result may be off beside twice torch's own error. What is summed may be
larger than the sum; the halves are summed in float32. In float64 torch's own error does not show.
"""


def operators(names) -> list:
    """The samples of these operators, "nn.functional.layer_norm" say, without variants."""
    return [one for one in _operators.op_db if one.name in names and not one.variant_test_name]


def modules(names) -> list:
    """The samples of these modules of torch.nn, "LayerNorm" say."""
    classes = [getattr(torch.nn, name) for name in names]
    return [one for one in _modules.module_db if one.module_cls in classes]


def placed(given, device):
    """Return a tensor as a leaf on a device, and all else as it is."""
    if not isinstance(given, torch.Tensor):
        return given
    return given.detach().to(device).requires_grad_(given.requires_grad)


def differentiated(output, leaves) -> list[torch.Tensor | None]:
    """Return an output and its gradients."""
    dy = torch.linspace(-1, 2, output.numel()).reshape(output.shape).to(output)
    gradients = torch.autograd.grad(output, leaves, dy, allow_unused=True) if output.requires_grad else ()
    return [output.detach(), *gradients]


def wide(given):
    """Return a tensor of floats as a leaf of float64, and all else as it is: what the truth is computed of."""
    if not isinstance(given, torch.Tensor) or not given.is_floating_point():
        return given
    return given.detach().double().requires_grad_(given.requires_grad)


def close(got, theirs, truth, amplification: float = 1.0) -> None:
    """Assert that tensors have torch's dtypes, NaN where it has, and are about as near to the truth as torch's are.

    amplification: of a rounding, by what is computed from it.
    """
    for one, other, true in zip(got, theirs, truth, strict=True):
        if other is None:
            assert one is None
            continue
        assert one.dtype == other.dtype
        if not one.is_floating_point():
            assert torch.equal(one.cpu(), other)
            continue
        largest = float(true.abs().nan_to_num().max()) if true.numel() else 0.0
        off = float((other.double() - true).abs().nan_to_num(0, 0, 0).max()) if true.numel() else 0.0
        rounding = torch.finfo(one.dtype).eps * max(1.0, largest)
        allowed = ROUNDINGS[one.dtype] * amplification * rounding + 2 * off
        torch.testing.assert_close(one.cpu().double(), true, rtol=0, atol=allowed, equal_nan=True)
