"""Complex numbers, records, slices and inner functions run in the vectorised engine, with the scheduler's bits."""

import cmath

import numpy as np
import pytest
from numba import complex64, complex128, cuda, float32, from_dtype, int32
from sim.vectorised.engines import VECTORISED, agree, compared

from normlab.sim import sanitize

POINT = np.dtype([("x", np.float32), ("n", np.int32), ("y", np.float64), ("v", np.float32, 3), ("z", np.complex64)])
Point = from_dtype(POINT)
TABLE = np.array([(1.5, 3, 2.5, (1, 2, 3), 1j)] * 4, POINT)


@cuda.jit
def escapes(x, y, z, points):
    i = cuda.grid(1)
    c, w, turns = complex(x[i] / 40 - 2, 0.3), 0j, 0
    while abs(w) < 2 and turns < 30:
        w = w * w + c
        turns += 1
    y[i] = turns + w.real * w.imag


@cuda.jit
def complex_arithmetic(x, y, z, points):
    i, t = cuda.grid(1), cuda.threadIdx.x
    shared, local = cuda.shared.array(32, complex128), cuda.local.array(3, complex64)
    w = z[i]
    for _ in range(i % 5):
        w = w * z[i] + z[i] / (2 + 1j)
    local[i % 3] = w.conjugate()
    shared[t] = complex64(w) - np.conj(w) + cmath.sqrt(z[i])
    cuda.syncthreads()
    z[i] = shared[31 - t] * local[i % 3] + (x[i] if i > 9 else 1j)
    z[i] **= 2
    if z[i] != w:
        y[i] = abs(z[i])


@cuda.jit
def complex_in_dynamic_memory(x, y, z, points):
    i, t = cuda.grid(1), cuda.threadIdx.x
    given = cuda.shared.array(0, complex128)
    given[t] = z[i]
    cuda.syncthreads()
    z[i] = given[31 - t]


@cuda.jit(device=True)
def length(point):
    return point.x * point.x + point.n


@cuda.jit
def records_everywhere(x, y, z, points):
    i, t = cuda.grid(1), cuda.threadIdx.x
    shared, local = cuda.shared.array(32, Point), cuda.local.array(2, Point)
    table = cuda.const.array_like(TABLE)
    points[i].x, points[i]["y"], points[i].z = x[i], i, z[i]
    points[i].n = i * 7
    points[i].n += 3
    local[i % 2] = points[i]
    local[i % 2].v[:] = x[i]
    shared[t] = local[i % 2]
    cuda.syncthreads()
    points[i] = shared[31 - t]
    mine = shared[31 - t] if i % 3 else shared[t]
    if i % 2:
        mine = shared[t]
    y[i] = length(mine) + mine.v[i % 3] + mine.n // 3 + mine.n * mine.n + table[i % 4].y + x[points[i].n % 64]


@cuda.jit
def columns_of_records(x, y, z, points):
    i = cuda.grid(1)
    points.x[i], points["n"][i] = x[i], i
    cuda.atomic.add(points.y, i % 4, 1.5)
    total = 0.0
    for point in TABLE:
        total += point.y
    y[i] = total + len(points) + points.n[i]


@cuda.jit
def elses_of_loops(x, y, z, points):
    i = cuda.grid(1)
    for k in range(i % 7):
        if k == 4:
            break
        if k == i:
            return
    else:
        for m in range(2):
            y[i] += x[m]
        y[i] += 3
        if i == 2:
            return
    n = 0
    while n < i:
        n += 3
        if n == 9:
            break
    else:
        y[i] += n


@cuda.jit
def walks(x, y, z, points):
    i = cuda.grid(1)
    total = 0.0
    for k, v in enumerate(x[:9]):
        if k == i:
            break
        total += v * k
    for a, b in zip(x[3:6], x):  # noqa: B905
        total += a * b
    for k, v in enumerate(x[5:7], 5):
        total += k * v
    y[i] = total + (1.5, np.float64(x[i]))[i % 2] + (7 if i in (1, 4, 9) else 0) + i.bit_count()


