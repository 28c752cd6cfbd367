"""Kernels that look like those of `refused_kernels.py`, and that Numba compiles. The arguments are named as there."""

# ruff: noqa: E731, F841

import numpy as np
from engine.refused_kernels import fact
from numba import cuda


def taken_lambda(x):
    double = lambda value: value * 2
    x[0] = double(x[0])


def taken_nested_function(x):
    def double(value):
        return value * 2

    x[0] = double(x[0])


def taken_sum_of_an_array(x):
    x[0] = np.sum(x)


def taken_sum_method(x):
    x[0] = x.sum()


def taken_isinstance(x):
    if isinstance(x[0], float):
        x[0] = 1


def taken_none_or_number(x, n):
    value = None
    if n > 3:
        value = x[0]
    x[1] = value


def taken_array_variable_reassigned(x):
    x = 1.0
    y = x + 1


def taken_float_in_an_atomic_s_index(x):
    cuda.atomic.add(x, 0.5, 1)


def taken_row_of_a_matrix(a):
    a[cuda.grid(1)] = 1.0


def taken_raise(x):
    if x.size < 3:
        raise ValueError("too short")
    x[0] = 1


def taken_assert(x):
    assert x.size > 3
    x[0] = 1


def taken_variable_of_one_branch(x):
    if x[0] > 1:
        y = 1.0
    x[0] = y


def taken_dtype_of_an_argument(x):
    kept = cuda.local.array(4, x.dtype)
    kept[0] = 1
    x[0] = kept[0]


def taken_match(x, n):
    match n:
        case 1:
            x[0] = 2
        case _:
            x[0] = 3


def taken_enumerate(x):
    for i, value in enumerate(x):
        x[i] = value


def taken_list_of_constants(x):
    for value in [1, 2]:
        x[0] += value


def taken_slice_of_numbers(x):
    x[0:3] = 1


def taken_round(x):
    x[0] = round(x[1], 2)


def taken_length_of_a_text(x):
    x[0] = len("a" + "b")


def taken_recursion(x, n):
    x[0] = fact(n)
