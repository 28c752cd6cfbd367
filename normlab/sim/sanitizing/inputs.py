"""Find a kernel's inputs before the launch: the arrays that its source only reads.

No access can race at an element that no thread writes, so the sanitizer checks only the indices of an input. An
argument is an input only if every mention of the parameter in the kernel is a load of one element, its extent, or a
comparison with None. It must also share no memory with an argument that is no input. Without source, and for records
and arrays in tuples, an argument is no input.
"""

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import CodeType
from typing import Any

import numpy as np

from normlab.sim.language.source import definitions_in, functions_in, parsing, source_of

# Attributes that give no way to the elements. Others do: `x.T` and `x.real` are views, which may be stored through.
EXTENT = {"dtype", "itemsize", "ndim", "shape", "size", "strides"}


def inputs_of(code: CodeType, arguments: list[Any], empty: list[np.ndarray]) -> set[str]:
    """Return the parameters of a kernel whose arrays no thread writes and whose elements all have contents.

    arguments: in order, as the kernel sees them. empty: arrays whose elements count as never written.
    """
    only_read = _only_read(code)
    # `empty` among the others, because an InputArray does not look whether an element was ever written.
    inputs, others = {}, [*empty]
    for name, argument in zip(code.co_varnames, arguments, strict=False):
        plain = isinstance(argument, np.ndarray) and not argument.dtype.names
        # Fewer indices than axes make a view, which may be stored through another name: then it is no input.
        if plain and name in only_read and only_read[name] <= {argument.ndim}:
            inputs[name] = argument
        else:
            others.extend(arrays_in([argument]))
    # The kernel may store into an input's memory through another argument. `may_share_memory` compares bounds alone:
    # two interleaved views count as shared, and lose nothing but time.
    return {name for name, array in inputs.items() if not any(np.may_share_memory(array, other) for other in others)}


def arrays_in(arguments: Iterable[Any]) -> Iterator[np.ndarray]:
    """Walk through the arrays among a launch's arguments, those in tuples too."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from arrays_in(argument)
        elif isinstance(argument, np.ndarray):
            yield argument


@lru_cache(maxsize=256)
def _only_read(code: CodeType) -> dict[str, set[int]]:
    """Return each parameter that the function `code` only reads elements of → the numbers of indices it is given."""
    function = _definition(code)
    if function is None:
        return {}
    harmless: set[ast.Name] = set()  # nodes, not names: one harmful mention spoils the parameter
    indices: dict[str, set[int]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and isinstance(node.ctx, ast.Load):
            harmless.add(node.value)
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            # 0 indices is never the number of axes, so a view rules the parameter out.
            makes_view = any(_is_view(part) for part in parts)
            indices.setdefault(node.value.id, set()).add(0 if makes_view else len(parts))
        elif isinstance(node, ast.Attribute) and node.attr in EXTENT and isinstance(node.value, ast.Name):
            harmless.add(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
            harmless.update(one for one in node.args if isinstance(one, ast.Name))
        elif isinstance(node, ast.Compare) and all(isinstance(one, (ast.Is, ast.IsNot)) for one in node.ops):
            harmless.update(one for one in (node.left, *node.comparators) if isinstance(one, ast.Name))
    # Any other mention, such as an argument of a function or the right side of `y = x`, may lead to a store.
    spoilt = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and node not in harmless}
    # A variable that an inner function closes over may be stored through there. An array that a `while` waits for must
    # count its repeated reads (`Elements.again`), which no InputArray does: the launch would hang without a report.
    spoilt.update(code.co_cellvars, *(_awaited(node) for node in ast.walk(function) if isinstance(node, ast.While)))
    return {name: indices.get(name, set()) for name in code.co_varnames[: code.co_argcount] if name not in spoilt}


def _is_view(part: ast.expr) -> bool:
    """Return whether an index is plainly no integer: a slice, `...`, None, or several unpacked."""
    constant = part.value if isinstance(part, ast.Constant) else 0
    return isinstance(part, (ast.Slice, ast.Starred)) or not isinstance(constant, int)


def _awaited(loop: ast.While) -> set[str]:
    """Return the arrays whose elements may decide how long a loop goes on.

    These are the arrays in its condition, or in the whole loop if the condition is a constant, and the arrays of which
    the loop assigns elements to a variable of the condition.
    """
    # `while True` ends by a break: any element that the loop reads may decide it.
    deciding: list[ast.AST] = [loop if isinstance(loop.test, ast.Constant) else loop.test]
    names = {node.id for node in ast.walk(loop.test) if isinstance(node, ast.Name)}
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id in names for one in node.targets):
            deciding.append(node.value)
    return {
        node.value.id
        for part in deciding
        for node in ast.walk(part)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)
    }


def _definition(code: CodeType) -> ast.AST | None:
    """Return the syntax tree of the function `code`, or None if its source is missing or has changed since."""
    try:
        with parsing:
            return _definitions(code.co_filename, source_of(code.co_filename)).get(code)
    except (SyntaxError, ValueError):  # a notebook cell with magics, for one
        return None


@lru_cache(maxsize=64)
def _definitions(filename: str, source: str) -> dict[CodeType, ast.AST]:
    """Compile a file; return each function's code object → its syntax tree."""
    # A kernel finds its tree by a code object that equals its own: after an edit of its lines there is none.
    tree = ast.parse(source)
    trees, codes = definitions_in(tree), functions_in(compile(tree, filename, "exec", dont_inherit=True))
    places = ((code, (code.co_name, code.co_firstlineno)) for code in codes)
    return {code: trees[place] for code, place in places if place in trees}
