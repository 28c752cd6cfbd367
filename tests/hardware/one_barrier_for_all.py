"""A control for synccheck: all threads of a kernel without branches reach its only barrier.

python tests/hardware/one_barrier_for_all.py CLUSTER

compute-sanitizer 2025.3.1 reports divergent warps at this barrier on an H100, if clusters have 16 blocks and more of
them are launched than the GPU holds; with 8 blocks it reports none. What it reports for a norm's kernels in clusters of
16 blocks is therefore no evidence. `clean` runs this program for both sizes, beside what it checks.
"""

import sys

import numpy as np

from normlab.engine import cuda, gpu_available, launch, using

BLOCKS, THREADS, TIMES = 512, 512, 40


@cuda.jit
def all_meet(x, y):
    """y: (BLOCKS, THREADS); each thread stores what its neighbour brought to the barrier."""
    held = cuda.shared.array(THREADS, np.float32)
    row, column = cuda.blockIdx.x, cuda.threadIdx.x
    held[column] = x[row, column]
    cuda.syncthreads()
    y[row, column] = held[(column + 1) % THREADS]


def check(cluster: int) -> int:
    """Launch it; how many results there were. AssertionError where one is wrong."""
    x = np.random.default_rng(0).random((BLOCKS, THREADS), np.float32)
    for _ in range(TIMES):
        y = np.full_like(x, np.nan)
        launch(all_meet, BLOCKS, THREADS, x, y, cluster=cluster)
        np.testing.assert_array_equal(y, np.roll(x, -1, axis=1))
    return TIMES


if __name__ == "__main__":
    if not gpu_available():
        sys.exit("tests/hardware/one_barrier_for_all.py needs an NVIDIA GPU")
    with using("gpu"):
        print(f"{check(int(sys.argv[1]))} results are within their bounds")
