"""How a kernel's names are resolved: imports of every form, device functions, closures, recursion, twins."""

import importlib.util
import math
import subprocess
import sys
from math import sqrt as square_root
from pathlib import Path

import numba
import numba as nb
import numba.cuda as c
import numpy as np
import pytest
from numba import cuda, float32, types
from numba.core.extending import intrinsic as cpu_intrinsic
from numba.cuda import (
    atomic,
    blockDim,
    blockIdx,
    cg,
    fp16,
    gridDim,
    libdevice,
    shared,
    syncthreads,
    threadIdx,
    warpsize,
)
from numba.cuda import float64 as cuda_float64
from numba.cuda import grid as position
from numba.cuda.extending import intrinsic
from numba.cuda.fp16 import hadd
from numba.cuda.libdevice import rsqrtf
from numba.cuda.random import (
    create_xoroshiro128p_states,
    init_xoroshiro128p_states_cpu,
    xoroshiro128p_dtype,
    xoroshiro128p_normal_float32,
    xoroshiro128p_uniform_float32,
)

from normlab.sim import register_twin, simulate
from normlab.sim.language.operators import function_tree, safe_code

spec = importlib.util.spec_from_file_location("twin_module", Path(__file__).with_name("twin_module.py"))
twin_module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(twin_module)
factorial = twin_module.factorial
assert create_xoroshiro128p_states  # needs a GPU; its CPU half is used below


def run(kernel, size=4, block=4, grid=1, dtype=np.float64):
    out = np.zeros(size, dtype)
    simulate(kernel)[grid, block](out)
    return out.tolist()


def test_names_imported_from_cuda_are_simulated():
    @cuda.jit
    def kernel(out):
        memory = shared.array(4, float32)
        memory[threadIdx.x] = position(1)
        syncthreads()
        atomic.add(
            out, threadIdx.x, memory[3 - threadIdx.x] + blockIdx.x + 10 * blockDim.x + 100 * gridDim.x + warpsize
        )

    assert run(kernel, grid=1) == [175, 174, 173, 172]


def test_functions_imported_from_namespaces_of_cuda_are_simulated():
    @cuda.jit
    def kernel(out):
        out[0] = libdevice.rsqrtf(4.0) + rsqrtf(16.0)
        out[1] = fp16.hadd(1.0, 2.0) + hadd(np.float16(1), np.float16(0.5))
        out[2] = cg.this_grid().size
        out[3] = cuda_float64(1.5)

    assert run(kernel, block=1) == [0.75, 4.5, 1, 1.5]


def test_cuda_under_any_name_and_through_numba_is_simulated():
    @cuda.jit
    def kernel(out):
        out[c.threadIdx.x] = numba.cuda.threadIdx.x + nb.float32(0.1) + types.int32(2.9) + nb.types.int8(300)

    assert run(kernel) == [t + float(np.float32(0.1)) + 2 + 44 for t in range(4)]


def test_modules_and_functions_of_the_callers_are_simulated_with_their_own_globals():
    @cuda.jit
    def kernel(out):
        out[threadIdx.x] = twin_module.scaled(2.0) + factorial(threadIdx.x)

    assert run(kernel) == [6 + 1, 7 + 1, 8 + 2, 9 + 6]


def test_closures_and_nested_functions_see_simulated_values():
    offset = 0.5
    number = np.int32(7)

    @cuda.jit(device=True)
    def inner(x):
        return x + offset + cuda.laneid

    def make(scale, function):
        @cuda.jit
        def kernel(out):
            def local(x):
                return function(x) * scale / (cuda.threadIdx.x - 1)

            out[cuda.threadIdx.x] = local(number)

        return kernel

    assert run(make(2, inner)) == [-15, math.inf, 19, 10.5]


def test_device_functions_may_call_each_other_through_a_closure():
    def make():
        @cuda.jit(device=True)
        def even(n):
            return True if n == 0 else odd(n - 1)

        @cuda.jit(device=True)
        def odd(n):
            return False if n == 0 else even(n - 1)

        @cuda.jit
        def kernel(out):
            out[cuda.threadIdx.x] = even(cuda.threadIdx.x)

        return kernel

    assert run(make()) == [1, 0, 1, 0]


