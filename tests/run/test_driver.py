"""Raw memory of the device through Numba's own memory manager, with a simulated driver below it."""

import numpy as np
import pytest
from numba.cuda.cudadrv import driver

from normlab.run.launcher import Launcher
from normlab.run.stand_in import stand_in


def test_raw_memory_is_copied_filled_and_freed(cuda):
    context = cuda.current_context()
    assert driver.driver.get_device_count() == 1
    host, back = np.arange(10, dtype=np.uint32), np.zeros(10, np.uint32)
    before = context.get_memory_info().free
    first, second = context.memalloc(40), context.memalloc(40)
    assert before - context.get_memory_info().free == 80
    driver.host_to_device(first, host, 40)
    driver.device_to_device(second, first, 40)
    driver.device_memset(first, 0xAB, 8)
    driver.device_to_host(back, second, 40)
    assert back.tolist() == host.tolist()
    driver.device_to_host(back, first, 40)
    assert back.tolist() == [0xABABABAB] * 2 + list(range(2, 10))
    del first, second
    context.deallocations.clear()
    assert context.get_memory_info().free == before


def test_functions_of_the_real_driver_that_were_used_before_are_put_aside(monkeypatch):
    used = vars(driver.driver)
    monkeypatch.setitem(used, "cuDeviceGetCount", lambda: 2)
    with stand_in(Launcher()):
        assert driver.driver.get_device_count() == 1
    assert used["cuDeviceGetCount"]() == 2


def test_managed_and_mapped_memory_is_the_host_s_too(cuda):
    context = cuda.current_context()
    for memory in (context.memallocmanaged(16), context.memhostalloc(16, mapped=True)):
        seen = np.ndarray(16, np.uint8, buffer=memory)
        driver.device_memset(memory, 7, 16)
        assert seen.tolist() == [7] * 16


def test_freed_arrays_wait_in_numba_s_queue(cuda):
    waiting = cuda.current_context().deallocations
    waiting.clear()
    with cuda.defer_cleanup():
        cuda.to_device(np.zeros(3))
        cuda.to_device(np.zeros(3))
        waiting.clear()
        assert len(waiting) == 2
    waiting.clear()
    assert len(waiting) == 0


def test_what_the_driver_lacks_is_named(cuda):
    with pytest.raises(NotImplementedError, match="the driver's cuModuleLoadData is not in normlab run"):
        driver.driver.cuModuleLoadData(b"")
    with pytest.raises(ValueError, match="no array of normlab run is at the address 0x10"):
        driver.driver.cuMemGetAddressRange(0x10)
