"""Normalise several rows per block, each by its own warps, with one barrier for both sums.

Idea: a block is (threads per row, rows). Each warp computes the sum and the squares of its own part of a row, and after
one barrier each warp merges those of all warps of its row (`stages.grouped`). A row of one warp needs no barrier;
several short rows share a warp.
Moves: x once, the output once.
Bound by: memory. Each multiprocessor has 32 to 96 KB in flight.
Measured: 0.97 to 1.03 of a copy for rows of up to 32 or 64 KB on an H200 (records). The L2 hint of the loads gives 0.01
to 0.04 of that (`engine.device.caching`); a kernel without statistics would gain 0.01 to 0.03 at n2 = 768 and 1024 and
nothing from 4096 on.
Parameters come after the sums, vector by vector. Where registers have room for them they come beside the elements
instead, which saves a wait (`RegisterLayout.early`): few rows take up to 15 % less time, many rows 1 to 3 %.
Tried without gain: stores after all of their loads, other hints. Worse: persistent blocks (0.93), x read again instead
of held in registers (0.98).
Many short rows that are no whole vectors come as tiles (`forward.short_rows`). Longer ones that begin or end in the
middle of a vector (odd n2, views with an offset): `stages.shifted` loads and stores them by whole vectors all the same.
Their blocks stay for several rows, which share the parameters that the block has staged.
A residual is added where the row is fetched, and the sum stored from there (`stages.residual`). A gate is fetched
beside the row, and multiplies it before the first pass or before the second one (`stages.gate`). Parameters per sample
come to shared memory, once for a block's rows (`stages.sampled`).
Next: rows that no block can hold.
"""

from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from normlab.engine import accumulator, cast, cuda, flat, same_lengths, shift_of, store
from normlab.kernels.forward import layouts, row_counts, shifted_rows, short_rows, step_4_column_blocks
from normlab.kernels.forward.layouts import RegisterLayout
from normlab.kernels.forward.operands import ROW_OPERANDS
from normlab.kernels.forward.tables import TABLES
from normlab.kernels.lengths import lengths_with
from normlab.kernels.plan import FLOAT32_ALONE, GRID_LIMIT, Chains, Chosen, Device, Plan, Refusal, Work, longest
from normlab.kernels.problem import ForwardProblem
from normlab.kernels.step import ForwardStep
from normlab.kernels.tiles import TileLayout
from normlab.stages.gate import Gate, row_gater
from normlab.stages.grouped import group_merger, group_size
from normlab.stages.output import row_parameter_loader, row_writer
from normlab.stages.residual import residual_adder
from normlab.stages.row_group import leave
from normlab.stages.row_map import RowMap, place_finder
from normlab.stages.sampled import SampledMap, rows_finder, sample_stager
from normlab.stages.shifted import ShiftedMap, outside_filler, parameter_stager, shifted_row_loader, shifted_row_writer
from normlab.stages.vector import BYTES, row_loader, shifts_alike, widest
from normlab.stages.warp import lanes_sum

FEW_WHY = "few short rows: in registers from the start; many come as tiles (`forward.short_rows`), with the same bits"


class Extras(NamedTuple):
    """What a kernel does beside a norm of rows; its fields are constants of the kernel.

    offset: of the weight (`stages.output`). row_map, gate_map: where the rows of x and of the gate lie. gating: where a
    gate goes, or None.
    sampled: parameters are a row per sample (`stages.sampled`); None where all rows have the same.
    """

    offset: float = 0.0
    row_map: RowMap | None = None
    gating: Gate | None = None
    gate_map: RowMap | None = None
    sampled: SampledMap | None = None


PLAIN = Extras()


class Phases(NamedTuple):
    """The device functions that differ between aligned rows (`stages.vector`) and shifted ones (`stages.shifted`).

    extent_of(x, row, n2): the row's length n2, or (elements of its first vector before it, n2), as of `group_size`.
    write_row takes early parameters, too; shifted rows ignore them, because theirs lie in shared memory.
    rows_of(output, weight): (begin, end, step) of the rows that the block's first row group takes, one after another,
    and the end of the rows that the block has. apart: the distance to the row of the next row group. arrive(): wait for
    parameters that `stage` has started to copy.
    """

    extent_of: Any
    load_row: Any
    fill_outside: Any
    write_row: Any
    stage: Any
    rows_of: Any
    apart: int
    arrive: Any


@cuda.jit(device=True)
def arrived():
    """Do nothing: threads read the parameters from global memory, or the block has staged them."""


