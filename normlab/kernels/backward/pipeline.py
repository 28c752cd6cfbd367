"""The pipelined backward kernel, built for a layout and a kind; `step_3_pipelined` says what it does and why.

From the first row to the last, a team of one block waits for itself alone, at the barrier of its own number: ring and
board have places for each team. The whole block meets before, for the parameters, and behind, for the columns' sums.
"""

from functools import cache
from typing import Any

from normlab.engine import (
    cast,
    cluster_arrive_shared,
    cluster_rank,
    cluster_sync,
    cluster_wait,
    commit_copies,
    cuda,
    load,
    store,
    team_sync,
    wait_copies,
)
from normlab.kernels.backward.passes import Kind, fetcher, first_pass, parameter_keeper, second_pass
from normlab.kernels.backward.ring import BITS, Layout
from normlab.stages.gradient import leave_means
from normlab.stages.recompute import clamp_by_magnitude
from normlab.stages.team import collector, leave
from normlab.stages.warp import warp_sum_butterfly


@cache
def build(dtype: Any, layout: Layout, kind: Kind) -> Any:
    """The kernel; dtype: the accumulator's."""
    deal, rows, blocks, stages, lag, saved_bytes, grad_bytes = layout
    rms, weighted, biased = kind.rms, kind.weighted, kind.biased
    elements, columns, threads, width, warps = deal.elements, deal.columns, deal.threads, deal.width, deal.warps
    saved_bits, grad_bits = BITS[saved_bytes], BITS[grad_bytes]
    weight_sums, bias_sums = (elements if weighted else 1), (elements if biased else 1)
    in_flight = stages - 1 - lag
    turns, fetch_sums, add_up = collector(warps, blocks)
    places = 2 * turns  # of both sums
    alone = warps * blocks == 1  # a warp has its row to itself
    keep_parameters, fetch = parameter_keeper(layout, kind), fetcher(layout)
    pass_1, pass_2 = first_pass(layout, kind, dtype), second_pass(layout, kind, dtype)
    finish = finisher(layout, kind)

    @cuda.jit(device=True)
    def means(parts, lacking, mean_factor):
        mean_gx = (add_up(parts, 0) + lacking) * mean_factor
        if rms:
            return mean_gx, cast(0, parts)
        return mean_gx, add_up(parts, turns) * mean_factor

    @cuda.jit(launch_bounds=(layout.threads, 1))
    def backward_pipelined(
        grad_output, saved, mean, invvar, weight, bias, eps, mean_factor, row_sums, grad_input, part_weight, part_bias
    ):
        board = cuda.shared.array((2, rows, 2, warps), dtype)
        saved_ring = cuda.shared.array(0, saved_bits, alignment=16)
        grad_ring = cuda.shared.array(0, grad_bits, alignment=16)
        parameters = cuda.shared.array(0, dtype, alignment=16)
        parts = cuda.local.array(places, dtype)
        sums_weight = cuda.local.array(weight_sums, dtype)
        sums_bias = cuda.local.array(bias_sums, dtype)
        for k in range(weight_sums):
            sums_weight[k] = cast(0, board)
        for k in range(bias_sums):
            sums_bias[k] = cast(0, board)
        for k in range(places):
            parts[k] = cast(0, board)
        n1, n2 = saved.shape
        thread = cuda.threadIdx.x
        team = cuda.threadIdx.y
        warp = thread >> 5
        start = 0  # of the columns of this block
        cluster = cuda.blockIdx.x
        clusters = cuda.gridDim.x
        if blocks > 1:
            start = cluster_rank() * columns
            cluster //= blocks
            clusters //= blocks
        place = thread * width
        first = start + place
        stride = clusters * rows
        rare = keep_parameters(parameters, weight, bias, eps, team, place, first, n2)

        ahead = cluster * rows + team  # the row to fetch next
        for slot in range(stages - 1 + lag):
            if ahead < n1:
                fetch(saved_ring, grad_ring, saved, grad_output, ahead, (slot * rows + team) * columns + place, first)
            commit_copies()
            ahead += stride
        cuda.syncthreads()  # the parameters are in shared memory before other teams read them

        top = cluster * rows
        row = top + team
        center = cast(0, board)
        scale = cast(0, board)
        lacking = cast(0, board)
        if row < n1:
            scale = load(invvar, row)
            if row_sums is not None:
                lacking = load(row_sums, (0, row))
            if mean is not None:
                center = load(mean, row)
        slot = 0
        phase = 0
        last_row, last_at, last_center, last_scale = n1, 0, center, scale  # with a lag: the row of the second pass
        last_lacking = lacking
        sum_gx = cast(0, board)
        sum_g = cast(0, board)
        while top < n1 + lag * stride:
            at = (slot * rows + team) * columns + place
            if lag == 0:  # the stage of the row before is free
                free = stages - 1 if slot == 0 else slot - 1
                if ahead < n1:
                    fetch(
                        saved_ring, grad_ring, saved, grad_output, ahead, (free * rows + team) * columns + place, first
                    )
                commit_copies()
                ahead += stride
            elif alone:
                parts[0], parts[turns] = sum_gx, sum_g
            elif top > cluster * rows:  # in the first turn, nobody has left sums yet
                fetch_sums(parts, 0, board, phase, team, 0)
                if not rms:
                    fetch_sums(parts, turns, board, phase, team, 1)
            next_center = cast(0, board)
            next_scale = cast(0, board)
            next_lacking = cast(0, board)
            if row + stride < n1:
                next_scale = load(invvar, row + stride)
                if row_sums is not None:
                    next_lacking = load(row_sums, (0, row + stride))
                if mean is not None:
                    next_center = load(mean, row + stride)
            wait_copies(in_flight)
            sum_gx = cast(0, board)
            sum_g = cast(0, board)
            if row < n1:
                sum_gx, sum_g = pass_1(
                    saved_ring, grad_ring, parameters, saved, grad_output, weight, bias, mean,
                    at, place, first, center, scale, rare, sums_weight, sums_bias,
                )  # fmt: skip
            sum_gx = warp_sum_butterfly(sum_gx)
            if not rms:
                sum_g = warp_sum_butterfly(sum_g)
            phase = 1 - phase
            if lag == 1:  # the sums of the row before have come while this row's were made
                mean_gx, mean_g = means(parts, last_lacking, mean_factor)
            if not alone:
                leave(board, phase, team, 0, warp, sum_gx)
                if not rms:
                    leave(board, phase, team, 1, warp, sum_g)
                if blocks > 1:
                    cluster_arrive_shared()
                elif lag == 0:
                    team_sync(team + 1, threads)  # the team's sums are on the board; no team waits for another
            if lag == 0:
                if not alone:
                    if blocks > 1:
                        cluster_wait()
                    fetch_sums(parts, 0, board, phase, team, 0)
                    if not rms:
                        fetch_sums(parts, turns, board, phase, team, 1)
                else:
                    parts[0], parts[turns] = sum_gx, sum_g
                mean_gx, mean_g = means(parts, lacking, mean_factor)
                if row < n1:
                    pass_2(
                        saved_ring, grad_ring, parameters, saved, grad_output, weight, bias, mean,
                        at, place, first, center, scale, mean_gx, mean_g, grad_input, row,
                    )  # fmt: skip
                    if first == 0:
                        leave_means(row_sums, row, mean_g, mean_gx)
            else:
                if last_row < n1:
                    pass_2(
                        saved_ring, grad_ring, parameters, saved, grad_output, weight, bias, mean,
                        last_at, place, first, last_center, last_scale, mean_gx, mean_g, grad_input, last_row,
                    )  # fmt: skip
                    if first == 0:
                        leave_means(row_sums, last_row, mean_g, mean_gx)
                    if ahead < n1:
                        fetch(saved_ring, grad_ring, saved, grad_output, ahead, last_at, first)
                    ahead += stride
                    commit_copies()
                elif top > cluster * rows:
                    commit_copies()
                if not alone:
                    if blocks > 1:
                        cluster_wait()
                    else:
                        team_sync(team + 1, threads)
                last_row, last_at, last_center, last_scale = row, at, center, scale
                last_lacking = lacking
            row += stride
            top += stride
            center = next_center
            scale = next_scale
            lacking = next_lacking
            slot += 1
            if slot == stages:
                slot = 0

        wait_copies(0)
        sums = cuda.shared.array(0, dtype, alignment=16)
        if weighted:
            cuda.syncthreads()  # nobody reads the ring any more: it becomes the teams' sums
            finish(sums, sums_weight, part_weight, cluster, team, thread, first, weight, eps)
        if biased:
            cuda.syncthreads()  # the last sums have been read
            finish(sums, sums_bias, part_bias, cluster, team, thread, first, None, eps)
        if blocks > 1:
            cluster_sync()  # no block ends while others read from its board

    return backward_pipelined


