"""The simulator held to the hardware: one and the same kernel on a GPU and in `simulate`, on fresh random inputs.

Two kinds of kernels. A *case* is written out below, under `@case`: warps, barriers, memory, atomics, indexing. A
*table* is a list of expressions over one element of each argument; its kernel is made from them.

Without a GPU every kernel is still compiled (to PTX, for the H200) and run in the simulator, and every expression's
type is held to the type that Numba's compiler infers. On a GPU the results are held to the simulator's: bit for bit
(NaN equals NaN) wherever IEEE 754 or the operation's definition leaves no choice, else within the bound that stands
beside the expression.

Bounds are in ulp of the result's type: CUDA's maximum (CUDA C++ Programming Guide, "Mathematical Functions"; the
numbers are from memory, not yet compared with the guide) plus `NUMPY`, because the simulator's own functions are
NumPy's, and NumPy lets its vectorised ones err by up to 4 ulp.
"""

import functools
import linecache
import math
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64
from numba.cuda import compiler, libdevicefuncs
from numba.cuda import types as numba_types
from numba.cuda.np.numpy_support import from_dtype
from numba.cuda.random import (
    xoroshiro128p_dtype,
    xoroshiro128p_normal_float32,
    xoroshiro128p_normal_float64,
    xoroshiro128p_uniform_float32,
    xoroshiro128p_uniform_float64,
)

from normlab.engine.compile import offline
from normlab.sim import simulate
from normlab.sim.language.integers import BOOLS
from normlab.sim.language.libdevice import LIBDEVICE

needs_gpu = pytest.mark.skipif(not cuda.is_available(), reason="needs a GPU")

float16 = numba_types.float16
FULL = 0xFFFFFFFF
NUMPY = 4
CC = (9, 0)
SEED = int(os.environ.get("NORMLAB_SEED", secrets.randbits(32)))  # fresh inputs in every run; a failure prints it


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


def numba_type(value: Any) -> Any:
    """The Numba type of an argument."""
    if isinstance(value, Sliced):
        return numba_types.Array(from_dtype(value.base.dtype), value.base[value.slices].ndim, "A")
    if isinstance(value, np.ndarray):
        return numba_types.Array(from_dtype(value.dtype), value.ndim, "C")
    if isinstance(value, tuple):
        return numba_types.BaseTuple.from_types(tuple(map(numba_type, value)))
    return from_dtype(np.asarray(value).dtype)


def compile_offline(kernel: Any, arguments: tuple) -> dict[str, Any]:
    """Compile a kernel to PTX, and return the type of every variable in it."""
    real, compiled = compiler.compile_cuda, []

    def compile_cuda(*parameters, **options):
        compiled.append(real(*parameters, **options))
        return compiled[-1]

    compiler.compile_cuda = compile_cuda
    try:
        with offline.compiling(CC):
            ptx = cuda.compile_ptx(kernel.py_func, tuple(map(numba_type, arguments)), cc=CC)[0]
    finally:
        compiler.compile_cuda = real
    assert ".visible .entry" in ptx
    return compiled[-1].type_annotation.typemap


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
    """How far two results lie apart, elementwise: in ulp of `unit`; 0 only for equal bits (or two NaN).

    An infinity is the number that follows the largest one (our reading of CUDA's ulp error): a result one ulp
    too large overflows (`hypot(1, 1.797e308)` does).
    """
    top = np.finfo(unit).maxexp
    with np.errstate(all="ignore"):
        same = (simulated == real) & (np.signbit(simulated) == np.signbit(real)) | np.isnan(simulated) & np.isnan(real)
        below = np.nextafter(np.finfo(unit).max, np.dtype(unit).type(0))
        larger = np.minimum(np.maximum(np.abs(simulated), np.abs(real)), below).astype(unit)
        ulp = np.abs(np.spacing(larger).astype(np.float64))
        gap = np.abs(simulated.astype(np.float64) - real.astype(np.float64)) / ulp
        halves = [np.where(np.isinf(v), np.sign(v) * 2.0 ** (top - 1), v * 0.5) for v in (simulated, real)]
        overflown = np.abs(halves[0].astype(np.float64) - halves[1]) / (ulp * 0.5)
        gap = np.where(np.isinf(simulated) | np.isinf(real), overflown, gap)
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
        makers = list(self.inputs.values())
        arrays = [make(random) for make in makers]
        if len(makers) > 1 and all(hasattr(make, "corners") for make in makers[:2]):  # every corner with every other
            pairs = np.meshgrid(makers[0].corners, makers[1].corners)
            arrays[:2] = [np.append(corner, array) for corner, array in zip(pairs, arrays[:2], strict=True)]
        size = max(array.size for array in arrays)
        arrays = [np.resize(array, size) for array in arrays]
        assert size <= 6 * 64, "more than the threads of `case`"
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
        lines = [f"def kernel({', '.join(f'{name}_' for name in names)}, out):", "    at = cuda.grid(1)"]
        lines += ["    if at < out.shape[1]:", *(f"        {name} = {name}_[at]" for name in names)]
        for k, row in enumerate(self.rows):
            lines += [f"        row{k} = {row.expression}", f"        out[{k}, at] = row{k}"]
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

        return Case(self.name, self.kernel, self.arguments, 6, 64, bounds=bounds, labels=labels)

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
    if isinstance(value, BOOLS):
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
        small = random.integers(max(low, -9), min(high, max(9, low + 9)), 24, np.int64, endpoint=True)
        values = np.concatenate([make.corners, small.astype(dtype), drawn])[:SIZE]
        random.shuffle(values)
        return values

    corners = [low, low + 1, high, high - 1, max(low, 0), 1]
    make.corners = np.array(corners + [2**53, 2**53 + 1] * (high > 2**53), dtype)  # equal as float64
    return make


def floats(dtype, scale=8.0, special=True):
    """Make floats: normal ones, some that are whole or half, and (with `special`) zeros, infinities, NaN, extremes."""
    info = np.finfo(dtype)

    def make(random):
        drawn = random.standard_normal(SIZE - 40) * scale
        halves = random.integers(-12, 12, 16) / 2
        values = np.concatenate([make.corners, halves, drawn]).astype(dtype)
        random.shuffle(values)
        return values

    corners = [0.0, -0.0, np.inf, -np.inf, np.nan, info.max, -info.max, info.tiny, -info.tiny, info.eps]
    corners += [1, -1, info.smallest_subnormal, 3 * info.smallest_subnormal]
    make.corners = np.array(corners if special else [1.0, -1.0], dtype)
    return make


