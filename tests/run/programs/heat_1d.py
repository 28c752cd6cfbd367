"""Heat in a rod whose ends are kept cold: two buffers, swapped by the host after every step."""

import numpy as np
from numba import cuda


@cuda.jit("void(float64[::1], float64[::1], float64)")
def step(now, after, k):
    i = cuda.grid(1)
    if 0 < i < now.size - 1:
        after[i] = now[i] + k * (now[i - 1] - 2 * now[i] + now[i + 1])
    elif i == 0 or i == now.size - 1:
        after[i] = 0


rod = np.zeros(101)
rod[50] = 1000
now, after = cuda.to_device(rod), cuda.device_array_like(rod)
stream = cuda.stream()
for _ in range(50):
    step[2, 64, stream](now, after, 0.25)
    now, after = after, now
stream.synchronize()
end = now.copy_to_host()
print("result:", end[50], end[40], end.sum())
