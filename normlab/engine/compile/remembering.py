"""Let Numba remember what it works out again and again, which takes a fifth of the time of a compilation.

Type inference goes around until nothing changes, and each time it resolves every call anew; a kernel's functions call
the same operators with the same types. Each option of a function is read through a property of its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from numba.core.types import functions

try:
    from numba.cuda.core import targetconfig
except ImportError:  # numba's own, older numba.cuda
    from numba.core import targetconfig

BaseFunction: Any = functions.BaseFunction
TargetConfig: Any = targetconfig.TargetConfig
_resolved: Any = getattr(BaseFunction, "get_call_type", None)
_all_values: Any = getattr(TargetConfig, "values", None)
_calls: dict[tuple, tuple] = {}  # ids of a function's type and of the context, and the types → both, and the signature


@contextmanager
def remembering() -> Iterator[None]:
    """Let Numba remember what calls and options it has met, in a `with` block that one thread runs at a time.

    A newer Numba may have other names. It then works out again what would be remembered under these.
    """
    patches = (BaseFunction, "get_call_type", _signature), (TargetConfig, "values", _values)
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
