"""`cuda.jit`, and what it returns: a kernel that a program launches as if it were compiled.

Arguments travel as Numba moves them: device arrays as they are, host arrays copied there and back, scalars as declared.
What then runs the launch is `launcher.py`'s to decide.
"""

import functools
import inspect
import math
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from normlab.run.device import ATTRIBUTES
from normlab.run.frozen import frozen
from normlab.run.launcher import Launch, Launcher
from normlab.run.memory import DeviceArray, HostMappedArray, copied, uninitialised
from normlab.run.numba_host import type_of
from normlab.run.signatures import Signature, bind, casts, signature_of, signatures_of
from normlab.sim import register_twin, simulate

FORALL_BLOCK = 128  # threads; a GPU's driver would choose more, and every idle thread costs time here
WARP = ATTRIBUTES["WARP_SIZE"]
OPTIONS = {
    *("abi", "abi_info", "boundscheck", "cache", "debug", "extensions", "fastmath", "forceinline", "inline"),
    *("launch_bounds", "lineinfo", "link", "lto", "max_registers", "nopython", "opt", "shared_memory_carveout"),
}
NOT_COMPILED = {
    *("inspect_asm", "inspect_cfg", "inspect_disasm_cfg", "inspect_llvm", "inspect_lto_ptx", "inspect_sass"),
    *("inspect_sass_cfg", "inspect_types", "get_const_mem_size", "get_local_mem_per_thread"),
    *("get_max_threads_per_block", "get_regs_per_thread", "get_shared_mem_per_block", "get_metadata"),
    *("const_mem_size", "local_mem_per_thread", "max_threads_per_block", "regs_per_thread", "shared_mem_per_block"),
}
MISSING_CONFIGURATION = "Kernel launch configuration was not specified. Use the syntax: kernel[grid, block](arguments)"


# --- how an argument travels -----------------------------------------------------------------------------------------


class InOut:
    """`cuda.InOut(array)`: copied to the device and back, as every host array is by default."""

    def __init__(self, value: Any):
        """Mark a host array."""
        self.value = value


class In(InOut):
    """`cuda.In(array)`: copied to the device only."""


class Out(InOut):
    """`cuda.Out(array)`: copied back only; the kernel finds uninitialised memory."""


class Transfer:
    """The arguments of one launch in device memory, and how they come back."""

    def __init__(self, kernel: str, arguments: tuple):
        """Move `arguments`; raises TypeError or ValueError where Numba cannot."""
        self.back: list[Callable[[], None]] = []
        self.fresh: list[np.ndarray] = []
        self.values = []
        for position, argument in enumerate(arguments, start=1):
            try:
                self.values.append(self.moved(argument))
            except TypeError as error:
                raise TypeError(f"argument {position} of kernel {kernel!r} {error}") from None

    def moved(self, argument: Any) -> Any:
        """Return one argument as the kernel gets it."""
        hint = type(argument) if isinstance(argument, InOut) else InOut
        value = argument.value if isinstance(argument, InOut) else argument
        if isinstance(value, tuple):
            moved = [self.moved(item) for item in value]
            return type(value)(*moved) if hasattr(value, "_fields") else tuple(moved)
        if isinstance(value, DeviceArray):
            if value.allocation.fresh:
                self.fresh.append(value.memory)
            return value.memory
        if isinstance(value, HostMappedArray):
            return np.asarray(value)
        if isinstance(value, (np.ndarray, np.void)):
            return self.copied(np.asarray(value), hint)
        if value is None or not isinstance(value, (bool, int, float, complex, np.generic)):
            raise TypeError(f"is a {type(value).__name__}; kernels take host or device arrays and numbers")
        return value

    def copied(self, host: np.ndarray, hint: type[InOut]) -> np.ndarray:
        """Return a copy of `host`, and see to its way back."""
        memory = copied(host)
        if hint is Out:
            memory = uninitialised(host.shape, host.dtype, host.strides)
            self.fresh.append(memory)
        if not host.flags.writeable:
            memory.flags.writeable = False
        elif hint is not In:
            self.back.append(lambda: np.copyto(host, memory))
        return memory


# --- kernels ---------------------------------------------------------------------------------------------------------


