"""Streams, events, pinned and mapped memory, and what a program asks of the device."""

import numpy as np
from numba import cuda


@cuda.jit
def scale(x, factor):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= factor


assert cuda.is_available()
assert cuda.detect()
device = cuda.select_device(0)
assert len(cuda.gpus) == 1
assert cuda.gpus.current.id == device.id
context = cuda.current_context()
scale[1, 1](np.ones(1, np.float32), np.float32(1))  # compiled: what the compiler frees is not counted below
free, total = context.get_memory_info()
with cuda.gpus[0]:
    host = cuda.pinned_array(1 << 12, dtype=np.float32)
host[:] = 1
halves, streams = np.split(host, 2), [cuda.stream(), cuda.stream()]
start, end = cuda.event(), cuda.event(timing=True)
start.record()
with cuda.pinned(host), cuda.defer_cleanup():
    for half, stream in zip(halves, streams, strict=True):
        with stream.auto_synchronize():
            on_device = cuda.to_device(half, stream=stream)
            scale[32, 64, stream](on_device, np.float32(3))
            on_device.copy_to_host(half, stream=stream)
assert free - context.get_memory_info().free == halves[0].nbytes  # `on_device` still holds the last
end.record(streams[1])
end.synchronize()
mapped = cuda.mapped_array(10)
mapped[:] = np.arange(10)
scale[1, 32](mapped, 2)
cuda.synchronize()
called = []
streams[0].add_callback(lambda stream, status, arg: called.append((status, arg)), "done")
print("result:", host.sum(), mapped.sum(), device.WARP_SIZE * device.MAX_THREADS_PER_BLOCK, called == [(0, "done")])
print("result:", start.elapsed_time(end) > 0, cuda.event_elapsed_time(start, end) < 1e5, *device.compute_capability)
cuda.profile_start()
cuda.profile_stop()
cuda.close()
