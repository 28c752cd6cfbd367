"""With the compiler's types, variables compute as Numba's do. Numba's compiler for the CPU is the judge."""

import ast
from functools import cache

import numba
import numba.cuda.extending
import numba.extending
import numpy as np
import pytest
from numba import cuda

from normlab.sim import SimulationError, sanitize, simulate, trace
from normlab.sim.language.variables import FunctionTypes, VariableTypes

F32 = np.float32
THIRD = F32(1) / F32(3)


def choice(x, out, c, u):
    s = x[0] if c else 1.0
    out[0] = s * x[1]


def choice_in_an_expression(x, out, c, u):
    out[0] = (x[0] if c else 1.0) * x[1] + x[2]


def choice_over_several_lines(x, out, c, u):
    out[0] = (
        x[0]
        if c
        else 1.0
    ) * x[1]  # fmt: skip


def or_else(x, out, c, u):
    out[0] = (x[0] or 2.0) * x[1]


def two_ways(x, out, c, u):
    s = x[0]
    if c > 5:
        s = 2.0
    out[0] = s * x[1]


def before_the_ways_meet(x, out, c, u):
    s = x[0]
    out[1] = s * x[1]
    if c > 5:
        s = 2.0
    out[0] = s * x[1]


def accumulated(x, out, c, u):
    s = 0
    for i in range(3):
        s += x[i]
    out[0] = s * x[1]


def accumulated_in_no_turn(x, out, c, u):
    s = x[0]
    for _ in range(c - 7):
        s = s + 1.0
    out[0] = s * x[1]


def updated_in_place(x, out, c, u):
    s = x[0]
    if c > 5:
        s = 1.0
    s *= x[1]
    s /= x[2]
    out[0] = s


def changed_in_a_late_turn(x, out, c, u):
    s = x[0]
    n = 0
    while s < 3 and n < 4:
        out[n] = s * x[1]
        if n == 3:
            s = s + 0.1
        n += 1


def signed_or_unsigned(x, out, c, u):
    m = 5
    if c > 5:
        m = u
    out[0] = m // 2
    out[1] = m * x[0]


def signed_and_unsigned(x, out, c, u):
    out[0] = c + u
    out[1] = (c - u) * x[0]


def bool_or_int(x, out, c, u):
    m = c > 3
    if c > 5:
        m = 3
    out[0] = m + m


def bool_of_its_own_after_a_float(x, out, c, u):
    s = x[0]
    for _ in range(c):
        s = x[1] < x[2]
        s -= s - s
        out[0] = s + s
        s = s * x[0]
    out[1] = s


def complex_literal(x, out, c, u):
    z = 1j * x[0]
    w = (x[0] + 2j) * x[1]
    out[0] = (z * w).real
    out[1] = (z * w).imag


def over_several_lines(x, out, c, u):
    s = x[0]
    if c > 5:
        s = 1.0
    out[0] = (
        x[1]
        + s * x[1]
        + s
    )  # fmt: skip


def nested(x, out, c, u):
    s = x[0]
    for i in range(2):
        if i == 1:
            t = s * x[1]
            s = t + 1.0
        else:
            t = 2
        out[i] = t * x[2]
    out[2] = s * x[1]


def walked(x, out, c, u):
    largest = x[0]
    for i in range(3):
        largest = max(largest, x[i])
        if largest > 2:
            largest = 0.1
    out[0] = largest * x[1]


def scaled(value, factor):
    if factor > 2:
        return value * factor
    return value


def halved(value, n):
    half = value / 2
    while n > 0:
        half = half * n
        n -= 1
    return half


KERNELS = [
    *(choice, choice_in_an_expression, choice_over_several_lines, or_else, two_ways, before_the_ways_meet),
    *(accumulated, accumulated_in_no_turn, updated_in_place, changed_in_a_late_turn, signed_or_unsigned),
    *(signed_and_unsigned, bool_or_int, bool_of_its_own_after_a_float, complex_literal, over_several_lines, nested),
    walked,
]
FACES = {"simulate": simulate, "sanitize": sanitize, "trace": trace}


def arguments(c):
    x = np.array([THIRD, F32(1.1), F32(0.7), F32(2.3)], F32)
    return x, np.zeros(4), np.int64(c), np.uint64(2**53 + 3)


compiled_by_numba = cache(numba.njit)  # once for all faces and arguments
checked = cache(cuda.jit)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("c", [0, 4, 7])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_a_variable_has_the_type_that_numba_infers(kernel, c, face):
    truth = arguments(c)
    compiled_by_numba(kernel)(*truth)
    given = arguments(c)
    FACES[face](checked(kernel), check=True)[1, 1](*given)
    assert [value.hex() for value in given[1]] == [value.hex() for value in truth[1]]


