"""Replace the host side of `numba.cuda` while one program runs.

`stand_in` alters attributes of Numba's own modules. `from numba import cuda`, `from numba.cuda import jit` and
`numba.vectorize(..., target="cuda")` then find the replacements in this folder, wherever a program imports them.
Functions that kernels call (`cuda.grid`, `cuda.shared`, …) stay Numba's, because the simulator interprets them. Any
other function that needs a driver raises an error that names it, even if there is a driver.
"""

import atexit
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import spawn
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from normlab.run import allocate, device, driver, elementwise, interface, memory, numba_host, rowwise, tensors
from normlab.run.decorator import jit
from normlab.run.kernel import Kernel
from normlab.run.launcher import Launcher
from normlab.run.transfer import In, InOut, Out

UNSUPPORTED = (
    *("BaseCUDAMemoryManager", "GetIpcHandleMixin", "HostOnlyCUDAMemoryManager", "declare_device"),
    *("open_ipc_array", "set_memory_manager"),
)
COMPILERS = ("compile", "compile_all", "compile_ptx", "compile_for_current_device", "compile_ptx_for_current_device")
NO_DRIVER = "it needs a GPU's driver, and there is none here"
NO_COMPILER = "kernels are interpreted here, and nothing compiles them"


def host_face(launcher: Launcher) -> dict[str, Any]:
    """Return a dict from the names in `numba.cuda` that a program on the host uses to their replacements."""

    class Reduce(numba_host.reduction.Reduce):
        """Numba's own reduction with a separate cache; its kernels come from `cuda.jit`, which is replaced."""

        _cache: dict[Any, Any] = {}  # noqa: RUF012 - Numba's own name and annotation

    return {
        **{name: _refuse(f"cuda.{name}", NO_DRIVER) for name in UNSUPPORTED},
        **{name: _refuse(f"cuda.{name}", NO_COMPILER) for name in COMPILERS},
        "jit": functools.partial(jit, launcher),
        "reduce": Reduce,
        "Reduce": Reduce,
        **{kind.__name__: kind for kind in (In, Out, InOut)},
        **{
            made.__name__: made
            for made in (
                *(allocate.to_device, allocate.device_array, allocate.device_array_like, allocate.managed_array),
                *(allocate.mapped, allocate.mapped_array, allocate.mapped_array_like),
                *(allocate.pinned, allocate.pinned_array, allocate.pinned_array_like),
                *(interface.as_cuda_array, interface.from_cuda_array_interface, interface.is_cuda_array),
                *(device.current_context, device.select_device, device.detect),
            )
        },
        "get_current_device": lambda: device.DEVICE,
        "list_devices": lambda: device.GPUS,
        "gpus": device.GPUS,
        "is_available": lambda: True,
        "is_supported_version": lambda: True,
        "is_float16_supported": lambda: device.DEVICE.supports_float16,
        "is_bfloat16_supported": lambda: device.DEVICE.supports_bfloat16,
        "is_fp8_supported": lambda: device.DEVICE.supports_fp8,
        "cuda_error": lambda: None,
        "runtime": SimpleNamespace(get_version=lambda: driver.VERSION, is_supported_version=lambda: True),
        "stream": device.Stream,
        "default_stream": functools.partial(device.Stream, 0),
        "legacy_default_stream": functools.partial(device.Stream, 1),
        "per_thread_default_stream": functools.partial(device.Stream, 2),
        "external_stream": lambda ptr: device.Stream(int(ptr), external=True),
        "event": device.Event,
        "event_elapsed_time": lambda evtstart, evtend: evtstart.elapsed_time(evtend),
        **dict.fromkeys(("synchronize", "close", "profile_start", "profile_stop"), lambda: None),
        "defer_cleanup": device.CONTEXT.defer_cleanup,
        "profiling": device.nothing,
        "require_context": lambda function: function,
    }


def _refuse(what: str, why: str) -> Any:
    """Return a function that raises NotImplementedError, naming itself and the reason."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise NotImplementedError(f"{what} is not in normlab run: {why}")

    return refuse


def _of_driver(name: str) -> Any:
    """Return a function of CUDA's driver that works on simulated memory. Raise NotImplementedError for any other."""
    if name not in driver.FUNCTIONS:
        _refuse(f"the driver's {name}", NO_DRIVER)()
    return driver.FUNCTIONS[name]


