"""Hold a long row in the shared memory of a cluster of blocks; short rows are done as in step 6.

Idea: each block of a cluster keeps a slice of the row in shared memory, and the blocks exchange their sums through
distributed shared memory, still with one barrier. A block fetches its slice of the next row while it works on this row.
Moves: x once, the output once, the parameters once per cluster. With few rows several clusters read the same x
(`readers` below).
Bound by: the wait for the slowest block of a cluster, once per row.
Measured: see the README, and `normlab.kernels.forward.layouts.slices_for`.
Next: rows of more than LONGEST columns, which are cut into pieces (`split_rows`).

What changed since step 6:
- Asynchronous copies bring the row to shared memory without registers: above 32 KB a row does not fit in the registers
  of a block that shares its multiprocessor.
- Blocks are persistent: a cluster takes row after row. Each thread reads only the vectors that it copied itself. A
  vector's slot in shared memory is free after the thread's last load from it, and the next row's vector goes there.
- Where the registers suffice (`kept`), a thread loads its vectors into them once, for all passes. Elsewhere each pass
  loads them from shared memory again.
- The slice's parameters lie in shared memory beside the row, loaded once for all rows.
- Many rows, at most one parameter (`one_row`): three blocks fit on a multiprocessor, and each cluster takes one row.
- Few rows (`spread`): a slice is divided among smaller blocks on more multiprocessors, because latency is most of the
  time.
- Few rows (`readers`): a cluster's multiprocessors share one path to memory, so several clusters read the same row.
  Each computes the statistics and writes a part of the output.
"""

from functools import cache
from itertools import product
from typing import Any

import numpy as np

from normlab.engine import (
    accumulator,
    cast,
    cluster_arrive_shared,
    cluster_rank,
    cluster_wait,
    commit_copies,
    copy_async,
    cuda,
    load_bits_into,
    load_vector_into,
    store,
    store_vector_from,
    wait_copies,
)
from normlab.kernels import split
from normlab.kernels.forward import layouts, split_rows, step_4_column_blocks, step_6_one_barrier
from normlab.kernels.forward.layouts import Slices
from normlab.kernels.forward.operands import FACTOR_OPERANDS
from normlab.kernels.plan import Chains, Device, Plan, Refusal, Resized, Work, longest
from normlab.kernels.problem import ForwardProblem
from normlab.kernels.step import ForwardStep
from normlab.kernels.words import counted
from normlab.stages.ahead import BITS
from normlab.stages.grouped import group_merger, group_size
from normlab.stages.recompute import affine, normalised_from_input
from normlab.stages.row_group import leave
from normlab.stages.vector import BYTES, widest
from normlab.stages.warp import warp_sum_butterfly


