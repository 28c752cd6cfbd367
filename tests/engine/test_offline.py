"""Compiling with no GPU: PTX, the assembler's account of it, and how many blocks fit on a multiprocessor."""

import gc
import math
import re
from contextlib import nullcontext
from importlib.util import find_spec

import numpy as np
import pytest
from machine_code import resources_in_float32
from typer.testing import CliRunner

from normlab.cli import app
from normlab.engine import Occupancy, compile_ptx, cuda, float32, float64, occupancy, resources
from normlab.engine.compile import entries, offline, remembering
from normlab.engine.compile.signatures import kinds_of_types

pytestmark = pytest.mark.skipif(
    not find_spec("numba_cuda"), reason="kernels are compiled by numba-cuda, which has no wheels for this platform"
)
ROWS = ((np.float32, 1), (np.float32, 1))


def body(x, y):
    i = cuda.grid(1)
    buffer = cuda.shared.array(64, float32)
    values = cuda.local.array(40, float32)
    for j in range(40):
        values[j] = x[i + 256 * j]
    buffer[cuda.threadIdx.x % 64] = values[0]
    cuda.syncthreads()
    total = buffer[(cuda.threadIdx.x + 1) % 64]
    for j in range(39):
        total = total * values[j] + values[39 - j] * values[(7 * j) % 40]
    y[i] = total


@pytest.mark.parametrize("cc", [(8, 0), (9, 0)])
def test_the_assembler_says_what_a_kernel_takes(cc):
    free = resources(cuda.jit(body), ROWS, cc)
    assert 40 < free.registers < 255
    assert free[1:] == (256, 0, 0, 0)
    bound = resources(cuda.jit(max_registers=32)(body), ROWS, cc)
    assert bound.registers <= 32
    assert bound.local_bytes > 0
    assert bound.spill_stores > 0
    assert bound.spill_loads > 0


@cuda.jit
def reads_all(matrix, absent, scale, out):
    if absent is None:
        out[0] = matrix[1, 2] * scale + matrix.size + matrix.strides[0] + matrix.itemsize


def test_a_kernel_is_handed_what_it_reads_and_no_more():
    """An address and lengths of an array, nothing of None: each line of constant memory is a wait (`entries`)."""
    ptx = compile_ptx(reads_all, ((np.float32, 2), None, np.float32, (np.float32, 1)))
    entry = re.search(r"\.entry \w+\((.*?)\)", ptx, re.DOTALL)
    assert re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)", entry[1]) == ["u64", "u64", "u64", "f32", "u64", "u64"]


def test_a_numba_that_hands_over_arguments_in_another_way_is_noticed(monkeypatch):
    """A launch would mix up the parameters without an error."""
    types = kinds_of_types(((np.float32, 2), None, np.float32, (np.float32, 1)))
    new = cuda.jit(reads_all.py_func)  # the session remembers what it has compiled
    with monkeypatch.context() as patch:
        patch.setattr(entries, "NUMBERS", 4)
        with pytest.raises(RuntimeError, match=r"has 16 parameters, but Numba made \[18\] of them"):
            offline.compile_cubin(new, types, (9, 0))
    with pytest.raises(RuntimeError, match=r"but Numba made \[\] of them"), entries.short_entries(types, [()] * 4):
        pass


def test_local_arrays_count():
    @cuda.jit
    def indexed(x, y):
        values = cuda.local.array(100, float32)
        for j in range(100):
            values[j] = x[j]
        y[0] = values[int(x[0])]

    assert resources(indexed, ROWS).local_bytes >= 400


@cuda.jit(device=True)
def power(x, n):
    return power(x, n - 1) * power(x, n - 2) if n > 1 else x


WRONG_PRECISION, CALLS = "computes in the wrong precision", "calls a function that was not inlined"


@pytest.mark.parametrize("cc", [(8, 0), (9, 0)])
@pytest.mark.parametrize(
    ("compute", "says"),
    [
        (lambda x, i: x + 0.1, WRONG_PRECISION),
        (lambda x, i: x * x * 1.1, WRONG_PRECISION),
        (lambda x, i: 1.0 if x * 1.1 < 3 else 0.0, WRONG_PRECISION),
        (lambda x, i: math.sqrt(float64(x)), WRONG_PRECISION),
        (lambda x, i: i / cuda.gridDim.x, WRONG_PRECISION),
        (lambda x, i: power(x, i), CALLS),
    ],
)
def test_machine_code_that_computes_in_float64_or_calls_a_function_is_seen(compute, says, cc):
    compute = cuda.jit(device=True)(compute)

    @cuda.jit
    def kernel(x, y):
        i = cuda.grid(1)
        y[i] = compute(x[i], i)

    with pytest.raises(AssertionError, match=says):
        resources_in_float32(kernel, ROWS, cc)


