"""Normalise several rows per block, each by its own warps, with one barrier for both sums.

Idea: a block is (threads per row, rows). Each warp computes the sum and the squares of its own part of a row, and after
one barrier each warp merges those of all warps of its row (`stages.grouped`). A row of one warp needs no barrier;
several short rows share a warp.
Moves: x once, the output once.
Bound by: memory. Each multiprocessor has about 40 to 128 KB in flight (`normlab explain --compile`).
Measured: 0.97 to 1.03 of a copy for rows of 768 columns up to 32 or 64 KB on an H200 (records). A kernel without
statistics would gain 0.01 to 0.03 at 768 and 1,024 columns, and nothing from 4,096 on.
Tried: stores after all of their loads are as fast. Persistent blocks (0.93), and x read again instead of held in
registers (0.98), are slower.
Next: rows that no block can hold.
"""

from functools import cache
from itertools import product
from typing import Any

import numpy as np

from normlab.engine import accumulator, cast, cuda, same_lengths, store
from normlab.kernels.forward import layouts, row_counts, shifted_rows, short_rows, step_4_column_blocks
from normlab.kernels.forward.layouts import RegisterLayout
from normlab.kernels.forward.operands import ROW_OPERANDS
from normlab.kernels.forward.row_phases import PLAIN, Extras, phases_for
from normlab.kernels.forward.tables import TABLES
from normlab.kernels.lengths import lengths_with
from normlab.kernels.plan import (
    FLOAT32_ALONE,
    GRID_LIMIT,
    Chains,
    Chosen,
    Device,
    Plan,
    Refusal,
    Work,
    longest,
    row_chains_of,
)
from normlab.kernels.problem import ForwardProblem
from normlab.kernels.step import ForwardStep
from normlab.kernels.tiles import TileLayout
from normlab.stages.gate import row_gater
from normlab.stages.grouped import group_merger, group_size
from normlab.stages.residual import residual_adder
from normlab.stages.row_group import leave
from normlab.stages.sampled import SampledMap
from normlab.stages.vector import BYTES, shifts_alike, widest
from normlab.stages.warp import lanes_sum

FEW_WHY = "few short rows: in registers from the start; many come as tiles (`forward.short_rows`), with the same bits"


@cache
def own_moments_taker(layout: RegisterLayout, fill_outside: Any) -> Any:
    """Return the device function `own_moments(values, extent, n2, first, warp, mean) -> (sum, mean, squares)`.

    They are those of the warp's own values of a row, in registers. Every lane gets them. mean: None for RMSNorm: then
    the squares are of the values, not of their deviations, and sum and mean are 0. fill_outside: of `Phases`.
    """
    thread_map, anywhere = layout.thread_map, layout.shifted is not None
    vectors, width, span, _ = thread_map.loop
    elements, filled = thread_map.elements, thread_map.filled
    size, sum_of_lanes = group_size(thread_map, 1, anywhere), lanes_sum(thread_map.lanes)

    @cuda.jit(device=True)
    def own_moments(values, extent, n2, first, warp, mean):
        total, center = cast(0, values), cast(0, values)
        if mean is not None:
            for k in range(elements):
                total += values[k]
            total = sum_of_lanes(total)
            center = total / cast(max(size(extent, warp), 1), values)  # max: the warp may have no values
            fill_outside(values, extent, first, center)  # a deviation of 0 outside of the row
        square_sum = cast(0, values)
        for v in range(vectors):
            # RMSNorm: a 0 past the end adds nothing
            if mean is None or anywhere or v < filled or first + v * span < n2:
                for k in range(width):
                    deviation = values[v * width + k] - center
                    square_sum += deviation * deviation
        return total, center, sum_of_lanes(square_sum)

    return own_moments


