"""Update the running statistics after a training batch, and use them in an evaluation. One thread per channel."""

import math

import numpy as np

from normlab.engine import cast, cuda, float32, load, store

THREADS = 128  # per block; few channels then still make several blocks


@cuda.jit
def family_update_running(mean, variance, batches, momentum, running_mean, running_var):
    """Set running = (1 - momentum) running + momentum new, where new is the batches' average.

    mean, variance (unbiased): (batches · C,); running_mean, running_var: (C,), any floating dtype.
    """
    channel = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    channels = running_mean.shape[0]
    if channel < channels:
        new_mean = cast(0, mean)
        new_var = cast(0, mean)
        for batch in range(batches):  # one in batch norm, whose statistics are over all samples
            new_mean += load(mean, batch * channels + channel)
            new_var += load(variance, batch * channels + channel)
        # instance norm has statistics per batch: their average counts
        keep = float32(1) - momentum
        share = momentum / cast(batches, mean)
        store(running_mean, channel, keep * load(running_mean, channel) + share * new_mean)
        store(running_var, channel, keep * load(running_var, channel) + share * new_var)


@cuda.jit
def family_use_running(running_mean, running_var, eps, mean, invvar):
    """Write the running statistics as those of every set; mean, invvar: (batches · C,)."""
    index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if index < mean.shape[0]:
        # Every batch normalises by the same running statistics, so they repeat from batch to batch.
        channel = index % running_mean.shape[0]
        store(mean, index, load(running_mean, channel))
        store(invvar, index, float32(1) / math.sqrt(load(running_var, channel) + eps))


def launch_update(launch, mean, variance, batches: int, momentum, running_mean, running_var):
    """Queue `family_update_running`; momentum: a NumPy scalar of mean's dtype."""
    grid = -(-running_mean.shape[0] // THREADS)
    launch(family_update_running, grid, THREADS, mean, variance, np.int64(batches), momentum, running_mean, running_var)


def launch_use(launch, running_mean, running_var, eps, mean, invvar):
    """Queue `family_use_running`; eps: a NumPy scalar of mean's dtype."""
    launch(family_use_running, -(-mean.shape[0] // THREADS), THREADS, running_mean, running_var, eps, mean, invvar)
