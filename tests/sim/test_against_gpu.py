"""The simulator held to the hardware: one and the same kernel on a GPU and in `simulate`, on fresh random inputs.

Two kinds of kernels. A *case* is written out below, under `@case`: warps, barriers, memory, atomics, indexing. A
*table* is a list of expressions over one element of each argument; its kernel is made from them.

Without a GPU every kernel is still compiled (to PTX, for the H200) and run in the simulator, and every expression's
type is held to the type that Numba's compiler infers. On a GPU the results are held to the simulator's: bit for bit
(NaN equals NaN) wherever IEEE 754 or the operation's definition leaves no choice, else within the bound that stands
beside the expression.

Bounds are in ulp of the result's type: CUDA's documented maximum (CUDA C++ Programming Guide, "Mathematical
Functions") plus `NUMPY`, because the simulator's own functions are NumPy's, and NumPy lets its vectorised ones err by
up to 4 ulp.
"""

import functools
import linecache
import math
import secrets
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64
from numba.cuda import dispatcher
from numba.cuda import types as numba_types
from numba.cuda.compiler import compile as compile_function
from numba.cuda.np.numpy_support import from_dtype

from normlab.sim import simulate

needs_gpu = pytest.mark.skipif(not cuda.is_available(), reason="needs a GPU")

float16 = numba_types.float16
FULL = 0xFFFFFFFF
NUMPY = 4
CC = (9, 0)
SEED = secrets.randbits(32)  # fresh inputs in every run; a failure prints it


# --- cases and tables ------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """A kernel, its launch and its inputs; `bounds` allows ulps to the argument of that position."""

    name: str
    kernel: Any
    arguments: Callable[[np.random.Generator], tuple]
    grid: Any = 1
    block: Any = 32
    dynamic: int = 0
    bounds: Any = None
    labels: Callable[[tuple], str] = str
    mark: Any = ()

    def drawn(self) -> tuple:
        """Fresh arguments."""
        return self.arguments(np.random.default_rng(SEED))


@dataclass
class Sliced:
    """An array that is no contiguous one: the slices of a base. On the GPU the base is copied, then sliced."""

    base: np.ndarray
    slices: tuple


INTEGERS = {"int8": int8, "int16": int16, "int32": int32, "int64": int64}
INTEGERS |= {"uint8": uint8, "uint16": uint16, "uint32": uint32, "uint64": uint64}
NAMES = {"cuda": cuda, "math": math, "np": np, "float16": float16, "float32": float32, "float64": float64, **INTEGERS}

CASES: list[Case] = []


def case(arguments, grid=1, block=32, dtypes=(None,), dynamic=0, bounds=None):
    """Register a kernel, once for each dtype; `arguments` draws them from (random) or (random, dtype)."""

    def register(function):
        kernel = function if hasattr(function, "py_func") else cuda.jit(function)
        for dtype in dtypes:
            draw = arguments if dtype is None else functools.partial(_with_dtype, arguments, np.dtype(dtype))
            name = function.__name__ + ("" if dtype is None else f"-{np.dtype(dtype)}")
            CASES.append(Case(name, kernel, draw, grid, block, dynamic, bounds))
        return kernel

    return register


def _with_dtype(arguments, dtype, random):
    return arguments(random, dtype)


@contextmanager
def the_gpu_is_an_h200():
    """Let Numba compile with no GPU in the machine (engine.compile_ptx does the same)."""
    real = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=CC)
    try:
        yield
    finally:
        dispatcher.get_current_device = real


def numba_type(value: Any) -> Any:
    """The Numba type of an argument."""
    if isinstance(value, Sliced):
        return numba_types.Array(from_dtype(value.base.dtype), value.base[value.slices].ndim, "A")
    if isinstance(value, np.ndarray):
        return numba_types.Array(from_dtype(value.dtype), value.ndim, "C")
    if isinstance(value, tuple):
        return numba_types.BaseTuple.from_types(tuple(map(numba_type, value)))
    return from_dtype(np.asarray(value).dtype)


