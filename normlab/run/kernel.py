"""Define the kernel that `cuda.jit` returns, which a program launches as if it were compiled.

`transfer.py` moves the arguments, `signatures.py` converts them to their declared types, and `launcher.py` decides how
the launch runs.
"""

import functools
import inspect
import math
from collections.abc import Callable
from types import MethodType
from typing import Any

from normlab.run.frozen import frozen
from normlab.run.launcher import Launch, Launcher
from normlab.run.memory import check_stream
from normlab.run.numba_host import (
    cuda,
    declare,
    dispatcher_of,
    driver_error,
    is_type,
    pickled,
    type_of,
    unpickled,
)
from normlab.run.signatures import Signature, bind, signature_of
from normlab.run.transfer import Transfer
from normlab.sim import simulate
from normlab.sim.language.variables import Types
from normlab.sim.machine.cooperative import blocks_at_once, is_cooperative

FORALL_BLOCK = 128  # threads; the driver of a GPU would choose more, but an idle thread costs time in the simulator
NOT_COMPILED = {
    *("inspect_cubin", "inspect_mlir", "inspect_ptx"),
    *("inspect_asm", "inspect_cfg", "inspect_disasm_cfg", "inspect_llvm", "inspect_lto_ptx", "inspect_sass"),
    *("inspect_sass_cfg", "inspect_types", "get_const_mem_size", "get_local_mem_per_thread"),
    *("get_max_threads_per_block", "get_regs_per_thread", "get_shared_mem_per_block", "get_metadata"),
    *("const_mem_size", "local_mem_per_thread", "max_threads_per_block", "regs_per_thread", "shared_mem_per_block"),
}
MISSING_CONFIGURATION = "Kernel launch configuration was not specified. Use the syntax: kernel[grid, block](arguments)"


class Overload:
    """One specialisation of a kernel: its signature, and the function with the globals of that moment."""

    def __init__(self, kernel: "Kernel", signature: Signature):
        """Specialise `kernel` for `signature`, with its globals as they are now, if the compiler's check passes."""
        self.types: Types = {}
        # Numba compiles at this moment, too. A ufunc's kernel, whose source is the program's function, is not compiled.
        if kernel.source is kernel.py_func and not kernel.targetoptions["device"]:
            self.types = kernel.launcher.check(kernel.source, signature.arguments, kernel.targetoptions)
        self.kernel, self.signature = kernel, signature
        self.function = frozen(kernel.py_func)

    def max_cooperative_grid_blocks(self, blockdim: Any, dynsmemsize: int = 0) -> int:
        """Return how many blocks of `blockdim` threads an H200 holds at once, as far as `blocks_at_once` knows."""
        return blocks_at_once(_product(blockdim), dynsmemsize)

    @property
    def cooperative(self) -> bool:
        """Return whether the kernel, or a function that it calls, uses the group of the grid's threads."""
        return is_cooperative(self.function)

    def __getattr__(self, name: str) -> Any:
        """Raise an error that names the missing attribute."""
        raise _missing(name)


def _product(extent: Any) -> int:
    """Return how many blocks or threads an extent means."""
    return math.prod(extent) if isinstance(extent, (tuple, list)) else int(extent)


def _missing(name: str) -> Exception:
    """Return NotImplementedError for an attribute that only a compiled kernel has, else AttributeError."""
    if name in NOT_COMPILED:
        return NotImplementedError(f"{name}: normlab run interprets kernels and compiles none, so it cannot know")
    return AttributeError(f"a kernel of normlab run has no attribute {name!r}")