@cache
def finisher(layout: Layout, kind: Kind) -> Any:
    """The device function `finish(…)`: the teams' sums of the columns, one after another, into a row of `parts`.

    divisor: the weight by whose clamped elements the sums are divided when recomputing, or None.
    """
    deal, rows = layout.deal, layout.rows
    elements, columns, span, width, vectors, whole = (
        deal.elements, deal.columns, deal.span, deal.width, deal.vectors, deal.whole,
    )  # fmt: skip
    threads = deal.threads
    memory_efficient = kind.memory_efficient

    @cuda.jit(device=True)
    def finish(sums, mine, parts, cluster, team, thread, first, divisor, eps):
        if team > 0:
            for k in range(elements):
                sums[(team - 1) * columns + k * threads + thread] = mine[k]
        cuda.syncthreads()  # all teams' sums are in shared memory before the first team adds them up
        if team == 0:
            for v in range(vectors):
                if whole or first + v * span < parts.shape[1]:
                    for k in range(width):
                        total = mine[v * width + k]
                        for other in range(rows - 1):
                            total += sums[other * columns + (v * width + k) * threads + thread]
                        if memory_efficient and divisor is not None:
                            total /= clamp_by_magnitude(load(divisor, first + v * span + k), eps)
                        store(parts, (cluster, first + v * span + k), total)

    return finish
