"""Measure the vectorised engine against the scheduler, and against Numba's own simulator where that runs the kernel.

    python -m sim.vectorised.speed [scale] [--sanitize]

prints a table (with `tests` on the path): seconds of CPU time, the best of three launches. --sanitize: of `sanitize`
with a proof, against `sanitize` with the scheduler.
"""

import json
import os
import statistics
import subprocess
import sys
import time

import numpy as np
from numba import cuda, float32, int32

WIDE, TILE = 256, 32


@cuda.jit
def tree_sum(x, out):
    shared = cuda.shared.array(WIDE, float32)
    t = cuda.threadIdx.x
    shared[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    half = WIDE // 2
    while half > 0:
        if t < half:
            shared[t] += shared[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        out[cuda.blockIdx.x] = shared[0]


@cuda.jit
def product(a, b, c):
    tile_a = cuda.shared.array((TILE, TILE), float32)
    tile_b = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for k in range(a.shape[1] // TILE):
        tile_a[ty, tx] = a[y, k * TILE + tx]
        tile_b[ty, tx] = b[k * TILE + ty, x]
        cuda.syncthreads()
        for j in range(TILE):
            total += tile_a[ty, j] * tile_b[j, tx]
        cuda.syncthreads()
    c[y, x] = total


@cuda.jit
def saxpy(a, x, y, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = a * x[i] + y[i]


@cuda.jit
def histogram_shared(x, counts):
    shared = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    if t < 32:
        shared[t] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    while i < x.size:
        cuda.atomic.add(shared, x[i], 1)
        i += cuda.gridsize(1)
    cuda.syncthreads()
    if t < 32:
        cuda.atomic.add(counts, t, shared[t])


@cuda.jit
def histogram_global(x, counts):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(counts, x[i], 1)


@cuda.jit
def mandelbrot(image, turns):
    x, y = cuda.grid(2)
    height, width = image.shape
    if x < width and y < height:
        cr, ci = -2.0 + 3.0 * x / width, -1.0 + 2.0 * y / height
        zr, zi, n = 0.0, 0.0, 0
        while n < turns and zr * zr + zi * zi < 4.0:
            zr, zi = zr * zr - zi * zi + cr, 2.0 * zr * zi + ci
            n += 1
        image[y, x] = n


@cuda.jit
def warp_sum(x, out):
    value = x[cuda.grid(1)]
    step = 16
    while step > 0:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, step)
        step //= 2
    if cuda.laneid == 0:
        cuda.atomic.add(out, 0, value)


@cuda.jit
def stencil(x, out):
    i, j = cuda.grid(2)
    if 0 < i < x.shape[0] - 1 and 0 < j < x.shape[1] - 1:
        out[i, j] = (x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1]) * float32(0.25)


def cases(scale):
    """Return (kernel, configuration, arguments) by name; `scale` multiplies the number of blocks."""
    random = np.random.default_rng(0)

    def many(count):
        return max(1, int(count * scale))

    blocks = many(32)
    x = random.uniform(size=blocks * WIDE).astype(np.float32)
    a, b = random.uniform(size=(2, 64, 64)).astype(np.float32)
    n = many(100_000)
    u, v = random.uniform(size=(2, n)).astype(np.float32)
    drawn = random.integers(0, 32, many(64) * 256).astype(np.int32)
    side = 16 * max(1, int(4 * scale**0.5))
    picture = random.uniform(size=(side, side)).astype(np.float32)
    return {
        "tree_sum": (tree_sum, (blocks, WIDE), (x, np.zeros(blocks, np.float32))),
        "product": (product, ((2, 2), (TILE, TILE)), (a, b, np.zeros_like(a))),
        "saxpy": (saxpy, (-(-n // 256), 256), (np.float32(2), u, v, np.zeros_like(u))),
        "histogram_shared": (histogram_shared, (many(16), 256), (drawn, np.zeros(32, np.int32))),
        "histogram_global": (histogram_global, (drawn.size // 256, 256), (drawn, np.zeros(32, np.int32))),
        "mandelbrot": (mandelbrot, ((side // 16,) * 2, (16, 16)), (np.zeros((side, side), np.int32), 200)),
        "warp_sum": (warp_sum, (blocks, WIDE), (x, np.zeros(1, np.float32))),
        "stencil": (stencil, ((side // 16,) * 2, (16, 16)), (picture, np.zeros_like(picture))),
    }


def measured(which, scale, times=3):
    """Return seconds by kernel for an engine of normlab or "numba", and what each has written."""
    seconds, results = {}, {}
    for name, (kernel, configuration, arguments) in cases(scale).items():
        best = None
        for _ in range(times):
            given = [one.copy() if isinstance(one, np.ndarray) else one for one in arguments]
            try:
                start = time.process_time()
                if which == "numba":
                    kernel[configuration](*given)
                else:
                    from normlab.sim import sanitize, simulate

                    (sanitize if "--sanitize" in sys.argv else simulate)(kernel, engine=which)[configuration](*given)
                took = time.process_time() - start
            except Exception:  # Numba's simulator has no laneid and no shuffles
                break
            best = took if best is None else min(best, took)
            results[name] = [one.tobytes().hex() for one in given if isinstance(one, np.ndarray)]
        seconds[name] = best
    return seconds, results


def main(scale):
    """Print the table."""
    command = [sys.executable, "-m", "sim.vectorised.speed", str(scale), "numba"]
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
    theirs = json.loads(told) if told.strip() else {}
    ours, one = measured("vectorised", scale)
    before, other = measured("scheduler", scale, times=1)
    ratios = []
    print(f"{'kernel':18s} {'vectorised':>11s} {'scheduler':>11s} {'':>7s} {'Numba':>11s}  same bits")
    for name, took in ours.items():
        ratios.append(before[name] / took)
        numba = f"{theirs[name]:9.4f} s" if theirs.get(name) else f"{'-':>11s}"
        same = one[name] == other[name]
        print(f"{name:18s} {took:9.4f} s {before[name]:9.4f} s {ratios[-1]:6.0f}x {numba}  {same}")
    print(f"median {statistics.median(ratios):.0f}x")


if __name__ == "__main__":
    chosen = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    if sys.argv[2:] == ["numba"]:
        print(json.dumps(measured("numba", chosen)[0]))
    else:
        main(chosen)
