"""Walk back up the rows that `column_walks` has walked down, and write the output or grad_input row by row.

The kernels of `column_fused` call these after all blocks have exchanged their statistics. Where the way down has left a
thread's rows: the last rows are in the ring, the rows before them are in L2, earlier rows are in DRAM, and the first
`kept` rows are in slots of their own. Walking up therefore reads each row from the nearest place that still has it.
"""

from functools import cache

from normlab.engine import commit_copies, cuda, flat, float32, store_vector_from, uint32, wait_copies
from normlab.kernels.family.column_vectors import gradient_taker, normaliser
from normlab.stages.ahead import fetcher


@cuda.jit(device=True)
def rows_of(turns, rows):
    """Return a thread's number of rows: `turns`, or one more if a left-over row is its own; 0 without channels.

    The first row of a thread without channels is row `end`, the number of rows of x.
    """
    if rows.first >= rows.end:
        return uint32(0)
    return uint32(turns + 1) if rows.first + turns * rows.stride < rows.end else uint32(turns)


@cuda.jit(device=True)
def slot_of(row, slot, kept, slots):
    """Return the slot of the thread's row number `row` on the way up, given the slot of row number `row + 1`."""
    if row < kept:  # kept rows lie in the slot of their own number
        return row
    # one slot back in the ring, which has the slots `kept` to `slots` - 1
    return uint32(slot - 1) if slot > kept else uint32(slots - 1)


@cache
def output_writer(itemsize, width, step, slots, kept):
    """Return the device function `write_output(stages, x, output, rows, turns, statistics, parameters)`.

    stages, rows, statistics, parameters: `Stages`, `Rows`, `Pair` and `Affine` of `column_vectors`. turns: as for
    `rows_of`.
    """
    _, fetch, take = fetcher(float32, itemsize, width)
    normalise = normaliser(width)
    ring_slots = slots - kept
    all_but_one = ring_slots - 1  # groups of copies that may be pending when a row of the ring must be there

    @cuda.jit(device=True)
    def write_output(stages, x, output, rows, turns, statistics, parameters):
        ring, offset = stages
        weight, bias, gammas, betas = parameters
        values = cuda.local.array(width, float32)
        # `row`, `at` and `slot` begin one row past the thread's last.
        row, apart = rows_of(turns, rows), rows.apart
        at, ring_apart = rows.at + row * apart, ring_slots * apart
        slot = uint32(kept + (row - kept) % ring_slots)  # not used if the thread has only kept rows
        while row > 0:
            row = uint32(row - 1)
            at -= apart
            slot = slot_of(row, slot, kept, slots)
            wait_copies(all_but_one)  # if this row was fetched on the way up, it is the oldest pending group
            take(values, ring, slot * step + offset, x)
            normalise(values, statistics, weight, bias, gammas, betas)
            store_vector_from(flat(output), at, values, 0, width)
            if row >= slots:  # the slot is free: fetch the row that it held before this one on the way down
                fetch(ring, slot * step + offset, flat(x), at - ring_apart)
            commit_copies()  # one group per turn, which may be empty: `wait_copies` counts groups

    return write_output


@cache
def gradient_writer(itemsize, width, step, slots, kept):
    """Return the device function `write_gradient(stages, matrices, rows, turns, statistics, means, parameters)`.

    stages: `Stages` of dy and of x. matrices: dy, x and grad_input. means: of g and of g x̂. The other arguments are
    as for `output_writer`.
    """
    _, fetch, take = fetcher(float32, itemsize, width)
    take_gradient = gradient_taker(width)
    ring_slots = slots - kept
    all_but_one = ring_slots - 1  # as in `output_writer`; dy and x of a row are one group

    @cuda.jit(device=True)
    def write_gradient(stages, matrices, rows, turns, statistics, means, parameters):
        (grad_ring, grad_offset), (ring, offset) = stages
        grad_output, x, grad_input = matrices
        grads = cuda.local.array(width, float32)
        values = cuda.local.array(width, float32)
        # One row past the thread's last, as in `write_output`.
        row, apart = rows_of(turns, rows), rows.apart
        at, ring_apart = rows.at + row * apart, ring_slots * apart
        slot = uint32(kept + (row - kept) % ring_slots)
        while row > 0:
            row = uint32(row - 1)
            at -= apart
            slot = slot_of(row, slot, kept, slots)
            wait_copies(all_but_one)  # if this row was fetched on the way up, it is the oldest pending group
            take(grads, grad_ring, slot * step + grad_offset, grad_output)
            take(values, ring, slot * step + offset, x)
            take_gradient(grads, values, statistics, means, parameters.weight, parameters.gammas, True)
            store_vector_from(flat(grad_input), at, grads, 0, width)
            if row >= slots:  # the slot is free: fetch the row that it held before this one on the way down
                fetch(grad_ring, slot * step + grad_offset, flat(grad_output), at - ring_apart)
                fetch(ring, slot * step + offset, flat(x), at - ring_apart)
            commit_copies()

    return write_gradient