def bools(random):
    """Make bools."""
    return random.integers(0, 2, SIZE).astype(np.bool_)


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
    ("int32", "int32"),
    ("int64", "int32"),
    ("uint8", "uint8"),
    ("uint32", "uint32"),
    ("uint8", "int32"),
    ("int16", "uint32"),
    ("uint32", "int64"),
]:
    table(
        f"integers-{one}-{other}",
        {"x": integers(one), "y": integers(other, 1) if "64" in one else integers(other)},
        [*OPERATORS, *COMPARISONS, "max(x, y)", "min(x, y)", "divmod(x, y)[0]", "divmod(x, y)[1]"],
        "int64",
    )
for one, other in [("int32", "int32"), ("uint8", "int32"), ("uint32", "int64")]:
    table(f"division-{one}-{other}", {"x": integers(one), "y": integers(other)}, ["x / y"])
table(
    "integers-uint64",
    {"x": integers("uint64"), "y": integers("uint64")},
    [
        *OPERATORS,
        *COMPARISONS,
        *("max(x, y)", "min(x, y)", "-x", "~x", "abs(x) + 1", "x << uint32(3)", "x >> uint32(3)", "x / y"),
    ],
    "uint64",
)
for other in ("int8", "int64", "uint32"):
    table(
        f"integers-uint64-{other}",
        {"x": integers("uint64"), "y": integers(other)},
        [
            *COMPARISONS,
            *("y < x", "y == x", "max(x, y)", "min(y, x)", "max(x, 1)", "min(2**63 - 1, x)"),
            *("x > 9007199254740992", "9007199254740993 == x", "divmod(x, 3)[0]", "divmod(x, y)[1]", "divmod(y, x)[0]"),
        ],
    )
for name in ("int8", "int32", "int64", "uint8", "uint32"):
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
table(
    "bools of arrays",
    {"x": bools, "y": bools, "n": integers("int32")},
    [
        *("x + y", "x - y", "x * y", "x & y", "x | y", "x ^ y", "-x", "+x", "~x", "abs(x)", "not x", "int(x)", "x"),
        *("(x & y) + (x | y)", "~x + ~y", "(x ^ True) - y", "(x and y) + x", "(x if n > 0 else y) - 1", "~int(x)"),
        *("x + n", "n - x", "x * n", "x & n", "x << 3", "x >> 1", "x ** 2", "x // 3", "x % 3", "x == y", "x < y"),
        *("x != n", "max(x, y)", "min(x, y)", "bool(x) + bool(y)", "(x > 0) + y"),
    ],
    "int64",
)
table(
    "bools and floats",
    {"x": bools, "f": floats("float32", 1e3, False)},
    ["x + f", "f - x", "x * f", "x / f", "f / x", "x + 2.5", "x / 3", "float32(x)", "x + x * f"],
)
table("booleans", {"x": integers("int32"), "y": integers("int32")}, ["x", "x > y", "x and y", "x or y"], "bool")

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
    for real in ("float32", "float64") if integer in ("int32", "uint64") else ("float32",):
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

# --- tables: Python's ints ------------------------------------------------------------------------------------------

table(
    "literal-ints",
    {
        **{"x": floats("float32", 1e3, False), "h": floats("float16", 1e3, False), "i": integers("int32", -9, 9)},
        **{"u": integers("uint64", 2**60), "n": integers("int64", 1, 99)},
    },
    [
        *("x * 3", "x + 1", "2 * x", "x - 1", "x // 2", "x % 2", "x * (cuda.threadIdx.x + 3)", "x * cuda.blockDim.x"),
        *("h * 3", "x * i", "x + n", "u + n", "u * 2", "u - 9", "u // 2", "(u - 9) / 2", "u >> 1", "u & 1", "u / 3"),
        *("(i > 0) + (i < 5)", "(i > 0) - (i < 5)", "(i > 0) * 2", "(i > 0) * x", "x * True", "-(i > 0)"),
    ],
)

# --- tables: math ----------------------------------------------------------------------------------------------------

# CUDA's maximum error in ulp (from memory), float32 and float64. None of them depends on the domain but lgamma's.
ULPS = {
    **{"exp": (1, 1), "exp2": (2, 1), "exp10": (2, 1), "expm1": (1, 1), "log": (1, 1), "log2": (1, 1), "log10": (2, 1)},
    **{"log1p": (1, 1), "sin": (2, 2), "cos": (2, 2), "tan": (4, 2), "asin": (2, 2), "acos": (2, 2), "atan": (2, 2)},
    **{"atan2": (3, 2), "sinh": (3, 2), "cosh": (2, 1), "tanh": (2, 1), "asinh": (3, 3), "acosh": (4, 3)},
    **{"atanh": (3, 2), "pow": (4, 2), "erf": (2, 2), "erfc": (4, 5), "lgamma": (6, 4), "tgamma": (11, 10)},
    **{"gamma": (11, 10), "hypot": (3, 2), "cbrt": (1, 1), "rcbrt": (1, 1), "rsqrt": (2, 1), "sinpi": (1, 2)},
    **{"cospi": (1, 2), "sincos": (2, 2), "powi": (4, 2)},
    **{"erfinv": (2, 5), "erfcinv": (4, 6), "erfcx": (4, 4), "normcdfinv": (5, 8), "sincospi": (2, 2)},
    # What CUDA states of Bessel functions is relative up to |x| = 8, and absolute beyond (below).
    **{name: (9, 7) for name in ("j0", "j1", "jn", "y0", "y1")},
    "yn": (25, 25),  # CUDA states 2 + 2.5·n, and here n is 9 at most
    # 0.5·erfc(-x/√2): rounding the argument costs x² half-ulps on top, here 4²
    "normcdf": (5 + 16, 5 + 16),
}
# Python's lgamma is right to 1e-15 absolutely where it nearly vanishes; sin(π·x) of an exact multiple is not quite 0.
ABSOLUTE = {"lgamma": 1e-14, "sinpi": 1e-15, "cospi": 1e-15, "sincos": 0.0, "sincospi": 1e-15}
BESSEL = {"float32": 3e-6, "float64": 5e-12}  # absolutely, CUDA's; near a zero of the function it is far more than ulps

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
        {"x": floats(real, 2.0, False), "y": floats(real, 2.0, False)},
        [
            *(
                (f"np.{name}(x)", ULPS[NUMPY_NAMES.get(name, name)][position])
                for name in ("log", "log2", "log10", "sin", "cos", "tan", "sinh", "cosh", "tanh", *NUMPY_NAMES)
            ),
            *(("np.arctan2(x, y)", ULPS["atan2"][position]), ("np.hypot(x, y)", ULPS["hypot"][position])),
            *("np.isnan(x)", "np.maximum(x, y)", "np.minimum(x, y)", "np.fmax(x, y)"),
            *("np.fmin(x, y)", "np.greater(x, y)", "np.less_equal(x, y)", "np.equal(x, y)", "np.logical_and(x, y)"),
            *("np.true_divide(x, y)", ("np.deg2rad(x)", 1)),
        ],
        unit=real,
    )


