"""Hold what the kernels of `columns` share: block size, pipeline stages, and what a thread does with one vector.

A thread's vector has `width` neighbouring channels, each with statistics and parameters of its own, so all of these are
local arrays of `width` elements.
"""

from functools import cache
from typing import Any, NamedTuple

from normlab.engine import cuda, load, uint32
from normlab.stages.recompute import affine, normalised_from_input

THREADS = 256  # half as many leave memory waiting; twice as many leave registers for one block
RESIDENT = 3  # blocks per multiprocessor at least, which leaves a thread 80 registers
SLOTS = 8  # pipeline stages per thread, for vectors of one array; all but one are in flight
IN_FLIGHT = SLOTS - 1
SLOTS_OF_TWO = 5  # the same for vectors of two arrays, which need twice the shared memory
IN_FLIGHT_OF_TWO = SLOTS_OF_TWO - 1


class Rows(NamedTuple):
    """A thread's rows of x as the matrix (rows, channels): row `first`, then every `stride`-th row before row `end`.

    at: the index of the thread's vector in the first row. apart: elements from there to its vector in the next row.
    """

    at: Any
    first: Any
    end: Any
    stride: Any
    apart: Any


class Stages(NamedTuple):
    """A thread's pipeline stages for one array: the block's shared memory, and the thread's offset in each stage."""

    ring: Any
    offset: Any


class Pair(NamedTuple):
    """Two local arrays for a vector: mean and invvar of x, the means of g and of g x̂, or both sums over rows."""

    first: Any
    second: Any


class Affine(NamedTuple):
    """The parameters, each an array (channels,) or None, and local arrays for a vector's elements of them."""

    weight: Any
    bias: Any
    gammas: Any
    betas: Any


@cuda.jit(device=True)
def next_slot(slot, first, slots):
    """Return the slot after this one, in a ring of the slots `first` to `slots` - 1."""
    return uint32(slot + 1) if slot < slots - 1 else uint32(first)


@cache
def rows_finder(width, across, down):
    """Return the device function `find_rows(x, batch, block, blocks)`, which returns (first channel, `Rows`).

    x: (batches, rows, channels). The `blocks` blocks of a batch take bundles of `down` rows in turn, and this is the
    one with the number `block`.
    """

    @cuda.jit(device=True)
    def find_rows(x, batch, block, blocks):
        _, end, channels = x.shape
        channel = (cuda.blockIdx.y * across + cuda.threadIdx.x) * width
        # a thread without channels has no rows, but must reach the barriers
        first = block * down + cuda.threadIdx.y if channel < channels else end
        # A block takes a bundle of `down` rows, the next block the next bundle: at a time the grid reads one stretch of
        # memory.
        stride = blocks * down
        return channel, Rows((batch * end + first) * channels + channel, first, end, stride, stride * channels)

    return find_rows


@cache
def statistics_loader(width):
    """Return the device function `load_statistics(pair, mean, invvar, batch, channel, channels, sets)`.

    It loads mean and invvar of the sets to which the thread's `width` channels belong.
    """

    @cuda.jit(device=True)
    def load_statistics(pair, mean, invvar, batch, channel, channels, sets):
        each = channels // sets  # channels per set; 1 saves the division below
        for k in range(width):
            index = batch * sets + (channel + k if each == 1 else (channel + k) // each)
            pair.first[k] = load(mean, index)
            pair.second[k] = load(invvar, index)

    return load_statistics


@cache
def parameters_loader(width):
    """Return the device function `load_parameters(weight, bias, gammas, betas, channel)`."""

    @cuda.jit(device=True)
    def load_parameters(weight, bias, gammas, betas, channel):
        # Once per thread, before its rows: the elements then stay in registers.
        for k in range(width):
            if weight is not None:
                gammas[k] = load(weight, channel + k)
            if bias is not None:
                betas[k] = load(bias, channel + k)

    return load_parameters


@cache
def normaliser(width):
    """Return the device function `normalise(values, statistics, weight, bias, gammas, betas)`, which works in place."""

    @cuda.jit(device=True)
    def normalise(values, statistics, weight, bias, gammas, betas):
        for k in range(width):
            # a condition on an argument that is None costs nothing: the compiler drops the branch
            gamma = None if weight is None else gammas[k]
            beta = None if bias is None else betas[k]
            xhat = normalised_from_input(values[k], statistics.first[k], statistics.second[k])
            values[k] = affine(xhat, gamma, beta)

    return normalise


@cache
def gradient_taker(width):
    """Return the device function `take_gradient(grads, values, statistics, means, weight, gammas, own)`.

    It replaces dy by grad_input = (g - mean(g) - x̂ mean(g x̂)) invvar, g = dy gamma. means: those of g and of g x̂. own:
    None where the statistics do not depend on x; then grad_input = g invvar.
    """

    @cuda.jit(device=True)
    def take_gradient(grads, values, statistics, means, weight, gammas, own):
        for k in range(width):
            # x is not loaded where the statistics do not depend on it: then `values` has nothing.
            gradient = affine(grads[k], None if weight is None else gammas[k], None)
            if own is not None:
                xhat = normalised_from_input(values[k], statistics.first[k], statistics.second[k])
                gradient = gradient - means.first[k] - xhat * means.second[k]
            grads[k] = gradient * statistics.second[k]

    return take_gradient
