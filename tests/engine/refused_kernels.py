"""Kernels that Numba refuses, each with a comment at the line that it refuses.

The simulator would run nearly all of them. `test_check.py` takes the comment for a part of the sentence that a student
reads. The arguments are the types beside each kernel: x and y one-dimensional, a and b two-dimensional arrays of
float32, n an int64.
"""

# ruff: noqa: F821, F841, NPY002, SIM105, SIM115, UP031

import math
import time

import numpy as np
from numba import cuda, float32
from numba.cuda import shared

from normlab.engine import grid_sync

COUNT = 0
TABLE = {"a": 1.0}
NAMES = ["a", "b"]
NUMBERS = [1.0, 2.0]
CONSTANT = np.arange(4, dtype=np.float32)


def helper(value):
    return value * 2


@cuda.jit(device=True)
def needs_two(one, other):
    return one + other


@cuda.jit(device=True)
def fact(n):
    if n < 2:
        return 1
    return n * fact(n - 1)  # refused: a function calls itself with other types


@cuda.jit(device=True)
def with_dict(value):
    twice = {"twice": 2 * value}
    return twice["twice"]  # refused: cannot use a dict


@cuda.jit(device=True)
def between(value):
    return with_dict(value)


# --- the twelve that an audit found running without a word -----------------------------------------------------------


def a_dict(x):
    table = {"a": 1.0}
    x[cuda.grid(1)] = table["a"]  # refused: cannot use a dict


def an_f_string(x):
    i = cuda.grid(1)
    print(f"thread {i}")  # refused: cannot format text, so it has no f-strings


def a_try(x):
    i = cuda.grid(1)
    try:
        x[i] = 1
    except IndexError:  # refused: cannot catch exceptions
        pass


def returns_a_value(x):
    x[cuda.grid(1)] = 1
    return 5  # refused: a kernel returns nothing


def a_global(x):
    global COUNT
    COUNT = COUNT + 1  # refused: cannot assign to a global variable
    x[cuda.grid(1)] = COUNT


def shared_of_run_time_size(x, n):
    buffer = cuda.shared.array(n, float32)  # refused: the size of cuda.shared.array must be known
    buffer[0] = 1
    x[cuda.grid(1)] = buffer[0]


def opens_a_file(x):
    file = open("a")  # refused: there is no open\(\) on a GPU
    x[cuda.grid(1)] = 1


def numpy_random(x):
    x[cuda.grid(1)] = np.random.random()  # refused: there is no numpy.random.random on a GPU


def a_class(x):
    class Point:  # refused: cannot define a class
        pass

    x[cuda.grid(1)] = 1


def a_generator(x):
    x[cuda.grid(1)] = 1
    yield 1  # refused: cannot be a generator


def undecorated_helper(x):
    i = cuda.grid(1)
    x[i] = helper(x[i])  # refused: helper is a plain Python function


def barrier_with_an_argument(x):
    cuda.syncthreads(1)  # refused: syncthreads takes 0 arguments, and is given 1
    x[cuda.grid(1)] = 1


# --- more Python that no GPU runs ------------------------------------------------------------------------------------


def a_list_that_grows(x):
    values = []
    values.append(x[0])  # refused: cannot grow a list
    x[0] = values[0]


def a_list_that_changes(x):
    values = [1.0, 2.0]  # refused: makes a new array or list
    x[0] = values[cuda.grid(1)]


def a_comprehension(x):
    values = [v * 2 for v in range(3)]  # refused: cannot make a list
    x[0] = values[0]


def a_generator_expression(x):
    x[0] = sum(v for v in range(3))  # refused: cannot use a generator


def a_set(x):
    kept = {1, 2}  # refused: cannot use a set
    x[0] = len(kept)


def a_with(x):
    with open("a") as file:  # refused: cannot use a with statement
        x[0] = 1


def an_import(x):
    import math  # refused: cannot import

    x[0] = math.sqrt(x[1])


def a_deletion(x):
    i = cuda.grid(1)
    del i  # refused: cannot delete a variable


def text_by_percent(x):
    i = cuda.grid(1)
    print("thread %d" % i)  # refused: cannot put text together