@cache
def build(dtype: Any, layout: RegisterLayout, extras: Extras = PLAIN) -> Any:
    """Return the kernel for an accumulator dtype and a layout.

    Without a residual the kernel's residual and new_residual are None, and without a gate its gate.
    """
    thread_map, rows, resident, shifted, _ = layout
    width, elements, warps = thread_map.width, thread_map.elements, thread_map.warps
    anywhere, phases = shifted is not None, phases_for(layout, dtype, extras)
    rows_of, extent_of, load_row, write_row = phases.rows_of, phases.extent_of, phases.load_row, phases.write_row
    stage, stage_beside, load_parameters, arrive = phases.parameters
    apart, parameters_held = phases.apart, phases.parameters_held
    own_moments = own_moments_taker(layout, phases.fill_outside)
    merge = group_merger(thread_map, 1, 1, anywhere)
    add_residual = residual_adder(thread_map, dtype)
    load_gates, gate_row = row_gater(thread_map, dtype, extras.gate_map)
    gates_held, after = (1, True) if extras.gating is None else (elements, extras.gating.after_norm)
    halves = 2 if anywhere else 1  # of the exchange buffer: with two, a block may take further rows

    @same_lengths(lengths_with(x=extras.row_map, gate=extras.gate_map))
    @cuda.jit(launch_bounds=(thread_map.threads * rows, resident))
    def forward_one_barrier(x, residual, gate, weight, bias, eps, factor, new_residual, output, mean, invvar):
        # Prologue: thread (i, group) works on the block's row number `group`. Its first column there is i * width.
        exchange = cuda.shared.array((halves, rows, 2, warps), dtype)  # of (phases, rows, sums, warps)
        values = cuda.local.array(elements, dtype)
        gates = cuda.local.array(gates_held, dtype)
        gammas = cuda.local.array(parameters_held, dtype)
        betas = cuda.local.array(parameters_held, dtype)
        n2, group, warp, first = output.shape[1], cuda.threadIdx.y, cuda.threadIdx.x >> 5, cuda.threadIdx.x * width
        top, end, step, limit = rows_of(output, weight)  # of the block's first row group
        phase = 0
        # The block keeps parameters in shared memory if its rows may begin anywhere, or are a sample's.
        stage(weight, bias, output, top)
        while top < end:  # a single turn, except where rows may begin anywhere: there they share staged parameters
            row = top + group * apart
            extent = extent_of(x, row, n2)
            live = row < limit  # false in the last block's spare row groups, which must still reach the barrier

            # Fetch: the whole row goes to registers, with all loads in flight at once.
            for k in range(elements):
                values[k] = cast(0, exchange)
            if live:
                load_row(values, x, row, extent, first)
                load_gates(gates, gate, row, first)
                load_parameters(gammas, betas, weight, bias, first, n2)  # where registers have room (`forward.early`)
                add_residual(values, residual, new_residual, row, first)  # and store the sum, which is the row now
                if not after:
                    gate_row(values, gates, gate)
            stage_beside(weight, bias, output, top)

            # First pass, over registers: this warp's own sum, and the squares about its own mean.
            total, center, square_sum = own_moments(values, extent, n2, first, warp, mean)

            # Exchange: one barrier for both sums.
            if warps > 1:  # else the warp's moments are the row's
                if mean is not None:
                    leave(exchange, phase, group, 0, warp, total)  # at sum 0, for the other warps of the row
                leave(exchange, phase, group, 1, warp, square_sum)
                cuda.syncthreads()  # all warps of a row have written their sums before a warp reads them
                center, square_sum = merge(exchange, phase, group, extent, factor, mean)
                phase = halves - 1 - phase  # other warps may still read these sums
            scale = cuda.libdevice.rsqrtf(square_sum * factor + eps)  # factor: 1 / n2

            # Second pass, over registers: normalise and store.
            arrive()
            if live:
                if after:
                    gate_row(values, gates, gate)
                # Parameters that are not held come from L1, L2 or shared memory now.
                write_row(values, (gammas, betas), x, output, (row, first), weight, bias, center, scale)

                # Epilogue: one thread per row stores the statistics.
                if cuda.threadIdx.x == 0:
                    if mean is not None:
                        store(mean, row, center)
                    store(invvar, row, scale)
            top += step

    return forward_one_barrier