# --- tables: cuda.libdevice and cuda.fp16 ----------------------------------------------------------------------------

# CUDA's bound of a fast_ function holds on an interval (here 0.5 to 1.4) and partly absolutely: 2**-21.41 and the like.
# The tangent divides two such, the cosine of 1.4 being 0.17.
FAST = {name: (8, 1e-6) for name in ("fast_cosf", "fast_sinf", "fast_logf", "fast_log2f", "fast_log10f")}
FAST |= {name: (8, 0.0) for name in ("fast_expf", "fast_exp10f", "fast_powf", "fast_fdividef")}
FAST |= {"fast_sincosf": (8, 1e-6), "fast_tanf": (64, 0.0)}


def inputs_of(name):
    """What a libdevice function is given floats of: which maker, and what to call it."""
    if name.startswith("fast"):
        return "near-one", lambda real: between(real, 0.5, 1.4)
    if "gamma" in name:
        return "positive", lambda real: between(real, 0.01, 20)
    if (
        "normcdf" in name
        or name.startswith("ll")
        or "2int" in name
        or "2uint" in name
        or "2ll" in name
        or "2ull" in name
    ):
        return "moderate", lambda real: between(real, -4, 4)
    return "any", lambda real: floats(real, 2.0)


def libdevice_tables():
    """One table for each list of argument types of the libdevice functions that the simulator has."""
    groups: dict[tuple, list] = {}
    makers = {}
    for name in sorted(name for name in vars(LIBDEVICE) if not name.startswith("_")):
        returned, parameters = libdevicefuncs.functions[f"__nv_{name}"]
        takes = tuple(str(parameter.ty) for parameter in parameters if not parameter.is_ptr)
        base = name if name in ULPS else name.removesuffix("f")
        bound: tuple = (0,)
        if name in FAST:
            bound = FAST[name]
        elif base in ULPS:
            bound = (ULPS[base]["float32" not in takes], ABSOLUTE.get(base, 0.0))
            if base in ("j0", "j1", "jn", "y0", "y1", "yn"):
                bound = bound[0], BESSEL[takes[-1]]
        call = f"cuda.libdevice.{name}({'abs(x)' if '2u' in name else ', '.join('xyz'[: len(takes)])})"
        if base == "jn":  # CUDA's recurrence overflows for a tiny y: an H100 gave NaN below 2^-45, from n = 2 on
            call = f"cuda.libdevice.{name}(x, y if abs(y) > 1e-9 else 0 * y)"
        results = sum(parameter.is_ptr for parameter in parameters) + (returned != numba_types.void)
        rows = [call] if results == 1 else [f"{call}[{position}]" for position in range(results)]
        kind, maker = inputs_of(name) if takes[0].startswith("float") else ("any", None)
        out = "int64" if str(returned).startswith("int") else "float64"
        groups.setdefault((takes, kind, out), []).extend((row, *bound) for row in rows)
        makers[kind] = makers.get(kind) or maker
    for (takes, kind, out), rows in groups.items():
        small = (-9, 9) if len(set(takes)) > 1 else ()  # an exponent
        inputs = [makers[kind](name) if name.startswith("float") else integers(name, *small) for name in takes]
        unit = next((name for name in takes if name.startswith("float")), None)
        table("-".join(["libdevice", *takes, kind, out]), dict(zip("xyz", inputs, strict=False)), rows, out, unit)


libdevice_tables()
table(
    "fp16",
    {"x": floats("float16", 4.0), "y": floats("float16", 4.0), "z": floats("float16", 4.0)},
    [
        *(f"cuda.fp16.h{name}(x, y)" for name in ("add", "sub", "mul", "div", "max", "min")),
        *(f"cuda.fp16.h{name}(x, y)" for name in ("eq", "ne", "ge", "gt", "le", "lt")),
        *(f"cuda.fp16.h{name}(x)" for name in ("neg", "abs", "ceil", "floor", "rint", "trunc")),
        "cuda.fp16.hfma(x, y, z)",
        # CUDA gives no table for half: its header computes in float32 and rounds, which may move the last bit
        *((f"cuda.fp16.h{name}(x)", 1) for name in ("sqrt", "rsqrt", "rcp", "log", "log2", "log10", "exp", "exp2")),
        *((f"cuda.fp16.h{name}(x)", 2) for name in ("exp10", "sin", "cos")),
    ],
    unit="float16",
)

# --- cases: threads, blocks and grids --------------------------------------------------------------------------------


def zeros(*shapes, dtype="int64"):
    """Draw nothing: arrays of zeros, one a shape."""
    return lambda random: tuple(np.zeros(shape, dtype) for shape in shapes)


@case(zeros((4, 70)), grid=2, block=35)
def indices_1d(out):
    i = cuda.grid(1)
    out[0, i] = i
    out[1, i] = cuda.gridsize(1) * 1000 + cuda.blockDim.x * cuda.gridDim.x
    out[2, i] = cuda.laneid + 100 * cuda.warpsize
    out[3, i] = cuda.threadIdx.x + 1000 * cuda.blockIdx.x


