"""Globals are constants of a compiled kernel, and so they are here."""

from types import SimpleNamespace

import numpy as np

FACTOR = 2
TABLE = np.array([10.0, 20.0])


def test_a_specialisation_keeps_the_globals_of_its_first_launch(cuda, monkeypatch):
    @cuda.jit(device=True)
    def scaled(x):
        return x * FACTOR

    @cuda.jit("float64(float64)", device=True)
    def from_table(x):
        return x + TABLE[0]

    @cuda.jit
    def kernel(x):
        x[0] = from_table(scaled(x[0])) + FACTOR

    def launch(dtype=np.float64):
        x = np.ones(1, dtype)
        kernel[1, 1](x)
        return x[0]

    assert launch() == 2 + 10 + 2
    monkeypatch.setitem(globals(), "FACTOR", 5)
    TABLE[0] = 100
    try:
        assert launch() == 2 + 10 + 2
        assert launch(np.float32) == 5 + 100 + 5  # compiled now
        kernel.recompile()
        assert launch() == 5 + 100 + 5
    finally:
        TABLE[0] = 10


def test_declared_types_compile_at_once(cuda):
    def made():
        amount = 1

        @cuda.jit("void(int64[:])")
        def early(x):
            x[0] = amount

        @cuda.jit
        def late(x):
            x[0] = amount

        amount = 2
        return early, late

    results = []
    for kernel in made():
        x = np.zeros(1, np.int64)
        kernel[1, 1](x)
        results.append(x[0])
    assert results == [1, 2]


def test_a_device_function_may_name_itself(cuda):
    @cuda.jit(device=True)
    def factorial(n):
        return 1 if n <= 1 else n * factorial(n - 1)

    @cuda.jit
    def kernel(x):
        x[0] = factorial(x[0])

    x = np.array([5])
    kernel[1, 1](x)
    assert x[0] == 120


def test_a_device_array_from_outside_stays_the_array(cuda):
    kept = cuda.to_device(np.arange(3.0))
    other = SimpleNamespace(__cuda_array_interface__=kept.__cuda_array_interface__)

    @cuda.jit
    def add():
        kept[cuda.grid(1)] += 10

    @cuda.jit
    def add_to_other():
        other[cuda.grid(1)] += 100

    add[1, 3]()
    add_to_other[1, 3]()
    assert kept.copy_to_host().tolist() == [110, 111, 112]
