"""The array backends: one for NumPy arrays and CPU tensors, one for torch on a GPU, one for `__cuda_array_interface__`.

Used by all of `normlab.host`. A backend turns the caller's arrays into kernel operands, which are C-contiguous NumPy
arrays or `engine.DeviceArray`s. It also allocates results, launches kernels, and returns results as arrays of the
caller's kind.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cache, partialmethod
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from normlab import engine
from normlab.kernels.copy import DIMENSIONS, THREADS, copy_strided
from normlab.kernels.problem import DTYPES as FLOATS


def gradients_of(
    parameters: Sequence[Any], shape: tuple[int, ...], dtype: np.dtype, n1: int, backend: Any
) -> list[Any]:
    """Return memory for the gradients of parameters, which are sums over n1 rows; None for a parameter that is None."""
    make = backend.empty if n1 else backend.zeros  # a sum over no rows is 0, and no kernel runs that would write it
    return [None if one is None else make(shape, dtype) for one in parameters]


def is_torch(array: Any) -> bool:
    """Return True for a torch tensor. Does not import torch: a caller with a tensor has imported it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def dtype_name(array: Any) -> str:
    """Return the name of an array's dtype, such as "bfloat16"."""
    if is_torch(array):
        return str(array.dtype).removeprefix("torch.")
    if isinstance(array, np.ndarray):
        return array.dtype.name
    return np.dtype(array.__cuda_array_interface__["typestr"]).name


def _dtype_of(array: Any) -> np.dtype:
    name = dtype_name(array)
    return FLOATS.get(name) or np.dtype(name)


def device_name(array: Any) -> str:
    """Return the name of an array's device in torch's words: "cpu", "cuda:0", ..."""
    if is_torch(array):
        return str(array.device)
    if isinstance(array, np.ndarray):
        return "cpu"
    return f"cuda:{engine.device_of(array.__cuda_array_interface__['data'][0])}"


@cache
def stream_getter() -> Callable[[int], int]:
    """Return torch's quickest function from a GPU's number to the handle of torch's current stream there."""
    torch = sys.modules["torch"]
    return getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream)


@cache
def quick_memory() -> tuple[Callable[[], int], Callable[[tuple, tuple, Any], Any] | None]:
    """Return two functions of torch: one for the current GPU's number, one that allocates a tensor there.

    The second takes a shape, strides and a dtype. The code that torch.compile makes allocates with it, and it takes a
    third of the time of `torch.empty_strided`. If torch lacks one of the two, the number is -1 and the second None.
    """
    inside = sys.modules["torch"]._C
    empty = getattr(getattr(inside._dynamo, "guards", None), "_empty_strided_cuda", None)
    device = getattr(inside, "_cuda_getDevice", None)
    return (lambda: -1, None) if empty is None or device is None else (device, empty)


class Backend(Protocol):
    """The functions that the host functions need for one kind of array."""

    def operand(self, array: Any, shape: tuple[int, ...]) -> Any:
        """Return the array as a C-contiguous kernel operand of this shape; None for None."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """Return an uninitialised operand."""

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """Return an operand of zeros."""

    def launch(self, *args: Any, **options: Any) -> None:
        """Call `engine.launch` on the backend's stream; options must not contain `stream`."""

    def numbers(self, operand: Any) -> list:
        """Return the numbers in an operand made by `empty` or `zeros`. Waits until the work queued so far is done."""

    def give_back(self, operand: Any, shape: tuple[int, ...]) -> Any:
        """Return an operand made by `empty` or `zeros` as an array of the caller's kind; None for None."""


class HostBackend:
    """The backend of NumPy arrays and torch CPU tensors: the simulator uses them in place, a GPU gets copies."""

    def __init__(self, like: Any):
        self.torch = is_torch(like)

    def operand(self, array: Any, shape: tuple[int, ...]) -> Any:  # noqa: D102
        if array is None:
            return None
        if is_torch(array):
            array = _numpy_of_tensor(array)
        # "A", aligned: a view that begins between two elements, as a packed record's field does, is copied
        array = np.require(array, _dtype_of(array), ("C", "A")).reshape(shape)
        return engine.to_device(array) if engine.use_gpu() else array

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:  # noqa: D102
        return engine.device_empty(shape, dtype) if engine.use_gpu() else np.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:  # noqa: D102
        return self.operand(np.zeros(shape, dtype), shape)

    launch = staticmethod(engine.launch)

    def numbers(self, operand: Any) -> list:  # noqa: D102
        return (engine.to_host(operand) if isinstance(operand, engine.DeviceArray) else operand).tolist()

    def give_back(self, operand: Any, shape: tuple[int, ...]) -> Any:  # noqa: D102
        if operand is None:
            return None
        array = engine.to_host(operand) if isinstance(operand, engine.DeviceArray) else operand
        return _tensor_of_numpy(array.reshape(shape)) if self.torch else array.reshape(shape)