def text_of_a_number(x):
    i = cuda.grid(1)
    print("thread " + str(i))  # refused: cannot put text together


def text_in_an_array(x):
    x[0] = "a"  # refused: cannot put text together or store it


def number_of_a_text(x):
    x[0] = int("3")  # refused: cannot put text together


def prints_an_array(x):
    print(x)  # refused: print takes numbers and texts, and no array


def sorts(x):
    x.sort()  # refused: there is no array.sort on a GPU


def appends(x):
    x.append(1)  # refused: an array of float32 has no .append


def time_of_the_host(x):
    x[0] = time.time()  # refused: there is no time.time on a GPU


def no_such_function_of_math(x):
    x[0] = math.factorial(3)  # refused: there is no math.factorial on a GPU


def no_such_name(x):
    x[0] = nothing_there  # refused: the name nothing_there is defined nowhere


def no_such_function_of_cuda(x):
    cuda.sync_threads()  # refused: there is no cuda.sync_threads


def no_such_axis(x):
    x[0] = cuda.threadIdx.w  # refused: has .x, .y and .z, and no .w


def imported_by_its_name(x):
    buffer = shared.array(4, float32)  # refused: cannot use shared imported by its name: write cuda.shared
    x[0] = buffer[0]


def a_global_dict(x):
    x[0] = TABLE["a"]  # refused: cannot use TABLE, which is a dict


def a_global_list(x):
    x[0] = len(NAMES[0])  # refused: cannot use NAMES, which is a list


def a_global_list_of_numbers(x):
    x[0] = NUMBERS[1]  # refused: cannot use NUMBERS, which is a list


def writes_to_a_global_array(x):
    CONSTANT[0] = x[0]  # refused: read-only


def inside_a_device_function(x):
    x[0] = between(x[0])  # (the line that is refused is in `with_dict`)


def recursion_from_a_number(x):
    x[0] = fact(3)  # (the line that is refused is in `fact`)


def too_few_arguments(x):
    x[0] = needs_two(x[0])  # refused: takes \(a?.*one, other\), and is called with 1 argument


# --- arrays as wholes ------------------------------------------------------------------------------------------------


def adds_slices(x):
    total = x[0:4] + x[4:8]  # refused: makes a new array or list
    x[0] = total[0]


def copies_per_slice(x):
    kept = x[0:4].copy()  # refused: makes a new array or list
    x[0] = kept[0]


def allocates_zeros(x):
    kept = np.zeros(4, np.float32)  # refused: there is no zeros\(
    x[0] = kept[0]


def allocates_an_array(x):
    kept = np.array([1.0, 2.0])  # refused: there is no array\(a list\) on a GPU
    x[0] = kept[0]


def chooses_with_where(x):
    x[0] = np.where(x > 1, 1, 0)[0]  # refused: there is no where\(an array of bool


def multiplies_matrices(a, b):
    c = a @ b  # refused: there is no `@` between an array of float32 with 2 dimensions and
    a[0, 0] = c[0, 0]


def asks_a_whole_array(x):
    if x > 1:  # refused: a comparison of a whole array has no truth value
        x[0] = 1


# --- types -----------------------------------------------------------------------------------------------------------


def number_or_array(x, n):
    if n > 3:
        value = x[0]
    else:
        value = x  # refused: value is a float32 at one place and an array of float32 at another
    print(value)


def array_that_becomes_a_number(x, n):
    value = x
    for _ in range(n):
        value = value[0]  # refused: value is a float32 at one place and an array of float32 at another


def array_or_number_stored(x, n):
    value = x
    if n > 3:
        value = 1.0
    x[0] = value + 1  # refused: an array of float32 cannot be stored in one element


def tuples_of_two_lengths(x, n):
    pair = 1, 2
    if n > 3:
        pair = 1, 2, 3  # refused: pair is a tuple of 2 at one place and a tuple of 3 at another
    x[0] = pair[0]


def a_tuple_that_grows(x, n):
    values = ()
    for i in range(n):
        values = (*values, i)  # refused: cannot unpack with
    x[0] = values[0]


def a_mixed_tuple_by_a_variable(x, n):
    pair = 1, 2.5
    x[0] = pair[n]  # refused: takes an index that is a number itself


