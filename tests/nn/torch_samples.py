"""PyTorch's sample inputs: `operators` by name, and `modules`, for tests that walk them; skips where torch has none."""

import sys
import unittest
from types import ModuleType

import pytest

# The samples' modules import expecttest, which torch does not bring along, for a class that the samples do not use.
if "expecttest" not in sys.modules:
    stand_in = sys.modules["expecttest"] = ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase
_operators = pytest.importorskip("torch.testing._internal.common_methods_invocations", reason="this torch has no op_db")
_modules = pytest.importorskip("torch.testing._internal.common_modules", reason="this torch has no module_db")


def operators(names) -> list:
    """The samples of these operators, "nn.functional.layer_norm" say, without variants."""
    return [one for one in _operators.op_db if one.name in names and not one.variant_test_name]


def modules(classes) -> list:
    """The samples of these classes of modules."""
    return [one for one in _modules.module_db if one.module_cls in classes]
