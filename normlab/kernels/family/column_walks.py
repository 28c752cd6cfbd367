"""Walk down the rows of a thread's channels and accumulate their moments, or both sums of the backward.

The kernels of `columns` that find statistics call these. Each thread has `slots` slots in shared memory. The first
`kept` of them hold the thread's first rows to the end: row t stays in slot t. All later rows go through the other
slots, which form a ring; the last rows stay in it.
"""

from functools import cache

from normlab.engine import cast, commit_copies, cuda, float32, uint32, wait_copies
from normlab.kernels.family.column_vectors import next_slot
from normlab.stages.ahead import fetcher
from normlab.stages.moments import chan_merge_value


@cache
def moments_walker(dtype, itemsize, width, step, slots, kept=0):
    """Return the device function `walk_moments(stages, x, rows, means, m2s)`.

    It returns the number of rows in the accumulator's dtype. stages: `Stages`, of `step` elements each. x: flat. rows:
    `Rows`. means, m2s: local, (width,).
    """
    _, fetch, take = fetcher(dtype, itemsize, width)
    in_flight = slots - kept - 1  # the last slot of the ring is being read, so it is not fetched into

    @cuda.jit(device=True)
    def walk_moments(stages, x, rows, means, m2s):
        ring, offset = stages
        at, row, end, stride, apart = rows
        values = cuda.local.array(width, dtype)
        count = cast(0, means)
        for k in range(width):
            means[k] = cast(0, means)
            m2s[k] = cast(0, means)

        # Prologue: the first rows are on their way. Past the last row a group of copies is empty.
        ahead = row
        for slot in range(in_flight):
            if ahead < end:
                fetch(ring, slot * step + offset, x, at)
            commit_copies()  # an empty group, too: `wait_copies` counts groups, not rows
            ahead += stride
            at += apart

        # Main loop: fetch one row, wait for the oldest one, merge it.
        slot = uint32(0)
        free = uint32(in_flight)
        while row < end:
            if ahead < end:
                fetch(ring, free * step + offset, x, at)
            commit_copies()
            wait_copies(in_flight)  # no barrier: each thread reads only its own copies
            take(values, ring, slot * step + offset, x)
            share = float32(1) / (count + float32(1))  # one division per row for all of the thread's channels
            for k in range(width):
                means[k], m2s[k] = chan_merge_value(means[k], m2s[k], count, values[k], share)
            count += float32(1)
            row += stride
            ahead += stride
            at += apart
            free = next_slot(free, kept, slots)
            slot = next_slot(slot, kept, slots)
        return count

    return walk_moments


@cache
def sums_walker(dtype, itemsize, width, step, slots, kept=0):
    """Return the device function `walk_sums(grad_stages, stages, grad_output, x, rows, centers, sums, products)`.

    It adds up dy and dy (x - center) per channel; the caller multiplies the second sum by invvar. centers, sums,
    products: local, (width,). The other arguments are as for `moments_walker`.
    """
    _, fetch, take = fetcher(dtype, itemsize, width)
    in_flight = slots - kept - 1  # as above

    @cuda.jit(device=True)
    def walk_sums(grad_stages, stages, grad_output, x, rows, centers, sums, products):
        grad_ring, grad_offset = grad_stages
        ring, offset = stages
        at, row, end, stride, apart = rows
        grads = cuda.local.array(width, dtype)
        values = cuda.local.array(width, dtype)
        for k in range(width):
            sums[k] = cast(0, sums)
            products[k] = cast(0, sums)

        # Prologue: the first rows are on their way.
        ahead = row
        for slot in range(in_flight):
            if ahead < end:
                fetch(grad_ring, slot * step + grad_offset, grad_output, at)
                fetch(ring, slot * step + offset, x, at)
            commit_copies()  # both vectors of a row are one group
            ahead += stride
            at += apart

        # Main loop: fetch one row, wait for the oldest one, add it up.
        slot = uint32(0)
        free = uint32(in_flight)
        while row < end:
            if ahead < end:
                fetch(grad_ring, free * step + grad_offset, grad_output, at)
                fetch(ring, free * step + offset, x, at)
            commit_copies()
            wait_copies(in_flight)  # no barrier: each thread reads only its own copies
            take(grads, grad_ring, slot * step + grad_offset, grad_output)
            take(values, ring, slot * step + offset, x)
            for k in range(width):
                sums[k] += grads[k]
                products[k] += grads[k] * (values[k] - centers[k])  # invvar is left out: one factor for the whole sum
            row += stride
            ahead += stride
            at += apart
            free = next_slot(free, kept, slots)
            slot = next_slot(slot, kept, slots)

    return walk_sums
