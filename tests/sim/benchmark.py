"""How fast is the simulator beside Numba's stock one? `python tests/sim/benchmark.py` times both on one kernel, in
one run.

The kernel is a block of 128 threads that sums a row of 512 floats by a tree in shared memory: eight barriers a block.
The stock simulator needs an environment variable before Numba is imported, so it runs in a process of its own. Issue
2 asks for a factor of 50.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

cuda: Any  # set by `tree_sum`
ROWS = {"ours": 64, "stock": 4}
ROW = 512
REPETITIONS = 5  # the fastest counts: anything else only ever slows a run down


def tree_sum() -> Any:
    """Return the kernel. Numba is imported only here, and `cuda` made a global: the stock simulator looks there."""
    global cuda
    from numba import cuda, float32

    @cuda.jit
    def kernel(x: Any, out: Any) -> None:  # x (rows, 512), out (rows,), both float32
        partial = cuda.shared.array(128, float32)
        row, thread = cuda.blockIdx.x, cuda.threadIdx.x
        total = float32(0)
        for column in range(thread, x.shape[1], 128):
            total += x[row, column]
        partial[thread] = total
        cuda.syncthreads()  # every partial is there before a neighbour reads it
        half = 64
        while half > 0:
            if thread < half:
                partial[thread] += partial[thread + half]
            cuda.syncthreads()  # this level is complete before the next reads it
            half //= 2
        if thread == 0:
            out[row] = partial[0]

    return kernel


def milliseconds_per_block(launch: Callable[[Any], Callable[..., None]], rows: int) -> float:
    """Return the shortest time of `launch(kernel)[rows, 128]`, divided by its blocks; the result is checked first."""
    x = np.random.default_rng(0).standard_normal((rows, ROW)).astype(np.float32)
    out = np.zeros(rows, np.float32)
    run = launch(tree_sum())
    times = []
    for _ in range(REPETITIONS):
        start = perf_counter()
        run(x, out)
        times.append(perf_counter() - start)
    np.testing.assert_allclose(out, x.sum(axis=1, dtype=np.float64), rtol=1e-4, atol=1e-4)
    return min(times) / rows * 1e3


def ours() -> float:
    """Time normlab's simulator, in milliseconds a block."""
    from normlab.sim import simulate

    return milliseconds_per_block(lambda kernel: simulate(kernel)[ROWS["ours"], 128], ROWS["ours"])


def stock() -> float:
    """Time Numba's simulator, in milliseconds a block, in a process of its own."""
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    command = [sys.executable, __file__, "--stock"]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Print both times and their ratio."""
    if sys.argv[1:] == ["--stock"]:  # the process that `stock` starts
        print(milliseconds_per_block(lambda kernel: kernel[ROWS["stock"], 128], ROWS["stock"]))
        return
    ours_ms, stock_ms = ours(), stock()
    print(f"128-thread shared-memory tree sum of {ROW} floats, fastest of {REPETITIONS}:")
    print(f"  Numba's stock simulator  {stock_ms:8.2f} ms a block")
    print(f"  normlab.sim              {ours_ms:8.2f} ms a block")
    print(f"  ratio                    {stock_ms / ours_ms:8.1f}")


if __name__ == "__main__":
    main()
