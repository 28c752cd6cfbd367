"""Build the kernel of the tiled steps with one buffer, for a `Tiling`; the steps' files say which one, and why."""

from functools import cache
from typing import Any, NamedTuple

from normlab.engine import cuda, float32
from normlab.kernels.plan import Device, Plan
from normlab.kernels.sgemm.product import Product, Widths, product_plan
from normlab.stages.lanes import blocks_in_rows, warps_in_rows
from normlab.stages.thread_tile import RUN, Share, outer_product, part_loader, share_storer
from normlab.stages.tile import tile_fetcher, tile_putter, transposed_putter
from normlab.stages.unroll import repeated

ROWS, COLUMNS, DEPTH = 128, 128, 8  # of a block's tile of C, and how many k's are in shared memory
SIDE = 8  # of a thread's tile of C: 64 sums and 16 elements leave registers for two blocks per multiprocessor
SUMS = SIDE**2
THREADS = ROWS * COLUMNS // SUMS
STAGED = ROWS * DEPTH // THREADS  # elements of each tile that a thread fetches
B_ELEMENTS = DEPTH * COLUMNS  # of its tile in shared memory


class Tiling(NamedTuple):
    """Hold what differs between the steps.

    a_row: elements from one k of A's tile to the next, in shared memory. rows, columns: a thread's share of the block's
    tile. place: the device function thread -> (row, column) of its first element there.
    """

    a_row: int
    rows: Share
    columns: Share
    place: Any


def of_warps(down: int, across: int, lane_place: Any) -> Tiling:
    """Return the tiling with A's tile padded by four and a tile per warp, in which its lanes stand down x across.

    A thread's share is two runs of four rows by two of columns, with those of the warp's other lanes in between.
    lane_place: the device function lane -> (row, column) among the lanes.
    """
    rows, columns = down * SIDE, across * SIDE
    place = warps_in_rows(COLUMNS // columns, rows, columns, RUN, lane_place)
    return Tiling(ROWS + 4, Share(runs=2, span=down * RUN), Share(runs=2, span=across * RUN), place)


class Movers(NamedTuple):
    """Device functions that move the tiles of A and B: global memory -> registers -> shared memory."""

    fetch_a: Any
    put_a: Any
    fetch_b: Any
    put_b: Any


def movers(tiling: Tiling, widths: Widths) -> Movers:
    """Return the movers for operands of which one instruction moves so many elements."""
    return Movers(
        tile_fetcher(ROWS, DEPTH, widths.a, THREADS),
        transposed_putter(ROWS, DEPTH, widths.a, THREADS, tiling.a_row),
        tile_fetcher(DEPTH, COLUMNS, widths.b, THREADS),
        tile_putter(DEPTH, COLUMNS, widths.b, THREADS),
    )


@cache
def build(tiling: Tiling, widths: Widths) -> Any:
    """Return the kernel; its arguments are a `Product`'s operands, and its blocks have THREADS threads."""
    a_row, rows, columns, place = tiling
    a_elements = DEPTH * a_row
    fetch_a, put_a, fetch_b, put_b = movers(tiling, widths)
    load_a, load_b = part_loader(rows), part_loader(columns)
    add_products = outer_product(SIDE, SIDE)
    store_share = share_storer(rows, columns, widths.c)

    @cuda.jit(device=True)
    def multiply_k(k, sums, a_part, b_part, a_tile, b_tile, row, column):
        # 16 loads of an element for 64 FMA, in four instructions of 16 bytes
        load_a(a_part, 0, a_tile, k * a_row + row)
        load_b(b_part, 0, b_tile, k * COLUMNS + column)
        add_products(sums, a_part, b_part, 0)

    multiply = repeated(multiply_k, DEPTH)

    @cuda.jit(launch_bounds=(THREADS, 2))
    def sgemm_tiled(alpha, a, b, beta, c, output):
        a_tile = cuda.shared.array(a_elements, float32, alignment=16)
        b_tile = cuda.shared.array(B_ELEMENTS, float32, alignment=16)
        a_staged = cuda.local.array(STAGED, float32)
        b_staged = cuda.local.array(STAGED, float32)
        a_part = cuda.local.array(SIDE, float32)
        b_part = cuda.local.array(SIDE, float32)
        sums = cuda.local.array(SUMS, float32)
        for i in range(SUMS):
            sums[i] = float32(0)
        thread = cuda.threadIdx.x
        row, column = place(thread)
        m, n = output.shape
        block_row, block_column = blocks_in_rows(cuda.blockIdx.x, (m + ROWS - 1) // ROWS, (n + COLUMNS - 1) // COLUMNS)
        top = block_row * ROWS
        left = block_column * COLUMNS
        start = 0
        # Main loop: both tiles through registers to shared memory, so that one instruction can move 16 bytes; multiply.
        while start < a.shape[1]:
            fetch_a(a_staged, a, top, start, thread)
            fetch_b(b_staged, b, start, left, thread)
            put_a(a_tile, 0, a_staged, thread)
            put_b(b_tile, 0, b_staged, thread)
            cuda.syncthreads()  # both tiles are in shared memory before a thread reads them
            multiply(0, sums, a_part, b_part, a_tile, b_tile, row, column)
            cuda.syncthreads()  # all threads have read the tiles before the next ones overwrite them
            start += DEPTH
        store_share(output, sums, alpha, beta, c, top + row, left + column)

    return sgemm_tiled


TILE = ROWS, COLUMNS, DEPTH


def plan(step: str, tiling: Tiling, product: Product, device: Device) -> Plan:
    """Return the plan of a step, which does every product."""
    kernel = build, (tiling, product.widths)
    return product_plan(step, product, kernel, TILE, THREADS, "tiles of 128 x 128, whatever the sizes")
