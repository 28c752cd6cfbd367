"""Vector types, `cuda.random` by attribute, and names that do not exist."""

import numpy as np
import pytest
from numba import cuda

from normlab.sim import simulate


def run(kernel, *arguments):
    simulate(kernel)[1, 1](*arguments)
    return arguments[-1]


def test_a_vector_is_made_of_numbers_and_vectors_and_has_its_type():
    @cuda.jit
    def kernel(out):
        pair = cuda.float32x2(0.1, 2)
        all_four = cuda.float4(pair, pair.y, 7)
        out[0], out[1], out[2], out[3] = all_four.x, all_four.y, all_four.z, all_four.w
        wrapped = cuda.uchar2(300, -1)
        out[4], out[5] = wrapped.x, wrapped.y

    expected = [np.float32(0.1), 2, 2, 7, 44, 255]
    np.testing.assert_array_equal(run(kernel, np.zeros(6)), expected)


def test_a_vector_of_another_length_is_refused():
    @cuda.jit
    def kernel(out):
        out[0] = cuda.int32x3(1, 2).x

    with pytest.raises(TypeError, match="int32x3 takes 3 elements, got 2"):
        run(kernel, np.zeros(1))


def test_random_numbers_by_attribute_are_those_by_import():
    from numba.cuda.random import xoroshiro128p_uniform_float32

    @cuda.jit
    def by_attribute(states, out):
        out[0] = cuda.random.xoroshiro128p_uniform_float32(states, 0)

    @cuda.jit
    def by_import(states, out):
        out[0] = xoroshiro128p_uniform_float32(states, 0)

    states = np.array([(3, 5)], [("s0", np.uint64), ("s1", np.uint64)])
    got, want = (run(kernel, states.copy(), np.zeros(1, np.float32)) for kernel in (by_attribute, by_import))
    assert 0 <= got[0] == want[0] < 1


@pytest.mark.parametrize(("name", "nearest"), [("gird", "cuda.grid"), ("sycnthreads", "cuda.syncthreads")])
def test_a_misspelt_name_is_told_the_nearest_one(name, nearest):
    made = {"cuda": cuda}
    exec(f"def kernel(out):\n    out[0] = cuda.{name}(1)\n", made)
    with pytest.raises(AttributeError, match=f"did you mean {nearest}"):
        run(cuda.jit(made["kernel"]), np.zeros(1))