@cache
def build(dtype, slices: Slices):
    """Return the kernel for an accumulator dtype and a layout."""
    thread_map, blocks, itemsize, spread, parameter_bytes, _, readers, _ = slices
    vectors, width, span, whole = thread_map.vectors, thread_map.width, thread_map.span, thread_map.whole
    cluster, columns = slices.cluster, thread_map.columns
    # `spread` blocks share a slice: the warps per block, and the columns of a span that a block has side by side
    warps, stretch = thread_map.warps // spread, span // spread
    beside = parameter_bytes > 0  # the parameters lie beside the row
    bits, parameter_bits = BITS[itemsize], BITS[parameter_bytes or itemsize]
    held_columns = columns // spread  # columns of the row in this block's shared memory
    behind_row = held_columns * itemsize // (parameter_bytes or itemsize)  # the parameters' offset, in their elements
    kept = slices.kept
    # Values in registers per thread, and the distance in them from one vector to the next. If the row is not kept,
    # every vector uses the same registers: distance 0.
    elements, hop = (thread_map.elements, width) if kept else (width, 0)
    # Groups of copies that may still be in flight. When the row must be there: the parameters' group, committed last.
    later = int(beside)
    # When the parameters must be there: the next row's group, which is started before that only if the row is kept.
    next_row = int(kept)
    size, merge = group_size(thread_map, blocks), group_merger(thread_map, blocks, spread)

    @cuda.jit(device=True)
    def fetch_row(held, offset, x, row, first):
        """Start to copy the thread's part of a row, as one group of copies; after the last row the group is empty."""
        if row < x.shape[0]:
            for v in range(vectors):
                if whole or first + v * span < x.shape[1]:
                    copy_async(held, offset + v * stretch, x, (row, first + v * span), width)
        commit_copies()

    @cuda.jit(device=True)
    def take(values, held, at, x):
        """Load a vector from shared memory, if registers do not hold the row."""
        if not kept:
            load_bits_into(values, 0, held, at, width, x)

    @cuda.jit(device=True)
    def writes(reader, v):
        """Return True if this reader of the row writes the thread's vector v."""
        return readers == 1 or v % readers == reader

    @cuda.jit(device=True)
    def fetch(parameters, at, array, column):
        """Start to copy a vector of weight or bias to shared memory; do nothing if the array is None."""
        if array is not None:
            copy_async(parameters, at, array, column, width)

    @cuda.jit(device=True)
    def load_parameter(target, parameters, at, array, column):
        """Load a vector of weight or bias from shared memory or, where it is not there, from global memory."""
        if array is not None:
            if beside:
                load_bits_into(target, 0, parameters, at, width, array)
            else:
                load_vector_into(target, 0, array, column, width)

    @cuda.jit(launch_bounds=(slices.threads, slices.resident))
    def forward_clusters(x, weight, bias, eps, factor, output, mean, invvar):
        # Prologue: which columns of which rows this thread has.
        exchange = cuda.shared.array((2, 1, 2, warps), dtype)  # two phases: see `stages.row_group`
        held = cuda.shared.array(0, bits, alignment=16)  # the block's part of the row
        parameters = cuda.shared.array(0, parameter_bits, alignment=16)  # the same memory, in the parameters' bits
        values = cuda.local.array(elements, dtype)
        gammas = cuda.local.array(width, dtype)
        betas = cuda.local.array(width, dtype)
        n2 = x.shape[1]
        rank = 0
        if cluster > 1:
            rank = cluster_rank()
        reader = cuda.blockIdx.x // cluster % readers
        row = cuda.blockIdx.x // (cluster * readers)
        stride = cuda.gridDim.x // (cluster * readers)
        warp = cuda.threadIdx.x >> 5
        offset = cuda.threadIdx.x * width  # the offset of the thread's first vector in shared memory
        # Its column in the row: the slice's first column, then the block's stretch of the slice, then the thread's.
        first = rank // spread * columns + rank % spread * stretch + offset
        gammas_at = behind_row + offset
        betas_at = gammas_at
        if weight is not None:
            betas_at += held_columns

        # Fetch the first row, then the parameters: the first pass needs only the row.
        fetch_row(held, offset, x, row, first)
        if beside:
            for v in range(vectors):
                if writes(reader, v) and (whole or first + v * span < n2):
                    fetch(parameters, gammas_at + v * stretch, weight, first + v * span)
                    fetch(parameters, betas_at + v * stretch, bias, first + v * span)

        phase = 0
        while row < x.shape[0]:
            # Wait for this row. If registers keep it, start to fetch the next row now.
            following = row + stride
            if beside:
                commit_copies()  # the parameters' group in the first turn, an empty one later
            wait_copies(later)  # no barrier: each thread reads only its own copies
            if kept:  # to registers, once for all passes; the slots are then free for the next row
                for v in range(vectors):
                    if whole or first + v * span < n2:
                        load_bits_into(values, v * width, held, offset + v * stretch, width, x)
                fetch_row(held, offset, x, following, first)

            # First pass: the mean and then the squares of this warp's own values.
            center = cast(0, exchange)
            if mean is not None:
                total = cast(0, exchange)
                for v in range(vectors):
                    if whole or first + v * span < n2:
                        take(values, held, offset + v * stretch, x)
                        for k in range(width):
                            total += values[v * hop + k]
                total = warp_sum_butterfly(total)
                center = total / cast(max(size(n2, rank * warps + warp), 1), exchange)  # max: a warp past the row's end
                leave(exchange, phase, 0, 0, warp, total)
            square_sum = cast(0, exchange)
            for v in range(vectors):
                if whole or first + v * span < n2:
                    take(values, held, offset + v * stretch, x)
                    for k in range(width):
                        deviation = values[v * hop + k] - center
                        square_sum += deviation * deviation
            leave(exchange, phase, 0, 1, warp, warp_sum_butterfly(square_sum))

            # Exchange: one barrier for both sums, then every warp merges the sums of all warps of the row.
            if cluster > 1:
                cluster_arrive_shared()  # waits only for stores to shared memory: the output's may still be in flight
                cluster_wait()  # all warps of the cluster have written their sums before a warp reads them
            else:
                cuda.syncthreads()  # all warps of the block have written their sums before a warp reads them
            center, square_sum = merge(exchange, phase, 0, n2, factor, mean)
            phase = 1 - phase  # other warps may still read these sums: the next row's go to the other half

            # Second pass: normalise and store. If the row is not kept, start to fetch the next row vector by vector.
            if beside:
                wait_copies(next_row)  # in the first turn for the parameters; later they are there already
            scale = cuda.libdevice.rsqrtf(square_sum * factor + eps)
            for v in range(vectors):
                column = first + v * span
                if whole or column < n2:
                    take(values, held, offset + v * stretch, x)
                    if not kept and following < x.shape[0]:  # last use of this slot: fetch the next row's vector
                        copy_async(held, offset + v * stretch, x, (following, column), width)
                    if writes(reader, v):
                        load_parameter(gammas, parameters, gammas_at + v * stretch, weight, column)
                        load_parameter(betas, parameters, betas_at + v * stretch, bias, column)
                        for k in range(width):
                            gamma = None if weight is None else gammas[k]
                            beta = None if bias is None else betas[k]
                            value = normalised_from_input(values[v * hop + k], center, scale)
                            values[v * hop + k] = affine(value, gamma, beta)
                        store_vector_from(output, (row, column), values, v * hop, width)
            if not kept:
                commit_copies()  # the next row's group
            if cuda.threadIdx.x == 0 and rank == 0 and reader == 0:  # one thread per row stores the statistics
                if mean is not None:
                    store(mean, row, center)
                store(invvar, row, scale)
            row = following

        # Epilogue.
        if cluster > 1:
            cluster_arrive_shared()
            cluster_wait()  # a block's shared memory must live until the other blocks have read its sums

    return forward_clusters


