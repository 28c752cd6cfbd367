"""Build the pipelined backward kernel for a layout and a kind; `step_3_pipelined` says what it does and why.

A row group is the threads of a block that share a row. Each row group has its own pipeline stages, its own part of the
exchange buffer and a barrier of its own, so row groups do not wait for each other. The whole block meets only before
the first row, for the parameters, and after the last one, for the columns' sums (`columns`).
"""

from functools import cache
from typing import Any

from normlab.engine import (
    cast,
    cluster_arrive_shared,
    cluster_rank,
    cluster_wait,
    commit_copies,
    cuda,
    launch_dependents,
    load,
    team_sync,
    wait_copies,
)
from normlab.kernels.backward.columns import finisher, gatherer
from normlab.kernels.backward.kind import NARROW_BYTES, Kind
from normlab.kernels.backward.parameters import keepers
from normlab.kernels.backward.passes import fetcher, first_pass, second_pass
from normlab.kernels.backward.ring import Layout
from normlab.stages.ahead import BITS
from normlab.stages.gradient import leave_means
from normlab.stages.row_group import collector, leave
from normlab.stages.warp import lanes_sum


@cache
def build(dtype: Any, layout: Layout, kind: Kind, gathered: bool = False, apart: bool = False) -> Any:
    """Return the kernel for an accumulator dtype, a layout and a kind.

    gathered: all blocks are one cluster, which adds up its columns' sums itself and writes no partial sums.
    apart: two clusters read the same rows; one makes grad_input, the other one the parameters' gradients.
    """
    thread_map, rows, blocks, stages, lag, saved_bytes, grad_bytes = layout
    rms, memory_efficient, weighted, biased, narrow, *_ = kind
    elements, columns, threads, width, warps = (
        thread_map.elements,
        thread_map.columns,
        thread_map.threads,
        thread_map.width,
        thread_map.warps,
    )
    saved_bits, grad_bits = BITS[saved_bytes], BITS[grad_bytes]
    weight_sums, bias_sums = (elements if weighted else 1), (elements if biased else 1)
    parameter_bits = BITS[NARROW_BYTES] if narrow else dtype
    in_flight, fetched = stages - 1 - lag, layout.fetched
    turns, fetch_sums, add_up = collector(warps, blocks)
    collected = 2 * turns  # partial sums of both sums
    alone = warps * blocks == 1  # one warp has the whole row, or several rows: no exchange
    sum_of_lanes = lanes_sum(thread_map.lanes)
    (fetch_parameters, keep_parameters), fetch = keepers(layout, kind, dtype), fetcher(layout)
    pass_1, pass_2 = first_pass(layout, kind, dtype), second_pass(layout, kind, dtype)
    finish_weight = finisher(layout, kind, dtype, memory_efficient, gathered, 0)
    finish_bias = finisher(layout, kind, dtype, False, gathered, 1)
    gather_weight, gather_bias = (gatherer(layout, dtype, number) for number in (0, 1))

    @cuda.jit(device=True)
    def means(partials, lacking, mean_factor):
        """Return the row's mean(g x̂) and mean(g); lacking: the exact mode's correction of the first sum."""
        mean_gx = (add_up(partials, 0) + lacking) * mean_factor
        if rms:
            return mean_gx, cast(0, partials)
        return mean_gx, add_up(partials, turns) * mean_factor

    @cuda.jit(device=True)
    def for_rows():  # a function, called at each use, so that no register holds the answer meanwhile
        """Return True if this block makes grad_input."""
        return not apart or cuda.blockIdx.x < blocks

    @cuda.jit(device=True)
    def for_columns():
        """Return True if this block makes the parameters' gradients."""
        return not apart or cuda.blockIdx.x >= blocks

    @cuda.jit(launch_bounds=(layout.threads, 1))
    def backward_pipelined(
        grad_output, saved, mean, invvar, weight, bias, eps, mean_factor, row_sums,
        grad_input, grad_weight, grad_bias, part_weight, part_bias,
    ):  # fmt: skip
        # Prologue: empty sums, and which columns of which rows this thread has.
        exchange = cuda.shared.array((2, rows, 2, warps), dtype)  # two phases: see `stages.row_group`
        saved_ring = cuda.shared.array(0, saved_bits, alignment=16)
        grad_ring = cuda.shared.array(0, grad_bits, alignment=16)
        parameters = cuda.shared.array(0, parameter_bits, alignment=16)
        partials = cuda.local.array(collected, dtype)
        sums_weight = cuda.local.array(weight_sums, dtype)
        sums_bias = cuda.local.array(bias_sums, dtype)
        for k in range(weight_sums):
            sums_weight[k] = cast(0, exchange)
        for k in range(bias_sums):
            sums_bias[k] = cast(0, exchange)
        for k in range(collected):
            partials[k] = cast(0, exchange)
        n1, n2 = saved.shape
        thread = cuda.threadIdx.x
        group = cuda.threadIdx.y
        warp = thread >> 5
        start = 0  # the first column of this block's slice
        cluster = cuda.blockIdx.x
        clusters = cuda.gridDim.x
        if blocks > 1:
            start = cluster_rank() * columns
            cluster //= blocks
            clusters //= blocks
        if apart:  # both clusters read all rows
            cluster = 0
            clusters = 1
        offset = thread * width
        first = start + offset
        stride = clusters * rows

        # Fetch the first rows and the parameters. `top` is the block's first row, the same for all its row groups.
        top = cluster * rows
        row = top + group
        fetch_parameters(parameters, weight, bias, group, offset, first, n2)
        for slot in range(fetched):
            ahead = row + slot * stride
            if ahead < n1:
                fetch(saved_ring, grad_ring, saved, grad_output, ahead, (slot * rows + group) * columns + offset, first)
            commit_copies()
        center = cast(0, exchange)
        scale = cast(0, exchange)
        if row < n1:
            scale = load(invvar, row)
            if mean is not None:
                center = load(mean, row)
        rare = keep_parameters(parameters, weight, bias, eps, group, offset, first, n2)
        cuda.syncthreads()  # the parameters are in shared memory before other row groups read them

        # Each turn: first pass over a row, exchange, second pass. With a lag of 1 the second pass is over the previous
        # row: the exchange has a whole pass of time, and the previous row stays in its pipeline stage meanwhile.
        slot = 0
        phase = 0
        last_row, last_at, last_center, last_scale = n1, 0, center, scale  # with a lag, the second pass's row
        sum_gx = cast(0, exchange)
        sum_g = cast(0, exchange)
        while top < n1 + lag * stride:
            at = (slot * rows + group) * columns + offset
            if lag == 0:  # fetch ahead: the stage of the previous row is free
                free = stages - 1 if slot == 0 else slot - 1
                ahead = row + fetched * stride
                if ahead < n1:
                    fetch(
                        saved_ring, grad_ring, saved, grad_output,
                        ahead, (free * rows + group) * columns + offset, first,
                    )  # fmt: skip
                commit_copies()
            elif alone:
                partials[0], partials[turns] = sum_gx, sum_g
            elif last_row < n1:  # not in the first turn, before which no sums were written
                fetch_sums(partials, 0, exchange, phase, group, 0)
                if not rms:
                    fetch_sums(partials, turns, exchange, phase, group, 1)
            # Load the next row's statistics a turn ahead: a load takes most of a microsecond.
            next_center = cast(0, exchange)
            next_scale = cast(0, exchange)
            if row + stride < n1:
                next_scale = load(invvar, row + stride)
                if mean is not None:
                    next_center = load(mean, row + stride)
            lacking = cast(0, exchange)  # the correction for the row whose second pass comes next
            if row_sums is not None and (last_row if lag == 1 else row) < n1:
                lacking = load(row_sums, (0, last_row if lag == 1 else row))

            # First pass: the row's two sums, and its terms of the columns' sums.
            wait_copies(in_flight)  # no barrier: each thread reads only its own copies
            sum_gx = cast(0, exchange)
            sum_g = cast(0, exchange)
            if row < n1:
                sum_gx, sum_g = pass_1(
                    saved_ring, grad_ring, parameters, saved, grad_output, weight, bias, mean,
                    at, offset, first, center, scale, rare, sums_weight, sums_bias,
                )  # fmt: skip
            sum_gx = sum_of_lanes(sum_gx)
            if not rms:
                sum_g = sum_of_lanes(sum_g)

            # Exchange: write this row's sums. With a lag, read the previous row's, which arrived during the first pass.
            phase = 1 - phase  # other warps may still read the previous row's sums
            if lag == 1:
                mean_gx, mean_g = means(partials, lacking, mean_factor)
            if not alone:
                leave(exchange, phase, group, 0, warp, sum_gx)
                if not rms:
                    leave(exchange, phase, group, 1, warp, sum_g)
                if blocks > 1:
                    cluster_arrive_shared()
                elif lag == 0:
                    team_sync(group + 1, threads)  # this row group's sums are written; barrier 0 is the block's

            # Second pass: grad_input.
            if lag == 0:
                if not alone:
                    if blocks > 1:
                        cluster_wait()  # all blocks' sums are written before a warp reads them
                    fetch_sums(partials, 0, exchange, phase, group, 0)
                    if not rms:
                        fetch_sums(partials, turns, exchange, phase, group, 1)
                else:
                    partials[0], partials[turns] = sum_gx, sum_g
                mean_gx, mean_g = means(partials, lacking, mean_factor)
                if for_rows() and row < n1:
                    if first == 0:  # before the second pass, in which row_sums then takes no registers
                        leave_means(row_sums, row, mean_g, mean_gx)
                    pass_2(
                        saved_ring, grad_ring, parameters, saved, grad_output, weight, bias, mean,
                        at, offset, first, center, scale, mean_gx, mean_g, grad_input, row, eps, rare,
                    )  # fmt: skip
            else:
                if for_rows() and last_row < n1:
                    if first == 0:
                        leave_means(row_sums, last_row, mean_g, mean_gx)
                    pass_2(
                        saved_ring, grad_ring, parameters, saved, grad_output, weight, bias, mean,
                        last_at, offset, first, last_center, last_scale, mean_gx, mean_g, grad_input, last_row,
                        eps, rare,
                    )  # fmt: skip
                    # Fetch ahead into the stage that this thread has just read for the last time.
                    ahead = last_row + fetched * stride
                    if ahead < n1:
                        fetch(saved_ring, grad_ring, saved, grad_output, ahead, last_at, first)
                    commit_copies()
                if not alone:
                    if blocks > 1:  # this row's sums are written before the next turn reads them
                        cluster_wait()
                    else:
                        team_sync(group + 1, threads)
                last_row, last_at, last_center, last_scale = row, at, center, scale
            row += stride
            top += stride
            center = next_center
            scale = next_scale
            slot += 1
            if slot == stages:
                slot = 0

        # Epilogue: the columns' sums, in the memory of the pipeline stages.
        if blocks > 1 and lag == 0:
            cluster_arrive_shared()  # this block has read the last row's sums; with a lag the last turn's barrier did
        launch_dependents()  # the final sums' blocks may start on multiprocessors that this kernel leaves
        wait_copies(0)  # no copy may still write to this memory
        sums = cuda.shared.array(0, dtype, alignment=16)
        if weighted and for_columns():
            finish_weight(
                sums, sums_weight, parameters, weight, eps, grad_weight, part_weight,
                cluster, group, thread, offset, first,
            )  # fmt: skip
        if biased and for_columns():
            finish_bias(
                sums, sums_bias, parameters, weight, eps, grad_bias, part_bias,
                cluster, group, thread, offset, first,
            )  # fmt: skip
        if gathered:
            cluster_arrive_shared()
            cluster_wait()  # all blocks' sums are in shared memory before a block reads them
            if weighted:
                gather_weight(sums, grad_weight)
            if biased:
                gather_bias(sums, grad_bias)
            cluster_arrive_shared()
            cluster_wait()  # a block's shared memory must live until the other blocks have read its sums
        if blocks > 1 and lag == 0:
            cluster_wait()  # the same for the row sums in the exchange buffer

    return backward_pipelined
