"""Run functions of the kernel's source: the kernel itself and the device functions that it calls."""

import ast
from functools import partial
from types import CellType, CodeType, FunctionType
from typing import Any

import numpy as np

from normlab.sim.language.operators import function_tree
from normlab.sim.vectorised import statements
from normlab.sim.vectorised.frames import RETURN, Frame, Inner, Lanes, value_of
from normlab.sim.vectorised.refusal import NotVectorisedError
from normlab.sim.vectorised.values import merge

DEEPEST = 40  # calls inside each other


class Function:
    """A function of the kernel's source, ready to run: compiled once, kept for all launches."""

    def __init__(self, tree: ast.FunctionDef | ast.Lambda, code: Any, captured: tuple[str, ...] = ()):
        """Compile the statements of `tree`, which is the source of `code`; `captured`: outer names that vary."""
        self.parameters = [argument.arg for argument in tree.args.args]
        if tree.args.kwarg or tree.args.kwonlyargs or tree.args.posonlyargs:
            raise NotVectorisedError("of a function with keyword-only parameters")
        self.rest = tree.args.vararg.arg if tree.args.vararg else None
        # As in Python, a name that the function assigns anywhere is never looked up outside, not even by lanes that
        # have not assigned it.
        self.locals = frozenset((*code.co_varnames, *code.co_cellvars, *captured))
        self.free = code.co_freevars
        body: list[ast.stmt]
        # A lambda is a function of one `return`.
        body = [ast.copy_location(ast.Return(tree.body), tree)] if isinstance(tree, ast.Lambda) else tree.body
        self.run = partial(statements.run, statements.compiled(body))


_functions: dict[int, tuple[Any, Function]] = {}


def prepared(function: FunctionType) -> Function:
    """Return a rewritten function, ready to run; raises NotVectorisedError if its source is not to be had."""
    code = function.__code__
    if id(code) not in _functions:
        tree = function_tree(code)
        if tree is None:
            raise NotVectorisedError(f"the source of {function.__name__!r} cannot be read")
        _functions[id(code)] = code, Function(tree, code)  # keeping `code` keeps its id
    return _functions[id(code)][1]


class Call:
    """One run of a function: where its outer names are, and what its lanes have returned."""

    def __init__(self, function: Function, original: FunctionType, machine: Any, caller: "Call | None"):
        """Begin to run `original`, of which `function` is the compiled form, for `caller`; None: it is the kernel."""
        self.function, self.machine, self.caller = function, machine, caller
        self.depth: int = 0 if caller is None else caller.depth + 1
        self.file = original.__code__.co_filename
        self.at: Any = None  # the node of the syntax tree that accesses memory or calls a function
        known: Any = original  # typeshed has __builtins__ in some versions only
        self._code, self._globals, self._builtins = known.__code__, known.__globals__, known.__builtins__
        self._cells = dict(zip(function.free, original.__closure__ or (), strict=True))
        self.results: list[tuple[np.ndarray, Any]] = []

    def outer(self, name: str) -> Any:
        """Return what a name of an outer scope stands for."""
        # In Python's order: the enclosing function, the module, the builtins.
        if name in self._cells:
            value = self._cells[name].cell_contents
        elif name in self._globals:
            value = self._globals[name]
        elif name in self._builtins:
            value = self._builtins[name]
        else:
            raise NotVectorisedError(f"{name!r} is not defined")
        return self.machine.outer(value, name) if isinstance(value, np.ndarray) else value

    def defined(self, node: ast.FunctionDef | ast.Lambda, name: str) -> Inner:
        """Return a function that this one defines inside itself."""
        # The compiler has left the inner function's code among the constants of the outer one.
        codes = [
            one
            for one in self._code.co_consts
            if isinstance(one, CodeType) and (one.co_name, one.co_firstlineno) == (name, node.lineno)
        ]
        if len(codes) != 1 or node.args.defaults or getattr(node, "decorator_list", False):
            raise NotVectorisedError(f"of the function {name!r} in a function")
        (code,) = codes
        _functions.setdefault(id(code), (code, Function(node, code, code.co_freevars)))
        return Inner(code, self)

    def closure(self, inner: Inner, given: list, named: dict[str, Any], frame: Frame) -> Any:
        """Run a function that this one has defined, with the values that its outer variables have in a frame."""
        if inner.call is not self:
            # Its outer variables are in a frame of the run that has defined it, and that run may be over.
            raise NotVectorisedError(f"of the function {inner.code.co_name!r} outside of the one that defines it")
        names = inner.code.co_freevars
        values = {name: value_of(frame, name) if name in self.function.locals else self.outer(name) for name in names}
        # Python wants a cell for each outer variable. The cells stay empty: the engine takes the values as arguments.
        function = FunctionType(inner.code, self._globals, closure=tuple(CellType() for _ in names))
        return invoke(function, bound(function, given, named) | values, frame.lanes, self)

    def inner(self, original: FunctionType, given: list, named: dict[str, Any], lanes: Lanes) -> Any:
        """Run a function that this one calls."""
        return invoke(original, bound(original, given, named), lanes, self)

    def returns(self, lanes: Lanes, value: Any) -> None:
        """Note that lanes return with a value."""
        self.results.append((lanes.ids, value))
        # Only the kernel's own `return` ends a thread.
        if self.depth == 0:
            self.machine.returned(lanes.ids)


def invoke(original: FunctionType, arguments: dict[str, Any], lanes: Lanes, caller: Call | None = None) -> Any:
    """Run a function for some lanes; return what it returns in each."""
    function = prepared(original)
    call = Call(function, original, lanes.machine, caller)
    if call.depth > DEEPEST:
        raise NotVectorisedError("functions call each other too deeply")
    frame = Frame(call, lanes)
    frame.variables.update(arguments)
    function.run(frame)
    pieces = []
    # Lane numbers rise, so a search finds at which of the caller's places the lanes stand that returned this value.
    for ids, value in call.results:
        pieces.append((None if len(ids) == lanes.width else np.searchsorted(lanes.ids, ids), value))
    # The other lanes have come to the end without a `return`: they return None.
    rest = None if frame.left is None else np.flatnonzero(frame.left != RETURN)
    if rest is None or len(rest):
        pieces.append((rest, None))
    return merge(lanes.width, pieces, None)


def bound(function: FunctionType, given: list, named: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call under the names of the parameters."""
    names, rest = prepared(function).parameters, prepared(function).rest
    # The usual call needs none of what follows.
    if len(given) == len(names) and rest is None and not named:
        return dict(zip(names, given, strict=True))
    defaults = function.__defaults__ or ()
    # Defaults belong to the last parameters; what the call gives replaces them below.
    values = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    positional = dict(zip(names, given, strict=False))
    if rest is not None:
        given, values[rest] = given[: len(names)], tuple(given[len(names) :])
    if len(given) > len(names) or named.keys() & positional.keys() or not named.keys() <= set(names):
        raise NotVectorisedError(f"{function.__name__!r} is called with wrong arguments")
    values |= positional | named
    if not values.keys() >= set(names):
        raise NotVectorisedError(f"{function.__name__!r} is called with too few arguments")
    return values
