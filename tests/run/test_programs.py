"""Whole programs, unmodified: each prints numbers, and here is what they have to be."""

import math
import sys

import numpy as np
import pytest
from run.conftest import keep_ours

from normlab.run.launcher import Launcher
from normlab.run.program import execute
from normlab.run.stand_in import stand_in

MASK = (1 << 64) - 1


def heat(steps=50):
    rod = np.zeros(101)
    rod[50] = 1000
    for _ in range(steps):
        rod[1:-1] += 0.25 * (rod[:-2] - 2 * rod[1:-1] + rod[2:])
        rod[0] = rod[-1] = 0
    return rod[50], rod[40], rod.sum()


def laplace():
    u, iterations, change = np.zeros((15, 15)), 0, 1
    u[0] = 1
    while change >= 1e-2:
        new = u.copy()
        new[1:-1, 1:-1] = (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]) / 4
        change, u, iterations = np.abs(new - u).max(), new, iterations + 1
    return iterations, u[7, 7], u[1:-1, 1:-1].sum()


def recurrence():
    m = np.ones((9, 128), dtype=np.int64)
    for row in range(1, 9):
        m[row] = m[row - 1, ::-1] + np.arange(128)
    return m[-1, 0], m[-1, 5], m.sum(), 132 * 2


def product():
    a = np.arange(130).reshape(10, 13) % 7
    b = np.arange(221).reshape(13, 17) % 5
    return 0, (a @ b).sum()


def reductions():
    x = np.arange(700) * 3 % 101
    return x.sum(), x.sum(), x.sum(), x.sum() + 1000, x.max(), x[:300].sum(), 5


def mandelbrot():
    def escape(c):
        z = 0
        for i in range(20):
            z = z * z + c
            if abs(z) >= 2:
                return i
        return 20

    image = np.array([[escape(complex(-2 + 1.5 * x / 9, -1 + 2 * y / 12)) for x in range(18)] for y in range(12)])
    return image.sum(), image[6, 9], 18


