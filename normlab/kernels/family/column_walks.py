"""A thread's way down the rows of its channels, through its ring: the moments, or both sums, of what it reads.

For the kernels of `columns` that find statistics. The first slots may be for rows that stay there, `kept` of them: row
t lies in slot t. All others go through the rest of the slots, a ring, in which the last of them stay.
"""

from functools import cache

from normlab.engine import cast, commit_copies, cuda, float32, uint32, wait_copies
from normlab.kernels.family.column_ring import next_slot
from normlab.stages.ahead import fetcher
from normlab.stages.moments import chan_merge_value


@cache
def moments_walker(dtype, itemsize, width, step, slots, kept=0):
    """The device function `walk_moments(ring, place, x, at, row, end, stride, apart, means, m2s)`.

    It returns how many rows there were, as a float of the accumulator's dtype. ring: shared, slots of `step` elements;
    place: the thread's in each. x: flat. The first row begins at `at` and has the number `row`; further ones are
    `stride` rows, `apart` elements, away, up to `end`. means, m2s: local, (width,).
    """
    _, fetch, take = fetcher(dtype, itemsize, width)
    in_flight = slots - kept - 1

    @cuda.jit(device=True)
    def walk_moments(ring, place, x, at, row, end, stride, apart, means, m2s):
        values = cuda.local.array(width, dtype)
        count = cast(0, means)
        for k in range(width):
            means[k] = cast(0, means)
            m2s[k] = cast(0, means)
        ahead = row
        for slot in range(in_flight):
            if ahead < end:
                fetch(ring, slot * step + place, x, at)
            commit_copies()
            ahead += stride
            at += apart
        slot = uint32(0)
        free = uint32(in_flight)
        while row < end:
            if ahead < end:
                fetch(ring, free * step + place, x, at)
            commit_copies()
            wait_copies(in_flight)
            take(values, ring, slot * step + place, x)
            share = float32(1) / (count + float32(1))
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
    """As `moments_walker`: `walk_sums(grad_ring, grad_place, ring, place, grad_output, x, at, …, sums, products)`.

    The sums of dy and of dy (x - center) of the channels. centers, sums, products: local, (width,).
    """
    _, fetch, take = fetcher(dtype, itemsize, width)
    in_flight = slots - kept - 1

    @cuda.jit(device=True)
    def walk_sums(
        grad_ring, grad_place, ring, place, grad_output, x, at, row, end, stride, apart, centers, sums, products
    ):
        grads = cuda.local.array(width, dtype)
        values = cuda.local.array(width, dtype)
        for k in range(width):
            sums[k] = cast(0, sums)
            products[k] = cast(0, sums)
        ahead = row
        for slot in range(in_flight):
            if ahead < end:
                fetch(grad_ring, slot * step + grad_place, grad_output, at)
                fetch(ring, slot * step + place, x, at)
            commit_copies()
            ahead += stride
            at += apart
        slot = uint32(0)
        free = uint32(in_flight)
        while row < end:
            if ahead < end:
                fetch(grad_ring, free * step + grad_place, grad_output, at)
                fetch(ring, free * step + place, x, at)
            commit_copies()
            wait_copies(in_flight)
            take(grads, grad_ring, slot * step + grad_place, grad_output)
            take(values, ring, slot * step + place, x)
            for k in range(width):
                sums[k] += grads[k]
                products[k] += grads[k] * (values[k] - centers[k])
            row += stride
            ahead += stride
            at += apart
            free = next_slot(free, kept, slots)
            slot = next_slot(slot, kept, slots)

    return walk_sums