@pytest.mark.parametrize("cc", [(8, 0), (9, 0)])
def test_slow_paths_of_float32_s_operations_are_no_calls(cc):
    @cuda.jit
    def kernel(x, y):
        i = cuda.grid(1)
        y[i] = x[i] / y[i] + math.sqrt(x[i]) + float32(i)

    resources_in_float32(kernel, ROWS, cc)


def test_launch_bounds_reach_the_assembler():
    bounded = cuda.jit(launch_bounds=(1024, 2))(body)
    assert re.search(r"\.maxntid\s+1024", compile_ptx(bounded, ROWS))
    assert re.search(r"\.minnctapersm\s+2", compile_ptx(bounded, ROWS))
    assert resources(bounded, ROWS).registers <= 32
    assert "maxntid" not in compile_ptx(cuda.jit(body), ROWS)


def test_a_kernel_that_calls_numba_s_c_helpers_is_linked_with_them():
    @cuda.jit
    def half(x, y):
        y[0] = x[0] * x[1] + y[0]

    halves = ((np.float16, 1), (np.float16, 1))
    assert not re.search(r"\bcall\.|\.extern \.func", compile_ptx(half, halves))
    assert resources(half, halves).local_bytes == 0


def test_a_cubin_names_its_kernel():
    made = offline.compile_cubin(cuda.jit(body), kinds_of_types(ROWS), (9, 0))
    assert made.image.startswith(b"\x7fELF")
    assert made.entry.encode() in made.image


def test_what_nvjitlink_refuses_is_said_with_its_reason(monkeypatch):
    monkeypatch.setattr(offline, "_intermediate_codes", lambda *args: [b"no code"])
    with pytest.raises(RuntimeError, match=r"nvJitLink could not make body for -arch=sm_90: .*\w"):
        offline.compile_cubin(cuda.jit(body), kinds_of_types(ROWS), (9, 0))


def test_a_compute_capability_that_nvjitlink_does_not_know_is_named():
    with pytest.raises(RuntimeError, match=r"nvJitLink could not make body for -arch=sm_95: .*ARCH"):
        compile_ptx(cuda.jit(body), ROWS, (9, 5))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"link": ["other.cu"]}, r"body has link=.*other\.cu.*, but `launch` takes kernels of Python alone"),
        ({"debug": True, "opt": False}, "body has debug=True, but is optimised when it is linked; the simulator can"),
    ],
)
def test_kernels_that_are_not_linked_here_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        resources(cuda.jit(**options)(body), ROWS)


def test_line_numbers_are_kept_where_they_are_asked_for():
    kinds = kinds_of_types(ROWS)
    assert b".debug_line" in offline.compile_cubin(cuda.jit(lineinfo=True)(body), kinds, (9, 0)).image
    assert b".debug_line" not in offline.compile_cubin(cuda.jit(body), kinds, (9, 0)).image


# (registers, threads, shared bytes, compute capability's major) -> blocks: cuda_occupancy.h of CUDA 13.0
BLOCKS = [
    (32, 256, 0, 9, 8), (33, 256, 0, 9, 6), (40, 128, 32, 9, 12), (48, 128, 32, 9, 10), (255, 128, 0, 9, 2),
    (255, 256, 0, 9, 1), (255, 288, 0, 9, 0), (128, 512, 0, 9, 1), (128, 544, 0, 9, 0), (64, 1024, 0, 9, 1),
    (16, 32, 0, 9, 32), (16, 64, 7000, 9, 28), (16, 64, 7041, 9, 28), (16, 64, 7169, 9, 28), (16, 1024, 0, 9, 2),
    (32, 128, 232448, 9, 1), (32, 128, 232449, 9, 0), (32, 128, 115712, 9, 2), (32, 128, 115713, 9, 1),
    (32, 128, 166912, 8, 1), (32, 128, 166913, 8, 0), (32, 128, 82944, 8, 2), (32, 128, 82945, 8, 1),
]  # fmt: skip