@case(zeros((3, 6, 35)), grid=(2, 5), block=(3, 7))
def indices_2d(out):
    x, y = cuda.grid(2)
    width, height = cuda.gridsize(2)
    out[0, x, y] = x * height + y + width * 100000
    out[1, x, y] = cuda.laneid
    out[2, x, y] = cuda.threadIdx.x + 10 * cuda.threadIdx.y + 100 * cuda.blockIdx.x + 1000 * cuda.blockIdx.y


@case(zeros((2, 6, 4, 6)), grid=(2, 1, 3), block=(3, 4, 2))
def indices_3d(out):
    x, y, z = cuda.grid(3)
    a, b, c = cuda.gridsize(3)
    out[0, x, y, z] = (x * b + y) * c + z + a * 100000
    out[1, x, y, z] = cuda.laneid + 100 * (cuda.blockDim.z + cuda.gridDim.z * 10)


@case(lambda random: (random.standard_normal(1000).astype(np.float32), np.zeros(1000)), grid=3, block=64)
def grid_stride_loop(x, out):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        out[i] = x[i] * 2.5


# --- cases: warps ----------------------------------------------------------------------------------------------------

MASKS = (FULL, 0x0000FFFF, 0xFFFF0000, 0x33333333, 0x80000001)
SHUFFLED = ("int32", "int64", "float32", "float64")


def values(random, dtype, shape):
    """Draw any values of a dtype."""
    if dtype.kind == "f":
        return (random.standard_normal(shape) * 1e3).astype(dtype)
    info = np.iinfo(dtype)
    return random.integers(info.min, info.max, shape, dtype, endpoint=True)


def shuffled(random, dtype):
    """Draw values, lanes to read, and offsets that every lane shares; a row of the output for every mask."""
    by = np.zeros((len(MASKS), 32), np.int32)
    for row, mask in enumerate(MASKS):
        by[row] = random.choice([lane for lane in range(32) if mask >> lane & 1], 32)
    return values(random, dtype, 32), by, np.int32(random.integers(0, 32)), np.zeros((16, 32), dtype)


@case(shuffled, dtypes=SHUFFLED)
def shuffles(x, by, offset, out):
    lane = cuda.laneid
    mine = x[lane]
    out[0, lane] = cuda.shfl_sync(0xFFFFFFFF, mine, by[0, lane])
    out[1, lane] = cuda.shfl_up_sync(0xFFFFFFFF, mine, offset)
    out[2, lane] = cuda.shfl_down_sync(0xFFFFFFFF, mine, offset)
    out[3, lane] = cuda.shfl_xor_sync(0xFFFFFFFF, mine, offset)
    if lane < 16:  # a mask that is all of a branch
        out[4, lane] = cuda.shfl_sync(0x0000FFFF, mine, by[1, lane])
        out[5, lane] = cuda.shfl_up_sync(0x0000FFFF, mine, offset)
        out[6, lane] = cuda.shfl_xor_sync(0x0000FFFF, mine, offset & 15)
    else:
        out[4, lane] = cuda.shfl_sync(0xFFFF0000, mine, by[2, lane])
        out[5, lane] = cuda.shfl_down_sync(0xFFFF0000, mine, offset)
        out[6, lane] = cuda.shfl_xor_sync(0xFFFF0000, mine, offset & 15)
    if lane % 4 < 2:
        out[7, lane] = cuda.shfl_sync(0x33333333, mine, by[3, lane])
        out[8, lane] = cuda.shfl_xor_sync(0x33333333, mine, (offset & 0x1C) | 1)
    if lane == 0 or lane == 31:
        out[9, lane] = cuda.shfl_sync(0x80000001, mine, by[4, lane])
        out[10, lane] = cuda.shfl_xor_sync(0x80000001, mine, 31)
    out[11, lane] = cuda.shfl_sync(0xFFFFFFFF, mine, lane)  # its own
    out[12, lane] = cuda.shfl_sync(0xFFFFFFFF, mine, by[0, lane] + 32)  # five bits count
    out[13, lane] = cuda.shfl_up_sync(0xFFFFFFFF, mine, offset + 32)
    total = mine
    for step in (16, 8, 4, 2, 1):
        total = max(total, cuda.shfl_down_sync(0xFFFFFFFF, total, step))
    out[14, lane] = total


@case(shuffled, dtypes=SHUFFLED)
def one_shuffle_in_two_branches(x, by, offset, out):
    lane = cuda.laneid
    if lane % 2:
        out[0, lane] = cuda.shfl_xor_sync(0xFFFFFFFF, x[lane], 1)
    else:
        out[1, lane] = cuda.shfl_xor_sync(0xFFFFFFFF, x[31 - lane], 1)


@case(lambda random: (values(random, np.dtype("float32"), 32), np.zeros((2, 32), np.float32)))
def butterfly_sum(x, out):
    lane = cuda.laneid
    total = x[lane]
    for k in range(5):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 1 << k)
    out[0, lane] = total
    total = x[lane]
    for k in range(5):
        below = cuda.shfl_up_sync(0xFFFFFFFF, total, 1 << k)
        if lane >= 1 << k:
            total += below
    out[1, lane] = total


@case(lambda random: (values(random, np.dtype("float64"), 64), np.zeros((2, 64))), block=64)
def early_return_and_a_narrower_mask(x, out):
    t = cuda.threadIdx.x
    if t % 32 >= 20:
        return
    out[0, t] = cuda.shfl_sync(0x000FFFFF, x[t], 19)
    if t % 32 >= 8:
        return
    out[1, t] = cuda.shfl_xor_sync(0x000000FF, x[t], 7)


@case(lambda random: (values(random, np.dtype("int32"), 40), np.zeros((3, 40), np.int32)), block=40)
def a_partial_warp(x, out):
    t = cuda.threadIdx.x
    if t < 32:
        out[0, t] = cuda.shfl_down_sync(0xFFFFFFFF, x[t], 3)
        out[1, t] = cuda.ballot_sync(0xFFFFFFFF, x[t] > 0)
    else:
        out[0, t] = cuda.shfl_xor_sync(0x000000FF, x[t], 5)
        out[1, t] = cuda.ballot_sync(0x000000FF, x[t] > 0)
    out[2, t] = cuda.lanemask_lt()


