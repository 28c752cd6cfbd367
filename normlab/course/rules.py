"""Check a solution's source by the course's rules before any of it runs.

A kernel here is Python, so it could do things that no GPU can: call NumPy, sort lists, open files. The rules refuse
such a file with the line and the reason. They allow only imports and constants outside of functions, and only a
kernel's names inside, so a file cannot manipulate the process that runs it. `grading` then lets Numba's compiler refuse
other code that is no CUDA. `given` checks that the exercise's own lines stay.
"""

import ast
import math
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import NamedTuple

from normlab.course.given import differs, is_main, is_text, lacks, separate

BUILTINS = {
    *("range", "enumerate", "zip", "len", "min", "max", "abs"),
    *("divmod", "int", "float", "bool", "round", "print", "pow"),
}
ARRAY_ATTRIBUTES = {"shape", "size", "ndim", "dtype", "x", "y", "z", "w"}
# A student may try things out with NumPy, but a kernel may not use it.
IMPORTS = {"import math", "import numpy", "import numpy as np"}
# A solution may import these from normlab.engine: types of numbers, and loads and stores of neighbouring elements.
ENGINE = {"float32", "float64", "int32", "uint16", "uint32", "uint64", "load_vector", "store_vector"}
NUMPY = {"np", "numpy"}
# What a kernel may take from NumPy: numbers and their types, which the compiler knows.
NUMPY_NUMBERS = {
    *("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("bool_", "pi", "e", "inf", "nan"),
}
HOST_NUMPY = {"ceil", "floor"}  # a function for the host, which is plain Python, may take these, too
MATH_NUMBERS = {"inf", "nan", "pi", "e", "tau"}
CUDA = {  # what a kernel may use of cuda
    *("threadIdx", "blockIdx", "blockDim", "gridDim", "grid", "gridsize", "laneid", "warpsize", "shared", "local"),
    *("syncthreads", "syncthreads_count", "syncthreads_and", "syncthreads_or", "syncwarp", "threadfence"),
    *("threadfence_block", "shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync", "all_sync", "any_sync"),
    *("eq_sync", "ballot_sync", "match_any_sync", "match_all_sync", "activemask", "lanemask_lt", "atomic"),
    *("fma", "popc", "clz", "ffs", "brev", "selp", "cbrt"),
}
STATEMENTS = (
    *(ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.Return, ast.Break, ast.Continue),
    *(ast.Pass, ast.Expr, ast.Assert),
)
EXPRESSIONS = (
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.Attribute, ast.Subscript, ast.Name),
    *(ast.Constant, ast.Tuple, ast.Starred, ast.JoinedStr, ast.FormattedValue, ast.Slice),
)


class Broken(NamedTuple):
    """A broken rule: its kind, a text for the student and the line.

    kind: "syntax", "import", "outside", "numpy", "python", "removed" or "unused".
    """

    kind: str
    text: str
    line: int | None


def broken(source: str, skeleton: str) -> Broken | None:
    """Return the first rule that `source`, made from `skeleton`, breaks, or None."""
    try:
        tree = ast.parse(source)
        found = next(_violations(tree, ast.parse(skeleton)), None)
        # If an import is gone, each of its uses breaks a rule, and the import is what to tell of.
        difference = lacks(tree, skeleton) if found and found.kind == "python" else None
        if found and difference is None:
            return found
        difference = difference or differs(tree, skeleton)
        return Broken(*difference) if difference else None
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        return Broken("syntax", f"the file does not parse: {getattr(error, 'msg', error)}", line)
    except (RecursionError, MemoryError):
        return Broken("syntax", "an expression is nested too deeply: spread it over several lines", _deepest(source))


def unused(source: str, skeleton: str) -> Broken | None:
    """Return the rule that is broken if no kernel calls, or calls indirectly, a function of the exercise, or None."""
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    # Kernels, and functions for the host, are called from outside.
    new = {
        name for name, node in functions.items() if not any(isinstance(one, ast.Call) for one in node.decorator_list)
    }
    used: set[str] = set()
    while new:
        used |= new
        called = {part.id for name in new for part in ast.walk(functions[name]) if isinstance(part, ast.Name)}
        new = called & functions.keys() - used
    for node in ast.parse(skeleton).body:
        if isinstance(node, ast.FunctionDef) and node.name not in used:
            line = functions[node.name].lineno
            return Broken("unused", f"no kernel calls {node.name!r}: what it returns is part of the exercise", line)
    return None


def _deepest(source: str) -> int | None:
    """Return the line of the statement with the most parts, or None if Python cannot parse the source itself."""
    try:
        statements = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    except (RecursionError, MemoryError):
        return None
    simple = [node for node in statements if not hasattr(node, "body")] or statements
    return max(simple, key=lambda node: sum(1 for _ in ast.walk(node)), default=ast.Pass(lineno=1)).lineno


