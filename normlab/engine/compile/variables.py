"""Read the types of a kernel's variables from Numba's result, for the simulator (`sim/language/variables.py`)."""

import re
from collections.abc import Iterator
from dataclasses import replace
from types import CellType, FunctionType
from typing import Any

from normlab.engine.compile.compiler import types
from normlab.sim.language.variables import FunctionTypes, Types, place_of

try:
    from numba.cuda.core import ir
except ImportError:  # numba's own, older numba.cuda
    from numba.core import ir


WORDS = {"int32", "int64"}  # a variable of both may stay the simulator's int64: Numba computes in 64 bits, too


def types_of(result: Any) -> Types:
    """Return the types that the simulator needs, of a compiled kernel and of the device functions that it calls.

    The result leaves out a device function that the kernel calls with several types, if its variables' types differ.
    """
    found: Types = {}
    conflicting = set()
    for place, told in _told(result, in_kernel=True, done=set()):
        if found.setdefault(place, told) != told:
            conflicting.add(place)
    empty = FunctionTypes()
    return {place: told for place, told in found.items() if told != empty and place not in conflicting}


def _told(result: Any, in_kernel: bool, done: set[int]) -> Iterator[tuple[Any, FunctionTypes]]:
    """Yield the place and the types of a compiled function, and those of the device functions that it calls.

    result: Numba's, None of a function that it has not compiled. done: ids of the results that are yielded already.
    """
    if id(result) in done or getattr(result, "type_annotation", None) is None:
        return
    done.add(id(result))
    annotation = result.type_annotation
    overloads = set()
    for instruction in _instructions(annotation):
        call = getattr(instruction, "value", None)
        if isinstance(call, ir.Expr) and call.op == "call":
            callee, signature = annotation.typemap.get(call.func.name), annotation.calltypes.get(call)
            dispatcher, kinds = getattr(callee, "dispatcher", None), getattr(signature, "args", None)
            # a function under `@overload`, which has no dispatcher of its own: Numba calls one of its implementations
            if isinstance(callee, types.Function) and isinstance(callee.typing_key, FunctionType):
                dispatcher, kinds = _overload(callee, kinds)
                if dispatcher is not None:
                    overloads.add((callee.typing_key, dispatcher.py_func))
            yield from _told(getattr(dispatcher, "overloads", {}).get(kinds), in_kernel=False, done=done)
    function = annotation.func_id.func
    overloads.update(_inlined(function, result.typing_context))
    told = _Function(annotation, result.signature).types(in_kernel)
    yield place_of(function.__code__), replace(told, overloads=frozenset(overloads))


def _inlined(function: FunctionType, context: Any) -> Iterator[tuple[FunctionType, FunctionType]]:
    """Yield the functions under `@overload(inline="always")` that a function names, each with Numba's implementations.

    The compiled function has no calls of them any more. Implementations that Numba chose in other kernels count, too.
    """
    cells = (cell.cell_contents for cell in function.__closure__ or () if cell != CellType())  # an empty one has none
    for named in (*(function.__globals__.get(name) for name in function.__code__.co_names), *cells):
        found = context._lookup_global(named) if isinstance(named, FunctionType) else None
        for template in getattr(found, "templates", ()):
            if hasattr(template, "_inline") and not template._inline.is_never_inline:
                made = (dispatcher for dispatcher, _ in template._impl_cache.values() if dispatcher is not None)
                yield from ((named, dispatcher.py_func) for dispatcher in made)


def _overload(callee: Any, kinds: tuple | None) -> tuple[Any, tuple | None]:
    """Return the dispatcher that Numba has made for a function under `@overload`, and the types it is called with."""
    caches = [getattr(template, "_impl_cache", {}) for template in callee.templates]
    made = [(key, found) for cache in caches for key, found in cache.items() if found and hasattr(found[0], "py_func")]
    exact = [found for key, found in made if kinds in key]
    if not exact and len(made) == 1:  # a call with keywords, whose types are in another order
        exact = [made[0][1]]
    return exact[0] if exact else (None, None)