@pytest.mark.parametrize(("registers", "threads", "shared_bytes", "major", "blocks"), BLOCKS)
def test_occupancy_is_nvidia_s(registers, threads, shared_bytes, major, blocks):
    warps = blocks * -(-threads // 32)
    assert occupancy(registers, shared_bytes, threads, (major, 0)) == Occupancy(blocks, warps, warps / 64)


def test_occupancy_is_known_for_some_gpus_only():
    with pytest.raises(ValueError, match=r"compute capability 7.5 are not known here; known: 8.0, 9.0"):
        occupancy(32, 0, 128, (7, 5))


def test_a_compiler_that_is_not_installed_is_named(monkeypatch):
    """As where numba-cuda is installed without NVIDIA's libraries: Numba's error is a loader's, and says nothing."""

    def absent(*arguments, **named):
        raise RuntimeError("Failure finding libnvrtc.so")

    monkeypatch.setattr(offline, "_intermediate_codes", absent)
    with pytest.raises(RuntimeError, match="Failure finding"):  # all are found here: then it is another failure
        compile_ptx(cuda.jit(body), ROWS)
    monkeypatch.setattr(offline, "missing_libraries", lambda: ["nvJitLink", "nvrtc"])
    with pytest.raises(ImportError, match="nvJitLink, nvrtc") as caught:
        compile_ptx(cuda.jit(body), ROWS)
    assert caught.value.__notes__ == ['pip install "normlab[gpu]" gets it']
    done = CliRunner().invoke(app, ["explain", "forward", "--compile"])
    assert done.exit_code == 2
    assert done.stderr == (
        "normlab explain: --compile: CUDA's compiler is not installed (missing: nvJitLink, nvrtc); "
        'pip install "normlab[gpu]" gets it\n'
    )


def bare_code() -> str:
    """The kernel's code, but for the names, which count what has been compiled."""
    return re.sub(r"_ZN\w*|_cudapy_smem_\d+|//.*", "", compile_ptx(cuda.jit(body), ROWS))


def test_a_numba_with_other_names_compiles_all_the_same(monkeypatch):
    want = bare_code()
    monkeypatch.setattr(remembering, "BaseFunction", object())
    monkeypatch.setattr(remembering, "TargetConfig", object())
    monkeypatch.setattr(remembering, "PostProcessor", object())
    monkeypatch.setattr(remembering, "Instruction", object())
    assert bare_code() == want


def test_what_numba_remembers_changes_no_code_and_spares_it_most_calls(monkeypatch):
    asked = []

    def resolved(*call):
        asked.append(call)
        return resolve(*call)

    resolve, values = remembering.BaseFunction.get_call_type, remembering.TargetConfig.values
    monkeypatch.setattr(remembering, "_resolved", resolved)
    monkeypatch.setattr(remembering, "_calls", {})
    codes = {bare_code(), bare_code()}
    assert (remembering.BaseFunction.get_call_type, remembering.TargetConfig.values) == (resolve, values)
    remembered = len(asked)
    monkeypatch.setattr(offline, "remembering", nullcontext)
    monkeypatch.setattr(remembering.BaseFunction, "get_call_type", resolved)
    codes.add(bare_code())
    assert len(codes) == 1
    assert remembered < (len(asked) - remembered) / 2, "twice as many functions, with as many calls each"


def test_numba_looks_for_variables_lives_only_where_a_pass_asks_and_makes_the_same_code(monkeypatch):
    found, ended = [], []

    def compute_live_variables(*asked):
        found.append(asked)
        return compute(*asked)

    def insert(processor, **options):
        ended.append(options)
        return insert_ends(processor, **options)

    compute = remembering.postproc.analysis.compute_live_variables
    insert_ends = remembering.PostProcessor._insert_var_dels
    monkeypatch.setattr(remembering.postproc.analysis, "compute_live_variables", compute_live_variables)
    monkeypatch.setattr(remembering.PostProcessor, "_insert_var_dels", insert)
    code = bare_code()
    assert not found
    remembered, ended = ended, []
    monkeypatch.setattr(offline, "remembering", nullcontext)
    assert bare_code() == code
    assert found
    assert ended == remembered != []


def test_the_variables_of_every_instruction_are_those_that_numba_finds(monkeypatch):
    asked = []

    def variables(instruction, part):
        found = ours(instruction, part)
        assert list(map(id, found)) == list(map(id, remembering._all_variables(instruction, part)))
        asked.extend(found)
        return found

    ours = remembering._variables
    monkeypatch.setattr(remembering, "_variables", variables)
    bare_code()
    assert asked


@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_collected_while_numba_compiles_and_afterwards_as_before(collects, monkeypatch, request):
    request.addfinalizer(gc.enable)
    (gc.enable if collects else gc.disable)()
    collected = []

    def compile_all(*_, **__):
        collected.append(gc.isenabled())
        raise MemoryError

    monkeypatch.setattr(offline.cuda, "compile_all", compile_all)
    with pytest.raises(MemoryError):
        compile_ptx(cuda.jit(body), ROWS)
    assert (collected, gc.isenabled()) == ([False], collects)


def test_numba_does_not_remember_what_it_refuses():
    @cuda.jit
    def refused(x, y):
        y[0] = x[0] + x

    for _ in range(2):
        with pytest.raises(Exception, match="No implementation of function"):
            compile_ptx(refused, ROWS)
