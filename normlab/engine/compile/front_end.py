"""Ask Numba whether it compiles a kernel: names, types and unsupported Python, without a GPU and without NVVM."""

import re
from types import SimpleNamespace
from typing import Any, NamedTuple

from numba import types
from numba.cuda import dispatcher as _dispatcher
from numba.cuda.compiler import compile_cuda

from normlab.engine.compile.offline import _COMPILING
from normlab.engine.compile.signatures import kinds_of_types, numba_type


class Refusal(NamedTuple):
    """Why Numba refuses a kernel: a sentence, and the line of the kernel's file, None if Numba names none."""

    text: str
    line: int | None


def refusal(kernel: Any, argument_types: tuple, cc: tuple[int, int] = (9, 0)) -> Refusal | None:
    """Return why Numba does not compile a kernel for arguments of these types, or None if it does.

    Numba infers the types of all variables and lowers the kernel to LLVM, which finds what the GPU's compiler refuses.
    It takes 0.1 to 1.2 s.

    Args:
        kernel: a function under `cuda.jit`.
        argument_types: as `compile_ptx` takes them.
        cc: compute capability.
    """
    signature = tuple(map(numba_type, kinds_of_types(argument_types)))
    with _COMPILING:
        real = _dispatcher.get_current_device  # as in `offline`: there may be no GPU, so we answer cc
        _dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=cc)
        try:
            compile_cuda(kernel.py_func, types.void, signature, cc=cc)
        except Exception as error:  # Numba's errors, and Python's own that its passes raise on code unknown to them
            return _told(error, kernel.py_func.__code__.co_filename)
        finally:
            _dispatcher.get_current_device = real
    return None


def _told(error: Exception, file: str) -> Refusal:
    """Return a sentence for Numba's message, and the innermost line of `file` at which Numba stopped."""
    message = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # Numba colours its messages
    unknown = re.search(r"No implementation of function .*?>>> ([^\n]+)", message, re.DOTALL)
    if "insert_unresolved_ref" in message:
        text = "a function calls itself, and a kernel's compiler knows no recursion"
    elif "str(" in message or "unicode_type" in message or "f-string" in message:
        text = "text is formatted or put together, which a kernel cannot do: print takes text and numbers one by one"
    elif "NRT required" in message:
        text = "this would make a new array while the kernel runs: a kernel computes element by element"
    elif unknown and re.match(r"getitem\((Uni)?Tuple\(", unknown[1]):
        text = (
            "a tuple's elements are chosen by constants, and its length is fixed: a local array has elements by index"
        )
    elif unknown:
        text = f"there is no {unknown[1].strip()} on a GPU"
    else:
        text = next((line for line in message.splitlines() if line.strip() and not line.startswith("Failed in")), "")
        text = re.sub(r"\.? ?Raised from .*|, defined at .*", "", text.strip(" -"))
        text = f"{type(error).__name__}: {text.removesuffix('.')}"
    return Refusal(text, _line(error, message, file))


def _line(error: Exception, message: str, file: str) -> int | None:
    """Return the line of `file` that Numba was working on: the message names it, or the passes' frames do.

    A kernel's passes begin those of a function that it calls, so the innermost frame knows the line in that function.
    """
    found = [int(one) for one in re.findall(rf"{re.escape(file)} \((\d+)\)", message)][:1]
    trace = None if found else error.__traceback__
    while trace is not None:
        for name in ("inst", "expr", "constraint", "self"):  # what a pass holds: an instruction of the IR, or itself
            at = getattr(trace.tb_frame.f_locals.get(name), "loc", None)
            if at is not None and getattr(at, "filename", None) == file and at.line is not None:
                found.append(at.line)
                break
        trace = trace.tb_next
    return found[-1] if found else None
