"""Vector types, `cuda.random` by attribute, and names that do not exist."""

import types

import numpy as np
import pytest
from numba import cuda

from normlab.sim import SimulationError, sanitize, simulate, trace


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


mlir = types.ModuleType("numba_cuda_mlir.cuda")  # what a kernel of numba-cuda-mlir names; it need not be installed


@pytest.mark.parametrize("alignment", [None, 8])
@pytest.mark.parametrize("watched", [simulate, sanitize, trace])
def test_blocks_of_elements_are_loaded_computed_with_and_stored(watched, alignment):
    def kernel(x, line, block):
        i = mlir.threadIdx.x
        four = mlir.vector.load(x, (i, 2), 4, alignment)
        mlir.vector.store(line, 4 * i, 2.0 * four - four / 4 + 1, alignment)
        mlir.vector.store(block, (2 * i, 0), -mlir.vector.load(x, (2 * i, 4), (2, 2), alignment))

    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    line, block = np.zeros(8, np.float32), np.zeros((4, 2), np.float32)
    watched(kernel)[1, 2](x, line, block)
    np.testing.assert_array_equal(line, x[:2, 2:6].ravel() * 1.75 + 1)
    np.testing.assert_array_equal(block, -x[:, 4:6])


def test_a_vector_that_is_less_aligned_than_promised_is_an_error():
    def kernel(x, out):
        mlir.vector.store(out, 0, mlir.vector.load(x, 1, 2, alignment=8), alignment=8)

    with pytest.raises(SimulationError, match="misaligned address: 2 elements of float32 from index"):
        simulate(kernel)[1, 1](np.zeros(4, np.float32), np.zeros(2, np.float32))


def test_a_vector_keeps_its_type_and_multiplies_numbers_alone():
    def kernel(out):
        vector = mlir.uint8x2(200, 7) + mlir.uchar2(100, 1)
        out[0], out[1] = vector.x, (vector % 5).y
        mlir.float32x2(1, 2) * mlir.float32x2(1, 2)

    out = np.zeros(2)
    with pytest.raises(TypeError, match="unsupported operand"):
        simulate(kernel)[1, 1](out)
    assert out.tolist() == [44, 3]


@pytest.mark.parametrize("threads", [4, 32])
@pytest.mark.parametrize("watched", [simulate, sanitize, trace])
def test_a_kernel_takes_any_number_of_arguments(watched, threads):
    def kernel(out, *rest):
        i = mlir.grid(1)
        for one in rest:
            out[i] += one[i]

    x, out = np.arange(float(threads)), np.zeros(threads)
    watched(kernel)[1, threads](out, x, x, x)
    assert (out == 3 * x).all()
    with pytest.raises(TypeError, match=r"takes 1 argument \(out\), got 0"):
        watched(kernel)[1, threads]()


@pytest.mark.parametrize("threads", [4, 32])
@pytest.mark.parametrize("watched", [simulate, sanitize, trace])
def test_a_kernel_stores_text(watched, threads):
    def kernel(x, out):
        i = mlir.grid(1)
        if i < len(out) - 1:
            out[i] = x[i] if i % 2 else "ab"

    x, out = np.array(["xyz"] * threads), np.zeros(threads + 1, "<U2")
    watched(kernel)[1, threads](x, out)
    assert out.tolist() == ["ab", "xy"] * (threads // 2) + [""]


@pytest.mark.parametrize("threads", [4, 32])
def test_the_bits_of_integers_are_floats_too(threads):
    def kernel(x, out):
        i = mlir.grid(1)
        floats = x.view(np.float32)
        out[i] = floats[i] * 2
        floats[i] = 0.5

    x, out = np.arange(float(threads), dtype=np.float32).view(np.int32), np.zeros(threads)
    simulate(kernel)[1, threads](x, out)
    assert (out == 2 * np.arange(threads)).all()
    assert (x.view(np.float32) == 0.5).all()
