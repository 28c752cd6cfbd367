"""What watching costs, as a ratio to `simulate` in one run: tracing at most 5 times, sanitizing at most 8 times."""

import time

import numpy as np
import pytest
from numba import cuda, float32

from normlab.kernels import LADDERS
from normlab.sim import sanitize, simulate, trace

AT_MOST = {trace: 5.0, sanitize: 8.0}
BOTH = pytest.mark.parametrize("verb", AT_MOST, ids=lambda verb: verb.__name__)
ROUNDS = 4


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


@cuda.jit
def everybody_adds_up(x, out):
    for turn in range(20):
        out[0] += x[turn]


def ratio(verb, run):
    """Time under watch over time without, the best of some each; `run` gets a launcher."""
    seconds = {}
    for how in (simulate, verb) * ROUNDS:
        start = time.process_time()
        run(lambda kernel, grid, block, *arguments, how=how: how(kernel)[grid, block](*arguments))
        seconds[how] = min(seconds.get(how, np.inf), time.process_time() - start)
    return seconds[verb] / seconds[simulate]


@BOTH
def test_a_tree_sum(verb):
    x, out = np.ones(8 * 128, np.float32), np.zeros(8, np.float32)
    assert ratio(verb, lambda launch: launch(tree_sum, 8, 128, x, out)) < AT_MOST[verb]


def test_a_kernel_that_does_nothing_but_race():
    x, out = np.ones(20, np.float32), np.zeros(1, np.float32)
    assert ratio(sanitize, lambda launch: launch(everybody_adds_up, 8, 128, x, out)) < AT_MOST[sanitize]


@BOTH
@pytest.mark.parametrize("step", LADDERS["forward"], ids=lambda step: step.name)
def test_every_forward_step(verb, step):
    x = np.ones((8, 512), np.float32)
    weight, output, mean, invvar = x[0].copy(), x.copy(), np.zeros(8, np.float32), np.zeros(8, np.float32)
    operands = (x, weight, weight, np.float32(1e-5), output, mean, invvar)
    assert ratio(verb, lambda launch: step.run(launch, *operands)) < AT_MOST[verb]
