"""What watching costs, as a ratio to `simulate` in one run."""

import time

import numpy as np
from numba import cuda, float32

from normlab.kernels import LADDERS
from normlab.sim import sanitize, simulate

AT_MOST = 8.0


@cuda.jit
def tree_sum(x, out):
    buffer = cuda.shared.array(128, float32)
    thread = cuda.threadIdx.x
    buffer[thread] = x[cuda.grid(1)]
    half = 64
    while half > 0:
        cuda.syncthreads()
        if thread < half:
            buffer[thread] += buffer[thread + half]
        half //= 2
    if thread == 0:
        out[cuda.blockIdx.x] = buffer[0]


def ratio(run):
    """Time under watch over time without, the best of three each; `run` gets a launcher."""
    seconds = {}
    for verb in (simulate, sanitize) * 3:
        start = time.process_time()
        run(lambda kernel, grid, block, *arguments, verb=verb: verb(kernel)[grid, block](*arguments))
        seconds[verb] = min(seconds.get(verb, np.inf), time.process_time() - start)
    return seconds[sanitize] / seconds[simulate]


def test_a_tree_sum_costs_at_most_eight_times_its_simulation():
    x, out = np.ones(8 * 128, np.float32), np.zeros(8, np.float32)
    assert ratio(lambda launch: launch(tree_sum, 8, 128, x, out)) < AT_MOST


def test_every_forward_step_costs_at_most_eight_times_its_simulation():
    x = np.ones((4, 512), np.float32)
    weight, output, mean, invvar = x[0].copy(), x.copy(), np.zeros(4, np.float32), np.zeros(4, np.float32)
    for step in LADDERS["forward"]:
        operands = (x, weight, weight, np.float32(1e-5), output, mean, invvar)
        assert ratio(lambda launch, step=step, operands=operands: step.run(launch, *operands)) < AT_MOST, step.name