@cache
def aligned_phases(layout: RegisterLayout, dtype, extras: Extras, load_parameters: Any = None) -> Phases:
    """Return those of rows that begin at a vector. load_parameters: as of `row_writer`."""
    load_aligned = row_loader(layout.thread_map)
    write_aligned = row_writer(layout.thread_map, dtype, extras.offset, load_parameters, layout.early)
    place_of, rows = place_finder(extras.row_map), layout.rows

    @cuda.jit(device=True)
    def extent_of(x, row, n2):
        return n2

    @cuda.jit(device=True)
    def load_row(values, x, row, extent, first):
        load_aligned(values, x, place_of(row), first)

    @cuda.jit(device=True)
    def fill_outside(values, extent, first, value):
        """Do nothing: an aligned row begins and ends between two vectors."""

    @cuda.jit(device=True)
    def write_row(values, held, x, output, index, weight, bias, center, scale):
        write_aligned(values, held, output, index, weight, bias, center, scale)

    @cuda.jit(device=True)
    def stage(weight, bias, output, row):
        """Do nothing: threads read the parameters from global memory."""

    @cuda.jit(device=True)
    def rows_of(output, weight):
        row = cuda.blockIdx.x * rows
        return row, row + 1, 1, output.shape[0]  # one row: blocks that stay for further rows were slower

    return Phases(extent_of, load_row, fill_outside, write_row, stage, rows_of, 1, arrived)


@cache
def sampled_phases(layout: RegisterLayout, dtype, extras: Extras) -> Phases:
    """Return those of rows whose block stages the parameters of their sample."""
    stage, arrive, load_parameters = sample_stager(extras.sampled, dtype, extras.offset)
    find_rows = rows_finder(layout.rows)

    @cuda.jit(device=True)
    def rows_of(output, weight):
        first, end = find_rows(output, weight)
        return first, first + 1, 1, end

    aligned = aligned_phases(layout, dtype, extras, load_parameters)
    return aligned._replace(stage=stage, rows_of=rows_of, arrive=arrive)


@cache
def shifted_phases(layout: RegisterLayout, shifted: ShiftedMap, dtype) -> Phases:
    """Return those of rows that may begin anywhere. All rows of a block begin alike, so it stages parameters once."""
    period, rows = shifted.thread_map.width, layout.rows  # every `period`-th row begins alike
    load_row, fill_outside = shifted_row_loader(shifted), outside_filler(shifted)
    write_shifted, together = shifted_row_writer(shifted, dtype), rows * period

    @cuda.jit(device=True)
    def extent_of(x, row, n2):
        return shift_of(flat(x), row * n2, period), n2

    @cuda.jit(device=True)
    def rows_of(output, weight):
        block, n1 = cuda.blockIdx.x, output.shape[0]
        begin = block // period * together + block % period
        return begin, n1, cuda.gridDim.x * rows, n1  # the grid: a multiple of period

    @cuda.jit(device=True)
    def write_row(values, held, x, output, index, weight, bias, center, scale):
        write_shifted(values, x, output, index, weight, bias, center, scale)

    stage = parameter_stager(shifted, rows)
    return Phases(extent_of, load_row, fill_outside, write_row, stage, rows_of, period, arrived)