@cuda.jit
def slices(x, y, z, points):
    i = cuda.grid(1)
    local, square = cuda.local.array(3, int32), cuda.local.array((2, 3), float32)
    local[:] = 7
    local[1:] = points[i].v[i % 2 : i % 2 + 2]
    square.reshape(6)[i % 6] = 1
    y[i : i + 1][0] = local[2] + square[(i % 6) // 3, i % 3] + x[:64].reshape((8, 8))[i // 8, i % 8] + x.ravel()[i]


@cuda.jit
def inner_functions(x, y, z, points):
    i = cuda.grid(1)
    k = x[i] * 2

    def clipped(a, b):
        if a > b:
            return a - k
        return b

    scaled = lambda a: a * k + i  # noqa: E731
    y[i] = clipped(x[i], 10.0) + scaled(i)
    k = k + 1
    if i % 2:
        y[i] += scaled(2)


@cuda.jit
def functions_of_numpy(x, y, z, points):
    i = cuda.grid(1)
    y[i] = np.sqrt(x[i]) + np.maximum(x[i], np.float32(3)) + np.arctan2(x[i], x[i])
    z[i] = np.exp(z[i] * 1j)
    if np.isnan(x[i]):
        y[i] = 0


@cuda.jit
def indices_of_two_types(x, y, z, points):
    i = cuda.grid(1)
    square = cuda.local.array((2, 3), float32)
    at = min(np.int32(i), 40)  # an int32 or an int
    for row in range(2):
        for column in range(3):
            square[row, column] = 10 * row + column
    square[min(np.int32(i % 3), 1), i % 3] += x[at]
    y[i] = square[0, i % 3]
    if i <= 40:
        points[at].x = square[min(np.int32(i % 3), 1), i % 3]
    y[max(at, np.uint8(i))] += x[at] + i % 2


@cuda.jit
def least_and_most(x, y, z, points):
    i = cuda.grid(1)
    a, b = np.int32(i * 7 % 11), np.int64(i % 5)
    y[i] = min(a, b) * 100 + max(b, a) * 10 + min(i, b) + max(a, i) + min(b, 3) + max(2, a) + min(np.uint8(i), 9)
    y[i] /= min(a, 2) - 9


@cuda.jit
def views_in_tuples(x, y, z, points):
    i = cuda.grid(1)
    both = x[i : i + 1], y[i : i + 1]
    if i % 3:
        source, target = both
        for k in range(i % 2 + 1):
            target[0] += source[0] * (k + 1)
    if i % 3 == 1:  # in some of the lanes in which they are views
        target[0] -= source[0] / 2


KERNELS = [
    *(escapes, complex_arithmetic, complex_in_dynamic_memory, records_everywhere, columns_of_records),
    *(elses_of_loops, walks, slices, inner_functions, functions_of_numpy, indices_of_two_types, views_in_tuples),
    least_and_most,
]


def arguments():
    draw = np.random.default_rng(3)
    x = draw.uniform(0, 40, 64).astype(np.float32)
    return [x, np.ones(64), (x + 1j * draw.normal(size=64)).astype(np.complex64), np.zeros(64, POINT)]


NOT_FOR_A_GPU = slices, functions_of_numpy  # Numba does not compile all that they do


@pytest.mark.parametrize(
    ("kernel", "check"),
    [(one, check) for one in KERNELS for check in (False, True) if not (check and one in NOT_FOR_A_GPU)],
)
def test_both_engines_make_the_same_of_it(kernel, check):
    assert agree(kernel, (2, 32, 0, 512), *arguments(), check=check) == VECTORISED


@pytest.mark.parametrize("kernel", [escapes, complex_arithmetic, elses_of_loops, walks, inner_functions])
def test_both_engines_trace_it_alike(kernel):
    assert compared(kernel, (2, 32, 0, 512), *arguments()[:3], None) == VECTORISED


@pytest.mark.parametrize("kernel", [complex_arithmetic, complex_in_dynamic_memory, records_everywhere])
def test_a_proof_holds_for_it(kernel):
    report = sanitize(kernel, engine="vectorised")[2, 32, 0, 512](*arguments())
    assert not report.findings


@cuda.jit
def a_field_nobody_has_written(y):
    points = cuda.shared.array(32, Point)
    points[cuda.threadIdx.x].x = 1
    y[cuda.threadIdx.x] = points[cuda.threadIdx.x].n


@cuda.jit
def a_neighbour_s_record(y):
    points = cuda.shared.array(33, Point)
    points[cuda.threadIdx.x].x = 1
    y[cuda.threadIdx.x] = points[cuda.threadIdx.x + 1].x


@cuda.jit
def neighbours_in_one_field(points):
    points[cuda.threadIdx.x].x = 1
    points[cuda.threadIdx.x].y = points[(cuda.threadIdx.x + 1) % 32].x


@cuda.jit
def a_record_too_far_that_nobody_reads(points):
    mine = points[cuda.threadIdx.x + 1]
    if points[0].x > 0:
        mine.x = 0


@pytest.mark.parametrize(("kernel", "why"), [
    (neighbours_in_one_field, "touch the same element"), (a_record_too_far_that_nobody_reads, "outside|out of bounds"),
], ids=lambda one: getattr(one, "__name__", None))  # fmt: skip
def test_what_has_no_rule_for_records_is_the_scheduler_s(kernel, why):
    said = str(agree(kernel, (1, 32), np.zeros(32, POINT)))
    assert any(one in said for one in why.split("|")), said


@cuda.jit
def a_complex_number_too_far(y):
    local = cuda.local.array(32, complex64)
    local[cuda.threadIdx.x + 1] = 1j
    y[0] = 1


@cuda.jit
def a_tuple_s_end(y):
    y[cuda.threadIdx.x] = (1, 2, 3)[cuda.threadIdx.x]


@pytest.mark.parametrize("kernel", [a_field_nobody_has_written, a_neighbour_s_record])
def test_sanitize_finds_mistakes_with_records(kernel):
    assert sanitize(kernel)[1, 32](np.zeros(32)).findings


@pytest.mark.parametrize("kernel", [a_complex_number_too_far, a_tuple_s_end])
def test_an_error_is_the_scheduler_s(kernel):
    error, _, notes = agree(kernel, (1, 32), np.zeros(32))
    assert error is IndexError
    assert "thread (" in notes[-1]
