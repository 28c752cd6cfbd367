"""Call what the compiler calls for a function under `@overload`.

Such a function is often a stub without a body of its own: Numba compiles another function for it, which depends on the
types of the arguments. With `check=True` the compiler names that function. Without, a stub that returns None is an
error.
"""

import sys
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

from normlab.sim.language.errors import SimulationError
from normlab.sim.language.variables import Types

REGISTRIES = ("numba.core.typing.templates", "numba.cuda.typing.templates")


class Overloads:
    """The functions that one launch calls in place of others."""

    def __init__(self, types: Types | None):
        """Read what the compiler says of each function that calls others."""
        # By identity; the stub is kept, so that its id stays its own.
        self._chosen: dict[int, tuple[FunctionType, set[FunctionType]]] = {}
        for told in (types or {}).values():
            for stub, chosen in told.overloads:
                self._chosen.setdefault(id(stub), (stub, set()))[1].add(chosen)

    def chosen(self, function: FunctionType) -> FunctionType | None:
        """Return what the compiler calls for `function`, None if that is unknown or depends on the place."""
        # Numba compiles a function for each list of types, and a call here does not tell which it is.
        _, functions = self._chosen.get(id(function), (None, set()))
        return next(iter(functions)) if len(functions) == 1 else None

    def guarded(self, function: FunctionType) -> Callable[..., Any]:
        """Return a function under `@overload` with an error where it returns None, any other function as it is."""
        if not _is_overloaded(function):
            return function
        why = (
            "is called with several types, and Numba takes another function for each"
            if id(function) in self._chosen
            else "returns None here; simulate(..., check=True) calls what Numba compiles for it"
        )

        def call(*arguments: Any, **named: Any) -> Any:
            # A stub may have a body that works. None, stored into an array of floats, would be NaN.
            result = function(*arguments, **named)
            if result is None:
                raise SimulationError(f"{function.__name__!r} is a stub under @overload and {why}")
            return result

        return call


def _is_overloaded(function: FunctionType) -> bool:
    """Return whether Numba, if it is imported, has an overload of a program's function."""
    # Numba is not imported for this: a program that has not imported it has no overloads.
    registries = (getattr(sys.modules.get(name), "builtin_registry", None) for name in REGISTRIES)
    return any(id(function) in _originals(one, len(one.globals)) for one in registries if one is not None)


@cache
def _originals(registry: Any, count: int) -> frozenset[int]:
    """Return the identities of what a registry, which keeps it alive, types: `count` functions and modules."""
    # `count` is part of the cache's key, because the registry grows with each module that declares overloads.
    return frozenset(id(original) for original, _ in registry.globals[:count])