def test_without_the_check_a_value_keeps_its_own_type():
    """As documented; and so that the kernels above would notice if the types were lost, but for those named here."""
    same = set()
    for kernel in KERNELS:
        results = []
        for check in (False, True):
            outs = []
            for c in (0, 4, 7):
                given = arguments(c)
                simulate(cuda.jit(kernel), check=check)[1, 1](*given)
                outs += given[1].tolist()
            results.append(outs)
        if results[0] == results[1]:
            same.add(kernel.__name__)
    assert same == {"accumulated", "signed_and_unsigned", "bool_or_int", "bool_of_its_own_after_a_float"}


def test_a_device_function_computes_with_indices_and_literals_as_numba_does():
    device = [cuda.jit(device=True)(one) for one in (scaled, halved)]
    host = [numba.njit(one) for one in (scaled, halved)]

    def kernel_of(functions):
        one, other = functions

        def kernel(x, out):
            for i in range(3):
                out[i] = one(x[i], i + 1) + other(x[i], 2) * x[1]

        return kernel

    results = []
    for make in (lambda: numba.njit(kernel_of(host)), lambda: simulate(cuda.jit(kernel_of(device)), check=True)[1, 1]):
        x, out = arguments(0)[:2]
        make()(x, out)
        results.append([value.hex() for value in out])
    assert results[0] == results[1]


def test_a_device_function_of_several_types_keeps_its_values_types():
    twice = cuda.jit(device=True)(scaled)

    @cuda.jit
    def kernel(x, out):
        out[0] = twice(x[0], 3) + twice(1.5, x[1])

    x, out = arguments(0)[:2]
    simulate(kernel, check=True)[1, 1](x, out)
    assert out[0] == pytest.approx(THIRD * 3 + 1.5)


@pytest.mark.parametrize("overload", [numba.extending.overload, numba.cuda.extending.overload], ids=["core", "cuda"])
def test_an_overload_on_a_stub_is_numba_s_or_an_error(overload):
    def stub(value, n):
        pass

    @overload(stub)
    def choose(value, n):
        if isinstance(value, numba.types.Float):
            return lambda value, n: value * 2 + n
        return lambda value, n: value * 3 + n

    @cuda.jit
    def kernel(x, out):
        out[0] = stub(x[0], 2)

    for x, expected in ((np.full(1, 5.0), 12), (np.full(1, 5), 17)):
        out = np.zeros(1)
        simulate(kernel, check=True)[1, 1](x, out)
        assert out[0] == expected
        with pytest.raises(SimulationError, match=r"'stub' is a stub under @overload and returns None here"):
            simulate(kernel)[1, 1](x, out)
        assert out[0] == expected

    @cuda.jit
    def of_several_types(x, out):
        out[0] = stub(x[0], 2) + stub(2, 2)

    with pytest.raises(SimulationError, match="is called with several types"):
        simulate(of_several_types, check=True)[1, 1](np.full(1, 5.0), np.zeros(1))


def test_an_overload_that_numba_inlines_or_calls_by_keywords_is_numba_s():
    def row(x):
        pass

    def put(x, value, scale=2, offset=1):
        pass

    numba.cuda.extending.overload(row, inline="always")(lambda x: lambda x: x[0])

    @numba.cuda.extending.overload(put)
    def choose(x, value, scale=2, offset=1):
        def into(x, value, scale=2, offset=1):
            x[0] = value * scale + offset

        return into

    @cuda.jit
    def kernel(x):
        put(row(x), 3, offset=4)

    x = np.zeros((2, 1))
    simulate(kernel, check=True)[1, 1](x)
    assert x.tolist() == [[10], [0]]


def test_a_function_with_a_body_of_its_own_runs_under_an_overload():
    def doubled(value):
        return 2 * value

    numba.extending.overload(doubled)(lambda value: lambda value: 2 * value)

    @cuda.jit
    def kernel(x):
        x[0] = doubled(x[0])

    for check in (False, True):
        x = np.ones(1)
        simulate(kernel, check=check)[1, 1](x)
        assert x[0] == 2


def cast(source, **types):
    """Return source with the casts of the compiler's types, for a function f at line 1."""
    tree = VariableTypes({("f", 1): FunctionTypes(**types)}).visit(ast.parse(source))
    return ast.unparse(ast.fix_missing_locations(tree))


def test_casts_stand_where_the_compiler_has_told_one_type():
    source = "def f(s):\n    t = s + s\n    return g(s)"
    told = cast(source, loads=frozenset({(2, "s", "float64"), (3, "s", "float32"), (3, "s", "int64")}))
    assert told == source.replace("s + s", "_simulated_as_float64(s) + _simulated_as_float64(s)")
    assert cast(source, loads=frozenset({(2, "s", "array(float32, 1d, C)")})) == source
    assert cast(source, loads=frozenset({(3, "t", "float64")})) == source
    assert cast("def f(s):\n    def h(s):\n        return s", loads=frozenset({(3, "s", "int64")})).count("as_") == 0
