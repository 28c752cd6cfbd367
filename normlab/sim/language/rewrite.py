"""Turn a kernel's Python function into a function that the simulator can run.

`Rewriter.function` builds a new function from the kernel's code, in which operators compute as on a device
(`operators.py`). It gives the function new globals:

- `cuda` is the simulated namespace (`machine/api.py`);
- a kernel or device function compiled by Numba is its own Python function, rewritten in the same way;
- a type of Numba is a cast to this type;
- `math` and `cmath` have functions that return NaN or infinity where Python's would raise.

The original function is not changed. Numba is not imported: its objects are recognised by the names of their modules
and by their attributes.
"""

import builtins
import cmath
import math
from collections.abc import Sequence
from functools import partial
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from normlab.sim.language.arithmetic import BUILTINS
from normlab.sim.language.arrays import adopt
from normlab.sim.language.fields import fields_of
from normlab.sim.language.functions import CMATH, MATH, Namespace, TypedUfunc
from normlab.sim.language.integers import INTEGER_CASTS, TYPES, adopt_scalar
from normlab.sim.language.operators import OPERATOR_GLOBALS, safe_code
from normlab.sim.language.overloads import Overloads
from normlab.sim.language.variables import Types
from normlab.sim.language.vector_types import VECTOR_TYPES
from normlab.sim.protocols import Cuda

# Every package that may hold Numba's CUDA target; none of them has to be installed.
CUDA_PACKAGES = (
    *("numba.cuda", "numba_cuda.numba.cuda"),
    *("numba_cuda_mlir.cuda", "numba_cuda_mlir.numba_cuda", "numba_cuda_mlir"),
)
SIMULATED_BUILTINS = vars(builtins) | BUILTINS
SIMULATED_MATH = Namespace(
    "math", {name: np.float64(getattr(math, name)) for name in ("pi", "e", "tau", "inf", "nan")} | MATH
)

SIMULATED_CMATH = Namespace(
    "cmath",
    {name: adopt_scalar(getattr(cmath, name)) for name in ("pi", "e", "tau", "inf", "nan", "infj", "nanj")} | CMATH,
)
SIMULATED_MODULES = {"math": SIMULATED_MATH, "cmath": SIMULATED_CMATH}

_twins: dict[int, tuple[Any, Any, bool]] = {}  # id of an original → original, twin, of_launch


def register_twin(original: Any, twin: Any, of_launch: bool = False) -> None:
    """Let a kernel that names `original` use `twin` in the simulator.

    A twin is needed for a function without a Python body to run, such as a Numba intrinsic. There are three kinds:

    - a plain Python function is called as it is;
    - with `of_launch`, a plain Python function gets the launch's `cuda` (`machine/api.py`) as its first argument;
    - a device function (`cuda.jit(device=True)`) is rewritten, and can use `cuda` as a kernel does.
    """
    # Keeping the original alive keeps its id from being given to another object.
    _twins[id(original)] = original, twin, of_launch


def python_function(value: Any) -> FunctionType | None:
    """Return the Python function of a kernel or device function, compiled by Numba or made by Numba's own simulator.

    Return None for any other value; a plain Python function is one.
    """
    if isinstance(value, FunctionType):
        return None
    # Numba's dispatchers name it `py_func`; Numba's own simulator has `fn`.
    function = getattr(value, "py_func", None)
    if function is None and type(value).__module__.startswith("numba"):
        function = getattr(value, "fn", None)
    return function if isinstance(function, FunctionType) else None


