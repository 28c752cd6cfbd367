"""Provide Numba's types and signatures, and the modules of Numba that `stand_in` alters.

Only this file of the folder imports Numba. It is imported late, because Numba reads `NUMBA_ENABLE_CUDASIM` on import,
and `run_program` must remove that variable before. Where Numba is not installed, its successor numba-cuda-mlir takes
its place: it has the same modules in a package of its own. Its kernels run without a check of their types.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from unittest import mock

import numpy as np

from normlab.sim import CompilerError

HAS_NUMBA = find_spec("numba") is not None
OPTIONS = {
    *("abi", "abi_info", "boundscheck", "cache", "debug", "extensions", "fastmath", "forceinline", "inline"),
    *("launch_bounds", "lineinfo", "link", "lto", "max_registers", "nopython", "opt", "shared_memory_carveout"),
}
if HAS_NUMBA:
    import numba.core.errors
    import numba.cuda.random  # imported here, so that its name `cuda` is the module that is altered
    from numba import cuda, typeof
    from numba.cuda.cudadrv import driver
    from numba.cuda.descriptor import cuda_target
    from numba.cuda.kernels import reduction
    from numba.np.ufunc import decorators as ufunc_decorators

    FACES: tuple[Any, ...] = (cuda,)
    try:
        from numba.cuda.memory_management import nrt
    except ImportError:  # numba's own, older numba.cuda
        nrt = None

    try:
        from numba.cuda import cloudpickle, config, types
        from numba.cuda.core import sigutils
        from numba.cuda.core.errors import NumbaInvalidConfigWarning as InvalidConfigWarning
        from numba.cuda.core.errors import TypingError
        from numba.cuda.np.numpy_support import as_dtype, from_dtype
        from numba.cuda.np.ufunc import decorators as cuda_ufunc_decorators
    except ImportError:  # numba's own, older numba.cuda: on macOS, where numba-cuda has no wheels
        from numba import cloudpickle
        from numba.core import config, sigutils, types
        from numba.core.errors import NumbaInvalidConfigWarning as InvalidConfigWarning
        from numba.core.errors import TypingError
        from numba.np.numpy_support import as_dtype, from_dtype

        cuda_ufunc_decorators = ufunc_decorators
    _typing_errors = tuple({TypingError, numba.core.errors.TypingError})  # one class, or each package's own
else:
    import numba_cuda_mlir.cuda as mlir_cuda
    from numba_cuda_mlir import numba_cuda as cuda
    from numba_cuda_mlir.decorators import _get_schema
    from numba_cuda_mlir.numba_cuda import cloudpickle, types
    from numba_cuda_mlir.numba_cuda.core import config, sigutils
    from numba_cuda_mlir.numba_cuda.core.errors import NumbaInvalidConfigWarning as InvalidConfigWarning
    from numba_cuda_mlir.numba_cuda.core.errors import TypingError
    from numba_cuda_mlir.numba_cuda.cudadrv import driver
    from numba_cuda_mlir.numba_cuda.kernels import reduction
    from numba_cuda_mlir.numba_cuda.np.numpy_support import as_dtype, from_dtype
    from numba_cuda_mlir.numba_cuda.np.ufunc import decorators as ufunc_decorators
    from numba_cuda_mlir.numba_cuda.typing.typeof import typeof

    FACES = (cuda, mlir_cuda)
    nrt = cuda_target = None
    cuda_ufunc_decorators = ufunc_decorators
    _typing_errors = (TypingError,)
    OPTIONS |= {option.name for option in _get_schema()}


class RefusedError(CompilerError, *_typing_errors):  # type: ignore[misc]
    """A kernel that Numba does not compile: also Numba's own kind of error, with its words, for programs that read it.

    An error that the program does not catch shows the sentence alone (`program.py`).
    """

    def __str__(self) -> str:
        """Return the sentence, then Numba's words."""
        return "\n\n".join(filter(None, (*map(str, self.args), self.words)))


# A traceback names the documented class.
RefusedError.__module__, RefusedError.__qualname__ = CompilerError.__module__, CompilerError.__qualname__


_jit, _CUDADispatcher = cuda.jit, cuda.dispatcher.CUDADispatcher  # before `stand_in` replaces them

__all__ = [
    "FACES",
    "HAS_NUMBA",
    "OPTIONS",
    "InvalidConfigWarning",
    "RefusedError",
    "as_dtype",
    "compiling",
    "config",
    "cuda",
    "declare",
    "dispatcher_of",
    "driver",
    "driver_error",
    "is_signature",
    "is_type",
    "kernel_allocations",
    "load_compiler",
    "normalised",
    "nrt",
    "pickled",
    "pointee",
    "reduction",
    "result_type",
    "scalar_dtype",
    "type_of",
    "ufunc_makers",
    "unpickled",
]