def _violations(tree: ast.Module, skeleton: ast.Module) -> Iterator[Broken]:
    """Yield the rules that a module's statements break, and the rules that its functions break."""
    allowed = IMPORTS | {ast.unparse(part) for node in skeleton.body for part in separate(node)}
    functions = [node for node in skeleton.body if isinstance(node, ast.FunctionDef)]
    hosts = {node.name for node in functions if not node.decorator_list}
    known: set[str] = set()
    imports: set[str] = set()
    for node in tree.body:
        new = [part for part in separate(node) if ast.unparse(part) not in imports]  # a repeated import changes no name
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.update(map(ast.unparse, new))
        for name in (name for part in new for name in bound(part)):
            if name in known | BUILTINS or name.startswith("__"):
                yield Broken("outside", f"{name!r} has a meaning already, and may not get another one", node.lineno)
            known.add(name)
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            parts = [alias.name for alias in node.names]
            module = getattr(node, "module", None) or ", ".join(parts)
            if not all(ast.unparse(part) in allowed or _takes_numbers(part) for part in separate(node)):
                yield Broken(
                    "import",
                    f"imports {module}: a solution has the exercise's imports, and may add math and "
                    f"from normlab.engine {', '.join(sorted(ENGINE))}",
                    node.lineno,
                )
        elif isinstance(node, ast.FunctionDef):
            # without NumPy's names, of which `_function` allows the uses for numbers alone
            yield from _function(node, known - NUMPY, hosts)
        elif not (is_text(node) or is_main(node) or _sets_constants(node, known)):
            yield Broken(
                "outside",
                f"{ast.unparse(node).splitlines()[0]!r} stands outside of any function: "
                "indent it if it belongs to one; kernels, device functions, imports and constants, such as -math.inf "
                "or float32(0), may stand there, and anything under `if __name__ == '__main__':`",
                node.lineno,
            )


def _sets_constants(node: ast.stmt, known: set[str]) -> bool:
    """Return whether a statement gives names to constants; `known` are the names of the module."""
    match node:
        case ast.Assign(targets=targets, value=value):
            pass
        case ast.AnnAssign(target=target, annotation=ast.Name(id="int" | "float" | "bool"), value=ast.expr() as value):
            targets = [target]
        case _:
            return False
    names = [part for target in targets for part in ast.walk(target)]
    return all(isinstance(part, ast.Name | ast.Tuple | ast.expr_context) for part in names) and all(
        _is_constant(part, known) for part in ast.walk(value)
    )


def _is_constant(node: ast.AST, known: set[str]) -> bool:
    """Return whether a constant's expression may have this node. It may call a type of numbers."""
    match node:
        case ast.Name(id=name):
            return name in known
        case ast.Attribute(value=ast.Name(id="math"), attr=name):
            return name in MATH_NUMBERS
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            return module in NUMPY and name in NUMPY_NUMBERS
        case ast.Call(func=ast.Name(id=name), args=[_], keywords=[]):
            return name in ENGINE
        case ast.Call(func=ast.Attribute(attr=name), args=[_], keywords=[]):
            return name in NUMPY_NUMBERS
    parts = ast.Constant | ast.BinOp | ast.UnaryOp | ast.Tuple | ast.operator | ast.unaryop | ast.expr_context
    return isinstance(node, parts)


def _takes_numbers(node: ast.stmt) -> bool:
    """Return whether an import takes only numbers and functions that a kernel may use from math or normlab.engine."""
    if not isinstance(node, ast.ImportFrom) or node.level:
        return False
    parts = {alias.name for alias in node.names}
    return parts <= ENGINE if node.module == "normlab.engine" else node.module == "math" and "_" not in "".join(parts)