def test_a_compile_time_flag_chooses_the_branch_that_a_closure_names():
    def make(flag):
        if flag:
            function = cuda.jit(device=True)(lambda x: x + 1)

        @cuda.jit
        def kernel(out):
            if flag:
                out[0] = function(1)
            else:
                out[0] = 5

        return kernel

    assert run(make(True), 1) == [2]
    assert run(make(False), 1) == [5]  # `function` is a variable without a value


def test_nothing_of_the_original_is_touched():
    @cuda.jit
    def kernel(out):
        out[0] = math.sqrt(float32(4)) / np.int32(2)

    before, code = dict(kernel.py_func.__globals__), kernel.py_func.__code__
    run(kernel, 1)
    assert {name: kernel.py_func.__globals__[name] for name in before} == before
    assert kernel.py_func.__code__ is code
    assert kernel.py_func.__globals__["cuda"] is cuda


def test_a_global_changed_between_launches_is_seen():
    @cuda.jit
    def kernel(out):
        out[0] = twin_module.SCALE

    assert run(kernel, 1) == [3]
    twin_module.SCALE = 4
    try:
        assert run(kernel, 1) == [4]
    finally:
        twin_module.SCALE = 3


def test_functions_imported_from_math_do_not_raise():
    @cuda.jit
    def kernel(out):
        out[0] = square_root(-1.0)
        out[1] = square_root(float32(2))

    out = run(kernel, 2)
    assert math.isnan(out[0])
    assert out[1] == np.sqrt(np.float32(2))


def test_random_device_functions_run_and_equal_the_compiled_ones():
    @cuda.jit
    def kernel(states, uniform, normal):
        i = cuda.grid(1)
        for k in range(3):
            uniform[i, k] = xoroshiro128p_uniform_float32(states, i)
        normal[i] = xoroshiro128p_normal_float32(states, i)

    states = np.zeros(4, xoroshiro128p_dtype)
    init_xoroshiro128p_states_cpu(states, 1234, 0)
    compiled = states.copy()
    uniform, normal = np.zeros((4, 3), np.float32), np.zeros(4, np.float32)
    simulate(kernel)[1, 4](states, uniform, normal)
    for i in range(4):  # the very functions, compiled for the CPU
        assert list(uniform[i]) == [np.float32(xoroshiro128p_uniform_float32(compiled, i)) for _ in range(3)]
        assert normal[i] == pytest.approx(xoroshiro128p_normal_float32(compiled, i), rel=1e-5)
    np.testing.assert_array_equal(states, compiled)


def test_a_twin_runs_in_the_place_of_an_intrinsic():
    @intrinsic
    def load_twice(context, array, index):
        raise NotImplementedError

    register_twin(load_twice, lambda array, index: array[index] * 2)

    @cuda.jit(device=True)
    def through_device(x):
        return load_twice(x, cuda.threadIdx.x)

    @cuda.jit
    def kernel(out):
        out[cuda.threadIdx.x] = cuda.threadIdx.x
        out[cuda.threadIdx.x] = through_device(out)

    assert run(kernel) == [0, 2, 4, 6]


def test_a_twin_that_is_a_device_function_may_use_cuda():
    @cpu_intrinsic
    def lane_above(context, value):
        raise NotImplementedError

    @cuda.jit(device=True)
    def twin(value):
        above = cuda.shfl_sync(0xFFFFFFFF, value, (cuda.laneid + 1) % 4)
        return above if cuda.laneid < 3 else -1

    @cuda.jit
    def kernel(out):
        out[cuda.threadIdx.x] = lane_above(cuda.threadIdx.x)

    register_twin(lane_above, twin)
    assert run(kernel) == [1, 2, 3, -1]


def test_a_plain_python_helper_is_called_as_it_is():
    calls = []

    def note(value):
        calls.append(value)
        return value

    @cuda.jit
    def kernel(out):
        out[0] = note(4)

    assert run(kernel, 1, 1) == [4]
    assert calls == [4]


