"""For tests that compile graphs."""

import pytest
import torch


@pytest.fixture
def forget_compiled():
    """What was compiled; also on disk, where a graph is found again though its operators' backward has changed."""
    with torch._functorch.config.patch(enable_autograd_cache=False):
        yield
    torch.compiler.reset()
