"""Let PyTorch take a device array as a tensor on the CPU that shares its memory: `torch.as_tensor(array)`.

A device array has the CUDA array interface, for which a PyTorch built for the CPU alone raises an error. So PyTorch's
functions get a CPU tensor in its place. A program that never imports PyTorch does not pay for the import: a finder
waits until the program imports it.
"""

import functools
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from normlab.run.memory import DeviceArray, HostMappedArray

FUNCTIONS = ("as_tensor", "asarray", "tensor")


def taking_arrays(torch: ModuleType, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, one of PyTorch's that make a tensor of data, made to take a device array, too."""

    def shared(data: Any) -> Any:
        if not isinstance(data, (DeviceArray, HostMappedArray)):
            return data
        memory = data.memory if isinstance(data, DeviceArray) else np.asarray(data)
        if memory.dtype == ml_dtypes.bfloat16:  # torch.from_numpy does not know this dtype
            return torch.from_numpy(memory.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(memory)

    @functools.wraps(function)
    def take(*arguments: Any, **options: Any) -> Any:
        # the data may come by name, and asarray has another name for it than as_tensor and tensor
        return function(*map(shared, arguments), **{name: shared(one) for name, one in options.items()})

    return take


class UntilImported(MetaPathFinder):
    """Call a function with PyTorch's module as soon as a program has imported it."""

    def __init__(self, then: Callable[[ModuleType], None]):
        """Call `then` at once if PyTorch is imported already; else wait in front of all other finders."""
        self._then = then
        if "torch" in sys.modules:
            then(sys.modules["torch"])
        else:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return PyTorch's own spec, with a loader that also calls the function; None for any other module."""
        if name != "torch":
            return None
        self.stop()  # so that the other finders are asked
        try:
            spec = find_spec(name)
        finally:
            sys.meta_path.insert(0, self)  # a program may only ask whether PyTorch is there, and import it later
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def loaded(module: ModuleType) -> None:
                self.stop()
                execute(module)
                self._then(module)

            loader.exec_module = loaded
        return spec

    def stop(self) -> None:
        """Wait for PyTorch no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