def predicates(random):
    """Draw predicates: mixed, all, none, one."""
    return np.array([random.integers(0, 3, 32), np.full(32, 5), np.zeros(32), np.arange(32) == 7], np.int32), np.zeros(
        (4, 10, 32), np.int64
    )


@case(predicates)
def votes(given, out):
    lane = cuda.laneid
    for k in range(4):
        p = given[k, lane]
        out[k, 0, lane] = cuda.all_sync(0xFFFFFFFF, p)
        out[k, 1, lane] = cuda.any_sync(0xFFFFFFFF, p)
        out[k, 2, lane] = cuda.eq_sync(0xFFFFFFFF, p)
        out[k, 3, lane] = cuda.ballot_sync(0xFFFFFFFF, p)
        out[k, 4, lane] = cuda.ballot_sync(0xFFFFFFFF, p > 1)
        out[k, 5, lane] = cuda.popc(cuda.ballot_sync(0xFFFFFFFF, p) & cuda.lanemask_lt())
        if lane >= 5:
            out[k, 6, lane] = cuda.all_sync(0xFFFFFFE0, p)
            out[k, 7, lane] = cuda.any_sync(0xFFFFFFE0, p)
            out[k, 8, lane] = cuda.eq_sync(0xFFFFFFE0, p == 2)
            out[k, 9, lane] = cuda.ballot_sync(0xFFFFFFE0, p)


def matched(random, dtype):
    """Draw values of few kinds, and among floats NaN, 0.0 and -0.0."""
    few = [1, 2, 3] if dtype.kind == "i" else [np.nan, 0.0, -0.0, 1.5]
    return np.array([random.choice(few, 32), np.full(32, few[0])], dtype), np.zeros((2, 6, 32), np.int64)


@case(matched, dtypes=SHUFFLED)
def matches(x, out):
    lane = cuda.laneid
    for k in range(2):
        out[k, 0, lane] = cuda.match_any_sync(0xFFFFFFFF, x[k, lane])
        same, agreed = cuda.match_all_sync(0xFFFFFFFF, x[k, lane])
        out[k, 1, lane] = same
        out[k, 2, lane] = agreed
        if lane < 11:
            out[k, 3, lane] = cuda.match_any_sync(0x000007FF, x[k, lane])
            same, agreed = cuda.match_all_sync(0x000007FF, x[k, lane])
            out[k, 4, lane] = same
            out[k, 5, lane] = agreed


@case(zeros((2, 64)), block=64)
def active_lanes(out):
    t = cuda.threadIdx.x
    if t % 32 < 5:
        return
    if t % 2:
        out[0, t] = cuda.activemask()
    cuda.syncwarp(0xFFFFFFE0)
    out[1, t] = cuda.lanemask_lt()


@case(lambda random: (values(random, np.dtype("float32"), 96), np.zeros(96, np.float32)), block=96)
def exchange_within_warps(x, out):
    shared = cuda.shared.array(96, float32)
    t = cuda.threadIdx.x
    shared[t] = x[t]
    cuda.syncwarp()
    out[t] = shared[t ^ 31]


# --- cases: barriers and memory --------------------------------------------------------------------------------------


@case(lambda random: (random.integers(0, 3, 100, np.int32), np.zeros((4, 100), np.int64)), block=100)
def barriers_that_vote(x, out):
    t = cuda.threadIdx.x
    out[0, t] = cuda.syncthreads_count(x[t])
    out[1, t] = cuda.syncthreads_and(x[t])
    out[2, t] = cuda.syncthreads_or(x[t] & 1)
    out[3, t] = cuda.syncthreads_and(int32(t >= 0)) + 10 * cuda.syncthreads_or(int32(t > 200))