if not hasattr(driver, "_logger"):  # Numba makes it when its driver starts, which it never does here
    driver._logger = driver.make_logger()

is_signature = sigutils.is_signature
pickled, unpickled = cloudpickle.dumps, cloudpickle.loads


def normalised(signature: Any) -> tuple[tuple, Any]:
    """Return the argument types and the return type (or None) of a signature in any of Numba's spellings."""
    return sigutils.normalize_signature(signature)


def scalar_dtype(kind: Any) -> np.dtype | None:
    """Return the NumPy dtype of a Numba number type, or None for any other type."""
    return np.dtype(as_dtype(kind)) if isinstance(kind, (types.Number, types.Boolean)) else None


def is_type(value: Any) -> bool:
    """Return whether a value is one of Numba's types, not a value of such a type."""
    return isinstance(value, types.Type)


def pointee(kind: Any) -> np.dtype | None:
    """Return the NumPy dtype that a C pointer among the types points to, None for any other type."""
    return np.dtype(as_dtype(kind.dtype)) if isinstance(kind, types.CPointer) else None


def type_of(value: Any) -> Any:
    """Return the Numba type of a kernel's argument: of an array in simulated memory, a scalar or a tuple.

    Raise NotImplementedError or ValueError if Numba has no type for the value.
    """
    if isinstance(value, tuple):
        kinds = tuple(map(type_of, value))
        return types.BaseTuple.from_types(kinds, type(value) if hasattr(value, "_fields") else None)
    if isinstance(value, np.ndarray) and value.dtype.names and value.ndim == 0:
        return from_dtype(value.dtype)  # a record
    if isinstance(value, np.ndarray):
        layout = "C" if value.flags.c_contiguous else "F" if value.flags.f_contiguous else "A"
        return types.Array(from_dtype(value.dtype), value.ndim, layout, readonly=not value.flags.writeable)
    return typeof(value)


def load_compiler() -> None:
    """Let Numba define the functions that kernels call, which it does late and with names that `stand_in` replaces."""
    cuda_target.typing_context.refresh()
    cuda_target.target_context.refresh()


@contextmanager
def compiling() -> Iterator[None]:
    """Give Numba its own `jit` and class of kernels back, which it uses while it compiles."""
    with (
        mock.patch.object(cuda, "jit", _jit),
        mock.patch.object(cuda.decorators, "jit", _jit),
        mock.patch.object(cuda.dispatcher, "CUDADispatcher", _CUDADispatcher),
    ):
        yield


def dispatcher_of(function: Any, options: dict[str, Any]) -> Any:
    """Return Numba's own dispatcher of a function under `cuda.jit`, for kernels that call the function."""
    kept = {name: value for name, value in options.items() if name not in ("device", "cache", "link")}
    return _jit(function, device=True, **kept)


def declare(dispatcher: Any, signatures: list[tuple]) -> None:
    """Compile a dispatcher for its declared types of arguments and result, and for no others."""
    for arguments, result in signatures:
        dispatcher.compile_device(arguments, result)
    if signatures:
        dispatcher.disable_compile()


def result_type(function: Any, arguments: tuple) -> Any:
    """Return the type that Numba infers for a function's result, given the types of its arguments."""
    with compiling():
        return dispatcher_of(function, {}).compile_device(arguments, None).signature.return_type


def kernel_allocations() -> dict[str, Any]:
    """Return what Numba's runtime on the device says of the arrays that kernels allocate: none, they are Python's."""
    if nrt is None:
        return {}
    names = ("ensure_allocated", "ensure_initialized", "memsys_enable_stats", "memsys_disable_stats")
    return {**dict.fromkeys(names), "get_allocation_stats": nrt._nrt_mstats(0, 0, 0, 0)}


def driver_error(name: str, reason: str) -> Exception:
    """Return the error of a launch that the driver refuses, under the driver's name for it."""
    try:
        from cuda.core._utils.cuda_utils import CUDAError
    except ImportError:  # Numba's own, older numba.cuda launches without cuda.core
        return driver.CudaAPIError(0, f"CUDA_ERROR_{name}: {reason}")
    return CUDAError(f"CUDA_ERROR_{name}: {reason}")


def ufunc_makers(name: str) -> list[Any]:
    """Return the classes of `numba.vectorize` and `cuda.vectorize`; their `target_registry` maps names to builders.

    name: "Vectorize", or "GUVectorize" for `guvectorize`.
    """
    return [getattr(module, name) for module in {ufunc_decorators, cuda_ufunc_decorators}]
