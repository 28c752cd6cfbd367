"""A barrier of all blocks: the PTX, what the driver is told, and what the simulator says about mistakes."""

import re

import needs
import numpy as np
import pytest
from engine.fake_driver import fake_driver
from engine.test_launching import on_device
from numba.core.errors import TypingError

from normlab.engine import compile_ptx, cuda, gpu_available, grid_sync, launch, using
from normlab.engine.device.grid import meets_all
from normlab.engine.launching.driver import COOPERATIVE
from normlab.sim import SimulationError, sanitize, simulate

TYPES = (np.int32, 1), (np.float32, 2), (np.float32, 2)


@cuda.jit
def from_others(arrivals, x, out):
    """Each block takes what the block at the mirrored place has written, twice."""
    block, thread = cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x, cuda.threadIdx.x
    other = cuda.gridDim.x * cuda.gridDim.y - 1 - block
    out[block, thread] = x[block, thread]
    grid_sync(arrivals, 0)
    value = out[other, thread]
    grid_sync(arrivals, 1)
    out[block, thread] = 2 * value


@cuda.jit
def unordered(arrivals, x, out):
    """The same without the second meeting."""
    block, thread = cuda.blockIdx.x, cuda.threadIdx.x
    out[block, thread] = x[block, thread]
    grid_sync(arrivals, 0)
    out[block, thread] = out[cuda.gridDim.x - 1 - block, thread]


def matrices(blocks, threads=64):
    x = np.arange(blocks * threads, dtype=np.float32).reshape(blocks, threads)
    return np.zeros(2, np.int32), x, np.full_like(x, np.nan)


@pytest.mark.parametrize("schedule", ["forward", "reverse", 3])
def test_every_block_sees_what_all_have_written(schedule):
    arrivals, x, out = matrices(6)
    simulate(from_others, schedule)[(3, 2), 64](arrivals, x, out)
    np.testing.assert_array_equal(out, 2 * x[::-1])
    np.testing.assert_array_equal(arrivals, 6)


def test_the_sanitizer_finds_what_no_meeting_orders_and_nothing_else():
    arrivals, x, out = matrices(4)
    assert sanitize(from_others, [out])[4, 64](arrivals, x, out).ok
    report = sanitize(unordered)[4, 64](*matrices(4))
    assert not report.ok
    assert "race" in str(report)


@pytest.mark.parametrize("begin", [1, 7, -1])
def test_a_counter_that_does_not_begin_at_0_is_refused(begin):
    arrivals, x, out = matrices(4)
    with pytest.raises(SimulationError, match="its counter begins at 0, and is for one meeting of one launch"):
        simulate(from_others)[4, 64](arrivals + np.int32(begin), x, out)


def test_the_driver_is_told_that_all_blocks_have_to_be_there(monkeypatch):
    library = fake_driver(monkeypatch)
    told = []

    def recorded(kernel, config, args):
        told.append([(one.id, one.value[0]) for one in config.attributes[: config.attribute_count]])
        library.simulate(kernel, config, args)

    library.run = recorded
    arrivals, x, out = matrices(4)
    launch(from_others, 4, 64, on_device(arrivals), on_device(x), on_device(out))
    assert told == [[(COOPERATIVE, 1)]]
    np.testing.assert_array_equal(out, 2 * x[::-1])


def test_only_a_kernel_that_calls_it_is_cooperative():
    assert meets_all(from_others)
    assert not meets_all(cuda.jit(lambda x: None))


@cuda.jit(device=True)
def recursive(arrivals, n):
    return 0 if n == 0 else recursive(arrivals, n - 1)


@cuda.jit(device=True)
def meet(arrivals):
    recursive(arrivals, 1)
    grid_sync(arrivals, 0)


@pytest.mark.parametrize("in_closure", [False, True])
def test_a_kernel_is_cooperative_also_by_a_device_function_or_another_name(in_closure):
    def build(meeting, numbers):
        return cuda.jit(lambda arrivals: meeting(arrivals, numbers[0]))

    assert meets_all(build(grid_sync, (0,)) if in_closure else cuda.jit(lambda arrivals: meet(arrivals)))
    assert not meets_all(build(recursive, np.zeros(2)))


@needs.compiler
@pytest.mark.parametrize("cc", [(8, 0), (9, 0)])
def test_the_ptx_counts_with_release_and_looks_with_acquire_between_two_barriers(cc):
    ptx = compile_ptx(from_others, TYPES, cc)
    kinds = "barrier.sync", "red.release.gpu.global.add.u32", "ld.acquire.gpu.global.u32", "st.global", "ld.global"
    found = [next(kind for kind in kinds if kind in line) for line in ptx.splitlines() if any(k in line for k in kinds)]
    meeting = ["barrier.sync", kinds[1], kinds[2], "barrier.sync"]
    assert found == ["ld.global", "st.global", *meeting, "ld.global", *meeting, "st.global"]
    assert len(re.findall(r"@there bra WAITING;", ptx)) == 2


@cuda.jit
def with_long_counter(arrivals):
    grid_sync(arrivals, 0)


@needs.compiler
def test_a_counter_of_64_bits_is_refused():
    with pytest.raises(TypingError, match="grid_sync counts in an element of 32 bits"):
        compile_ptx(with_long_counter, ((np.int64, 1),))


@pytest.mark.skipif(not gpu_available(), reason="needs an NVIDIA GPU")
def test_a_grid_meets_on_a_gpu_and_one_that_is_too_large_is_refused():
    with using("gpu"):
        for _ in range(20):
            arrivals, x, out = matrices(40, 256)
            launch(from_others, 40, 256, arrivals, x, out)
            np.testing.assert_array_equal(out, 2 * x[::-1])
        with pytest.raises(RuntimeError, match="COOPERATIVE_LAUNCH_TOO_LARGE"):
            launch(from_others, 100_000, 256, arrivals, x, out)