@cache
def build(dtype, layout: RegisterLayout, extras: Extras = PLAIN):
    """Return the kernel for an accumulator dtype and a layout.

    Without a residual the kernel's residual and new_residual are None, and without a gate its gate.
    """
    thread_map, rows, resident, shifted, early = layout
    vectors, width, span, _ = thread_map.loop
    elements, warps, filled = thread_map.elements, thread_map.warps, thread_map.filled
    anywhere = shifted is not None
    size, merge = group_size(thread_map, 1, anywhere), group_merger(thread_map, 1, 1, anywhere)
    sum_of_lanes = lanes_sum(thread_map.lanes)
    if anywhere:
        phases = shifted_phases(layout, shifted, dtype)
    else:
        phases = (sampled_phases if extras.sampled else aligned_phases)(layout, dtype, extras)
    extent_of, load_row, fill_outside, write_row, stage, rows_of, apart, arrive = phases
    add_residual = residual_adder(thread_map, dtype)
    load_gates, gate_row = row_gater(thread_map, dtype, extras.gate_map)
    load_parameters = row_parameter_loader(thread_map, extras.offset)
    parameters_held = elements if early and not anywhere else 1
    gates_held, after = (1, True) if extras.gating is None else (elements, extras.gating.after_norm)
    halves = 2 if anywhere else 1  # of the exchange buffer
    stage_beside = anywhere and early
    # A barrier for staged parameters. Rows of several warps have the exchange's, which comes next.
    barrier = anywhere and warps == 1

    @same_lengths(lengths_with(x=extras.row_map, gate=extras.gate_map))
    @cuda.jit(launch_bounds=(thread_map.threads * rows, resident))
    def forward_one_barrier(x, residual, gate, weight, bias, eps, factor, new_residual, output, mean, invvar):
        # Prologue: thread (i, group) works on the block's row number `group`. Its first column there is i * width.
        # The exchange buffer is (phases, rows, sums, warps); two phases if the block takes further rows.
        exchange = cuda.shared.array((halves, rows, 2, warps), dtype)
        values = cuda.local.array(elements, dtype)
        gates = cuda.local.array(gates_held, dtype)
        gammas = cuda.local.array(parameters_held, dtype)
        betas = cuda.local.array(parameters_held, dtype)
        n2, group, warp, first = output.shape[1], cuda.threadIdx.y, cuda.threadIdx.x >> 5, cuda.threadIdx.x * width
        top, end, step, limit = rows_of(output, weight)  # of the block's first row group
        phase = 0
        if not stage_beside:
            stage(weight, bias, output, top)
            if barrier:
                cuda.syncthreads()  # the block's parameters are in shared memory before a thread reads them
        while top < end:
            row = top + group * apart
            extent = extent_of(x, row, n2)
            live = row < limit  # false in the last block's spare warps, which must still reach the barrier

            # Fetch: the whole row goes to registers, with all loads in flight at once.
            for k in range(elements):
                values[k] = cast(0, exchange)
            if live:
                load_row(values, x, row, extent, first)
                load_gates(gates, gate, row, first)
                if early and not anywhere:
                    load_parameters(gammas, betas, weight, bias, first, n2)
                add_residual(values, residual, new_residual, row, first)
                if not after:
                    gate_row(values, gates, gate)
            if stage_beside:  # while the row is on its way: one wait for both
                stage(weight, bias, output, top)
                if barrier:
                    cuda.syncthreads()

            # First pass, over registers: the mean and then the squares of this warp's own values.
            center = cast(0, exchange)
            if mean is not None:
                total = cast(0, exchange)
                for k in range(elements):
                    total += values[k]
                total = sum_of_lanes(total)
                # the warp's mean; max: it may have no values
                center = total / cast(max(size(extent, warp), 1), exchange)
                fill_outside(values, extent, first, center)  # a deviation of 0 outside of the row
            square_sum = cast(0, exchange)
            for v in range(vectors):
                # RMSNorm: a 0 past the end adds nothing
                if mean is None or anywhere or v < filled or first + v * span < n2:
                    for k in range(width):
                        deviation = values[v * width + k] - center
                        square_sum += deviation * deviation
            square_sum = sum_of_lanes(square_sum)

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
                # Parameters that are not held come from L1 or L2 now.
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
    return Plan("one_barrier", (work,), chosen.why, row_chains_of(layout), values=values, layout=layout)


def register_layout_of(tile: TileLayout) -> RegisterLayout:
    """Return the layout of few rows of those that are tiles if they are many: the bits are the same."""
    thread_map = short_rows.few_map_of(tile)
    return RegisterLayout(thread_map, layouts.LEAST_THREADS // thread_map.threads)


def row_chains_of(layout: RegisterLayout) -> Chains:
    """Return the chains along a row: a thread's elements, then five levels over the lanes, then the row's warps."""
    return Chains(layout.thread_map.elements, 5 + (layout.thread_map.warps - 1).bit_length())


def _chains(n2: int) -> Chains:
    """Return the longest chains of all layouts for n2 columns, whatever the dtype, the alignment and the norm."""
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
    own = [row_chains_of(chosen.layout) for chosen in found if chosen is not None]
    for input_bytes, output_bytes, rms in product((2, 4), (2, 4), (False, True)):
        sizes = input_bytes, output_bytes
        tile = short_rows.layout_for(n2, min(n2 & -n2, BYTES // max(sizes)), sizes, rms)
        own += [] if tile is None else [row_chains_of(register_layout_of(tile))]
    return longest(*own, step_4_column_blocks.STEP.row_chains(n2))


STEP = ForwardStep(
    name="one_barrier",
    summary="several rows per block, both sums with one barrier",
    ways=(short_rows.plan, plan, step_4_column_blocks.plan),
    row_chains=_chains,
    statistics="grouped",
)
