"""Read the types of a kernel's variables from Numba's result, for the simulator (`sim/language/variables.py`)."""

import re
from collections.abc import Iterator
from dataclasses import replace
from types import FunctionType
from typing import Any

from normlab.engine.compile.compiler import types
from normlab.sim.language.variables import FunctionTypes, Types, place_of

try:
    from numba.cuda.core import ir
except ImportError:  # numba's own, older numba.cuda
    from numba.core import ir


WORDS = {"int32", "int64"}  # a variable of both may stay the simulator's int64: Numba computes in 64 bits, too


def types_of(result: Any) -> Types:
    """Return what the simulator must know of a compiled kernel and of the device functions that it calls.

    A device function that one kernel calls with several types is left out where they differ.
    """
    found: Types = {}
    conflicting = set()
    for place, told in _told(result, in_kernel=True, done=set()):
        if found.setdefault(place, told) != told:
            conflicting.add(place)
    empty = FunctionTypes()
    return {place: told for place, told in found.items() if told != empty and place not in conflicting}


def _told(result: Any, in_kernel: bool, done: set[int]) -> Iterator[tuple[Any, FunctionTypes]]:
    """Yield the types of a compiled function, and of those that it calls."""
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
            if isinstance(callee, types.Function) and _is_programs(callee.typing_key):
                dispatcher, kinds = _overload(callee, kinds)
                if dispatcher is not None:
                    overloads.add((callee.typing_key, dispatcher.py_func))
            yield from _told(getattr(dispatcher, "overloads", {}).get(kinds), in_kernel=False, done=done)
    told = _Function(annotation, result.signature).types(in_kernel)
    yield place_of(annotation.func_id.func.__code__), replace(told, overloads=frozenset(overloads))


def _is_programs(function: Any) -> bool:
    """Return whether `function` is a Python function of a program; Numba's and NumPy's the simulator knows itself."""
    if not isinstance(function, FunctionType):
        return False
    package, *inside = function.__module__.split(".")
    return package not in ("numba", "numpy") or "tests" in inside  # Numba's own tests are programs, too


def _overload(callee: Any, kinds: tuple | None) -> tuple[Any, tuple | None]:
    """Return the dispatcher that Numba has made for a function under `@overload`, and the types it is called with."""
    for template in callee.templates:
        for key, made in getattr(template, "_impl_cache", {}).items():
            if kinds in key and made is not None and hasattr(made[0], "py_func"):
                return made
    return None, None


def _instructions(annotation: Any) -> Iterator[Any]:
    for block in annotation.blocks.values():
        yield from block.body


def _base(name: str) -> str:
    """Return a variable's name in the source: Numba numbers its assignments, as s, s.1, s.2."""
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
        """Return what the simulator must know."""
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
        return FunctionTypes(
            frozenset(loads),
            frozenset(choices) if any(differ for _, _, differ in choices) else frozenset(),
            result if not in_kernel and len(results) > 1 and _is_number(self._signature.return_type) else None,
            () if in_kernel else self._integers(),
            any(isinstance(constant, complex) for constant in code.co_consts),
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
