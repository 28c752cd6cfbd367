"""From a Python function to PTX and to a cubin, with no GPU and no driver.

One path for all: what `launch` runs, what the disk keeps (`cubins`) and what tests hold to account (`compile_ptx`,
`resources`) is Numba's intermediate code, which nvJitLink optimises and assembles. Numba's own launcher goes this way,
too. PTX given to nvJitLink takes more registers (88 where this way takes 59): it is assembled for later linking.
"""

import re
from threading import RLock
from types import SimpleNamespace
from typing import Any, NamedTuple

from numba import cuda
from numba.cuda import dispatcher as _dispatcher

from normlab.engine.compile.signatures import kinds_of_types, numba_type

_COMPILING = RLock()


class Cubin(NamedTuple):
    """A kernel's machine code: its name in there, the image, and what the assembler said of it."""

    entry: str
    image: bytes
    log: str


def compile_ptx(kernel: Any, types: tuple, cc: tuple[int, int] = (9, 0)) -> str:
    """A kernel's PTX for a compute capability: what its cubin is assembled from.

    Args:
        kernel: a function under `cuda.jit`; its `launch_bounds`, `max_registers`, `fastmath`, `lineinfo`, `opt` count.
        types: one entry an argument: None, a NumPy dtype for a scalar, or (dtype, ndim) for a C-contiguous array.
        cc: compute capability.

    Raises:
        ValueError: a kernel with `debug` or with code of other languages (`link`).
        RuntimeError: nvJitLink refuses the code; the message says why.
    """
    from cuda.bindings import nvjitlink

    ptx, _ = _link(kernel, kinds_of_types(types), cc, nvjitlink.get_linked_ptx_size, nvjitlink.get_linked_ptx, "-ptx")
    return ptx.rstrip(b"\0").decode()


def compile_cubin(kernel: Any, kinds: tuple, cc: tuple[int, int]) -> Cubin:
    """A kernel's machine code; `kinds` are those of its arguments, as `signatures.kind_of` finds them.

    Raises:
        ValueError, RuntimeError: as `compile_ptx`.
    """
    from cuda.bindings import nvjitlink

    image, log = _link(kernel, kinds, cc, nvjitlink.get_linked_cubin_size, nvjitlink.get_linked_cubin)
    found = re.search("Compiling entry function '(.+?)'", log)
    if found is None:
        raise RuntimeError(f"nvJitLink's log of {kernel.py_func.__name__} does not name its entry: {log!r}")
    return Cubin(found[1], image, log)


def _link(kernel: Any, kinds: tuple, cc: tuple[int, int], size: Any, read: Any, *options: str) -> tuple[bytes, str]:
    """What nvJitLink makes of a kernel, got by `size` and `read`, and its log."""
    from cuda.bindings import nvjitlink

    name = kernel.py_func.__name__
    if kernel.targetoptions.get("debug"):
        raise ValueError(f"{name} has debug=True, but is optimised when it is linked; the simulator can debug it")
    if kernel.targetoptions.get("link"):
        raise ValueError(f"{name} has link={kernel.targetoptions['link']}, but `launch` takes kernels of Python alone")
    # Where there is a driver, nvJitLink keeps its results in the driver's cache, and those come without a log.
    options = (f"-arch=sm_{cc[0]}{cc[1]}", "-lto", "-verbose", "-no-cache", *options)
    if kernel.targetoptions.get("max_registers"):
        options += (f"-maxrregcount={kernel.targetoptions['max_registers']}",)
    if kernel.targetoptions.get("lineinfo"):
        options += ("-lineinfo",)
    sources = _intermediate_codes(kernel, kinds, cc)
    linker = nvjitlink.create(len(options), options)
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
    text = bytearray(size(linker))
    read(linker, text)
    return text.rstrip(b"\0").decode()


def _intermediate_codes(kernel: Any, kinds: tuple, cc: tuple[int, int]) -> list[bytes]:
    """LTO-IR of the kernel, and of the C++ helpers of Numba that it calls: float16 arithmetic has some."""
    options = {name: kernel.targetoptions.get(name) for name in ("launch_bounds", "opt")}
    options |= {name: bool(kernel.targetoptions.get(name)) for name in ("fastmath", "lineinfo")}
    signature = tuple(map(numba_type, kinds))
    with _COMPILING:
        real = _dispatcher.get_current_device
        # Numba asks the current GPU which architecture a device function is for; here there may be none.
        _dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=cc)
        try:
            codes, _ = cuda.compile_all(
                kernel.py_func, signature, cc=cc, output="ltoir", device=False, abi="numba", **options
            )
        finally:
            _dispatcher.get_current_device = real
    return [code if isinstance(code, bytes) else bytes(code.code) for code in codes]