@pytest.mark.parametrize(
    ("body", "missing"),
    [
        (lambda out: cuda.frobnicate(1), "cuda.frobnicate"),
        (lambda out: cuda.libdevice.nosuchf(1), "cuda.libdevice.nosuchf"),
        (lambda out: cuda.fp16.hnosuch(1), "cuda.fp16.hnosuch"),
        (lambda out: math.perm(3), "math.perm"),
        (lambda out: cuda.to_device(out), "cuda.to_device"),
    ],
)
def test_what_the_simulator_lacks_is_named(body, missing):
    with pytest.raises(AttributeError, match=f"normlab's simulator has no {missing}"):
        run(body)


WITHOUT_NUMBA = """
import sys
import numpy as np
from normlab.sim import simulate
assert not any(name.split(".")[0] in ("numba", "numba_cuda", "torch") for name in sys.modules), "too much is imported"
class Stub:
    pass
import types
cuda = types.ModuleType("numba_cuda_mlir.cuda")
def kernel(x):
    x[cuda.grid(1)] = cuda.shfl_xor_sync(0xFFFFFFFF, cuda.laneid, 1)
x = np.zeros(32)
simulate(kernel)[1, 32](x)
assert x[4] == 5
others = [name for name in sys.modules if name.startswith("normlab.") and not name.startswith("normlab.sim")]
assert not others, others
"""

STOCK = """
import numpy as np
from numba import cuda, float32
from normlab.sim import simulate
@cuda.jit(device=True)
def twice(x):
    return x * 2
@cuda.jit
def kernel(x):
    s = cuda.shared.array(4, float32)
    s[cuda.threadIdx.x] = twice(cuda.threadIdx.x)
    cuda.syncthreads()
    x[cuda.threadIdx.x] = s[3 - cuda.threadIdx.x]
assert "numba" in str(type(kernel)), type(kernel)
x = np.zeros(4)
simulate(kernel)[1, 4](x)
assert list(x) == [6, 4, 2, 0]
print(cuda.__file__)
"""


def python(*arguments, **environment):
    import os

    root = str(Path(__file__).parents[3])
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]), **environment},
    )


def test_the_simulator_imports_neither_numba_nor_the_rest_of_normlab():
    done = python("-c", WITHOUT_NUMBA)
    assert done.returncode == 0, done.stderr


PLACES = """from __future__ import annotations
try:
    import math as numbers
except ImportError:
    numbers = None
from numba import cuda

if numbers:
    @cuda.jit
    def under_a_condition(out: object):
        out[0] = numbers.floor(1.5) / cuda.threadIdx.x

class Kernels:
    @staticmethod
    @cuda.jit
    def of_a_class(out):
        out[0] = 1 / cuda.threadIdx.x

def factory():
    def inner():
        @cuda.jit(
            fastmath=False,
        )
        def nested(out):
            out[0] = 1 / cuda.threadIdx.x
        return nested
    return inner()
"""


@pytest.mark.parametrize("kernel", ["under_a_condition", "Kernels.of_a_class", "factory()"])
def test_a_kernel_has_the_device_s_division_wherever_in_its_file_it_stands(kernel, tmp_path):
    """The file's other statements are not compiled with it, but its imports, on which calls depend."""
    file = tmp_path / "places.py"
    file.write_text(PLACES)
    found: dict = {}
    exec(compile(PLACES, str(file), "exec", dont_inherit=True), found)
    out = np.zeros(1, np.float32)
    simulate(eval(kernel, found))[1, 1](out)
    assert out[0] == np.inf
    assert function_tree(safe_code(eval(kernel, found).py_func.__code__)) is not None


def test_kernels_of_the_stock_simulator_run(tmp_path):
    done = python("-c", STOCK, NUMBA_ENABLE_CUDASIM="1")
    assert done.returncode == 0, done.stderr


def test_kernels_of_plain_numba_run():
    # Without the redirector of numba-cuda (a .pth file, which -S leaves out), `numba.cuda` is Numba's own.
    site_packages = str(Path(numba.__file__).parents[1])
    done = python("-S", "-c", f"import sys; sys.path.append({site_packages!r})\n{STOCK}")
    assert done.returncode == 0, done.stderr
    assert "numba_cuda" not in done.stdout
