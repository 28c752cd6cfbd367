"""Ask Numba whether it compiles a kernel: names, types and unsupported Python, without a GPU and without NVVM."""

import ast
import linecache
import os
import re
import sysconfig
from pathlib import Path
from traceback import walk_tb
from types import FunctionType
from typing import Any, NamedTuple

from numba import types
from numba.cuda.compiler import compile_cuda

from normlab.engine.compile.offline import compiling
from normlab.engine.compile.sentences import Site, plain, sentence
from normlab.engine.compile.signatures import kinds_of_types, numba_type

# Folders of libraries: a place in them is not where a user's kernel is wrong.
LIBRARIES = (Path(__file__).parents[2], *{Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib")})


class Refusal(NamedTuple):
    """Why Numba refuses a kernel: a sentence, the line and its file, None if Numba names none, and Numba's words."""

    text: str
    line: int | None
    file: str | None = None
    words: str = ""


def refusal(kernel: Any, argument_types: tuple) -> Refusal | None:
    """Return why Numba does not compile a kernel for arguments of these types, or None if it does.

    Numba infers the types of all variables and lowers the kernel to LLVM, because some code is refused only then. Both
    take 0.1 to 1.2 s.

    Args:
        kernel: a function under `cuda.jit`.
        argument_types: as `compile_ptx` takes them.
    """
    asked = compiled(kernel.py_func, tuple(map(numba_type, kinds_of_types(argument_types))))
    return asked if isinstance(asked, Refusal) else None


def compiled(function: FunctionType, signature: tuple, cc: tuple[int, int] = (9, 0), **options: bool) -> Any:
    """Return Numba's result for a kernel's function and its arguments' Numba types, or a `Refusal`.

    `options`: debug, lineinfo and fastmath, as `cuda.jit` takes them.
    """
    with compiling(cc):
        try:
            return compile_cuda(function, types.void, signature, cc=cc, **options)
        except Exception as error:  # Numba's errors, and Python's own that its passes raise on code unknown to them
            return _refused(error, function)


def _refused(error: Exception, function: FunctionType) -> Refusal:
    """Return a sentence for Numba's error, and the place at which Numba stopped."""
    code = function.__code__
    file, line = _place(error, code.co_filename)
    # A lambda has no `def`, and the one around it is not what Numba compiles.
    tree = None if code.co_name == "<lambda>" else _function_at(file, line or code.co_firstlineno)
    if tree is not None and line is not None and line <= tree.lineno:
        line = None  # the function as a whole
    text, line = sentence(error, Site(tree, line))
    if line is None:
        line = code.co_firstlineno  # the error names none
    elif found := re.search(r"Cannot unify .* for '([A-Za-z_]\w*)[.\w]*'", plain(error)):
        line = _last_assignment(tree, found[1], line)  # Numba names the line at which two branches join
    return Refusal(text, line, file, plain(error))


def _place(error: Exception, kernel_file: str) -> tuple[str, int | None]:
    """Return the file and line that Numba was working on: its message names them, or the frames of its passes do.

    Of nested calls it is the innermost outside of libraries, such as Numba and normlab itself.
    """
    message = plain(error)
    found = []
    for match in re.finditer(r'File "([^"\n]+)", line (\d+)|(?:at|location:|from) ([^\s(][^\n(]*?) \((\d+)\)', message):
        found.append((_absolute(match[1] or match[3]), int(match[2] or match[4])))
    for frame in reversed([frame for frame, _ in walk_tb(error.__traceback__)]):
        for name in ("inst", "expr", "constraint", "self"):  # what a pass holds: an instruction of the IR, or itself
            at: Any = getattr(frame.f_locals.get(name), "loc", None)
            if getattr(at, "line", None) is not None and getattr(at, "filename", None):
                found.append((_absolute(at.filename), at.line))
                break
    for file, line in found:
        if file == _absolute(kernel_file) or not any(map(Path(file).is_relative_to, LIBRARIES)):
            return (kernel_file if file == _absolute(kernel_file) else file), line or None
    return kernel_file, None


def _absolute(file: str) -> str:
    """Return a file's absolute path; an IPython cell, such as <ipython-input-1-…>, has a name instead."""
    return file if file.startswith("<") else os.path.abspath(file)


def _function_at(file: str, line: int | None) -> ast.FunctionDef | None:
    """Return the syntax tree of the innermost function of `file` around `line`, None without readable source."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # a notebook cell with magics, for one
        return None
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and line is not None
        and min([node.lineno, *(one.lineno for one in node.decorator_list)]) <= line <= (node.end_lineno or node.lineno)
    ]
    return max(around, key=lambda node: node.lineno, default=None)


def _last_assignment(function: ast.AST | None, name: str, line: int) -> int:
    """Return the last line that assigns to `name`, up to `line` or the end of a loop that begins there; else `line`."""
    nodes = list(ast.walk(function)) if function is not None else []
    loops = [node for node in nodes if isinstance(node, (ast.For, ast.While)) and node.lineno == line]
    last = max((node.end_lineno or line for node in loops), default=line)
    lines = [
        node.lineno
        for node in nodes
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name and node.lineno <= last
    ]
    return max(lines, default=line)