@case(lambda random: (values(random, np.dtype("float32"), (3, 128)), np.zeros(3, np.float32)), grid=3, block=128)
def tree_sum(x, out):
    partial = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    partial[t] = x[cuda.blockIdx.x, t]
    cuda.syncthreads()
    half = 64
    while half > 0:
        if t < half:
            partial[t] += partial[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        out[cuda.blockIdx.x] = partial[0]


@case(lambda random: (values(random, np.dtype("float32"), (16, 16)), np.zeros((16, 16), np.float32)), block=(16, 16))
def transpose_through_shared_memory(x, out):
    tile, other = cuda.shared.array((16, 17), float32), cuda.shared.array((16, 16), float32)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    tile[j, i] = x[j, i]
    other[j, i] = x[j, i] * 0.5
    cuda.syncthreads()
    out[j, i] = tile[i, j] + other[15 - j, -1 - i]


@case(lambda random: (values(random, np.dtype("float32"), 64), np.zeros((4, 32), np.float64)), dynamic=64 * 4 + 32 * 8)
def dynamic_shared_memory(x, out):
    t = cuda.threadIdx.x
    singles = cuda.shared.array(0, float32)
    doubles = cuda.shared.array(0, float64)[32:]
    words = cuda.shared.array(0, int32)
    singles[t] = x[t]
    singles[t + 32] = x[t + 32]
    doubles[t] = x[t] * 0.1
    cuda.syncthreads()
    out[0, t] = singles[63 - t]
    out[1, t] = doubles[31 - t]
    out[2, t] = words[(t + 1) % 64]
    out[3, t] = singles.size * 1000 + doubles.size


WEIGHTS = np.array([[3, 1, 2], [-4, 100, 7]], np.int8)
SCALE = np.array([0.1, 0.2, 0.7], np.float32)


@case(lambda random: (values(random, np.dtype("float32"), 33), np.zeros((5, 33))), block=33)
def local_and_constant_memory(x, out):
    t = cuda.threadIdx.x
    weights, scale = cuda.const.array_like(WEIGHTS), cuda.const.array_like(SCALE)
    history = cuda.local.array(4, float32)
    pairs = cuda.local.array((2, 2), int64)
    for k in range(4):
        history[k] = x[(t + k) % 33]
        pairs[k // 2, k % 2] = t * k
    out[0, t] = history[t % 4]
    out[1, t] = pairs[1, 1] - pairs[-1, -2]
    out[2, t] = weights[t % 2, t % 3] * 100
    out[3, t] = scale[t % 3] * x[t]
    history[0] = history[1] * history[2]  # rounded to float32
    out[4, t] = history[0]


@case(lambda random: (values(random, np.dtype("int32"), 8), *(np.zeros(8, t) for t in INTEGERS)), block=8)
def stores_of_every_width(x, a, b, c, d, e, f, g, h):
    t = cuda.threadIdx.x
    wide = x[t] * 1000
    a[t], b[t], c[t], d[t] = wide, wide, wide, wide
    e[t], f[t], g[t], h[t] = wide, wide, wide, wide
    shared = cuda.shared.array(8, int16)
    local = cuda.local.array(2, uint8)
    shared[t] = wide
    local[1] = wide
    cuda.syncthreads()
    d[t] += shared[7 - t] + local[1]
    a[t] += 100
    g[t] *= 3
    c[t] -= 2**31


# --- cases: indexing -------------------------------------------------------------------------------------------------


def laid_out(random):
    """Draw a transposed-like view: every second row, columns from 1, by a stride of 3; and a column of another."""
    return (
        Sliced(values(random, np.dtype("float32"), (12, 16)), np.s_[::2, 1::3]),
        Sliced(values(random, np.dtype("int64"), (6, 4)), np.s_[:, 2]),
        Sliced(np.zeros((12, 10), np.float32), np.s_[::2, ::2]),
    )


@case(laid_out, block=(6, 5))
def strided_arrays(x, column, out):
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    out[i, j] = x[i, j] - x[-1 - i, -1] + column[i] % 7 + x.shape[1] * 100 + out.strides[0]
    cuda.syncthreads()
    if j == 0:
        column[i] = x.strides[1] * 10 + column.ndim


@case(lambda random: (values(random, np.dtype("float64"), (4, 6, 8)), np.zeros((14, 8))), block=8)
def views(x, out):
    t = cuda.threadIdx.x
    out[0, t] = x[1][2][t]
    out[1, t] = x[-1, -2, -1 - t]
    row = x[2, 3]
    out[2, t] = row[t] + len(row)
    out[3, t] = x[0, 1, ::-1][t]
    out[4, t] = x[1, ::2, t][-1]
    out[5, t] = x[1:3, 2, t][1]
    out[6, t] = x[..., 3][2, t % 6]
    position = (2, t % 6, t)
    out[7, t] = x[position]
    backwards = row[6:1:-2]
    out[8, t] = backwards[t % 3] + backwards.size
    out[9, t] = x[0, 2:5, 1:][t % 3, t % 7]
    tail = out[10]
    tail[t] = t
    out[11][2:5][t % 3] = t % 3
    out[12, -1 - t] = x.size + x.shape[0] * x.ndim
    out[13][::-1][t] = x.T[t, 0, 1]


@case(lambda random: (values(random, np.dtype("int32"), 64), np.zeros((3, 8), np.int32)), block=8)
def slices_are_assigned(x, out):
    t = cuda.threadIdx.x
    if t == 0:
        out[0, :] = 7
        out[1, 2:6] = x[3]
        out[2, ::-2] = x[4]


# --- cases: functions ------------------------------------------------------------------------------------------------


def scaled_by(factor):
    """Make a device function with a closure."""

    @cuda.jit(device=True)
    def scaled(value, pair=(1, 2)):
        return value * factor + pair[1]

    return scaled


twice, tenth = scaled_by(2), scaled_by(np.float32(0.1))


@cuda.jit(device=True)
def mean_and_range(x, first, count):
    low = high = x[first]
    total = float32(0)
    for k in range(first, first + count):
        total += x[k]
        low, high = min(low, x[k]), max(high, x[k])
    return total / float32(count), (low, high)


@cuda.jit(device=True)
def collatz(n):
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n //= 2
        else:
            n = 3 * n + 1
        steps += 1
        if steps > 60:
            break
    return steps


@cuda.jit(device=True)
def fibonacci(n):
    if n < 2:
        return n
    return fibonacci(n - 1) + fibonacci(n - 2)


@case(lambda random: (values(random, np.dtype("float32"), 40), np.zeros((9, 8))), block=8)
def device_functions(x, out):
    t = cuda.threadIdx.x
    mean, (low, high) = mean_and_range(x, t * 5, 5)
    out[0, t], out[1, t], out[2, t] = mean, low, high
    out[3, t] = twice(t) + twice(t, (3, 4))
    out[4, t] = tenth(x[t], (1.5, 2.5))
    out[5, t] = collatz(t + 27)
    nested = ((t, x[t]), (low, (high, t * t)))
    out[6, t] = nested[1][1][1] + nested[0][0]
    (a, b), (c, (d, e)) = nested
    out[7, t] = e - a
    out[8, t] = b if c < d and not (a > 3) else -b


@case(zeros((6, 16)), block=16)
def loops_and_branches(out):
    t = cuda.threadIdx.x
    total = 0
    for i in range(10, t, -3):
        if i == 4:
            continue
        total += i
    else:
        total += 100
    out[0, t] = total
    out[1, t] = t if 2 < t < 9 else -t
    out[2, t] = (t and 5) or -1
    first = 0
    for i, j in enumerate(range(t)):
        first += i * j
    out[3, t] = first
    for a, b in zip((1, 2, 3), (4, 5, 6)):  # noqa: B905
        out[4, t] += a * b * t
    out[5, t] = t is not None and out is not None


# --- cases: atomics --------------------------------------------------------------------------------------------------
# The order of the updates is the hardware's own: each result either does not depend on it, or is one thread's alone.


def atomics_drawn(random, dtype):
    """Draw small whole values (a float sum of them is exact in any order) and start values."""
    x = random.integers(1, 60, (2, 64)).astype(dtype)
    start = random.integers(1, 60, (14, 3)).astype(dtype)
    return x, start, np.zeros((14, 64), dtype)


@case(atomics_drawn, dtypes=("int32", "uint32", "int64", "uint64", "float32", "float64"), block=64)
def atomics_of_numbers(x, memory, old):
    t = cuda.threadIdx.x
    shared = cuda.shared.array((2, 64), int32)
    cuda.atomic.add(memory, (0, t % 3), x[0, t])
    cuda.atomic.sub(memory, (1, t % 3), x[0, t])
    cuda.atomic.max(memory, (2, t % 3), x[0, t])
    cuda.atomic.min(memory, (3, t % 3), x[0, t])
    cuda.atomic.nanmax(memory, (4, t % 3), x[0, t])
    cuda.atomic.nanmin(memory, (5, t % 3), x[0, t])
    row = x[1]
    old[0, t] = cuda.atomic.add(row, t, 3)
    old[1, t] = cuda.atomic.sub(row, t, 50)
    old[2, t] = cuda.atomic.max(row, t, 10)
    old[3, t] = cuda.atomic.min(row, t, 11)
    old[4, t] = cuda.atomic.nanmax(row, t, 12)
    old[5, t] = cuda.atomic.nanmin(row, t, 11)
    shared[0, t] = t
    cuda.syncthreads()
    cuda.atomic.add(shared, (0, t % 5), t)
    cuda.atomic.max(shared[0], 60, t * 3)
    cuda.syncthreads()
    old[6, t] = shared[0, t]


@case(atomics_drawn, dtypes=("int32", "uint32", "int64", "uint64"), block=64)
def atomics_of_integers(x, memory, old):
    t = cuda.threadIdx.x
    cuda.atomic.and_(memory, (0, t % 3), x[0, t])
    cuda.atomic.or_(memory, (1, t % 3), x[0, t])
    cuda.atomic.xor(memory, (2, t % 3), x[0, t])
    row = x[1]
    old[0, t] = cuda.atomic.and_(row, t, 0x2F)
    old[1, t] = cuda.atomic.or_(row, t, 0x50)
    old[2, t] = cuda.atomic.xor(row, t, 0xFF)
    old[3, t] = cuda.atomic.exch(row, t, t * 7)
    old[4, t] = cuda.atomic.cas(row, t, (t % 2) * t * 7, -1)
    old[5, t] = cuda.atomic.compare_and_swap(row[t:], 7, 8)
    old[6, t] = row[t]


@case(zeros((1,), (4,)), block=128)
def warps_in_turn(turn, order):
    if cuda.laneid == 0:
        warp = cuda.threadIdx.x // 32
        while cuda.atomic.cas(turn, 0, 3 - warp, 4 - warp) != 3 - warp:
            pass
        order[3 - warp] = warp


@case(atomics_drawn, dtypes=("uint32", "uint64"), block=64)
def atomics_that_wrap(x, memory, old):
    t = cuda.threadIdx.x
    cuda.atomic.inc(memory, (0, t % 3), 9)
    cuda.atomic.dec(memory, (1, t % 3), 9)
    row = x[1]
    old[0, t] = cuda.atomic.inc(row, t, 30)
    old[1, t] = cuda.atomic.dec(row, t, 25)
    old[2, t] = cuda.atomic.sub(row, t, 1000)
    old[3, t] = row[t]


def with_nans(random, dtype):
    """Draw stored and given values, NaN among both."""
    stored, given = random.standard_normal((2, 64)).astype(dtype)
    stored[random.integers(0, 64, 20)] = np.nan
    given[random.integers(0, 64, 20)] = np.nan
    return np.array([stored] * 4), given, np.zeros((4, 64), dtype)


@case(with_nans, dtypes=("float32", "float64"), block=64)
def atomics_and_nan(stored, given, old):
    t = cuda.threadIdx.x
    old[0, t] = cuda.atomic.max(stored, (0, t), given[t])
    old[1, t] = cuda.atomic.min(stored, (1, t), given[t])
    old[2, t] = cuda.atomic.nanmax(stored, (2, t), given[t])
    old[3, t] = cuda.atomic.nanmin(stored, (3, t), given[t])


@case(
    lambda random: (random.integers(0, 7, 512).astype(np.uint8), np.zeros(7, np.int32), np.zeros(7, np.int32)),
    grid=2,
    block=128,
)
def histogram(x, bins, shared_bins):
    shared = cuda.shared.array(7, int32)
    t = cuda.threadIdx.x
    if t < 7:
        shared[t] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(bins, x[i], 1)
        cuda.atomic.add(shared, x[i], 1)
    cuda.syncthreads()
    if t < 7:
        cuda.atomic.add(shared_bins, t, shared[t])


@case(lambda random: (random.standard_normal(256).astype(np.float32), np.zeros(1, np.float32)), block=64, grid=4)
def grid_sync(x, out):
    partial = cuda.shared.array(1, float32)
    t = cuda.threadIdx.x
    grid = cuda.cg.this_grid()
    if t == 0:
        total = float32(0)
        for k in range(64):
            total += x[cuda.blockIdx.x * 64 + k]
        partial[0] = total
        x[cuda.blockIdx.x * 64] = total
    grid.sync()
    if cuda.grid(1) == 0:
        total = float32(0)
        for block in range(cuda.gridDim.x):
            total += x[block * 64]
        out[0] = total
    grid.sync()
    if t == 1:
        x[cuda.blockIdx.x * 64 + 1] = out[0] + partial[0]


# --- cases: random numbers and records -------------------------------------------------------------------------------


def generators(random):
    """Draw the states of 32 generators."""
    states = np.empty(32, xoroshiro128p_dtype)
    for field in ("s0", "s1"):
        states[field] = random.integers(0, 2**64, 32, np.uint64)
    return states, np.zeros((3, 32)), np.zeros((3, 32), np.float32)


@case(generators)
def uniform_random_numbers(states, doubles, singles):
    t = cuda.grid(1)
    for k in range(3):
        doubles[k, t] = xoroshiro128p_uniform_float64(states, t)
        singles[k, t] = xoroshiro128p_uniform_float32(states, t)


# √(-2·log u)·cos(2π·v): of the cosine's argument, up to 2π, half an ulp is up to 4 ulp; near a zero of the cosine its
# relative error has no bound, so that part is absolute. Numba draws the float64's u and v as float32 and takes the
# logarithm there (`log(u1)` in numba/cuda/random.py): its ulp, halved by the root, is what the float64 inherits.
@case(
    generators,
    bounds=lambda array: Bound(24, 2e-6) if array.dtype == np.float32 else Bound((1 + NUMPY) / 2, 1e-14, "float32"),
)
def normal_random_numbers(states, doubles, singles):
    t = cuda.grid(1)
    for k in range(3):
        doubles[k, t] = xoroshiro128p_normal_float64(states, t)
        singles[k, t] = xoroshiro128p_normal_float32(states, t)


RECORD = np.dtype([("count", "i8"), ("value", "f8"), ("single", "f4")], align=True)


def records(random):
    """Draw records."""
    array = np.zeros(16, RECORD)
    array["count"], array["value"] = random.integers(-(2**61), 2**61, 16), random.standard_normal(16)
    return array, np.zeros(16)


@case(records, block=16)
def fields_of_records(x, out):
    t = cuda.threadIdx.x
    out[t] = x[t].value * x[t]["count"]
    x[t].single = x[t].value
    x[t]["count"] = x[t].count * 5 + 2**31


MIXED = np.dtype(
    [
        *(("s", "u1"), ("b", "i1"), ("h", "i2"), ("w", "u2"), ("n", "i4"), ("q", "u4"), ("u", "u8"), ("f", "f4")),
        *(("v", "i2", 3), ("inner", np.dtype([("a", "u1"), ("c", "i4")], align=True))),
    ],
    align=True,
)


def mixed(random):
    """Draw records of all kinds of integers, many of them at the ends of their types."""
    array = np.frombuffer(random.integers(0, 256, 64 * MIXED.itemsize, np.uint8).tobytes(), MIXED).copy()
    array["f"] = random.standard_normal(64)
    for name in ("s", "b", "h", "w", "n", "q", "u"):
        array[name][:9] = np.iinfo(MIXED[name]).max
        array[name][9:18] = np.iinfo(MIXED[name]).min
    return array


table(
    "fields of records",
    {"p": mixed},
    [
        *("p.s + p.s", "p['s'] * p.s", "p.b * p.b", "p.b + p['s']", "p.h - p.w", "p.h * p.h", "p.n * p.n", "p.n + 1"),
        *("p.q + p.q", "p.q - p.s", "p.n - p.q", "p.u + p.s", "p.u % 1000", "p.u * p.q", "p.u // p.q", "p.u ^ p.n"),
        *("p.n // p.h", "p.n % p.b", "p.h // -7", "-p.s", "-p.b", "-p.n", "~p.q", "abs(p.b)", "p.s << 3", "p.q >> 2"),
        *("p.s < p.b", "p.q > p.n", "p.u == p.q", "max(p.s, p.q)", "min(p.n, p.h)", "divmod(p.s, p.w)[1]", "p.s ** 3"),
        *("p.v[0] * p.v[1]", "p.v[2] - 32767", "p.inner.a + p.inner.a", "p['inner'].c * p.inner.c", "p.s and p.n"),
    ],
    "int64",
)
table(
    "fields of records and floats",
    {"p": mixed},
    ["p.f * p.s", "p.f + p.b", "p.f - p.n", "p.f * p.u", "p.n / p.q", "p.s / p.f", "p.u / p.s", "float32(p.n)"],
)


def to_store(random):
    """Draw records to store into, and what is to be stored."""
    return mixed(random)[:32], random.integers(-(2**62), 2**62, 32), random.standard_normal(32) * 1e6


@case(to_store)
def stores_into_fields(p, x, y):
    i = cuda.grid(1)
    p[i].s, p[i]["b"], p[i].n, p.q[i], p["u"][i] = x[i], x[i], x[i] + i, -i, -1 - i
    p[i].h += 32767
    p[i].w -= i
    p[i].v[1] = x[i]
    p[i].v[2] *= 300
    p[i].inner.a = 255 + i
    p[i]["inner"].c += y[i]


# --- known gaps ------------------------------------------------------------------------------------------------------
# Where the simulator is not the device, and is known not to be: each of these fails on a GPU, or the list is wrong.

WHOLE = {"x": floats("float32", 1e3, False), "y": floats("float32", 1e3, False)}
GAPS = {
    "an index has 64 bits, not 32": ({"x": integers("int32", 1, 9)}, "cuda.clz(cuda.threadIdx.x)", "int64"),
    "a variable has its value's type, not one that unites all its assignments": (
        WHOLE,
        "(x if y > 0.0 else 1.0) * y",
        "float64",
    ),
    "a product and a sum are rounded apart; NVVM makes them one fma": (WHOLE, "x * y + x", "float64"),
}


# --- the tests -------------------------------------------------------------------------------------------------------

ALL = [*CASES, *(table.case for table in TABLES)]


def named(items):
    """Parametrise by items that have a name."""
    return pytest.mark.parametrize("item", items, ids=lambda item: item.name)


@named(CASES)
def test_it_compiles_for_the_gpu_and_runs_in_the_simulator(item):
    arguments = item.drawn()
    compile_offline(item.kernel, arguments)
    assert_same(item, arguments, in_simulator(item, arguments), in_simulator(item, arguments, "reverse"))


@named(TABLES)
def test_every_expression_compiles_and_has_the_type_that_numba_infers(item):
    arguments = item.case.drawn()
    real = compile_offline(item.kernel, arguments)
    for k, (row, simulated) in enumerate(zip(item.rows, item.simulated_types(), strict=True)):
        assert simulated == kind_of_type(real[f"row{k}"]), row.expression
    in_simulator(item.case, arguments)


@needs_gpu
@named(ALL)
def test_the_gpu_computes_the_same(item):
    arguments = item.drawn()
    assert_same(item, arguments, in_simulator(item, arguments), on_gpu(item, arguments))


@needs_gpu
@pytest.mark.parametrize("reason", GAPS)
def test_known_gaps(reason, request):
    request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    inputs, expression, out = GAPS[reason]
    item = Table("gap", inputs, [Row(expression)], out).case
    arguments = item.drawn()
    assert_same(item, arguments, in_simulator(item, arguments), on_gpu(item, arguments))


@pytest.mark.parametrize("reason", GAPS)
def test_known_gaps_compile(reason):
    inputs, expression, out = GAPS[reason]
    item = Table("gap", inputs, [Row(expression)], out).case
    compile_offline(item.kernel, item.drawn())
    in_simulator(item, item.drawn())