# The submodules of numba.cuda in which programs, and Numba itself, look up the same names.
ELSEWHERE = (
    *("api", "args", "decorators", "kernels.reduction"),
    *("cudadrv.devicearray", "cudadrv.devices", "cudadrv.driver"),
)


class ForChild:
    """Sent to every process that `multiprocessing` spawns, where unpickling it replaces `numba.cuda` for good.

    A forked process inherits the replacement. Child processes simulate their launches without watching them, because a
    report covers one process.
    """

    def __init__(self, check: bool):
        """Let the child's kernels be checked, or not."""
        self._check = check

    def __reduce__(self) -> tuple:
        """Pickle as a call of `replace_for_good`."""
        return replace_for_good, (functools.partial(Launcher, check=self._check),)


def replace_for_good(make_launcher: Callable[[], Launcher]) -> None:
    """Replace the host side of `numba.cuda` until the interpreter exits; `atexit` functions still see it replaced."""
    replaced = ExitStack()
    replaced.enter_context(stand_in(make_launcher()))
    atexit.register(replaced.close)


@contextmanager
def stand_in(launcher: Launcher) -> Iterator[None]:
    """Replace the host side of `numba.cuda`: every launch of the program goes to `launcher`."""
    cuda, face = numba_host.cuda, host_face(launcher)
    if launcher.checks:
        numba_host.load_compiler()
    with ExitStack() as stack:
        alter = lambda target, name, value: stack.enter_context(mock.patch.object(target, name, value))  # noqa: E731
        for target in numba_host.FACES:
            for name, value in face.items():
                stack.enter_context(mock.patch.object(target, name, value, create=True))
        for path in ELSEWHERE:
            module = sys.modules.get(f"{cuda.__name__}.{path}")
            for name, value in face.items():
                if hasattr(module, name):
                    alter(module, name, value)
        devices = cuda.cudadrv.devices
        alter(devices, "get_context", device.current_context)
        alter(devices._runtime, "ensure_context", device.nothing)
        alter(devices._runtime, "get_or_create_context", device.current_context)
        arrays = cuda.cudadrv.devicearray
        for name, value in {
            "DeviceNDArray": memory.DeviceArray,
            "DeviceNDArrayBase": memory.DeviceArray,
            "ManagedNDArray": memory.HostMappedArray,
            "MappedNDArray": memory.HostMappedArray,
            "is_cuda_ndarray": allocate.is_cuda_ndarray,
        }.items():
            alter(arrays, name, value)
        if numba_host.HAS_NUMBA:  # for a program that also calls normlab itself
            from normlab import engine
            from normlab.engine.launching import worlds

            for where in (engine, worlds):
                alter(where, "gpu_available", lambda: False)
        alter(cuda.dispatcher, "CUDADispatcher", Kernel)
        alter(numba_host.driver, "Stream", device.Stream)
        alter(numba_host.driver, "Event", device.Event)
        # Numba keeps each of the driver's functions that it has used as an attribute.
        used = vars(numba_host.driver.driver)
        stack.enter_context(mock.patch.dict(used))
        for name in [name for name in used if name.startswith("cu")]:
            del used[name]
        alter(numba_host.driver.Driver, "__getattr__", lambda _, name: _of_driver(name))
        alter(numba_host.driver.Driver, "get_device", lambda _, devnum=0: device.DEVICE)
        alter(numba_host.driver.Driver, "is_available", True)
        alter(numba_host.driver.Driver, "ensure_initialized", lambda driver: _refuse("the CUDA driver", NO_DRIVER)())
        for method, value in numba_host.kernel_allocations().items():
            alter(numba_host.nrt._Runtime, method, lambda runtime, *given, value=value, **options: value)
        prepare = spawn.get_preparation_data
        alter(spawn, "get_preparation_data", lambda name: {"normlab.run": ForChild(launcher.checks), **prepare(name)})
        for kind, builder in (("Vectorize", elementwise.Vectorize), ("GUVectorize", rowwise.GUVectorize)):
            for maker in numba_host.ufunc_makers(kind):
                alter(maker, "target_registry", {**maker.target_registry, "cuda": builder})

        def teach(torch: ModuleType) -> None:
            for name in tensors.FUNCTIONS:
                alter(torch, name, tensors.taking_arrays(torch, getattr(torch, name)))

        stack.callback(tensors.UntilImported(teach).stop)
        yield
