"""Suites that nobody here wrote, run against normlab.nn: what PyTorch and its users ask of a norm.

- `test_operators`, `test_modules`: PyTorch's OpInfo and ModuleInfo samples (`samples`), errors' samples too;
- `test_architectures`: twenty small models of transformers, timm and torchvision (`architectures`), norms replaced;
- `test_fused`: eight small decoders of transformers, additions and norms fused;
- `test_ranks`: two of them under DDP and FSDP2, on two ranks (`ranks`).

All in every mode, values and gradients, beside torch's. The models need `pip install -e ".[test,foreign]"`, and their
tests skip without. To add a model: an entry of `ARCHITECTURES`, in size such that it compiles in two seconds.
"""

import pytest
import torch


@pytest.fixture(autouse=True)
def nothing_stays_compiled():
    """Dynamo compiles a function eight times at most, and every model has another."""
    yield
    torch.compiler.reset()