class Kernel:
    """A kernel or device function.

    `py_func` is the Python function that the simulator runs; `source` is the program's function, which a report names.
    """

    def __init__(self, function: Any, launcher: Launcher, options: dict[str, Any], signatures: list[Signature]):
        """Make the kernel of `function`, launched by `launcher`; `signatures` are the declared signatures."""
        functools.update_wrapper(self, function)
        self.py_func = self.source = function
        self.called: Kernel = self  # the kernel that runs when other kernels call this name
        self.targetoptions = options
        self.specialized = len(signatures) == 1
        self.launcher, self._signatures = launcher, signatures
        self.extensions: list[Any] = list(options.get("extensions") or [])
        self.specializations: dict[tuple, Kernel] = {}
        self._dispatcher: Any = None
        parameters = inspect.signature(function).parameters
        several = any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters.values())
        for signature in signatures:
            if len(signature.arguments) != len(parameters) and not several:
                raise TypeError(
                    f"the signature of {function.__name__!r} has {len(signature.arguments)} arguments "
                    f"({', '.join(map(str, signature.arguments))}), the function {len(parameters)}"
                )
            if not options["device"] and str(signature.result) not in ("None", "none"):
                raise TypeError("CUDA kernel must have void return type.")
        self.overloads = {signature.arguments: Overload(self, signature) for signature in signatures}

    def __getattr__(self, name: str) -> Any:
        """Raise an error that names the missing attribute."""
        raise _missing(name)

    @property
    def _numba_type_(self) -> Any:
        """Return the type that Numba, when it checks a kernel that calls this function, finds for it."""
        if self._dispatcher is None:
            self._dispatcher = dispatcher_of(self.source, self.targetoptions)
            declare(self._dispatcher, [tuple(signature) for signature in self._signatures])
        return self._dispatcher._numba_type_

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind as a method, as Numba's dispatcher does."""
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> Any:
        """Pickle by name, for other processes; one that a function made has no name there, and goes with its code."""
        if "<locals>" not in self.py_func.__qualname__:
            return self.py_func.__qualname__
        return made_again, (pickled(self.py_func), [tuple(each) for each in self._signatures], self.targetoptions)

    def __repr__(self) -> str:
        """Return a text like Numba's, with this package's name."""
        return f"<normlab.run Kernel({self.py_func!r})>"

    def __getitem__(self, configuration: Any) -> "Configured":
        """Return the kernel configured by `grid, block[, stream[, dynamic_shared_bytes[, cluster]]]`."""
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 5:
            raise ValueError(
                "must specify at least the griddim and blockdim, and at most a stream, shared memory and a cluster"
            )
        return self.configure(*configuration)

    def configure(
        self, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int | None = 0, cluster: Any = None
    ) -> "Configured":
        """Return the kernel with this launch configuration; the cluster is numba-cuda-mlir's, along x."""
        if self.targetoptions["device"]:
            raise RuntimeError(f"Cannot compile a device function as a kernel: {self.py_func.__name__!r} is one")
        return Configured(self, griddim, blockdim, stream, sharedmem or 0, cluster)

    def forall(self, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Callable[..., None]:
        """Return a launch of at least `ntasks` threads in blocks of `tpb` (0: chosen here)."""
        if ntasks < 0:
            raise ValueError(f"Can't create ForAll with negative task count: {ntasks}")
        block = tpb or FORALL_BLOCK
        return self.configure(-(-ntasks // block), block, stream, sharedmem) if ntasks else lambda *arguments: None

    def __call__(self, *arguments: Any) -> None:
        """Raise ValueError: a kernel is launched with a configuration."""
        raise ValueError(MISSING_CONFIGURATION)

    def compile(self, sig: Any) -> Overload:
        """Declare a specialisation and return it."""
        signature = signature_of(sig)
        if signature.arguments not in self.overloads:
            self.overloads[signature.arguments] = Overload(self, signature)
        return self.overloads[signature.arguments]

    def specialize(self, *args: Any) -> "Kernel":
        """Return a kernel that takes arguments of the types of `args` only; `args`: values, or Numba's types."""
        if self.specialized:
            raise RuntimeError("Dispatcher already specialized")
        types = tuple(
            each if is_type(each) else type_of(Transfer(self.py_func.__name__, (each,)).values[0]) for each in args
        )
        if types not in self.specializations:
            made = Kernel(self.py_func, self.launcher, self.targetoptions, [Signature(types, None)])
            self.specializations[types] = made
        return self.specializations[types]

    def recompile(self) -> None:
        """Update every specialisation to the globals as they are now."""
        for overload in self.overloads.values():
            overload.function = frozen(self.py_func)

    @property
    def signatures(self) -> list[tuple]:
        """Return the argument types of every specialisation, declared or launched."""
        return list(self.overloads)

    def launch(self, configuration: tuple, cluster: int, arguments: tuple) -> None:
        """Move the arguments to the device, run the launch, and copy the results back."""
        name = self.py_func.__name__
        back: list[Callable[[], None]] = []
        for extension in reversed(self.extensions):
            arguments = tuple(self._prepared(extension, value, configuration[2], back) for value in arguments)
        transfer = Transfer(name, arguments)
        values = transfer.values
        if self._signatures:
            signature, values = bind(name, self._signatures, values)
        else:
            signature = Signature(tuple(map(type_of, values)), None)
        overload = self.compile(signature.arguments)
        self._check_size(overload, *configuration)
        self.launcher.launch(
            Launch(self.source, overload.function, configuration, cluster, values, transfer.fresh, overload.types)
        )
        for come_back in (*transfer.back, *back):
            come_back()

    def _check_size(self, overload: Overload, grid: Any, block: Any, stream: Any, shared_bytes: int) -> None:
        """Raise the driver's error for a block larger than `launch_bounds`, or blocks that wait but do not all run."""
        bounds = self.targetoptions.get("launch_bounds")
        most = bounds[0] if isinstance(bounds, tuple) and bounds else bounds
        threads, blocks = _product(block), _product(grid)
        if most and threads > most:
            raise driver_error("INVALID_VALUE", f"a block has {threads} threads, and launch_bounds allows {most}")
        at_once = blocks_at_once(threads, shared_bytes)
        if blocks > at_once and overload.cooperative:
            reason = f"the kernel uses this_grid(), and of its {blocks} blocks the device holds {at_once} at once"
            raise driver_error("COOPERATIVE_LAUNCH_TOO_LARGE", reason)

    @staticmethod
    def _prepared(extension: Any, value: Any, stream: Any, back: list[Callable[[], None]]) -> Any:
        """Return what an extension of `cuda.jit` makes of an argument; it may add to what comes back."""
        try:
            kind = type_of(value)
        except ValueError:  # an object that only the extension knows
            kind = None
        return extension.prepare_args(kind, value, stream=stream, retr=back)[1]


def made_again(function: bytes, signatures: list[tuple], options: dict[str, Any]) -> Any:
    """Return a pickled kernel, as this process's `cuda.jit` makes it."""
    declared = [arguments if result is None else result(*arguments) for arguments, result in signatures]
    return cuda.jit(declared or None, **options)(unpickled(function))


class Configured:
    """A kernel with its launch configuration; calling it is the launch."""

    def __init__(self, kernel: Kernel, griddim: Any, blockdim: Any, stream: Any, sharedmem: int, cluster: Any):
        """Check the configuration, and raise the errors that `simulate` raises."""
        check_stream(stream)
        across, *rest = cluster if isinstance(cluster, tuple) else (cluster or 1,)
        if any(extent != 1 for extent in rest):
            raise NotImplementedError(f"a cluster lies along x in normlab's simulator, not like {cluster}")
        grid = tuple(griddim) if isinstance(griddim, list) else griddim
        block = tuple(blockdim) if isinstance(blockdim, list) else blockdim
        self._configuration = grid, block, stream, sharedmem  # as given: a report shows it
        launch = simulate(kernel, cluster=across)[self._configuration]
        self.griddim, self.blockdim, self.cluster = tuple(launch.grid), tuple(launch.block), across
        self.kernel, self.stream, self.sharedmem = kernel, stream, sharedmem

    def __call__(self, *args: Any) -> None:
        """Launch the kernel with this configuration."""
        self.kernel.launch(self._configuration, self.cluster, args)
