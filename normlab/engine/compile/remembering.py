"""Let Numba remember what it works out again and again, which takes a quarter of the time of a compilation.

Type inference repeats until nothing changes, and each time it resolves every call anew, although a kernel's functions
call the same operators with the same types. Numba reads each option of a function through a property of its own. It
computes nine times where a function's variables are alive, although few passes ask. To find the variables in an
instruction, it tests the type of each of its parts three times.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from numba.core.types import functions

try:
    from numba.cuda.core import ir, postproc, targetconfig
except ImportError:  # numba's own, older numba.cuda
    from numba.core import ir, postproc, targetconfig

BaseFunction: Any = functions.BaseFunction
TargetConfig: Any = targetconfig.TargetConfig
PostProcessor: Any = postproc.PostProcessor
Instruction: Any = getattr(ir, "Inst", None)
_resolved: Any = getattr(BaseFunction, "get_call_type", None)
_all_values: Any = getattr(TargetConfig, "values", None)
_process: Any = getattr(PostProcessor, "run", None)
_all_variables: Any = getattr(Instruction, "_rec_list_vars", None)
_PLAIN = frozenset((str, int, bool, type(None), ir.Loc))  # types of most parts of an instruction, and of no variable
_calls: dict[tuple, tuple] = {}  # ids of a function's type and of the context, and the types → both, and the signature


@contextmanager
def remembering() -> Iterator[None]:
    """Let Numba remember what calls and options it has met, in a `with` block that one thread runs at a time.

    A newer Numba may have other names. It then works out again what would be remembered under these.
    """
    patches = (
        (BaseFunction, "get_call_type", _signature),
        (TargetConfig, "values", _values),
        (PostProcessor, "run", _processed),
        (Instruction, "_rec_list_vars", _variables),
    )
    before = [(owner, name, getattr(owner, name), patch) for owner, name, patch in patches if hasattr(owner, name)]
    for owner, name, _, patch in before:
        setattr(owner, name, patch)
    try:
        yield
    finally:
        for owner, name, own, _ in before:
            setattr(owner, name, own)


def _signature(function: Any, context: Any, args: tuple, kws: dict[str, Any]) -> Any:
    """Return the signature of a call of a function of Numba's, as `BaseFunction.get_call_type` does."""
    key = id(function), id(context), args, tuple(kws.items())
    if key not in _calls:
        # What has an id here is kept, so that no other object gets it. An error is not kept: the next call raises it.
        _calls[key] = function, context, _resolved(function, context, args, kws)
    return _calls[key][-1]


@cache
def _defaults(kind: type) -> dict[str, Any]:
    return {name: option.default for name, option in kind.options.items()}  # type: ignore[attr-defined]


def _values(options: Any) -> dict[str, Any]:
    """Return the values of all options, as `TargetConfig.values` does."""
    chosen = getattr(options, "_values", None)
    return _all_values(options) if chosen is None else _defaults(options.__class__) | chosen


def _processed(processor: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
    """Put a function's blocks in order after a pass, as `PostProcessor.run` does.

    Only generators need what `run` finds at once; other functions' variables are looked at when a pass asks.
    """
    code = processor.func_ir
    if code.is_generator or not hasattr(postproc, "VariableLifetime"):  # the latter: a newer Numba
        return _process(processor, emit_dels, extend_lifetimes)
    code.blocks = postproc.transforms.canonicalize_cfg(code.blocks)
    code.variable_lifetime = postproc.VariableLifetime(code.blocks)
    code.generator_info = None
    if emit_dels:
        processor._insert_var_dels(extend_lifetimes=extend_lifetimes)


def _variables(instruction: Any, part: Any) -> list:
    """Return the variables in a part of an instruction, as `Inst._rec_list_vars` does."""
    if type(part) is not dict:
        return _all_variables(instruction, part)
    found = []
    for one in part.values():
        if type(one) is ir.Var:
            found.append(one)
        elif type(one) not in _PLAIN:
            found += _all_variables(instruction, one)
    return found
