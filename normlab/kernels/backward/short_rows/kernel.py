"""Take tiles of short rows one after another: fetch the next one, take this one's rows, store their gradients.

A team takes a tile together: a warp, or all warps of the block where rows are few (`TileLayout.warps_per_tile`).
"""

from functools import cache
from typing import Any

from normlab.engine import cast, commit_copies, cuda, flat, int32, launch_dependents, same_lengths, wait_copies
from normlab.kernels.backward.pipelined.kind import Kind
from normlab.kernels.backward.pipelined.operands import Sums
from normlab.kernels.backward.short_rows.columns import columns_adder
from normlab.kernels.backward.short_rows.rows import (
    Memory,
    Operands,
    Parameters,
    Place,
    parameters_loader,
    rows_taker,
)
from normlab.kernels.lengths import LENGTHS
from normlab.kernels.tiles import STAGES, TileLayout
from normlab.stages.ahead import BITS
from normlab.stages.line_tile import line_fetchers, line_storers
from normlab.stages.vector import WARP

# Rows that a lane group takes together, a power of two, by whether the backward starts from the output: then four would
# spill. LayerNorm of bfloat16 from the input, 161 columns: 0.90 of a copy, two rows 0.87 (H200).
AT_ONCE = {False: 4, True: 2}


@cache
def build(dtype: Any, layout: TileLayout, kind: Kind) -> Any:
    """Return the kernel for an accumulator dtype, a layout and a kind of backward."""
    elements, rows, width = layout.thread_map.elements, layout.rows, layout.width
    saved_bits, grad_bits, result_bits = BITS[layout.saved_bytes], BITS[layout.grad_bytes], BITS[layout.result_bytes]
    lanes, neighbours = layout.lanes, layout.neighbours
    fetch, take_tile, add_up = fetcher(layout, kind), tile_taker(layout, kind, dtype), columns_adder(layout, kind)
    load_parameters = parameters_loader(layout, kind)
    tiles_at_once, warps_per_tile, turns_per_warp = layout.tiles_at_once, layout.warps_per_tile, layout.turns_per_warp
    wait_for_team = team_barrier(layout)

    @same_lengths(LENGTHS)
    @cuda.jit(launch_bounds=(layout.threads, layout.resident))
    def backward_short_rows(
        grad_output, saved, mean, invvar, weight, bias, eps, factor, row_sums, grad_input, grad_weight, grad_bias,
        part_weight, part_bias,
    ):  # fmt: skip
        # Prologue: empty sums, the parameters of this lane's columns.
        memory = Memory(
            cuda.shared.array(0, saved_bits, alignment=16),
            cuda.shared.array(0, grad_bits, alignment=16),
            cuda.shared.array(0, result_bits, alignment=16),
            cuda.shared.array(0, dtype, alignment=16),
        )
        sums = Sums(cuda.local.array(elements, dtype), cuda.local.array(elements, dtype))
        parameters = Parameters(
            cuda.local.array(elements, dtype),
            cuda.local.array(elements, dtype),
            cuda.local.array(elements, dtype),
            cuda.local.array(elements, dtype),
        )
        for k in range(elements):
            sums.weight[k] = cast(0, invvar)
            sums.bias[k] = cast(0, invvar)
        operands = Operands(grad_output, saved, mean, invvar, weight, eps, row_sums, grad_input, factor)
        lane, warp = int32(cuda.threadIdx.x) & 31, int32(cuda.threadIdx.x) >> 5
        team, member = warp // warps_per_tile, warp % warps_per_tile
        row, column = lane // lanes * neighbours, lane % lanes * width
        turn, whole = member * turns_per_warp, saved.shape[0] // rows
        place = Place(warp, team, member * WARP + lane, turn, lane, row, column, whole)

        # The first tile travels while the parameters are loaded.
        tile = cuda.blockIdx.x * tiles_at_once + team
        stride = cuda.gridDim.x * tiles_at_once
        tiles = (saved.shape[0] + rows - 1) // rows
        fetch(operands, memory, place, 0, tile)
        commit_copies()
        load_parameters(parameters, weight, bias, eps, place.column)

        # Tile after tile.
        slot = 0
        while tile < tiles:
            wait_copies(0)
            # The team's copies of this tile have arrived, and the team has read the other stage.
            wait_for_team()
            # Into the other stage, whose last reads came before the barrier above, while this tile is worked on.
            fetch(operands, memory, place, 1 - slot, tile + stride)
            commit_copies()
            take_tile(operands, memory, place, slot, tile, parameters, sums)
            slot = 1 - slot
            tile += stride

        # Epilogue: the columns' sums.
        launch_dependents()  # the final sums' blocks may start on multiprocessors that this kernel leaves
        add_up(memory.floats, place, operands, sums, grad_weight, grad_bias, part_weight, part_bias)

    return backward_short_rows


