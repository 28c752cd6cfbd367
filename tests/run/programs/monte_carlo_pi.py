"""Pi from random points; every thread has its own xoroshiro128+ state."""

import sys

import numpy as np
from numba import cuda
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32


@cuda.jit
def quarter_circle(states, points, out):
    thread = cuda.grid(1)
    inside = 0
    for _ in range(points):
        x = xoroshiro128p_uniform_float32(states, thread)
        y = xoroshiro128p_uniform_float32(states, thread)
        if x * x + y * y <= 1.0:
            inside += 1
    out[thread] = 4.0 * inside / points


seed = int(sys.argv[1])
states = create_xoroshiro128p_states(64 * 4, seed=seed)
out = np.zeros(64 * 4, dtype=np.float32)
quarter_circle[4, 64](states, 25, out)
print("result:", out.mean(), states.copy_to_host()["s0"][255])