def bound(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of the module binds."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        stored = (part for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store))
        yield from (part.id for part in stored)


def _function(function: ast.FunctionDef, known: set[str], hosts: set[str]) -> Iterator[Broken]:
    """Yield the rules that a function breaks; `known` are the names that the module defines.

    `hosts` are the functions that the exercise gives for the host, which no kernel calls: they have no decorator.
    """
    decorators = [ast.unparse(one) for one in function.decorator_list]
    if decorators == [] and function.name in hosts:
        pass
    elif decorators not in (["cuda.jit"], ["cuda.jit(device=True)"]):
        yield Broken(
            "python",
            f"{function.name!r} needs one decorator, @cuda.jit(device=True) for a function that kernels call",
            function.lineno,
        )
    arguments = function.args
    noted = [  # Python evaluates annotations when it defines the function
        function.returns,
        *(argument.annotation for argument in arguments.args),
        *getattr(function, "type_params", ()),
    ]
    special = arguments.posonlyargs, arguments.vararg, arguments.kwarg, arguments.defaults, arguments.kwonlyargs
    if any(special) or any(noted):
        yield Broken("python", f"{function.name!r} may have plain arguments only", function.lineno)
    body = function.body[1:] if is_text(function.body[0]) else function.body
    own = {argument.arg for argument in arguments.args}
    nodes = [node for statement in body for node in ast.walk(statement)]
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    of_numpy = NUMPY_NUMBERS | (set() if decorators else HOST_NUMPY)
    numbers = {id(node.value) for node in nodes if isinstance(node, ast.Attribute) and node.attr in of_numpy}
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        if not (isinstance(node, ast.Name) and node.id in NUMPY - own and id(node) in numbers):
            yield from _node(node, own, known)


def _node(node: ast.AST, own: set[str], known: set[str]) -> Iterator[Broken]:
    """Yield the rule that a node of a function breaks; `own` are the function's names, `known` the module's."""
    line = getattr(node, "lineno", None)
    if isinstance(node, ast.stmt | ast.expr) and not isinstance(node, STATEMENTS + EXPRESSIONS):
        yield Broken("python", f"a kernel has no {_words(node)}: loops, branches and arithmetic have to do", line)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Compare):
        yield Broken("python", f"{ast.unparse(node)!r} compares, and nothing becomes of it: = stores a value", line)
    elif (
        isinstance(node, ast.Expr)
        and ast.unparse(node).startswith("cuda.sync")
        and isinstance(node.value, ast.Attribute)
    ):
        yield Broken("python", f"{ast.unparse(node)!r} is not called: add ()", line)
    elif isinstance(node, ast.Slice):
        yield Broken("numpy", "a kernel takes one element at a time, not a slice: its threads are the loop", line)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        yield Broken("numpy", "a kernel has no @: its threads compute the product", line)
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("min", "max") and len(node.args) < 2:
        yield Broken(
            "numpy", f"{ast.unparse(node)}: in a kernel min and max compare numbers, not an array's elements", line
        )
    elif isinstance(node, ast.Attribute):
        root, first = _root(node)
        deepest = {"cuda": 2, "math": 1, "np": 1, "numpy": 1}.get(root, 0) if root not in own else 0
        too_deep = deepest and ast.unparse(node).count(".") > deepest  # such as np.float32.mro, a host's method
        if node.attr.startswith("_") or isinstance(node.ctx, ast.Store) or too_deep:
            yield Broken("python", f"a kernel has no use for {ast.unparse(node)!r}", line)
        elif root == "cuda" and first not in CUDA:
            near = _near(first, CUDA, "cuda.")
            yield Broken("python", f"cuda.{first} is nothing that a kernel here needs{near}", line)
        elif root and root not in own | known | BUILTINS | {"cuda", "math"} | NUMPY:
            pass  # the unknown name itself is refused
        elif (root in own or root not in {"cuda", "math"} | NUMPY) and node.attr not in ARRAY_ATTRIBUTES:
            yield Broken(
                "numpy", f"{ast.unparse(node)}: arrays in a kernel have a shape and elements, no NumPy methods", line
            )
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in own | known | BUILTINS:
        if node.id in NUMPY:
            yield Broken(
                "numpy",
                "a kernel is compiled for a GPU, where there is no NumPy: let its threads do it "
                "(a number is float32(1), from normlab.engine, or np.float32(1))",
                line,
            )
        elif node.id in {"math"} | ENGINE:
            statement = "import math" if node.id == "math" else f"from normlab.engine import {node.id}"
            yield Broken("python", f"{node.id!r} is not imported: add `{statement}` at the top of the file", line)
        else:
            yield Broken("python", f"{node.id!r} is nothing that a kernel knows{_meant(node.id, own | known)}", line)


def _meant(name: str, known: set[str]) -> str:
    """Return a question that proposes a known name for one that a kernel does not know, or ""."""
    if name in CUDA:
        return f": is it cuda.{name}?"
    if callable(getattr(math, name, None)) and not name.startswith("_"):
        return f": is it math.{name}, after `import math` at the top of the file?"
    return _near(name, known | ENGINE)


def _near(name: str, known: Iterable[str], before: str = "") -> str:
    """Return a question that proposes the known name most like a misspelt one, or "" if none is like it."""
    alike = {one.lower(): one for one in sorted(known)}
    match = get_close_matches(name.lower(), sorted(alike), 1, 0.65)
    return f": is it {before}{alike[match[0]]}?" if match else ""


def _root(node: ast.Attribute) -> tuple[str, str]:
    """Return the name at the start of a chain of attributes ("" if there is none), and the first attribute."""
    while isinstance(node.value, ast.Attribute):
        node = node.value
    return (node.value.id if isinstance(node.value, ast.Name) else ""), node.attr


def _words(node: ast.AST) -> str:
    """Return the kind of a node in words, such as "list comp"."""
    if isinstance(node, ast.NamedExpr):
        return "':='"
    return "".join(" " + c.lower() if c.isupper() else c for c in type(node).__name__).strip()
