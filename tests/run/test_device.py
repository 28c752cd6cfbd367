"""The simulated GPU as a program asks for it."""

import asyncio
import gc

import numpy as np
import pytest


def test_there_is_one_h200(cuda, capsys):
    assert cuda.is_available()
    assert cuda.is_supported_version()
    assert cuda.cuda_error() is None
    assert [device.id for device in cuda.list_devices()] == [0]
    device = cuda.get_current_device()
    assert cuda.select_device(0) is device is cuda.gpus[0] is cuda.gpus.current is cuda.current_context().device
    assert (device.name, device.compute_capability) == ("NVIDIA H200", (9, 0))
    assert (device.WARP_SIZE, device.MULTIPROCESSOR_COUNT, device.MAX_SHARED_MEMORY_PER_BLOCK) == (32, 132, 49152)
    assert cuda.detect()
    assert "normlab run" in capsys.readouterr().out
    with pytest.raises(IndexError, match="one GPU, number 0; there is no number 1"):
        cuda.select_device(1)
    with pytest.raises(AttributeError, match="no attribute 'FLUX_CAPACITY'"):
        device.FLUX_CAPACITY  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'get_ipc_handle'"):
        cuda.current_context().get_ipc_handle(8)


def test_memory_in_use_is_counted(cuda):
    gc.collect()
    context = cuda.current_context()
    free = context.get_memory_info().free
    array = cuda.device_array(1000, np.float64)
    view = array[10:]
    del array
    assert context.get_memory_info() == (free - 8000, context.get_memory_info().total)
    del view
    gc.collect()
    assert context.get_memory_info().free == free


def test_events_time_the_simulation(cuda):
    @cuda.jit
    def work(x):
        for _ in range(50):
            x[cuda.grid(1)] += 1

    start, end = cuda.event(), cuda.event()
    with pytest.raises(RuntimeError, match="that were recorded"):
        start.elapsed_time(end)
    start.record()
    work[4, 64](np.zeros(256))
    end.record()
    end.wait()
    assert end.query()
    assert 1 < cuda.event_elapsed_time(start, end) < 60_000  # 12,800 additions take more than a millisecond
    untimed = cuda.event(timing=False)
    untimed.record()
    with pytest.raises(RuntimeError, match="timing=True"):
        start.elapsed_time(untimed)


def test_streams(cuda):
    names = [cuda.default_stream(), cuda.legacy_default_stream(), cuda.per_thread_default_stream()]
    assert [int(stream) for stream in names] == [0, 1, 2]
    assert repr(names[0]) == "<Default CUDA stream>"
    assert int(cuda.external_stream(77)) == 77
    assert int(cuda.stream()) != int(cuda.stream())

    async def wait(stream):
        return await stream.async_done()

    stream = cuda.stream()
    assert asyncio.run(wait(stream)) is stream
    with stream.auto_synchronize() as entered:
        assert entered is stream


def test_the_driver_is_there_and_has_the_runtime_s_version(cuda):
    assert cuda.cudadrv.driver.driver.is_available
    assert cuda.cudadrv.driver.driver.get_version() == cuda.runtime.get_version() == (13, 0)
    assert cuda.cudadrv.driver.get_version() == (13, 0)


def test_only_a_stream_is_taken_for_a_stream(cuda):
    @cuda.jit
    def count(x):
        x[0] += 1

    array = cuda.to_device(np.zeros(1), stream=None)
    uses = (
        lambda stream: cuda.to_device(np.zeros(1), stream=stream),
        lambda stream: cuda.device_array(1, stream=stream),
        lambda stream: array.copy_to_host(stream=stream),
        lambda stream: array.copy_to_device(np.zeros(1), stream=stream),
        lambda stream: cuda.event().record(stream),
        lambda stream: cuda.event().wait(stream=stream),
        lambda stream: count[1, 1, stream](array),
        lambda stream: count.forall(1, stream=stream)(array),
    )
    for use in uses:
        for stream in (0, cuda.stream(), cuda.external_stream(77)):
            use(stream)
        for wrong in ("a name", 3.5, 7, np.zeros(1)):
            with pytest.raises(TypeError, match=f"Expected a Stream object or 0, got the {type(wrong).__name__} "):
                use(wrong)
    count[1, 1, None](array)


def test_what_needs_a_driver_is_refused_by_name(cuda):
    for name in ("open_ipc_array", "set_memory_manager"):
        with pytest.raises(NotImplementedError, match=rf"cuda\.{name} is not in normlab run"):
            getattr(cuda, name)()
    for name in ("compile", "compile_ptx", "compile_ptx_for_current_device"):
        with pytest.raises(NotImplementedError, match=rf"cuda\.{name} is not in normlab run: .*nothing compiles"):
            getattr(cuda, name)(print, ())
    with pytest.raises(NotImplementedError, match="driver's cuDeviceGetP2PAttribute is not in normlab run"):
        _ = cuda.cudadrv.driver.driver.cuDeviceGetP2PAttribute  # one that nobody has asked for in this process


def test_normlab_itself_simulates_under_it(cuda):
    from normlab import engine

    assert not engine.use_gpu()