@cache
def team_barrier(layout: TileLayout) -> Any:
    """Return the device function `wait_for_team()`: the threads wait for those that take the same tile."""

    @cuda.jit(device=True)
    def wait_for_warp():
        cuda.syncwarp()

    @cuda.jit(device=True)
    def wait_for_block():
        cuda.syncthreads()

    return wait_for_warp if layout.warps_per_tile == 1 else wait_for_block


@cache
def results_finder(layout: TileLayout) -> Any:
    """Return the device function `results_of(team, stage)`: where the results of a tile begin."""
    in_place, grads_at, results_at, elements = layout.in_place, layout.grads_at, layout.results_at, layout.tile

    @cuda.jit(device=True)
    def results_of(team, stage):
        return grads_at + stage * elements if in_place else results_at + team * elements

    return results_of


@cache
def fetcher(layout: TileLayout, kind: Kind) -> Any:
    """Return the device function `fetch(operands, memory, place, slot, tile)`.

    The team starts to copy a tile into its stage `slot`; if there is no such tile, it fetches nothing.
    """
    rows, elements, centered, threads = layout.rows, layout.tile, kind.centered, layout.warps_per_tile * WARP
    grads_at, statistics_at, statistics = layout.grads_at, layout.statistics_at, layout.statistics
    fetch_line, fetch_part = line_fetchers(elements, layout.together, threads)
    fetch_rows, fetch_last_rows = line_fetchers(rows, 1, threads)  # 4 bytes per copy: any alignment is right

    @cuda.jit(device=True)
    def fetch(operands, memory, place, slot, tile):
        n1 = operands.saved.shape[0]
        saved, grad_output = flat(operands.saved), flat(operands.grad_output)
        thread, begin, top = place.thread, tile * elements, tile * rows
        stage = place.team * STAGES + slot
        there, numbers = stage * elements, statistics_at + stage * rows * statistics
        if tile < place.whole:
            fetch_line(memory.saved, there, saved, begin, thread)
            fetch_line(memory.grads, grads_at + there, grad_output, begin, thread)
            fetch_rows(memory.floats, numbers, operands.invvar, top, thread)
            if centered:
                fetch_rows(memory.floats, numbers + rows, operands.mean, top, thread)
        elif top < n1:
            # The last tile: a copy of a whole one would read past the matrix.
            left = saved.shape[0] - begin
            fetch_part(memory.saved, there, saved, begin, thread, left)
            fetch_part(memory.grads, grads_at + there, grad_output, begin, thread, left)
            fetch_last_rows(memory.floats, numbers, operands.invvar, top, thread, n1 - top)
            if centered:
                fetch_last_rows(memory.floats, numbers + rows, operands.mean, top, thread, n1 - top)

    return fetch


@cache
def tile_taker(layout: TileLayout, kind: Kind, dtype: Any) -> Any:
    """Return the device function `take_tile(operands, memory, place, slot, tile, parameters, sums)`."""
    rows, elements, results_of = layout.rows, layout.tile, results_finder(layout)
    turns_per_warp, at_once = layout.turns_per_warp, min(layout.turns_per_warp, AT_ONCE[kind.memory_efficient])
    take_rows = rows_taker(layout, kind, dtype, at_once)
    store_line, store_part = line_storers(elements, layout.together, layout.warps_per_tile * WARP)
    wait_for_team = team_barrier(layout)

    @cuda.jit(device=True)
    def take_tile(operands, memory, place, slot, tile, parameters, sums):
        stage, top = place.team * STAGES + slot, tile * rows
        results = results_of(place.team, stage)
        for turn in range(0, turns_per_warp, at_once):
            take_rows(place.turn + turn, operands, memory, place, stage, results, top, parameters, sums)
        wait_for_team()  # its results are in shared memory before other threads store them
        # No further barrier before the results are overwritten: the next tile's `wait_for_team` comes first.
        grad_input, begin = flat(operands.grad_input), tile * elements
        if tile < place.whole:
            store_line(memory.results, results, grad_input, begin, place.thread)
        else:
            store_part(memory.results, results, grad_input, begin, place.thread, grad_input.shape[0] - begin)

    return take_tile
