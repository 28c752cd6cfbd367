"""Build the kernel of the tiled steps with two buffers, for a `Tiling` and an order of the blocks.

C = alpha A B + beta C. A block computes a tile of C, and a thread a share of it in registers. Shared memory holds the
block's tiles of A and B for DEPTH k's, twice: one buffer is multiplied while the other one is filled. A thread's
elements of A and B for one k lie in registers, also twice: one half is multiplied while the other one is loaded.
"""

from functools import cache
from typing import Any

from normlab.engine import cuda, float32
from normlab.kernels.plan import Device, Plan
from normlab.kernels.sgemm.product import Product, Widths, product_plan
from normlab.kernels.sgemm.tiling import COLUMNS, DEPTH, ROWS, SIDE, STAGED, SUMS, THREADS, TILE, Tiling, movers
from normlab.stages.thread_tile import outer_product, part_loader, share_storer
from normlab.stages.unroll import repeated

PART = 2 * SIDE  # a thread's elements of A, or of B, in registers: SIDE of this k and SIDE of the next k


@cache
def build(tiling: Tiling, widths: Widths, block_place: Any) -> Any:
    """Return the kernel; arguments and threads as in `tiling.build`.

    widths: elements per instruction in A, B and C. block_place: the device function (block, down, across) -> (row,
    column), which says which of the down x across tiles of C a block computes.
    """
    # a_row: elements from one k to the next in A's tile in shared memory, padding included. rows, columns: the thread's
    # share of C's tile. place: the device function thread -> (row, column), its share's first element in the tile.
    a_row, rows, columns, place = tiling
    a_elements, b_elements = 2 * DEPTH * a_row, 2 * DEPTH * COLUMNS
    fetch_a, put_a, fetch_b, put_b = movers(tiling, widths)
    load_a, load_b = part_loader(rows), part_loader(columns)
    add_products = outer_product(SIDE, SIDE)
    store_share = share_storer(rows, columns, widths.c)

    @cuda.jit(device=True)
    def multiply_k(k, sums, a_part, b_part, a_tile, b_tile, a_first, b_first):
        # a_first, b_first: where the thread's elements of the buffer's first k lie. Load the next k, multiply this one.
        following = (k + 1) % 2
        load_a(a_part, following * SIDE, a_tile, a_first + (k + 1) * a_row)
        load_b(b_part, following * SIDE, b_tile, b_first + (k + 1) * COLUMNS)
        add_products(sums, a_part, b_part, k % 2)

    multiply = repeated(multiply_k, DEPTH - 1)

    @cuda.jit(launch_bounds=(THREADS, 2))  # 2 blocks per multiprocessor: at most 128 registers per thread
    def sgemm_buffered(alpha, a, b, beta, c, output):
        a_tile = cuda.shared.array(a_elements, float32, alignment=16)
        b_tile = cuda.shared.array(b_elements, float32, alignment=16)
        # staged: the thread's part of the next tiles on their way from global to shared memory
        a_staged = cuda.local.array(STAGED, float32)
        b_staged = cuda.local.array(STAGED, float32)
        a_part = cuda.local.array(PART, float32)
        b_part = cuda.local.array(PART, float32)
        sums = cuda.local.array(SUMS, float32)  # in registers: every index is a constant once loops are unrolled
        for i in range(SUMS):
            sums[i] = float32(0)
        thread = cuda.threadIdx.x
        row, column = place(thread)
        m, n = output.shape
        block_row, block_column = block_place(cuda.blockIdx.x, (m + ROWS - 1) // ROWS, (n + COLUMNS - 1) // COLUMNS)
        top = block_row * ROWS
        left = block_column * COLUMNS
        # Prologue: the first tiles, and the first k's elements in registers.
        fetch_a(a_staged, a, top, 0, thread)
        fetch_b(b_staged, b, 0, left, thread)
        put_a(a_tile, 0, a_staged, thread)
        put_b(b_tile, 0, b_staged, thread)
        cuda.syncthreads()  # the first tiles are in shared memory before a thread reads them
        load_a(a_part, 0, a_tile, row)
        load_b(b_part, 0, b_tile, column)
        first = 0  # which buffer is multiplied: it begins at k = 0, or at k = DEPTH of the shared memory
        start = 0
        # Main loop: loads from global memory start before the products and are stored after them, which hides the wait.
        while start < a.shape[1]:
            start += DEPTH
            fetch_a(a_staged, a, top, start, thread)  # after the last tile: zeros, which add nothing
            fetch_b(b_staged, b, start, left, thread)
            # All k's of this buffer except the last, whose successor is in the other buffer.
            multiply(0, sums, a_part, b_part, a_tile, b_tile, first * a_row + row, first * COLUMNS + column)
            first = DEPTH - first
            put_a(a_tile, first * a_row, a_staged, thread)
            put_b(b_tile, first * COLUMNS, b_staged, thread)
            cuda.syncthreads()  # the next tiles are in shared memory, and all threads have read this buffer's tiles
            load_a(a_part, 0, a_tile, first * a_row + row)
            load_b(b_part, 0, b_tile, first * COLUMNS + column)
            add_products(sums, a_part, b_part, 1)  # DEPTH is even: its last k is in the second half
        store_share(output, sums, alpha, beta, c, top + row, left + column)

    return sgemm_buffered


def plan(step: str, tiling: Tiling, block_place: Any, product: Product, device: Device) -> Plan:
    """Return the plan of a step, which does every product."""
    kernel = build, (tiling, product.widths, block_place)
    return product_plan(step, product, kernel, TILE, THREADS, "tiles of 128 x 128 in two buffers, whatever the sizes")
