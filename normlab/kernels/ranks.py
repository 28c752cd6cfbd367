"""Merge what the ranks of a process group have found of the same sets: the kernels around a collective.

    message      one block per row: merges the pieces of this rank's columns to the moments that other ranks need;
                 for channels `family_merge_message` does it
    statistics   one thread per set: merges the moments of all ranks; writes mean and invvar
    means        one thread per set: adds up the ranks' sums of g and g x̂, and divides them by the set's size

A set is the values that share a mean: a row whose columns are sharded, or a channel whose samples are. A rank's message
for the forward is (1 + 2 sets,): the count of its values, then the means, then the m2; for RMSNorm (1 + sets,): the
count and the sums of squares. Its message for the backward is (2 sets,): Σ g, then Σ g x̂; for RMSNorm the latter alone.

Ranks are merged in pairs of neighbours, then the pairs in pairs, and so on, so a result depends neither on the rank
that computes it nor on the run. `normlab.distributed.merging` does the same by PyTorch's operations.
"""

import math
from functools import cache
from typing import Any

from normlab.engine import cast, cuda, load, store
from normlab.kernels.forward.split_rows import row_merger
from normlab.kernels.split import ROW_THREADS, ROW_WARPS
from normlab.stages.moments import chan_merge
from normlab.stages.recompute import affine, element

THREADS = 128


@cache
def build_message(dtype: Any, width: int, rms: bool) -> Any:
    """Return the kernel `ranks_message`. Grid rows, block ROW_THREADS."""
    merge_row = row_merger(width, rms)

    @cuda.jit(launch_bounds=(ROW_THREADS, 1))
    def ranks_message(x, sums, factor, message):
        """Write this rank's message for the forward. x, sums, factor: as for `forward_split_statistics`."""
        buffer = cuda.shared.array((2, ROW_WARPS), dtype)
        n1, n2 = x.shape
        row = cuda.blockIdx.x
        center, square_sum = merge_row(sums, row, n1, n2, factor, buffer)
        if cuda.threadIdx.x == 0:
            # All rows have n2 columns on this rank, so one block writes the only count.
            if row == 0:
                store(message, 0, cast(n2, message))
            if rms:
                store(message, 1 + row, square_sum)
            else:
                store(message, 1 + row, center)
                store(message, 1 + n1 + row, square_sum)

    return ranks_message


@cuda.jit(device=True)
def count_of(messages, first, ranks):
    """Return how many values of a set so many ranks hold, from rank `first` on; ranks past the last one hold none."""
    # Added up anew at each level: merging stores means and m2, and leaves every rank's count as it came.
    count = cast(0, messages)
    for rank in range(first, min(first + ranks, messages.shape[0])):
        count += load(messages, (rank, 0))
    return count


@cuda.jit(device=True)
def merge_ranks(messages, sets, index):
    """Merge a set's moments of all ranks into the first rank's message, level by level of the tree of neighbours.

    Only the thread of this set reads and writes the set's numbers, so levels need no barrier.
    """
    ranks = messages.shape[0]
    step = 1  # of a pair's second part; each part has `step` ranks
    while step < ranks:
        first = 0
        while first + step < ranks:  # a last part without a neighbour stays as it is
            second = first + step
            mean, m2, _ = chan_merge(
                load(messages, (first, 1 + index)),
                load(messages, (first, 1 + sets + index)),
                count_of(messages, first, step),
                load(messages, (second, 1 + index)),
                load(messages, (second, 1 + sets + index)),
                count_of(messages, second, step),
            )
            store(messages, (first, 1 + index), mean)
            store(messages, (first, 1 + sets + index), m2)
            first += 2 * step
        step *= 2


@cuda.jit(device=True)
def add_ranks(messages, column):
    """Add up a column of all ranks' messages into the first rank's, in the order of `merge_ranks`; return the sum."""
    ranks = messages.shape[0]
    step = 1
    while step < ranks:
        first = 0
        while first + step < ranks:
            total = load(messages, (first, column)) + load(messages, (first + step, column))
            store(messages, (first, column), total)
            first += 2 * step
        step *= 2
    return load(messages, (0, column))


@cuda.jit
def ranks_statistics(messages, eps, count, mean, variance, invvar):
    """Merge all ranks' messages for the forward. Grid sets / THREADS, block THREADS.

    Args:
        messages: (ranks, 1 + 2 sets), or (ranks, 1 + sets) for RMSNorm. They are overwritten.
        eps: added to the biased variance.
        count: (1,); gets the size of a set.
        mean: (sets,); None for RMSNorm.
        variance: (sets,), unbiased, for running statistics; or None.
        invvar: (sets,).
    """
    index = cuda.grid(1)
    sets = invvar.shape[0]
    if index < sets:
        held = count_of(messages, 0, messages.shape[0])
        size = max(held, cast(1, messages))  # no rank may have a value
        if mean is None:
            square_sum = add_ranks(messages, 1 + index)
        else:
            merge_ranks(messages, sets, index)
            store(mean, index, load(messages, (0, 1 + index)))
            square_sum = load(messages, (0, 1 + sets + index))
        store(invvar, index, cast(1, messages) / math.sqrt(square_sum / size + eps))
        # A set of one value has no unbiased variance; its m2 is 0, and so is this quotient.
        if variance is not None:
            store(variance, index, square_sum / max(size - cast(1, messages), cast(1, messages)))
        if index == 0:
            store(count, 0, held)


@cuda.jit
def ranks_means(messages, count, weight, means):
    """Add up all ranks' messages for the backward, and divide by the sets' size. Grid sets / THREADS, block THREADS.

    Args:
        messages: (ranks, 2 sets), or (ranks, sets) for RMSNorm. They are overwritten.
        count: (1,), of `ranks_statistics`.
        weight: (sets,), gamma of a set that is a channel, whose messages lack it: they hold Σ dy and Σ dy x̂; or None.
        means: (2, sets): of g, which is 0 for RMSNorm, and of g x̂.
    """
    index = cuda.grid(1)
    sets = means.shape[1]
    if index < sets:
        size = max(load(count, 0), cast(1, messages))
        # A channel's gamma is one number for all of its terms, so it may wait until they have been added up.
        gamma = element(weight, index)
        of_g = cast(0, means)
        first = 0  # of the columns with Σ g x̂
        # Only then there is a Σ g: an RMSNorm subtracts no mean, and its ranks send none.
        if messages.shape[1] > sets:
            of_g = affine(add_ranks(messages, index) / size, gamma, None)
            first = sets
        store(means, (0, index), of_g)
        store(means, (1, index), affine(add_ranks(messages, first + index) / size, gamma, None))
