"""Bring tiles of short rows through shared memory, as the backward does: a way of steps 6 and 7.

Idea: step 6 moves rows that are no whole vectors one element or half a vector at a time, and of three vectors per row
it leaves a fourth lane idle. Here a warp copies a tile of rows as a line of memory (`stages.line_tile`). Then 1 to 32
lanes own each row, with up to eight columns each, or sixteen of rows longer than 256, and take several rows together:
their sums travel through the same shuffles (`stages.warp.sums_of_lanes`). Parameters stay in registers from row to row.
The output takes the place of the row and goes back as a line, too. A warp waits for its own copies and its own lanes,
never for another warp.
Few rows are step 6's: tiles would only add latency. There each part of a lane's vectors has a lane to itself, and a
lane adds up parts as those lanes do, so a row has the same bits in every batch.
Moves: x once, the output once, and the statistics, which are 8 of 12 bytes at one column of bfloat16.
Bound by: memory.
Measured: the reasons below.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from normlab.engine import (
    accumulator,
    cast,
    commit_copies,
    cuda,
    flat,
    int32,
    load,
    load_bits_into,
    same_lengths,
    store,
    store_bits_from,
    wait_copies,
)
from normlab.kernels.forward.operands import FACTOR_OPERANDS
from normlab.kernels.lengths import LENGTHS
from normlab.kernels.plan import FLOAT32_ALONE, Chains, Device, Plan, Refusal, Work
from normlab.kernels.problem import ForwardProblem
from normlab.kernels.tiles import ALIGNED_ROWS, TileLayout, row_finder, tile_for, with_smaller_tiles
from normlab.kernels.words import counted
from normlab.stages.ahead import BITS, NARROWEST
from normlab.stages.line_tile import line_fetchers, line_storers
from normlab.stages.output import vector_normaliser
from normlab.stages.unroll import repeated
from normlab.stages.vector import BYTES, WARP, ThreadMap, map_threads, widest
from normlab.stages.warp import sums_of_lanes

# LayerNorm of bfloat16 with 2**27 elements on an H200, as fractions of a copy:
STAGE_BYTES = 4096  # per stage, about. 97 columns: 0.92; 2,048 bytes: 0.89
TURNS = 8  # rows of a lane group in a tile, at most: of a few columns more would leave multiprocessors without a tile
# Elements of a lane, of all rows that its lane group takes together. 127 columns: 0.96, half as many 0.94; of one row
# after another 0.86, when a row had the shuffles to itself.
AT_ONCE = 64
WARPS, RESIDENT = 4, 4  # per block, and blocks that registers must hold
# Of blocks, at most. 63 columns, one row after another: one 0.81, four 0.85, a block for every few tiles 0.75
WAVES = 8
# Tiles per multiprocessor, at least, if a row takes a whole warp (True) or less. Where rows are too few for that, tiles
# have fewer of them, as few as the narrowest copy can move. 16,416 x 511 take 14.7 us, with half as many tiles 17.1;
# 33,288 x 63 take 7.4 us, with twice as many 8.2, because lane groups wait for each other (`TileLayout.apart`).
TILES = {True: 16, False: 8}
PARTS = 4  # of a lane's vectors, at most: `sum_of_parts`


class Tiled(NamedTuple):
    """Why rows of up to so many columns come as tiles, except where x has at most `few` elements."""

    columns_up_to: int
    few: int
    why: str


# Measured on an H200 with 2**27 elements of bfloat16, LayerNorm / RMSNorm, as fractions of a copy that do not count the
# statistics: LayerNorm's are 8 of 12 bytes at one column and 8 of 36 at 7. What registers reach was measured on an H100
# alone, which is bound less by instructions. Above `few` tiles are faster with x in L2.
# fmt: off
TILED = (
    Tiled(columns_up_to=1, few=2**18, why="0.29 / 0.45 of a copy at one column, H200; registers, H100: 0.29 / 0.29"),
    Tiled(columns_up_to=15, few=2**18, why="0.75 / 0.85 of a copy at 7 columns, H200; registers, H100: 0.43 / 0.52"),
    Tiled(columns_up_to=31, few=2**18, why="0.90 / 0.94 of a copy at 31 columns, H200; registers, H100: 0.57 / –"),
    Tiled(columns_up_to=63, few=2**19, why="0.94 / 0.96 of a copy at 63 columns, H200; registers, H100: 0.46 / 0.57"),
    Tiled(columns_up_to=127, few=2**20, why="0.96 / 0.96 of a copy at 127 columns, H200; registers, H100: 0.29 / 0.55"),
    Tiled(columns_up_to=255, few=2**20, why="0.93 / 0.94 of a copy at 255 columns, H200; registers, H100: 0.75 / 0.86"),
)
# Rows of 16 bits alone, which are no multiple of 8 bytes (H200). In 32 bits shifted rows are as fast.
LONGER_TILED = Tiled(columns_up_to=511, few=2**20, why="0.93 / 0.94 of a copy at 333 columns; shifted 0.85 / 0.87")
# fmt: on
# Rows of whole vectors stay in registers, except some lengths that leave lanes without a vector. By bytes of an element
# and whether the norm is RMSNorm; as measured on an H200 with 2**27 elements of 16 bits, or 2**27 bytes of 32 bits.
UNEVEN = {
    (2, False): (24, 40, 56, 104, 120, 200),
    (2, True): (24, 40, 88, 104, 120),
    (4, False): (12, 20, 24, 28, 36, 44, 68, 76),
    (4, True): (12, 20, 24, 28, 36, 44, 68, 76, 84, 92, 132, 140, 148, 156),
}
UNEVEN_TILED = {
    2: Tiled(columns_up_to=200, few=2**23, why="0.94 of a copy at 104 columns (LayerNorm); registers: 0.88; H200"),
    4: Tiled(columns_up_to=156, few=2**22, why="0.92 / 0.96 of a copy at 20 columns; registers: 0.76 / 0.85; H200"),
}


class Share(NamedTuple):
    """A lane's share of each tile: every `lanes`-th vector of each row of its lane group.

    lane: its number in the warp. row: the tile's row that its lane group takes first. column: of its first vector.
    gammas, betas: of its columns, in registers.
    """

    lane: Any
    row: Any
    column: Any
    gammas: Any
    betas: Any


@cache
def build(dtype: Any, layout: TileLayout) -> Any:
    """Return the kernel for an accumulator dtype and the layout of one warp; a block has WARPS of them or fewer."""
    n2, rows, tile_elements, thread_map = layout.n2, layout.rows, layout.tile, layout.thread_map
    lanes, turns, neighbours = layout.lanes, layout.turns, layout.neighbours
    (vectors, width, span, _), filled, elements = thread_map.loop, thread_map.filled, thread_map.elements
    bits, stages_apart = BITS[layout.saved_bytes], layout.shared_bytes // layout.saved_bytes
    result_bits, results_apart = BITS[layout.result_bytes], layout.shared_bytes // layout.result_bytes
    results_at, in_place = layout.results_at, layout.in_place
    at_once, take_rows = rows_at_once(layout), rows_taker(layout, dtype)
    fetch_line, fetch_part = line_fetchers(tile_elements, layout.together)
    store_line, store_part = line_storers(tile_elements, layout.together)

    @cuda.jit(device=True)
    def fetch(stages, at, line, tile, lane):
        begin = tile * tile_elements
        left = line.shape[0] - begin
        if left >= tile_elements:
            fetch_line(stages, at, line, begin, lane)
        elif left > 0:
            fetch_part(stages, at, line, begin, lane, left)

    @same_lengths(LENGTHS)
    @cuda.jit(launch_bounds=(WARPS * WARP, RESIDENT))
    def forward_short_rows(x, weight, bias, eps, factor, output, mean, invvar):
        # Prologue: this lane's share, and where this warp's stages and results begin.
        stages, results = cuda.shared.array(0, bits, alignment=16), cuda.shared.array(0, result_bits, alignment=16)
        gammas, betas = cuda.local.array(elements, dtype), cuda.local.array(elements, dtype)
        warp, lane = int32(cuda.threadIdx.x) >> 5, int32(cuda.threadIdx.x) & 31
        column = lane % lanes * width
        share = Share(lane, lane // lanes * neighbours, column, gammas, betas)
        stage, result = warp * stages_apart, warp * results_apart + results_at
        n1, line, outputs, warps = x.shape[0], flat(x), flat(output), cuda.blockDim.x >> 5
        tile, stride = cuda.blockIdx.x * warps + warp, cuda.gridDim.x * warps

        # The first tile travels while the parameters are loaded.
        fetch(stages, stage, line, tile, lane)
        commit_copies()
        for v in range(vectors):
            for j in range(width):
                k = v * width + j
                gammas[k] = cast(0, gammas)
                betas[k] = cast(0, gammas)
                if v < filled or column + v * span < n2:
                    if weight is not None:
                        gammas[k] = load(weight, column + v * span + j)
                    if bias is not None:
                        betas[k] = load(bias, column + v * span + j)

        # Tile after tile.
        slot = 0
        while tile * rows < n1:
            wait_copies(0)
            # All lanes' copies of this tile have arrived; all lanes have read the other stage, and stored the results.
            cuda.syncwarp()
            fetch(stages, stage + (1 - slot) * tile_elements, line, tile + stride, lane)
            commit_copies()
            there, top = stage + slot * tile_elements, tile * rows
            if in_place:  # a result takes the place of the element that its lane has loaded
                result = there
            for turn in range(0, turns, at_once):
                take_rows(
                    turn, share, stages, there, results, result, top, x, weight, bias, eps, factor, output, mean, invvar
                )
            cuda.syncwarp()  # all lanes' results are in shared memory before other lanes store them
            begin = tile * tile_elements
            left = outputs.shape[0] - begin
            if left >= tile_elements:
                store_line(results, result, outputs, begin, lane)
            else:
                store_part(results, result, outputs, begin, lane, left)
            slot = 1 - slot
            tile += stride

    return forward_short_rows


@cuda.jit(device=True)
def sum_of_parts(sums):
    """Return the sum, in the order in which a butterfly would add up the parts if each had a lane."""
    return (sums[0] + sums[2]) + (sums[1] + sums[3])


@cache
def rows_taker(layout: TileLayout, dtype: Any) -> Any:
    """Return the device function `take_rows(turn, share, stages, stage, results, result, top, x, …)`.

    The lane group normalises its rows number `turn`, … of the tile, whose first row is `top`, and leaves them in
    `results`: `rows_at_once` rows, whose sums are added up over the lanes together.
    """
    n2, count, lanes, row_of = layout.n2, rows_at_once(layout), layout.lanes, row_finder(layout)
    held = count * layout.thread_map.elements
    load_rows, add_up_rows, add_up_all_squares, finish_rows = (
        repeated(step, count) for step in row_steps(layout, dtype)
    )
    reduce_scatter, all_gather, left, sharing = sums_of_lanes(lanes, count)

    @cuda.jit(device=True)
    def leave_statistics(statistics, shares, lane, row):
        # One lane of those that have the same share of the rows.
        if lane % sharing == 0:
            for k in range(left):
                own = row + row_of(lane % lanes // sharing * left + k)
                if own < statistics.shape[0]:
                    store(statistics, own, shares[k])

    @cuda.jit(device=True)
    def take_rows(turn, share, stages, stage, results, result, top, x, weight, bias, eps, factor, output, mean, invvar):
        values = cuda.local.array(held, dtype)
        centers, scales = cuda.local.array(count, dtype), cuda.local.array(count, dtype)
        row = share.row + row_of(turn)
        cell = row * n2 + share.column
        load_rows(0, values, share.column, stages, stage + cell, x)

        # First pass, over registers: the means, and then the squares. What is once per row a lane computes for its
        # share of the rows alone.
        for k in range(count):
            centers[k] = cast(0, values)
        if mean is not None:
            add_up_rows(0, centers, values)
            reduce_scatter(centers, share.lane)
            for k in range(left):
                centers[k] = centers[k] / cast(n2, values)  # not times factor: as in step 6
            leave_statistics(mean, centers, share.lane, top + row)
            all_gather(centers, share.lane)
        add_up_all_squares(0, scales, values, centers, share.column, mean)
        reduce_scatter(scales, share.lane)
        for k in range(left):
            scales[k] = cuda.libdevice.rsqrtf(scales[k] * factor + eps)
        leave_statistics(invvar, scales, share.lane, top + row)
        all_gather(scales, share.lane)

        # Second pass: normalise, and leave the rows for `store_line`.
        finish_rows(0, values, share, results, result + cell, weight, bias, output, centers, scales)

    return take_rows


@cache
def row_steps(layout: TileLayout, dtype: Any) -> tuple[Any, Any, Any, Any]:
    """Return the device functions of a lane's part of row k of those that its lane group takes together.

    load_row(k, values, column, stages, at, x), add_up_row(k, totals, values),
    add_up_squares(k, totals, values, centers, column, mean),
    finish_row(k, values, share, results, at, weight, bias, output, centers, scales).
    """
    thread_map, n2, parts, row_of = layout.thread_map, layout.n2, parts_of(layout), row_finder(layout)
    (vectors, width, span, _), filled, elements = thread_map.loop, thread_map.filled, thread_map.elements
    normalise = vector_normaliser(elements)

    @cuda.jit(device=True)
    def load_row(k, values, column, stages, at, x):
        for v in range(vectors):
            own = k * elements + v * width
            if v < filled or column + v * span < n2:
                load_bits_into(values, own, stages, at + row_of(k) * n2 + v * span, width, x)
            else:
                for j in range(width):
                    values[own + j] = cast(0, values)

    @cuda.jit(device=True)
    def add_up_row(k, totals, values):
        sums = cuda.local.array(PARTS, dtype)
        for part in range(PARTS):
            sums[part] = cast(0, values)
        for v in range(vectors):
            for j in range(width):
                sums[v % parts] += values[k * elements + v * width + j]
        totals[k] = sum_of_parts(sums)

    @cuda.jit(device=True)
    def add_up_squares(k, totals, values, centers, column, mean):
        sums = cuda.local.array(PARTS, dtype)
        for part in range(PARTS):
            sums[part] = cast(0, values)
        for v in range(vectors):
            if mean is None or v < filled or column + v * span < n2:  # RMSNorm: a 0 past the end adds nothing
                for j in range(width):
                    deviation = values[k * elements + v * width + j] - centers[k]
                    sums[v % parts] += deviation * deviation
        totals[k] = sum_of_parts(sums)

    @cuda.jit(device=True)
    def finish_row(k, values, share, results, at, weight, bias, output, centers, scales):
        own = k * elements
        normalise(values, own, share.gammas, share.betas, weight, bias, centers[k], scales[k])
        for v in range(vectors):
            if v < filled or share.column + v * span < n2:
                there = at + row_of(k) * n2 + v * span
                store_bits_from(results, there, values, own + v * width, width, output)

    return load_row, add_up_row, add_up_squares, finish_row


def rows_at_once(layout: TileLayout) -> int:
    """Return how many rows a lane group takes together, a power of two: as many as have AT_ONCE elements of a lane."""
    return min(layout.turns, 1 << (AT_ONCE // layout.thread_map.elements).bit_length() - 1)


def parts_of(layout: TileLayout) -> int:
    """Return how many parts a lane's vectors are added up in, vector v in part v modulo that: a power of two."""
    return min(WARP // layout.lanes, 1 << (min(PARTS, layout.thread_map.vectors) - 1).bit_length())


def few_map_of(layout: TileLayout) -> ThreadMap:
    """Return the thread map of few rows, whose sums have the same bits: each part of a lane's vectors has a lane."""
    return map_threads(layout.n2, layout.width, layout.lanes * parts_of(layout))


def tiled_for(n2: int, itemsize: int, rms: bool) -> Tiled | None:
    """Return why rows of n2 columns come as tiles; None if another way is faster. itemsize: of the widest element."""
    full = BYTES // itemsize
    if n2 % full == 0:
        return UNEVEN_TILED[itemsize] if n2 in UNEVEN[itemsize, rms] else None
    # A row of 8 bytes is one vector: in registers 0.65 of a copy at four columns, as tiles 0.62 (H200).
    if 2 * n2 == full:
        return None
    longer = (LONGER_TILED,) if itemsize == 2 and n2 % (full // 2) else ()
    return next((one for one in (*TILED, *longer) if n2 <= one.columns_up_to), None)


def layout_for(n2: int, width: int, sizes: tuple[int, int], rms: bool) -> TileLayout | None:
    """Return the layout of one warp for many rows of n2 columns; None if another way is faster.

    width: elements of the vectors that go round a row's lanes. sizes: bytes of an element of x and of the output.
    n1 is no argument: a row's bits are the same in every batch.
    """
    if tiled_for(n2, max(sizes), rms) is None:
        return None
    layout = tile_for(n2, width, (sizes[0], 0, sizes[1]), 0, STAGE_BYTES)
    return layout._replace(turns=min(layout.turns, max(TURNS, layout.lanes * ALIGNED_ROWS // WARP)), warps=1)


def layout_of(problem: ForwardProblem) -> TileLayout | Refusal:
    """Return the layout as if the rows were many, if they are short and asynchronous copies can bring them."""
    if problem.in_float64:
        return FLOAT32_ALONE
    extras = problem.residual, problem.gate, problem.row_map
    if any(extra is not None for extra in extras) or problem.offset or problem.sampled:
        return Refusal("it does the plain norm")
    n2 = problem.shape[1]
    sizes = problem.x.dtype.itemsize, problem.output.dtype.itemsize
    layout = layout_for(n2, widest(n2, *problem.matrices), sizes, problem.mean is None)
    if layout is None:
        return Refusal(f"rows of {n2:,} columns are faster without tiles")
    layout = layout._replace(together=widest(layout.tile, problem.x, problem.output))
    if layout.together * layout.saved_bytes < NARROWEST:
        return Refusal(f"no asynchronous copy is as narrow as {counted(layout.together, 'element')}")
    return layout


def plan(problem: ForwardProblem, device: Device) -> Plan | Refusal:
    """Return the plan of many rows."""
    layout, (n1, n2) = layout_of(problem), problem.shape
    if isinstance(layout, Refusal):
        return layout
    layout = with_smaller_tiles(layout, n1, TILES[layout.lanes == WARP] * device.multiprocessors)
    layout = layout._replace(together=widest(layout.tile, problem.x, problem.output))
    itemsize = max(problem.x.dtype.itemsize, problem.output.dtype.itemsize)
    tiled: Any = tiled_for(n2, itemsize, problem.mean is None)
    if n1 * n2 <= tiled.few:
        return Refusal(f"{n1:,} rows of {n2} columns are so few that tiles would only add latency")
    tiles = -(-n1 // layout.rows)
    warps = min(WARPS, -(-tiles // device.multiprocessors))
    threads, shared = warps * WARP, warps * layout.shared_bytes
    most = WAVES * min(RESIDENT * device.multiprocessors, device.resident(threads, shared, 1))
    options, grid = (accumulator(problem.invvar), layout), min(-(-tiles // warps), most)
    work = Work(build, options, grid, threads, FACTOR_OPERANDS, shared)
    values = (("factor", np.float32(1 / n2)),)
    return Plan("short_rows", (work,), tiled.why, row_chains_of(layout), values=values, layout=layout)


def row_chains_of(layout: TileLayout) -> Chains:
    """Return the chains along a row: the elements of a lane's part, then the levels over parts and lanes."""
    few = few_map_of(layout)
    return Chains(few.elements, (few.threads - 1).bit_length())
