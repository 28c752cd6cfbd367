"""Rewrite the forward of a layer's class, as a syntax tree of its source, so that an addition and a norm are one call.

Two patterns of statements are known, with any names for `h` and `residual`, and any of the layer's norms:

    h = residual + h                 out, h = added(self.norm, residual, h)
    residual = h              →      residual = h
    h = self.norm(h)                 h = out

    residual = h                     out, residual = passed(self.norm, h)
    h = self.norm(h)          →      h = out

In the first, the statements between are plain assignments of one name to another. All other statements stay, and lines
keep their numbers, so that tracebacks and debuggers show the layer's own source. Decorators are applied again;
defaults and annotations keep their values.
"""

import __future__

import ast
import inspect
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

CALLS, OUTPUT = "normlab_calls", "_normlab_output"


class Rewritten(NamedTuple):
    """A new forward, and what is fused in it: (norm's attribute, "added" or "passed") in the source's order."""

    forward: Callable[..., Any]
    sites: tuple[tuple[str, str], ...]


def rewritten(kind: type, norms: Collection[str]) -> Rewritten | str:
    """Return the forward of a class with the calls of these norms fused; a reason if there is nothing to fuse.

    norms: names of attributes. The new forward takes the calls from the attribute CALLS of its class.
    """
    original = inspect.unwrap(kind.forward)  # type: ignore[attr-defined]
    try:
        lines, first = inspect.getsourcelines(original)
        # An indented forward is parsed inside a class, because removing its indentation would change text in triple
        # quotes. With the owner's name Python mangles `self.__name` as in the owner, and in a class `_` not at all.
        inside = lines[0][:1].isspace()
        owner = original.__qualname__.split(".")[-2] if inside else ""
        owner = owner if owner.isidentifier() else "_"
        tree = ast.parse("".join([f"class {owner}:\n"] * inside + lines))
    except (OSError, TypeError, SyntaxError, IndexError):
        return "the source of its forward is not at hand"
    function: Any = tree.body[0].body[0] if inside else tree.body[0]  # type: ignore[attr-defined]
    if not isinstance(function, ast.FunctionDef) or original.__code__.co_freevars:
        return "its forward is no plain function: it has variables of a scope around it"
    fuser = _Fuser(norms, next(iter(original.__code__.co_varnames), "self"))
    fuser.visit(function)
    if not fuser.sites:
        return "its forward has no statement that adds before a norm, or keeps a norm's input"
    ast.increment_lineno(tree, first - 1 - inside)
    decorators = _bared(function)
    made = _executed(tree, original)
    forward = vars(made[owner])[function.name] if inside else made[function.name]
    for name in ("__defaults__", "__kwdefaults__", "__annotations__", "__qualname__"):
        setattr(forward, name, getattr(original, name))
    try:
        for decorator in reversed(decorators):
            expression = ast.copy_location(ast.Expression(decorator), decorator)
            forward = eval(compile(expression, original.__code__.co_filename, "eval"), original.__globals__)(forward)
    except Exception as error:
        return f"its forward's decorators cannot be applied again: {type(error).__name__}: {error}"
    return Rewritten(forward, tuple(fuser.sites))


def _bared(function: ast.FunctionDef) -> list[ast.expr]:
    """Take decorators, defaults and annotations from a function, and return the decorators.

    The names in them may not exist any more, and the original function has their values.
    """
    taken, given = function.decorator_list, function.args
    function.decorator_list, function.returns = [], None
    given.defaults, given.kw_defaults = [], [None] * len(given.kwonlyargs)
    for one in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
        if one is not None:
            one.annotation = None
    return taken


def _executed(tree: ast.Module, original: Any) -> dict[str, Any]:
    """Return the names that a module defines, with the globals and the file of the original function."""
    flags = original.__code__.co_flags & __future__.annotations.compiler_flag
    code = compile(ast.fix_missing_locations(tree), original.__code__.co_filename, "exec", flags, dont_inherit=True)
    made: dict[str, Any] = {}
    exec(code, original.__globals__, made)
    return made