class Rewriter:
    """Turns a kernel and everything that it names into what one launch runs; each function is rewritten once."""

    def __init__(self, cuda: Cuda, types: Types | None = None, arguments: Sequence = ()):
        """Rewrite for the launch of `cuda` on `arguments`; `types`: what the compiler says of functions' variables."""
        self._cuda, self._types = cuda, types
        self._fields = fields_of(tuple(arguments))  # of the records that the functions rewritten so far may have
        self._overloads = Overloads(types)
        self._done: dict[int, FunctionType] = {}

    def function(self, original: FunctionType) -> FunctionType:
        """Return `original`, rewritten.

        If the launch's observer has marks, the new code also does what they say at loop turns and accesses.
        """
        # Once per launch: a device function that many functions call stays one object, and recursion ends.
        if id(original) in self._done:
            return self._done[id(original)]
        observer = self._cuda.observer
        # Only the names that the code mentions: a module's other globals may be large arrays or lazy modules.
        mentioned = {
            name: original.__globals__[name] for name in names_of(original.__code__) if name in original.__globals__
        }
        cells = [cell for cell in original.__closure__ or () if cell != CellType()]  # an empty one has no value yet
        # Before the functions that this one calls, which get records made from the dtypes that it names.
        self._fields |= fields_of((*mentioned.values(), *(cell.cell_contents for cell in cells)))
        marks = () if observer is None else observer.source_marks
        code = safe_code(original.__code__, marks, self._types, frozenset(self._fields))
        new_globals: dict[str, Any] = {"__builtins__": SIMULATED_BUILTINS, **OPERATOR_GLOBALS}
        if observer is not None:
            new_globals |= observer.marks(in_kernel=not self._done)  # the kernel is the first function rewritten
        # New cells: two launches at once, in two threads of the host, must not share what is put into them.
        closure = tuple(CellType() for _ in original.__closure__ or ())
        rewritten = FunctionType(code, new_globals, original.__name__, None, closure)
        self._done[id(original)] = rewritten  # before its globals are rewritten, because the function may name itself
        rewritten.__defaults__ = self.value(original.__defaults__)
        for name, value in mentioned.items():
            new_globals[name] = self.value(value)
        for cell, new_cell in zip(original.__closure__ or (), closure, strict=True):
            if cell != CellType():  # an empty cell is a variable without a value yet
                new_cell.cell_contents = self.value(cell.cell_contents)
        return rewritten

    def value(self, value: Any) -> Any:
        """Return what a rewritten function finds under a name under which the original finds `value`."""
        # Before all other rules, because a twin may stand for a function, a kernel or an intrinsic.
        if id(value) in _twins:
            _, twin, of_launch = _twins[id(value)]
            if of_launch:
                return partial(twin, self._cuda)
            value = twin
        if isinstance(value, ModuleType):
            return self._module(value)
        function = python_function(value)
        if function is not None:
            return self.function(function)
        if isinstance(value, tuple):
            made = map(self.value, value)
            return type(value)(*made) if hasattr(value, "_fields") else tuple(made)
        # A GPU compiles a global array into constants; here the kernel reads the host's array itself.
        if isinstance(value, (np.ndarray, float, int, np.integer)):
            return adopt(value) if isinstance(value, np.ndarray) else adopt_scalar(value)
        if isinstance(value, type) and issubclass(value, np.integer):
            return INTEGER_CASTS[np.dtype(value).name]
        if isinstance(value, np.ufunc):
            return TypedUfunc(value)
        # A type that the simulator does not know is left as it is; the error then comes where the kernel uses it.
        if is_numba_type(value):
            return TYPES.get(str(value), VECTOR_TYPES.get(getattr(value, "name", ""), value))
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        # Functions imported by name, such as `from math import sqrt`, are known by the module that they name.
        if isinstance(module, str) and isinstance(name, str):
            if module in SIMULATED_MODULES:
                return getattr(SIMULATED_MODULES[module], name)
            if cuda_path(module) is not None:
                return self._member_of_cuda(module, name)
        if isinstance(value, FunctionType):
            chosen = self._overloads.chosen(value)
            return self._overloads.guarded(value) if chosen is None else self.function(chosen)
        return value

    def _module(self, module: ModuleType) -> Any:
        path = cuda_path(module.__name__)
        # `from numba import cuda` in any of the packages means the launch's namespace.
        if path == "":
            random = getattr(module, "random", None)  # its functions are device functions, to be rewritten
            if isinstance(random, ModuleType):
                self._cuda.random = ModuleInKernel(random, self)
            return self._cuda
        if path in ("cg", "fp16", "libdevice", "types", "vector"):
            return getattr(self._cuda, path)
        return SIMULATED_MODULES.get(module.__name__) or ModuleInKernel(module, self)

    def _member_of_cuda(self, module: str, name: str) -> Any:
        """Return the simulated counterpart of an object imported by name, as in `from numba.cuda import threadIdx`."""
        if name in ("threadIdx", "blockIdx"):
            return IndexByName(self._cuda, name)
        home = cuda_path(module) or ""
        found: Any = self._cuda
        # numba-cuda defines these functions under the names of CUDA's headers, such as __hadd.
        if home in ("_internal.cuda_fp16", "_internal.cuda_bf16"):
            found, name = getattr(self._cuda, home[-4:]), name.removeprefix("__")
        elif home in ("cg", "fp16", "libdevice", "vector"):
            found = getattr(self._cuda, home)
        for part in name.split("."):
            found = getattr(found, part)
        return found


class IndexByName:
    """`threadIdx` or `blockIdx` imported by name: one object for all threads, which looks up the running thread's."""

    def __init__(self, cuda: Cuda, name: str):
        """Stand for the index `name` of `cuda`."""
        self._cuda, self._name = cuda, name

    def __getattr__(self, axis: str) -> int:
        """Return x, y or z of the running thread."""
        return getattr(getattr(self._cuda, self._name), axis)


class ModuleInKernel:
    """A module that a kernel names; `Rewriter.value` makes each attribute when the kernel first uses it."""

    def __init__(self, module: ModuleType, rewriter: Rewriter):
        """Stand for `module`."""
        self._module, self._rewriter = module, rewriter

    def __getattr__(self, name: str) -> Any:
        """Return the module's attribute, rewritten. Python calls this only for an attribute not stored yet."""
        value = self.__dict__[name] = self._rewriter.value(getattr(self._module, name))
        return value


def cuda_path(module: str) -> str | None:
    """Return the path of `module` below one of the CUDA_PACKAGES, "" for the package itself, None for other modules."""
    for package in CUDA_PACKAGES:
        if module == package:
            return ""
        if module.startswith(package + "."):
            path = module[len(package) + 1 :]
            return None if path.startswith("tests.") else path  # the kernels of the package's own tests are programs
    return None


def is_numba_type(value: Any) -> bool:
    """Return whether `value` is a type of Numba, such as `numba.float32`."""
    module = type(value).__module__
    return module.startswith("numba") and (".types" in module or ".type_defs." in module)


def names_of(code: CodeType) -> set[str]:
    """Return every global (and attribute) name that `code` or a function inside it uses."""
    # co_names has attributes among the globals. They do no harm: a name that is no global of the function is passed
    # over.
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_of(constant)
    return names