class TorchBackend:
    """The backend of torch tensors on a GPU. It launches on torch's current stream."""

    def __init__(self, device: Any):
        self.device = device
        self.index = device.index
        self.stream = stream_getter()(device.index)

    def operand(self, array: Any, shape: tuple[int, ...]) -> Any:  # noqa: D102
        if array is None:
            return None
        tensor = array.detach().contiguous()
        return engine.DeviceArray(tensor.data_ptr(), shape, _dtype_of(tensor), self.index, tensor)

    def _made_by(self, make: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        torch = sys.modules["torch"]
        return self.operand(getattr(torch, make)(shape, dtype=getattr(torch, dtype.name), device=self.device), shape)

    empty = partialmethod(_made_by, "empty")
    zeros = partialmethod(_made_by, "zeros")

    def numbers(self, operand: Any) -> list:  # noqa: D102
        return operand.owner.tolist()

    def give_back(self, operand: Any, shape: tuple[int, ...]) -> Any:  # noqa: D102
        return None if operand is None else operand.owner.reshape(shape)

    def launch(self, *args: Any, **options: Any) -> None:  # noqa: D102
        engine.launch(*args, stream=self.stream, **options)


class InterfaceBackend:
    """The backend of arrays with `__cuda_array_interface__` (CuPy's, Numba's, ...), on the first array's stream.

    For CuPy arrays the results are CuPy arrays, for all others Numba device arrays.
    """

    def __init__(self, like: Any):
        interface = like.__cuda_array_interface__
        self.device = engine.device_of(interface["data"][0])
        self.stream = interface.get("stream") or 0
        self.cupy = sys.modules.get("cupy") if type(like).__module__.startswith("cupy") else None

    def operand(self, array: Any, shape: tuple[int, ...]) -> Any:  # noqa: D102
        if array is None:
            return None
        interface = array.__cuda_array_interface__
        engine.synchronize(interface.get("stream"), unless=self.stream)
        strides = interface.get("strides")
        dtype = _dtype_of(array)
        view = engine.DeviceArray(interface["data"][0], tuple(interface["shape"]), dtype, self.device, array, strides)
        return (view if strides is None else self._contiguous(view))._replace(shape=shape)

    def _contiguous(self, view: engine.DeviceArray) -> engine.DeviceArray:
        missing = DIMENSIONS - len(view.shape)
        if missing < 0:
            raise ValueError(f"a non-contiguous array may have up to {DIMENSIONS} dimensions, got {len(view.shape)}")
        assert view.strides is not None
        padded = view._replace(shape=(1,) * missing + view.shape, strides=(0,) * missing + tuple(view.strides))
        copy = self.empty((int(np.prod(view.shape)),), view.dtype)
        if copy.shape[0]:
            self.launch(copy_strided, -(-copy.shape[0] // THREADS), THREADS, padded, copy)
        return copy

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:  # noqa: D102
        return engine.device_empty(shape, dtype, self.device)

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:  # noqa: D102
        # On the kernels' stream: no order holds between the kernels and work on another stream.
        return engine.device_zeros(shape, dtype, self.device, self.stream)

    def numbers(self, operand: Any) -> list:  # noqa: D102
        engine.synchronize(self.stream, unless=0)
        return engine.to_host(operand).tolist()

    def launch(self, *args: Any, **options: Any) -> None:  # noqa: D102
        engine.launch(*args, stream=self.stream, **options)

    def give_back(self, operand: Any, shape: tuple[int, ...]) -> Any:  # noqa: D102
        if operand is None:
            return None
        array = engine.numba_array(operand, shape)
        return self.cupy.asarray(array) if self.cupy else array


def backend_of(required: dict[str, Any], optional: dict[str, Any]) -> Backend:
    """Return the backend of a call's arrays, which are keyed by the caller's names for them.

    The first array decides the kind. Arrays in `optional` may be None.

    Raises:
        TypeError: an argument that is no array, or a sparse, nested or masked one, or arrays of two kinds on a GPU.
        ValueError: arrays on different devices, or on a device that normlab has no kernels for.
    """
    arrays = required | {name: array for name, array in optional.items() if array is not None}
    for name, array in arrays.items():
        if not (is_torch(array) or isinstance(array, np.ndarray) or hasattr(array, "__cuda_array_interface__")):
            raise TypeError(
                f"{name} must be a NumPy array, a torch tensor or an array with __cuda_array_interface__, "
                f"got {type(array).__module__}.{type(array).__qualname__}"
            )
        _check_dense(name, array)
    (first_name, first), *_ = arrays.items()
    device = device_name(first)
    for name, array in arrays.items():
        if device_name(array) != device:
            raise ValueError(
                "all arrays must be on one device, "
                f"but {first_name} is on {device} and {name} is on {device_name(array)}"
            )
    if device == "cpu":
        return HostBackend(first)
    for name, array in arrays.items():
        if is_torch(array) != is_torch(first):
            raise TypeError(
                f"arrays on a GPU must be of one kind, but {first_name} is a {type(first).__module__}."
                f"{type(first).__qualname__} and {name} a {type(array).__module__}.{type(array).__qualname__}"
            )
    if not device.startswith("cuda"):
        raise ValueError(f"{first_name} is on {device}; normlab has kernels for 'cpu' and 'cuda' devices")
    return TorchBackend(first.device) if is_torch(first) else InterfaceBackend(first)


def is_dense(array: Any) -> bool:
    """Return True if an array holds all of its elements in one grid, unlike sparse and nested tensors."""
    return not is_torch(array) or (array.layout is sys.modules["torch"].strided and not array.is_nested)


def _check_dense(name: str, array: Any) -> None:
    if not is_dense(array):
        nested = "nested, of " if array.is_nested else ""
        raise TypeError(f"{name} must be a dense tensor, got one that is {nested}{array.layout}")
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} must be a NumPy array without a mask, which kernels do not know; got a masked array")


def _numpy_of_tensor(tensor: Any) -> np.ndarray:
    tensor = tensor.detach().contiguous()
    if dtype_name(tensor) == "bfloat16":  # torch does not export bfloat16 to NumPy
        return tensor.view(sys.modules["torch"].int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _tensor_of_numpy(array: np.ndarray) -> Any:
    torch = sys.modules["torch"]
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