def wrappers(function: Any) -> int:
    """Return how many functions are wrapped around the innermost one."""
    count = 0
    while hasattr(function, "__wrapped__"):
        function, count = function.__wrapped__, count + 1
    return count


class _Fuser(ast.NodeTransformer):
    """Replace the two patterns in every list of statements of a function, which calls the layer `layer` (self)."""

    def __init__(self, norms: Collection[str], layer: str) -> None:
        self.norms, self.layer = norms, layer
        self.sites: list[tuple[str, str]] = []

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                setattr(node, name, self._fused(statements))
        return node

    def _fused(self, statements: list[Any]) -> list[Any]:
        """Return the statements with all patterns replaced."""
        done: list[Any] = []
        while statements:
            length = self._added(statements) or self._passed(statements)
            if length:
                done += self._replaced(statements[:length])
            else:
                length = 1
                done.append(statements[0])
            statements = statements[length:]
        return done

    def _norm_of(self, statement: Any, name: str) -> str | None:
        """Return the attribute of the norm if the statement is `… = self.norm(name)`."""
        call = statement.value if isinstance(statement, ast.Assign) else None
        if not isinstance(call, ast.Call) or call.keywords or len(call.args) != 1:
            return None
        of, argument = call.func, call.args[0]
        if not isinstance(of, ast.Attribute) or not isinstance(of.value, ast.Name) or of.value.id != self.layer:
            return None
        given = isinstance(argument, ast.Name) and argument.id == name
        return of.attr if given and of.attr in self.norms else None

    def _added(self, statements: list[Any]) -> int:
        """Return how many statements at the start are the first pattern, or 0."""
        total = _target(statements[0])
        value = statements[0].value if total else None
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
            return 0
        for index, statement in enumerate(statements[1:], 1):
            if self._norm_of(statement, total):
                return index + 1
            if not _is_alias(statement) or _target(statement) == total:
                return 0
        return 0

    def _passed(self, statements: list[Any]) -> int:
        """Return how many statements at the start are the second pattern, or 0."""
        if len(statements) < 2 or not _is_alias(statements[0]):
            return 0
        name = statements[0].value.id  # the norm's output must take its place: the stream goes on as the other name
        return 2 if self._norm_of(statements[1], name) and _target(statements[1]) == name else 0

    def _replaced(self, statements: list[Any]) -> list[Any]:
        """Return the statements of a pattern, fused."""
        first, *between, last = statements
        norm, value = last.value.func, first.value
        if isinstance(value, ast.BinOp):
            call, given = "added", [value.left, value.right]
        else:
            call, given = "passed", [value]
        self.sites.append((norm.attr, call))
        calls = ast.Attribute(ast.Name(self.layer, ast.Load()), CALLS, ast.Load())
        both = ast.Tuple([ast.Name(OUTPUT, ast.Store()), *first.targets], ast.Store())
        fused = ast.Assign([both], ast.Call(ast.Attribute(calls, call, ast.Load()), [norm, *given], []))
        taken = ast.Assign(last.targets, ast.Name(OUTPUT, ast.Load()))
        dropped = ast.Delete([ast.Name(OUTPUT, ast.Del())])  # the name must not keep the output alive
        new = [ast.copy_location(fused, first), *between, *(ast.copy_location(one, last) for one in (taken, dropped))]
        return [ast.fix_missing_locations(one) for one in new]


def _target(statement: Any) -> Any:
    """Return the name that a statement assigns to; None if it is no assignment to one name."""
    one = isinstance(statement, ast.Assign) and len(statement.targets) == 1
    return statement.targets[0].id if one and isinstance(statement.targets[0], ast.Name) else None


def _is_alias(statement: Any) -> bool:
    """Return True if a statement assigns one name to another."""
    return _target(statement) is not None and isinstance(statement.value, ast.Name)
