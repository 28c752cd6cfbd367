"""Long rows, held in the shared memory of a cluster of blocks; short ones as in step 6.

A row of more than 32 KB does not fit the registers of a block that shares its multiprocessor with others. Here each
block of a cluster keeps a slice of the row in shared memory, copied there without passing through registers, and the
blocks exchange their sums through each other's shared memory, still with one barrier. Blocks stay: as soon as a vector
is in registers its place is free, and the same vector of the next row is fetched into it. A thread with few enough
takes all of its vectors at once, and the next row travels during the whole of this one; with more, it reads them again
for every pass, for the last time when it writes the output. The slice's parameters lie beside it, for all rows. Where
there is one parameter at most, three blocks find room on a multiprocessor: of many rows (that fill their slices, or
these are of 256 threads) each cluster then takes one, and one block's row travels while others are at work on theirs.

With few rows the latency of memory is most of the time. Then smaller blocks on more multiprocessors share a row. But a
cluster's multiprocessors are neighbours, with one way to memory for all of them. So where others are idle, several
clusters read the same row: each finds its mean and variance for itself, and then writes a part of the output.
Rows of more than LONGEST columns, or that no cluster holds, are cut into pieces (`split_rows`).
Moves: x once, the output once, the parameters once a cluster; of few rows x once for each of its readers.
Bound by: the wait for the slowest block of a cluster, once a row.
Measured: see the README, and `layouts.slices_for`.
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
from normlab.stages.team import leave
from normlab.stages.vector import BYTES, widest
from normlab.stages.warp import warp_sum_butterfly


@cache
def build(dtype, slices: Slices):
    """The kernel for an accumulator dtype and a layout."""
    deal, blocks, itemsize, spread, parameter_bytes, _, readers, _ = slices
    vectors, width, span, whole = deal.vectors, deal.width, deal.span, deal.whole
    cluster, columns = slices.cluster, deal.columns
    warps, stretch = deal.warps // spread, span // spread
    beside = parameter_bytes > 0  # the parameters lie beside the row
    bits, parameter_bits = BITS[itemsize], BITS[parameter_bytes or itemsize]
    held_columns = columns // spread
    behind_row = held_columns * itemsize // (parameter_bytes or itemsize)  # where the parameters begin
    kept = slices.kept
    elements, hop = (deal.elements, width) if kept else (width, 0)  # in registers; from one vector to the next there
    later = int(beside)  # groups of copies behind the row's: the parameters'
    next_row = int(kept)  # and behind those
    size, merge = group_size(deal, blocks), group_merger(deal, blocks, spread)

    @cuda.jit(device=True)
    def fetch_row(held, place, x, row, first):
        """A group of copies: of the thread's part of the row, or of nothing behind the last row."""
        if row < x.shape[0]:
            for v in range(vectors):
                if whole or first + v * span < x.shape[1]:
                    copy_async(held, place + v * stretch, x, (row, first + v * span), width)
        commit_copies()

    @cuda.jit(device=True)
    def take(values, held, at, x):
        """A vector for one pass, if registers do not hold it."""
        if not kept:
            load_bits_into(values, 0, held, at, width, x)

    @cuda.jit(device=True)
    def writes(reader, v):
        """Whether it is this one of the row's readers that writes a thread's vector number v."""
        return readers == 1 or v % readers == reader

    @cuda.jit(device=True)
    def fetch(parameters, at, array, column):
        if array is not None:
            copy_async(parameters, at, array, column, width)

    @cuda.jit(device=True)
    def load_parameter(target, parameters, at, array, column):
        if array is not None:
            if beside:
                load_bits_into(target, 0, parameters, at, width, array)
            else:
                load_vector_into(target, 0, array, column, width)

    @cuda.jit(launch_bounds=(slices.threads, slices.resident))
    def forward_clusters(x, weight, bias, eps, factor, output, mean, invvar):
        board = cuda.shared.array((2, 1, 2, warps), dtype)
        held = cuda.shared.array(0, bits, alignment=16)  # the block's part of the row
        parameters = cuda.shared.array(0, parameter_bits, alignment=16)  # the same memory, as they see it
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
        place = cuda.threadIdx.x * width  # of the thread's first vector in shared memory
        first = rank // spread * columns + rank % spread * stretch + place  # and in the row
        gammas_at = behind_row + place
        betas_at = gammas_at
        if weight is not None:
            betas_at += held_columns
        fetch_row(held, place, x, row, first)
        if beside:
            for v in range(vectors):
                if writes(reader, v) and (whole or first + v * span < n2):
                    fetch(parameters, gammas_at + v * stretch, weight, first + v * span)
                    fetch(parameters, betas_at + v * stretch, bias, first + v * span)
        phase = 0
        while row < x.shape[0]:
            following = row + stride
            if beside:
                commit_copies()  # of the parameters in the first turn, of nothing later
            wait_copies(later)  # for the thread's own copies: it reads no others
            if kept:
                for v in range(vectors):
                    if whole or first + v * span < n2:
                        load_bits_into(values, v * width, held, place + v * stretch, width, x)
                fetch_row(held, place, x, following, first)  # to where this row lay
            center = cast(0, board)
            if mean is not None:
                total = cast(0, board)
                for v in range(vectors):
                    if whole or first + v * span < n2:
                        take(values, held, place + v * stretch, x)
                        for k in range(width):
                            total += values[v * hop + k]
                total = warp_sum_butterfly(total)
                center = total / cast(max(size(n2, rank * warps + warp), 1), board)
                leave(board, phase, 0, 0, warp, total)
            square_sum = cast(0, board)
            for v in range(vectors):
                if whole or first + v * span < n2:
                    take(values, held, place + v * stretch, x)
                    for k in range(width):
                        deviation = values[v * hop + k] - center
                        square_sum += deviation * deviation
            leave(board, phase, 0, 1, warp, warp_sum_butterfly(square_sum))
            if cluster > 1:
                cluster_arrive_shared()
                cluster_wait()  # all warps of the cluster have left their sums
            else:
                cuda.syncthreads()  # all warps of the block have left their sums
            center, square_sum = merge(board, phase, 0, n2, factor, mean)
            phase = 1 - phase  # the next row's sums must not meet these, which others may still be reading
            if beside:
                wait_copies(next_row)  # for the parameters
            scale = cuda.libdevice.rsqrtf(square_sum * factor + eps)
            for v in range(vectors):
                column = first + v * span
                if whole or column < n2:
                    take(values, held, place + v * stretch, x)
                    if not kept and following < x.shape[0]:
                        copy_async(held, place + v * stretch, x, (following, column), width)
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
                commit_copies()
            if cuda.threadIdx.x == 0 and rank == 0 and reader == 0:
                if mean is not None:
                    store(mean, row, center)
                store(invvar, row, scale)
            row = following
        if cluster > 1:
            cluster_arrive_shared()
            cluster_wait()  # no block ends while others read from its board

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
    """Return the kernel for clusters that have so many rows at a time."""
    grid = rows * slices.readers * slices.cluster
    return Work(build, (dtype, slices), grid, slices.threads, FACTOR_OPERANDS, slices.shared_bytes, slices.cluster)


def rows_of(slices: Slices) -> Chains:
    """Return the chains along a row."""
    return Chains(slices.deal.elements + (slices.deal.warps * slices.blocks) // 32, 10)


def _chains(n2: int) -> Chains:
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
