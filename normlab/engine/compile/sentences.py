"""Say in one sentence why Numba refuses a kernel: from its message, and from the source of the line it stopped at."""

import ast
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from numba import cuda

from normlab.engine.compile.type_names import several, split_types, told_type

ENGINE = str(Path(__file__).parents[1])
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
OPERATORS = {
    **{"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@"},
    **{"and_": "&", "or_": "|", "xor": "^", "lshift": "<<", "rshift": ">>", "contains": "in"},
    **{"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "neg": "-", "invert": "~", "not_": "not"},
}
UPDATES = {f"i{name.rstrip('_')}": f"{symbol}=" for name, symbol in OPERATORS.items()}
INDEX = re.compile(r"u?int\d|Literal\[int\]|slice|ellipsis|none|array\(\w*int|Tuple|UniTuple")  # Numba's names
TEXT = "a kernel cannot put text together or store it: print takes texts and numbers one by one"
NEW_ARRAY = "this makes a new array or list while the kernel runs, and a GPU's thread has no memory for one"

# Statements and expressions that Numba compiles for no GPU, whatever their types.
UNKNOWN_NODES: dict[type[ast.AST], str] = {
    ast.JoinedStr: "a kernel cannot format text, so it has no f-strings: print takes texts and numbers one by one",
    ast.Dict: "a kernel cannot use a dict: pass an array, or numbers and tuples",
    ast.DictComp: "a kernel cannot use a dict: pass an array, or numbers and tuples",
    ast.Set: "a kernel cannot use a set: compare with each value, or look it up in a tuple",
    ast.SetComp: "a kernel cannot use a set: compare with each value, or look it up in a tuple",
    ast.ListComp: "a kernel cannot make a list: use a loop, and cuda.local.array for several values",
    ast.GeneratorExp: "a kernel cannot use a generator: write the loop out",
    ast.Yield: "a kernel cannot be a generator: it has no yield, and writes its results into arrays",
    ast.YieldFrom: "a kernel cannot be a generator: it has no yield, and writes its results into arrays",
    ast.Try: "a kernel cannot catch exceptions: no try, except or finally runs on a GPU",
    ast.With: "a kernel cannot use a with statement",
    ast.ClassDef: "a kernel cannot define a class",
    ast.Import: "a kernel cannot import: import the module at the top of the file",
    ast.ImportFrom: "a kernel cannot import: import the module at the top of the file",
    ast.Delete: "a kernel cannot delete a variable",
    ast.Starred: "a kernel cannot unpack with *: name each value",
    ast.Await: "a kernel cannot wait for coroutines",
}


class Site(NamedTuple):
    """The source that Numba stopped in: the function's syntax tree and the line; None where there is no source."""

    function: ast.FunctionDef | ast.Lambda | None
    line: int | None

    def nodes(self) -> Iterator[ast.AST]:
        """Yield the function's nodes that lie on the line, or all nodes if Numba names no line."""
        for node in ast.walk(self.function) if self.function is not None else ():
            first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
            if first is not None and (self.line is None or first <= self.line <= (last or first)):
                yield node


def plain(error: BaseException) -> str:
    """Return an error's message without Numba's colours."""
    return COLOURS.sub("", str(error))


def sentence(error: BaseException, site: Site) -> tuple[str, int | None]:
    """Return why Numba refuses, in one sentence without the line, and the line."""
    # The text after this says why each of Numba's implementations of a function does not fit.
    message = re.split(r"There (?:is|are) \d+ candidate implementation", plain(error))[0]
    if node := _unknown_node(message, site):
        return UNKNOWN_NODES[type(node)], site.line or getattr(node, "lineno", None)
    if "NRT required" in plain(error):  # also after the cut: Numba builds array operations of compiled functions
        texts = any(isinstance(node, ast.Name) and node.id == "str" for node in site.nodes())
        return TEXT if texts else NEW_ARRAY, site.line
    return (
        _told_by_intrinsic(plain(error))
        or _told_by_message(message, site)
        or _told_by_call(message, site)
        or _told_by_python(error, message, site)
        or _quoted(error, message)
    ), site.line


def _unknown_node(message: str, site: Site) -> ast.AST | None:
    """Return the statement or expression at the line that no kernel may have; None if the message is not about it."""
    if re.search("Untyped global name|NameError|Unknown attribute '(?!append' of type list)", message):
        return None
    for node in site.nodes():
        # The line may lie inside a try statement whose handlers Numba does not complain about.
        only_around = isinstance(node, ast.Try) and not re.search("try|exception", message)
        in_call = isinstance(node, ast.Starred) and message.strip() and "UNPACK_EX" not in message  # f(*pair) compiles
        if type(node) in UNKNOWN_NODES and not only_around and not in_call:
            return node
    return None


# Numba's message → a sentence; \1, \2 are the pattern's groups.
MESSAGES: tuple[tuple[str, str], ...] = (
    (r"STORE_GLOBAL", "a kernel cannot assign to a global variable: pass an array, and write into it"),
    (
        r"insert_unresolved_ref",
        "a function calls itself with other types than it was called with, a number in the code included: use a loop",
    ),
    (r"runaway recursion", "a function calls itself, and no way through it ends without another call"),
    (
        r"No conversion from (.+?) to none for '\$\S*return",
        "a kernel returns nothing: write the value into an array instead of `return`",
    ),
    (r"NameError: name '(\w+)' is not defined", r"the name \1 is defined nowhere"),
    (
        r"Untyped global name '(\w+)': Cannot determine Numba type of <class 'function'>",
        r"\1 is a plain Python function: a kernel calls only functions under @cuda.jit(device=True)",
    ),
    (
        r"Untyped global name '(\w+)': Cannot determine Numba type of <class 'builtin_function_or_method'>",
        r"there is no \1() on a GPU",
    ),
    (
        r"Untyped global name '(\w+)': Cannot determine Numba type of <class '(?:\w+\.)*(\w+)'>",
        r"a kernel cannot use \1, which is a \2: only numbers, tuples, arrays and device functions from outside",
    ),
    (
        r"(?s)OverloadSelector.* = (?:global|freevar)\((\w+): \[",
        r"a kernel cannot use \1, which is a list: only numbers, tuples, arrays and device functions from outside",
    ),
    (
        r"Untyped global name '(\w+)'",
        r"a kernel cannot use \1: only numbers, tuples, arrays and device functions from outside",
    ),
    (
        r"Unknown attribute '(\w+)' of type Module\(<module '([\w.]+)'",
        r"there is no \2.\1 on a GPU",
    ),
    (r"module 'numba\.cuda' has no attribute '(\w+)'", r"there is no cuda.\1"),
    (r"Unknown attribute '(\w+)' of type (?:type\()?Dim3\)?", r"an index has .x, .y and .z, and no .\1"),
    (r"required for linear algebra", "there is no linear algebra on a GPU, nor `@`: write loops"),
    (r"failed to unpack|wrong tuple length", "there are more names, or fewer, on the left than values on the right"),
    (r"Cannot resolve setitem: \S+\[.*readonly", "a global array is constant in a kernel, which cannot write to it"),
    (r"of type \w+ is not aligned", "a field of the record is not aligned: make its dtype with align=True"),
    (r"set_try_status|exception_match", "a kernel cannot catch exceptions: no try, except or finally runs on a GPU"),
    (r"printing unimplemented for values of type array", "print takes numbers and texts, and no array: print elements"),
    (
        r"Only accept returning of array[\s\S]*During: lowering",
        "a method that may make a new array does not compile: in place of ravel() write reshape(size)",
    ),
    (r"Only accept returning of array", "a device function cannot return an array that it did not get"),
    (
        r"Signature mismatch: (\d+) argument types given, but function takes (\d+)",
        r"a launch gives each of its \2 parameters a value, also *args, **kwargs and those with defaults: it gave \1",
    ),
    (r"Unknown attribute '\w+' of type list", "a kernel cannot grow a list: use cuda.local.array for several values"),
    (r"No definition for lowering <built-in function getitem>\(Array", "x[...] alone does not compile: write x"),
    (r"No definition for lowering array\.(\w+)", r"there is no array.\1 on a GPU"),
    (r"name '(\w+)' is not defined|undefined variable '(\w+)'", r"the name \1\2 is defined nowhere"),
)


def _told_by_message(message: str, site: Site) -> str | None:
    """Return a sentence made from a message of Numba's that already names the mistake."""
    if (found := re.search(r"Untyped global name '(\w+)': .* <class 'type'>", message)) and hasattr(cuda, found[1]):
        return f"a kernel cannot use {found[1]} imported by its name: write cuda.{found[1]}"
    for pattern, told in MESSAGES:
        if found := re.search(pattern, message):
            return found.expand(told)
    if found := re.search(r"Cannot unify (.+) and (.+) for '([\w.$]+)'", message):
        name = found[3].split(".")[0]
        one, other = sorted([told_type(found[1]), told_type(found[2])])  # Numba's own order differs between Pythons
        what = f"{name} is" if not name.startswith("$") else "a value is"
        return f"{what} {one} at one place and {other} at another, and a kernel's variable has one type"
    if found := re.search(r"Unknown attribute '(\w+)' of type (.+)", message):
        return f"{told_type(found[2])} has no .{found[1]} on a GPU"
    if found := re.search(r"Invalid use of getiter with parameters \((.+)\)", message):
        return f"a kernel cannot loop over {told_type(found[1])}"
    if found := re.search(r"Invalid use of (.+) with parameters .*\n.* as a callable", message):
        return f"{told_type(found[1])} is no function, but is called like one"
    if "Type of variable" in message and any(isinstance(node, ast.NamedExpr) for node in site.nodes()):
        return "a kernel cannot use := in an expression: assign on a line of its own"
    if found := re.search(r"Cannot bind 'args=\((.*?),?\) kws=.*?' to signature '\((.*)\)'", message):
        given, wanted = len(split_types(found[1])), found[2]
        return f"a device function takes ({wanted}), and is called with {several(given, 'argument')}"
    return None


def _told_by_intrinsic(message: str) -> str | None:
    """Return what an intrinsic of normlab's engine says itself about its arguments."""
    found = re.search(r"raised a specific error:\s+\w+: (.+)\n\s+raised from (.+):\d+", message)
    return found[1] if found is not None and found[2].startswith(ENGINE) else None


def _told_by_call(message: str, site: Site) -> str | None:
    """Return a sentence for an operator or a function that Numba does not have for the types of its arguments."""
    found = re.search(
        r"No implementation of function (?:Function\((\w+)\))?.*?>>> (?:<unknown function>|([\w.]+))\((.*?)\)\s*\n",
        message,
        re.DOTALL,
    )
    if found is None:
        return None
    name, given = found[2] or found[1], split_types(found[3])
    if name in ("setitem", "getitem", "static_getitem", "static_setitem", "delitem") and len(given) > 1:
        return _told_by_index(name, given)
    if name == "array" and given and (space := _memory_space(site)):
        return _told_by_allocation(f"cuda.{space}.array", given)
    if any("unicode_type" in kind or kind.startswith("Literal[str]") for kind in given):
        return TEXT
    if name in ("grid", "gridsize"):
        return (
            f"cuda.{name} takes the number 1, 2 or 3 itself, not {told_type(given[0])} that is known only at run time"
        )
    if name in ("bool", "not_") and "array(" in given[0]:
        return "a comparison of a whole array has no truth value: compare its elements"
    told = [told_type(kind) for kind in given]
    symbol = OPERATORS.get(name) or UPDATES.get(name)
    if symbol and len(told) == 2:
        return f"there is no `{symbol}` between {told[0]} and {told[1]} in a kernel"
    if symbol and len(told) == 1:
        return f"there is no `{symbol}` of {told[0]} in a kernel"
    return f"there is no {name}({', '.join(told)}) on a GPU"


def _told_by_allocation(function: str, given: list[str]) -> str:
    """Return a sentence for a size or a dtype that cuda.shared.array, or its like, does not take."""
    named = [re.match(r"(?:(shape|dtype)=)?(.*)", kind, re.DOTALL) for kind in given]
    kinds = {one[1] or default: one[2] for one, default in zip(named, ("shape", "dtype"), strict=False) if one}
    size, dtype = kinds.get("shape"), kinds.get("dtype")
    if size and re.search(r"\w", re.sub(r"Literal\[int\]\(-?\d+\)|(?:Uni)?Tuple|x \d+", "", size)):
        return (
            f"the size of {function} must be known when the kernel is compiled: a number, or a constant from outside "
            f"the kernel, not {told_type(size)} that the kernel computes or is given"
        )
    instead = "which are not both given" if size is None or dtype is None else f"not {told_type(dtype)}"
    return f"{function} takes a size and a dtype such as float32, {instead}"


def _told_by_index(name: str, given: list[str]) -> str:
    """Return a sentence for a wrong index, or a value that its element cannot hold."""
    container, index, *value = given
    array = re.search(r"\barray\((.+), (\d+)d", container)
    axes = split_types(index[index.index("(") + 1 : -1]) if index.startswith(("UniTuple", "Tuple")) else [index]
    if uniform := re.match(r"UniTuple\(.* x (\d+)\)$", index):
        axes = [split_types(index[len("UniTuple(") : -1])[0].rsplit(" x ", 1)[0]] * int(uniform[1])
    if container.startswith(("Tuple(", "UniTuple(")):
        if name.endswith("setitem"):
            return "the entries of a tuple cannot be changed: use cuda.local.array"
        return "a tuple whose entries differ in type takes an index that is a number itself, not a variable"
    if container.startswith("DictType"):
        return UNKNOWN_NODES[ast.Dict]
    if "readonly" in container and name.endswith("setitem"):
        return (
            "the array is read-only, as every array from outside a kernel is that is no argument: pass a writable one"
        )
    if array is None:
        return f"{told_type(container)} has no elements to index"
    if any(axis.startswith("float") or axis.startswith("Literal[float]") for axis in axes):
        return "an index is a float, and must be an integer: divide with // or convert with int()"
    if len(axes) > int(array[2]):
        return f"an array with {several(int(array[2]), 'dimension')} is given {several(len(axes), 'index', 'indices')}"
    if odd := [axis for axis in axes if not INDEX.match(axis)]:
        return f"{told_type(container)} takes integers as indices, not {told_type(odd[0])}"
    if value and "array(" in value[0]:
        return f"{told_type(value[0])} cannot be stored in one element: an index is missing, or an operand is an array"
    if value and ("unicode_type" in value[0] or "Literal[str]" in value[0]):
        return TEXT
    if value:
        return f"{told_type(value[0])} cannot be stored in {told_type(container)}"
    return f"{told_type(container)} takes integers as indices, not {told_type(index)}"


def _memory_space(site: Site) -> str | None:
    """Return "shared", "local" or "const" if the line allocates such an array."""
    for node in site.nodes():
        match node:
            case ast.Call(ast.Attribute(ast.Attribute(_, "shared" | "local" | "const" as space), "array")):
                return space
            case ast.Call(ast.Attribute(ast.Name("shared" | "local" | "const" as space), "array")):
                return space
    return None


def _told_by_python(error: BaseException, message: str, site: Site) -> str | None:
    """Return a sentence for an error that Numba's own Python code raises when a call has the wrong arguments."""
    if found := re.match(r"(?:\w+\.)*(\w+)\(\) takes (?:from \d+ to )?(\d+) positional arguments? but (\d+)", message):
        wanted, given = int(found[2]) - 1, int(found[3]) - 1  # Python counts Numba's own first argument
        return f"{found[1]} takes {several(wanted, 'argument')}, and is given {given}"
    if found := re.match(r"(?:\w+\.)*(\w+)\(\) missing \d+ required positional arguments?: (.+)", message):
        of_a_warp = re.match("(shfl|vote|match|all|any|eq|ballot)_", found[1])
        mask = " (the first is the mask of lanes)" if of_a_warp else ""
        return f"{found[1]} is not given all its arguments{mask}: {found[2]} is missing"
    if found := re.fullmatch(r"<ufunc '(\w+)'>", message):
        instead = "abs" if found[1] == "absolute" else f"math.{found[1]}" if hasattr(math, found[1]) else ""
        return f"there is no np.{found[1]} on a GPU" + (f": write {instead}" if instead else "")
    if type(error).__module__.startswith("numba"):
        return None
    for node in site.nodes():
        match node:
            case ast.Call(ast.Attribute(ast.Attribute(_, "atomic"), name)):
                return f"cuda.atomic.{name} takes an array, an index and then its numbers; these arguments do not fit"
            # Once @njit has compiled a call of it for the CPU, Numba's search for one for a GPU does not end.
            case ast.Call(ast.Attribute(ast.Attribute(ast.Name("np" | "numpy"), "random"), name)):
                return f"there is no numpy.random.{name} on a GPU"
    for node in site.nodes():
        if isinstance(node, ast.Call):
            return f"Numba does not compile the call {ast.unparse(node)}"
    return None


def _quoted(error: BaseException, message: str) -> str:
    """Return the first line of Numba's own message that says something."""
    lines = [line.strip(" -") for line in message.splitlines()]
    text = next(
        (line for line in lines if line and not line.startswith(("Failed in", "During:"))), type(error).__name__
    )
    text = re.sub(r"\.? ?Raised from .*|, (?:defined at|location:) .*", "", text)
    if "unicode_type" in text or "Literal[str]" in text:
        return TEXT
    return f"Numba does not compile this: {text.removesuffix('.')}"