def compile_offline(kernel: Any, arguments: tuple) -> str:
    """A kernel's PTX."""
    with the_gpu_is_an_h200():
        return cuda.compile_ptx(kernel.py_func, tuple(map(numba_type, arguments)), cc=CC)[0]


def copied(value: Any) -> Any:
    """A copy of an argument, all the memory under it too."""
    if isinstance(value, Sliced):
        return Sliced(value.base.copy(), value.slices)
    return value.copy() if isinstance(value, np.ndarray) else value


def in_simulator(run: Case, arguments: tuple, schedule: Any = "forward") -> tuple:
    """The arguments as the simulator leaves them."""
    arguments = tuple(map(copied, arguments))
    views = [value.base[value.slices] if isinstance(value, Sliced) else value for value in arguments]
    simulate(run.kernel, schedule)[run.grid, run.block, 0, run.dynamic](*views)
    return arguments


def on_gpu(run: Case, arguments: tuple) -> tuple:
    """The arguments as the GPU leaves them."""
    bases, views = [], []
    for value in arguments:
        array = value.base if isinstance(value, Sliced) else value
        base = cuda.to_device(array) if isinstance(array, np.ndarray) else array
        bases.append(base)
        views.append(base[value.slices] if isinstance(value, Sliced) else base)
    run.kernel[run.grid, run.block, 0, run.dynamic](*views)
    cuda.synchronize()
    results = [base.copy_to_host() if hasattr(base, "copy_to_host") else base for base in bases]
    return tuple(
        Sliced(result, value.slices) if isinstance(value, Sliced) else result
        for value, result in zip(arguments, results, strict=True)
    )


def distance(simulated: np.ndarray, real: np.ndarray, unit: np.dtype) -> np.ndarray:
    """How far two results lie apart, elementwise: in ulp of `unit`; 0 only for equal bits (or two NaN)."""
    with np.errstate(all="ignore"):
        same = (simulated == real) & (np.signbit(simulated) == np.signbit(real)) | np.isnan(simulated) & np.isnan(real)
        larger = np.maximum(np.abs(simulated), np.abs(real)).astype(unit)
        ulp = np.abs(np.spacing(larger).astype(np.float64))
        gap = np.abs(simulated.astype(np.float64) - real.astype(np.float64)) / ulp
    gap = np.where(np.isnan(gap), np.inf, np.maximum(gap, 1e-3))  # 1e-3: zeros of different sign
    return np.where(same, 0.0, gap)


def assert_same(run: Case, arguments: tuple, simulated: tuple, real: tuple) -> None:
    """Hold the GPU's results to the simulator's."""
    failures = []
    for position, (mine, theirs) in enumerate(zip(simulated, real, strict=True)):
        mine, theirs = (value.base if isinstance(value, Sliced) else value for value in (mine, theirs))
        if not isinstance(mine, np.ndarray):
            continue
        if mine.dtype.kind != "f":
            wrong = mine != theirs
        else:
            bounds = run.bounds(mine) if callable(run.bounds) else Bound(0 if run.bounds is None else run.bounds)
            wrong = bounds.broken_by(mine, theirs)
        for index in map(tuple, np.argwhere(wrong)):
            failures.append((position, index, mine[index], theirs[index]))
    rows = {}
    for position, index, mine, theirs in failures:
        key = (position, index[0]) if run.labels is not str else position
        rows.setdefault(key, []).append(
            f"    argument {position} {list(map(int, index))}: simulator {mine!r}, GPU {theirs!r}"
            + (run.labels((arguments, index)) if run.labels is not str else "")
        )
    text = "\n".join("\n".join([*lines[:4], f"    … {len(lines)} of these"]) for lines in rows.values())
    assert not failures, f"{run.name} (seed {SEED}): {len(failures)} elements differ\n{text}"