def plan(problem: ForwardProblem, device: Device) -> Plan | Resized | Refusal:
    """Return the plan, if a cluster holds a row."""
    n1, n2 = problem.shape
    if problem.invvar.dtype.itemsize != 4:
        return Refusal("it computes in float32, and float64 is asked for")
    width, itemsize = widest(n2, *problem.matrices), problem.x.dtype.itemsize
    chosen = layouts.slices_for(n2, width, itemsize, device)
    if chosen is None:
        return Refusal(
            f"no cluster holds {n2:,} columns in vectors of {counted(width * itemsize, 'byte')}: "
            f"it has up to {counted(device.largest_cluster, 'block')}, and rows up to {layouts.LONGEST:,} columns"
        )
    slices = chosen.layout._replace(parameters=(problem.weight is not None) + (problem.bias is not None))
    slices = layouts.spread_out(slices, n1, problem.output.dtype.itemsize, device)
    dtype, values = accumulator(problem.invvar), (("factor", np.float32(1 / n2)),)

    def planned(rows: int) -> Plan:
        work = _work(dtype, slices, rows)
        return Plan("clusters", (work,), chosen.why, rows_of(slices), values=values, layout=slices)

    if slices.one_row:
        return planned(n1)
    return Resized(
        _work(dtype, slices, 1), (), values, lambda resident: planned(min(n1, max(1, resident // slices.readers)))
    )


def _work(dtype: Any, slices: Slices, rows: int) -> Work:
    """Return the kernel with a grid that has `rows` rows at a time: `readers` clusters for each."""
    grid = rows * slices.readers * slices.cluster
    return Work(build, (dtype, slices), grid, slices.threads, FACTOR_OPERANDS, slices.shared_bytes, slices.cluster)


def rows_of(slices: Slices) -> Chains:
    """Return the chains along a row: a thread's values and then a lane's warps; two butterflies of five levels."""
    return Chains(slices.thread_map.elements + (slices.thread_map.warps * slices.blocks) // 32, 10)


def _chains(n2: int) -> Chains:
    """Return the longest chains of all layouts for n2 columns, whatever the dtype, the alignment and the GPU."""
    kinds = product((1, 2, 4, 8), (2, 4), (Device.named("a100"), Device.named("h200")))
    found = [layouts.slices_for(n2, *kind) for kind in kinds if n2 % kind[0] == 0 and kind[0] * kind[1] <= BYTES]
    own = [rows_of(chosen.layout) for chosen in found if chosen is not None]
    if n2 > layouts.SPLIT_FROM:
        own.append(split.row_chains(n2))
    return longest(*own, step_6_one_barrier.STEP.row_chains(n2))


STEP = ForwardStep(
    name="clusters",
    summary="long rows in the shared memory of a cluster, others as one_barrier",
    ways=(step_6_one_barrier.plan, plan, split_rows.plan, step_4_column_blocks.plan),
    row_chains=_chains,
    simulated_seconds=lambda n1, n2: n1 * (0.002 + 15e-6 * n2),
    statistics="grouped",
)