def plan(problem: ForwardProblem, device: Device) -> Plan | Refusal:
    """Return the plan, if the registers of a block hold a row."""
    n1, n2 = problem.shape
    if problem.in_float64:
        return FLOAT32_ALONE
    rows = (*problem.reading, *problem.writing)
    itemsize = max(array.dtype.itemsize for array in rows)
    width, rms = widest(n2, *problem.matrices), problem.mean is None
    beside = problem.residual is not None or problem.gate is not None
    chosen, plain = None, not (beside or problem.offset or problem.row_map or problem.sampled)
    # Many short rows that are no whole vectors come as tiles (`short_rows.plan`). Few of them have the same bits here.
    tile = short_rows.layout_of(problem)
    if not isinstance(tile, Refusal):
        chosen = Chosen(register_layout_of(tile), FEW_WHY)
    # Vectors of half the width are mostly as fast as shifted rows, if registers hold the row (else `kernels.halves`).
    # Shifted rows know x alone, without an offset or a row map.
    elif plain and 2 * width < BYTES // itemsize:
        sizes = problem.x.dtype.itemsize, problem.output.dtype.itemsize
        alike = shifts_alike(BYTES // itemsize, problem.x, problem.output)
        chosen = shifted_rows.layout_for(n2, *sizes, alike, rms)
    chosen = chosen or layouts.rows_for(n2, width, itemsize, rms, beside, problem.sampled)
    if chosen is None:
        return Refusal(f"the registers of a block do not hold {n2:,} columns")
    layout, samples = chosen.layout, problem.weight.shape[0] if problem.sampled else 1
    if problem.sampled:
        layout = row_counts.with_fewer_rows(layout, n1 // samples)
    else:
        given = [array is not None for array in (problem.weight, problem.bias, problem.residual, problem.gate)]
        layout = row_counts.for_rows(layout, n1, sum(given[:2]), sum(given[2:]), device)
    grid, shared = -(-n1 // layout.rows), 0
    if layout.shifted:
        grid = row_counts.shifted_grid(layout, n1, device)
        shared = ((problem.weight is not None) + (problem.bias is not None)) * layout.shifted.staged_bytes
    sampled = None
    if problem.sampled:
        sampled = SampledMap(layout.thread_map, layout.rows, problem.weight.dtype.itemsize)
        grid, shared = sampled.blocks(n1, samples), sampled.shared_bytes
    if grid > GRID_LIMIT or (problem.sampled and n1 > GRID_LIMIT):
        return Refusal(f"{n1:,} rows take more blocks than the {GRID_LIMIT:,} of a grid")
    if shared + layouts.STATIC_BYTES > device.shared_bytes:
        return Refusal(f"the shared memory of a block does not hold a sample's parameters for {n2:,} columns")
    extras = Extras(problem.offset, problem.row_map, problem.gating, problem.gate_map, sampled)
    options = accumulator(problem.invvar), layout, extras
    work = Work(build, options, grid, (layout.thread_map.threads, layout.rows), ROW_OPERANDS, shared)
    values = (("factor", np.float32(1 / n2)),)
    return Plan("one_barrier", (work,), chosen.why, row_chains_of(layout.thread_map), values=values, layout=layout)


def register_layout_of(tile: TileLayout) -> RegisterLayout:
    """Return the layout of few rows of those that are tiles if they are many: the bits are the same."""
    thread_map = short_rows.few_map_of(tile)
    return RegisterLayout(thread_map, layouts.LEAST_THREADS // thread_map.threads)


def _chains(n2: int) -> Chains:
    """Return the longest chains of all plain norms' layouts for n2 columns, whatever the dtype and the alignment."""
    found = [
        layouts.rows_for(n2, width, itemsize, rms)
        for itemsize, rms in TABLES
        for width in (1, 2, 4, 16 // itemsize)
        if n2 % width == 0
    ]
    found += [
        shifted_rows.layout_for(n2, input_bytes, output_bytes, True, rms)
        for input_bytes, output_bytes, rms in product((2, 4), (2, 4), (False, True))
    ]
    own = [row_chains_of(chosen.layout.thread_map) for chosen in found if chosen is not None]
    for input_bytes, output_bytes, rms in product((2, 4), (2, 4), (False, True)):
        sizes = input_bytes, output_bytes
        tile = short_rows.layout_for(n2, min(n2 & -n2, BYTES // max(sizes)), sizes, rms)
        own += [] if tile is None else [row_chains_of(short_rows.few_map_of(tile))]
    return longest(*own, step_4_column_blocks.STEP.row_chains(n2))


STEP = ForwardStep(
    name="one_barrier",
    summary="several rows per block, both sums with one barrier",
    ways=(short_rows.plan, plan, step_4_column_blocks.plan),
    row_chains=_chains,
    statistics="grouped",
)