@dataclass
class Bound:
    """So many ulp of `unit` (the array's dtype by default), or so much absolutely."""

    ulps: Any = 0
    absolute: Any = 0.0
    unit: Any = None

    def broken_by(self, mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        """Where two results are further apart."""
        gap = distance(mine, theirs, np.dtype(self.unit or mine.dtype))
        with np.errstate(all="ignore"):
            close = np.abs(mine.astype(np.float64) - theirs) <= self.absolute
        return (gap > self.ulps) & ~((self.absolute > 0) & close)


@dataclass
class Row:
    """An expression, and how far GPU and simulator may lie apart."""

    expression: str
    ulps: float = 0
    absolute: float = 0.0


def row(entry: Any) -> Row:
    """A row from "expression" or ("expression", CUDA's ulps[, absolute])."""
    if isinstance(entry, str):
        return Row(entry)
    expression, ulps, *absolute = entry
    return Row(expression, ulps + NUMPY if ulps else 0, *absolute)


@dataclass
class Table:
    """Expressions over named inputs, each an array from its maker; `out` is the dtype that results are stored in."""

    name: str
    inputs: dict[str, Callable[[np.random.Generator], np.ndarray]]
    rows: list[Row]
    out: str = "float64"
    unit: str | None = None  # the type of the results, where bounds count

    def arguments(self, random: np.random.Generator) -> tuple:
        """Inputs of one length, and the output."""
        arrays = [make(random) for make in self.inputs.values()]
        size = max(array.size for array in arrays)
        arrays = [np.resize(array, size) for array in arrays]
        return (*arrays, np.zeros((len(self.rows), size), self.out))

    def made(self, name: str, lines: list[str]) -> Any:
        """A function of this module made from source that tracebacks and the simulator can read."""
        filename = f"<{self.name} {name}>"
        source = "\n".join(lines) + "\n"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        namespace = dict(NAMES)
        exec(compile(source, filename, "exec"), namespace)
        return namespace[name]

    @functools.cached_property
    def kernel(self) -> Any:
        """The kernel: row k of the output is expression k."""
        names = list(self.inputs)
        lines = [f"def kernel({', '.join(f'{name}_' for name in names)}, out):", "    i = cuda.grid(1)"]
        lines += ["    if i < out.shape[1]:", *(f"        {name} = {name}_[i]" for name in names)]
        lines += [f"        out[{k}, i] = {row.expression}" for k, row in enumerate(self.rows)]
        return cuda.jit(self.made("kernel", lines))

    @property
    def case(self) -> Case:
        """The case of the kernel."""
        ulps, absolute = (np.array([[getattr(row, what)] for row in self.rows], float) for what in ("ulps", "absolute"))

        def bounds(array):
            table = array.shape[:1] == ulps.shape[:1] and array.ndim == 2
            return Bound(ulps, absolute, self.unit) if table else Bound()

        def labels(where):
            arguments, (k, i) = where
            inputs = ", ".join(
                f"{name} = {array[i]!r}" for name, array in zip(self.inputs, arguments[:-1], strict=True)
            )
            return f"   {self.rows[k].expression}, {inputs}, bound {self.rows[k].ulps} ulp"

        return Case(self.name, self.kernel, self.arguments, (4, 1), 64, bounds=bounds, labels=labels)

    def numba_types(self) -> list[str]:
        """The type that Numba infers for each expression."""
        values = self.arguments(np.random.default_rng(0))[:-1]
        signature = tuple(from_dtype(value.dtype) for value in values)
        rows = [f"{row.expression}, " for row in self.rows]  # Python makes long tuples in a way that Numba cannot read
        results = ", ".join(f"({''.join(rows[first : first + 16])})" for first in range(0, len(rows), 16))
        function = self.made("rows", [f"def rows({', '.join(self.inputs)}):", f"    return ({results},)"])
        with the_gpu_is_an_h200():
            returned = compile_function(function, signature, device=True, cc=CC, abi="numba")[1]
        return [kind_of_type(kind) for part in returned for kind in part]

    def simulated_types(self) -> list[str]:
        """The type of each expression in the simulator."""
        values = self.arguments(np.random.default_rng(0))[:-1]
        names = list(self.inputs)
        lines = ["def make(found):", f"    def kernel({', '.join(f'{name}_' for name in names)}):"]
        lines += [f"        {name} = {name}_[0]" for name in names]
        lines += [f"        found.append({row.expression})" for row in self.rows]
        found: list[Any] = []
        closed = self.made("make", [*lines, "    return kernel"])
        simulate(closed(found))[1, 1](*values)
        return list(map(kind_of_value, found))


def kind_of_type(kind: Any) -> str:
    """ "int", "uint", "bool", "float32", …; of an integer only the sign, as all are computed in 64 bits."""
    kind = numba_types.unliteral(kind)
    if isinstance(kind, numba_types.BaseTuple):
        return f"({', '.join(map(kind_of_type, kind))})"
    if isinstance(kind, numba_types.Integer):
        return "int" if kind.signed else "uint"
    return str(kind)


def kind_of_value(value: Any) -> str:
    """The same of a value in the simulator."""
    if isinstance(value, tuple):
        return f"({', '.join(map(kind_of_value, value))})"
    if isinstance(value, (bool, np.bool_)):
        return "bool"
    if isinstance(value, np.uint64) or getattr(value, "unsigned", False):
        return "uint"
    return "int" if isinstance(value, (int, np.int64)) else type(value).__name__


TABLES: list[Table] = []


def table(name, inputs, rows, out="float64", unit=None):
    """Register a table of expressions."""
    TABLES.append(Table(name, inputs, [row(entry) for entry in rows], out, unit))


# --- inputs ----------------------------------------------------------------------------------------------------------

SIZE = 96


def integers(dtype, low=None, high=None):
    """Make integers: the corners of the dtype, small ones, and any."""
    info = np.iinfo(dtype)
    low, high = info.min if low is None else low, info.max if high is None else high

    def make(random):
        drawn = random.integers(low, high, SIZE, dtype, endpoint=True)
        small = random.integers(max(low, -9), min(high, 9), 24, np.int64, endpoint=True)
        corners = [low, low + 1, high, high - 1, max(low, 0), 1]
        values = np.concatenate([np.array(corners, dtype), small.astype(dtype), drawn])[:SIZE]
        random.shuffle(values)
        return values

    return make


def floats(dtype, scale=8.0, special=True):
    """Make floats: normal ones, some that are whole or half, and (with `special`) zeros, infinities, NaN, extremes."""
    info = np.finfo(dtype)

    def make(random):
        drawn = random.standard_normal(SIZE - 40) * scale
        halves = random.integers(-12, 12, 16) / 2
        corners = [0.0, -0.0, np.inf, -np.inf, np.nan, info.max, -info.max, info.tiny, -info.tiny, info.eps]
        corners += [1, -1, info.smallest_subnormal, 3 * info.smallest_subnormal]
        values = np.concatenate([corners if special else [], halves, drawn]).astype(dtype)
        random.shuffle(values)
        return values

    return make


def between(dtype, low, high):
    """Make uniform floats."""
    return lambda random: random.uniform(low, high, SIZE).astype(dtype)


# --- tables: integers ------------------------------------------------------------------------------------------------

OPERATORS = ["x + y", "x - y", "x * y", "x & y", "x | y", "x ^ y", "x // y", "x % y"]
COMPARISONS = ["x == y", "x != y", "x < y", "x <= y", "x > y", "x >= y"]
UNARY = ["-x", "+x", "~x", "abs(x)", "not x", "bool(x)", "int(x)"]

# Signed with signed, and unsigned with unsigned, in 64 bits; INT64_MIN // -1 is nobody's, so 64-bit divisors are > 0.
for one, other in [
    ("int8", "int8"),
    ("int8", "int32"),
    ("int16", "int64"),
    ("int32", "int32"),
    ("int64", "int32"),
    ("uint8", "uint8"),
    ("uint16", "uint32"),
    ("uint32", "uint32"),
    ("uint8", "int32"),
    ("uint32", "int8"),
    ("uint32", "int64"),
]:
    table(
        f"integers-{one}-{other}",
        {"x": integers(one), "y": integers(other, 1) if "64" in one else integers(other)},
        [*OPERATORS, *COMPARISONS, "max(x, y)", "min(x, y)", "divmod(x, y)[0]", "divmod(x, y)[1]"],
        "int64",
    )
    table(f"division-{one}-{other}", {"x": integers(one), "y": integers(other)}, ["x / y"])
table(
    "integers-uint64",
    {"x": integers("uint64"), "y": integers("uint64")},
    [*OPERATORS, *COMPARISONS, "max(x, y)", "min(x, y)", "-x", "~x", "x << uint32(3)", "x >> uint32(3)", "x / y"],
    "uint64",
)
for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"):
    table(
        f"unary-{name}",
        {"x": integers(name, *((-(2**62),) if name == "int64" else ()))},
        [
            *UNARY,
            *(
                "x + 1",
                "x - 1000",
                "3 * x",
                "x // 3",
                "x // -3",
                "x % 7",
                "x % -7",
                "1000 // x",
                "1000 % x",
                "x & 0xFF",
            ),
            *("x ** 2", "x ** 3", "x << 5", "x >> 2", "x >> 31", "x == 1", "x and 5", "x - 1 if x > 3 else 7"),
            *(f"{kind}(x)" for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")),
            *("int8(x) + int8(x)", "uint32(x) - uint32(1000)", "uint8(x) * 2", "int16(x) >> 3", "uint32(x) >> 1"),
            *("cuda.popc(x)", "cuda.clz(x)", "cuda.popc(int32(x))", "cuda.clz(int32(x))", "cuda.ffs(int32(x))"),
            *("cuda.popc(int64(x))", "cuda.clz(int64(x))", "cuda.ffs(int64(x))", "cuda.brev(uint32(x))"),
            *(
                "cuda.popc(uint8(x))",
                "cuda.clz(uint16(x))",
                "cuda.selp(x > 2, int32(1), int32(2))",
                "int64(x).bit_count()",
            ),
        ],
        "int64",
    )
table(
    "shifts",
    {"x": integers("int64"), "u": integers("uint32"), "n": integers("int32", 0, 31)},
    [
        "x << n",
        "x >> n",
        "u << n",
        "u >> n",
        "int32(x) << n",
        "int32(x) >> n",
        "int8(x) >> n",
        "uint8(x) >> n",
        "1 << n",
    ],
    "int64",
)
table(
    "powers",
    {"x": integers("int64", -50, 50), "n": integers("int32", 0, 20)},
    ["x ** n", "pow(x, n)", "x ** 5", "2 ** n"],
    "int64",
)
for name in ("int8", "int16", "int32", "uint8", "uint16", "uint32"):  # a store wraps to the width of the array
    table(f"stores-{name}", {"x": integers("int64")}, ["x", "x * 3", "x - 1", "~x", "x + 0x7FFFFFFF"], name)
table("booleans", {"x": integers("int32"), "y": integers("int32")}, ["x", "x > y", "x and y", "x == y or x"], "bool")

# --- tables: floats --------------------------------------------------------------------------------------------------

FLOAT_OPERATORS = ["x + y", "x - y", "x * y", "x / y", "-x", "+x", "abs(x)"]
FLOOR = ["x // y", "x % y", "divmod(x, y)[0]", "divmod(x, y)[1]"]
EXTREMES = ["max(x, y)", "min(x, y)"]

for one, other in [("float32", "float32"), ("float64", "float64"), ("float32", "float64"), ("float64", "float32")]:
    table(
        f"floats-{one}-{other}",
        {"x": floats(one), "y": floats(other)},
        [
            *FLOAT_OPERATORS,
            *FLOOR,
            *COMPARISONS,
            *EXTREMES,
            "x < y or x != x",
            "1.5 if x > y else 2.5",
            "not x",
            "bool(x)",
        ],
    )
table(
    "floats-float16",
    {"x": floats("float16"), "y": floats("float16")},
    [*FLOAT_OPERATORS, *COMPARISONS, "float32(x) * float32(y)", "float64(x) + y", "x * x", "float(x)"],
)
table("floats-float16-float32", {"x": floats("float16"), "y": floats("float32")}, [*FLOAT_OPERATORS, *COMPARISONS])
for integer in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
    for real in ("float32", "float64"):
        table(
            f"mixed-{integer}-{real}",
            {"x": integers(integer), "y": floats(real)},
            ["x + y", "y - x", "x * y", "y / x", "x / y", "x < y", "y == x", "float32(x)", "float64(x)", "float(x)"],
        )
for real in ("float32", "float64"):
    table(
        f"literals-{real}",
        {"x": floats(real)},
        [
            *("x + 0.1", "0.1 * x", "x - 1e-3", "x / 3.0", "x * float32(0.1)", "x / 3", "1.0 / x", "1 / x", "x ** 2"),
            *("float32(0.1)", "0.1", "float32(x) + float32(1)", "float64(x) * 3.0", "x > 0.1", "x == 0.1"),
            *(
                "x ** 3",
                "x ** 4",
                "x ** 7",
                "x ** -1",
                "x ** -2",
                "float16(x)",
                "float32(x)",
                "float64(x)",
                "np.float32(x)",
            ),
            *("x * True", "max(x, 0.5)", "min(x, float32(0.5))", "3 if x > 2.5 else 4", "abs(x - 0.5)", "x and 0.5"),
        ],
    )
    table(
        f"casts-{real}",  # in range of every type, so that nothing saturates
        {"x": between(real, -100, 100)},
        [
            *(f"{kind}(x)" for kind in ("int8", "int16", "int32", "int64", "int", "np.int32", "np.int64")),
            *(f"{kind}(abs(x))" for kind in ("uint8", "uint16", "uint32", "uint64")),
            *("round(x)", "round(x * 0.25)", "int32(math.floor(x))", "int64(math.ceil(x))", "int32(-x)", "int(x) // 3"),
        ],
        "int64",
    )
    table(f"stored-casts-{real}", {"x": between(real, -100, 100)}, ["x", "x * 0.5", "-x"], "int32")
    table(
        f"round-{real}", {"x": between(real, -100, 100)}, ["round(x, 1)", "round(x, 2)", "round(x, 0)", "round(x, -1)"]
    )
table(
    "stores-float16", {"x": floats("float32"), "y": floats("float64", 100)}, ["x", "y", "x * x", "y / 3.0"], "float16"
)
table("stores-float32", {"x": floats("float64", 1e3)}, ["x", "x * x", "x / 3.0", "1e300 * x"], "float32")

# --- tables: math ----------------------------------------------------------------------------------------------------

# CUDA's documented maximum error in ulp, float32 and float64. None of them depends on the domain but lgamma's.
ULPS = {
    **{"exp": (1, 1), "exp2": (2, 1), "exp10": (2, 1), "expm1": (1, 1), "log": (1, 1), "log2": (1, 1), "log10": (2, 1)},
    **{"log1p": (1, 1), "sin": (2, 2), "cos": (2, 2), "tan": (4, 2), "asin": (2, 2), "acos": (2, 2), "atan": (2, 2)},
    **{"atan2": (3, 2), "sinh": (3, 2), "cosh": (2, 1), "tanh": (2, 1), "asinh": (3, 3), "acosh": (4, 3)},
    **{"atanh": (3, 2), "pow": (4, 2), "erf": (2, 2), "erfc": (4, 5), "lgamma": (6, 4), "tgamma": (11, 10)},
    **{"gamma": (11, 10), "hypot": (3, 2), "cbrt": (1, 1), "rcbrt": (1, 1), "rsqrt": (2, 1), "sinpi": (1, 2)},
    **{"cospi": (1, 2), "sincos": (2, 2), "powi": (4, 2)},
    # 0.5·erfc(-x/√2): rounding the argument costs x² half-ulps on top, here 4²
    "normcdf": (5 + 16, 5 + 16),
}
# Python's lgamma is right to 1e-15 absolutely where it nearly vanishes; sin(π·x) of an exact multiple is not quite 0.
ABSOLUTE = {"lgamma": 1e-14, "sinpi": 1e-15, "cospi": 1e-15, "sincos": 0.0}

MATH_UNARY = ["exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh"]
MATH_UNARY += ["asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc"]
for position, real in enumerate(("float32", "float64")):
    table(
        f"math-{real}",
        {"x": floats(real, 2.0)},
        [
            *((f"math.{name}(x)", ULPS[name][position]) for name in MATH_UNARY),
            *(f"math.{name}(x)" for name in ("sqrt", "fabs", "ceil", "floor", "trunc", "isnan", "isinf", "isfinite")),
            *("math.modf(x)[0]", "math.modf(x)[1]", "math.frexp(x)[0]", "math.ldexp(x, 3)", "math.degrees(x)"),
            *("math.radians(x)", "math.floor(x * 0.5)", "math.pi", "math.e", "math.inf"),
        ],
        unit=real,
    )
    table(
        f"gamma-{real}",
        {"x": between(real, 0.01, 20)},
        [("math.gamma(x)", ULPS["gamma"][position]), ("math.lgamma(x)", ULPS["lgamma"][position], 1e-14)],
        unit=real,
    )
    table(
        f"math-two-{real}",
        {"x": floats(real), "y": floats(real)},
        [
            *((f"math.{name}(x, y)", ULPS[name][position]) for name in ("atan2", "hypot", "pow")),
            *(f"math.{name}(x, y)" for name in ("copysign", "fmod", "remainder", "nextafter")),
            *(("x ** y", ULPS["pow"][position]), ("abs(x) ** 0.5", ULPS["pow"][1])),
            *("cuda.fma(x, y, x)", "cuda.fma(x, y, -y)", "cuda.selp(x > y, x, y)", ("cuda.cbrt(x)", 1)),
        ],
        unit=real,
    )
table(
    "math-float16",
    {"x": floats("float16", 2.0)},
    [f"math.{name}(x)" for name in ("ceil", "floor", "trunc", "fabs")] + [("math.sqrt(x)", 1)],
    unit="float16",
)
table(
    "math-int64",
    {"x": integers("int64", -40, 40), "y": integers("int64", -40, 40)},
    ["math.sqrt(x)", ("math.exp(x)", 1), ("math.log(x)", 1), "math.fabs(x)", "math.isnan(x)", ("math.hypot(x, y)", 2)],
    unit="float64",
)

# --- tables: NumPy's scalar functions that Numba compiles for a GPU --------------------------------------------------

NUMPY_NAMES = {
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
}
for position, real in enumerate(("float32", "float64")):
    table(
        f"numpy-{real}",
        {"x": floats(real, 2.0), "y": floats(real, 2.0)},
        [
            *(
                (f"np.{name}(x)", ULPS[NUMPY_NAMES.get(name, name)][position])
                for name in ("log", "log2", "log10", "sin", "cos", "tan", "sinh", "cosh", "tanh", *NUMPY_NAMES)
            ),
            *(("np.arctan2(x, y)", ULPS["atan2"][position]), ("np.hypot(x, y)", ULPS["hypot"][position])),
            *("np.isnan(x)", "np.maximum(x, y)", "np.minimum(x, y)", "np.fmax(x, y)"),
            *("np.fmin(x, y)", "np.greater(x, y)", "np.less_equal(x, y)", "np.equal(x, y)", "np.logical_and(x, y)"),
            *("np.true_divide(x, y)", "np.deg2rad(x)"),
        ],
        unit=real,
    )


# --- the tests -------------------------------------------------------------------------------------------------------

ALL = [*CASES, *(table.case for table in TABLES)]


def named(items):
    """Parametrise by items that have a name."""
    return pytest.mark.parametrize("item", items, ids=lambda item: item.name)


@named(ALL)
def test_it_compiles_for_the_gpu_and_runs_in_the_simulator(item):
    arguments = item.drawn()
    assert ".visible .entry" in compile_offline(item.kernel, arguments)
    forward = in_simulator(item, arguments)
    assert_same(item, arguments, forward, in_simulator(item, arguments, "reverse"))


@named(TABLES)
def test_every_expression_has_the_type_that_numba_infers(item):
    for row, simulated, real in zip(item.rows, item.simulated_types(), item.numba_types(), strict=True):
        assert simulated == real, row.expression


@needs_gpu
@named(ALL)
def test_the_gpu_computes_the_same(item):
    arguments = item.drawn()
    assert_same(item, arguments, in_simulator(item, arguments), on_gpu(item, arguments))
