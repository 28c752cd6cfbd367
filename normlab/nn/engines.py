"""The two engines that compute norms: PyTorch's own operations for CPU tensors, the kernels for CUDA tensors.

An engine is a module, `normlab.nn.vectorised` or `normlab.nn.launched`, and both have the same functions. Inside
`engine("simulator")`, which is for tests and lessons, the kernels also compute CPU tensors, in the simulator.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType

from torch import Tensor

from normlab.nn import launched, vectorised

ENGINES = ("auto", "simulator")
_engine: ContextVar[str] = ContextVar("normlab_nn_engine", default="auto")


@contextmanager
def engine(name: str) -> Iterator[None]:
    """Choose the engine of CPU tensors for the length of a `with` block. CUDA tensors always run the kernels.

    A backward uses the engine of its forward, except that compiled code's backward uses the engine chosen when it runs.
    `torch.func`'s transforms use PyTorch's operations with either engine.

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
    """Return True if the kernels compute norms of this tensor now."""
    return tensor.is_cuda or (_engine.get() == "simulator" and not tensor.is_meta)


def chooser(kernels: ModuleType, operations: ModuleType) -> Callable[[Tensor], ModuleType]:
    """Return the function that chooses one of two engines to compute norms of a tensor now.

    A tensor without elements goes to PyTorch's operations: there are no kernels for rows without columns.
    """
    return lambda tensor: kernels if by_kernels(tensor) and tensor.numel() else operations


chosen = chooser(launched, vectorised)  # for the plain norms over rows
