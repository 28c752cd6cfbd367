"""Lengths that a kernel's arrays have in common: handed over once, and checked."""

import re
from importlib.util import find_spec

import numpy as np
import pytest
from engine.fake_driver import fake_driver
from engine.test_launching import on_device

from normlab.engine import compile_ptx, cuda, launch, same_lengths

NAMES = {"x": "n1 n2", "weight": "n2", "output": "n1 n2", "sums": "n1"}


@same_lengths(NAMES)
@cuda.jit
def scale(x, weight, output, sums):
    """Scale the columns, and add to each row's sum what else says how the arrays lie."""
    row = cuda.grid(1)
    if row < sums.shape[0]:
        for column in range(weight.shape[0]):
            output[row, column] = x[row, column] * weight[column]
            sums[row] += output[row, column]
        sums[row] += output.size + output.strides[0] + weight.size


def some(n1=3, n2=5, dtype=np.float32):
    rng = np.random.default_rng(n1)
    return rng.random((n1, n2)).astype(dtype), rng.random(n2).astype(dtype), np.zeros((n1, n2), dtype), np.zeros(n1)


def wanted(x, weight, output, sums):
    values = x * weight
    return values, values.astype(float).sum(1) + output.size + output.strides[0] + weight.size


@pytest.mark.parametrize(
    "turn", [lambda x: x, lambda x: np.repeat(x, 2, axis=1)[:, ::2], lambda x: np.asfortranarray(x)]
)
def test_all_arrays_arrive_whole(monkeypatch, turn):
    library = fake_driver(monkeypatch)
    x, weight, output, sums = some()
    x = turn(x)
    launch(scale, 1, 32, *map(on_device, (x, weight, output, sums)))
    for got, want in zip((output, sums), wanted(x, weight, output, sums), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    assert [call[0] for call in library.calls] == ["load", "launch"]


@pytest.mark.skipif(not find_spec("numba_cuda"), reason="kernels are compiled by numba-cuda")
def test_the_entry_takes_each_length_once():
    types = (np.float32, 2), (np.float32, 1), (np.float32, 2), (np.float64, 1)
    for kernel, count in ((scale, 3 + 1 + 1 + 1), (cuda.jit(scale.py_func), 3 + 2 + 3 + 2)):
        entry = re.search(r"\.entry \w+\((.*?)\)", compile_ptx(kernel, types), re.DOTALL)
        assert re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)", entry[1]) == ["u64"] * count


def test_an_array_of_other_dimensions_keeps_its_lengths(monkeypatch):
    """A weight per sample, for example, is no row of n2 elements."""
    fake_driver(monkeypatch)

    @same_lengths(NAMES)
    @cuda.jit
    def first_row(x, weight, output, sums):
        output[0, cuda.threadIdx.x] = x[0, cuda.threadIdx.x] * weight[weight.shape[0] - 1, cuda.threadIdx.x]

    x, weight, output, sums = some()
    weight = np.stack([weight, 2 * weight])
    launch(first_row, 1, 5, *map(on_device, (x, weight, output, sums)))
    np.testing.assert_array_equal(output[0], x[0] * weight[1])


@pytest.mark.parametrize("on_gpu", [False, True])
def test_lengths_of_one_name_that_differ_are_refused_before_the_launch(monkeypatch, on_gpu):
    library = fake_driver(monkeypatch)
    x, weight, output, sums = some()
    args = x, weight[:4].copy(), output, sums
    with pytest.raises(ValueError, match="must agree in n2, got 5 and 4"):
        launch(scale, 1, 32, *(map(on_device, args) if on_gpu else args))
    assert "launch" not in {call[0] for call in library.calls}
    assert not output.any()


def test_a_launch_is_right_where_the_suite_runs():
    """On a GPU `launch` compiles the entry for which it packs; here the simulator takes whole arrays."""
    args = some(n1=40, n2=7)
    launch(scale, 2, 32, *args)
    for got, want in zip(args[2:], wanted(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