EXPECTED = {
    "vector_add": lambda: (500, 500),
    "matmul_shared": product,
    "block_reduction": reductions,
    "grid_sync": recurrence,
    "heat_1d": heat,
    "laplace_2d": laplace,
    "life": lambda: (5, 1),
    "mandelbrot": mandelbrot,
    "scan": lambda: (1, np.random.default_rng(0).integers(0, 10, 256).sum()),
    "streams": lambda: (2048 * 3 * 2, 90, 32 * 1024, 1, 1, 1, 9, 0),
    "numpy_only": lambda: (8,),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_program_computes_what_numpy_does(run, name):
    finished = run(name)
    assert finished.code == 0, finished.err
    assert finished.results == pytest.approx([float(number) for number in EXPECTED[name]()], rel=1e-12)


def test_a_program_reads_its_arguments(run):
    finished = run("matmul_shared", "--rows", 3, "--inner", 20, "--columns=2")
    a, b = np.arange(60).reshape(3, 20) % 7, np.arange(40).reshape(20, 2) % 5
    assert finished.results == [0, (a @ b).sum()]


def test_modules_and_files_are_found_as_python_finds_them(run, tmp_path, monkeypatch):
    values = np.linspace(-3, 3, 200)
    np.save(tmp_path / "values.npy", values)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    finished = run("imports", "values.npy")
    counts, _ = np.histogram(values, bins=16, range=(-2, 2))
    assert finished.results[:-1] == list(counts)
    assert finished.results[-1] == pytest.approx((values**2).sum())
    assert sys.path == before


def xoroshiro(seed):
    """Yield the states of generators 2**64 steps apart, as xoroshiro.di.unimi.it/xoroshiro128plus.c has them."""
    z = (seed + 0x9E3779B97F4A7C15) & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    state = [z ^ z >> 31] * 2
    while True:
        yield list(state)
        jumped = [0, 0]
        for word in (0xBEAC0467EBA5FACB, 0xD86B048B86AA9922):
            for bit in range(64):
                if word >> bit & 1:
                    jumped = [jumped[0] ^ state[0], jumped[1] ^ state[1]]
                draw(state)
        state = jumped


def draw(state):
    """Advance `state` by one step and return the 64 random bits."""
    s0, s1 = state
    result = s0 + s1 & MASK
    s1 ^= s0
    state[:] = (s0 << 55 | s0 >> 9) & MASK ^ s1 ^ s1 << 14 & MASK, (s1 << 36 | s1 >> 28) & MASK
    return result


def test_random_numbers_are_those_of_the_published_algorithm(run):
    finished = run("monte_carlo_pi", 7)
    generators, total = xoroshiro(7), 0
    for _ in range(256):
        state, inside = next(generators), 0
        for _ in range(25):
            x, y = (np.float32((draw(state) >> 11) * 2.0**-53) for _ in range(2))
            inside += x * x + y * y <= 1
        total += np.float32(4 * inside / 25)
    assert finished.results[0] == pytest.approx(total / 256, rel=1e-6)
    assert f" {state[0]}\n" in finished.out


def test_ufuncs_for_the_cuda_target(run):
    finished = run("ufuncs")
    column, row = np.arange(3, dtype=np.float32)[:, None], np.arange(4, dtype=np.float32)
    expected = [np.sqrt(column**2 + row**2).sum(), 1, math.hypot(4, 12), 55, 15 + 90, 33, 72]
    assert finished.results == pytest.approx([float(number) for number in expected], rel=1e-6)


def test_signatures_convert_scalars_and_refuse_arrays(run):
    finished = run("signatures")
    single = float(np.float32(0.1))
    assert finished.results == [300 - 256, single, single, 12]
    assert "No matching definition for argument type(s) array(int32, 1d, C), int64 of kernel 'fill'" in finished.out


def test_a_crash_shows_the_program_s_lines_only(run):
    finished = run("crashes")
    assert finished.code == 1
    places = [line.strip() for line in finished.err.splitlines() if line.strip().startswith("File ")]
    assert [place.rpartition(" in ")[2] for place in places] == ["<module>", "launch", "shift", "deeper"]
    assert all("crashes.py" in place for place in places)
    assert "IndexError" in finished.err
    assert "in kernel 'shift', block (0, 0, 0), thread (1, 0, 0)" in finished.err


@pytest.mark.parametrize(("how", "code", "said"), [("three", 3, ""), ("words", 1, "in words\n"), ("nothing", 0, "")])
def test_exit_codes_are_the_program_s(run, how, code, said, monkeypatch):
    monkeypatch.setattr("atexit.register", lambda function: None)  # this process lives on
    finished = run("exits", how)
    assert (finished.code, finished.err) == (code, said)
    assert "'__main__'" not in finished.out
    assert f"'{how}'] __main__ True True" in finished.out


def test_threads_that_outlive_a_script_find_its_modules_its_arguments_and_its_main(tmp_path, monkeypatch):
    keep_ours(monkeypatch)
    (tmp_path / "beside_it.py").write_text("VALUE = 7\n")
    (tmp_path / "outlived.py").write_text(
        """
import sys
import threading

def late():
    ended.wait()
    import __main__
    import beside_it
    told.append((beside_it.VALUE, sys.argv[1:], __main__.late is late))

told, ended = [], threading.Event()
thread = threading.Thread(target=late, daemon=True)
thread.start()
"""
    )
    assert execute(str(tmp_path / "outlived.py"), ["7"]) == 0
    script = sys.modules["__main__"]
    script.ended.set()
    script.thread.join()
    assert script.told == [(7, ["7"], True)]


def test_a_program_may_empty_its_path(capsys, tmp_path, monkeypatch):
    keep_ours(monkeypatch)
    (tmp_path / "empties.py").write_text("import sys\nsys.path.clear()\nsys.exit(3)\n")
    assert execute(str(tmp_path / "empties.py"), []) == 3


def test_a_group_of_exceptions_shows_the_program_s_lines_only(capsys, tmp_path, monkeypatch):
    keep_ours(monkeypatch)
    (tmp_path / "grouped.py").write_text(
        """
import numpy as np
from numba import cuda

@cuda.jit
def shift(x):
    x[2] = 1

caught = []
try:
    shift[1, 1](np.zeros(2))
except IndexError as error:
    caught.append(error)
raise ExceptionGroup("of one", caught)
"""
    )
    with stand_in(Launcher()):
        assert execute(str(tmp_path / "grouped.py"), []) == 1
    err = capsys.readouterr().err
    assert "IndexError" in err
    places = [line.strip(" |") for line in err.splitlines() if line.strip(" |").startswith("File ")]
    assert len(places) == 3  # where the group was raised; the launch, and the kernel's line
    assert all("grouped.py" in place for place in places)


def test_ctrl_c_is_130(run, monkeypatch):
    monkeypatch.setattr("atexit.register", lambda function: None)
    assert run("exits", "interrupt").code == 130
