"""What computes a norm: PyTorch's own operations for CPU tensors, the kernels for CUDA tensors.

Both are modules with the same functions: `normlab.nn.vectorised` and `normlab.nn.launched`. Inside
`engine("simulator")` the kernels take CPU tensors, too, in the simulator: for tests and lessons.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType

from torch import Tensor

from normlab.nn import launched, vectorised

ENGINES = ("auto", "simulator")
_engine: ContextVar[str] = ContextVar("normlab_nn_engine", default="auto")


@contextmanager
def engine(name: str) -> Iterator[None]:
    """Choose what computes norms of CPU tensors, for the length of a `with` block. CUDA tensors always run the kernels.

    A backward runs where its forward ran; that of compiled code where it is called. Nothing changes for `torch.func`'s
    transforms.

    Args:
        name: "simulator" (normlab's kernels, simulated), or "auto" (PyTorch's operations).

    Raises:
        ValueError: an unknown engine.
    """
    if name not in ENGINES:
        raise ValueError(f"unknown engine {name!r}: choose one of {', '.join(ENGINES)}")
    token = _engine.set(name)
    try:
        yield
    finally:
        _engine.reset(token)


def by_kernels(tensor: Tensor) -> bool:
    """Do the kernels compute norms of this tensor now?"""
    return tensor.is_cuda or (_engine.get() == "simulator" and not tensor.is_meta)


def chosen(tensor: Tensor) -> ModuleType:
    """The module that computes norms over rows of this tensor now; the family's is in `normlab.nn.family.operators`."""
    return launched if by_kernels(tensor) else vectorised
