"""Make the parameters' gradients of few rows in blocks of their own, beside the blocks that make grad_input.

The statistics of every row are inputs, so a column's sum over the rows waits for no row's sum. The first blocks of a
launch take rows, one turn each, and add up no columns. The blocks after them take columns of all rows:

    rows     0 ████████████████████████████  block 0        columns  ██ ██ ██ ██
             1 ████████████████████████████  block 1                 ██ ██ ██ ██
             2 ████████████████████████████  block 2                 ██ ██ ██ ██
                                                              block   3  4  5  6

Both kinds of blocks read the saved array and grad_output, which the second kind mostly finds in L2. In return there are
no partial sums, and no second kernel that begins when the first has ended.

A warp takes COLUMNS neighbouring columns. A lane reads a vector of them, so a warp reads as many rows at once as a
vector has elements. If there are more rows, several warps share the columns. They add up their sums in shared memory in
a fixed order.
"""

from functools import cache
from typing import Any

from normlab.engine import cast, cuda, int32, load, load_vector_into, store, store_vector_from, uint32
from normlab.kernels.backward.pipelined.kind import Kind
from normlab.kernels.backward.pipelined.layout import ACCUMULATOR_BYTES, PipelineLayout
from normlab.kernels.plan import Chains
from normlab.stages.gate import gated_normaliser, silus
from normlab.stages.recompute import clamp_by_magnitude
from normlab.stages.row_map import place_finder
from normlab.stages.vector import WARP
from normlab.stages.warp import lane_index, warp_index

COLUMNS = 32  # per warp, so that each lane ends with the sum of one column
MOST = 4  # columns per thread: eight, with the loads of AT_ONCE rows in flight, spilled in 64 registers
RESIDENT_THREADS = 1024  # per multiprocessor, of rows in 16 bits
# The same for rows that begin in the middle of a vector: with 1024, 5,001 columns recomputed from the output spilled.
RESIDENT_THREADS_OF_ENDS = 512
MOST_BLOCKS = 256  # that take columns; more only if each of their warps already has columns of its own
AT_ONCE = 4  # rows whose loads a thread has in flight


