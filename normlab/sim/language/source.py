"""Find the source lines of a kernel's instructions, in files and in notebook cells."""

import ast
import linecache
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice
from types import CodeType
from typing import Any

Position = tuple[int | None, int | None, int | None, int | None]
"""First line, last line, first byte of the first line, byte after the last one of the last line."""
NOWHERE: Position = (None, None, None, None)
NO_SOURCE = "(source not available)"
parsing = threading.RLock()
"""Held while a syntax tree is made or compiled: in two threads at once, CPython 3.11 raises SystemError."""


def source_of(file: str) -> str:
    """Return the text of a file or a notebook cell; "" if it cannot be read."""
    # Through linecache and not the file system: IPython puts its cells there under names that are no files.
    return "".join(linecache.getlines(file))


def tree_of(source: str) -> ast.Module:
    """Return the syntax tree of a file's text; an empty one if it is no Python, as a notebook cell with magics."""
    try:
        with parsing:
            return ast.parse(source)
    except SyntaxError:
        return ast.Module([], [])


def first_line(node: Any) -> int:
    """Return a statement's first line: a function's code begins at its first decorator."""
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])


def definitions_in(tree: ast.AST) -> dict[tuple[str, int], ast.FunctionDef]:
    """Return the functions that a syntax tree defines, by name and first line, as their code has them."""
    # A name alone would not do: a file may define a function twice, under `if` and `else`.
    return {(node.name, first_line(node)): node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def functions_in(code: CodeType) -> Iterator[CodeType]:
    """Walk through the code objects inside `code`."""
    # The code of a function inside another one is a constant of the outer one's.
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from functions_in(constant)


@dataclass(frozen=True)
class Line:
    """A line of source."""

    file: str
    number: int

    @property
    def text(self) -> str:
        """Return the line, without indentation."""
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        """Return "file:number: text"; for a line in a notebook, with the cell's name in place of the file."""
        return f"{notebook_cell(self.file) or self.file}:{self.number}: {self.text or NO_SOURCE}"


def notebook_cell(file: str) -> str | None:
    """Return the name of the notebook cell that IPython compiled as `file`, or None for a real file.

    IPython compiles each cell under the name of a temporary file that means nothing to a reader.
    """
    # IPython is there only in a notebook, so it is asked for without an import.
    session: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    try:
        kind, label = session.compile.format_code_name(file)
    except (AttributeError, TypeError):  # no IPython, or `file` is none of its cells
        return None
    return f"{kind} {label}"


def file_name(file: str) -> str:
    """Return the name by which a reader knows `file`: without its folders, or the notebook cell's name."""
    return notebook_cell(file) or file.rsplit("/", 1)[-1]


def position_of(code: CodeType, instruction: int) -> Position:
    """Return where the instruction at byte offset `instruction` (a frame's `f_lasti`) stands in the source."""
    # An instruction has two bytes, and co_positions() has one entry per instruction.
    return next(islice(code.co_positions(), instruction // 2, None), NOWHERE)


def line_of(code: CodeType, instruction: int) -> Line:
    """Return the source line of the instruction at byte offset `instruction` (a frame's `f_lasti`) of `code`."""
    # The file's name is not from the cache below, which takes equal code objects of two files for one.
    return Line(code.co_filename, _number(code, instruction))


@cache
def _number(code: CodeType, instruction: int) -> int:
    """Return the number of the instruction's line; the first line of `code` for an instruction without one.

    The cache takes two code objects for one if they compare equal. They may come from two files, but then they have
    equal line numbers, too.
    """
    return position_of(code, instruction)[0] or code.co_firstlineno


def name_given(code: CodeType, instruction: int, otherwise: str) -> str:
    """Return the name to which the source assigns the result of a call, an instruction of `code`, if to any."""
    return _name_given(code, instruction, otherwise, code.co_filename)


@cache
def _name_given(code: CodeType, instruction: int, otherwise: str, file: str) -> str:
    """Return `name_given` of code in a file. Code objects compare equal also if only one of their files can be read."""
    _, line, _, byte = position_of(code, instruction)
    return name_at(file, line, byte, otherwise)


def name_at(file: str, line: int | None, byte: int | None, otherwise: str) -> str:
    """Return the name to which a file assigns the result of the call that ends there, if to any."""
    return _names_of_calls(source_of(file)).get((line, byte), otherwise)


@lru_cache(maxsize=64)
def _names_of_calls(source: str) -> dict[tuple[int | None, int | None], str]:
    """Return to which name a text assigns the result of a call, or of an expression with it, by the call's end."""
    names: dict[tuple[int | None, int | None], str] = {}
    for node in ast.walk(tree_of(source)):
        match node:
            case ast.Assign([target, *_], value) | ast.AnnAssign(target, _, ast.expr() as value):
                _name_calls(names, target, value)
            case ast.NamedExpr(target, value):
                _name_calls(names, target, value)
    return names


def _name_calls(names: dict[tuple[int | None, int | None], str], target: ast.expr, value: ast.expr) -> None:
    """Note the calls in a value that is assigned to a name, or of a tuple's parts, each assigned to its own."""
    match target, value:
        case ((ast.Tuple(targets) | ast.List(targets)), (ast.Tuple(values) | ast.List(values))):
            for one, other in zip(targets, values, strict=False):
                if isinstance(one, ast.Starred):  # it takes some of the values, and those after it have other places
                    break
                _name_calls(names, one, other)
        case ast.Name(name), _:
            calls = [node for node in ast.walk(value) if isinstance(node, ast.Call)]
            # By where a call ends, because `f(x)` and `f(x)(y)` begin at the same place.
            names.update({(call.end_lineno, call.end_col_offset): name for call in calls})
