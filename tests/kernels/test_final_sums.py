"""The sums over rows of partial sums, few and many, against NumPy's in float64, within their bound."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from engine.late import Late
from watching import Memory, launcher

from normlab.engine import launch, using
from normlab.kernels import BackwardProblem
from normlab.kernels.backward import final_sums
from normlab.oracle import assert_within

BFLOAT16 = ml_dtypes.bfloat16
UNIT = 2.0**-24  # of a float32's rounding
ROUNDING = {np.float32: 0.0, np.float16: 2.0**-11, BFLOAT16: 2.0**-8}  # of the result


def summed(parts, gradients, **divisor) -> list[str]:
    """Let the kernel add up parts into gradients, either of both None; the names of the kernels launched."""
    names = []

    def named_launch(kernel, *args):
        names.append(kernel.py_func.__name__)
        launch(kernel, *args)

    add_up(named_launch, parts, gradients, **divisor)
    return names


def add_up(launch, parts, gradients, weight=None, eps=0.0, offset=None) -> None:
    """Queue the kernel that a plan has for such partial sums."""
    names = ("part_weight", "part_bias"), ("grad_weight", "grad_bias")
    operands = dict(zip(names[0] + names[1], parts + gradients, strict=True), weight=weight, eps=np.float32(eps))
    given = [part for part in parts if part is not None]
    shape = given[0].shape if given else (1, 1)
    rows, n2 = shape
    matrix = np.empty((1, n2), np.float32)
    problem = BackwardProblem(
        matrix, matrix, None, np.empty(1, np.float32), *parts, np.float32(0), False, False, matrix, *gradients
    )
    for work in final_sums.sums_of(problem, rows, False, offset):
        launch(work.kernel, work.grid, work.block, *[operands[name] for name in work.arguments])


def drawn(rows, n2, dtype, offset=0):
    """Partial sums, and memory for their sums that begins so many elements behind a multiple of 16 bytes."""
    parts = np.random.default_rng(rows).normal(size=(rows, n2)).astype(np.float32)
    memory = np.full(n2 + offset + 16, np.nan, dtype)
    start = -memory.ctypes.data % 16 // memory.itemsize + offset
    return parts, memory[start : start + n2]


def hold(parts, got):
    exact = parts.astype(np.float64)
    length = final_sums.terms(len(parts)) - 1
    bound = length * UNIT / (1 - length * UNIT) * abs(exact).sum(axis=0)
    want = exact.sum(axis=0)
    assert_within(got, want, bound + ROUNDING[got.dtype.type] * (abs(want) + bound), f"{parts.shape}")


@pytest.mark.parametrize("dtype", list(ROUNDING), ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("rows", [1, 2, 8, 9, 15, 16, 17, 24, 25, 33, 67])
@pytest.mark.parametrize(("n2", "offset"), [(1, 0), (37, 0), (40, 1), (1030, 0), (1100, 0)])
def test_sums_are_within_their_bound(rows, n2, offset, dtype):
    weight, grad_weight = drawn(rows, n2, dtype, offset)
    bias, grad_bias = drawn(rows, n2, dtype)
    bias += 1
    few = rows <= final_sums.FEW_ROWS
    assert summed((weight, bias), (grad_weight, grad_bias)) == [
        "backward_few_final_sums" if few else "backward_final_sums"
    ]
    hold(weight, grad_weight)
    hold(bias, grad_bias)


def test_more_threads_add_up_many_rows_within_their_bound():
    for rows, n2 in itertools.product((256, 257, 288, 1056), (37, 40)):
        weight, grad_weight = drawn(rows, n2, np.float32)
        bias, grad_bias = drawn(rows, n2, BFLOAT16)
        assert summed((weight, bias), (grad_weight, grad_bias)) == ["backward_final_sums"]
        hold(weight, grad_weight)
        hold(bias, grad_bias)


@pytest.mark.parametrize(("rows", "n2"), [(40, 72), (300, 1100), (40, 37)])
def test_nothing_is_found_in_the_sums_of_many_rows(rows, n2):
    parts, got = drawn(rows, n2, np.float32)
    add_up(launcher(Memory()), (parts, None), (got, None))
    hold(parts, got)


@pytest.mark.parametrize("n2", [37, 72])
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=["float32", "bfloat16"])
def test_the_weight_s_sums_are_divided_by_the_clamped_gamma(n2, dtype):
    """A backward that recomputes x̂ leaves them undivided; a gamma of weight + offset is clamped to 1/8."""
    weight = np.resize([1.0, -3.0, -0.5, -0.4375, -0.5625], n2).astype(dtype)
    gammas = np.resize([1.5, -2.5, 0.125, 0.125, -0.125], n2).astype(np.float32)
    for rows in (3, 40):
        parts, divided = drawn(rows, n2, np.float32)
        plain, bias = np.empty_like(divided), np.empty_like(divided)
        summed((parts, None), (plain, None))
        summed((parts, parts), (divided, bias), weight=weight, eps=0.125, offset=0.5)
        np.testing.assert_array_equal(bias, plain)
        np.testing.assert_array_equal(divided, plain / gammas)


@pytest.mark.parametrize("rows", [3, 20])
def test_the_sums_of_one_parameter_alone_are_those_of_both(rows):
    parts, both = drawn(rows, 72, np.float32)
    alone = np.full_like(both, np.nan)
    summed((parts, parts + 1), (both, np.empty_like(both)))
    summed((parts, None), (alone, None))
    np.testing.assert_array_equal(alone, both)
    alone[:] = np.nan
    summed((None, parts), (None, alone))
    np.testing.assert_array_equal(alone, both)
    assert summed((None, None), (None, None)) == []


def test_few_rows_are_added_up_in_their_order():
    parts, got = drawn(13, 64, np.float32)
    summed((parts, None), (got, None))
    want = np.zeros(64, np.float32)
    for row in parts:
        want += row
    np.testing.assert_array_equal(got, want)


def test_more_rows_have_no_shorter_bound():
    lengths = [final_sums.terms(rows) for rows in range(1, 1200)]
    assert lengths == sorted(lengths)


@pytest.mark.parametrize("rows", [3, 20])
def test_the_sums_begin_early_and_read_nothing_before_they_wait(monkeypatch, rows):
    parts, want = drawn(rows, 72, np.float32)
    got = np.full_like(want, np.nan)
    with using("simulator"):
        summed((parts, None), (want, None))
        late = Late(monkeypatch)
        late.late.append(parts)
        add_up(late.launch, (parts, None), (got, None))
    np.testing.assert_array_equal(got, want)