def width_of(layout: PipelineLayout) -> int:
    """Return how many elements of a row a thread has: as many as one instruction moves, wherever the row begins."""
    return min(MOST, layout.thread_map.width // layout.alignments)


def resident_of(layout: PipelineLayout) -> int:
    """Return how many blocks a multiprocessor must have registers for, at least."""
    # With 96 registers per thread a multiprocessor held one block of 512 threads. Few rows of 7,168 columns have 352
    # such blocks, so more than one has to fit.
    several = layout.blocks == 1 and max(layout.saved_bytes, layout.grad_bytes) == 2
    threads = RESIDENT_THREADS if layout.alignments == 1 else RESIDENT_THREADS_OF_ENDS
    return threads // layout.threads if several and layout.threads <= threads else 1


@cache
def counters(layout: PipelineLayout) -> tuple[Any, Any]:
    """Return the device functions `row_blocks(n1)` and `tiles_of(n1, n2)`; the host calls their `py_func`.

    row_blocks: how many blocks take rows. tiles_of: how many times COLUMNS columns a block takes. Both count in 32
    bits: with three divisions of 64 bits before the first load few rows took up to 0.4 us longer.
    """
    together, blocks = layout.rows * layout.alignments, layout.alignments * layout.blocks
    warps, width = layout.threads // WARP, width_of(layout)

    @cuda.jit(device=True)
    def row_blocks(n1):
        return uint32(uint32(n1 + together - 1) // uint32(together)) * blocks

    @cuda.jit(device=True)
    def tiles_of(n1, n2):
        # A warp that shares columns has rows of its own, so no more warps share them than have rows. The more warps
        # share columns, the more blocks there are: not far more than the GPU holds at a time.
        with_rows = uint32(uint32(n1 + width - 1) // uint32(width))
        least = uint32(uint32(n2 + MOST_BLOCKS * COLUMNS - 1) // uint32(MOST_BLOCKS * COLUMNS))
        return min(uint32(warps), max(uint32(uint32(warps) // with_rows), least))

    return row_blocks, tiles_of


def grid_of(layout: PipelineLayout, n1: int, n2: int) -> int:
    """Return how many blocks take rows and columns, whole clusters of either."""
    row_blocks, tiles_of = (one.py_func for one in counters(layout))
    columns = int(tiles_of(n1, n2)) * COLUMNS * layout.blocks  # of a cluster
    return int(row_blocks(n1)) + -(-n2 // columns) * layout.blocks


def chains_of(layout: PipelineLayout, n1: int, n2: int) -> Chains:
    """Return the chains over n1 rows."""
    warps, width = layout.threads // WARP // int(counters(layout)[1].py_func(n1, n2)), width_of(layout)
    # A thread's rows, a warp's threads, the warps. Sums of no rows are 0, which is added exactly.
    return Chains(min(n1, -(-n1 // (warps * width)) + width + warps) + 1, 2)


def shared_bytes_of(layout: PipelineLayout, kind: Kind) -> int:
    """Return the dynamic shared memory of a block, of rows or of columns."""
    sums = (kind.weighted + kind.biased) * layout.threads * width_of(layout)
    return max(layout.shared_bytes(kind.parameter_bytes), ACCUMULATOR_BYTES * sums)


@cuda.jit(device=True)
def strided_sum(values, at, count, stride):
    """Return the sum of `count` values, one after another."""
    total = values[at]
    for k in range(1, count):
        total += values[at + k * stride]
    return total


@cache
def term_maker(kind: Kind, dtype: Any) -> Any:
    """Return the device function `term_of(rows, ahead, at, k, scales, centers, gammas, betas, eps)`: an element's dy x̂.

    rows: the local arrays of the saved array, of grad_output and of the gate. ahead: which of the rows. at: which
    element in these arrays. k: which column of gammas and betas. Without a gate, x̂ that is recomputed is not yet
    divided by gamma.
    """
    memory_efficient, biased, centered, gated = kind.memory_efficient, kind.biased, kind.centered, kind.gating
    xhat_and_grad: Any = None if gated is None else gated_normaliser(gated, dtype)
    silu, _ = silus(dtype)

    @cuda.jit(device=True)
    def plain_term(rows, ahead, at, k, scales, centers, gammas, betas, eps):
        values, grads, _ = rows
        if memory_efficient:
            return grads[at] * (values[at] - betas[k] if biased else values[at])
        value = values[at] - centers[ahead] if centered else values[at]
        return grads[at] * value * scales[ahead]

    @cuda.jit(device=True)
    def gated_term(rows, ahead, at, k, scales, centers, gammas, betas, eps):
        values, grads, gates = rows
        xhat, grad = xhat_and_grad(values[at], grads[at], silu(gates[at], gates), gammas[k], scales[ahead], eps)
        return grad * xhat

    return plain_term if gated is None else gated_term


@cache
def column_summer(layout: PipelineLayout, kind: Kind, dtype: Any) -> Any:
    """Return the device function `sum_columns(operands, gradients)`: the parameters' gradients of a block's columns."""
    width, lanes = width_of(layout), COLUMNS // width_of(layout)
    warps, weighted, biased, offset = layout.threads // WARP, kind.weighted, kind.biased, kind.offset
    row_blocks, tiles_of = counters(layout)
    add_rows, divided = row_adder(layout, kind, dtype), kind.memory_efficient and weighted

    @cuda.jit(device=True)
    def sum_columns(operands, gradients):
        shared = cuda.shared.array(0, dtype, alignment=16)
        sums_weight = cuda.local.array(width, dtype)
        sums_bias = cuda.local.array(width, dtype)
        for k in range(width):
            sums_weight[k] = cast(0, shared)
            sums_bias[k] = cast(0, shared)
        n1, n2 = operands.grad_input.shape
        warp = warp_index()
        lane = lane_index()
        tiles = tiles_of(n1, n2)
        members = int32(uint32(warps) // tiles)  # warps that share columns
        tile = int32(uint32(warp) // uint32(members))
        member = warp - tile * members
        start = ((cuda.blockIdx.x - row_blocks(n1)) * tiles + tile) * COLUMNS
        end = n2 if tile < tiles else 0  # warps that are left over have no columns
        column = start + lane % lanes * width

        # Load gamma before the rows, so that its wait and theirs are one: no cache holds it yet.
        gamma = cast(1, shared)
        if divided and start + lane < end:
            gamma = load(operands.weight, start + lane)
        # Each thread's sums over its rows.
        if column < end:
            add_rows(operands, column, member * width + lane // lanes, members * width, sums_weight, sums_bias)

        # Each warp's, then those of all warps that share the columns.
        first = warp * width * COLUMNS  # of the warp's part of shared memory: a row of COLUMNS for each row at once
        second = warps * width * COLUMNS if weighted else 0  # of the bias's sums
        at = first + lane // lanes * COLUMNS + lane % lanes * width
        if weighted:
            store_vector_from(shared, at, sums_weight, 0, width)
        if biased:
            store_vector_from(shared, second + at, sums_bias, 0, width)
        cuda.syncthreads()  # the sums of a warp's lanes are in shared memory
        # A lane adds up one column, so that no other lane waits for what it writes.
        if weighted:
            shared[first + lane] = strided_sum(shared, first + lane, width, COLUMNS)
        if biased:
            shared[second + first + lane] = strided_sum(shared, second + first + lane, width, COLUMNS)
        cuda.syncthreads()  # the sums of all warps are in shared memory
        column = start + lane
        if column < end and member == 0 and weighted:
            total = strided_sum(shared, first + lane, members, width * COLUMNS)
            if divided:
                if offset:
                    gamma += cast(offset, shared)
                total = total / clamp_by_magnitude(gamma, operands.eps)
            store(gradients.grad_weight, column, total)
        if column < end and member == members - 1 and biased:  # another warp, if there is one
            at = second + (warp - member) * width * COLUMNS + lane
            store(gradients.grad_bias, column, strided_sum(shared, at, members, width * COLUMNS))

    return sum_columns


@cache
def row_adder(layout: PipelineLayout, kind: Kind, dtype: Any) -> Any:
    """Return the device function `add_rows(operands, column, row, stride, sums_weight, sums_bias)`.

    It adds the terms of rows `row`, `row + stride`, … to the sums of the vector that begins at `column`.
    """
    width, elements = width_of(layout), AT_ONCE * width_of(layout)
    weighted, biased, centered, gated = kind.weighted, kind.biased, kind.centered, kind.gating is not None
    scaled = gated or not kind.memory_efficient
    shifted = kind.memory_efficient and biased
    place_of, gate_place_of = place_finder(kind.row_map), place_finder(kind.gate_map)
    term_of = term_maker(kind, dtype)

    @cuda.jit(device=True)
    def add_rows(operands, column, row, stride, sums_weight, sums_bias):
        values = cuda.local.array(elements, dtype)
        grads = cuda.local.array(elements, dtype)
        gates = cuda.local.array(elements, dtype)
        scales = cuda.local.array(AT_ONCE, dtype)
        centers = cuda.local.array(AT_ONCE, dtype)
        gammas = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        for k in range(width):
            if gated and weighted:
                gammas[k] = load(operands.weight, column + k)
            if shifted:
                betas[k] = load(operands.bias, column + k)
        rows = values, grads, gates
        n1 = int32(operands.grad_input.shape[0])
        row, stride = int32(row), int32(stride)
        while row < n1:
            # All loads before the first sum. After the last row they load it again, because a branch around a load
            # would keep the next one waiting.
            for ahead in range(AT_ONCE):
                there = min(int32(row + ahead * stride), int32(n1 - 1))
                load_vector_into(grads, ahead * width, operands.grad_output, (there, column), width)
                if weighted:
                    load_vector_into(values, ahead * width, operands.saved, (place_of(there), column), width)
                    if gated:
                        load_vector_into(gates, ahead * width, operands.gate, (gate_place_of(there), column), width)
                    if scaled:
                        scales[ahead] = load(operands.invvar, there)
                    if centered:
                        centers[ahead] = load(operands.mean, there)
            for ahead in range(AT_ONCE):
                if row + ahead * stride < n1:
                    for k in range(width):
                        at = ahead * width + k
                        if weighted:
                            sums_weight[k] += term_of(rows, ahead, at, k, scales, centers, gammas, betas, operands.eps)
                        if biased:
                            sums_bias[k] += grads[at]
            row = int32(row + AT_ONCE * stride)

    return add_rows
