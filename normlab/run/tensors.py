"""Let PyTorch take a device array as a tensor on the CPU that shares its memory: `torch.as_tensor(array)`.

By the CUDA array interface PyTorch knows an array of a GPU, and a PyTorch for the CPU alone then asks for a GPU. So its
functions get a tensor instead. Nothing imports PyTorch for a program without: a finder waits until the program does.
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
    """Return one of PyTorch's functions that make a tensor of something, which takes a device array, too."""

    @functools.wraps(function)
    def take(data: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(data, (DeviceArray, HostMappedArray)):
            memory = data.memory if isinstance(data, DeviceArray) else np.asarray(data)
            narrow = memory.dtype == ml_dtypes.bfloat16  # which NumPy's arrays have no code for
            data = torch.from_numpy(memory.view(np.int16) if narrow else memory)
            data = data.view(torch.bfloat16) if narrow else data
        return function(data, *arguments, **options)

    return take


class UntilImported(MetaPathFinder):
    """Calls a function with PyTorch's module as soon as that is imported."""

    def __init__(self, then: Callable[[ModuleType], None]):
        """Wait in front of all other finders, unless PyTorch is there already."""
        self._then = then
        if "torch" in sys.modules:
            then(sys.modules["torch"])
        else:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return PyTorch's own spec, with a loader that also calls the function; None for any other module."""
        if name != "torch":
            return None
        self.stop()
        spec = find_spec(name)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def loaded(module: ModuleType) -> None:
                execute(module)
                self._then(module)

            loader.exec_module = loaded
        return spec

    def stop(self) -> None:
        """Wait no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