def _instructions(annotation: Any) -> Iterator[Any]:
    for block in annotation.blocks.values():
        yield from block.body


def _base(name: str) -> str:
    """Return a variable's name in the source: Numba numbers its assignments, as s, s.1, s.2.

    The value of an `a if c else b` or `a or b` is a variable such as $phi40.1, whose own name has a dot.
    """
    if phi := re.match(r"\$phi\d+\.\d+", name):
        return phi[0]
    return name if name.startswith("$") else name.partition(".")[0]


class _Function:
    """One compiled function: its instructions, and the types of its variables."""

    def __init__(self, annotation: Any, signature: Any):
        """Read Numba's annotation; `signature`: of arguments and result."""
        self._annotation, self._signature = annotation, signature
        self._kinds = {name: str(types.unliteral(kind)) for name, kind in annotation.typemap.items()}
        several: dict[str, set[str]] = {}
        for name, kind in annotation.typemap.items():
            if _is_number(kind):
                several.setdefault(_base(name), set()).add(self._kinds[name])
        self._mixed = {name for name, kinds in several.items() if len(kinds) > 1 and not kinds <= WORDS}

    def types(self, in_kernel: bool) -> FunctionTypes:
        """Return the types that the simulator needs of this function."""
        loads, choices, results = set(), set(), set()
        for instruction in _instructions(self._annotation):
            if isinstance(instruction, ir.Del):
                continue
            line = instruction.loc.line
            if self._is_copy(instruction):
                if instruction.target.name.startswith("$phi"):
                    name = _base(instruction.target.name)
                    choices.add((line, self._kinds[instruction.target.name], name in self._mixed))
                continue
            for variable in instruction.list_vars():
                name = _base(variable.name)
                if name in self._mixed and not name.startswith("$") and variable is not self._target(instruction):
                    loads.add((line, name, self._kinds[variable.name]))
            value = getattr(instruction, "value", None)
            if isinstance(value, ir.Expr) and value.op == "cast":
                results.add(self._kinds[value.value.name])
        result = str(self._signature.return_type)
        code = self._annotation.func_id.func.__code__
        several = len(results) > 1 and _is_number(self._signature.return_type)
        return FunctionTypes(
            loads=frozenset(loads),
            choices=frozenset(choices) if any(differ for _, _, differ in choices) else frozenset(),
            # a kernel returns nothing, and its arguments are typed by the launch
            result=result if several and not in_kernel else None,
            integers=() if in_kernel else self._integers(),
            complexes=any(isinstance(constant, complex) for constant in code.co_consts),
        )

    def _is_copy(self, instruction: Any) -> bool:
        """Return True if an instruction only copies a variable to another version of it, as where two branches join."""
        value = getattr(instruction, "value", None)
        return (
            isinstance(instruction, ir.Assign)
            and isinstance(value, ir.Var)
            and _base(value.name) == _base(instruction.target.name)
        )

    @staticmethod
    def _target(instruction: Any) -> Any:
        return instruction.target if isinstance(instruction, ir.Assign) else None

    def _integers(self) -> tuple[str, ...]:
        """Return the integer parameters, if the function computes with an integer and a float at once."""
        for instruction in _instructions(self._annotation):
            value = getattr(instruction, "value", None)
            if isinstance(value, ir.Expr) and value.op in ("binop", "inplace_binop"):
                kinds = [self._annotation.typemap[operand.name] for operand in (value.lhs, value.rhs)]
                if any(isinstance(kind, types.Integer) for kind in kinds) and any(map(_is_inexact, kinds)):
                    names = self._annotation.func_id.arg_names
                    pairs = zip(names, self._signature.args, strict=False)
                    return tuple(name for name, kind in pairs if isinstance(kind, types.Integer))
        return ()


def _is_number(kind: Any) -> bool:
    return isinstance(kind, (types.Number, types.Boolean))


def _is_inexact(kind: Any) -> bool:
    return isinstance(kind, (types.Float, types.Complex))