class Overload:
    """One specialisation of a kernel: what there is to know of it without having compiled it."""

    def __init__(self, kernel: "Kernel", signature: Signature):
        """Belong to `kernel`."""
        self.kernel, self.signature = kernel, signature
        self.function = frozen(kernel.py_func)

    def max_cooperative_grid_blocks(self, blockdim: Any, dynsmemsize: int = 0) -> int:
        """Return how many blocks of `blockdim` threads an H200 holds at once, as far as registers allow it."""
        threads = math.prod(blockdim) if isinstance(blockdim, (tuple, list)) else int(blockdim)
        warps = -(-threads // WARP)
        resident = min(
            ATTRIBUTES["MAX_BLOCKS_PER_MULTIPROCESSOR"],
            ATTRIBUTES["MAX_THREADS_PER_MULTI_PROCESSOR"] // (warps * WARP),
            ATTRIBUTES["MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"]
            // (dynsmemsize + ATTRIBUTES["RESERVED_SHARED_MEMORY_PER_BLOCK"]),
        )
        return resident * ATTRIBUTES["MULTIPROCESSOR_COUNT"]

    def __getattr__(self, name: str) -> Any:
        """Say what is missing."""
        raise _missing(name)


def _missing(name: str) -> Exception:
    if name in NOT_COMPILED:
        return NotImplementedError(f"{name}: normlab run interprets kernels and compiles none, so it cannot know")
    return AttributeError(f"a kernel of normlab run has no attribute {name!r}")


class Kernel:
    """A kernel or device function.

    `py_func` is its Python function, which the simulator runs; `source` the program's own, which a report names.
    """

    def __init__(self, function: Any, launcher: Launcher, options: dict[str, Any], signatures: list[Signature]):
        """Stand for `function`, launched by `launcher`; `signatures` are those declared."""
        functools.update_wrapper(self, function)
        self.py_func = self.source = function
        self.called: Kernel = self  # what other kernels call under this name
        self.targetoptions = options
        self.specialized = len(signatures) == 1
        self._launcher, self._signatures = launcher, signatures
        self.overloads = {signature.arguments: Overload(self, signature) for signature in signatures}
        parameters = inspect.signature(function).parameters
        for signature in signatures:
            if len(signature.arguments) != len(parameters):
                raise TypeError(
                    f"the signature of {function.__name__!r} has {len(signature.arguments)} arguments "
                    f"({', '.join(map(str, signature.arguments))}), the function {len(parameters)}"
                )
            if not options["device"] and str(signature.result) not in ("None", "none"):
                raise TypeError("CUDA kernel must have void return type.")

    def __getattr__(self, name: str) -> Any:
        """Say what is missing."""
        raise _missing(name)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind as a method, as Numba's dispatcher does."""
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> str:
        """Pickle by name, for other processes."""
        return self.py_func.__qualname__

    def __repr__(self) -> str:
        """Print as Numba does."""
        return f"<normlab.run Kernel({self.py_func!r})>"

    def __getitem__(self, configuration: Any) -> "Configured":
        """Return the kernel configured by `grid, block[, stream[, dynamic_shared_bytes]]`."""
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
            raise ValueError("must specify at least the griddim and blockdim, and at most a stream and shared memory")
        return self.configure(*configuration)

    def configure(self, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0) -> "Configured":
        """Return the kernel configured."""
        return Configured(self, griddim, blockdim, stream, sharedmem)

    def forall(self, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Callable[..., None]:
        """Return a launch of at least `ntasks` threads in blocks of `tpb` (0: chosen here)."""
        if ntasks < 0:
            raise ValueError(f"Can't create ForAll with negative task count: {ntasks}")
        block = tpb or FORALL_BLOCK
        return self.configure(-(-ntasks // block), block, stream, sharedmem) if ntasks else lambda *arguments: None

    def __call__(self, *arguments: Any) -> None:
        """Refuse: a kernel is launched with a configuration."""
        raise ValueError(MISSING_CONFIGURATION)

    def compile(self, sig: Any) -> Overload:
        """Declare a specialisation and return it."""
        signature = signature_of(sig)
        if signature.arguments not in self.overloads:
            self.overloads[signature.arguments] = Overload(self, signature)
        return self.overloads[signature.arguments]

    def specialize(self, *args: Any) -> "Kernel":
        """Return a kernel that takes arguments of the types of `args` only."""
        if self.specialized:
            raise RuntimeError("Dispatcher already specialized")
        types = tuple(type_of(value) for value in Transfer(self.py_func.__name__, args).values)
        return Kernel(self.py_func, self._launcher, self.targetoptions, [Signature(types, None)])

    def recompile(self) -> None:
        """Take the globals as they are now, in every specialisation."""
        for overload in self.overloads.values():
            overload.function = frozen(self.py_func)

    @property
    def signatures(self) -> list[tuple]:
        """The argument types of every specialisation, declared or launched."""
        return list(self.overloads)

    def launch(self, configuration: tuple, arguments: tuple) -> None:
        """Move the arguments, run the launch, move back what comes back."""
        name = self.py_func.__name__
        transfer = Transfer(name, arguments)
        values = transfer.values
        if self._signatures:
            signature, values = bind(name, self._signatures, values)
        else:
            signature = Signature(tuple(map(type_of, values)), None)
        overload = self.compile(signature.arguments)
        self._launcher.launch(Launch(self.source, overload.function, configuration, values, transfer.fresh))
        for come_back in transfer.back:
            come_back()


class Configured:
    """A kernel with its launch configuration; calling it is the launch."""

    def __init__(self, kernel: Kernel, griddim: Any, blockdim: Any, stream: Any, sharedmem: int):
        """Check the configuration; raises as `simulate` does."""
        self.kernel, self.griddim, self.blockdim, self.stream, self.sharedmem = (
            kernel,
            tuple(griddim) if isinstance(griddim, list) else griddim,
            tuple(blockdim) if isinstance(blockdim, list) else blockdim,
            stream,
            sharedmem,
        )
        simulate(kernel)[self._configuration]

    @property
    def _configuration(self) -> tuple:
        return self.griddim, self.blockdim, self.stream, self.sharedmem

    def __call__(self, *args: Any) -> None:
        """Launch."""
        self.kernel.launch(self._configuration, args)


# --- the decorator ---------------------------------------------------------------------------------------------------


def jit(launcher: Launcher, func_or_sig: Any = None, device: bool = False, **options: Any) -> Any:
    """`cuda.jit` in all its forms; options that only concern a compiler change nothing.

    Raises NotImplementedError for `link`, `extensions` and `boundscheck`, KeyError for an option that Numba does not
    have.
    """
    if unknown := options.keys() - OPTIONS:
        raise KeyError(f"Unrecognized options: {unknown}. Known options are {sorted(OPTIONS)}")
    for option in ("link", "extensions", "boundscheck"):
        if options.get(option):
            raise NotImplementedError(f"cuda.jit({option}=…): normlab run interprets kernels and cannot do that")
    options["device"] = device
    signatures = signatures_of(func_or_sig)
    if func_or_sig is None or signatures is not None:
        return lambda function: _decorated(function, launcher, options, signatures or [])
    return _decorated(func_or_sig, launcher, options, [])


def _decorated(function: Any, launcher: Launcher, options: dict[str, Any], signatures: list[Signature]) -> Kernel:
    function = getattr(function, "py_func", function)
    if not isinstance(function, FunctionType):
        raise TypeError(f"cuda.jit decorates a Python function, not a {type(function).__name__}")
    kernel = Kernel(function, launcher, options, signatures)
    if options["device"] and len(signatures) == 1:
        kernel.called = _converting(kernel, signatures[0])
        register_twin(kernel, kernel.called)
    return kernel


def _converting(kernel: Kernel, signature: Signature) -> Kernel:
    """Return a device function that calls `kernel` with arguments and result in their declared types."""
    function: Any = Kernel(kernel.py_func, kernel._launcher, kernel.targetoptions, [])
    argument_casts, result_cast = casts(signature)

    def converted(*arguments):
        pairs = zip(argument_casts, arguments, strict=True)
        result = function(*[value if cast is None else cast(value) for cast, value in pairs])
        return result if result_cast is None else result_cast(result)

    return Kernel(converted, kernel._launcher, kernel.targetoptions, [])