def a_tuple_that_changes(x):
    pair = 1, 2
    pair[0] = 3  # refused: the entries of a tuple cannot be changed


def unpacks_one_number(x):
    i, j = cuda.grid(1)  # refused: there are more names, or fewer, on the left
    x[i] = j


def too_many_indices(x):
    x[0, 0] = 1  # refused: an array with 1 dimension is given 2 indices


def too_few_indices(a):
    a[0, 0] = a[0] + 1.0  # refused: an array of float64 cannot be stored in one element


def float_as_an_index(x):
    x[cuda.grid(1) / 2] = 1  # refused: an index is a float, and must be an integer


def float_with_bits(x):
    x[0] = x[1] & 3  # refused: there is no `&` between a float32 and the int 3


def float_shifted(x, n):
    x[0] = x[1] >> n  # refused: there is no `>>` between a float32 and an int64


# --- functions of cuda -----------------------------------------------------------------------------------------------


def local_of_run_time_size(x):
    kept = cuda.local.array(cuda.grid(1) + 1, float32)  # refused: the size of cuda.local.array must be known
    x[0] = kept[0]


def shared_of_an_argument_s_size(x):
    buffer = cuda.shared.array(x.shape[0], float32)  # refused: the size of cuda.shared.array must be known
    x[0] = buffer[0]


def shuffle_without_a_mask(x):
    x[0] = cuda.shfl_down_sync(x[0], 1)  # refused: not given all its arguments \(the first is the mask of lanes\)


def grid_barrier_without_an_index(x):
    grid_sync(x)  # refused: grid_sync is not given all its arguments: 'index' is missing


def atomic_on_a_number(x):
    cuda.atomic.add(x[0], 0, 1)  # refused: cuda.atomic.add takes an array, an index and then its numbers


def atomic_without_a_value(x):
    cuda.atomic.add(x, 0)  # refused: cuda.atomic.add takes an array, an index and then its numbers


def warp_barrier_by_a_text(x):
    cuda.syncwarp("all")  # refused: cannot put text together


def grid_of_a_variable(x, n):
    i = cuda.grid(n)  # refused: cuda.grid takes the number 1, 2 or 3 itself
    x[0] = i


def numpy_s_root(x):
    x[0] = abs(x[1]) + np.sqrt(x[0])  # refused: there is no np.sqrt on a GPU: write math.sqrt


def numpy_s_magnitude(x):
    x[0] = math.sqrt(np.abs(x[0]))  # refused: there is no np.absolute on a GPU: write abs


def flat_by_ravel(a, x):
    x[0] = a.ravel()[1]  # refused: a method that may make a new array


def an_ellipsis_alone(x):
    x[0] = float32(x[...][1])  # refused: alone does not compile: write x


def a_shared_array_without_a_dtype(x):
    buffer = cuda.shared.array(32)  # refused: takes a size and a dtype such as float32, which are not both given
    x[0] = buffer[0]


def a_local_array_of_python_s_int(x):
    values = cuda.local.array(4, int)  # refused: a size and a dtype such as float32, not the type int
    x[0] = values[0]


def a_dtype_that_is_not_there(x):
    values = cuda.local.array(shape=(4, 2), dtype="float31")  # refused: such as float32, not the text 'float31'
    x[0] = values[0, 0]


def a_size_by_keyword(x):
    buffer = cuda.shared.array(shape=x.size, dtype=float32)  # refused: the size .* not an int64 that the kernel
    x[0] = buffer[0]


def all_three_indices(x):
    x[cuda.threadIdx] = 1.0  # refused: integers as indices, not all three of .x, .y and .z


def a_function_as_an_index(x):
    x[cuda.grid] = 1.0  # refused: integers as indices, not the function grid


def round_brackets(x):
    x[0] = x(1)  # refused: an array of float32 is no function, but is called like one


def the_bits_of_a_float(x):
    x[0] = ~x[1]  # refused: there is no `~` of a float32 in a kernel


def not_of_an_array(x):
    if not x:  # refused: a comparison of a whole array has no truth value
        x[0] = 1.0


def a_cast_of_an_array(x):
    y = float32(x)  # refused: there is no float32\(an array of float32\) on a GPU
