"""Compile a Python function to PTX or to a cubin, without a GPU and without a driver.

`launch`, the files on disk (`cubins`) and the tests (`compile_ptx`, `resources`) all use one path: Numba generates
LTO-IR, and nvJitLink optimises and assembles it. Numba's own launcher takes the same path. Do not give PTX to
nvJitLink instead: it assembles PTX for later linking, which took 88 registers where LTO-IR took 59.
"""

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from types import SimpleNamespace
from typing import Any, NamedTuple

from numba import cuda
from numba.cuda import dispatcher as _dispatcher

from normlab.engine.compile.entries import short_entries
from normlab.engine.compile.lengths import lengths_of
from normlab.engine.compile.remembering import remembering
from normlab.engine.compile.signatures import kinds_of_types, numba_type

_COMPILING = RLock()
LIBRARIES = ("nvvm", "nvJitLink", "nvrtc")
GET_COMPILER = 'pip install "normlab[gpu]" gets it'


class CompilerMissingError(ImportError):
    """NVIDIA's libraries that compile a kernel are not found. The message names them, a note says how to get them."""


class Cubin(NamedTuple):
    """A kernel's machine code: its entry name, the image, and the assembler's log."""

    entry: str
    image: bytes
    log: str


@contextmanager
def compiling(cc: tuple[int, int]) -> Iterator[None]:
    """Let one thread at a time run Numba's compiler, for this compute capability.

    Numba compiles device functions for the current GPU. Here there may be no GPU, so this function answers cc.
    """
    with _COMPILING, remembering(), _no_garbage_collection():
        real = _dispatcher.get_current_device
        _dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=cc)
        try:
            yield
        finally:
            _dispatcher.get_current_device = real


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Let Python collect no garbage in a `with` block.

    Numba makes a million objects per kernel and needs most of them until the end, so that collections find little. They
    took a fifth of the time of a compilation.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def missing_libraries() -> list[str]:
    """Return which of NVIDIA's libraries that compile and link a kernel are not found here; none needs a driver."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    missing = []
    for name in LIBRARIES:
        try:
            load_nvidia_dynamic_lib(name)
        except RuntimeError:
            missing.append(name)
    return missing


@contextmanager
def _named_if_missing() -> Iterator[None]:
    """Turn an exception into CompilerMissingError if a library is missing: the loader's own error names no remedy."""
    try:
        yield
    except Exception as error:
        missing = missing_libraries()
        if not missing:
            raise
        named = CompilerMissingError(f"CUDA's compiler is not installed (missing: {', '.join(missing)})")
        named.add_note(GET_COMPILER)
        raise named from error


def compile_ptx(kernel: Any, types: tuple, cc: tuple[int, int] = (9, 0)) -> str:
    """Return the PTX from which a kernel's cubin for a compute capability is assembled.

    Args:
        kernel: a function under `cuda.jit`; its `launch_bounds`, `max_registers`, `fastmath`, `lineinfo` and `opt`
            are used.
        types: one entry per argument: None, a NumPy dtype for a scalar, or (dtype, ndim) for a C-contiguous array.
        cc: compute capability.

    Raises:
        CompilerMissingError: there is no compiler here.
        ValueError: the kernel has `debug=True`, or links code of another language (`link`).
        RuntimeError: nvJitLink refuses the code; the message gives its log. Or Numba hands over arguments in a way that
            is not known here (`entries`).
    """
    from cuda.bindings import nvjitlink

    ptx, _ = _link(kernel, kinds_of_types(types), cc, nvjitlink.get_linked_ptx_size, nvjitlink.get_linked_ptx, "-ptx")
    return ptx.rstrip(b"\0").decode()


def compile_cubin(kernel: Any, kinds: tuple, cc: tuple[int, int]) -> Cubin:
    """Return a kernel's machine code. `kinds` are the kinds of its arguments, from `signatures.kind_of`.

    Raises:
        CompilerMissingError, ValueError, RuntimeError: as `compile_ptx`.
    """
    from cuda.bindings import nvjitlink

    image, log = _link(kernel, kinds, cc, nvjitlink.get_linked_cubin_size, nvjitlink.get_linked_cubin)
    found = re.search("Compiling entry function '(.+?)'", log)
    if found is None:
        raise RuntimeError(f"nvJitLink's log of {kernel.py_func.__name__} does not name its entry: {log!r}")
    return Cubin(found[1], image, log)


def _link(kernel: Any, kinds: tuple, cc: tuple[int, int], size: Any, read: Any, *options: str) -> tuple[bytes, str]:
    """Link a kernel with nvJitLink; return the result, fetched with `size` and `read`, and the log."""
    from cuda.bindings import nvjitlink

    name = kernel.py_func.__name__
    if kernel.targetoptions.get("debug"):
        raise ValueError(f"{name} has debug=True, but is optimised when it is linked; the simulator can debug it")
    if kernel.targetoptions.get("link"):
        raise ValueError(f"{name} has link={kernel.targetoptions['link']}, but `launch` takes kernels of Python alone")
    # "-no-cache": with a driver, nvJitLink caches its results, and a cached result comes without a log.
    options = (f"-arch=sm_{cc[0]}{cc[1]}", "-lto", "-verbose", "-no-cache", *options)
    if kernel.targetoptions.get("max_registers"):
        options += (f"-maxrregcount={kernel.targetoptions['max_registers']}",)
    if kernel.targetoptions.get("lineinfo"):
        options += ("-lineinfo",)
    with _named_if_missing():
        sources = _intermediate_codes(kernel, kinds, cc)
        try:
            linker = nvjitlink.create(len(options), options)
        except nvjitlink.nvJitLinkError as error:  # a GPU newer than this nvJitLink
            raise RuntimeError(f"nvJitLink could not make {name} for {options[0]}: {error}") from error
    try:
        for source in sources:
            nvjitlink.add_data(linker, nvjitlink.InputType.LTOIR, source, len(source), name)
        nvjitlink.complete(linker)
        result = bytearray(size(linker))
        read(linker, result)
        return bytes(result), _text(linker, nvjitlink.get_info_log_size, nvjitlink.get_info_log)
    except nvjitlink.nvJitLinkError as error:
        log = _text(linker, nvjitlink.get_error_log_size, nvjitlink.get_error_log)
        raise RuntimeError(f"nvJitLink could not make {name} for {options[0]}: {log}") from error
    finally:
        nvjitlink.destroy(linker)


def _text(linker: Any, size: Any, read: Any) -> str:
    """Return one of nvJitLink's logs as a string."""
    text = bytearray(size(linker))
    read(linker, text)
    return text.rstrip(b"\0").decode()


def _intermediate_codes(kernel: Any, kinds: tuple, cc: tuple[int, int]) -> list[bytes]:
    """Return the LTO-IR of the kernel and of the C++ helpers that Numba adds, for example for float16 arithmetic."""
    options = {name: kernel.targetoptions.get(name) for name in ("launch_bounds", "opt")}
    options |= {name: bool(kernel.targetoptions.get(name)) for name in ("fastmath", "lineinfo")}
    signature = tuple(map(numba_type, kinds))
    with compiling(cc), short_entries(kinds, lengths_of(kernel, kinds)):
        codes, _ = cuda.compile_all(
            kernel.py_func, signature, cc=cc, output="ltoir", device=False, abi="numba", **options
        )
    return [code if isinstance(code, bytes) else bytes(code.code) for code in codes]
